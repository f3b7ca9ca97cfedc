"""The stream against an oracle that applies the definitions of lanes, items and batches one sample at a time."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from energon_grain import (
    ConfigError,
    EmptyDatasetError,
    FatalSampleError,
    FingerprintError,
    HostsError,
    SkipSample,
    StateError,
    Stream,
    TaskEncoder,
    WorkerConfig,
    get_train_dataset,
    get_val_dataset,
    merge_cursors,
)

MakeDataset = Callable[..., Path]
LANES = 24


def quiet(error: Exception, sample: Any, sources: Any = None) -> None:
    """An error handler that lets samples go without a word."""


def config(rank: int = 0, world_size: int = 1, num_workers: int = 0, **options: Any) -> WorkerConfig:
    return WorkerConfig(rank, world_size, num_workers, global_error_handler=quiet, **options)


class Tolerant(TaskEncoder):
    __default_failure_tolerance__ = 0


def open_hosts(path: Path, hosts: int, batch_size: int, **options: Any) -> list[Stream]:
    arguments = {"shuffle_buffer_size": None, "max_samples_per_sequence": None, "lanes": LANES, **options}
    return [
        Stream.of(
            get_train_dataset(
                path,
                worker_config=config(host, hosts),
                batch_size=batch_size,
                task_encoder=Tolerant(),
                **arguments,
            )
        )
        for host in range(hosts)
    ]


def global_batch(streams: list[Stream]) -> list[str]:
    """Keys of the next batch of all hosts, sorted."""
    return sorted(sum((list(next(stream).__key__) for stream in streams), []))


@dataclass
class Oracle:
    """Items of an endless stream, by walking along every lane."""

    stream: Stream
    broken: frozenset[int]

    def items(self, stop: int) -> list[str]:
        spec = self.stream.spec
        items: list[str] = []
        rounds = [0] * spec.lanes
        for item in range(stop):
            lane = item % spec.lanes
            for _ in range(1000):
                position = rounds[lane] * spec.lanes + lane
                rounds[lane] += 1
                index = int(spec.order.draw(np.array([position]), 0).index[0])
                if index not in self.broken:
                    items.append(f"{index:06d}")
                    break
        return items


orders = st.sampled_from(
    [
        {"max_samples_per_sequence": None},
        {"max_samples_per_sequence": 4},
        {"max_samples_per_sequence": 5, "shuffle_buffer_size": 300},
        {"max_samples_per_sequence": 3, "shuffle_over_epochs_multiplier": 3},
        {"shuffle_over_epochs_multiplier": None},
        {"shuffle_over_epochs_multiplier": -1},
    ]
)


@hypothesis_settings(max_examples=25)
@given(
    n=st.sampled_from([7, 25, 53, 97]),
    broken=st.sets(st.integers(0, 6), max_size=3),
    hosts=st.sampled_from([1, 2, 3, 4, 8]),
    batch_size=st.integers(1, 7),
    seed=st.integers(0, 3),
    order=orders,
)
def test_global_batches_are_the_same_sets_on_any_number_of_hosts(
    text_dataset: MakeDataset, n: int, broken: set[int], hosts: int, batch_size: int, seed: int, order: dict[str, Any]
) -> None:
    path = text_dataset(n, broken=broken)
    streams = open_hosts(path, hosts, batch_size, seed=seed, **order)
    steps = 8
    size = hosts * batch_size
    items = Oracle(streams[0], frozenset(broken)).items(steps * size)
    for step in range(steps):
        assert global_batch(streams) == sorted(items[step * size : (step + 1) * size])


@pytest.mark.parametrize("hosts", [5, 7])
def test_without_drops_any_number_of_hosts_reads_the_same(text_dataset: MakeDataset, hosts: int) -> None:
    path = text_dataset(53)
    streams = open_hosts(path, hosts, 2)
    items = Oracle(streams[0], frozenset()).items(10 * hosts * 2)
    for step in range(10):
        assert global_batch(streams) == sorted(items[step * hosts * 2 : (step + 1) * hosts * 2])


def test_a_drop_on_hosts_that_do_not_divide_the_lanes_is_refused(text_dataset: MakeDataset) -> None:
    streams = open_hosts(text_dataset(53, broken={3}), 5, 2)
    with pytest.raises(HostsError, match=r"5 hosts do not divide the 24 lanes.*\[1, 2, 3, 4, 6, 8, 12, 24\]"):
        for _ in range(30):
            global_batch(streams)


@hypothesis_settings(max_examples=25)
@given(n=st.sampled_from([7, 24, 53, 97]), seed=st.integers(0, 5), batch_size=st.integers(1, 9), order=orders)
def test_each_pass_is_a_permutation(
    text_dataset: MakeDataset, n: int, seed: int, batch_size: int, order: dict[str, Any]
) -> None:
    if order.get("shuffle_over_epochs_multiplier", 1) not in (1, None):
        order = {"max_samples_per_sequence": 4}
    [stream] = open_hosts(text_dataset(n), 1, batch_size, repeat=False, seed=seed, **order)
    passes = []
    for _ in range(3):
        assert len(stream) == -(-n // batch_size)
        batches = [list(batch.__key__) for batch in stream]
        assert len(batches) == len(stream)
        assert all(len(batch) == batch_size for batch in batches[:-1])
        passes.append(sum(batches, []))
        assert sorted(passes[-1]) == [f"{i:06d}" for i in range(n)]
    if order.get("shuffle_over_epochs_multiplier", 1) is not None and n > 20:
        assert len({tuple(order) for order in passes}) == 3


class Rescaling(RuleBasedStateMachine):
    """next, save, restore and rescale in any order give the uninterrupted stream."""

    make: MakeDataset
    BROKEN = frozenset({2, 11, 30})

    @initialize(order=orders, seed=st.integers(0, 2))
    def start(self, order: dict[str, Any], seed: int) -> None:
        self.options = {"seed": seed, **order}
        self.path = type(self).make(53, broken=self.BROKEN)
        self.streams = open_hosts(self.path, 2, 3, **self.options)
        self.items = Oracle(self.streams[0], self.BROKEN).items(700)
        self.at = 0
        self.saved: list[tuple[int, dict[str, Any]]] = []

    @property
    def size(self) -> int:
        return sum(stream.plan.batch_size for stream in self.streams)

    @precondition(lambda self: self.at < 600)
    @rule()
    def step(self) -> None:
        size = self.size
        assert global_batch(self.streams) == sorted(self.items[self.at : self.at + size])
        self.at += size

    @rule()
    def save(self) -> None:
        cursor = merge_cursors([stream.cursor(with_manifest=True) for stream in self.streams])
        self.saved.append((self.at, json.loads(json.dumps(cursor))))

    @precondition(lambda self: self.saved)
    @rule(
        data=st.data(),
        hosts=st.sampled_from([1, 2, 3, 4, 8]),
        batch_size=st.integers(1, 4),
        workers=st.sampled_from([0, 0, 1, 2]),
    )
    def restore(self, data: st.DataObject, hosts: int, batch_size: int, workers: int) -> None:
        for stream in self.streams:
            stream.close()
        self.at, cursor = data.draw(st.sampled_from(self.saved))
        self.streams = open_hosts(self.path, hosts, batch_size, **self.options)
        for stream in self.streams:
            stream._workers = workers
            stream.restore(cursor)
        again = merge_cursors([stream.cursor(with_manifest=True) for stream in self.streams])
        assert {k: v for k, v in again.items() if k != "history"} == {k: v for k, v in cursor.items() if k != "history"}

    @invariant()
    def position_is_told(self) -> None:
        if hasattr(self, "streams"):
            assert all(stream.cursor()["item"] == self.at for stream in self.streams)

    def teardown(self) -> None:
        for stream in getattr(self, "streams", []):
            stream.close()


def test_any_interleaving_of_save_restore_and_rescale(text_dataset: MakeDataset) -> None:
    from hypothesis.stateful import run_state_machine_as_test

    Rescaling.make = staticmethod(text_dataset)
    run_state_machine_as_test(Rescaling, settings=hypothesis_settings(max_examples=15, stateful_step_count=25))


@pytest.mark.parametrize("worker_type", ["thread", "process"])
@pytest.mark.parametrize("workers", [1, 2])
def test_workers_change_nothing(text_dataset: MakeDataset, workers: int, worker_type: str) -> None:
    path = text_dataset(97, broken={5, 50})

    def batches(number: int) -> list[Any]:
        dataset = get_train_dataset(
            path,
            worker_config=config(num_workers=number, worker_type=worker_type),
            batch_size=5,
            shuffle_buffer_size=100,
            max_samples_per_sequence=10,
        )
        with Stream.of(dataset) as stream:
            stream._workers = number
            return [(next(stream), stream.cursor()) for _ in range(60)]

    for (batch, cursor), (expected, expected_cursor) in zip(batches(workers), batches(0), strict=True):
        assert batch.__key__ == expected.__key__
        assert batch.text == expected.text
        assert batch.__restore_key__ == expected.__restore_key__
        assert [tuple(s) for s in batch.__sources__] == [tuple(s) for s in expected.__sources__]
        assert cursor == expected_cursor


class Noisy(TaskEncoder):
    """Encodes with random numbers, and skips some samples."""

    def encode_sample(self, sample: Any) -> Any:
        number = float(self.rng.random())
        if number < 0.2:
            raise SkipSample
        return {"key": sample.__key__, "number": np.float64(number), "array": self.rng.standard_normal(2)}


def test_random_numbers_and_skips_depend_on_the_draw_alone(text_dataset: MakeDataset) -> None:
    path = text_dataset(53)

    def rows(hosts: int, workers: int, worker_type: Any = "thread") -> list[list[tuple[str, float]]]:
        streams = []
        for host in range(hosts):
            dataset = get_train_dataset(
                path,
                worker_config=config(host, hosts, workers, worker_type=worker_type),
                batch_size=12 // hosts,
                shuffle_buffer_size=None,
                max_samples_per_sequence=None,
                task_encoder=Noisy(),
            )
            streams.append(Stream.of(dataset))
        out = []
        for _ in range(15):
            batches = [next(stream) for stream in streams]
            out.append(sorted((k, float(x)) for b in batches for k, x in zip(b["key"], b["number"], strict=True)))
        for stream in streams:
            stream.close()
        return out

    reference = rows(1, 0)
    assert rows(3, 0) == reference
    assert rows(4, 2) == reference
    assert rows(2, 1, "process") == reference
    assert len({number for batch in reference for _, number in batch}) == 15 * 12


def test_break_goes_on_and_the_next_pass_follows(text_dataset: MakeDataset) -> None:
    path = text_dataset(24)
    [stream] = open_hosts(path, 1, 5, repeat=False)
    seen: list[str] = []
    for batch in stream:
        seen += batch.__key__
        if len(seen) == 10:
            break
    for batch in stream:
        seen += batch.__key__
    assert sorted(seen) == [f"{i:06d}" for i in range(24)]
    with pytest.raises(StopIteration):
        next(stream)
    second = [key for batch in stream for key in batch.__key__]
    assert sorted(second) == sorted(seen)
    assert second != seen


def test_a_state_at_the_end_of_a_pass_begins_the_next(text_dataset: MakeDataset) -> None:
    path = text_dataset(24)
    [stream] = open_hosts(path, 1, 5, repeat=False)
    assert len(list(stream)) == 5
    cursor = stream.cursor()
    expected = [batch.__key__ for batch in stream]
    [other] = open_hosts(path, 1, 5, repeat=False)
    other.restore(cursor)
    with pytest.raises(StopIteration):
        next(other)
    assert [batch.__key__ for batch in other] == expected


def test_validation_repeats_the_same_pass(text_dataset: MakeDataset) -> None:
    dataset = get_val_dataset(text_dataset(24), split_part="train", batch_size=7, worker_config=config())
    stream = Stream.of(dataset)
    first = [batch.__key__ for batch in stream]
    assert first == [batch.__key__ for batch in stream]
    assert sum(map(list, first), []) == [f"{i:06d}" for i in range(24)]
    assert [len(batch) for batch in first] == [7, 7, 7, 3]
    limited = get_val_dataset(text_dataset(24), split_part="train", batch_size=7, limit=2, worker_config=config())
    assert len(limited) == 2
    assert [batch.__key__ for batch in limited] == first[:2]


def test_virtual_epochs_cut_the_endless_stream(text_dataset: MakeDataset) -> None:
    path = text_dataset(24)
    [endless] = open_hosts(path, 1, 5)
    [cut] = open_hosts(path, 1, 5, virtual_epoch_length=3)
    assert len(cut) == 3
    for _ in range(4):
        batches = [batch.__key__ for batch in cut]
        assert batches == [next(endless).__key__ for _ in range(3)]


@pytest.mark.parametrize("hosts", [1, 2, 3, 4])
@pytest.mark.parametrize("broken", [frozenset(), frozenset({0, 1, 20})])
def test_pad_fills_the_last_batch_and_says_so(text_dataset: MakeDataset, hosts: int, broken: frozenset[int]) -> None:
    n, batch_size = 53, 3
    streams = open_hosts(text_dataset(n, broken=broken), hosts, batch_size, repeat=False, last_batch="pad")
    steps = -(-n // (hosts * batch_size))
    assert [len(stream) for stream in streams] == [steps] * hosts
    valid: list[str] = []
    for stream in streams:
        batches = list(stream)
        assert len(batches) == steps
        for batch in batches:
            assert len(batch.__key__) == batch_size
            mask = batch.__valid__ if batch.__valid__ is not None else [True] * batch_size
            valid += [key for key, real in zip(batch.__key__, mask, strict=True) if real]
    assert sorted(valid) == [f"{i:06d}" for i in range(n) if i not in broken]


def test_drop_leaves_the_last_batch_out(text_dataset: MakeDataset) -> None:
    streams = open_hosts(text_dataset(53), 2, 5, repeat=False, batch_drop_last=True)
    batches = [[batch.__key__ for batch in stream] for stream in streams]
    assert [len(b) for b in batches] == [5, 5]
    assert len({key for host in batches for batch in host for key in batch}) == 50


def test_keep_delivers_every_good_sample_once(text_dataset: MakeDataset) -> None:
    broken = {0, 1, 2, 30}
    [stream] = open_hosts(text_dataset(53, broken=broken), 1, 5, repeat=False)
    batches = [batch.__key__ for batch in stream]
    assert [len(batch) for batch in batches] == [5] * 9 + [4]
    assert sorted(sum(batches, [])) == [f"{i:06d}" for i in range(53) if i not in broken]
    stats = stream.stats()
    assert stats["dropped_total"] == 4
    assert list(stats["dropped"].values()) == [{"decode: DecodingError": 4}]


def test_keep_on_several_hosts_is_refused(text_dataset: MakeDataset) -> None:
    with pytest.raises(ConfigError, match="last_batch='keep' with 2 hosts"):
        open_hosts(text_dataset(24), 2, 5, repeat=False, last_batch="keep")


def test_a_dataset_without_a_complete_batch_is_refused(text_dataset: MakeDataset) -> None:
    with pytest.raises(EmptyDatasetError, match="no complete batch of 100"):
        open_hosts(text_dataset(24), 1, 100, repeat=False, batch_drop_last=True)


def test_too_many_failures_in_a_row_end_the_iteration(text_dataset: MakeDataset) -> None:
    class Impatient(TaskEncoder):
        __default_failure_tolerance__ = 3

        def encode_sample(self, sample: Any) -> Any:
            if int(sample.__key__) >= 10:
                raise ValueError("broken")
            return sample

    dataset = get_train_dataset(
        text_dataset(24),
        worker_config=config(),
        batch_size=2,
        shuffle_buffer_size=None,
        max_samples_per_sequence=None,
        shuffle_over_epochs_multiplier=None,
        task_encoder=Impatient(),
        lanes=1,
    )
    stream = Stream.of(dataset)
    for _ in range(5):
        next(stream)
    with pytest.raises(FatalSampleError, match="encode_sample failed 3 times in a row"):
        next(stream)


def test_an_error_handler_may_end_the_iteration(text_dataset: MakeDataset) -> None:
    from energon_grain import DecodingError, reraise_exception

    worker_config = WorkerConfig(0, 1, 0, global_error_handler=reraise_exception)
    dataset = get_train_dataset(
        text_dataset(24, broken={3}),
        worker_config=worker_config,
        batch_size=24,
        shuffle_buffer_size=None,
        max_samples_per_sequence=None,
    )
    with pytest.raises(DecodingError):
        next(Stream.of(dataset))


def test_which_tells_what_will_come_and_what_came(text_dataset: MakeDataset) -> None:
    path = text_dataset(53)
    for options in ({}, {"repeat": False, "last_batch": "pad"}, {"repeat": False, "last_batch": "drop"}):
        streams = open_hosts(path, 2, 3, **options)
        told = [[record.key for record in streams[0].which(step)] for step in range(20)]
        for step in range(20):
            batches = []
            for stream in streams:
                batch = next(stream, None)
                batches.append(batch if batch is not None else next(iter(stream)))
            keys = []
            for batch in batches:
                mask = batch.__valid__ if batch.__valid__ is not None else [True] * 3
                keys += [key for key, real in zip(batch.__key__, mask, strict=True) if real]
            assert sorted(keys) == sorted(told[step]), (options, step)
        assert [[record.key for record in streams[0].which(step)] for step in range(20)] == told
        record = streams[0].which(4)[1]
        assert (path / record.shard).read_bytes()[record.start :].startswith(record.key.encode())
        assert record.host == 1


def test_which_follows_a_change_of_the_batch_size(text_dataset: MakeDataset) -> None:
    path = text_dataset(53)
    streams = open_hosts(path, 2, 3)
    before = [global_batch(streams) for _ in range(4)]
    cursor = merge_cursors([stream.cursor() for stream in streams])
    [one] = open_hosts(path, 1, 5)
    one.restore(cursor)
    after = [global_batch([one]) for _ in range(3)]
    told = [sorted(record.key for record in one.which(step)) for step in range(7)]
    assert told == before + after


def test_a_changed_configuration_is_named(text_dataset: MakeDataset) -> None:
    path = text_dataset(53)
    [stream] = open_hosts(path, 1, 5)
    next(stream)
    cursor = stream.cursor(with_manifest=True)
    [other] = open_hosts(path, 1, 5, seed=1, max_samples_per_sequence=4)
    with pytest.raises(FingerprintError, match=r"(?s)seed: saved 0, now 1.*block: saved None, now 4.*allow_changes"):
        other.restore(cursor)
    other.restore(cursor, allow_changes=True)
    assert other.cursor()["item"] == 5
    [larger] = open_hosts(text_dataset(97), 1, 5)
    with pytest.raises(FingerprintError, match="samples: saved 53, now 97"):
        larger.restore(cursor)
    [lanes] = open_hosts(path, 1, 5, lanes=12)
    with pytest.raises(StateError, match="saved with lanes=24, this run has lanes=12"):
        lanes.restore(cursor)


def test_a_moved_dataset_keeps_its_order(text_dataset: MakeDataset, tmp_path: Path) -> None:
    import shutil

    path = text_dataset(53)
    moved = tmp_path / "elsewhere" / path.name
    shutil.copytree(path, moved)
    (moved / ".nv-meta" / "index.uuid").write_text("11111111-2222-4333-8444-555555555555")
    [here], [there] = open_hosts(path, 1, 5), open_hosts(moved, 1, 5)
    next(here)
    there.restore(here.cursor(with_manifest=True))
    assert global_batch([here]) == global_batch([there])


def test_the_cursor_is_small_json(text_dataset: MakeDataset) -> None:
    [stream] = open_hosts(text_dataset(53, broken={1, 2, 3}), 1, 5)
    for _ in range(200):
        next(stream)
    text = json.dumps(stream.cursor())
    assert json.loads(text) == stream.cursor()
    assert len(text) < 1024
    assert stream.cursor()["drops"]


def test_one_hosts_state_with_drops_is_not_for_other_hosts(text_dataset: MakeDataset) -> None:
    path = text_dataset(53, broken=set(range(20)))
    streams = open_hosts(path, 2, 4)
    for _ in range(10):
        global_batch(streams)
    [single] = open_hosts(path, 1, 8)
    with pytest.raises(StateError, match="knows what was dropped in its own lanes only"):
        single.restore(streams[0].cursor())
    with pytest.raises(StateError, match="the states of all hosts are needed"):
        merge_cursors([streams[0].cursor()])
    single.restore(merge_cursors([stream.cursor() for stream in streams]))
    assert global_batch([single]) == global_batch(streams)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 99}, "version 99"),
        ({"item": -1}, "'item' is -1"),
        ({"host": [3, 2]}, "'host' is"),
        ({"history": [[1]]}, "'history' is malformed"),
        ({"drops": "!!"}, "packed integers"),
        ({"ended": "no"}, "'ended' is"),
    ],
)
def test_a_malformed_state_is_refused(text_dataset: MakeDataset, change: dict[str, Any], message: str) -> None:
    [stream] = open_hosts(text_dataset(24), 1, 5)
    with pytest.raises(StateError, match=message):
        stream.restore({**stream.cursor(), **change})


def test_single_samples_without_a_batch_size(text_dataset: MakeDataset) -> None:
    dataset = get_train_dataset(
        text_dataset(24),
        worker_config=config(),
        batch_size=None,
        shuffle_buffer_size=None,
        max_samples_per_sequence=None,
        repeat=False,
    )
    samples = list(dataset)
    assert sorted(sample.__key__ for sample in samples) == [f"{i:06d}" for i in range(24)]
    assert len(dataset) == 24


def test_a_closed_stream_says_so(text_dataset: MakeDataset) -> None:
    [stream] = open_hosts(text_dataset(24), 1, 5)
    next(stream)
    stream.close()
    with pytest.raises(ValueError, match="closed"):
        next(stream)
