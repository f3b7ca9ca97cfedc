"""Defects that users of the original know, and that must not come back.

Those of joins (W-04, W-06, W-07, W-08, W-29, W-30, W-33) are in `test_known_defects_of_joins.py`. Where a defect
belongs to one module, its test stands there:

| defect | test |
|---|---|
| W-01 states right after a restore, W-34 on other hosts | `test_stream.py`, `test_graph_machine.py` |
| W-03 repetitions, W-13 epochs | `operators/test_passes.py` |
| W-05 packs from their keys | `test_restore_sample.py` |
| W-10 seeds of the first worker | `test_hook_seeds.py`, `test_restore_sample.py` |
| W-11 tolerance with seeds | `test_hook_budgets.py` |
| W-12 batches of arrays | `samples/test_batch.py` |
| W-14 a criterion that refuses | `operators/test_buckets.py` |
| W-15 seeds and the number of workers | `test_hook_seeds.py` |
| W-18 broken samples and `lint` | `prepare/test_lint_dataset.py`, `cli/test_inspection_commands.py` |
| W-19 lazy values asked twice | `datasets/test_cache_pool.py`, `datasets/test_file_store_cache_pool.py` |
| W-20 compressed shards | `prepare/test_shard_listing.py` |
| W-21 ratios that lose a shard | `prepare/test_split_ratio.py` |
| W-22 a process of `prepare` that dies | `prepare/test_scanning.py` |
| W-23 reading again after an error | `storage/test_local.py` |
| W-25 lines of JSONL by key | `sources/test_jsonl_file_store.py` |
| W-26 hidden files | `formats/test_member_names.py` |
| W-27 required fields | `transforms/test_field_map.py` |
| W-28 anchors and empty values | `formats/test_yaml_dialect.py`, `metadataset/test_documents.py`, `test_nodes.py` |
| W-31 what generators and mixtures hold back | `operators/test_packing.py`, `test_mixing.py`, `test_iterating.py` |

Without a counterpart: W-22 as far as media metadata go; W-24, a tool that patches tars in place; W-32, a tool that
reads debug logs.

Limits of the original's design that tests hold us to: no framework in the core (L-01: `loader/test_imports.py`),
state for any number of hosts, as JSON (L-02, L-03: `test_stream.py`, `test_cursor.py`), nothing replayed or held (L-04,
L-11: `test_graph_machine.py`), mixing over the whole dataset in constant memory (L-05, L-06: `samplers/`), reads that
are joined and handles that are few (L-07, L-08, L-09: `storage/`, `sources/test_webdataset_file_store.py`), workers
that are not forked and end with their parent (L-10: `loader/test_worker_processes.py`), small datasets and exact
shares (L-12, L-13: `test_passes.py`, `samplers/test_blend.py`), preparing that resumes (L-14:
`prepare/test_preparation.py`), random access (L-15: `loader/test_data_source.py`), stale indices (L-16:
`sources/test_stale_index.py`), a schema (L-17: `metadataset/test_schema.py`), no foreign code (L-18:
`formats/test_dataset_config.py`), no global state (L-19: hosts in threads of one process, everywhere), validation
with equal steps on all hosts (L-20: `test_passes.py`), silence (L-22: `loader/test_script_end.py`).
"""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from metadatasets import v2
from small_graphs import mixed, number, roll, shuffled, take
from stream_hosts import MakeDataset, config

from energon_grain import (
    BlendDataset,
    BlendEpochizedDataset,
    EPath,
    HostsError,
    MapDataset,
    PackingDataset,
    RepeatDataset,
    SavableDataset,
    StateError,
    Stream,
    get_savable_loader,
    get_train_dataset,
    get_val_dataset,
    merge_cursors,
)
from energon_grain.testing import make_text_dataset


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
