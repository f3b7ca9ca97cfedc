"""Worker processes for the pure stage.

A worker is a fresh interpreter that runs `energon_grain.stream.worker_process`; it does not import the user's script
again, so scripts need no `__main__` guard. It gets the compiled dataset once (by cloudpickle, so hooks may be defined
in the script) and then one chunk after the other. Results come back through a memory file that both sides map: nothing
is written to `/dev/shm`, so nothing stays behind when a process is killed.

One thread of the parent waits for each worker; assembly and state stay in the parent. Workers live as long as their
pool, through passes and restores.
"""

from __future__ import annotations

import dataclasses
import mmap
import os
import pickle
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from typing import Any, BinaryIO, cast

from energon_grain.errors import WorkerError
from energon_grain.sources.source import Source
from energon_grain.stream.chunk import Chunk, Encoded
from energon_grain.stream.chunk_pace import ChunkPace
from energon_grain.stream.result_transport import SampleUnpickler
from energon_grain.stream.spec import StreamSpec
from energon_grain.stream.spec_transport import pickled_spec
from energon_grain.stream.worker_answer import part_offsets
from energon_grain.stream.worker_death import worker_death
from energon_grain.stream.workers import OrderedWorkers

HEADER = struct.Struct("<Q")
_END_SECONDS = 5.0
_PATIENCE_SECONDS = 0.5
_LEAVE_SECONDS = 0.3


class ProcessPool:
    """Worker processes. See `stream.worker_pool.WorkerPool`.

    Args:
        spec: The compiled dataset.
        sources: The parent's sources.
        workers: How many.
        budget_bytes: Bound on the memory of what they made and nobody took yet.
    """

    def __init__(self, spec: StreamSpec, sources: list[Source], workers: int, budget_bytes: int) -> None:
        self.workers = workers
        self._spec = spec
        self._sources = sources
        self._budget_bytes = budget_bytes
        self._processes: dict[int, WorkerProcess] = {}

    def start(self, chunks: Iterator[Chunk], pace: ChunkPace) -> ProcessWorkers:
        """Let them encode chunks; those that died, or were ended in the middle of one, are replaced."""
        for number in range(self.workers):
            process = self._processes.get(number)
            if process is not None and not process.idle:
                self._processes.pop(number).close()
            if number not in self._processes:
                self._processes[number] = WorkerProcess(self._spec, self._sources, number)
        return ProcessWorkers(list(self._processes.values()), chunks, pace, self._budget_bytes)

    def close(self) -> None:
        """End the processes."""
        for process in self._processes.values():
            process.dismiss()
        deadline = time.monotonic() + _LEAVE_SECONDS
        for number in tuple(self._processes):
            self._processes[number].close(max(0.0, deadline - time.monotonic()))
            del self._processes[number]


class ProcessWorkers(OrderedWorkers):
    """Encoded chunks from worker processes, each of which a thread waits for."""

    def __init__(
        self, processes: list[WorkerProcess], chunks: Iterator[Chunk], pace: ChunkPace, budget_bytes: int
    ) -> None:
        self._processes = processes
        super().__init__([pace.timed(process.run) for process in processes], chunks, budget_bytes)

    def close(self) -> None:
        """Wait for the chunks in hand; processes that take long over theirs are killed."""
        self.stop()
        deadline = time.monotonic() + _PATIENCE_SECONDS
        for process in self._processes:
            process.interrupt(max(0.0, deadline - time.monotonic()))
        super().close()


def memory_file() -> int:
    """Descriptor of an anonymous file in memory (or of an unlinked one on disk, where the system has no memfd)."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("energon-grain", os.MFD_CLOEXEC)
    with tempfile.TemporaryFile(buffering=0) as file:
        return os.dup(file.fileno())


class WorkerProcess:
    """One worker process, driven by one thread at a time.

    Args:
        spec: The compiled dataset.
        sources: The parent's sources, which provenance of returned samples refers to.
        number: Of the worker, for messages.
    """

    def __init__(self, spec: StreamSpec, sources: list[Source], number: int) -> None:
        own = pickled_spec(dataclasses.replace(spec, program=None), otherwise="use worker_type='thread'")
        start = pickle.dumps({"number": number, "path": sys.path, "spec": own})
        self._sources = sources
        self._number = number
        self._arena = memory_file()
        self._lock = threading.Lock()
        self._busy = False
        self._process = subprocess.Popen(
            [sys.executable, "-c", "from energon_grain.stream.worker_process import main; main()", str(self._arena)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=(self._arena,),
            process_group=0,  # Ctrl-C is for the parent, also while the worker still starts
            env={**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)},
        )
        self._send(start)

    def run(self, chunk: Chunk) -> Encoded:
        """Encode a chunk in the worker.

        Raises:
            WorkerError: The worker died.
            Exception: What the stage raised there.
        """
        with self._lock:
            self._busy = True
            self._send(pickle.dumps(chunk, protocol=5))
            sizes = cast("list[int]", pickle.loads(self._receive()))  # the worker is ours; its pipe is private
            offsets, total = part_offsets(sizes)
            with mmap.mmap(self._arena, total) as arena:
                # Copied out before the worker overwrites it; bytearrays make writable arrays.
                parts = [bytearray(arena[begin : begin + size]) for begin, size in zip(offsets, sizes, strict=True)]
            self._busy = False
        result: Any = SampleUnpickler(parts[0], parts[1:], self._sources).load()
        if isinstance(result, BaseException):
            raise result
        return cast("Encoded", result)

    def _send(self, payload: bytes) -> None:
        try:
            stdin = cast("BinaryIO", self._process.stdin)
            stdin.write(HEADER.pack(len(payload)))
            stdin.write(payload)
            stdin.flush()
        except (BrokenPipeError, ValueError) as error:
            raise self._death() from error

    def _receive(self) -> bytes:
        stdout = cast("BinaryIO", self._process.stdout)
        header = stdout.read(HEADER.size)
        if len(header) < HEADER.size:
            raise self._death()
        payload = stdout.read(HEADER.unpack(header)[0])
        if len(payload) < HEADER.unpack(header)[0]:
            raise self._death()
        return payload

    def _death(self) -> WorkerError:
        try:
            code = self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            code = None
        return worker_death([(self._number, self._process.pid, code)])

    @property
    def idle(self) -> bool:
        """Whether it can take a chunk: it lives, and has answered the last one."""
        return not self._busy and self._process.poll() is None

    def interrupt(self, patience_s: float) -> None:
        """End the process if it works on a chunk and goes on to; whoever waits for that chunk gets a WorkerError."""
        if self._lock.acquire(timeout=patience_s):
            self._lock.release()
        else:
            self._process.kill()

    def dismiss(self) -> None:
        """Let the process end."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except BrokenPipeError:
                    continue

    def close(self, patience_s: float = _LEAVE_SECONDS) -> None:
        """End the process."""
        self.dismiss()
        try:
            self._process.wait(patience_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._arena)
