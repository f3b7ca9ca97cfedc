# SPDX-License-Identifier: Apache-2.0
"""From a dataset to a loader: batches of one rank, with state, in page-locked memory where there is an accelerator.

Worker processes are those of a `torch.utils.data.DataLoader`, started in any of Python's ways, and driven as all are
(`energon_grain.processes`). What one does is pure: it has no position, no shuffle buffer and no random stream,
so the number of workers and the way they are started change nothing, and a restart costs nothing.
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
from energon_grain.processes.pool import ProcessPool, StartedProcess, StartProcess
from energon_grain.processes.worker import Channel, pickled_spec, serve
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
    return ProcessPool(sources, workers, budget_bytes, start, import_script=script)


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
        getattr(source, "lost_by_fork", False) or (isinstance(source, RemoteSource) and source.remote_files)
        for source in sources
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
        """Number of this process among all of the job."""
        return dist.get_rank()

    def all_gather(self, data: bytes) -> list[bytes]:
        """What each process of the group brings, in the order of their ranks."""
        gathered: list[Any] = [None] * dist.get_world_size(self._group)
        dist.all_gather_object(gathered, data, group=self._group)
        return gathered

    def any(self, flag: bool) -> bool:
        """Whether the flag is set on any process of the group."""
        # Tensors must live where the backend can reach them.
        device = "cuda" if dist.get_backend(self._group) == "nccl" else "cpu"
        flags = torch.tensor([int(flag)], device=device)
        dist.all_reduce(flags, op=dist.ReduceOp.MAX, group=self._group)
        return bool(flags.item())


def group_processes(group: Any) -> GroupProcesses | None:
    """The processes, where the program initialised `torch.distributed`."""
    return GroupProcesses(group) if dist.is_available() and dist.is_initialized() else None


@public
class SavableDataLoader(StreamLoader[Item]):
    """Batches of one rank, with state.

    A loop that was left by `break` continues where it stopped; after the end of a pass the next `iter` begins the next
    one (for validation: the same one). `next` in between raises StopIteration.

    The state is one small JSON object that any number of ranks restores, with any number of workers and any batch size,
    in this backend or in the Grain loader. `state_dict` and `load_state_dict` follow the `Stateful` protocol of
    `torch.distributed.checkpoint` and torchdata.

    Args:
        stream: What to iterate over; closed together with the loader.
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
        """Workers of this rank; of "auto", those of now."""
        number = self._stream.config.num_workers
        return self._stream.workers if number == "auto" else number

    @property
    def batch_size(self) -> int | None:
        """Samples in a batch of one rank; None: single samples are delivered."""
        batch = self._stream.spec.batch
        return None if batch is None else batch.size

    def state_dict(self) -> dict[str, Any]:
        """The state of all ranks, under one key, the same on every rank.

        With several ranks it is a collective operation, as saving a distributed checkpoint is: every rank calls it at
        the same step. (`save_state_rank` is not.)

        Raises:
            StateError: The ranks cannot be gathered, or are at different steps.
        """
        # One text: checkpoints flatten nested dictionaries, and on loading ask for the keys of the state at that time.
        return {_KEY: json.dumps(self._gathered())}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go to the place of a `state_dict`, saved on any number of ranks.

        Raises:
            StateError: It is not such a state, or cannot be continued here.
        """
        try:
            state = json.loads(state_dict[_KEY])
        except (LookupError, TypeError, ValueError, RecursionError) as error:
            raise StateError(
                f"not a state of this loader ({type(error).__name__}: {error}); `state_dict()` returns {{{_KEY!r}: …}}"
            ) from error
        self.restore_state_global(state)


class PinMemory:
    """Copies the tensors of batches into page-locked memory.

    It runs where batches are made: with workers that is another thread, so the copy does not hold up the training loop.

    Args:
        device: Index of the CUDA device that the program uses.
    """

    def __init__(self, device: int) -> None:
        self._device = device

    def __call__(self, batch: Any) -> Any:
        """The batch, its tensors page-locked."""
        torch.cuda.set_device(self._device)  # each thread has its own
        return pinned(batch)


def pinning(wanted: bool | None) -> PinMemory | None:
    """What pins batches; None: nothing does, or there is no CUDA device.

    Args:
        wanted: None: where there is a CUDA device.
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
    **energon: Unpack[EnergonArguments],
) -> SavableDataLoader[Item]:
    """A loader for a dataset, with workers, read-ahead and state.

    Args:
        dataset: What `get_train_dataset` or `get_val_dataset` returned.
        worker_config: In place of the dataset's own.
        prefetch_factor: Batches that are made ahead for each worker.
        cache_pool: Where hooks and `need_cache` cookers get values from; not closed with the loader. Default: a
            `NoCachePool`.
        pin_memory: Whether batches come in page-locked memory; default: where there is a CUDA device.
        multiprocessing_context: How worker processes are started: "fork", "forkserver", "spawn" or a
            `multiprocessing` context; default: as Python does, and "forkserver" instead of "fork" where there are
            arrays among the data or data in an object store. The order does not depend on it.
        on_change: If a state that is restored belongs to another configuration; see `Stream.restore`. It also holds
            where a framework restores: `load_state_dict`, `torch.distributed.checkpoint`.
        **energon: See `EnergonArguments`.

    Raises:
        ConfigError: The dataset's configuration is wrong.
        EmptyDatasetError: There is no sample, or no complete batch.
    """
    config = config_to_run(dataset, worker_config)
    dataset = watched(dataset, energon)
    config = with_agreement(config, group_processes(config.data_parallel_group))

    def processes(spec: StreamSpec, stage: PureStage) -> WorkerPool:
        return process_pool(spec, stage.sources, config.most_workers, config.prefetch_bytes, multiprocessing_context)

    stream = Stream.of(
        dataset,
        worker_config=config,
        prefetch_factor=prefetch_factor,
        cache_pool=cache_pool,
        make_pool=processes if str(config.worker_type) == "dataloader" else None,
        finish=pinning(pin_memory),
    )
    stream.on_change = on_change
    return SavableDataLoader(stream)


@public
def get_loader(dataset: SavableDataset[Item], **options: Any) -> SavableDataLoader[Item]:
    """The same as `get_savable_loader`: state costs nothing here, so every loader has it."""
    return get_savable_loader(dataset, **options)
