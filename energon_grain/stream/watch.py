"""Watching a loader from outside while it runs: laps for a log, Prometheus metrics, and a trace of what ran when."""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any, Self

from energon_grain.extras import needed_for
from energon_grain.stream.clock import Span, Work
from energon_grain.stream.loader_stats import LoaderStats
from energon_grain.stream.statistics import Statistics

_logger = logging.getLogger("energon_grain")
_MOST_EVENTS = 1_000_000
"""Of a trace: some 150 MB. Perfetto opens no much larger ones."""


class Watch:
    """A context in which a loader is watched; see `SavableDataLoader.watch`.

    Args:
        stats: The loader's numbers.
        statistics: Which counts them.
        trace: File for what ran when; `{host}` in its name is filled in.
        prometheus: A port of this machine to serve metrics at (0: any that is free), or a `CollectorRegistry`.
        name: Label of the loader in the metrics.

    Attributes:
        port: Where metrics are served; None: nowhere.
    """

    def __init__(
        self,
        stats: Callable[[], LoaderStats],
        statistics: Statistics,
        *,
        trace: str | os.PathLike[str] | None,
        prometheus: Any,
        name: str,
    ) -> None:
        self._stats = stats
        self._statistics = statistics
        self._trace = None if trace is None else os.fspath(trace).replace("{host}", str(statistics.setup.host))
        self._prometheus, self._name = prometheus, name
        self._before = stats()
        self._ends: list[Callable[[], object]] = []
        self.port: int | None = None

    def lap(self) -> LoaderStats:
        """What happened since the last lap, or since the watch began."""
        now = self._stats()
        before, self._before = self._before, now
        return now - before

    def __enter__(self) -> Self:
        try:
            if self._trace is not None:
                trace = _Trace(self._trace, f"host {self._statistics.setup.host}")
                self._ends.append(trace.close)
                self._statistics.listeners.append(trace)
                self._ends.append(lambda: self._statistics.listeners.remove(trace))
            if self._prometheus is not None:
                self._serve()
        except BaseException:
            self.__exit__()
            raise
        self._before = self._stats()
        return self

    def __exit__(self, *exception: object) -> None:
        while self._ends:
            self._ends.pop()()
        self.port = None

    def _serve(self) -> None:
        with needed_for("Prometheus metrics", instead="log loader.stats().scalars()"):
            import prometheus_client as prometheus

        metrics: Any = _Metrics(self._stats, self._name)
        if not isinstance(self._prometheus, int):
            self._prometheus.register(metrics)
            self._ends.append(lambda: self._prometheus.unregister(metrics))
            return
        registry = prometheus.CollectorRegistry()
        registry.register(metrics)
        server, thread = prometheus.start_http_server(self._prometheus, registry=registry)
        self.port = server.server_port
        self._ends += [thread.join, server.server_close, server.shutdown]


class _Trace:
    """Writes work as Chrome's trace events, as it comes: what `ui.perfetto.dev` and `chrome://tracing` open.

    A process is a process and a worker a thread; the format needs no closing bracket, so the file of a program that was
    killed opens, too.
    """

    def __init__(self, path: str, process: str) -> None:
        self._file = open(path, "w", encoding="utf-8")  # noqa: SIM115 (closed by `close`)
        self._file.write("[")
        self._process = process
        self._tracks: dict[tuple[int, str], int] = {}
        self._events = 0
        self._lock = threading.Lock()

    def __call__(self, work: Work) -> None:
        """Write what one worker did."""
        with self._lock:
            if self._file.closed or self._events >= _MOST_EVENTS:
                return
            for span in work.spans:
                # What the thread of batches did for a worker's chunk is told together with what the worker did.
                here = span.place == "main" and work.process != os.getpid()
                self._span(span, *((os.getpid(), "batches") if here else (work.process, work.worker)))
            if self._events >= _MOST_EVENTS:
                _logger.warning("the trace %s has %d events, and ends here", self._file.name, self._events)

    def _span(self, span: Span, process: int, worker: str) -> None:
        track = self._tracks.get((process, worker))
        if track is None:
            if not any(each == process for each, _ in self._tracks):
                named = self._process if process == os.getpid() else f"{self._process}, {worker}"
                self._event(ph="M", name="process_name", pid=process, tid=0, args={"name": named})
            track = self._tracks[process, worker] = len(self._tracks) + 1
            self._event(ph="M", name="thread_name", pid=process, tid=track, args={"name": worker})
        at_us = span.begin_ns / 1e3
        if span.name == "wait":
            self._event(ph="C", name="batches ready", pid=process, tid=track, ts=at_us, args={"ready": span.samples})
        args = {"samples": span.samples, "cpu_ms": span.cpu_ns / 1e6}
        duration_us = span.wall_ns / 1e3
        self._event(ph="X", name=span.name, cat=span.kind, pid=process, tid=track, ts=at_us, dur=duration_us, args=args)

    def _event(self, **event: Any) -> None:
        self._file.write(",\n" if self._events else "\n")
        self._file.write(json.dumps(event))
        self._events += 1

    def close(self) -> None:
        """End the file."""
        with self._lock:
            self._file.write("\n]\n")
            self._file.close()


class _Metrics:
    """A collector of `prometheus_client`: asks for the numbers whenever somebody asks for the metrics."""

    def __init__(self, stats: Callable[[], LoaderStats], name: str) -> None:
        self._stats = stats
        self._name = name

    def describe(self) -> list[Any]:
        """Nothing: no metric is made to learn its name."""
        return []

    def collect(self) -> Iterator[Any]:
        """All metrics."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        stats = self._stats()
        own = {"loader": self._name, "host": str(stats.setup.host)}

        def counter(name: str, text: str, *labelled: tuple[dict[str, str], float]) -> Any:
            labels = [*own, *(labelled[0][0] if labelled else ())]
            family = CounterMetricFamily(f"energon_grain_{name}", text, labels=labels)
            for more, value in labelled:
                family.add_metric([*own.values(), *more.values()], value)
            return family

        storage = stats.storage
        for name, text, value in (
            ("batches", "Batches that were delivered", stats.batches),
            ("samples", "Samples that were delivered", stats.samples),
            ("read_samples", "Samples that were read", stats.read_samples),
            ("read_bytes", "Bytes that reading samples took", stats.read_bytes),
            ("seconds", "Time from batch to batch", stats.seconds),
            ("waiting_seconds", "Of it, what the program waited for batches", stats.waiting_s),
            ("store_requests", "Requests to object stores", storage.requests),
            ("store_repeated", "Requests that were made again", storage.repeated),
            ("store_bytes", "Bytes that came from object stores", storage.bytes_read),
            ("rereads", "Reads of local files that were tried again", storage.rereads),
        ):
            yield counter(name, text, ({}, value))
        ranges = [({"found": "yes"}, storage.found), ({"found": "no"}, storage.missed)]
        yield counter("ranges", "Ranges of objects that were here when they were needed, or not", *ranges)
        stages = [({"stage": each.name, "kind": each.kind, "place": each.place}, each.seconds) for each in stats.stages]
        yield counter("stage_seconds", "Time of all workers together, by stage", *stages)
        leaves = [({"leaf": each.name}, each.samples) for each in stats.leaves]
        yield counter("leaf_samples", "Samples that were read, by dataset", *leaves)
        targets = [({"leaf": each.name}, each.expected) for each in stats.leaves if each.expected is not None]
        yield counter("leaf_target_samples", "As many as the weights ask for", *targets)
        dropped = [
            ({"leaf": leaf, "reason": reason}, count)
            for leaf, reasons in stats.dropped.items()
            for reason, count in reasons.items()
        ]
        yield counter("dropped", "What was dropped, by dataset, hook and reason", *dropped)
        ready = GaugeMetricFamily("energon_grain_ready_batches", "Batches that are ready now", labels=[*own])
        ready.add_metric([*own.values()], stats.queued)
        yield ready
