# SPDX-License-Identifier: Apache-2.0
"""From a dataset to a loader: batches with state, and a `grain.DatasetIterator` if Grain is installed."""

from __future__ import annotations

import asyncio
import importlib
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar, Unpack

import numpy as np

from energon_grain.compat.arguments import EnergonArguments, watched
from energon_grain.datasets.dataset import SavableDataset
from energon_grain.errors import ConfigError, EnergonGrainError, public, shorten
from energon_grain.host_processes import gather_cursor, with_agreement
from energon_grain.loader.checkpoint_file import read_state, write_process_state, write_state
from energon_grain.memory_budget.budget import use_memory
from energon_grain.memory_budget.settings import StreamMemory
from energon_grain.replicas.sequence_slice import SequenceSlice, with_slice
from energon_grain.replicas.stream import ReplicaStream
from energon_grain.samples.subscripts import Item
from energon_grain.sources.cache_pool import CachePool
from energon_grain.stream.cursor import Cursor
from energon_grain.stream.memory import approximate_bytes
from energon_grain.stream.stream import OnChange, config_to_run
from energon_grain.stream.worker_config import WorkerConfig
from energon_grain.stream_loader import StreamLoader
from energon_grain.watch.stream import Stream

F = TypeVar("F", bound=Callable[..., Any])

# Reads are reported in the same way as Grain's own: to its counters of bytes and latencies, and by name in XProf's
# traces. Both use private interfaces of Grain. Without Grain, or in a release that moved them, nothing is reported.


class _Decorator(Protocol):
    def __call__(self, method: F, /) -> F: ...


def _nothing(*_: Any, **__: Any) -> None:
    return None


def _unchanged(method: F) -> F:
    return method


record_read: Callable[..., None] = _nothing
"""`record_read(source, num_bytes=, latency_ns=, num_reads=)`."""
traced_item: _Decorator = _unchanged
"""Decorates a `__getitem__` that reads."""
traced_next: _Decorator = _unchanged
"""Decorates a `__next__` that reads."""
with suppress(ImportError, AttributeError, TypeError):
    _stats: Any = importlib.import_module("grain._src.python.dataset.stats")
    _monitoring: Any = importlib.import_module("grain._src.core.monitoring")
    record_read = _monitoring.record_bytes_read_and_latency
    traced_item = _stats.trace_input_pipeline(stage_category=_stats.IPL_CAT_READ)
    traced_next = _stats.trace_input_pipeline_next(stage_category=_stats.IPL_CAT_READ)


class JaxProcesses:
    """All processes of an initialised `jax.distributed`. See `host_processes.HostProcesses`."""

    @property
    def count(self) -> int:
        """Number of processes."""
        return int(sys.modules["jax"].process_count())

    @property
    def rank(self) -> int:
        """This process's index."""
        return int(sys.modules["jax"].process_index())

    def all_gather(self, data: bytes) -> list[bytes]:
        """Return the data of each process, in the order of processes."""
        from jax.experimental import multihost_utils

        lengths = np.asarray(multihost_utils.process_allgather(np.array([len(data)], np.int32))).reshape(-1)
        padded = np.zeros(int(lengths.max()), np.uint8)
        padded[: len(data)] = np.frombuffer(data, np.uint8)
        rows = np.asarray(multihost_utils.process_allgather(padded)).reshape(len(lengths), -1)
        return [rows[number, :length].tobytes() for number, length in enumerate(lengths.tolist())]

    def any(self, flag: bool) -> bool:
        """Return whether the flag is set on any process."""
        from jax.experimental import multihost_utils

        return bool(np.asarray(multihost_utils.process_allgather(np.array([flag]))).any())


def jax_processes() -> JaxProcesses | None:
    """Return the processes if the program initialised `jax.distributed`; does not import jax."""
    jax = sys.modules.get("jax")
    return None if jax is None or not jax.distributed.is_initialized() else JaxProcesses()


def gather_over_jax(cursor: Cursor) -> Cursor:
    """Return one cursor for all hosts, from each host's own. See `gather_cursor`."""
    return gather_cursor(cursor, jax_processes(), "`jax.distributed`")


def is_primary() -> bool:
    """Return whether this process writes shared files: process 0 of `jax.distributed`, or the only one."""
    processes = jax_processes()
    return processes is None or processes.rank == 0


if TYPE_CHECKING:
    import grain

    DatasetIterator = grain.DatasetIterator[Any]
else:
    try:
        from grain import DatasetIterator
    except ModuleNotFoundError as error:
        if error.name != "grain":
            raise

        class DatasetIterator:
            """The part of Grain's class that the loader uses, if Grain is not installed."""

            _closed = False

            def close(self) -> None:
                self._closed = True


@public
class SavableDataLoader(StreamLoader[Item], DatasetIterator):
    """Batches of one host, with state; a `grain.DatasetIterator` if Grain is installed.

    A loop that ended with `break` continues at its position. After the end of a pass, the next `iter` starts the next
    pass (for validation: the same pass); until then, `next` raises StopIteration.

    The state is one small JSON object that any number of hosts can restore, with any batch size. It works with
    `grain.checkpoint.CheckpointSave` (the same number of processes), `EnergonCheckpointSave` (any number), and
    `orbax.checkpoint.v1` as a checkpointable (any number).

    Args:
        stream: Stream to iterate over; closed together with the loader.
    """

    _framework: ClassVar[str] = "`jax.distributed`"
    _sys: ClassVar[Any] = sys

    def __init__(self, stream: Stream) -> None:
        super().__init__()
        self._stream = stream

    def _processes(self) -> JaxProcesses | None:
        return jax_processes()

    def _next(self) -> Item:
        return next(self._stream)

    _next.__name__ = "__next__"  # the name in traces
    _next = traced_next(_next)

    def __next__(self) -> Item:
        try:
            return self._next()
        except EnergonGrainError as error:
            shorten(error)
            raise

    def get_state(self) -> Cursor:
        """Return the state after the last delivered batch; cheap enough to call after each batch.

        With `on_change="amend"` it contains the settings that a later change is compared with.
        """
        return self._stream.cursor(with_manifest=self._stream.on_change == "amend")

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Move to a saved position. Raises the errors of `Stream.restore`."""
        self._stream.restore(state)

    def _get_next_index(self) -> int:
        """Return the next step, counted over all passes, for `grain.experimental.get_next_index`."""
        return self._stream.cursor()["step"]

    def _set_next_index(self, index: int) -> None:
        """Set the next step, for `grain.experimental.set_next_index`. See `Stream.seek`: exact without drops."""
        self._stream.seek(index)

    async def save(self, directory: Any) -> Awaitable[None]:
        """Write the state into a checkpoint (`orbax.checkpoint.v1`): one file that any number of hosts can restore.

        Each process also writes its own state to the file that Grain's iterators write, because MaxText counts those
        files before it restores. The states of all hosts are gathered now; the returned coroutine writes the files.
        """
        own, processes = self.save_state_rank(), jax_processes()
        merged = gather_over_jax(own)
        rank, count = (0, 1) if processes is None else (processes.rank, processes.count)

        async def write() -> None:
            folder = await directory.await_creation()
            if rank == 0:
                await asyncio.to_thread(write_state, folder, merged)
            await asyncio.to_thread(write_process_state, folder, own, rank, count)

        return write()

    async def load(self, directory: Any) -> Awaitable[None]:
        """Read the state from a checkpoint of any number of hosts, and start prefetching.

        The returned coroutine does nothing: Orbax would report any error in it as an "incompatible handler", while an
        error raised here is reported unchanged.
        """
        self.restore_state_rank(read_state(directory))
        self.start_prefetch()

        async def done() -> None:
            return None

        return done()

    def close(self) -> None:
        """Stop threads and processes, and release files. Further `next` calls raise ValueError."""
        if self._sys.is_finalizing():  # Grain's iterators close their parents when deleted, after all modules
            return
        self._release()
        DatasetIterator.close(self)

    def _release(self) -> None:
        self._stream.close()

    def __del__(self) -> None:
        """Do nothing. The base class calls `close`, which waits; the stream ends when its last reference is gone."""


class PipelineLoader(SavableDataLoader[Item]):
    """A loader below Grain's transformations, which reports its reads as Grain's sources do."""

    def __init__(self, stream: Stream, name: str) -> None:
        super().__init__(stream)
        self._name = name

    def __str__(self) -> str:
        return self._name

    def __next__(self) -> Item:
        began = time.perf_counter_ns()
        try:
            batch = super().__next__()
        except EnergonGrainError as error:
            shorten(error)
            raise
        latency = time.perf_counter_ns() - began
        record_read(self._name, num_bytes=approximate_bytes(batch), latency_ns=latency, num_reads=1)
        return batch


def check_loader(name: str, value: Any) -> None:
    """Check that a value is a loader of this backend. Raises ConfigError otherwise."""
    if isinstance(value, SavableDataLoader):
        return
    kind = type(value).__name__
    if isinstance(value, StreamLoader):
        kind = f"{type(value).__module__.partition('.')[0]}.{kind}"
    way_out = "; pass get_savable_loader(dataset)" if isinstance(value, SavableDataset) else ""
    raise ConfigError(f"{name}: expected a loader from energon_grain.get_savable_loader, got a {kind}{way_out}")


@public
def get_savable_loader(
    dataset: SavableDataset[Item],
    *,
    worker_config: WorkerConfig | None = None,
    prefetch_factor: int = 2,
    cache_pool: CachePool | None = None,
    on_change: OnChange = "refuse",
    sequence_slice: SequenceSlice | None = None,
    memory: StreamMemory | str | int | None = None,
    **energon: Unpack[EnergonArguments],
) -> SavableDataLoader[Item]:
    """Return a loader for a dataset, with threads, prefetching and state.

    The loader is an iterator of batches. If Grain is installed, it is also a `grain.DatasetIterator`. Its state is one
    small JSON object, which a loader on any number of hosts can restore.

    Example:
        Train, save the position with each checkpoint, and continue from it:

            with get_savable_loader(dataset) as loader:
                if checkpoint is not None:
                    loader.restore_state_rank(checkpoint["data"])
                for step, batch in enumerate(loader):
                    train_step(batch)
                    if step % 1000 == 0:
                        save({"data": loader.save_state_rank(), ...})

    Args:
        dataset: Result of `get_train_dataset` or `get_val_dataset`.
        worker_config: Replaces the configuration of the dataset.
        prefetch_factor: Batches that each worker prepares ahead.
        cache_pool: Cache for hooks and for cookers with `need_cache`; not closed with the loader. Default: a
            `NoCachePool`.
        on_change: If a state that is restored belongs to another configuration; see `Stream.restore`. It also holds
            where a framework restores: `set_state`, Orbax.
        sequence_slice: The part of each sequence that this process gets. Default: all of it.
        memory: Memory budget of this process and its workers, for all of their loaders, as "4GiB"; see `use_memory`.
        **energon: See `EnergonArguments`.

    Returns:
        A loader. Close it, or use it as a context manager, to stop its threads and processes.

    Raises:
        ConfigError: The configuration of the dataset is invalid.
        EmptyDatasetError: There is no sample, or no complete batch.
    """
    if memory is not None:
        use_memory(memory)
    processes = jax_processes()
    config = with_agreement(config_to_run(dataset, worker_config), processes)
    stream = ReplicaStream.joined(
        watched(dataset, energon),
        processes,
        with_slice(sequence_slice, config),
        worker_config=config,
        prefetch_factor=prefetch_factor,
        cache_pool=cache_pool,
    )
    stream.on_change = on_change
    return SavableDataLoader(stream)


@public
def get_loader(dataset: SavableDataset[Item], **options: Any) -> SavableDataLoader[Item]:
    """The same as `get_savable_loader`: every loader has state, at no cost."""
    return get_savable_loader(dataset, **options)
