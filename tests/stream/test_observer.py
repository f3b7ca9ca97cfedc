"""What the engine reports, and to whom."""

from __future__ import annotations

import logging
import threading
import time
from typing import Any

import pytest
from stream_hosts import MakeDataset, config, train_on

from energon_grain import SkipSample, Stream as WatchedStream, TaskEncoder
from energon_grain.stream import clock, steps
from energon_grain.stream.observer import Observer
from energon_grain.stream.stream import Stream

KINDS: list[dict[str, Any]] = [{}, {"num_workers": 2}]


def opened(path: Any, kind: dict[str, Any], *observers: Observer, **options: Any) -> Stream:
    dataset = train_on(path, batch_size=4, worker_config=config(**kind), **options)
    return Stream(dataset.compiled(), dataset.worker_config, observers=observers)


def keys(stream: Stream, count: int = 12) -> list[list[str]]:
    with stream:
        return [next(stream).__key__ for _ in range(count)]


class Dropping(TaskEncoder):
    def encode_sample(self, sample: Any) -> Any:
        if int(sample.__key__) % 5 == 2:
            raise SkipSample
        return sample


@pytest.mark.parametrize("kind", KINDS)
def test_without_an_observer_nothing_is_timed(
    text_dataset: MakeDataset, monkeypatch: pytest.MonkeyPatch, kind: dict[str, Any]
) -> None:
    path = text_dataset(97)
    expected = keys(opened(path, kind, Observer_()))

    def no_clock() -> int:
        raise AssertionError("a clock was looked at")

    for module in (clock, steps):
        monkeypatch.setattr(module, "perf_counter_ns", no_clock)
    monkeypatch.setattr(clock, "thread_time_ns", no_clock)
    monkeypatch.setattr(time, "perf_counter_ns", no_clock)
    assert keys(opened(path, kind)) == expected


class Observer_(Observer):
    """Takes part in everything, and does nothing."""


class Noting(Observer):
    def __init__(self) -> None:
        self.seen: list[tuple[str, Any]] = []

    def begin(self, stream: Any, place: Any) -> None:
        self.seen.append(("begin", place.step))

    def delivered(self, step: int, samples: int) -> int:
        self.seen.append(("delivered", (step, samples)))
        return 1

    def dropped(self, step: int, dropped: Any) -> None:
        self.seen.append(("dropped", (step, dropped.key)))

    def end(self, delivered: int, failed: int | None) -> None:
        self.seen.append(("end", (delivered, failed)))

    def close(self) -> None:
        self.seen.append(("close", None))


def test_steps_and_drops_are_reported(text_dataset: MakeDataset) -> None:
    noting = Noting()
    keys(opened(text_dataset(97), {}, noting, task_encoder=Dropping()), 5)
    names = [name for name, _ in noting.seen]
    assert (names[0], names[-1]) == ("begin", "close")
    assert [what for name, what in noting.seen if name == "delivered"] == [(1, 4), (3, 4), (5, 4)]
    dropped = [what for name, what in noting.seen if name == "dropped"]
    assert {step for step, _ in dropped} <= set(range(5))
    assert {int(key) % 5 for _, key in dropped} == {2}
    assert ("end", (5, None)) in noting.seen


CALLS = [
    "begin",
    "planned",
    "spans",
    "made",
    "waited",
    "requested",
    "delivered",
    "dropped",
    "passed",
    "jumped",
    "end",
    "close",
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("call", CALLS)
def test_an_observer_that_raises_is_removed_and_the_run_goes_on(
    text_dataset: MakeDataset, caplog: pytest.LogCaptureFixture, call: str, kind: dict[str, Any]
) -> None:
    path = text_dataset(97)
    raised = threading.Event()

    def fail(*_: Any, **__: Any) -> Any:
        raised.set()
        raise ValueError("an observer")

    faulty = type("Faulty", (Noting,), {call: fail, "due": True})()
    options: dict[str, Any] = {"task_encoder": Dropping()}
    expected = keys(opened(path, {}, **options))
    caplog.set_level(logging.WARNING, "energon_grain")
    stream = opened(path, kind, faulty, Noting(), **options)
    iter(stream)
    found = [next(stream).__key__ for _ in range(12)]
    stream.restore(stream.cursor())
    stream.close()
    assert found == expected
    assert raised.is_set() or (call == "waited" and kind)
    warnings = [record for record in caplog.records if "is removed; the stream continues" in record.getMessage()]
    assert len(warnings) == raised.is_set()


def test_statistics_that_fail_end_no_run(text_dataset: MakeDataset, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = train_on(text_dataset(97), batch_size=4, worker_config=config())
    with WatchedStream.of(dataset) as stream:
        monkeypatch.setattr(stream.statistics, "planned", lambda *_: 1 // 0)
        for _ in range(5):
            next(stream)
        assert not stream.outlet
        assert stream.stats().read_samples == 0
