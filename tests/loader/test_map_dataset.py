"""`BatchMapDataset` in pipelines that Grain drives."""

from __future__ import annotations

import copy
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grain
import numpy as np
import pytest
from absl import flags
from number_batches import Skipping

from energon_grain import ConfigError, EmptyDatasetError, get_loader, get_val_dataset
from energon_grain.loader import BatchIterDataset, BatchMapDataset

Train = Callable[..., Any]


def keys(batches: Any, steps: int | None = None) -> list[list[str]]:
    found = []
    for batch in batches:
        found.append(list(batch.__key__))
        if len(found) == steps:
            break
    return found


OPTIONS: list[dict[str, Any]] = [
    {},
    {"max_samples_per_sequence": None},
    {"repeat": False},
    {"repeat": False, "last_batch": "drop"},
    {"repeat": False, "last_batch": "pad"},
    {"repeat": False, "last_batch": "pad", "balance": "bytes.txt"},
    {"virtual_epoch_length": 5},
]


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("hosts", [1, 3])
def test_the_batches_are_those_of_the_loader(train: Train, options: dict[str, Any], hosts: int) -> None:
    for rank in range(hosts):
        dataset = train(n=50, rank=rank, world_size=hosts, **options)
        batches = BatchMapDataset(dataset)
        loader = get_loader(dataset)
        endless = options.get("repeat", True) and "virtual_epoch_length" not in options
        assert len(batches) == (sys.maxsize if endless else len(loader))
        for number in range(3 * len(loader)):
            try:
                expected = next(loader)
            except StopIteration:
                expected = next(iter(loader))
            batch = batches[number]
            assert batch.__key__ == expected.__key__
            assert batch.text == expected.text
            assert batch.__restore_key__ == expected.__restore_key__
            np.testing.assert_equal(batch.__valid__, expected.__valid__)
        if endless:
            with pytest.raises(IndexError, match="no end to count from"):
                batches[-1]
        else:
            assert batches[-1].__key__ == batches[len(batches) - 1].__key__


def test_batches_by_their_places(train: Train) -> None:
    batches = BatchMapDataset(train(virtual_epoch_length=6))
    chosen = batches.slice([4, -1, 0, 4])
    assert keys(chosen) == keys([batches[4], batches[5], batches[0], batches[4]])
    assert chosen[5].__key__ == batches[6 + 5].__key__  # of the next pass
    assert keys(batches[np.array([1, 2])][1:]) == keys([batches[2]])
    assert keys(BatchMapDataset(train())[[7, 100]]) == keys([batches[7], batches[100]])
    with pytest.raises(IndexError, match="batch 6 of 6"):
        batches.slice([6])


def test_what_elements_are(train: Train) -> None:
    for elements in (BatchMapDataset(train(task_encoder=Skipping())), BatchIterDataset(train(task_encoder=Skipping()))):
        spec = grain.experimental.get_element_spec(elements)
        assert spec == {
            "number": grain.experimental.ShapeDtypeStruct((4,), np.dtype(np.int64)),
            "noise": grain.experimental.ShapeDtypeStruct((4,), np.dtype(np.float64)),
        }
    assert grain.experimental.get_element_spec(BatchMapDataset(train(task_encoder=Skipping()))[[1]]) == spec
    batches = BatchMapDataset(train())
    grain.experimental.get_element_spec(batches)
    assert batches.stats()["batches"] == 2
    none = BatchMapDataset(train(n=4, broken=frozenset(range(4)), repeat=False))
    with pytest.raises(EmptyDatasetError, match="all of them are dropped"):
        grain.experimental.get_element_spec(none)


def test_reads_are_told_to_grain(train: Train) -> None:
    """Its own process, so that nothing else has read, and Grain's telemetry is in the registry that it scrapes."""
    registry = pytest.importorskip("prometheus_client").REGISTRY

    def told(source: str) -> dict[str, float]:
        return {
            sample.name: sample.value
            for metric in registry.collect()
            for sample in metric.samples
            if source in sample.labels.values() and sample.name.endswith(("_total", "_count", "_sum"))
        }

    before = told("BatchMapDataset")
    batch = BatchMapDataset(train())[0]
    after = told("BatchMapDataset")
    assert after != before, sorted({metric.name for metric in registry.collect()})
    assert sum(len(text) for text in batch.text) <= max(after[name] - before.get(name, 0) for name in after)


def test_validation_is_the_same_in_every_pass(text_dataset: Callable[..., Path]) -> None:
    batches = BatchMapDataset(get_val_dataset(text_dataset(24), split_part="train", batch_size=7, limit=3))
    assert len(batches) == 3
    assert keys(batches) == keys(batches[number] for number in range(3, 6))


def test_grain_knows_it_as_a_dataset(train: Train) -> None:
    batches = BatchMapDataset(train())
    assert isinstance(batches, grain.MapDataset)
    assert "dataset/train" in str(batches)
    expected = [batches[number].__key__ for number in range(12)]
    assert keys(batches[2:8:2]) == expected[2:8:2]
    assert keys(batches.slice(slice(1, None, 3)), 4) == expected[1::3]
    assert batches[np.int64(3)].__key__ == expected[3]
    assert [batch.__key__ for batch in batches._getitems([3, 1])] == [expected[3], expected[1]]
    assert keys(batches.map(lambda batch: batch), 12) == expected
    with pytest.raises(ValueError, match="infinite"):
        batches.repeat(2)
    mixed = grain.MapDataset.mix([batches, BatchMapDataset(train(seed=1))], weights=[2, 1])
    assert mixed[0].__key__ == expected[0]


@pytest.mark.parametrize("copied", [lambda x: pickle.loads(pickle.dumps(x)), copy.deepcopy])
def test_copies_read_the_same(train: Train, copied: Callable[[Any], Any]) -> None:
    batches = BatchMapDataset(train())
    again = copied(batches)
    assert keys([again[5], again[100]]) == keys([batches[5], batches[100]])
    assert len(pickle.dumps(batches)) < 5000


def test_broken_samples_give_their_rows_to_neighbours_and_are_counted(train: Train) -> None:
    dataset = train(n=24, broken=frozenset({0, 5}), shuffle_over_epochs_multiplier=None, repeat=False, batch_size=3)
    batches = BatchMapDataset(dataset)
    assert keys(batches.to_iter_dataset(grain.ReadOptions(2, 4)))[:3] == [
        ["000001", "000001", "000002"],
        ["000003", "000004", "000003"],
        ["000006", "000007", "000008"],
    ]
    assert batches.stats()["dropped_total"] == 2
    assert batches.stats()["batches"] == 8
    # Nothing good in a batch: Grain leaves the step out.
    dataset = train(n=24, broken=frozenset({3, 4, 5}), shuffle_over_epochs_multiplier=None, repeat=False, batch_size=3)
    batches = BatchMapDataset(dataset)
    assert batches[1] is None
    assert len(keys(batches.to_iter_dataset())) == 7


def test_worker_processes_of_grain(train: Train) -> None:
    if not flags.FLAGS.is_parsed():
        flags.FLAGS.mark_as_parsed()
    batches = BatchMapDataset(train(task_encoder=Skipping(), batch_size=5))
    options = grain.MultiprocessingOptions(num_workers=2)
    iterator = iter(batches.to_iter_dataset(grain.ReadOptions(1, 2)).mp_prefetch(options))
    try:
        for number in range(8):
            np.testing.assert_equal(next(iterator), batches[number])
    finally:
        iterator.close()


def test_single_samples_are_refused(train: Train) -> None:
    with pytest.raises(ConfigError, match=r"give a batch_size, or use EnergonDataSource"):
        BatchMapDataset(train(batch_size=None))
