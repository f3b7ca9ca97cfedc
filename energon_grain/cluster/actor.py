# SPDX-License-Identifier: Apache-2.0
"""The program of a Ray actor: the pure stages of any number of streams.

It returns results in one of two ways. An actor on the host of the training process writes them to the in-memory files
of that process, as its own worker processes do. Other actors return arrays, which Ray moves through its object store.
"""

from __future__ import annotations

import os
import pickle
import platform
import socket
import sys
import time
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from energon_grain._version import __version__
from energon_grain.errors import WorkerError
from energon_grain.extras import needed_for
from energon_grain.processes.worker import WorkerStage, packed, portable_error, write_parts
from energon_grain.stream.worker_config import set_worker_number

with needed_for("reading with Ray workers", instead="use worker_type='process'"):
    import ray

_MOST_STAGES = 4
"""Streams whose open files an actor keeps. A notebook may create many, one after the other."""


class Host(NamedTuple):
    """The report of an actor.

    Attributes:
        clock_ns: Its `time.perf_counter_ns`.
        pid: Its process ID.
        node: Name of its machine.
        node_id: Ray's ID of its node.
        owner: The pool that started it.
        near: Whether it can open the in-memory files of the process that asked: same machine, same PID namespace.
        python: Version of Python, major and minor.
        library: Version of this library.
    """

    clock_ns: int
    pid: int
    node: str
    node_id: str
    owner: bytes
    near: bool
    python: str
    library: str


class Probe(NamedTuple):
    """An in-memory file of the training process. Its number alone is no identity: it may be another file's by now."""

    path: str
    inode: int
    token: bytes

    @classmethod
    def of(cls, descriptor: int, token: bytes = b"") -> Probe:
        """The file of a descriptor of this process."""
        return cls(f"/proc/{os.getpid()}/fd/{descriptor}", os.fstat(descriptor).st_ino, token)


class Answer(NamedTuple):
    """The result of a chunk.

    Attributes:
        parts: For `SampleUnpickler`, uint8 arrays; or their sizes, if they were written to the file.
        began_ns: Start, on the actor's `time.perf_counter_ns`.
        ended_ns: End.
    """

    parts: Sequence[Any]
    began_ns: int
    ended_ns: int


def versions() -> tuple[str, str]:
    """Versions of Python and of this library in this process."""
    return ".".join(platform.python_version_tuple()[:2]), __version__


class StageActor:
    """Runs the stages of streams, found by the digest of their pickled spec."""

    def __init__(self, number: int, path: Sequence[str], owner: bytes = b"") -> None:
        set_worker_number(number)
        sys.path[:] = [*path, *(entry for entry in sys.path if entry not in path)]
        self._owner = owner
        self._stages: OrderedDict[str, WorkerStage] = OrderedDict()

    def hello(self, probe: Probe) -> Host:
        """Report this actor's clock, machine and versions."""
        try:
            with open(probe.path, "rb") as file:
                near = os.pread(file.fileno(), len(probe.token), 0) == probe.token
        except OSError:
            near = False
        pid, node, node_id = os.getpid(), socket.gethostname(), ray.get_runtime_context().get_node_id()
        return Host(time.perf_counter_ns(), pid, node, node_id, self._owner, near, *versions())

    def beat(self) -> None:
        """Show that this actor lives. It runs beside chunks."""

    def open(self, digest: str, spec: bytes) -> str | None:
        """Open the files of a stream. Returns the reason if that fails."""
        if digest in self._stages:
            return None
        try:
            self._stages[digest] = WorkerStage(pickle.loads(spec))
        except BaseException as error:
            return f"{type(error).__name__}: {error}"
        while len(self._stages) > _MOST_STAGES:
            self._stages.popitem(last=False)
        return None

    def run(self, digest: str, spec: bytes, message: bytes) -> Answer:
        """Encode a chunk. Ray moves the arrays out of band: one copy into its object store, none out of it."""
        began_ns = time.perf_counter_ns()
        parts = [np.frombuffer(part, np.uint8) for part in self._answered(digest, spec, message)]
        return Answer(parts, began_ns, time.perf_counter_ns())

    def run_into(self, digest: str, spec: bytes, message: bytes, file: Probe) -> Answer | None:
        """Encode a chunk into a file of the training process; None: that process has closed the file."""
        began_ns = time.perf_counter_ns()
        parts = self._answered(digest, spec, message)
        try:
            descriptor = os.open(file.path, os.O_RDWR)
        except OSError:
            return None
        try:
            if os.fstat(descriptor).st_ino != file.inode:
                return None  # by now the number is another file's
            write_parts(descriptor, parts)
        finally:
            os.close(descriptor)
        return Answer([part.nbytes for part in parts], began_ns, time.perf_counter_ns())

    def _answered(self, digest: str, spec: bytes, message: bytes) -> list[memoryview]:
        failed = self.open(digest, spec)
        if failed is not None:
            return packed(portable_error(WorkerError(cannot_open(socket.gethostname(), failed))), [])
        self._stages.move_to_end(digest)
        return self._stages[digest].answer(pickle.loads(message))


def cannot_open(node: str, reason: str) -> str:
    """The message of a node that cannot open the data."""
    return (
        f"the Ray worker on node {node} cannot open the dataset: {reason}. The paths and modules of the dataset must "
        f"exist on every node with workers: use shared storage or an object store, and Ray's `runtime_env` for modules"
    )
