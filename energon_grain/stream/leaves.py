"""Opened leaves: what the engine reads, how a sample is made of what was read, and in which order samples come."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from energon_grain.errors import ConfigError
from energon_grain.samplers.leaf_order import LeafOrder
from energon_grain.sources.arrays import ArraySource
from energon_grain.sources.joined import JoinedSource
from energon_grain.sources.remote_runs import ReadInRuns
from energon_grain.sources.source import Source
from energon_grain.stream.hooks import HookSpec
from energon_grain.transforms.decode import SampleDecoder
from energon_grain.transforms.field_map import FieldMap


def check_passes(passes: int | None, said_by: str = "") -> None:
    """Check a number of passes that are shuffled as one.

    Raises:
        ConfigError: It is neither a positive number, -1 nor None.
    """
    if passes is not None and (not hasattr(passes, "__index__") or (passes != -1 and passes < 1)):
        raise ConfigError(
            f"{said_by}shuffle_over_epochs_multiplier={passes!r}: 1 or more, -1 (with replacement) or None (keep order)"
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Ordering:
    """How a leaf's samples are ordered, once its own configuration was asked.

    Attributes:
        said_by: Where the numbers come from, to begin a message with.
        training: Whether they are shuffled.
        passes: Passes that are shuffled as one; -1: with replacement; None: no shuffling.
        block: Consecutive samples that are read together; None: each sample by itself.
        mixing: Samples that mix at least, where blocks are read.
        blocks_in_lane: Blocks that mix in each lane, where batches are formed inside a lane.
    """

    said_by: str = ""
    training: bool
    passes: int | None
    block: int | None
    mixing: int | None
    blocks_in_lane: int | None

    def __post_init__(self) -> None:
        check_passes(self.passes, self.said_by)
        if self.block is not None and self.block < 1:
            raise ConfigError(f"{self.said_by}max_samples_per_sequence={self.block}: 1 or more, or None")
        if self.mixing is not None and self.mixing < 0:
            raise ConfigError(f"{self.said_by}shuffle_buffer_size={self.mixing}: 0 or more, or None")
        if self.blocks_in_lane is not None and self.blocks_in_lane < 1:
            raise ConfigError(f"{self.said_by}parallel_shard_iters={self.blocks_in_lane}: 1 or more, or None")


@dataclass(frozen=True, kw_only=True, slots=True)
class ResolvedLeaf:
    """A leaf whose configuration was read and whose index is open. Picklable: the copy opens its files anew.

    Attributes:
        sample_type: None for a crude dataset.
        field_map: Where the fields of `sample_type` are found; None where there is `load`, and for a crude dataset.
        load: Makes a sample of a crude one; may run in several threads. None: the field map does, or a cooker.
        decoder: None leaves parts as bytes.
        subflavors: Tags of every sample.
        ordering: How the samples are ordered.
    """

    source: Source
    sample_type: type[Any] | None
    field_map: FieldMap | None
    load: Callable[[Any], Any] | None
    decoder: SampleDecoder | None
    subflavors: dict[str, Any]
    ordering: Ordering

    @property
    def path(self) -> str:
        """The dataset's folder or file, for provenance."""
        return os.fspath(self.source.path)


@dataclass(frozen=True, kw_only=True, slots=True)
class ResolvedArray:
    """An array that is there. Picklable.

    Attributes:
        source: Its rows.
        field: What the default merge calls it.
    """

    source: ArraySource
    field: str


@dataclass(frozen=True, slots=True)
class JoinRow:
    """A joiner, as a function of a row.

    Attributes:
        function: The user's, or a sample type's `from_joined`.
        names: Keywords that it gets its samples by; None: by position.
        sample_type: What it makes, as far as is known; None: crude samples.
        merges: Whether it is the default merge, of fields by name into `sample_type` or of the parts of crude samples.
    """

    function: Callable[..., Any]
    names: tuple[str, ...] | None
    sample_type: type[Any] | None
    merges: bool = False

    def __call__(self, row: tuple[Any, ...]) -> Any:
        """The sample of a row, whose missing samples are None."""
        if self.names is None:
            return self.function(*row)
        return self.function(**dict(zip(self.names, row, strict=True)))


@dataclass(frozen=True, kw_only=True, slots=True)
class ResolvedJoin:
    """A joined leaf whose configuration was read and whose indices are open. Picklable.

    Attributes:
        source: The rows.
        members: How samples of each dataset are made, the primary first; and the arrays.
        row: Makes one sample of a row's.
        ordering: How rows are ordered.
    """

    source: JoinedSource
    members: tuple[ResolvedLeaf | ResolvedArray, ...]
    row: JoinRow
    ordering: Ordering

    @property
    def primary(self) -> ResolvedLeaf:
        """The first dataset."""
        primary = self.members[0]
        assert isinstance(primary, ResolvedLeaf)
        return primary

    @property
    def sample_type(self) -> type[Any] | None:
        """What rows are made into; None for crude samples, which are cooked."""
        return self.row.sample_type

    @property
    def subflavors(self) -> dict[str, Any]:
        """Tags of the primary's samples."""
        return self.primary.subflavors

    @property
    def decoder(self) -> SampleDecoder | None:
        """The primary's."""
        return self.primary.decoder

    @property
    def path(self) -> str:
        """The primary's folder, for provenance."""
        return os.fspath(self.source.path)


@dataclass(frozen=True, kw_only=True, slots=True)
class LeafSpec:
    """One leaf: its source, how its samples are made, and its order.

    Attributes:
        key: The leaf's identity in random keys.
        hook_key: 64-bit key of the random numbers of hooks on its samples.
        cook: Hook that turns crude samples into samples; None where the leaf has a sample type, or nobody cooks.
        hooks: Hooks on each sample, in order, after it was made (and cooked). No two have the same name.
        failure_tolerance: Samples in a row that may fail to decode; 0: any number.
    """

    key: tuple[str, ...]
    leaf: ResolvedLeaf | ResolvedJoin
    order: LeafOrder
    hook_key: int
    cook: HookSpec | None
    hooks: tuple[HookSpec, ...]
    failure_tolerance: int


def wanted_block(leaf: ResolvedLeaf | ResolvedJoin) -> int | None:
    """Consecutive samples to read together where there are enough of them; None: each by itself."""
    if leaf.ordering.block is None and isinstance(leaf.source, ReadInRuns):
        return leaf.source.run_samples
    return leaf.ordering.block
