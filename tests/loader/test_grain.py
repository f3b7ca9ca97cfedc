"""Our datasets and sources in pipelines that Grain drives: the elements, and the same after a restore."""

from __future__ import annotations

import copy
import gc
import json
import pickle
import sys
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle
import grain
import jax
import numpy as np
import pytest
from absl import flags
from number_batches import Numbers, Skipping

from energon_grain import (
    ConfigError,
    DefaultTaskEncoder,
    EmptyDatasetError,
    StateError,
    TextSample,
    generic_batch,
    get_loader,
    get_val_dataset,
)
from energon_grain.loader import BatchIterDataset, BatchMapDataset, EnergonDataSource, SavableDataLoader
from energon_grain.testing import make_classification_dataset, make_image_dataset

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
            with pytest.raises(IndexError, match="negative indices need an end to count from"):
                batches[-1]
        else:
            assert batches[-1].__key__ == batches[len(batches) - 1].__key__


def test_batches_by_number_go_with_the_last_reference(train: Train) -> None:
    """Their files with them, also where a training loop has switched the collector off."""
    batches = BatchMapDataset(train())
    assert batches[0] is not None
    known = weakref.ref(batches)
    gc.collect()
    gc.disable()
    try:
        del batches
        assert known() is None
    finally:
        gc.enable()


def test_batches_by_their_places(train: Train) -> None:
    batches = BatchMapDataset(train(virtual_epoch_length=6))
    chosen = batches.slice([4, -1, 0, 4])
    assert keys(chosen) == keys([batches[4], batches[5], batches[0], batches[4]])
    assert chosen[5].__key__ == batches[6 + 5].__key__  # of the next pass
    assert keys(batches.slice(np.array([1, 2]))[1:]) == keys([batches[2]])
    assert keys(BatchMapDataset(train()).slice([7, 100])) == keys([batches[7], batches[100]])
    with pytest.raises(IndexError, match="batch 6: the dataset has 6 batches"):
        batches.slice([6])


@pytest.mark.parametrize("index", [1.5, "1", [1], (1,), np.array([1, 2]), None])
def test_what_is_no_whole_number_is_no_index(train: Train, index: Any) -> None:
    """As in lists and in Grain's own sources."""
    batches = BatchMapDataset(train(virtual_epoch_length=6))
    for elements in (batches, batches.slice([4, 2])):
        with pytest.raises(TypeError):
            elements[index]


def test_windows_are_shuffled_within_a_pass(train: Train) -> None:
    """Each way that the docs name takes no batch of the next pass, also where windows do not divide the pass."""
    batches = BatchMapDataset(train(n=53, repeat=False, last_batch="drop"))
    own = keys(batches)
    assert len(own) % 4
    one_pass = batches.repeat(1, reseed_each_epoch=False)
    shuffled = grain.experimental.WindowShuffleMapDataset(one_pass, window_size=4, seed=1)
    found = keys(shuffled)
    assert all(key in own for key in found)
    assert found != own
    iterated = grain.experimental.WindowShuffleIterDataset(batches.to_iter_dataset(), window_size=4, seed=1)
    assert sorted(keys(iterated)) == sorted(own)
    assert keys(iterated) != own


def test_what_elements_are(train: Train) -> None:
    for elements in (BatchMapDataset(train(task_encoder=Skipping())), BatchIterDataset(train(task_encoder=Skipping()))):
        spec = grain.experimental.get_element_spec(elements)
        assert spec == {
            "number": grain.experimental.ShapeDtypeStruct((4,), np.dtype(np.int64)),
            "noise": grain.experimental.ShapeDtypeStruct((4,), np.dtype(np.float64)),
        }
    assert grain.experimental.get_element_spec(BatchMapDataset(train(task_encoder=Skipping())).slice([1])) == spec
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
    with pytest.raises(ConfigError, match=r"set batch_size, or use EnergonDataSource"):
        BatchMapDataset(train(batch_size=None))


BROKEN = frozenset({3, 11})


def test_what_is_no_dataset_is_refused() -> None:
    for kind in (BatchIterDataset, BatchMapDataset):
        with pytest.raises(ConfigError, match="expected a dataset, got a str"):
            kind("folder")  # type: ignore[arg-type]


def test_grains_prefetch_around_a_loader_keeps_its_state(train: Train) -> None:
    plain = get_loader(train(broken=BROKEN))
    states, batches = [plain.get_state()], []
    for _ in range(8):
        batches.append(next(plain).__key__)
        states.append(plain.get_state())
    around = grain.experimental.ThreadPrefetchDatasetIterator(get_loader(train(broken=BROKEN)), 3)
    for batch, state in zip(batches[:4], states[1:], strict=False):
        assert next(around).__key__ == batch
        assert around.get_state() == state
    around.set_state(states[2])
    assert [next(around).__key__ for _ in range(3)] == batches[2:5]
    around.close()


class ThroughJson(grain.IterDataset[Any]):
    """States go through JSON on their way, as they do in a checkpoint."""

    def __iter__(self) -> Any:
        iterator = self._parent.__iter__()
        get_state = iterator.get_state
        iterator.get_state = lambda: json.loads(json.dumps(get_state()))
        return iterator


def test_grains_own_check_through_json(train: Train) -> None:
    dataset = BatchIterDataset(train(n=24, task_encoder=Numbers(), virtual_epoch_length=6, batch_size=5))
    grain.experimental.assert_equal_output_after_checkpoint(ThroughJson(dataset))


def test_each_iteration_is_a_loader_of_its_own(train: Train) -> None:
    dataset = BatchIterDataset(train())
    assert isinstance(dataset, grain.IterDataset)
    first, second = iter(dataset), iter(dataset)
    assert isinstance(first, SavableDataLoader)
    assert isinstance(first, grain.DatasetIterator)
    assert next(first).__key__ == next(second).__key__ == next(iter(get_loader(train()))).__key__
    for again in (pickle.loads(pickle.dumps(dataset)), copy.deepcopy(dataset)):
        assert next(iter(again)).__key__ == next(iter(dataset)).__key__


class Packs(DefaultTaskEncoder):
    def select_samples_to_pack(self, samples: list[Any]) -> list[list[Any]]:
        return [samples]

    def pack_selected_samples(self, samples: list[Any]) -> Any:
        return samples[0]


def test_readers_above_take_turns_where_steps_are_arithmetic(train: Train) -> None:
    batches = BatchIterDataset(train())
    batches.set_slice(slice(0, None, 1))
    with pytest.raises(ConfigError, match="sequential_slice=False"):
        batches.set_slice(slice(0, None, 2), sequential_slice=True)
    packed = BatchIterDataset(train(task_encoder=Packs(), packing_buffer_size=4))
    with pytest.raises(ConfigError, match=r"depends on the data of earlier steps.*worker_type='process'"):
        packed.set_slice(slice(0, None, 2))


def test_the_next_index_is_a_step(train: Train) -> None:
    def steps(count: int) -> list[Any]:
        loader = get_loader(train(virtual_epoch_length=5))
        return [[batch.__key__ for batch in loader] for _ in range(count)]

    whole = steps(3)
    iterator = iter(BatchIterDataset(train(virtual_epoch_length=5)))
    next(iterator)
    assert grain.experimental.get_next_index(iterator) == 1
    for step in (3, 0, 12, 5, 7):
        grain.experimental.set_next_index(iterator, step)
        assert grain.experimental.get_next_index(iterator) == step
        if step % 5 == 0 and step:  # the end of a pass
            assert next(iterator, None) is None
            iter(iterator)
        assert next(iterator).__key__ == whole[step // 5][step % 5]
    finite = get_loader(train(repeat=False))
    passes = [[batch.__key__ for batch in finite] for _ in range(2)]
    grain.experimental.set_next_index(finite, len(passes[0]) + 2)
    assert next(finite).__key__ == passes[1][2]
    grain.experimental.set_next_index(finite, 10**12)  # as fast as any
    assert len(next(finite).__key__) == 4
    for loader in (get_loader(train(virtual_epoch_length=5)), get_loader(train()), finite):
        with pytest.raises(StateError, match="counted 0, 1, 2"):
            grain.experimental.set_next_index(loader, -1)
        with pytest.raises(StateError, match="has no such position"):
            grain.experimental.set_next_index(loader, 2**61)


MakeDataset = Callable[..., Path]


def test_grain_knows_it_as_a_source(text_dataset: MakeDataset) -> None:
    source = EnergonDataSource(text_dataset(53))
    assert isinstance(source, grain.sources.RandomAccessDataSource)
    assert len(source) == 53
    sample = source[np.int64(7)]
    assert isinstance(sample, TextSample)
    assert sample.__key__ == "000007"
    assert [s.__key__ for s in source.__getitems__([9, 3, 9])] == ["000009", "000003", "000009"]
    assert [s.text for s in source._getitems([7])] == [sample.text]
    assert source.paths == str(text_dataset(53))
    assert repr(source) == repr(EnergonDataSource(text_dataset(53)))
    assert repr(source) != repr(EnergonDataSource(text_dataset(54)))


@pytest.mark.parametrize("index", [53, -54, 10**12])
def test_indices_are_checked(text_dataset: MakeDataset, index: int) -> None:
    with pytest.raises(IndexError, match=str(index)):
        EnergonDataSource(text_dataset(53))[index]


def test_indices_are_whole_numbers(text_dataset: MakeDataset) -> None:
    with pytest.raises(TypeError, match="float"):
        EnergonDataSource(text_dataset(53))[1.7]  # type: ignore[index]


def test_it_is_indexed_as_a_list(text_dataset: MakeDataset) -> None:
    source = EnergonDataSource(text_dataset(53))
    assert source[-1].__key__ == "000052"
    assert [sample.__key__ for sample in source[50:]] == ["000050", "000051", "000052"]
    assert [sample.__key__ for sample in source[-1:40:-6]] == ["000052", "000046"]


def test_dictionaries_for_grain(text_dataset: MakeDataset) -> None:
    source = EnergonDataSource(text_dataset(53, broken={5}), as_dict=True)
    assert source[7] == {"text": EnergonDataSource(text_dataset(53))[7].text}
    assert source[4:7][1] is None
    batch = grain.MapDataset.source(pickle.loads(pickle.dumps(source)))[6:].batch(4)[0]
    assert list(batch) == ["text"]
    assert batch["text"].shape == (4,)


def test_shuffle_and_batch(text_dataset: MakeDataset) -> None:
    source = EnergonDataSource(text_dataset(53, broken={5}))
    dataset = grain.MapDataset.source(source).shuffle(seed=3).to_iter_dataset(grain.ReadOptions(2, 8))
    batches = list(dataset.batch(4, drop_remainder=False, batch_fn=generic_batch))
    keys = [key for batch in batches for key in batch.__key__]
    assert sorted(keys) == [f"{i:06d}" for i in range(53) if i != 5]
    assert keys != sorted(keys)
    assert all(len(batch.text) == len(batch.__key__) for batch in batches)
    assert source.stats()["dropped_total"] == 1


class Undecoded(DefaultTaskEncoder):
    decoder = None


def test_arrays_batch_as_grain_does(tmp_path: Path) -> None:
    make_classification_dataset(tmp_path / "data", n=20, shards=2)
    source = EnergonDataSource(tmp_path / "data", split_part="val")
    assert len(source) == 10
    dataset = grain.MapDataset.source(source).shuffle(seed=1).map(lambda sample: {"image": sample.image}).batch(4)
    assert dataset[0]["image"].shape == (4, 3, 16, 16)


def test_the_task_encoder_decides_about_decoding(tmp_path: Path) -> None:
    make_image_dataset(tmp_path / "data", n=8, shards=2)
    raw = EnergonDataSource(tmp_path / "data", subset=[0, 3], task_encoder=Undecoded())
    assert len(raw) == 3
    assert isinstance(raw[0].image, bytes)


def test_pickles_as_its_arguments(text_dataset: MakeDataset) -> None:
    source = EnergonDataSource(text_dataset(53))
    data = pickle.dumps(source)
    assert len(data) < 3000
    again = pickle.loads(data)
    assert again[5].text == source[5].text


def test_grains_data_loader(text_dataset: MakeDataset) -> None:
    source = EnergonDataSource(text_dataset(53))
    sampler = grain.samplers.IndexSampler(num_records=53, shuffle=True, seed=1, num_epochs=1)
    loader = grain.DataLoader(data_source=source, sampler=sampler, worker_count=0)
    iterator = iter(loader)
    first = [next(iterator).__key__ for _ in range(10)]
    state = iterator.get_state()
    rest = [sample.__key__ for sample in iterator]
    assert len({*first, *rest}) == 53
    other = iter(loader)
    other.set_state(state)
    assert [sample.__key__ for sample in other] == rest


def test_nothing_is_read_where_nothing_is_asked_for(text_dataset: MakeDataset) -> None:
    assert EnergonDataSource(text_dataset(24)).__getitems__([]) == []


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


def test_a_script_that_ends_with_an_open_iterator(
    text_dataset: Callable[..., Path], run_script: Callable[..., Any]
) -> None:
    """Grain closes what is below an iterator when it is deleted, after all modules are gone."""
    source = """
import sys
from energon_grain import get_train_dataset
from energon_grain.loader import BatchIterDataset
made = get_train_dataset(sys.argv[1], batch_size=4, shuffle_buffer_size=8, max_samples_per_sequence=4)
batches = iter(BatchIterDataset(made).map(lambda batch: batch))
print(len(next(batches).__key__))
"""
    ended = run_script(source, text_dataset(n=100))
    assert (ended.stdout.strip(), ended.stderr) == ("4", "")
