# SPDX-License-Identifier: Apache-2.0
"""The core's entry points with this backend's defaults. Their datasets work in PyTorch's own loaders.

That is `DataLoader(dataset, batch_size=None, num_workers=n)`, or torchdata's `StatefulDataLoader`.

Each of the n workers makes its own steps t = w, w + n, w + 2n, … of its rank, and reads nothing else. These loaders
alternate between their workers, so the batches keep the order of the stream for any n. If lanes have a program
(filters, groups, packs), each worker owns lanes instead, as a rank does. The n workers then make the same items, in
other batches.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import logging
import os
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from functools import wraps
from multiprocessing import RawArray, current_process
from multiprocessing.context import get_spawning_popen
from typing import Any, ParamSpec, cast

import numpy as np
import torch.utils.data
from torch.utils.data import get_worker_info
from torch.utils.data._utils import fetch
from torch.utils.data._utils.collate import default_collate_fn_map

from energon_grain import get_datasets
from energon_grain.compat.batch import Batch
from energon_grain.datasets.dataset import SavableDataset
from energon_grain.datasets.lowering import Lowering, Part, Steps
from energon_grain.errors import ConfigError, EnergonGrainError, StateError, public, shorten
from energon_grain.memory_budget.budget import join_budget, prepare_budget
from energon_grain.memory_budget.need import require_memory
from energon_grain.metadataset.resolve import Leaf
from energon_grain.replicas.group import refuse_replicas
from energon_grain.samples.sample import Sample
from energon_grain.samples.subscripts import Item
from energon_grain.stream.cursor import check_cursor, to_cursor
from energon_grain.stream.passes import PassPlan, Progress
from energon_grain.stream.stream import OnChange, Stream
from energon_grain.stream.worker_config import set_worker_number
from energon_grain.transforms.batching import generic_batch
from energon_grain_torch.task_encoder import DefaultTaskEncoder
from energon_grain_torch.worker_config import WorkerConfig

P = ParamSpec("P")

_logger = logging.getLogger("energon_grain")
_KEY = "energon_grain"
_MOST_WORKERS = 512


class _StartPositions:
    """Start positions of iterations, in memory shared by forked or spawned workers.

    An iteration starts with the pass after the last one started, whether that one had the same number of workers, other
    workers, or none. The first worker of an iteration determines its start, and the others use the same. There are no
    locks: all workers of an iteration write the same values, each in its own row, and publish them before they change
    the next start.
    """

    def __init__(self, epoch: int, step: int) -> None:
        # For each worker, and in the last row for iterations without workers: the next pass and step, and the time of
        # the entry; then the last two iterations of the worker, alternating: start pass, start step, time, and
        # identity. Two, because a persistent worker may start the next iteration before a slower one starts this one.
        self._memory = RawArray("q", 11 * (_MOST_WORKERS + 1))
        self._begun = 0  # iterations started by this worker
        self.set(epoch, step)

    @property
    def _rows(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        return np.frombuffer(self._memory, np.int64).reshape(-1, 11)

    def set(self, epoch: int, step: int) -> None:
        """Set the start of the next iteration of any worker."""
        self._rows[:, :3] = epoch, step, time.monotonic_ns()

    def next(self) -> tuple[int, int]:
        """Return the pass and step at which the next iteration starts."""
        rows = self._rows
        epoch, step = rows[rows[:, 2].argmax(), :2].tolist()
        return epoch, step

    def begin(self, worker: int | None) -> tuple[int, int]:
        """Return the pass and step at which a worker starts; None: there are no workers."""
        (epoch, step), now = self.next(), time.monotonic_ns()
        if worker is not None:
            # Workers of an iteration are started one after the other; persistent ones all start each further iteration.
            identity: tuple[int, ...] = cast("Any", current_process())._identity
            self._begun += 1
            iteration = hash((os.getppid(), sum(identity[-1:]) - worker, self._begun))
            iterations = self._rows[:, 3:].reshape(-1, 2, 4)
            companions = iterations[iterations[..., 3] == iteration]
            if len(companions):
                epoch, step, now = companions[0, :3].tolist()
            own = iterations[worker, self._begun % 2]
            own[:3] = epoch, step, now
            own[3] = iteration
        self._note(worker, epoch, now)
        return epoch, step

    def note(self, worker: int | None, epoch: int) -> None:
        """Record that a worker is in this pass, so its next one follows."""
        self._note(worker, epoch, time.monotonic_ns())

    def _note(self, worker: int | None, epoch: int, when: int) -> None:
        own = self._rows[_MOST_WORKERS if worker is None else worker]
        own[:2] = epoch + 1, 0
        own[2] = when


@public
@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class StreamDataset(SavableDataset[Item], torch.utils.data.IterableDataset[Item]):  # pyright: ignore[reportIncompatibleMethodOverride]
    """A description of a stream that is also an `IterableDataset` of PyTorch, as returned by the entry points.

    Example:
        Without or with PyTorch's own loader:

            loader = get_savable_loader(get_train_dataset(path, ...))  # workers, prefetching and state
            loader = DataLoader(get_train_dataset(path, ...), batch_size=None, num_workers=4)

    `get_savable_loader` has its own workers, prefetching and state. If a trainer must make the loader, use
    `DataLoader(dataset, batch_size=None, num_workers=n)`, or torchdata's `StatefulDataLoader` with the same arguments.
    The dataset makes whole batches, hence `batch_size=None`.

    Each iteration is one pass, and the next iteration is the next pass, as with a loader, even if each iteration starts
    new workers. An endless stream without `virtual_epoch_length` has one pass, and starts it again. `set_epoch`
    overrides this. If an endless stream filters, groups, packs or generates, only the end of a pass determines the
    start of the next one: after an unfinished iteration, the next one continues its pass.
    """

    dataset: SavableDataset[Item]
    _beginnings: _StartPositions = dataclasses.field(init=False, repr=False)
    _last: list[Any] = dataclasses.field(init=False, repr=False)
    _changes: list[OnChange] = dataclasses.field(init=False, repr=False)

    def __post_init__(self) -> None:
        prepare_budget()
        self._set_positions(_StartPositions(0, 0))
        object.__setattr__(self, "_changes", ["refuse"])

    def _set_positions(self, positions: _StartPositions) -> None:
        object.__setattr__(self, "_beginnings", positions)
        object.__setattr__(self, "_last", [])

    def __getstate__(self) -> tuple[Any, ...]:
        # Spawned workers share the memory too; other copies start where this one would.
        begins = self._beginnings if get_spawning_popen() is not None else self._beginnings.next()
        return self.worker_config, self.dataset, begins, self._changes[0]

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        config, dataset, begins, on_change = state
        object.__setattr__(self, "_changes", [on_change])
        object.__setattr__(self, "worker_config", config)
        object.__setattr__(self, "dataset", dataset)
        self._set_positions(begins if isinstance(begins, _StartPositions) else _StartPositions(*begins))

    def __repr__(self) -> str:
        return repr(self.dataset)

    def on_steps(self, steps: Steps) -> SavableDataset | None:
        del steps
        return self.dataset

    def lower(self, to: Lowering) -> Part:
        return to.lower(self.dataset)

    def set_epoch(self, epoch: int, step: int = 0) -> None:
        """Start the next iteration at this pass, and at this step of the rank. This reads no data.

        `step` lets a plain `DataLoader` resume, if no sample is dropped. A `StatefulDataLoader` does not need it.
        """
        if epoch < 0 or step < 0:
            raise ConfigError(f"set_epoch({epoch}, step={step}): expected numbers of 0 or more")
        self._beginnings.set(epoch, step)

    def set_on_change(self, on_change: OnChange) -> None:
        """Set what a `StatefulDataLoader` does with states of another mixture, see `Stream.restore`.

        "amend" needs at most one worker, or a dataset that filters, groups, packs or generates, and states that were
        saved with "amend" or have few datasets.
        """
        self._changes[0] = on_change

    def __iter__(self) -> Iterator[Item]:
        refuse_replicas(self.worker_config, "iterating over a dataset, as a DataLoader does,", "get_savable_loader")
        info = get_worker_info()
        worker, workers = (None, 1) if info is None else (info.id, info.num_workers)
        if worker is not None:
            if worker >= _MOST_WORKERS:
                raise ConfigError(f"num_workers={workers}: a DataLoader of this dataset has at most {_MOST_WORKERS}")
            set_worker_number(worker)
        epoch, step = self._beginnings.begin(worker)
        before = self._last.pop() if self._last else None
        batches = _Batches(self, worker or 0, workers)
        if batches.whole and _batched_by_torch():
            raise ConfigError(_BATCHED_TWICE)
        batches.begin(epoch, step, before)
        if batches.stream.spec.program is not None:
            self._last.append(batches)  # only it knows where the next pass starts
        return batches

    def note_pass(self, epoch: int) -> None:
        """Record the pass that this process has moved to."""
        info = get_worker_info()
        self._beginnings.note(None if info is None else info.id, epoch)


@public
class _Batches:
    """One worker's batches of one pass, with the state for a `StatefulDataLoader`."""

    def __init__(self, dataset: StreamDataset, worker: int, workers: int) -> None:
        self._dataset, self._worker, self._workers = dataset, worker, workers
        self._config = dataclasses.replace(dataset.worker_config, num_workers=0)
        self._spec = dataset.compiled()
        if (budget := join_budget()) is not None:
            require_memory(budget, self._spec, 0, in_processes=False)
        self._epoch = 0
        self._left: int | None = None  # remaining steps of this pass, if the stream does not know where it ends
        self._ended = False
        self._stream: Stream | None = None
        self._end: Any = None

    @property
    def whole(self) -> bool:
        """Whether these are batches, not single samples."""
        return self._spec.batch is not None

    def _run(self, stream: Stream) -> None:
        """Take batches from a stream, and close it together with this object."""
        stream.on_change = self._dataset._changes[0]
        if stream.share.stride == 1:
            stream.dataset = self._dataset.dataset
        if self._end is not None:
            self._end()
        self._stream, self._ended = stream, False
        self._end = weakref.finalize(self, stream.close)
        self._end.atexit = False

    def release_stream(self) -> Stream:
        """Return the stream for the next pass, and no longer close it."""
        self._end.detach()
        return self.stream

    @property
    def stream(self) -> Stream:
        """The stream that makes the batches."""
        assert self._stream is not None
        return self._stream

    def begin(self, epoch: int, step: int, before: _Batches | None) -> None:
        """Move to the start of a worker at a step of a pass.

        Raises ConfigError if that position depends on data.
        """
        plan = PassPlan.of(self._spec, self._config.world_size, epoch)
        if self._spec.endless and plan.steps is None and epoch:
            level = logging.WARNING if self._worker == 0 else logging.DEBUG
            _logger.log(
                level,
                "an endless stream is iterated over again and starts from its first batch: set virtual_epoch_length to "
                "divide it into iterations, or keep the iterator",
            )
            epoch = 0
        self._epoch = epoch
        if self._spec.program is not None:
            self._begin_lanes(plan, epoch, step, before)
            return
        self._run(
            Stream.of_steps(
                self._spec, self._config, first=step + self._worker, readers=self._workers, pass_number=epoch
            )
        )

    def _begin_lanes(self, plan: PassPlan, epoch: int, step: int, before: _Batches | None) -> None:
        if step:
            raise ConfigError(
                f"set_epoch({epoch}, step={step}): this dataset filters, groups, packs or generates, so the start of a "
                f"step depends on data: use StatefulDataLoader or get_savable_loader, which have states"
            )
        if plan.steps is not None and self._workers > 1:
            self._left = max(0, -(-(plan.steps - self._worker) // self._workers))
        program = self._spec.program
        assert program is not None
        if epoch == 0 or not (self._spec.endless or program.root.spans_passes):
            self._open_lanes()
            drops = np.zeros(self.stream.share.local_lanes, np.int64)
            progress = Progress(pass_number=epoch, drops=drops, history=((0, 0, 0, 0, plan.global_batch),))
            self.stream.restore(to_cursor(progress, self.stream.share, self._spec.fingerprint()))
        elif before is not None and (before._worker, before._workers) == (self._worker, self._workers):
            stream = before.release_stream()
            iter(stream)
            self._run(stream)
            self._left = before._left or self._left  # of its pass, if it did not reach the end
        else:
            raise ConfigError(
                f"this dataset filters, groups, packs or generates, so only the workers that made pass {epoch - 1} "
                f"know where pass {epoch} starts: use DataLoader(…, persistent_workers=True), StatefulDataLoader, or "
                f"get_savable_loader; to start again, set_epoch(0)"
            )

    def _open_lanes(self) -> None:
        """Make the stream of the lanes that this worker owns."""
        spec, config, workers = self._spec, self._config, self._workers
        if workers > 1:
            if not spec.endless:
                raise ConfigError(
                    f"num_workers={workers}: this dataset filters, groups, packs or generates, so its passes end only "
                    f"when all of their samples were read: use num_workers=1 or 0, repeat=True, or get_savable_loader, "
                    f"which has its own workers"
                )
            rank, ranks = config.rank + config.world_size * self._worker, config.world_size * workers
            if spec.lanes % ranks:
                raise ConfigError(
                    f"num_workers={workers}: this dataset filters, groups, packs or generates, so each of the {ranks} "
                    f"workers of all ranks must own whole lanes, but there are {spec.lanes} lanes: use a number of "
                    f"workers that divides {spec.lanes // config.world_size}, or set lanes to a multiple of {ranks}"
                )
            config = dataclasses.replace(config, rank=rank, world_size=ranks)
            spec = dataclasses.replace(spec, steps=None, limit=None)
        self._run(Stream(spec, config))

    def __iter__(self) -> _Batches:
        return self

    def __next__(self) -> Any:
        if self._left == 0 or self._ended:
            raise StopIteration
        try:
            batch = next(self.stream)
        except StopIteration:
            self._ended = True
            if self._spec.program is None:  # otherwise the next pass continues with it
                self.stream.close()
            raise
        except EnergonGrainError as error:
            shorten(error)
            raise
        if self._left is not None:
            self._left -= 1
        return batch

    def state_dict(self) -> dict[str, Any]:
        """Return the position of this worker; JSON-native."""
        cursor = self.stream.cursor(with_manifest=self.stream.on_change == "amend")
        state = {"workers": self._workers, "epoch": self._epoch, "left": self._left, "cursor": cursor}
        return {_KEY: json.dumps(state)}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Move to the position of a worker out of the same number.

        Raises StateError if it is not such a state, belongs to another number of workers, or cannot be continued.
        """
        try:
            state = json.loads(state_dict[_KEY])
            workers, epoch, left, cursor = (state[name] for name in ("workers", "epoch", "left", "cursor"))
        except (LookupError, TypeError, ValueError, RecursionError) as error:
            raise StateError(f"not a state of a DataLoader's worker ({type(error).__name__}: {error})") from error
        if workers != self._workers:
            raise StateError(
                f"the state is from one of {workers} workers, but there are {self._workers}: load it with "
                f"num_workers={workers}; states of get_savable_loader work with any number"
            )
        cursor = check_cursor(cursor)
        self._epoch, self._left = epoch, left
        if self._spec.program is not None:
            self._open_lanes()
        else:
            global_batch = PassPlan.of(self._spec, self._config.world_size).global_batch
            if cursor["history"][-1][4] != global_batch:  # otherwise another worker's steps might start here
                raise StateError("the state is from batches of another size: load it with the same batch size")
            turn = cursor["item"] // global_batch % workers
            self._run(Stream.of_steps(self._spec, self._config, first=turn, readers=workers))
        self.stream.restore(cursor)
        self._dataset.note_pass(epoch)


_BATCHED_TWICE = (
    "the dataset makes whole batches, and PyTorch would batch them again: use DataLoader(…, batch_size=None), or "
    "get_train_dataset(…, batch_size=None) for single samples. Hugging Face's Trainer makes its own DataLoader: use "
    "EnergonTrainer of energon_grain_torch.trainers.hf"
)
_FETCHING = {fetch._IterableDatasetFetcher.__init__.__code__, fetch._IterableDatasetFetcher.fetch.__code__}


def _batched_by_torch() -> bool:
    """Return whether a `DataLoader` is calling that batches its elements. Only its frame on the stack shows that."""
    frame = inspect.currentframe()
    while frame is not None and frame.f_code not in _FETCHING:
        frame = frame.f_back
    return frame is not None and frame.f_locals["self"].auto_collation


def _collate(elements: list[Any], *, collate_fn_map: Any = None) -> Any:
    """Handle this library's types in PyTorch's `default_collate`: batch samples, and reject batches."""
    del collate_fn_map
    if isinstance(elements[0].__key__, list):
        raise ConfigError(_BATCHED_TWICE)
    return generic_batch(elements)


default_collate_fn_map[Sample] = default_collate_fn_map[Batch] = _collate


def _with_defaults(options: dict[str, Any]) -> dict[str, Any]:
    if options.get("worker_config") is None:
        options["worker_config"] = WorkerConfig.default_worker_config(num_workers=0)
    if options.get("task_encoder") is None:
        options["task_encoder"] = DefaultTaskEncoder()
    return options


def _for_torch(entry: Callable[P, SavableDataset[Item]]) -> Callable[P, StreamDataset[Item]]:
    """Return an entry point of the core that returns datasets of this backend."""

    @public
    @wraps(entry)
    def call(*path: Any, **options: Any) -> Any:
        made = cast("Any", entry)(*path, **_with_defaults(options))
        return StreamDataset(worker_config=made.worker_config, dataset=made)

    return cast("Any", call)


def _each_for_torch(
    entry: Callable[P, list[tuple[SavableDataset[Item], Leaf]]],
) -> Callable[P, list[tuple[StreamDataset[Item], Leaf]]]:
    """Return an entry point of the core that returns several datasets, for this backend."""

    @public
    @wraps(entry)
    def call(*path: Any, **options: Any) -> Any:
        found = cast("Any", entry)(*path, **_with_defaults(options))
        return [(StreamDataset(worker_config=made.worker_config, dataset=made), leaf) for made, leaf in found]

    return cast("Any", call)


get_dataset_from_config = _for_torch(get_datasets.get_dataset_from_config)
get_train_dataset = _for_torch(get_datasets.get_train_dataset)
get_val_dataset = _for_torch(get_datasets.get_val_dataset)
get_val_datasets = _each_for_torch(get_datasets.get_val_datasets)
