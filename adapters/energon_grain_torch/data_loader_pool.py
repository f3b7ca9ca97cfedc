"""Chunks encoded by the worker processes of a `torch.utils.data.DataLoader`.

The `DataLoader` sees a map-style dataset whose index is a chunk of draws and whose item is the encoded chunk. What a
worker does is thereby pure: it has no position, no shuffle buffer and no random stream, so the number of workers and
the way they are started change nothing, and a restart costs nothing.
"""

from __future__ import annotations

import dataclasses
import multiprocessing
import os
import pickle
import shutil
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from multiprocessing import util
from multiprocessing.connection import wait
from typing import Any, cast

import torch
from torch.utils.data import DataLoader, Dataset, get_worker_info

from energon_grain.errors import ConfigError
from energon_grain.sources.joined import holds_arrays
from energon_grain.sources.remote_runs import RemoteSource
from energon_grain.sources.source import Source
from energon_grain.storage.given_up import GivenUp
from energon_grain.stream.chunks import Chunk, ChunkPace, Encoded
from energon_grain.stream.spec import StreamSpec
from energon_grain.stream.worker_config import this_is_worker
from energon_grain.stream.worker_process import WorkerStage, pickled_spec
from energon_grain.stream.workers import worker_death
from energon_grain_torch.forked_children import belongs_to_this_process
from energon_grain_torch.shared_result import SharedResult

_CHUNKS_PER_WORKER = 2
_PATIENCE_SECONDS = 1.0
_LOOK_SECONDS = 0.2
_KILL_SECONDS = 0.5
_END_SECONDS = 0.1
_BROKEN_OFF = (RuntimeError, ConnectionError, EOFError)
"""What waiting for a result ends with where a worker died, or nothing came in time."""


class ChunkDataset(Dataset[Any]):
    """Encoded chunks by the chunks themselves; used in worker processes alone.

    A forked worker inherits the compiled dataset, hooks and all; others get it by cloudpickle, so that hooks may be
    defined in the script.

    Args:
        spec: The compiled dataset, without the part that runs in the main process.

    Attributes:
        folder: For the sockets by which the main process fetches results.
    """

    def __init__(self, spec: StreamSpec, folder: str = "") -> None:
        self._spec = spec
        self._stage: WorkerStage | None = None
        self.folder = folder

    def __getitem__(self, chunk: Chunk | None) -> SharedResult | None:
        if chunk is None:
            return None
        if self._stage is None:
            info = get_worker_info()
            this_is_worker(-1 if info is None else info.id)
            _put_sockets_into(self.folder)
            self._stage = WorkerStage(self._spec)
        began = time.perf_counter()
        parts = self._stage.answer(chunk)
        return SharedResult.write(parts, seconds=time.perf_counter() - began)

    def __getstate__(self) -> tuple[bytes, str]:
        return pickled_spec(self._spec, otherwise="start workers by multiprocessing_context='fork'"), self.folder

    def __setstate__(self, state: tuple[bytes, str]) -> None:
        self.__init__(cast("StreamSpec", pickle.loads(state[0])), state[1])


def _put_sockets_into(folder: str) -> None:
    """Give this process a folder for sockets which somebody else removes if it is killed; of its own, it would stay."""
    cast("Any", multiprocessing.current_process())._config["tempdir"] = folder
    util.Finalize(None, _remove_for_parent, args=(folder,), exitpriority=-100)


def _remove_for_parent(folder: str) -> None:
    """Remove the folder where the parent was killed, once the last worker has left it."""
    parent = multiprocessing.parent_process()
    if parent is None or not parent.is_alive():
        with suppress(OSError):
            os.rmdir(folder)


class _ChunkSampler:
    """The chunks to encode, as a sampler: endless, with None where there is none at present."""

    def __init__(self) -> None:
        self.chunks: Iterator[Chunk] = iter(())
        self.sent: deque[Chunk | None] = deque()

    def __iter__(self) -> Iterator[Chunk | None]:
        while True:
            chunk = next(self.chunks, None)
            self.sent.append(chunk)
            yield chunk


def _way_to_start(sources: Sequence[Source], context: Any) -> Any:
    """How to start workers: what reads object stores and arrays does not outlive a fork."""
    if not any(
        holds_arrays(source) or (isinstance(source, RemoteSource) and source.remote_files) for source in sources
    ):
        return context
    if _is_fork(multiprocessing if context is None else context):
        if context is None:
            return "forkserver"
        raise ConfigError(
            "multiprocessing_context='fork': these data are arrays, or lie in an object store, and what reads those "
            "does not outlive a fork; use 'forkserver' (the default for them) or 'spawn', or a loader with threads"
        )
    return context


def _is_fork(context: Any) -> bool:
    return (context if isinstance(context, str) else context.get_start_method()) == "fork"


class DataLoaderPool:
    """The worker processes of one `DataLoader`, which live as long as this. See `stream.workers.WorkerPool`.

    Args:
        spec: The compiled dataset.
        sources: The main process's sources.
        workers: How many processes.
        multiprocessing_context: How they are started: "fork", "forkserver", "spawn", a context, or None: as Python
            does by default; not by a fork where there are arrays among the data, or data in an object store.

    Raises:
        ConfigError: There is no such way to start processes, or it is a fork of a process that has opened such data.
    """

    def __init__(self, spec: StreamSpec, sources: list[Source], workers: int, multiprocessing_context: Any) -> None:
        self.workers = workers
        self._sources = sources
        self._dataset = ChunkDataset(dataclasses.replace(spec, program=None))
        self._context = _way_to_start(sources, multiprocessing_context)
        self._sampler = _ChunkSampler()
        self._loader: DataLoader[Any] | None = self._new_loader()
        self._results: Any = None

    def _new_loader(self) -> DataLoader[Any]:
        try:
            return DataLoader(
                self._dataset,
                batch_size=None,
                sampler=cast("Any", self._sampler),
                num_workers=self.workers,
                collate_fn=_as_it_is,
                prefetch_factor=_CHUNKS_PER_WORKER,
                persistent_workers=True,
                timeout=_PATIENCE_SECONDS,
                multiprocessing_context=self._context,
                generator=torch.Generator(),  # else each start would draw from the program's own
            )
        except (ValueError, TypeError) as error:
            raise ConfigError(f"multiprocessing_context={self._context!r}: {error}") from error

    def start(self, chunks: Iterator[Chunk], pace: ChunkPace) -> DataLoaderWorkers:
        """Let them encode these chunks. The first call starts the processes, in the calling thread."""
        self._sampler.chunks = chunks
        self._sampler.sent.clear()
        try:
            self._begin()
        except _BROKEN_OFF as error:
            if not (_timed_out(error) or self._dead()):
                raise
            # One died, or is still busy with what nobody waits for; no chunk was asked for yet.
            self.close()
            self._begin()
        return DataLoaderWorkers(self, pace)

    def _begin(self) -> None:
        if self._loader is None:
            self._loader = self._new_loader()
        if not self._dataset.folder:
            self._dataset.folder = tempfile.mkdtemp(prefix="pymp-")
        if self._results is not None:
            self._results._timeout = _PATIENCE_SECONDS
        self._results = iter(self._loader)
        self._results._timeout = _LOOK_SECONDS
        belongs_to_this_process(self._results)
        if self._results._worker_pids_set:
            # PyTorch would tell a death from a signal handler, wherever in the program the main thread is then.
            torch._C._remove_worker_pids(id(self._results))
            self._results._worker_pids_set = False

    def take(self, pace: ChunkPace, unless: threading.Event) -> Encoded | None:
        """The next result; None: the chunk was none.

        Args:
            pace: Is told how long it took.
            unless: When it is set, nobody needs the result.

        Raises:
            GivenUp: `unless` was set.
            WorkerError: A worker died.
        """
        result = self._next_result(unless)
        chunk = self._sampler.sent.popleft()
        if chunk is None or result is None:
            return None
        encoded = result.read(self._sources)
        if isinstance(encoded, BaseException):
            raise encoded
        pace.learn(chunk, encoded, result.seconds)
        return encoded

    def _import_script(self) -> bool:
        return not _is_fork(multiprocessing if self._context is None else self._context)

    def _next_result(self, unless: threading.Event) -> SharedResult | None:
        while not unless.is_set():
            try:
                return cast("SharedResult | None", next(self._results))
            except _BROKEN_OFF as error:
                dead = self._dead()
                if dead:
                    self.close()
                    raise worker_death(dead, import_script=self._import_script()) from error
                if not _timed_out(error):
                    raise
        raise GivenUp

    def _dead(self) -> list[tuple[int, int, int | None]]:
        """Number, process and exit code of each worker that died."""
        workers = [] if self._results is None else self._results._workers
        # Whether they are alive, PyTorch asks the system, which does not tell when others wait for our children too.
        ended = wait([worker.sentinel for worker in workers], _END_SECONDS)
        found: list[tuple[int, int, int | None]] = []
        for number, worker in enumerate(workers):
            if worker.sentinel in ended:
                worker.join(_END_SECONDS)
                found.append((number, worker.pid, worker.exitcode))
        return found

    @property
    def waiting(self) -> int:
        """Chunks that were sent and have not come back."""
        return len(self._sampler.sent)

    def forget(self) -> None:
        """Let go of who plans the chunks: the pool outlives that, and maybe all that was made of it."""
        self._sampler.chunks = iter(())

    def close(self) -> None:
        """End the processes; those that do not soon come out of a hook are killed."""
        results, self._results, self._loader = self._results, None, None
        if results is not None:
            self._end(results)
        folder, self._dataset.folder = self._dataset.folder, ""
        if folder:
            shutil.rmtree(folder, ignore_errors=True)

    def _end(self, results: Any) -> None:
        # As PyTorch does, which however waits for five seconds, for one after the other.
        results._workers_done_event.set()
        for queue in results._index_queues:
            queue.put(None)
        deadline = time.monotonic() + _KILL_SECONDS
        for worker in results._workers:
            worker.join(max(0.0, deadline - time.monotonic()))
            if worker.is_alive():
                worker.kill()
        results._shutdown_workers()


def _timed_out(error: Exception) -> bool:
    return str(error).startswith("DataLoader timed out")


class DataLoaderWorkers:
    """Encoded chunks from a `DataLoader`. See `stream.workers.ChunkWorkers`."""

    def __init__(self, pool: DataLoaderPool, pace: ChunkPace) -> None:
        self._pool = pool
        self._pace = pace
        self._closed = threading.Event()
        self._taking = threading.Lock()

    def __iter__(self) -> Iterator[Encoded]:
        return self

    def __next__(self) -> Encoded:
        with self._taking:
            # After as many empty results as were under way, whoever plans was asked again and had nothing.
            for _ in range(self._pool.waiting + 1):
                encoded = self._pool.take(self._pace, unless=self._closed)
                if encoded is not None:
                    return encoded
            raise StopIteration

    def stop(self) -> None:
        """Let whoever waits for a result notice, soon, that nobody needs it."""
        self._closed.set()

    def close(self) -> None:
        """Wait until nobody takes results, and let go of the chunks: with them comes all that was made of them."""
        self._closed.set()
        with self._taking:
            self._pool.forget()


def _as_it_is(result: Any) -> Any:
    return result
