"""What a loader's numbers say: causes are injected one at a time, and each is named rightly."""

from __future__ import annotations

import errno
import itertools
import json
import os
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from object_server import Bucket, Fault
from planned_data import add_column, make_tokens
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families
from stream_hosts import MakeDataset, config, open_stream, train_on

from energon_grain import (
    BlendDataset,
    LoaderStats,
    PackingPlan,
    PlannedPackingDataset,
    SampleDecoder,
    SkipSample,
    StorageSettings,
    Stream,
    TaskEncoder,
    get_savable_loader,
    get_train_dataset,
    merge_stats,
)
from energon_grain.errors import ConfigError
from energon_grain.storage.settings import using_storage
from energon_grain.storage.traffic import Traffic
from energon_grain.stream.worker_config import worker_number
from energon_grain.testing import make_text_dataset
from energon_grain.watch import sampling as clock
from energon_grain.watch.loader_stats import Setup, StageTime
from energon_grain.watch.statistics import Statistics

SLOW_S = 0.002
"""A sample, where something is slow; anything else takes a hundredth of that."""


class SlowHook(TaskEncoder):
    def encode_sample(self, sample: Any) -> Any:
        time.sleep(SLOW_S)
        return sample


class Stubborn(TaskEncoder):
    """Computes in Python, in as many threads as there are."""

    thread_safe = True

    def encode_sample(self, sample: Any) -> Any:
        for _ in range(10):
            sum(range(10_000))
        return sample


class SlowBatch(TaskEncoder):
    def encode_batch(self, batch: Any) -> Any:
        time.sleep(10 * SLOW_S)
        return batch


class SlowTexts(SampleDecoder):
    def decoder_for(self, part: str) -> Any:
        decode = super().decoder_for(part)

        def slowly(data: bytes) -> Any:
            time.sleep(SLOW_S)
            return data if decode is None else decode(data)

        return slowly

    def decode_column(self, part: str, column: list[bytes], groups: Any = ()) -> list[Any]:
        return [self.decoder_for(part)(data) for data in column]


class SlowDecode(TaskEncoder):
    decoder = SlowTexts()


class SwappedOut(TaskEncoder):
    """One of the worker processes gets no further."""

    def encode_sample(self, sample: Any) -> Any:
        if worker_number() == 1:
            time.sleep(10 * SLOW_S)
        return sample


def seen(stream: Stream, steps: int = 40) -> LoaderStats:
    """The numbers of some steps of a program that does nothing with them."""
    with stream:
        next(stream)
        before = stream.stats()
        for _ in range(steps):
            next(stream)
        return stream.stats() - before


def slow_reads(monkeypatch: pytest.MonkeyPatch, which: Callable[[str], bool]) -> None:
    """Let reads of some tars wait for their disk."""
    pread = os.pread

    def slow(descriptor: int, size: int, offset: int) -> bytes:
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        if path.endswith(".tar") and which(path):
            time.sleep(SLOW_S)
        return pread(descriptor, size, offset)

    monkeypatch.setattr(os, "pread", slow)


@pytest.mark.parametrize(
    ("encoder", "workers", "cause", "name", "said"),
    [
        (SlowHook, 0, "hook", "encode_sample", "it mostly waits, so use more of them than cores"),
        (SlowHook, 2, "hook", "encode_sample", "in one thread at a time): set thread_safe = True"),
        (Stubborn, 2, "interpreter", "encode_sample", "The rate is limited by Python's lock"),
        (SlowBatch, 2, "hook", "encode_batch", "in the thread that makes batches"),
        (SlowDecode, 2, "decode", "decode", "The rate is limited by work on samples (decode takes"),
    ],
)
def test_slow_work_is_named(
    text_dataset: MakeDataset, encoder: type[TaskEncoder], workers: int, cause: str, name: str, said: str
) -> None:
    stream = open_stream(text_dataset(97), task_encoder=encoder(), worker_config=config(num_workers=workers))
    stats = seen(stream, steps=120 if encoder is Stubborn else 40)
    bound = stats.bound()
    assert (bound.kind, bound.cause, bound.name) == ("work", cause, name), stats
    assert said in bound.advice
    assert bound.advice in str(stats)


def test_a_slow_consumer_is_bound_by_itself(text_dataset: MakeDataset) -> None:
    stats = trained(text_dataset(97))
    assert stats.bound().cause == "trainer", stats
    assert stats.ready > 0


def trained(path: Path) -> LoaderStats:
    """The numbers of a program that is slow itself, of steps in which nothing else held it up."""
    with open_stream(path, worker_config=config(num_workers=2)) as stream:
        next(stream)
        for _ in range(20):  # on a busy machine a step may wait for its core alone
            before = stream.stats()
            for _ in range(5):
                next(stream)
                time.sleep(0.1)
            stats = stream.stats() - before
            if stats.bound().kind == "trainer":
                break
    return stats


def test_a_worker_process_that_swaps_is_named(text_dataset: MakeDataset, tmp_path: Path) -> None:
    workers = config(num_workers=2, worker_type="process")
    dataset = get_train_dataset(text_dataset(97), batch_size=4, task_encoder=SwappedOut(), **FULL)
    with get_savable_loader(dataset, worker_config=workers) as loader:
        next(loader)
        with loader.watch(trace=tmp_path / "trace.json") as watch:
            for _ in range(100):
                next(loader)
            stats = watch.lap()
    read = check_trace(tmp_path / "trace.json", {"wait", "plan", "read", "decode", "send", "receive", "assemble"})
    assert len(read) == 2
    assert os.getpid() not in read
    assert {worker.name for worker in stats.by_worker} == {"process-0", "process-1"}
    assert (stats.bound().cause, stats.bound().name) == ("worker", "process-1"), stats
    [hook] = [stage for stage in stats.stages if stage.name == "encode_sample"]
    assert hook.place == "workers"  # processes do not wait for each other


@pytest.mark.parametrize(("which", "cause", "name"), [(".tar", "disk", "read"), ("shard_001.tar", "file", "shard_001")])
def test_slow_disks_and_shards_are_named(
    text_dataset: MakeDataset, monkeypatch: pytest.MonkeyPatch, which: str, cause: str, name: str
) -> None:
    stream = open_stream(text_dataset(97, shards=6), worker_config=config(num_workers=2))
    slow_reads(monkeypatch, lambda path: path.endswith(which))
    bound = seen(stream).bound()
    assert (bound.kind, bound.cause) == ("storage", cause)
    assert name in bound.name


def test_reads_that_are_tried_again_are_named(text_dataset: MakeDataset, monkeypatch: pytest.MonkeyPatch) -> None:
    fails = itertools.cycle([True, True, True, False])  # each read pauses twice, for 0.6 s

    def sometimes(path: str) -> bool:
        if next(fails):
            raise OSError(errno.EIO, "Input/output error")
        return False

    with open_stream(text_dataset(97)) as stream:
        for _ in range(30):  # by then all files are open
            next(stream)
        before = stream.stats()
        slow_reads(monkeypatch, sometimes)
        while (stats := stream.stats() - before).storage.rereads < 4:
            next(stream)
    assert stats.bound().cause == "refusals", stats
    assert "reads of files failed at first" in stats.bound().advice


@pytest.fixture
def url(bucket: Bucket, tmp_path: Path) -> str:
    return bucket.upload(make_text_dataset(tmp_path / "texts", n=120, shards=6, text_bytes=20_000), "texts")


@pytest.mark.parametrize(
    ("faults", "settings", "cause", "said", "kind"),
    [
        ([Fault("late", late_s=0.02, times=None)], {}, "store", "The rate is limited by the store (", "thread"),
        ([Fault("late", late_s=0.2, match="shard_002", times=None)], {}, "file", "shard_002.tar takes", "thread"),
        ([Fault("status", times=8)], {"first_pause_s": 0.2}, "refusals", "requests, and each is retried", "thread"),
        ([Fault("late", late_s=0.02, times=None)], {"cache_bytes": 1 << 20}, "cache", "raise cache_bytes", "thread"),
        ([Fault("late", late_s=0.02, times=None)], {}, "store", "The rate is limited by the store (", "process"),
    ],
    ids=["slow store", "slow shard", "throttled store", "small cache", "from processes"],
)
def test_what_is_wrong_with_a_store_is_named(
    bucket: Bucket, url: str, faults: list[Fault], settings: dict[str, Any], cause: str, said: str, kind: str
) -> None:
    with using_storage(StorageSettings(ahead_bytes=0, **{"cache_bytes": 0, **settings})):
        workers = config(num_workers=2, worker_type=kind)
        with open_stream(url, worker_config=workers, batch_size=2, max_samples_per_sequence=1) as stream:
            next(stream)
            before = stream.stats()
            bucket.server.inject(*faults)
            while (stats := stream.stats() - before).batches < 80:
                next(stream)
        bound = stats.bound()
        assert (bound.kind, bound.cause) == ("storage", cause), stats
        assert said in bound.advice
        assert stats.storage.requests > 0  # those of worker processes, too
        assert stats.storage.bytes_read > 0


def test_the_slowest_host_is_named(text_dataset: MakeDataset) -> None:
    """Hosts take steps together: who is fast waits elsewhere for who is slow."""
    path = text_dataset(97)
    encoders = [TaskEncoder(), SlowHook(), TaskEncoder()]
    hosts = [
        open_stream(path, task_encoder=encoder, batch_size=2, worker_config=config(host, 3, 2))
        for host, encoder in enumerate(encoders)
    ]
    for _ in range(60):
        for host in hosts:
            next(host)
    gathered = [json.dumps(host.stats().as_dict()) for host in hosts]
    for host in hosts:
        host.close()
    assert max(map(len, gathered)) < 4096
    merged = merge_stats(map(json.loads, gathered))
    assert merged.slowest == 1
    assert merged.advice.startswith("Host 1 is the slowest: its program waits")
    assert "encode_sample takes" in merged.advice
    assert merged.total.samples == 3 * 60 * 2
    with pytest.raises(ValueError, match="at least one host"):
        merge_stats([])


def test_where_no_host_waits_none_is_slow(text_dataset: MakeDataset) -> None:
    stats = trained(text_dataset(97))
    merged = merge_stats([stats, stats.as_dict()])
    assert merged.slowest is None
    assert "The rate is limited by the program itself" in str(merged)


def test_shares_stand_beside_their_targets(text_dataset: MakeDataset) -> None:
    paths = [text_dataset(97), text_dataset(53), text_dataset(41)]
    one, two, three = (
        get_train_dataset(path, batch_size=None, shuffle_buffer_size=None, max_samples_per_sequence=None, lanes=24)
        for path in paths
    )
    schedule = [(0, (3, 1)), (480, (1, 1))]
    blend = BlendDataset(BlendDataset((one, 1), (two, 3)), three, schedule=schedule)
    with Stream.of(blend, worker_config=config()) as stream:
        for _ in range(960):
            next(stream)
        leaves = stream.stats().leaves
    assert sum(leaf.samples for leaf in leaves) == pytest.approx(sum(leaf.expected or 0 for leaf in leaves))
    for leaf in leaves:
        assert leaf.expected == pytest.approx(leaf.samples, abs=20)


def of_cost(steps: int, blend: Any, **options: Any) -> LoaderStats:
    """What a stream over a blend by cost says, sent and logged too."""
    with Stream.of(blend, worker_config=config(**options)) as stream:
        for _ in range(steps):
            next(stream)
        found = stream.stats()
    assert LoaderStats.from_dict(json.loads(json.dumps(found.as_dict()))) == found
    assert (found - found).leaves[0].cost == 0
    return found


def test_shares_of_cost_stand_beside_their_targets(tmp_path: Path) -> None:
    alike = {"batch_size": None, "shuffle_buffer_size": None, "max_samples_per_sequence": None, "lanes": 24}
    short, long, other = (
        get_train_dataset(make_text_dataset(tmp_path / f"{n}", n=n, shards=2, text_bytes=size), **alike)
        for n, size in ((97, 50), (53, 500), (41, 200))
    )
    stats = of_cost(960, BlendDataset((short, 2), (long, 1), (other, 1), weight_unit="bytes.txt"))
    costs = [leaf.cost or 0.0 for leaf in stats.leaves]
    targets = [leaf.expected_cost or 0.0 for leaf in stats.leaves]
    assert targets == pytest.approx([sum(costs) / 2, sum(costs) / 4, sum(costs) / 4])
    assert costs == pytest.approx(targets, abs=2000)  # the largest samples, and what was read ahead
    assert [leaf.samples > 0 for leaf in stats.leaves] == [True] * 3
    scalars = stats.scalars()
    name = stats.leaves[0].name
    assert (scalars[f"cost_target/{name}"], scalars[f"cost_share/{name}"]) == pytest.approx(
        (0.5, costs[0] / sum(costs))
    )
    merged = merge_stats([stats, stats]).total
    assert [leaf.cost for leaf in merged.leaves] == [2 * cost for cost in costs]
    nested = BlendDataset((BlendDataset((short, 1), (long, 1)), 3), (other, 1), weight_unit="bytes.txt")
    inner = of_cost(960, nested).leaves
    together = sum(leaf.cost or 0 for leaf in inner)
    assert sum(leaf.expected_cost or 0 for leaf in inner[:2]) == pytest.approx(0.75 * together)
    assert inner[1].expected_cost == pytest.approx(inner[1].cost, rel=0.1)
    later = BlendDataset(short, long, schedule=[(0, (1, 0)), (480, (1, 1))], weight_unit="bytes.txt")
    for leaf in of_cost(960, later).leaves:
        assert leaf.expected_cost == pytest.approx(leaf.cost, rel=0.1)
    plain = of_cost_of_samples(BlendDataset(short, long))
    assert {(leaf.cost, leaf.expected_cost) for leaf in plain.leaves} == {(None, None)}
    packs = PlannedPackingDataset(
        BlendDataset((short, 1), (long, 3), weight_unit="bytes.txt"), PackingPlan("bytes.txt", capacity=2000), len
    )
    one, three = of_cost(60, packs).leaves
    assert (three.expected_cost or 0) == pytest.approx(3 * (one.expected_cost or 0))
    assert three.cost == pytest.approx(three.expected_cost, rel=0.1)


@pytest.mark.parametrize("schedule", [[(0, (1, 1))], [(0, (1, 1)), (480, (2, 1))]], ids=["weights", "schedule"])
def test_samples_without_cost_in_front_change_nothing(tmp_path: Path, schedule: Any) -> None:
    """Those that are looked at to estimate the costs of a dataset are its first 1,024."""
    path = make_tokens(tmp_path / "data", samples=1100)
    add_column(path, free=np.arange(1100) >= 1050)
    one, two = (train_on(path, batch_size=None, shuffle_over_epochs_multiplier=None, lanes=24) for _ in range(2))
    with Stream.of(BlendDataset(one, two, schedule=schedule, weight_unit="free"), worker_config=config()) as stream:
        for steps in (20, 2200):
            for _ in range(steps):
                next(stream)
            stream.restore(stream.cursor())
            told = [(leaf.expected, leaf.expected_cost) for leaf in stream.stats().leaves]
            assert np.isfinite(np.array(told)).all()
            assert sum(samples or 0 for samples, _ in told) == pytest.approx(stream.stats().read_samples)
            assert sum(cost or 0 for _, cost in told) == sum(leaf.cost or 0 for leaf in stream.stats().leaves)


def of_cost_of_samples(blend: Any) -> LoaderStats:
    with Stream.of(blend, worker_config=config()) as stream:
        next(stream)
        return stream.stats()


def test_lanes_that_mix_have_no_targets(text_dataset: MakeDataset) -> None:
    class Picky(TaskEncoder):
        def select_samples_to_pack(self, samples: list[Any]) -> list[list[Any]]:
            time.sleep(SLOW_S)
            return [samples]

        def pack_selected_samples(self, samples: list[Any]) -> Any:
            return samples[0]

    stats = seen(
        open_stream(text_dataset(97), task_encoder=Picky(), packing_buffer_size=2, worker_config=config(0, 1, 2))
    )
    assert stats.bound().name == "select_samples_to_pack", stats
    assert [leaf.expected for leaf in stats.leaves] != [None]  # one dataset is all of it
    packs = [
        get_train_dataset(path, task_encoder=Picky(), packing_buffer_size=2, batch_size=None, **FULL)
        for path in (text_dataset(97), text_dataset(53))
    ]
    with Stream.of(BlendDataset(*packs), worker_config=config()) as stream:
        next(stream)
        assert {leaf.expected for leaf in stream.stats().leaves} == {None}


FULL: dict[str, Any] = {"shuffle_buffer_size": None, "max_samples_per_sequence": None, "lanes": 24}


class Drops(TaskEncoder):
    def encode_sample(self, sample: Any) -> Any:
        if sample.__key__.endswith("3"):
            raise SkipSample
        return sample


def test_numbers_are_subtracted_sent_and_logged(text_dataset: MakeDataset) -> None:
    with open_stream(text_dataset(97), task_encoder=Drops()) as stream:
        assert stream.stats().bound().cause == "unknown"
        next(stream)
        assert "1 batches, 4 samples, 0 samples/s" in str(stream.stats())  # no time has passed between batches
        assert stream.stats().scalars()["samples_per_s"] == 0
        for _ in range(9):
            next(stream)
        before = stream.stats()
        for _ in range(10):
            next(stream)
        now = stream.stats()
    assert (now.batches, before.batches, (now - before).batches) == (20, 10, 10)
    assert now["samples"] == now.samples == 80
    assert 0 < (now - before).dropped_total < now.dropped_total
    assert sum(sum(reasons.values()) for reasons in (now - before).dropped.values()) == (now - before).dropped_total
    assert (now - now).dropped == {}
    assert LoaderStats.from_dict(json.loads(json.dumps(now.as_dict()))) == now
    assert now.waiting_s <= now.seconds
    scalars = now.scalars("data/")
    assert all(isinstance(value, float) for value in scalars.values())
    assert scalars["data/samples"] == 80
    assert {"data/stage/read", "data/stage/decode", "data/stage/encode_sample", "data/waiting"} <= {*scalars}
    with pytest.raises(KeyError):
        now["no such number"]


def test_a_step_takes_no_lock_to_be_counted(text_dataset: MakeDataset) -> None:
    class Counting:
        def __init__(self) -> None:
            self.entered = 0

        def __enter__(self) -> None:
            self.entered += 1

        def __exit__(self, *_: object) -> None:
            pass

    with open_stream(text_dataset(97), batch_size=None) as stream:
        lock = stream.statistics.lock = Counting()  # type: ignore[assignment]
        for _ in range(3000):
            next(stream)
        assert lock.entered < 1000, "chunks and some of the steps alone, which are timed"
        assert stream.stats().samples == stream.stats().batches == 3000


def test_a_restored_loader_counts_from_zero(text_dataset: MakeDataset) -> None:
    def open_loader() -> Any:
        return get_savable_loader(get_train_dataset(text_dataset(97), batch_size=4, **FULL), worker_config=config())

    with open_loader() as loader:
        for _ in range(5):
            next(loader)
        state = loader.save_state_rank()
    with open_loader() as loader:
        loader.restore_state_rank(state)
        next(loader)
        assert loader.stats().batches == 1


def test_other_threads_may_ask_at_any_time(text_dataset: MakeDataset) -> None:
    over, asked = threading.Event(), [0]
    with open_stream(text_dataset(97), worker_config=config(num_workers=2)) as stream:

        def ask() -> None:
            while not over.is_set():
                str(stream.stats())
                asked[0] += 1

        thread = threading.Thread(target=ask)
        thread.start()
        while asked[0] < 5 and thread.is_alive():
            next(stream)
        over.set()
        thread.join()
    assert asked[0] >= 5


class Pairs(TaskEncoder):
    def select_samples_to_pack(self, samples: list[Any]) -> list[list[Any]]:
        return [samples[:2], samples[2:]]

    def pack_selected_samples(self, samples: list[Any]) -> Any:
        return samples[0]


def test_hosts_that_agree_on_the_end_count_too(text_dataset: MakeDataset) -> None:
    worker_config = config(0, 2, num_workers=2, any_host=lambda flag: flag)
    settings: dict[str, Any] = {"repeat": False, "packing_buffer_size": 4, "last_batch": "pad"}
    path = text_dataset(97)
    with open_stream(path, task_encoder=Pairs(), worker_config=worker_config, **settings) as stream:
        for _ in range(3):
            next(stream)
        assert stream.stats().batches == 3


class FewPairs(Pairs):
    """So that lanes end at different steps."""

    def encode_sample(self, sample: Any) -> Any:
        if int(sample.__key__) % 7 > 1:
            raise SkipSample
        return sample


def test_steps_that_are_padding_on_all_hosts_are_no_steps(text_dataset: MakeDataset) -> None:
    worker_config = config(0, 2, any_host=lambda flag: flag)
    settings: dict[str, Any] = {"repeat": False, "packing_buffer_size": 4, "last_batch": "pad"}
    path = text_dataset(240)
    with open_stream(path, task_encoder=FewPairs(), worker_config=worker_config, **settings) as stream:
        real = [int(batch.__valid__.sum()) for _ in range(3) for batch in stream]
        counted = stream.stats()
    assert (counted.batches, counted.samples) == (len(real), sum(real))


def test_a_signal_handler_may_ask_behind_any_call(text_dataset: MakeDataset) -> None:
    """Python calls handlers when a function begins, and behind calls of C."""

    def told(ask: bool) -> tuple[int, int, dict[str, dict[str, int]]]:
        with open_stream(text_dataset(97), task_encoder=Drops(), repeat=False, last_batch="keep") as stream:

            def handler(frame: Any, event: str, argument: Any) -> None:
                if event in ("call", "c_return") and frame.f_code.co_filename in modules:
                    stream.stats()

            if ask:
                sys.setprofile(handler)
            try:
                for _ in range(3):
                    state = stream.cursor()
                    next(stream)
                    stream.skip(2)
                    stream.restore(state)
                    next(stream)
                while next(stream, None) is not None:
                    pass
                iter(stream)
                next(stream)
            finally:
                sys.setprofile(None)
            stats = stream.stats()
            return stats.batches, stats.samples, stats.dropped

    modules = {each.__code__.co_filename for each in (Stream.stats, Stream.cursor, Statistics.passed)}
    assert told(ask=True) == told(ask=False)


@pytest.fixture
def loader(text_dataset: MakeDataset) -> Iterator[Any]:
    dataset = get_train_dataset(text_dataset(97), batch_size=4, task_encoder=Drops(), **FULL)
    with get_savable_loader(dataset, worker_config=config(num_workers=2)) as loader:
        yield loader


def test_laps_add_up(loader: Any) -> None:
    next(loader)
    with loader.watch() as watch:
        laps = []
        for _ in range(3):
            next(loader)
            next(loader)
            laps.append(watch.lap())
    assert [lap.batches for lap in laps] == [2, 2, 2]
    assert loader.stats().batches == 7


def test_a_trace_tells_what_ran_when(loader: Any, tmp_path: Path) -> None:
    with loader.watch(trace=tmp_path / "trace-{host}.json"):
        for _ in range(30):
            next(loader)
    names = {"wait", "plan", "read", "decode", "encode_sample", "batch", "assemble"}
    assert check_trace(tmp_path / "trace-0.json", names) == {os.getpid()}


def test_a_trace_that_finds_no_room_ends_alone(loader: Any, caplog: pytest.LogCaptureFixture) -> None:
    with loader.watch(trace="/dev/full"):
        for _ in range(100):
            next(loader)
    assert [record.getMessage() for record in caplog.records] == [
        "the trace /dev/full cannot be written (No space left on device) and ends here"
    ]


def check_trace(path: Path, names: set[str]) -> set[int]:
    """Check a trace of host 0 for some stages; the processes that read."""
    events = json.loads(path.read_text())
    spans = [event for event in events if event["ph"] == "X"]
    assert names <= {span["name"] for span in spans}
    assert "host 0" in {event["args"]["name"] for event in events if event["name"] == "process_name"}
    tracks: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for span in spans:
        tracks.setdefault((span["pid"], span["tid"]), []).append((span["ts"], span["ts"] + span["dur"]))
    for track in tracks.values():  # on each, spans lie inside each other or beside each other
        open_until: list[float] = []
        for begin, end in sorted(track, key=lambda span: (span[0], -span[1])):
            while open_until and open_until[-1] <= begin + 0.01:
                open_until.pop()
            assert not open_until or end <= open_until[-1] + 0.01
            open_until.append(end)
    return {span["pid"] for span in spans if span["name"] == "read"}


def test_prometheus_finds_the_metrics(loader: Any) -> None:
    with loader.watch(prometheus=0, name="train") as watch:
        for _ in range(10):
            next(loader)
        with urllib.request.urlopen(f"http://127.0.0.1:{watch.port}/metrics") as answer:
            page = answer.read().decode()
    found = {
        (sample.name, sample.labels.get("stage")): sample
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }
    assert found["energon_grain_samples_total", None].value == 40
    assert found["energon_grain_samples_total", None].labels == {"loader": "train", "host": "0"}
    assert found["energon_grain_stage_seconds_total", "encode_sample"].value > 0
    assert found["energon_grain_dropped_total", None].labels["reason"] == "encode_sample: SkipSample"
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(f"http://127.0.0.1:{watch.port or 1}/metrics")


def test_a_port_that_is_taken_is_named(loader: Any, tmp_path: Path) -> None:
    with (
        loader.watch(prometheus=0) as watch,
        pytest.raises(OSError, match=f"port {watch.port} .*prometheus=0 for any free port"),
        loader.watch(trace=tmp_path / "trace.json", prometheus=watch.port),
    ):
        pass
    assert json.loads((tmp_path / "trace.json").read_text()) == []  # closed


def test_metrics_of_several_loaders_lie_in_one_registry(loader: Any) -> None:
    registry = CollectorRegistry()
    with loader.watch(prometheus=registry, name="a"):
        next(loader)
        with loader.watch(prometheus=registry, name="b"):
            families = [*registry.collect()]
            assert {sample.labels["loader"] for family in families for sample in family.samples} == {"a", "b"}
            names = [family.name for family in families]
            assert len(names) == len({*names})  # the text that Prometheus reads has each metric once
            with pytest.raises(ConfigError, match=r"name='b'.*another"), loader.watch(prometheus=registry, name="b"):
                pass
    assert not [*registry.collect()]


@pytest.mark.parametrize("workers", [0, 2])
def test_short_steps_are_counted_all_and_their_time_is_near(text_dataset: MakeDataset, workers: int) -> None:
    """Few of them are timed; a loop that turns slow is seen at once by who asks once more."""
    options = {"shuffle_buffer_size": None, "max_samples_per_sequence": None}
    dataset = get_train_dataset(text_dataset(97), batch_size=None, **options)
    with Stream.of(dataset, worker_config=config(num_workers=workers)) as stream:
        next(stream)
        before, began = stream.stats(), time.perf_counter()
        for _ in range(20_000):
            next(stream)
        short, took_s = stream.stats() - before, time.perf_counter() - began
        assert (short.batches, short.samples) == (20_000, 20_000)
        assert short.seconds == pytest.approx(took_s, rel=0.1)
        assert 0.3 * took_s < short.waiting_s <= 1.01 * short.seconds  # the loop does nothing else
        for _ in range(100):
            next(stream)
        before, began = stream.stats(), time.perf_counter()
        for _ in range(10):
            next(stream)
            time.sleep(0.05)
        slow, took_s = stream.stats() - before, time.perf_counter() - began
        assert slow.batches == 10
        assert slow.seconds == pytest.approx(took_s, abs=0.1)
        assert slow.waiting < 0.5


def test_a_program_waits_for_no_more_than_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Although waits for an empty queue are timed, and the steps in which they fall are not."""
    now_ns = 10
    monkeypatch.setattr(clock, "perf_counter_ns", lambda: now_ns)
    waits = clock.WaitClock()
    waits.timed(1, 5, 0)
    now_ns = 12
    waits.timed(2, 11, 0)
    for _ in range(8):
        began_ns, now_ns = now_ns, now_ns + 50
        waits.add_long_wait(began_ns)
        now_ns += 1
    assert 400 <= waits.waiting_ns <= waits.ran_ns(10) <= now_ns - 10


@pytest.mark.parametrize(("stage", "cause"), [("decode", "decode"), ("encode_sample", "interpreter")])
def test_python_s_lock_is_blamed_on_hooks_alone(stage: str, cause: str) -> None:
    stats = LoaderStats(
        setup=Setup(workers=2, cores=2),
        seconds=10.0,
        waiting_s=10.5,
        batches=10,
        lock_tries=10,
        lock_held=10,
        dropped={},
        stages=(
            StageTime(name=stage, kind="work", place="workers", seconds=20.4, cpu_seconds=10.0, samples=100),
            StageTime(name="read", kind="storage", place="workers", seconds=0.4, cpu_seconds=0.1, samples=100),
        ),
        storage=Traffic(),
    )
    assert stats.bound().cause == cause
    assert ("Python's lock" in stats.bound().advice) == (cause == "interpreter")
    assert "waited 100%" in str(stats)
    assert f"{stage} 98%, read 2%" in str(stats)
