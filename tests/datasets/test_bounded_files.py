"""Small files that stand for more than a machine holds: refused, with the file and the rule."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from energon_grain import ConfigError, IndexFileError, SplitError, get_loader, get_val_dataset
from energon_grain.storage.settings import read_settings

MakeDataset = Callable[..., Path]
LAUGHS = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 9)}]\n" for level in range(1, 9)
)
DEEP = "[" * 100_000


@pytest.fixture
def dataset(text_dataset: MakeDataset, tmp_path: Path) -> Path:
    return Path(shutil.copytree(text_dataset(12, 3), tmp_path / "data"))


def keys(path: Path) -> list[str]:
    loader = get_loader(get_val_dataset(path, split_part="train", batch_size=None))
    return [sample.__key__ for sample in loader]


def split(dataset: Path, content: str) -> None:
    (dataset / ".nv-meta" / "split.yaml").write_text(content)


@pytest.mark.parametrize("pattern", ["sh-{0..999999999}.tar", "{a,b}" * 40, "{a,a}" * 40, "{0..9}" * 5000])
def test_a_pattern_for_more_shards_than_there_are_is_refused(dataset: Path, pattern: str) -> None:
    split(dataset, f"split_parts: {{train: ['{pattern}']}}")
    with pytest.raises(SplitError, match=r"split\.yaml: \$\.split_parts\.train: .* stands for .* dataset has 3 shards"):
        keys(dataset)


def test_many_patterns_share_one_bound(dataset: Path) -> None:
    split(dataset, "split_parts: {train: [" + ", ".join(["'{0..99999}.tar'"] * 20) + "]}")
    with pytest.raises(SplitError, match=r"all patterns of the file together may stand for 1,000,030"):
        keys(dataset)


def test_an_exclude_for_more_shards_than_there_are_excludes_those_that_there_are(dataset: Path) -> None:
    shards = sorted(path.name for path in dataset.glob("*.tar"))
    head, number = re.fullmatch(r"(.*?)([0-9]+)\.tar", shards[1]).groups()
    numbers = f"{{{number}..{'9' * len(number)}}}"
    split(dataset, f"split_parts: {{train: {shards}}}\nexclude: ['{head}{numbers}.tar']")
    rest = keys(dataset)
    assert 0 < len(rest) < 12
    many = f"{{{head},x}}{numbers}.tar{{,{{0..99999999}}}}"
    split(dataset, f"split_parts: {{train: {shards}}}\nexclude: ['{many}']")
    assert keys(dataset) == rest


def test_an_exclude_for_samples_without_end_is_refused(dataset: Path) -> None:
    shards = sorted(path.name for path in dataset.glob("*.tar"))
    split(dataset, f"split_parts: {{train: {shards}}}\nexclude: ['{shards[0]}/{{000000..999999999}}']")
    with pytest.raises(SplitError, match=r"\$\.exclude: .* exclude only samples that it has"):
        keys(dataset)


@pytest.mark.parametrize(
    ("content", "rule"),
    [
        (LAUGHS, "with its aliases it stands for .* values"),
        (DEEP, "at most 100 levels"),
        ("a: &a [*a]", "an alias inside of what it stands for"),
    ],
)
def test_yaml_is_bounded_wherever_it_is_read(dataset: Path, tmp_path: Path, content: str, rule: str) -> None:
    metadataset = tmp_path / "meta.yaml"
    metadataset.write_text(content)
    with pytest.raises(ConfigError, match=rf"meta\.yaml: .*{rule}"):
        keys(metadataset)
    with pytest.raises(ConfigError, match=rf"meta\.yaml: .*{rule}"):
        read_settings(str(metadataset))
    meta = dataset / ".nv-meta"
    description = (meta / "dataset.yaml").read_text()
    (meta / "dataset.yaml").write_text(content)
    with pytest.raises(ConfigError, match=rf"dataset\.yaml: .*{rule}"):
        keys(dataset)
    (meta / "dataset.yaml").write_text(description)
    (meta / ".info.json").rename(meta / "info")
    (meta / ".info.yaml").write_text(content)
    with pytest.raises(IndexFileError, match=rf"\.info\.yaml: .*{rule}"):
        keys(dataset)
    (meta / "info").rename(meta / ".info.json")
    split(dataset, content)
    with pytest.raises(SplitError, match=rf"split\.yaml: .*{rule}"):
        keys(dataset)


def test_deep_json_is_refused(dataset: Path) -> None:
    meta = dataset / ".nv-meta"
    (meta / "split.json").write_text(DEEP)
    (meta / "split.yaml").unlink()
    with pytest.raises(SplitError, match=r"split\.json: .*nested too deeply"):
        keys(dataset)
    (meta / ".info.json").write_text('{"shard_counts": {}, "x": ' + DEEP)
    with pytest.raises(IndexFileError, match=r"\.info\.json: "):
        keys(dataset)


def test_aliases_may_repeat_as_much_as_is_written(dataset: Path, tmp_path: Path) -> None:
    tags = ", ".join(f"tag{number}: {number}" for number in range(50))
    leaves = "".join("    - {weight: 1, path: data, split_part: train, subflavors: *tags}\n" for _ in range(20))
    metadataset = tmp_path / "meta.yaml"
    metadataset.write_text(
        f"__module__: megatron.energon\n__class__: MetadatasetV2\nx-tags: &tags {{{tags}}}\n"
        f"splits:\n  train:\n    concat:\n{leaves.replace('weight: 1, ', '')}"
    )
    assert len(keys(metadataset)) == 20 * len(keys(dataset))
