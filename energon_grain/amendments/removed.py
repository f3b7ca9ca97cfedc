# SPDX-License-Identifier: Apache-2.0
"""A placeholder for a dataset that was removed from the configuration of a run: its place in the mixture, no data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, NoReturn, Self

import numpy as np
import numpy.typing as npt

from energon_grain.datasets.dataset import SavableDataset
from energon_grain.datasets.hooks import HookOwner
from energon_grain.datasets.lowering import Lowering, Part
from energon_grain.errors import AmendmentError, SkipSample
from energon_grain.sources.cache_pool import CachePool
from energon_grain.sources.source import RawBatch
from energon_grain.stream.hooks import HookSpec
from energon_grain.stream.spec import Ordering, Resolved, ResolvedLeaf
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

    @classmethod
    def of(cls, name: str, row: Mapping[str, Any]) -> Self:
        """The leaf of a row of a manifest."""
        return cls(name=name, row=row)

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
