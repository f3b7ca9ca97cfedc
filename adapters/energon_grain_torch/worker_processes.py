"""Worker processes as those of a `torch.utils.data.DataLoader`: started in any of Python's ways.

They are driven as all workers are (`energon_grain.stream.workers`). What a worker does is pure: it has no position, no
shuffle buffer and no random stream, so the number of workers and the way they are started change nothing, and a restart
costs nothing.
"""

from __future__ import annotations

import dataclasses
import multiprocessing
import random
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import wait
from typing import Any, cast

import numpy as np
import torch
from torch.utils.data import _utils

from energon_grain.errors import ConfigError
from energon_grain.sources.joined import holds_arrays
from energon_grain.sources.remote_runs import RemoteSource
from energon_grain.sources.source import Source
from energon_grain.stream.spec import StreamSpec
from energon_grain.stream.worker_process import Channel, part_offsets, pickled_spec, serve
from energon_grain.stream.workers import ProcessPool, StartedProcess, StartProcess


def process_pool(
    spec: StreamSpec, sources: list[Source], workers: int, budget_bytes: int, multiprocessing_context: Any
) -> ProcessPool:
    """Worker processes.

    Args:
        spec: The compiled dataset.
        sources: The main process's sources.
        workers: How many processes.
        budget_bytes: Bound on the memory of what they made and nobody took yet.
        multiprocessing_context: How they are started: "fork", "forkserver", "spawn", a context, or None: as Python
            does by default; not by a fork where there are arrays among the data, or data in an object store.

    Raises:
        ConfigError: There is no such way to start processes, or it is a fork of a process that has opened such data.
    """
    context = _way_to_start(sources, multiprocessing_context)
    start = _starting(dataclasses.replace(spec, program=None), workers, context)
    script = context.get_start_method() != "fork"
    return ProcessPool(sources, workers, budget_bytes, start, received=_mapped, import_script=script)


def _way_to_start(sources: Sequence[Source], asked: Any) -> Any:
    """How to start workers: what reads object stores and arrays does not outlive a fork."""
    context = asked
    if not hasattr(asked, "Process"):
        try:
            context = multiprocessing.get_context(asked)
        except (ValueError, TypeError) as error:
            raise ConfigError(f"multiprocessing_context={asked!r}: {error}") from error
    if context.get_start_method() != "fork":
        return context
    if not any(
        holds_arrays(source) or (isinstance(source, RemoteSource) and source.remote_files) for source in sources
    ):
        return context
    if asked is None:
        return multiprocessing.get_context("forkserver")
    raise ConfigError(
        "multiprocessing_context='fork': these data are arrays, or lie in an object store, and what reads those does "
        "not outlive a fork; use 'forkserver' (the default for them) or 'spawn', or a loader with threads"
    )


_LEFT_SECONDS = 1.0
"""After closing its files, a process that ends is gone."""


class _Child:
    """A process of `multiprocessing`."""

    def __init__(self, process: Any) -> None:
        self._process = process
        self.pid = process.pid
        self.kill = process.kill

    @property
    def code(self) -> int | None:
        return self._process.exitcode

    def ended(self, patience_s: float) -> bool:
        # Whether it is alive, Python asks the system, which does not tell when others wait for our children too.
        if not wait([self._process.sentinel], patience_s):
            return False
        # Of two threads that ask the system one gets the code, and may not have put it down when the other gets none.
        until = time.monotonic() + _LEFT_SECONDS
        while self._process.exitcode is None and time.monotonic() < until:
            time.sleep(0.001)
        self._process.join(0)  # Python keeps those that nobody joined, with two pipes each, until it starts another one
        return True


def _starting(spec: StreamSpec, workers: int, context: Any) -> StartProcess:
    """Forked workers inherit the compiled dataset, hooks and all; others are sent it: scripts may define hooks."""
    inherited = spec if context.get_start_method() == "fork" else None

    def start(number: int, channel: Channel, end: socket.socket) -> StartedProcess:
        pickled = b""
        if inherited is None:
            pickled = pickled_spec(spec, otherwise="start workers by multiprocessing_context='fork'")
        process = context.Process(target=_serve, args=(end, number, workers, inherited), daemon=True)
        process.start()
        if inherited is None:
            with suppress(OSError):  # it has ended: whoever wants an answer is told
                channel.send(pickled)
        return _Child(process)

    return start


def _serve(end: socket.socket, number: int, workers: int, spec: StreamSpec | None) -> None:
    """What runs in a worker, which looks to hooks as a `DataLoader`'s does."""
    torch.set_num_threads(1)
    random.seed(number)
    np.random.seed(number)  # noqa: NPY002 (forked workers would all have the state of the parent)
    torch.manual_seed(number)
    torch_worker = cast("Any", _utils.worker)
    torch_worker._worker_info = torch_worker.WorkerInfo(id=number, num_workers=workers, seed=number, dataset=None)
    serve(Channel(end), number, spec)


def _mapped(file: int, sizes: list[int]) -> list[Any]:
    """The parts of a result where they lie: arrays of it are not copied."""
    offsets, total = part_offsets(sizes)
    # The mapping lives as long as an array in it does. That of Python's `mmap` would keep the file open so long.
    memory = torch.from_file(f"/dev/fd/{file}", shared=True, size=total, dtype=torch.uint8).numpy().data
    return [memory[offset : offset + size] for offset, size in zip(offsets, sizes, strict=True)]
