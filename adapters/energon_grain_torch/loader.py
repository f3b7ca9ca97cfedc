# SPDX-License-Identifier: Apache-2.0
"""From a dataset to a loader: batches of one rank, with state, in page-locked memory if there is an accelerator.

Worker processes are started like those of a `torch.utils.data.DataLoader`, with any of Python's start methods, and
driven by `energon_grain.processes`. Their work is pure: they have no position, no shuffle buffer and no random stream.
The number of workers and their start method therefore change nothing, and a restart costs nothing.
"""

from __future__ import annotations

import dataclasses
import json
import multiprocessing
import random
import socket
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import wait
from typing import Any, ClassVar, Unpack, cast

import numpy as np
import torch
import torch.distributed as dist
from torch.utils.data import _utils

from energon_grain.compat.arguments import EnergonArguments, watched
from energon_grain.datasets.dataset import SavableDataset
from energon_grain.errors import ConfigError, StateError, public
from energon_grain.host_processes import with_agreement
from energon_grain.memory_budget.budget import use_memory
from energon_grain.memory_budget.settings import StreamMemory
from energon_grain.processes.pool import ProcessPool, StartedProcess, StartProcess
from energon_grain.processes.worker import Channel, pickled_spec, serve
from energon_grain.replicas.sequence_slice import SequenceSlice, with_slice
from energon_grain.replicas.stream import ReplicaStream
from energon_grain.samples.sample import pin_memory as pinned
from energon_grain.samples.subscripts import Item
from energon_grain.sources.cache_pool import CachePool
from energon_grain.sources.remote_runs import RemoteSource
from energon_grain.sources.source import Source
from energon_grain.stream.spec import StreamSpec
from energon_grain.stream.stage import PureStage
from energon_grain.stream.stream import OnChange, config_to_run
from energon_grain.stream.worker_config import WorkerConfig
from energon_grain.stream.workers import WorkerPool
from energon_grain.stream_loader import StreamLoader
from energon_grain.watch.stream import Stream


def process_pool(
    spec: StreamSpec, sources: list[Source], workers: int, budget_bytes: int, multiprocessing_context: Any
) -> ProcessPool:
    """Return the pool of worker processes.

    Args:
        spec: The compiled dataset.
        sources: The main process's sources.
        workers: Number of processes.
        budget_bytes: Maximum memory of results that are not yet delivered.
        multiprocessing_context: Start method: "fork", "forkserver", "spawn", a context, or None: Python's default,
            except that data in arrays or object stores are never forked.

    Raises:
        ConfigError: The start method is unknown, or it would fork a process that has opened such data.
    """
    context = _process_context(sources, multiprocessing_context)
    start = _starting(dataclasses.replace(spec, program=None), workers, context)
    forked = context.get_start_method() == "fork"
    return ProcessPool(sources, workers, budget_bytes, start, import_script=not forked, forked=forked)


def _process_context(sources: Sequence[Source], requested: Any) -> Any:
    """Return the context that starts workers: readers of object stores and arrays do not survive a fork."""
    context = requested
    if not hasattr(requested, "Process"):
        try:
            context = multiprocessing.get_context(requested)
        except (ValueError, TypeError) as error:
            raise ConfigError(f"multiprocessing_context={requested!r}: {error}") from error
    if context.get_start_method() != "fork":
        return context
    if not any(
        getattr(source, "lost_by_fork", False) or (isinstance(source, RemoteSource) and source.remote_files)
        for source in sources
    ):
        return context
    if requested is None:
        return multiprocessing.get_context("forkserver")
    raise ConfigError(
        "multiprocessing_context='fork': these data are arrays, or are in an object store, whose readers do not "
        "survive a fork: use 'forkserver' (the default for them) or 'spawn', or a loader with threads"
    )


_LEFT_SECONDS = 1.0
"""Time after which a process that has closed its files is gone."""


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
        # `is_alive` asks the system, which does not report the exit if other code also waits for child processes.
        if not wait([self._process.sentinel], patience_s):
            return False
        # If two threads ask the system, one gets the exit code, and may not have stored it when the other gets none.
        until = time.monotonic() + _LEFT_SECONDS
        while self._process.exitcode is None and time.monotonic() < until:
            time.sleep(0.001)
        self._process.join(0)  # otherwise Python keeps it, with two pipes, until it starts the next process
        return True


def _starting(spec: StreamSpec, workers: int, context: Any) -> StartProcess:
    """Forked workers inherit the compiled dataset; others receive it pickled, because scripts may define hooks."""
    inherited = spec if context.get_start_method() == "fork" else None

    def start(number: int, channel: Channel, end: socket.socket) -> StartedProcess:
        pickled = b""
        if inherited is None:
            pickled = pickled_spec(spec, otherwise="start workers by multiprocessing_context='fork'")
        process = context.Process(target=_serve, args=(end, number, workers, inherited), daemon=True)
        process.start()
        if inherited is None:
            with suppress(OSError):  # it has exited: callers that wait for a result get the error
                channel.send(pickled)
        return _Child(process)

    return start


def _serve(end: socket.socket, number: int, workers: int, spec: StreamSpec | None) -> None:
    """Run in a worker. Hooks see the same worker information as in a `DataLoader`."""
    torch.set_num_threads(1)
    random.seed(number)
    np.random.seed(number)  # noqa: NPY002 (otherwise all forked workers would have the state of the parent)
    torch.manual_seed(number)
    torch_worker = cast("Any", _utils.worker)
    torch_worker._worker_info = torch_worker.WorkerInfo(id=number, num_workers=workers, seed=number, dataset=None)
    serve(Channel(end), number, spec)


_KEY = "energon_grain"


class GroupProcesses:
    """The processes of a group. See `energon_grain.host_processes.HostProcesses`.

    Args:
        group: Their process group; None: all processes.
    """

    def __init__(self, group: Any) -> None:
        self._group = group

    @property
    def rank(self) -> int:
        """Rank of this process in the whole job."""
        return dist.get_rank()

    def all_gather(self, data: bytes) -> list[bytes]:
        """Return the data of each process of the group, in the order of their ranks."""
        gathered: list[Any] = [None] * dist.get_world_size(self._group)
        dist.all_gather_object(gathered, data, group=self._group)
        return gathered

    def any(self, flag: bool) -> bool:
        """Return whether the flag is set on any process of the group."""
        # Tensors must be on a device that the backend supports.
        device = "cuda" if dist.get_backend(self._group) == "nccl" else "cpu"
        flags = torch.tensor([int(flag)], device=device)
        dist.all_reduce(flags, op=dist.ReduceOp.MAX, group=self._group)
        return bool(flags.item())


def group_processes(group: Any) -> GroupProcesses | None:
    """Return the processes, if the program initialised `torch.distributed`."""
    return GroupProcesses(group) if dist.is_available() and dist.is_initialized() else None


@public
class SavableDataLoader(StreamLoader[Item]):
    """Batches of one rank, with state.

    A loop that ended with `break` continues at its position. After the end of a pass, the next `iter` starts the next
    pass (for validation: the same pass); until then, `next` raises StopIteration.

    The state is one small JSON object that any number of ranks can restore, with any number of workers and any batch
    size, in this backend or in the Grain loader. `state_dict` and `load_state_dict` follow the `Stateful` protocol of
    `torch.distributed.checkpoint` and torchdata.

    Args:
        stream: Stream to iterate over; closed together with the loader.
    """

    _framework: ClassVar[str] = "`torch.distributed` process group"

    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    def _processes(self) -> GroupProcesses | None:
        return group_processes(self._stream.config.data_parallel_group)

    @property
    def dataset(self) -> Any:
        """The compiled dataset."""
        return self._stream.spec

    @property
    def num_workers(self) -> int:
        """Workers of this rank; with "auto", the current number."""
        number = self._stream.config.num_workers
        return self._stream.workers if number == "auto" else number

    @property
    def batch_size(self) -> int | None:
        """Samples in a batch of one rank; None: single samples are delivered."""
        batch = self._stream.spec.batch
        return None if batch is None else batch.size

    def state_dict(self) -> dict[str, Any]:
        """Return the state of all ranks, under one key, the same on every rank.

        With several ranks this is a collective operation, like saving a distributed checkpoint: all ranks call it at
        the same step. (`save_state_rank` is not collective.)

        Raises:
            StateError: The states cannot be gathered, or the ranks are at different steps.
        """
        # One text, because checkpoints flatten nested dictionaries and look up the keys of the current state on
        # loading.
        return {_KEY: json.dumps(self._gathered())}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Move to the position of a `state_dict` that was saved on any number of ranks.

        Raises:
            StateError: It is not such a state, or cannot be continued.
        """
        try:
            state = json.loads(state_dict[_KEY])
        except (LookupError, TypeError, ValueError, RecursionError) as error:
            raise StateError(
                f"not a state of this loader ({type(error).__name__}: {error}): expected {{{_KEY!r}: …}}, from "
                f"`state_dict()`"
            ) from error
        self.restore_state_global(state)


class PinMemory:
    """Copies the tensors of batches into page-locked memory.

    It runs where batches are made. With workers that is another thread, so the copy does not block the training loop.

    Args:
        device: Index of the CUDA device that the program uses.
    """

    def __init__(self, device: int) -> None:
        self._device = device

    def __call__(self, batch: Any) -> Any:
        """Return the batch with page-locked tensors."""
        torch.cuda.set_device(self._device)  # each thread has its own
        return pinned(batch)


def pinning(wanted: bool | None) -> PinMemory | None:
    """Return the function that pins batches; None: no pinning, or no CUDA device.

    Args:
        wanted: None: if there is a CUDA device.
    """
    if wanted is False or not torch.cuda.is_available():
        return None
    return PinMemory(torch.cuda.current_device())


@public
def get_savable_loader(
    dataset: SavableDataset[Item],
    *,
    worker_config: WorkerConfig | None = None,
    prefetch_factor: int = 2,
    cache_pool: CachePool | None = None,
    pin_memory: bool | None = None,
    multiprocessing_context: Any = None,
    on_change: OnChange = "refuse",
    sequence_slice: SequenceSlice | None = None,
    memory: StreamMemory | str | int | None = None,
    **energon: Unpack[EnergonArguments],
) -> SavableDataLoader[Item]:
    """Return a loader for a dataset, with workers, prefetching and state.

    Example:
        Train, and resume from a state on any number of ranks:

            with get_savable_loader(dataset) as loader:
                if checkpoint is not None:
                    loader.load_state_dict(checkpoint["data"])
                for step, batch in enumerate(loader):
                    train_step(batch)
                    if step % 1000 == 0:
                        torch.save({"model": model.state_dict(), "data": loader.state_dict()}, "checkpoint.pt")

    Args:
        dataset: Result of `get_train_dataset` or `get_val_dataset`.
        worker_config: Replaces the configuration of the dataset.
        prefetch_factor: Batches that each worker prepares ahead.
        cache_pool: Cache for hooks and for cookers with `need_cache`; not closed with the loader. Default: a
            `NoCachePool`.
        pin_memory: Whether batches are in page-locked memory. Default: if there is a CUDA device.
        multiprocessing_context: Start method of worker processes: "fork", "forkserver", "spawn" or a `multiprocessing`
            context. Default: Python's, with "forkserver" in place of "fork" for data in arrays or object stores. The
            order does not depend on it.
        on_change: Default of `on_change` where a state is restored, see `restore_state_rank`. It also applies to
            `load_state_dict` and `torch.distributed.checkpoint`.
        sequence_slice: The part of each sequence that this rank of context parallelism gets. Default: all of it.
        memory: Memory budget of this process and its workers, for all of their loaders, as "4GiB"; see `use_memory`.
        **energon: See `EnergonArguments`.

    Raises:
        ConfigError: The configuration of the dataset is invalid.
        EmptyDatasetError: There is no sample, or no complete batch.
    """
    if memory is not None:
        use_memory(memory)
    config = config_to_run(dataset, worker_config)
    dataset = watched(dataset, energon)
    config = with_agreement(config, group_processes(config.data_parallel_group))

    def processes(spec: StreamSpec, stage: PureStage) -> WorkerPool:
        return process_pool(spec, stage.sources, config.most_workers, config.prefetch_bytes, multiprocessing_context)

    stream = ReplicaStream.joined(
        dataset,
        group_processes(None),
        with_slice(sequence_slice, config, pinning(pin_memory)),
        worker_config=config,
        prefetch_factor=prefetch_factor,
        cache_pool=cache_pool,
        make_pool=processes if str(config.worker_type) == "dataloader" and config.workers is None else None,
    )
    stream.on_change = on_change
    return SavableDataLoader(stream)


@public
def get_loader(dataset: SavableDataset[Item], **options: Any) -> SavableDataLoader[Item]:
    """The same as `get_savable_loader`: every loader has state, at no cost."""
    return get_savable_loader(dataset, **options)
