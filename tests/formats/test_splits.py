"""Split files: reading, writing, and what they select."""

from __future__ import annotations

from pathlib import Path

import braceexpand
import pytest
from hypothesis import example, given, strategies as st

from energon_grain.errors import EmptyDatasetError, SplitError
from energon_grain.formats.nv_meta import DatasetInfo
from energon_grain.formats.splits import SplitConfig, collapse, read_split_config, select_shards, write_split_config

NAMES = st.one_of(
    st.builds("shards/shard_{}.tar".format, st.integers(0, 120)),
    st.builds("s-{:03}-of-9.tar".format, st.integers(0, 1200)),
    st.text(alphabet="a{},.\\0159-é$ ", min_size=1, max_size=8),
)


@pytest.fixture
def meta(tmp_path: Path) -> Path:
    folder = tmp_path / ".nv-meta"
    folder.mkdir()
    return folder


def expand(patterns: list[str]) -> list[str]:
    return [name for pattern in patterns for name in braceexpand.braceexpand(pattern)]


@given(st.lists(NAMES, max_size=30))
@example([f"s_{i}.tar" for i in range(120)])
@example([f"s_{i:02}.tar" for i in range(120)])
@example(["0.tar", "1.tar"])
def test_collapsed_names_expand_to_the_same_in_order(names: list[str]) -> None:
    assert expand(collapse(names)) == names


@pytest.mark.parametrize(
    ("names", "patterns"),
    [
        ([f"s_{i:03}.tar" for i in range(8)], ["s_{000..007}.tar"]),
        ([f"s_{i}.tar" for i in range(8, 12)], ["s_{8..11}.tar"]),
        (["a1.tar", "a3.tar", "a4.tar", "b4.tar"], ["a1.tar", "a{3..4}.tar", "b4.tar"]),
        (["a2.tar", "a1.tar"], ["a2.tar", "a1.tar"]),
        (["p0/s9.tar", "p1/s9.tar"], ["p{0..1}/s9.tar"]),
        (["a{1}.tar"], ["a\\{1\\}.tar"]),
        ([], []),
    ],
)
def test_collapse(names: list[str], patterns: list[str]) -> None:
    assert collapse(names) == patterns


@pytest.mark.parametrize("name", ["split.yaml", "other.json"])
def test_round_trip(tmp_path: Path, meta: Path, name: str) -> None:
    config = SplitConfig(
        split_parts={"val": ("b.tar",), "train": ("s_00.tar", "s_01.tar", "a.tar"), "empty": ()},
        exclude=("b.tar", "a.tar/k0"),
    )
    write_split_config(meta / name, config)
    found = read_split_config(tmp_path, name)
    assert found == config
    assert found.where == str(meta / name)
    assert list(found.split_parts) == ["val", "train", "empty"]


def test_written_yaml_is_energons(meta: Path) -> None:
    write_split_config(meta / "split.yaml", SplitConfig(split_parts={"train": ("s0.tar", "s1.tar"), "val": ()}))
    assert (meta / "split.yaml").read_text() == "split_parts:\n  train:\n  - s{0..1}.tar\n  val: []\nexclude: []\n"


def test_full_yaml_and_braces(tmp_path: Path, meta: Path) -> None:
    (meta / "split.yaml").write_text(
        'split_parts:\n  train: &all ["s/{00..02}.tar", s/x.tar]\n  val: *all\n  test:\n'
        "exclude:\n  - s/01.tar/00003{2..3}  # samples\n"
    )
    config = read_split_config(tmp_path)
    assert config.split_parts["val"] == ("s/00.tar", "s/01.tar", "s/02.tar", "s/x.tar")
    assert config.split_parts["test"] == ()
    assert config.exclude == ("s/01.tar/000032", "s/01.tar/000033")


def test_json_is_the_fallback_of_the_default_only(tmp_path: Path, meta: Path) -> None:
    (meta / "split.json").write_text('{"split_parts": {"train": ["a.tar"]}}')
    assert read_split_config(tmp_path).split_parts == {"train": ("a.tar",)}
    assert read_split_config(tmp_path, "split.yaml").split_parts == {"train": ("a.tar",)}
    with pytest.raises(SplitError, match=r"other\.yaml: no such split file; there is split\.json"):
        read_split_config(tmp_path, "other.yaml")


INFO = DatasetInfo(shard_counts={"a.tar": 1, "p/b.tar": 2, "p/c.tar": 3, "d.tar": 4})


def test_selection_keeps_the_order_of_the_split_file() -> None:
    config = SplitConfig(split_parts={"train": ("p/c.tar", "a.tar", "p/b.tar")})
    assert select_shards(config, "train", INFO).shards == ("p/c.tar", "a.tar", "p/b.tar")


def test_excludes() -> None:
    config = SplitConfig(
        split_parts={"train": ("p/c.tar", "a.tar", "p/b.tar")},
        exclude=("a.tar", "p/b.tar/dir/key", "p/b.tar/dir/key", "d.tar/k", "x.tar/k", "gone.tar"),
    )
    selected = select_shards(config, "train", INFO)
    assert selected.shards == ("p/c.tar", "p/b.tar")
    assert selected.excluded_samples == (("p/b.tar", "dir/key"),)
    assert selected.unmatched_excludes == ("x.tar/k", "gone.tar")


def test_an_excluded_shard_need_not_exist() -> None:
    config = SplitConfig(split_parts={"train": ("gone.tar", "a.tar")}, exclude=("gone.tar",))
    assert select_shards(config, "train", INFO).shards == ("a.tar",)


def test_wrong_selections_are_refused() -> None:
    config = SplitConfig(split_parts={"train": ("p/e.tar",), "val": ("a.tar",), "none": ()}, exclude=("a.tar",))
    with pytest.raises(SplitError, match=r"'trian'; .* 'train', 'val', 'none'. Did you mean 'train'"):
        select_shards(config, "trian", INFO)
    with pytest.raises(SplitError, match=r"the split file: .* 1 shard that was .* 'p/e.tar'"):
        select_shards(config, "train", INFO)
    with pytest.raises(EmptyDatasetError, match="after the excludes"):
        select_shards(config, "val", INFO)
    with pytest.raises(EmptyDatasetError, match="add some"):
        select_shards(config, "none", INFO)
