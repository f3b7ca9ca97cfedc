# SPDX-License-Identifier: Apache-2.0
"""The core's entry points with this backend's defaults, whose datasets PyTorch's own loaders take.

That is `DataLoader(dataset, batch_size=None, num_workers=n)`, and torchdata's `StatefulDataLoader`.

Each of the n workers makes the steps that are its own, t = w, w + n, w + 2n, … of its rank, and reads nothing else. As
those loaders take from their workers in turns, the batches come out in the order of the stream, whatever n is. Where
lanes have a program (filters, groups, packs), a worker owns lanes instead, as a rank does: there the n workers make the
same items, batched otherwise.
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
from energon_grain.metadataset.resolve import Leaf
from energon_grain.samples.sample import Sample
from energon_grain.samples.subscripts import Item
from energon_grain.stream.cursor import check_cursor, to_cursor
from energon_grain.stream.passes import PassPlan, Progress
from energon_grain.stream.stream import Stream
from energon_grain.stream.worker_config import set_worker_number
from energon_grain.transforms.batching import generic_batch
from energon_grain_torch.task_encoder import DefaultTaskEncoder
from energon_grain_torch.worker_config import WorkerConfig

P = ParamSpec("P")

_logger = logging.getLogger("energon_grain")
_KEY = "energon_grain"
_MOST_WORKERS = 512


class _Beginnings:
    """Where iterations begin: memory that the workers share, forked or spawned.

    An iteration begins with the pass behind the one that was begun last, whoever its workers were: as many, others, or
    none. The first of its workers finds out which that is, and the others do as it does. There are no locks: all of a
    worker's companions write the same, each in a row of its own, and say so before they change what comes next.
    """

    def __init__(self, epoch: int, step: int) -> None:
        # For each worker, and last for who has none: the pass and the step that come next, and when that was found out;
        # then its last two iterations, by turns: where and when each began, and which it is. Two, as a worker that
        # stays may be asked for the next one before a slower companion begins this one.
        self._memory = RawArray("q", 11 * (_MOST_WORKERS + 1))
        self._begun = 0  # iterations of this worker
        self.set(epoch, step)

    @property
    def _rows(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        return np.frombuffer(self._memory, np.int64).reshape(-1, 11)

    def set(self, epoch: int, step: int) -> None:
        """Let the next iteration, of whomever, begin here."""
        self._rows[:, :3] = epoch, step, time.monotonic_ns()

    def next(self) -> tuple[int, int]:
        """The pass and step that an iteration begins with that nobody has begun yet."""
        rows = self._rows
        epoch, step = rows[rows[:, 2].argmax(), :2].tolist()
        return epoch, step

    def begin(self, worker: int | None) -> tuple[int, int]:
        """The pass and step that a worker begins with; None: there are no workers."""
        (epoch, step), now = self.next(), time.monotonic_ns()
        if worker is not None:
            # An iteration's workers are started one behind the other, and if they stay, all begin each further one.
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
        """A worker is in this pass: its next one is that behind it."""
        self._note(worker, epoch, time.monotonic_ns())

    def _note(self, worker: int | None, epoch: int, when: int) -> None:
        own = self._rows[_MOST_WORKERS if worker is None else worker]
        own[:2] = epoch + 1, 0
        own[2] = when


@public
@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class StreamDataset(SavableDataset[Item], torch.utils.data.IterableDataset[Item]):  # pyright: ignore[reportIncompatibleMethodOverride]
    """What the entry points return: a description of a stream, and an `IterableDataset` of PyTorch's.

    `get_savable_loader` has workers, read-ahead and a state of its own. Where a trainer insists on making the loader,
    it is `DataLoader(dataset, batch_size=None, num_workers=n)`, or torchdata's `StatefulDataLoader` with the same
    arguments: batches are made whole, so `batch_size=None`.

    Each iteration is one pass, and the next one is the next pass, as with a loader; in workers too, although each
    iteration starts them anew. An endless stream without `virtual_epoch_length` has one pass, and begins it again.
    `set_epoch` says otherwise. Where an endless stream filters, groups, packs or generates, only the end of a pass
    tells where the next one begins: after an iteration that was left, another one has the rest of its pass.
    """

    dataset: SavableDataset[Item]
    _beginnings: _Beginnings = dataclasses.field(init=False, repr=False)
    _last: list[Any] = dataclasses.field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._remember(_Beginnings(0, 0))

    def _remember(self, beginnings: _Beginnings) -> None:
        object.__setattr__(self, "_beginnings", beginnings)
        object.__setattr__(self, "_last", [])

    def __getstate__(self) -> tuple[Any, ...]:
        # Workers that are spawned share the memory too; other copies begin where this one would.
        begins = self._beginnings if get_spawning_popen() is not None else self._beginnings.next()
        return self.worker_config, self.dataset, begins

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        config, dataset, begins = state
        object.__setattr__(self, "worker_config", config)
        object.__setattr__(self, "dataset", dataset)
        self._remember(begins if isinstance(begins, _Beginnings) else _Beginnings(*begins))

    def __repr__(self) -> str:
        return repr(self.dataset)

    def on_steps(self, steps: Steps) -> SavableDataset | None:
        del steps
        return self.dataset

    def lower(self, to: Lowering) -> Part:
        return to.lower(self.dataset)

    def set_epoch(self, epoch: int, step: int = 0) -> None:
        """Let the next iteration begin with this pass, at this step of the rank's; it is arithmetic, nothing is read.

        With `step` a plain `DataLoader` resumes, if no sample is dropped; a `StatefulDataLoader` needs none of this.
        """
        if epoch < 0 or step < 0:
            raise ConfigError(f"set_epoch({epoch}, step={step}): passes and steps are counted 0, 1, 2, …")
        self._beginnings.set(epoch, step)

    def __iter__(self) -> Iterator[Item]:
        info = get_worker_info()
        worker, workers = (None, 1) if info is None else (info.id, info.num_workers)
        if worker is not None:
            if worker >= _MOST_WORKERS:
                raise ConfigError(f"num_workers={workers}: a DataLoader of this dataset may have {_MOST_WORKERS}")
            set_worker_number(worker)
        epoch, step = self._beginnings.begin(worker)
        before = self._last.pop() if self._last else None
        batches = _Batches(self, worker or 0, workers)
        if batches.whole and _batched_by_torch():
            raise ConfigError(_BATCHED_TWICE)
        batches.begin(epoch, step, before)
        if batches.stream.spec.program is not None:
            self._last.append(batches)  # where the next pass begins, it alone knows
        return batches

    def note_pass(self, epoch: int) -> None:
        """Take note of the pass that this process has gone to."""
        info = get_worker_info()
        self._beginnings.note(None if info is None else info.id, epoch)


@public
class _Batches:
    """One worker's batches of one pass, with the state that a `StatefulDataLoader` asks for."""

    def __init__(self, dataset: StreamDataset, worker: int, workers: int) -> None:
        self._dataset, self._worker, self._workers = dataset, worker, workers
        self._config = dataclasses.replace(dataset.worker_config, num_workers=0)
        self._spec = dataset.compiled()
        self._epoch = 0
        self._left: int | None = None  # steps of this pass, where the stream itself does not know when it ends
        self._ended = False
        self._stream: Stream | None = None
        self._end: Any = None

    @property
    def whole(self) -> bool:
        """Whether these are batches, and not single samples."""
        return self._spec.batch is not None

    def _run(self, stream: Stream) -> None:
        """Take the batches from a stream, which ends together with this."""
        if self._end is not None:
            self._end()
        self._stream, self._ended = stream, False
        self._end = weakref.finalize(self, stream.close)
        self._end.atexit = False

    def hand_over(self) -> Stream:
        """The stream, for who makes the next pass."""
        self._end.detach()
        return self.stream

    @property
    def stream(self) -> Stream:
        """What makes them."""
        assert self._stream is not None
        return self._stream

    def begin(self, epoch: int, step: int, before: _Batches | None) -> None:
        """Be where a worker of so many begins with a step of a pass.

        Raises ConfigError if where that is depends on data.
        """
        plan = PassPlan.of(self._spec, self._config.world_size, epoch)
        if self._spec.endless and plan.steps is None and epoch:
            level = logging.WARNING if self._worker == 0 else logging.DEBUG
            _logger.log(
                level,
                "a stream without end is iterated over again, and begins with its first batch: give it a "
                "virtual_epoch_length, which one iteration then has, or keep the iterator",
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
                f"set_epoch({epoch}, step={step}): this dataset filters, groups, packs or generates, so where a step "
                f"begins depends on data: use StatefulDataLoader or get_savable_loader, which have states"
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
            stream = before.hand_over()
            iter(stream)
            self._run(stream)
            self._left = before._left or self._left  # of its pass, if it was left before the end
        else:
            raise ConfigError(
                f"this dataset filters, groups, packs or generates, so where pass {epoch} begins is known to those "
                f"workers alone that made pass {epoch - 1}: use DataLoader(…, persistent_workers=True), "
                f"StatefulDataLoader, or get_savable_loader; to begin again, set_epoch(0)"
            )

    def _open_lanes(self) -> None:
        """Make the stream of the lanes that are this worker's."""
        spec, config, workers = self._spec, self._config, self._workers
        if workers > 1:
            if not spec.endless:
                raise ConfigError(
                    f"num_workers={workers}: this dataset filters, groups, packs or generates, so where its passes end "
                    f"is known only when all of their samples were read: use num_workers=1 or 0, repeat=True, or "
                    f"get_savable_loader, which has workers of its own"
                )
            rank, ranks = config.rank + config.world_size * self._worker, config.world_size * workers
            if spec.lanes % ranks:
                raise ConfigError(
                    f"num_workers={workers}: this dataset filters, groups, packs or generates, so each of the {ranks} "
                    f"workers of all ranks must own whole lanes, of which there are {spec.lanes}: use a number of "
                    f"workers that divides {spec.lanes // config.world_size}, or lanes= a multiple of {ranks}"
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
            if self._spec.program is None:  # else the next pass goes on with it
                self.stream.close()
            raise
        except EnergonGrainError as error:
            shorten(error)
            raise
        if self._left is not None:
            self._left -= 1
        return batch

    def state_dict(self) -> dict[str, Any]:
        """Where this worker is; JSON-native."""
        state = {"workers": self._workers, "epoch": self._epoch, "left": self._left, "cursor": self.stream.cursor()}
        return {_KEY: json.dumps(state)}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go to where a worker of as many was.

        Raises StateError if it is no such state, or of another number of workers, or cannot be continued here.
        """
        try:
            state = json.loads(state_dict[_KEY])
            workers, epoch, left, cursor = (state[name] for name in ("workers", "epoch", "left", "cursor"))
        except (LookupError, TypeError, ValueError, RecursionError) as error:
            raise StateError(f"not a state of a DataLoader's worker ({type(error).__name__}: {error})") from error
        if workers != self._workers:
            raise StateError(
                f"the state is of one of {workers} workers, and these are {self._workers}: load it with "
                f"num_workers={workers}; states of get_savable_loader fit any number"
            )
        cursor = check_cursor(cursor)
        self._epoch, self._left = epoch, left
        if self._spec.program is not None:
            self._open_lanes()
        else:
            global_batch = PassPlan.of(self._spec, self._config.world_size).global_batch
            if cursor["history"][-1][4] != global_batch:  # then another worker's steps might begin here
                raise StateError("the state is of batches of another size: load it with the same batch size")
            turn = cursor["item"] // global_batch % workers
            self._run(Stream.of_steps(self._spec, self._config, first=turn, readers=workers))
        self.stream.restore(cursor)
        self._dataset.note_pass(epoch)


_BATCHED_TWICE = (
    "the dataset makes whole batches, and PyTorch would make batches of these: use DataLoader(…, batch_size=None), or "
    "get_train_dataset(…, batch_size=None) for single samples. Hugging Face's Trainer makes such a DataLoader: use "
    "EnergonTrainer of energon_grain_torch.trainers.hf"
)
_FETCHING = {fetch._IterableDatasetFetcher.__init__.__code__, fetch._IterableDatasetFetcher.fetch.__code__}


def _batched_by_torch() -> bool:
    """Whether a `DataLoader` asks that makes batches of what it gets. Nothing but its frame on the stack shows that."""
    frame = inspect.currentframe()
    while frame is not None and frame.f_code not in _FETCHING:
        frame = frame.f_back
    return frame is not None and frame.f_locals["self"].auto_collation


def _collate(elements: list[Any], *, collate_fn_map: Any = None) -> Any:
    """What PyTorch's `default_collate` does with our types: samples become a batch; batches are one already."""
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
    """An entry point of the core, with datasets of this backend."""

    @public
    @wraps(entry)
    def call(*path: Any, **options: Any) -> Any:
        made = cast("Any", entry)(*path, **_with_defaults(options))
        return StreamDataset(worker_config=made.worker_config, dataset=made)

    return cast("Any", call)


def _each_for_torch(
    entry: Callable[P, list[tuple[SavableDataset[Item], Leaf]]],
) -> Callable[P, list[tuple[StreamDataset[Item], Leaf]]]:
    """The same of one that returns several."""

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
