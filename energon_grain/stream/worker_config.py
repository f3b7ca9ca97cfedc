# SPDX-License-Identifier: Apache-2.0
"""Who reads: this host among all hosts, with how many workers, and where they note what they do for those who debug."""

from __future__ import annotations

import json
import logging
import operator
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Self, cast

from energon_grain.errors import ConfigError, DecodingError, public
from energon_grain.storage.cores import usable_cores

IN_A_WORKER = "In a worker process:\n"
"""Begins the note with the traceback of an error that comes from another process."""

_logger = logging.getLogger("energon_grain")


def log_exception(error: Exception, sample: Any, sources: Any = None) -> None:
    """Log what failed and where, and go on without the sample. The default.

    As the handler of a loader it is called for the first failure of a kind alone; of the others only their number is
    logged, when it reaches 10, 100, 1,000 and so on. Bytes that do not decode are told without a traceback.
    """
    places = "; ".join(str(source) for source in sources or ())
    _logger.warning(
        "%s was dropped: %s: %s%s%s",
        named(sample),
        type(error).__name__,
        error,
        f" (from {places})" if places else "",
        "" if isinstance(error, DecodingError) else f"\n{traceback_text(error).rstrip()}",
    )


def traceback_text(error: BaseException) -> str:
    """The traceback of an error; the one in the process that it comes from."""
    notes: list[str] = getattr(error, "__notes__", [])
    for note in notes:
        if note.startswith(IN_A_WORKER):
            return note.removeprefix(IN_A_WORKER)
    return "".join(traceback.format_exception(error))


def forget_traceback(error: BaseException) -> None:
    """Take from an error what `traceback_text` gives."""
    error.with_traceback(None)
    notes: list[str] = getattr(error, "__notes__", [])
    notes[:] = [note for note in notes if not note.startswith(IN_A_WORKER)]


def named(sample: Any) -> str:
    """What was dropped, by key where it has one: a sample, the samples of a batch or a pack, or those of a join."""
    if isinstance(sample, list):
        several: list[Any] = sample
        key = next(filter(None, map(_key, several)), None)
        which = "without keys" if key is None else f"starting with {key!r}"
        return f"a group of {len(several)} samples {which}" if several else "an empty group"
    if isinstance(sample, tuple):
        key, kind = next(filter(None, map(_key, cast("tuple[Any, ...]", sample))), None), "the joined sample"
    else:
        key, kind = _key(sample), "sample"
    return f"a value of type {type(sample).__name__}" if key is None else f"{kind} {key!r}"


def _key(sample: Any) -> Any:
    return sample.get("__key__") if isinstance(sample, dict) else getattr(sample, "__key__", None)


def reraise_exception(error: Exception, sample: Any, sources: Any = None) -> None:
    """End the iteration with the error."""
    del sample, sources
    raise error


ErrorHandler = Callable[..., None]


_worker_logger = logging.getLogger("energon_grain.worker")
_worker_number: int | None = None


def set_worker_number(number: int) -> None:
    """Say that this process is worker `number` (0, 1, …) of a host, for `{worker_id}` in the names of its files."""
    global _worker_number
    _worker_number = number


def worker_number() -> int | None:
    """Which worker process this is; None: it is none."""
    return _worker_number


@dataclass(frozen=True, slots=True)
class WorkerLog:
    """Where lines go. Picklable: in another process they go into that process's file.

    Lines are appended, each in one piece, so several processes and runs may share a file.

    Attributes:
        path: `{worker_id}` and `{pid}` in it are filled in; None: lines go to the logger `energon_grain.worker`.
        rank: This host.
        num_workers: Its workers.
    """

    path: str | None
    rank: int
    num_workers: int

    @property
    def worker_id(self) -> int:
        """Different in every process of all hosts: that of host r is r · (num_workers + 1), its workers' follow."""
        return self.rank * (self.num_workers + 1) + (0 if _worker_number is None else 1 + _worker_number)

    def write(self, entry: Mapping[str, Any]) -> None:
        """Write a line. Raises OSError if the file cannot be written."""
        line = json.dumps(entry)
        if self.path is None:
            _worker_logger.info("%s", line)
            return
        path = self.path.format(worker_id=self.worker_id, pid=os.getpid())
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        try:
            os.write(file, f"{line}\n".encode())
        finally:
            os.close(file)


@public
@dataclass(kw_only=False)
class WorkerConfig:
    """One data-parallel reader and its workers.

    The order of samples depends on none of these fields: `rank` and `world_size` choose a share of each global batch,
    `num_workers` and `worker_type` change the speed alone. Processes with equal `rank` and `world_size`
    (tensor-parallel replicas) get equal data. Two configurations are equal when rank, world_size and num_workers are.

    Attributes:
        rank: This host, in [0, world_size).
        world_size: Number of data-parallel hosts.
        num_workers: Threads (or processes) that read and encode ahead of the consumer; 0: everything happens inside
            `next`. More than there are cores help hooks that wait (for storage, a service); where hooks compute, a line
            in the log says that they do not. "auto": as many threads as turn out to be best while the loop runs, which
            is logged; see `energon_grain.watch.auto_workers`.
        data_parallel_group: Handle of a framework's process group; kept, never used by the core.
        seed_offset: Mixed into the seed of every random choice.
        worker_debug_path: File for what `worker_log` writes, with `{worker_id}` (different in every process of all
            hosts) or `{pid}` in its name; None: the logger `energon_grain.worker`.
        worker_log_level: 1 or more: `get_train_dataset` logs the keys of each batch; 2: `get_val_dataset` too. See
            `LogSampleDataset`.
        global_error_handler: Called as `handler(error, sample, sources)` for each sample that fails to decode or whose
            hook raises. It may raise to end the iteration; otherwise the sample is dropped and counted, and the
            error's traceback, which holds whole chunks in memory, is let go of after the call.
        restore_error_handler: The same while a sample is rebuilt from its restore key.
        worker_type: "thread" (default), or "process": the pure stage runs in worker processes.
        prefetch_bytes: Bound on the memory of samples that were read ahead and not yet delivered.
        any_host: Collective over all hosts: called with a flag on each of them, True everywhere if it is on one. Passes
            whose length depends on data (packs, groups, filters in lanes) need it on several hosts, to end together;
            loaders provide it where a distributed framework is initialised.
    """

    worker_types: ClassVar[tuple[str, ...]] = ("thread", "process")

    rank: int
    world_size: int
    num_workers: int | Literal["auto"] = 0
    data_parallel_group: Any = field(default=None, compare=False, repr=False)
    seed_offset: int = field(default=0, compare=False)
    worker_debug_path: str | None = field(default=None, compare=False, repr=False)
    worker_log_level: int = field(default=0, compare=False, repr=False)
    global_error_handler: ErrorHandler = field(default=log_exception, compare=False, repr=False)
    restore_error_handler: ErrorHandler = field(default=reraise_exception, compare=False, repr=False)
    worker_type: Literal["thread", "process"] = field(default="thread", compare=False)
    prefetch_bytes: int = field(default=512 << 20, compare=False, repr=False)
    any_host: Callable[[bool], bool] | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        for name in ("rank", "world_size", "num_workers", "seed_offset"):
            value = getattr(self, name)
            if name == "num_workers" and value == "auto":
                continue
            if not hasattr(value, "__index__"):
                auto = ", or 'auto'" if name == "num_workers" else ""
                raise ConfigError(
                    f"WorkerConfig({name}={value!r}): expected a whole number, such as int(…) of a text{auto}"
                )
            setattr(self, name, operator.index(value))
        if self.world_size < 1 or not 0 <= self.rank < self.world_size:
            raise ConfigError(
                f"WorkerConfig(rank={self.rank}, world_size={self.world_size}): rank must lie in [0, world_size)"
            )
        if self.num_workers != "auto" and self.num_workers < 0:
            raise ConfigError(f"WorkerConfig(num_workers={self.num_workers}): expected 0 or more, or 'auto'")
        if self.worker_type not in self.worker_types:
            raise ConfigError(
                f"WorkerConfig(worker_type={self.worker_type!r}): expected {' or '.join(map(repr, self.worker_types))}"
            )
        if self.num_workers == "auto" and self.worker_type != "thread":
            raise ConfigError(
                f"WorkerConfig(num_workers='auto', worker_type={self.worker_type!r}): only the number of threads is "
                f"chosen while they run; pass worker_type='thread', or a number (this process has {usable_cores()} "
                f"cores)"
            )
        if self.prefetch_bytes < 1:
            raise ConfigError(
                f"WorkerConfig(prefetch_bytes={self.prefetch_bytes}): expected a positive number of bytes"
            )

    @classmethod
    def default_worker_config(cls, num_workers: int | Literal["auto"] = 4, data_parallel_group: Any = None) -> Self:
        """The configuration of this process: rank and world from `jax.distributed` when the program initialised it.

        Without it (or without jax) there is one host.
        """
        rank, world_size = _jax_process()
        return cls(rank=rank, world_size=world_size, num_workers=num_workers, data_parallel_group=data_parallel_group)

    @property
    def most_workers(self) -> int:
        """How many there may be: `num_workers`, or with "auto" the cores that this process may use."""
        return usable_cores() if self.num_workers == "auto" else self.num_workers

    @property
    def log(self) -> WorkerLog:
        """Where `worker_log` writes; picklable, which the rest of a configuration need not be."""
        return WorkerLog(
            None if self.worker_debug_path is None else str(self.worker_debug_path), self.rank, self.most_workers
        )

    def should_log(self, level: int) -> bool:
        """Whether what is of a level (1: batches) is logged."""
        return level <= self.worker_log_level

    def worker_log(self, data: Mapping[str, Any]) -> None:
        """Write what is JSON-native as one line of this process's file. See `worker_debug_path`."""
        self.log.write(data)

    def config(self) -> dict[str, Any]:
        """What describes it in logs; JSON-native."""
        return {
            "rank": self.rank,
            "world_size": self.world_size,
            "num_workers": self.num_workers,
            "data_parallel_group": None if self.data_parallel_group is None else self.world_size,  # its size
        }


def _jax_process() -> tuple[int, int]:
    """(process index, process count) of an initialised `jax.distributed`, else (0, 1). Never imports or starts jax."""
    jax = sys.modules.get("jax")
    if jax is None or not jax.distributed.is_initialized():
        return 0, 1
    return int(jax.process_index()), int(jax.process_count())
