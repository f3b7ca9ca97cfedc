# SPDX-License-Identifier: Apache-2.0
"""The reader: this host among all hosts, its workers, and where they write logs for debugging."""

from __future__ import annotations

import json
import logging
import operator
import os
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Self, cast

from energon_grain.errors import ConfigError, DecodingError, public
from energon_grain.storage.cores import usable_cores
from energon_grain.stream.extensions import OF_SHARDING, REPLICAS, extension

IN_A_WORKER = "In a worker process:\n"
"""Start of the note that holds the traceback of an error from another process."""

_logger = logging.getLogger("energon_grain")


def log_exception(error: Exception, sample: Any, sources: Any = None) -> None:
    """Log what failed and where, and continue without the sample. The default handler.

    As the handler of a loader it is called only for the first failure of a kind. Further failures are only counted, and
    their number is logged at 10, 100, 1,000 and so on. Decoding errors are logged without a traceback.
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
    """The traceback of an error, in the process that raised it."""
    notes: list[str] = getattr(error, "__notes__", [])
    for note in notes:
        if note.startswith(IN_A_WORKER):
            return note.removeprefix(IN_A_WORKER)
    return "".join(traceback.format_exception(error))


def forget_traceback(error: BaseException) -> None:
    """Remove the traceback that `traceback_text` returns."""
    error.with_traceback(None)
    notes: list[str] = getattr(error, "__notes__", [])
    notes[:] = [note for note in notes if not note.startswith(IN_A_WORKER)]


def named(sample: Any) -> str:
    """Description of a dropped value, by key if it has one: a sample, or the samples of a batch, pack or join."""
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
    """Raise the error, which ends the iteration."""
    del sample, sources
    raise error


ErrorHandler = Callable[..., None]


_worker_logger = logging.getLogger("energon_grain.worker")
_worker_number: int | None = None


def set_worker_number(number: int) -> None:
    """Set the number (0, 1, …) of this worker process on its host, for `{worker_id}` in the names of its files."""
    global _worker_number
    _worker_number = number


def worker_number() -> int | None:
    """Number of this worker process; None: not a worker process."""
    return _worker_number


@dataclass(frozen=True, slots=True)
class WorkerLog:
    """The destination of log lines. Picklable: in another process, lines are written to the file of that process.

    Each line is appended in one write, so several processes and runs may share a file.

    Attributes:
        path: Name of the file, with `{worker_id}` and `{pid}` filled in; None: the logger `energon_grain.worker`.
        rank: This host.
        num_workers: Number of its workers.
    """

    path: str | None
    rank: int
    num_workers: int

    @property
    def worker_id(self) -> int:
        """Unique among the processes of all hosts: r · (num_workers + 1) for host r, followed by its workers."""
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

    The order of samples depends on none of these fields. `rank` and `world_size` select a share of each global batch,
    `num_workers` and `worker_type` affect only speed. Processes with equal `rank` and `world_size` (tensor-parallel
    replicas) get equal data. Two configurations are equal if their rank, world_size and num_workers are.

    Example:
        Take rank and world size from `jax.distributed`, and read with four threads:

            config = WorkerConfig.default_worker_config(num_workers=4)

    Attributes:
        rank: This host, in [0, world_size).
        world_size: Number of data-parallel hosts.
        num_workers: Threads (or processes) that read and encode ahead of the consumer; 0: everything happens in `next`.
            More workers than cores help hooks that wait (for storage or a service). For hooks that compute they do not
            help, and the log says so. "auto": the best number of threads is found while the loop runs, and logged; see
            `energon_grain.watch.auto_workers`.
        data_parallel_group: Handle of a framework's process group; stored, but not used by the core.
        seed_offset: Mixed into the seed of every random choice.
        worker_debug_path: File that `worker_log` writes to, with `{worker_id}` (different in every process of all
            hosts) or `{pid}` in its name; None: the logger `energon_grain.worker`.
        worker_log_level: 1 or more: `get_train_dataset` logs the keys of each batch; 2: `get_val_dataset` too. See
            `LogSampleDataset`.
        global_error_handler: Called as `handler(error, sample, sources)` for each sample that fails to decode or whose
            hook raises. It may raise to end the iteration. Otherwise the sample is dropped and counted, and after the
            call the traceback of the error, which keeps whole chunks in memory, is released.
        restore_error_handler: Handler of errors while a sample is rebuilt from its restore key.
        worker_type: "thread" (default); "process": the pure stage runs in worker processes; or "ray": in Ray actors,
            see `energon_grain.cluster.RayPool`.
        prefetch_bytes: Limit on the memory of samples that were read ahead and not yet delivered.
        any_host: Collective over all hosts: called with a flag on each of them, returns True on all if the flag is set
            on any. Passes whose length depends on data (packs, groups, filters in lanes) need it on several hosts, to
            end together. Loaders provide it if a distributed framework is initialised.
        workers: A `Pool` whose workers encode the chunks, in place of `num_workers` and `worker_type`. It may serve
            several loaders. With `num_workers="auto"`, the loader chooses the number of its workers.
        replicas: Lists of processes that need the same batches, such as `[[0, 1], [2, 3]]`: each list is one data rank.
            `rank` and `world_size` are then those of the whole job (default: of the distributed framework), and
            become those of the data. One process of each list and node reads, and hands batches on in memory.
        across: "read" (default), or "broadcast": replicas on other nodes get batches over the network.
    """

    worker_types: ClassVar[tuple[str, ...]] = ("thread", "process", "ray")

    rank: int = -1
    world_size: int = -1
    num_workers: int | Literal["auto"] = 0
    data_parallel_group: Any = field(default=None, compare=False, repr=False)
    seed_offset: int = field(default=0, compare=False)
    worker_debug_path: str | None = field(default=None, compare=False, repr=False)
    worker_log_level: int = field(default=0, compare=False, repr=False)
    global_error_handler: ErrorHandler = field(default=log_exception, compare=False, repr=False)
    restore_error_handler: ErrorHandler = field(default=reraise_exception, compare=False, repr=False)
    worker_type: Literal["thread", "process", "ray"] = field(default="thread", compare=False)
    prefetch_bytes: int = field(default=512 << 20, compare=False, repr=False)
    any_host: Callable[[bool], bool] | None = field(default=None, compare=False, repr=False)
    workers: Any = field(default=None, compare=False, repr=False)
    replicas: Any = field(default=None, compare=False, repr=False)
    across: Literal["read", "broadcast"] = field(default="read", compare=False, repr=False)

    def __post_init__(self) -> None:
        self._take_integers()
        if self.replicas is not None:
            extension(REPLICAS)(self)
        if self.world_size < 1 or not 0 <= self.rank < self.world_size:
            raise ConfigError(
                f"WorkerConfig(rank={self.rank}, world_size={self.world_size}): rank must be in [0, world_size)"
            )
        self._check_workers()
        if self.prefetch_bytes < 1:
            raise ConfigError(
                f"WorkerConfig(prefetch_bytes={self.prefetch_bytes}): expected a positive number of bytes"
            )

    def _take_integers(self) -> None:
        for name in ("rank", "world_size", "num_workers", "seed_offset"):
            value = getattr(self, name)
            if name == "num_workers" and value == "auto":
                continue
            if not hasattr(value, "__index__"):
                auto = ", or 'auto'" if name == "num_workers" else ""
                raise ConfigError(f"WorkerConfig({name}={value!r}): expected an integer, as of int(…){auto}")
            setattr(self, name, operator.index(value))

    def _check_workers(self) -> None:
        if self.num_workers != "auto" and self.num_workers < 0:
            raise ConfigError(f"WorkerConfig(num_workers={self.num_workers}): expected 0 or more, or 'auto'")
        if self.worker_type not in self.worker_types:
            raise ConfigError(
                f"WorkerConfig(worker_type={self.worker_type!r}): expected {' or '.join(map(repr, self.worker_types))}"
            )
        if self.num_workers == "auto" and self.worker_type != "thread":
            raise ConfigError(
                f"WorkerConfig(num_workers='auto', worker_type={self.worker_type!r}): only the number of threads can "
                f"be chosen while they run; pass worker_type='thread', or a number (this process has {usable_cores()} "
                f"cores)"
            )
        if self.workers is not None and not hasattr(self.workers, "lease"):
            raise ConfigError(
                f"WorkerConfig(workers={self.workers!r}): expected a pool, such as energon_grain.cluster.RayPool; "
                f"num_workers is the number of workers"
            )

    @classmethod
    def default_worker_config(
        cls, num_workers: int | Literal["auto"] = 4, data_parallel_group: Any = None, workers: Any = None
    ) -> Self:
        """The configuration of this process: rank and world size from `jax.distributed`, if it is initialised.

        Without it (or without jax) there is one host.
        """
        rank, world_size = cls.process_of_job()
        return cls(
            rank=rank,
            world_size=world_size,
            num_workers=num_workers,
            data_parallel_group=data_parallel_group,
            workers=workers,
        )

    @classmethod
    def of_sharding(cls, sharding: Any, *, global_shape: Sequence[int], **options: Any) -> Self:
        """The configuration of this process for batches with a JAX sharding.

        Processes whose devices need the same rows are replicas: one of them on each node reads.

        Args:
            sharding: A `jax.sharding.Sharding` of the global batch.
            global_shape: Shape of the global batch; the first dimension is samples.
            **options: Further fields.

        Raises:
            ConfigError: The rows of two processes overlap in part, or differ in number.
        """
        return cls(**extension(OF_SHARDING)(sharding, global_shape), **options)

    @staticmethod
    def process_of_job() -> tuple[int, int]:
        """(index, number) of this process in the job, from the distributed framework; (0, 1) without one."""
        return _jax_process()

    @property
    def most_workers(self) -> int:
        """Maximum number of workers: `num_workers`, with "auto" the cores of this process, or the size of the pool."""
        if self.workers is not None:
            return self.workers.workers
        return usable_cores() if self.num_workers == "auto" else self.num_workers

    @property
    def log(self) -> WorkerLog:
        """The destination of `worker_log`. Picklable, unlike some configurations."""
        path = None if self.worker_debug_path is None else str(self.worker_debug_path)
        return WorkerLog(path, self.rank, self.most_workers)

    def should_log(self, level: int) -> bool:
        """Whether messages of a level (1: batches) are logged."""
        return level <= self.worker_log_level

    def worker_log(self, data: Mapping[str, Any]) -> None:
        """Write JSON-native data as one line of this process's file. See `worker_debug_path`."""
        self.log.write(data)

    def config(self) -> dict[str, Any]:
        """Description for logs; JSON-native."""
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
