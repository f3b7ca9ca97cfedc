"""Defects of the original's joins, end to end. See `test_known_defects.py`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml
from metadatasets import write_v2
from patience import PATIENCE_S
from small_graphs import number, require_exact_states, shuffled, take

from energon_grain import (
    BlendDataset,
    ConfigError,
    MapDataset,
    PackingDataset,
    RepeatDataset,
    SavableDataset,
    ShuffleBufferDataset,
    Stream,
    get_val_dataset,
    prepare_metadataset,
)
from energon_grain.prepare import prepare_dataset
from energon_grain.testing import write_tars

TYPED: dict[str, Any] = {"sample_type": "TextSample", "field_map": {"text": "txt"}}


def write(
    root: Path, keys: list[int], *, shards: int = 2, split: dict[str, list[str]] | None = None, exclude: Any = ()
) -> None:
    write_tars(root, [{"__key__": f"{key:06d}", "txt": f"{root.name}{key}"} for key in keys], shards=shards)
    prepare_dataset(root, split_ratio={"train": 1}, num_workers=0, sqlite=False, **TYPED)
    every = [f"shard_{shard:03d}.tar" for shard in range(shards)]
    splits = {"split_parts": split or {"train": every}, "exclude": list(exclude)}
    (root / ".nv-meta" / "split.yaml").write_text(yaml.safe_dump(splits))


def both(*, nonmatch: str = "error", **join: Any) -> dict[str, Any]:
    joiner = {"__module__": "energon_grain", "__class__": "TextSample"}
    return {"join": [{"path": "a"}, {"path": "b", "nonmatch": nonmatch}], "joiner": joiner, **join}


def val(path: Path, split_part: str = "train") -> list[str]:
    return [sample.text for sample in get_val_dataset(path, split_part=split_part, batch_size=None)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path / "a", list(range(24)))
    write(tmp_path / "b", [*range(23, -1, -1), 100])
    return tmp_path


def test_w04_joined_rows_are_made_again_from_their_keys(folder: Path) -> None:
    """In the original, a shuffle buffer or packs over a join cannot resume: rows have no keys to make them of."""
    path = write_v2(folder, train=both())

    def mixed() -> SavableDataset:
        return MapDataset(ShuffleBufferDataset(shuffled(path), 8), number)

    def packs() -> SavableDataset:
        rows = RepeatDataset(MapDataset(shuffled(path), number))
        return PackingDataset(rows, 5, lambda samples: [samples[:2], samples[2:]], tuple)

    def blend() -> SavableDataset:
        rows = MapDataset(shuffled(path), number)
        return BlendDataset(RepeatDataset(rows), RepeatDataset(MapDataset(shuffled(folder / "a"), lambda sample: -1)))

    assert sorted(require_exact_states(mixed, 24)) == list(range(24))
    require_exact_states(packs, 20)
    require_exact_states(blend, 20)
    stream = Stream.of(shuffled(path, batch_size=5, repeat=True))
    for batch in take(stream, 10):
        again = stream.restore_sample(json.loads(json.dumps(batch.__restore_key__)))
        assert (again.__key__, again.text) == (batch.__key__, batch.text)


@pytest.mark.parametrize("prepared", [True, False])
def test_w06_rows_without_a_match_can_be_read(folder: Path, prepared: bool) -> None:
    """In the original the pointer of a missing sample ends the iteration."""
    write(folder / "c", [*range(0, 24, 2)])
    path = write_v2(folder, train={**both(), "join": [{"path": "a"}, {"path": "c", "nonmatch": "none"}]})
    if prepared:
        prepare_metadataset(path)
    assert val(path) == [f"c{key}" if key % 2 == 0 else f"a{key}" for key in range(24)]


def test_w07_each_split_reads_its_own_rows(tmp_path: Path) -> None:
    """In the original the joins of two splits of the same datasets share one index file."""
    parts = {"train": ["shard_000.tar"], "val": ["shard_001.tar"]}
    write(tmp_path / "a", list(range(10)), split=parts)
    write(tmp_path / "b", [3, 4, 0, 1, 2, 9, 8, 7, 6, 5], split=parts)
    path = write_v2(tmp_path, train={**both(), "split_part": "train"}, val={**both(), "split_part": "val"})
    for _ in range(2):  # joined when used, and prepared
        assert val(path, "train") == [f"b{key}" for key in range(5)]
        assert val(path, "val") == [f"b{key}" for key in range(5, 10)]
        prepare_metadataset(path)


def test_w08_names_and_rows_of_an_index_do_not_depend_on_the_run(tmp_path: Path) -> None:
    """In the original the name depends on the order of a set of texts, and rows of a shard come in any order."""
    exclude = [f"shard_000.tar/{key:06d}" for key in (1, 5, 2, 7)]
    write(tmp_path / "a", list(range(20)), exclude=exclude)
    write(tmp_path / "b", list(range(19, -1, -1)), exclude=exclude[::-1])
    path = write_v2(tmp_path, train=both(nonmatch="skip"))
    program = "import sys; from energon_grain import prepare_metadataset; prepare_metadataset(sys.argv[1])"
    found: list[dict[str, bytes]] = []
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        subprocess.run([sys.executable, "-c", program, str(path)], env=environment, check=True, timeout=PATIENCE_S)
        files = [file for file in Path(f"{path}.cache").rglob("*") if file.is_file()]
        found.append({str(file.relative_to(f"{path}.cache")): file.read_bytes() for file in files})
        for file in files:
            file.unlink()
    assert found[0] == found[1]
    assert len(found[0]) > 1
    assert val(path) == [f"b{key}" for key in range(20) if key not in (1, 5, 2, 7)]


def test_w29_what_is_said_of_a_join_counts_or_is_refused(folder: Path) -> None:
    """The original drops these keys without a word."""
    in_order = [f"{key:06d}" for key in range(24)]
    kept = shuffled(write_v2(folder, "kept.yaml", train=both(shuffle_over_epochs_multiplier=None)))
    assert [sample.__key__ for sample in kept] == in_order
    twice = Stream.of(shuffled(write_v2(folder, "twice.yaml", train=both(shuffle_over_epochs_multiplier=2))))
    passes = [[sample.__key__ for sample in twice] for _ in range(2)]
    assert Counter(sum(passes, [])) == dict.fromkeys(in_order, 2)
    assert len(set(passes[0])) < 24  # two passes are shuffled as one
    part = write_v2(folder, "part.yaml", train=both(subset={"range": ["25%", "50%"]}))
    assert val(part) == [f"b{key}" for key in range(6, 12)]
    for said in ({"shuffle_over_epochs_multiplier": 2}, {"subset": {"range": [0, 3]}}, {"aux": {"x": "b"}}):
        refused = write_v2(folder, "refused.yaml", train={**both(), "join": [{"path": "a"}, {"path": "b", **said}]})
        with pytest.raises(ConfigError, match=f"join\\[1\\].{next(iter(said))}"):
            shuffled(refused)


def test_w30_lengths_and_shares_count_rows_that_are_there(folder: Path) -> None:
    """The original counts all samples of the primary."""
    write(folder / "third", [*range(0, 24, 3)], exclude=["shard_000.tar/000003"])
    rows = {**both(), "join": [{"path": "a"}, {"path": "third", "nonmatch": "skip"}]}
    path = write_v2(folder, train=rows)
    assert len(shuffled(path)) == len(list(shuffled(path))) == 7
    mixed = write_v2(
        folder,
        "mixed.yaml",
        train={"blend_epochized": [{"repetitions": 2, **rows}, {"repetitions": 1, "path": "a"}]},
    )
    assert Counter(sample.text[0] for sample in shuffled(mixed)) == {"t": 14, "a": 24}


@pytest.mark.parametrize("side", ["a", "b"])
def test_w33_excluded_shards_are_not_joined(tmp_path: Path, side: str) -> None:
    """In the original whole shards are excluded from joins only if they lie in a folder."""
    for name in ("a", "b"):
        write(tmp_path / name, list(range(10)), exclude=["shard_000.tar"] if name == side else ())
    path = write_v2(tmp_path, train=both(nonmatch="skip"))
    for _ in range(2):
        assert val(path) == [f"b{key}" for key in range(5, 10)]
        prepare_metadataset(path)
