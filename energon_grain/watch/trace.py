# SPDX-License-Identifier: Apache-2.0
"""A trace of the work of every worker, in Chrome's trace-event format."""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections.abc import Sequence
from typing import Any

from energon_grain.stream.clock import Span, Work
from energon_grain.stream.observer import Observer

_logger = logging.getLogger("energon_grain")
_MAX_EVENTS = 1_000_000
"""Maximum number of events of a trace: about 150 MB. Perfetto cannot open much larger files."""


class Trace(Observer):
    """Writes work as Chrome trace events when it is reported. `ui.perfetto.dev` and `chrome://tracing` open the file.

    A process is a process and a worker is a thread. The format needs no closing bracket, so the file of a killed
    program can be opened, too.
    """

    def __init__(self, path: str, process: str) -> None:
        self._file = open(path, "w", encoding="utf-8")  # noqa: SIM115 (closed by `close`)
        self._file.write("[")
        self._process = process
        self._tracks: dict[tuple[int, str], int] = {}
        self._events = 0
        self._lock = threading.Lock()
        self._requested = 0, time.perf_counter_ns()

    due = True

    def requested(self, ready: int) -> None:
        self._requested = ready, time.perf_counter_ns()

    def delivered(self, step: int, samples: int) -> int:
        del step, samples
        ready, began_ns = self._requested
        waited_ns = time.perf_counter_ns() - began_ns
        self.spans(Work([Span("pipeline", "wait", "main", began_ns, waited_ns, 0, ready)], worker="main"))
        return 0

    def made(self, step: int, assembled: Sequence[Span], batched: Sequence[Span], chunks_ns: int) -> None:
        del step, chunks_ns
        for span in assembled:
            self.spans(Work([span], worker=f"{span.name}, added up"))
        self.spans(Work([*batched]))

    def spans(self, work: Work) -> None:
        with self._lock:
            if self._file.closed or self._events >= _MAX_EVENTS:
                return
            try:
                for span in work.spans:
                    # Work of the batch thread on a worker's chunk is reported together with the worker's own.
                    here = span.place == "main" and work.process != os.getpid()
                    self._span(span, *((os.getpid(), "batches") if here else (work.process, work.worker)))
            except OSError as error:
                self._give_up(error)
            else:
                if self._events >= _MAX_EVENTS:
                    _logger.warning("the trace %s has %d events and ends here", self._file.name, self._events)

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
        """Finish the file."""
        with self._lock:
            try:
                self._file.write("\n]\n")
                self._file.close()
            except OSError as error:
                self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        """Stop tracing. The watched loop continues even if the disk fails."""
        if self._events < _MAX_EVENTS:
            _logger.warning("the trace %s cannot be written (%s) and ends here", self._file.name, error.strerror)
        self._events = _MAX_EVENTS
