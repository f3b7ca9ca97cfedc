"""Each of Grain's transformations above ours: the same elements as above plain ones, and the same after a restore."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import cloudpickle
import grain
import jax
import numpy as np
import pytest
from absl import flags
from number_batches import Numbers

from energon_grain import get_loader
from energon_grain.loader import BatchIterDataset, BatchMapDataset

Train = Callable[..., Any]
STEPS = 12


class Plain:
    """The same batches, as a source of Grain's."""

    def __init__(self, batches: list[Any]) -> None:
        self._batches = batches

    def __len__(self) -> int:
        return len(self._batches)

    def __getitem__(self, index: int) -> Any:
        return self._batches[index]


def doubled(batch: dict[str, Any]) -> dict[str, Any]:
    return {**batch, "number": batch["number"] * 2}


def numbered(index: int, batch: dict[str, Any]) -> dict[str, Any]:
    return {**batch, "index": np.int64(index)}


def noisy(batch: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    return {**batch, "noise": batch["noise"] + rng.random()}


def some(batch: dict[str, Any]) -> bool:
    return int(batch["number"][0]) % 3 > 0


def as_rows(batch: dict[str, Any]) -> dict[str, Any]:
    return {"tokens": batch["number"]}


class Twice(grain.experimental.FlatMapTransform):
    max_fan_out = 2

    def flat_map(self, element: Any) -> list[Any]:
        return [element, doubled(element)]


experimental = grain.experimental
MAPS: dict[str, Callable[[Any], Any]] = {
    "map": lambda ds: ds.map(doubled),
    "map_with_index": lambda ds: ds.map_with_index(numbered),
    "random_map": lambda ds: ds.random_map(noisy, seed=1),
    "filter": lambda ds: ds.filter(some),
    "shuffle": lambda ds: ds.shuffle(seed=2),
    "window_shuffle": lambda ds: experimental.WindowShuffleMapDataset(ds, window_size=4, seed=3),
    "slice": lambda ds: ds[1::3],
    "repeat": lambda ds: ds.repeat(2),
    "batch": lambda ds: ds.batch(3),
    "mix": lambda ds: grain.MapDataset.mix([ds, ds.map(doubled)], weights=[2, 1]),
    "concatenate": lambda ds: grain.MapDataset.concatenate([ds, ds.map(doubled)]),
    "zip": lambda ds: experimental.ZipMapDataset([ds, ds.map(doubled)]),
    "flat_map": lambda ds: experimental.FlatMapMapDataset(ds, Twice()),
    "seed": lambda ds: ds.seed(5).shuffle().random_map(noisy),
}
ITERS: dict[str, Callable[[Any], Any]] = {
    "map": lambda ds: ds.map(doubled),
    "random_map": lambda ds: ds.random_map(noisy, seed=1),
    "map_with_index": lambda ds: ds.map_with_index(numbered),
    "filter": lambda ds: ds.filter(some),
    "batch": lambda ds: ds.batch(3),
    "rebatch": lambda ds: experimental.RebatchIterDataset(ds, 3),
    "window_shuffle": lambda ds: experimental.WindowShuffleIterDataset(ds, window_size=3, seed=4),
    "limit": lambda ds: experimental.LimitIterDataset(ds, count=7),
    "repeat": lambda ds: experimental.RepeatIterDataset(ds, num_epochs=2),
    "cache": lambda ds: experimental.CacheIterDataset(ds),
    "flat_map": lambda ds: experimental.FlatMapIterDataset(ds, Twice()),
    "zip": lambda ds: experimental.ZipIterDataset([ds, ds.map(doubled)]),
    "mix": lambda ds: grain.IterDataset.mix([ds, ds.map(doubled)], weights=[2, 1]),
    "interleave": lambda ds: experimental.InterleaveIterDataset([ds, ds.map(doubled)], cycle_length=2),
    "thread_prefetch": lambda ds: experimental.ThreadPrefetchIterDataset(ds, prefetch_buffer_size=2),
    "multithread_prefetch": lambda ds: experimental.multithread_prefetch(ds, num_threads=3, buffer_size=2),
    "device_put": lambda ds: experimental.device_put(ds, jax.devices()[0], cpu_buffer_size=2, device_buffer_size=2),
    "pack": lambda ds: experimental.FirstFitPackIterDataset(
        ds.map(as_rows), length_struct={"tokens": 10}, num_packing_bins=2
    ),
}
NO_SAVING = {"cache": "Grain's cache is not compared behind a restore: it fills anew"}


def dataset(train: Train, **options: Any) -> Any:
    return train(n=60, task_encoder=Numbers(), virtual_epoch_length=STEPS, **options)


def batches(train: Train, **options: Any) -> list[Any]:
    with get_loader(dataset(train, **options)) as loader:
        return list(loader)


def elements(pipeline: Any) -> list[Any]:
    return [jax.device_get(element) for element in pipeline]


def check_restores(pipeline: Callable[[], Any], whole: list[Any]) -> None:
    """Save after each element, by way of JSON, and go on from some of the states in another iterator."""
    iterator = iter(pipeline())
    states = [json.dumps(iterator.get_state())]
    for _ in whole:
        next(iterator)
        states.append(json.dumps(iterator.get_state()))
    for at in {0, 1, len(whole) // 2, len(whole) - 1}:
        other = iter(pipeline())
        other.set_state(json.loads(states[at]))
        np.testing.assert_equal(elements(other), whole[at:])


@pytest.mark.parametrize("name", MAPS)
def test_above_a_map_dataset(train: Train, name: str) -> None:
    plain = grain.MapDataset.source(Plain(batches(train)))
    whole = elements(MAPS[name](plain))
    pipeline = MAPS[name](BatchMapDataset(dataset(train)))
    assert len(pipeline) == len(MAPS[name](plain))
    options = grain.ReadOptions(num_threads=2, prefetch_buffer_size=4)
    np.testing.assert_equal(elements(pipeline.to_iter_dataset(options)), whole) if name != "repeat" else None
    check_restores(lambda: pipeline.to_iter_dataset(options), elements(pipeline.to_iter_dataset(options)))


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("name", ITERS)
def test_above_an_iter_dataset(train: Train, name: str, workers: int) -> None:
    if workers and name not in ("map", "mix", "multithread_prefetch", "window_shuffle"):
        return
    drops = {} if name == "multithread_prefetch" else {"broken": frozenset({3, 11})}  # in turns they move nothing
    plain = grain.MapDataset.source(Plain(batches(train, **drops))).to_iter_dataset(grain.ReadOptions(0, 0))

    def pipeline() -> Any:
        return ITERS[name](BatchIterDataset(dataset(train, num_workers=workers, **drops)))

    whole = elements(ITERS[name](plain))
    np.testing.assert_equal(elements(pipeline()), whole)
    if name not in NO_SAVING:
        check_restores(pipeline, whole)


def test_processes_above_an_iter_dataset_take_steps_in_turns(train: Train) -> None:
    expected = batches(train)
    if not flags.FLAGS.is_parsed():
        flags.FLAGS.mark_as_parsed()
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    try:
        options = grain.MultiprocessingOptions(num_workers=2)
        iterator = iter(BatchIterDataset(dataset(train)).mp_prefetch(options))
        for batch in expected[:5]:
            np.testing.assert_equal(next(iterator), batch)
        state = json.loads(json.dumps(iterator.get_state()))
        iterator.close()
        iterator = iter(BatchIterDataset(dataset(train)).mp_prefetch(options))
        iterator.set_state(state)
        np.testing.assert_equal(list(iterator), expected[5:])
        iterator.close()
    finally:
        cloudpickle.unregister_pickle_by_value(sys.modules[__name__])


def test_an_elastic_iterator_of_samples_is_ours_to_replace(train: Train) -> None:
    """Grain's elastic iterator takes single samples; above batches it is refused by itself or makes batches of them."""
    shards = [
        grain.experimental.ElasticIterator(
            BatchMapDataset(dataset(train)), 4, grain.sharding.ShardOptions(shard_index=shard, shard_count=2)
        )
        for shard in range(2)
    ]
    first = [next(iter(shard)) for shard in shards]
    assert [batch["number"].shape for batch in first] == [(2, 4), (2, 4)]
