# SPDX-License-Identifier: Apache-2.0
"""A placeholder for a dataset that was removed from the configuration of a run: its place in the mixture, no data."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, ClassVar, NoReturn, cast

import numpy as np
import numpy.typing as npt

from energon_grain.datasets.batching import BatchDataset
from energon_grain.datasets.dataset import SavableDataset
from energon_grain.datasets.grouping import GroupBatchDataset
from energon_grain.datasets.hooks import HookOwner
from energon_grain.datasets.lowering import IndexPart, LanePart, Lowering, Part
from energon_grain.datasets.mapping import FilterDataset, MapDataset
from energon_grain.datasets.mixtures import BlendDataset, BlendEpochizedDataset, ConcatDataset
from energon_grain.datasets.packing import PackingDataset
from energon_grain.datasets.passes import EpochizeDataset, LimitDataset, RepeatDataset
from energon_grain.datasets.shuffling import ShuffleBufferDataset
from energon_grain.errors import AmendmentError, SkipSample
from energon_grain.sources.cache_pool import CachePool
from energon_grain.sources.source import RawBatch
from energon_grain.stream.hooks import HookSpec
from energon_grain.stream.lanes import Items, Lane, LaneOperator, Reference, State
from energon_grain.stream.spec import Ordering, Resolved, ResolvedLeaf
from energon_grain.stream.state import Deferred, Form, ListOf, Same
from energon_grain.stream.worker_config import WorkerConfig

_REMOVED = (
    "this dataset was removed from the configuration. Keep it there as long as packs or groups of a saved state hold "
    "its samples, or steps before its removal are asked for; `loader.amend(remove=[…])` removes it in a running loader"
)


class _NoHooks:
    thread_safe: ClassVar[bool] = True
    __default_failure_tolerance__: ClassVar[int] = 0


class RemovedSource:
    """The samples of a removed dataset, of which only the number is known. Reading any raises AmendmentError."""

    data_files = None
    """None: its files are unknown; see `Rows.data_files`."""

    def __init__(self, name: str, samples: int, content: str) -> None:
        self.path, self.content_id, self._samples = name, content, samples

    def __len__(self) -> int:
        return self._samples

    def __reduce__(self) -> tuple[Any, ...]:
        return RemovedSource, (self.path, self._samples, self.content_id)

    def sizes(self, indices: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """(n,) zeros: nothing can be read."""
        return np.zeros(len(indices), np.int64)

    def read(self, indices: npt.NDArray[np.int64]) -> RawBatch:
        """Samples without parts. Positions that some lanes have already passed are read again and ignored."""
        keys = list(map(str, indices.tolist()))
        return RawBatch(indices=indices, keys=keys, shards=[self.path] * len(keys), columns={})

    def column(self, name: str, indices: npt.NDArray[np.int64] | slice) -> NoReturn:
        """Raise AmendmentError."""
        del indices
        raise AmendmentError(
            f"{self.path}: it was removed from the configuration, but the order of samples before that depends on its "
            f"column {name!r}. Keep it in the configuration and remove it in the running loader: "
            f"`loader.amend(remove=[…])`; states that are saved from then on continue without it"
        )

    def column_id(self, name: str) -> str:
        """An identifier of a column that is not there."""
        return name

    def locate(self, index: int) -> NoReturn:
        """Raise AmendmentError."""
        raise AmendmentError(f"{self.path}: sample {index} was used; {_REMOVED}")

    def close(self) -> None:
        """Nothing is open."""


def _refuse(sample: Any) -> NoReturn:
    """In place of making a sample."""
    del sample
    raise SkipSample(_REMOVED)


@dataclass(frozen=True, kw_only=True, slots=True)
class RemovedLeaf(SavableDataset):
    """A leaf without data.

    Attributes:
        name: Its key in the manifest.
        row: Its entry in the manifest.
    """

    worker_config: WorkerConfig = field(default_factory=WorkerConfig.default_worker_config)
    name: str
    row: Mapping[str, Any]
    task_encoder: HookOwner = field(default_factory=_NoHooks)

    @property
    def identity(self) -> tuple[str, ...]:
        """An identity that no other leaf has."""
        return "removed", self.name

    def lower(self, to: Lowering) -> Part:
        return to.leaf(self)

    def resolve(self) -> ResolvedLeaf:
        """A leaf with the same number of samples. Its order is never used."""
        source: Any = RemovedSource(self.name, max(1, int(self.row.get("samples", 1))), "removed")
        ordering = Ordering(training=False, passes=None, block=None, mixing=None, blocks_in_lane=None)
        return ResolvedLeaf(
            source=source,
            sample_type=None,
            field_map=None,
            load=_refuse,
            decoder=None,
            subflavors={},
            ordering=ordering,
        )

    def cook(self, leaf: Resolved, cache_pool: CachePool | None) -> HookSpec | None:
        """Nothing is cooked."""
        del leaf, cache_pool
        return None


def _refuse_all(samples: Any) -> NoReturn:
    """In place of hooks on several samples."""
    raise AmendmentError(_REMOVED)


def _refuse_each(samples: Any) -> Iterator[NoReturn]:
    """In place of generator hooks."""
    yield _refuse_all(samples)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class AbsentDataset(SavableDataset):
    """A combination of removed leaves: it keeps the states of its lanes, and makes nothing.

    Attributes:
        dataset: The same nodes with other hooks.
    """

    worker_config: WorkerConfig = field(default_factory=WorkerConfig.default_worker_config)
    dataset: SavableDataset

    def lower(self, to: Lowering) -> Part:
        part = to.lower(self.dataset)
        if isinstance(part, IndexPart):
            return part
        return LanePart(AbsentLanes(part.operator), part.mixture, part.batches)


@dataclass(frozen=True, slots=True, eq=False)
class AbsentLanes(LaneOperator):
    """Keeps the states of an operator that has no data."""

    child: LaneOperator

    @property
    def state_form(self) -> Form:
        """The state of the child, whose samples nothing reads."""
        return Deferred(self.child.state_form)

    def open(self, lane: Lane, state: State | None) -> Items:
        return _Kept(initial(self.state_form) if state is None else state)

    def rebuild(self, reference: Reference, lane: Lane) -> NoReturn:
        raise AmendmentError(_REMOVED)


class _Kept:
    __slots__ = ("_state",)

    def __init__(self, state: State) -> None:
        self._state = state

    def next(self) -> NoReturn:
        raise AmendmentError(_REMOVED)

    def begin(self, pass_number: int) -> None:
        """Nothing begins."""

    def state(self) -> State:
        return self._state

    def expect(self, items: float) -> None:
        """Nothing is read."""


def initial(form: Form) -> State:
    """The state of an operator that has made nothing."""
    match form:
        case tuple():
            return tuple(map(initial, form))
        case ListOf():
            return ()
        case Same() | Deferred():
            return initial(form.form)
        case _:
            return 0


def placeholder(form: Any, leaves: Sequence[tuple[str, Mapping[str, Any]]]) -> SavableDataset:
    """A dataset in place of a removed one.

    Args:
        form: Its entry in the manifest's mixture, if its items are not positions; else None.
        leaves: Key, and entry in the manifest, of each leaf.

    Raises:
        AmendmentError: Its states cannot be kept.
    """
    nodes: list[SavableDataset] = [RemovedLeaf(name=name, row=row) for name, row in leaves]
    if form is None:
        return nodes[0] if len(nodes) == 1 else ConcatDataset(*nodes)
    return AbsentDataset(dataset=_again(form, iter(nodes)))


def _again(form: Any, leaves: Iterator[SavableDataset]) -> SavableDataset:
    """The nodes of an entry of a manifest's mixture."""
    if not isinstance(form, Mapping):
        return next(leaves)
    entry = cast("Mapping[str, Any]", form)
    parts = entry.get("of", entry.get("generate"))
    below = [_again(part, leaves) for part in cast("list[Any]", parts if isinstance(parts, list) else [parts])]
    make = next((_MAKERS[name] for name in _MAKERS if name in entry), None)
    if make is None:
        raise AmendmentError(
            f"a dataset below the blend was removed from the configuration whose lanes have states of another kind "
            f"({', '.join(entry)}): keep it there, and remove it by `loader.amend(remove=[…])`"
        )
    return make(below, entry)


_Make = Callable[[list[SavableDataset], Mapping[str, Any]], SavableDataset]


def _hook(entry: Mapping[str, Any]) -> Callable[[Any], Any]:
    return _refuse_each if entry.get("generates") else _refuse_all


def _blend(below: list[SavableDataset], entry: Mapping[str, Any]) -> SavableDataset:
    weights, starts = entry["blend"]
    return BlendDataset(*below, schedule=list(zip(starts, weights, strict=True)), per_step=entry.get("per_step", False))


_MAKERS: dict[str, _Make] = {
    "filter": lambda below, entry: FilterDataset(below[0], _refuse_all),
    "pack": lambda below, entry: PackingDataset(below[0], entry["pack"], _refuse_all, _hook(entry)),
    "group": lambda below, entry: GroupBatchDataset(below[0], entry["group"], _refuse_all, _refuse_all),
    "batch": lambda below, entry: BatchDataset(below[0], entry["batch"], _hook(entry)),
    "generate": lambda below, entry: MapDataset(below[0], _refuse_each),
    "shuffle": lambda below, entry: ShuffleBufferDataset(below[0], entry["shuffle"]),
    "repeat": lambda below, entry: RepeatDataset(
        below[0], repeats=None if entry["repeat"] is None else Fraction(entry["repeat"])
    ),
    "limit": lambda below, entry: LimitDataset(below[0], entry["limit"]),
    "epochs": lambda below, entry: EpochizeDataset(below[0], entry["epochs"]),
    "concat": lambda below, entry: ConcatDataset(*below),
    "blend_epochized": lambda below, entry: BlendEpochizedDataset(
        *zip(below, map(Fraction, entry["blend_epochized"]), strict=True)
    ),
    "blend": _blend,
}
"""Nodes by the operation that a manifest names."""
