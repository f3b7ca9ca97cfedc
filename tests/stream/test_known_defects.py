"""Defects that users of the original know, and that must not come back.

Those of joins are W-04, W-06, W-07, W-08, W-29, W-30 and W-33. Where a defect
belongs to one module, its test stands there:

| defect | test |
|---|---|
| W-01 states right after a restore, W-34 on other hosts | `test_stream.py`, `test_graph_machine.py` |
| W-03 repetitions, W-13 epochs | `operators/test_passes.py` |
| W-05 packs from their keys | `test_restore_sample.py` |
| W-10 seeds of the first worker | `test_hooks.py`, `test_restore_sample.py` |
| W-11 tolerance with seeds | `test_hooks.py` |
| W-12 batches of arrays | `samples/test_sample.py` |
| W-14 a criterion that refuses | `operators/test_batching.py` |
| W-15 seeds and the number of workers | `test_hooks.py` |
| W-18 broken samples and `lint` | `cli/test_lint.py`, `cli/test_inspection_commands.py` |
| W-19 lazy values asked twice | `datasets/test_cache_pools.py` |
| W-20 compressed shards | `formats/test_splits.py` |
| W-21 ratios that lose a shard | `formats/test_splits.py` |
| W-22 a process of `prepare` that dies | `prepare/test_scanning.py` |
| W-23 reading again after an error | `storage/test_local.py` |
| W-25 lines of JSONL by key | `sources/test_webdataset.py` |
| W-26 hidden files | `formats/test_shard_scan.py` |
| W-27 required fields | `transforms/test_field_map.py` |
| W-28 anchors and empty values | `formats/test_dataset_config.py`, `metadataset/test_documents.py` |
| W-31 what generators and mixtures hold back | `operators/test_packing.py`, `test_mixing.py`, `test_mapping.py` |

Without a counterpart: W-22 as far as media metadata go; W-24, a tool that patches tars in place; W-32, a tool that
reads debug logs.

Limits of the original's design that tests hold us to: no framework in the core (L-01: `test_extras.py`),
state for any number of hosts, as JSON (L-02, L-03: `test_stream.py`, `test_cursor.py`), nothing replayed or held (L-04,
L-11: `test_graph_machine.py`), mixing over the whole dataset in constant memory (L-05, L-06: `samplers/`), reads that
are joined and handles that are few (L-07, L-08, L-09: `storage/`, `sources/test_file_stores.py`), workers
that are not forked and end with their parent (L-10: `loader/test_worker_processes.py`), small datasets and exact
shares (L-12, L-13: `test_passes.py`, `samplers/test_blend.py`), preparing that resumes (L-14:
`prepare/test_preparation.py`), random access (L-15: `loader/test_grain.py`), stale indices (L-16:
`sources/test_index_damage.py`), a schema (L-17: `metadataset/test_documents.py`), no foreign code (L-18:
`formats/test_dataset_config.py`), no global state (L-19: hosts in threads of one process, everywhere), validation
with equal steps on all hosts (L-20: `test_passes.py`), silence (L-22: `loader/test_script_end.py`).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import yaml
from metadatasets import v2, write_v2
from patience import PATIENCE_S
from small_graphs import mixed, number, require_exact_states, roll, shuffled, take
from stream_hosts import MakeDataset, config

from energon_grain import (
    BlendDataset,
    BlendEpochizedDataset,
    ConfigError,
    EPath,
    HostsError,
    MapDataset,
    PackingDataset,
    RepeatDataset,
    SavableDataset,
    ShuffleBufferDataset,
    StateError,
    Stream,
    get_savable_loader,
    get_train_dataset,
    get_val_dataset,
    merge_cursors,
    prepare_metadataset,
)
from energon_grain.prepare import prepare_dataset
from energon_grain.testing import make_text_dataset, write_tars


def train(path: Any, **options: Any) -> SavableDataset:
    arguments: dict[str, Any] = {
        "batch_size": 3,
        "shuffle_buffer_size": None,
        "max_samples_per_sequence": None,
        "worker_config": config(),
    }
    return get_train_dataset(path, **{**arguments, **options})


def keys(batch: Any) -> tuple[str, ...]:
    return tuple(batch.__key__)


def test_w02_validation_over_several_leaves_goes_on_where_it_stopped(text_dataset: MakeDataset) -> None:
    """The original's concatenation saves no position and begins again with the first leaf."""
    path, other = text_dataset(13), text_dataset(24)
    metadataset = v2(train={"blend": [{"path": str(path)}, {"path": str(other)}]})
    dataset = get_val_dataset(metadataset, split_part="train", batch_size=4, worker_config=config())
    expected = [keys(batch) for batch in dataset]
    assert sum(map(len, expected)) == 37
    for steps in range(len(expected)):
        first, second = Stream.of(dataset), Stream.of(dataset)
        take(first, steps)
        second.restore(first.cursor())
        assert [keys(batch) for batch in second] == expected[steps:]


def test_w09_two_references_to_one_leaf_are_two_orders(text_dataset: MakeDataset) -> None:
    """In the original all generators of a worker begin with one seed."""

    def side(which: int) -> SavableDataset:
        return MapDataset(mixed(text_dataset(53)), lambda sample: (which, sample, roll()))

    items = take(Stream.of(BlendDataset(side(0), side(1))), 106)
    orders = [[sample for side, sample, _ in items if side == which] for which in (0, 1)]
    assert sum(first == second for first, second in zip(*orders, strict=False)) < 10
    rolls: dict[int, set[int]] = {}
    for _, sample, drawn in items:
        rolls.setdefault(sample, set()).add(drawn)
    assert sum(map(len, rolls.values())) == 106  # augmentations differ too


@pytest.mark.parametrize("multiplier", [1, 3])
def test_w16_repetitions_are_what_they_say(text_dataset: MakeDataset, multiplier: int) -> None:
    """In the original `shuffle_over_epochs_multiplier` multiplies them, and the length says otherwise."""
    path = text_dataset(13)
    metadataset = v2(
        train={
            "blend_epochized": [
                {"path": str(path), "repetitions": 2, "shuffle_over_epochs_multiplier": multiplier},
                {"path": str(text_dataset(7)), "repetitions": 1},
            ]
        }
    )
    dataset = train(metadataset, batch_size=1, repeat=False)
    assert len(dataset) == 33
    stream = Stream.of(dataset)
    seen: Counter[str] = Counter()
    for _ in range(3):
        batches = list(stream)
        assert len(batches) == 33
        seen.update(batch.__key__[0] for batch in batches if batch.__sources__[0][0].dataset_path == EPath(path))
    assert seen == {f"{i:06d}": 6 for i in range(13)}


def test_w17_a_state_does_not_know_how_it_was_watched(text_dataset: MakeDataset) -> None:
    """Logging and garbage collection are levels of the original's state."""
    loader: Any = get_savable_loader(train(text_dataset(53)))
    next(loader)
    state = loader.save_state_rank()
    expected = [keys(next(loader)) for _ in range(3)]
    other: Any = get_savable_loader(
        train(text_dataset(53), worker_config=config(worker_log_level=3, num_workers=1)),
        gc_collect_every_n_steps=1,
        watchdog_timeout_seconds=30,
    )
    other.restore_state_rank(state)
    assert [keys(next(other)) for _ in range(3)] == expected
    other.close()


def test_w30_lengths_and_shares_count_what_is_left(tmp_path: Path) -> None:
    """The original counts excluded samples and samples outside of a subset."""
    root = make_text_dataset(tmp_path / "text", n=20, shards=2)
    (root / ".nv-meta" / "split.yaml").write_text(
        "split_parts:\n  train: [shard_000.tar, shard_001.tar]\nexclude: [shard_000.tar/000003, shard_001.tar/000015]\n"
    )
    assert len(train(root, batch_size=1, repeat=False)) == 18
    half = train(root, batch_size=1, repeat=False, subset=["50%", "100%"])
    assert len(half) == len(list(half)) == 9
    metadataset = v2(
        train={
            "blend_epochized": [
                {"path": str(root), "repetitions": 0.5},
                {"path": str(root), "subset": {"range": ["50%", "100%"]}, "repetitions": 2},
            ]
        }
    )
    epoch = train(metadataset, batch_size=1, repeat=False)
    assert len(epoch) == len(list(epoch)) == 9 + 18


def test_w34_the_state_of_one_host_knows_its_hosts(text_dataset: MakeDataset) -> None:
    """In the original a file restored under another number of hosts silently repeats and drops data."""

    def packs(host: int, hosts: int) -> Stream:
        leaf = RepeatDataset(mixed(text_dataset(53), worker_config=config(host, hosts)))
        return Stream.of(PackingDataset(leaf, 4, lambda samples: [samples[:3], samples[3:]], tuple))

    streams = [packs(host, 2) for host in range(2)]
    for stream in streams:
        take(stream, 3)
    with pytest.raises(StateError, match="host 0 of 2"):
        packs(0, 4).restore(streams[0].cursor())
    with pytest.raises(StateError, match="host 0 of 2"):
        packs(1, 2).restore(streams[0].cursor())
    with pytest.raises(HostsError, match="3 hosts do not divide the 4 lanes"):
        packs(0, 3)
    merged = merge_cursors([stream.cursor() for stream in streams])
    single = packs(0, 1)
    single.restore(merged)
    assert sorted([next(single), next(single)]) == sorted(next(stream) for stream in streams)


def test_w03_through_a_blend_by_repetitions(text_dataset: MakeDataset) -> None:
    """0.7 repetitions of 55 samples: 38 or 39 in every epoch, seven times each after ten."""
    blend = BlendEpochizedDataset(
        (mixed(text_dataset(55)), Fraction(7, 10)),
        (MapDataset(shuffled(text_dataset(7)), lambda sample: 100 + number(sample)), 1),
    )
    stream = Stream.of(blend)
    epochs = [list(stream) for _ in range(10)]
    assert {sum(sample < 100 for sample in epoch) for epoch in epochs} == {38, 39}
    assert Counter(sum(epochs, [])) == {**dict.fromkeys(range(55), 7), **dict.fromkeys(range(100, 107), 10)}


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
