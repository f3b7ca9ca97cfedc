"""Where a sample came from, told only when somebody asks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, cast, overload

import msgspec

from energon_grain.samples.source_info import SourceInfo
from energon_grain.sources.source import SampleLocation
from energon_grain.storage.epath import shared_epath


class LazyTuple(msgspec.Struct, gc=False, eq=False):
    """Behaves as the tuple that `resolve` gives.

    But `isinstance(…, Sequence)` is False: frameworks that move batches to devices walk through sequences and make new
    ones of the same type. They leave this as it is.
    """

    def resolve(self) -> tuple[SourceInfo, ...]:
        """The plain tuple."""
        raise NotImplementedError

    def __len__(self) -> int:
        return len(self.resolve())

    @overload
    def __getitem__(self, place: int) -> SourceInfo: ...
    @overload
    def __getitem__(self, place: slice) -> tuple[SourceInfo, ...]: ...
    def __getitem__(self, place: int | slice) -> SourceInfo | tuple[SourceInfo, ...]:
        return self.resolve()[place]

    def __iter__(self) -> Iterator[SourceInfo]:
        return iter(self.resolve())

    def __add__(self, other: Sequence[SourceInfo]) -> LazyTuple:
        return ChainedSources((cast("Sequence[SourceInfo]", self), other))

    def __contains__(self, entry: object) -> bool:
        return entry in self.resolve()

    def __radd__(self, other: Sequence[SourceInfo]) -> LazyTuple:
        return ChainedSources((other, cast("Sequence[SourceInfo]", self)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, (tuple, LazyTuple)) and self.resolve() == tuple(other)

    def __hash__(self) -> int:
        return hash(self.resolve())

    def __repr__(self) -> str:
        return repr(self.resolve())

    def __reduce__(self) -> tuple[Any, ...]:
        return tuple, (self.resolve(),)


class LazySources(LazyTuple, gc=False, eq=False):
    """The `__sources__` of one sample: behaves as a tuple of one `SourceInfo`, looked up in the index when asked for.

    Most samples are trained on without anyone asking; a tuple of strings for each would cost more than reading it. A
    struct is made in 0.1 µs and is nothing to the garbage collector.
    """

    source: Any
    """The `Source` that the sample was read from."""
    index: int
    """Index of the sample in it."""

    def resolve(self) -> tuple[SourceInfo, ...]:
        """The plain tuple."""
        return (_info(self.source, self.source.locate(self.index)),)

    def __len__(self) -> int:
        return 1


class LazyRowSources(LazySources, gc=False, eq=False):
    """The `__sources__` of a row of a join: those of all its members, looked up when asked for."""

    def resolve(self) -> tuple[SourceInfo, ...]:
        """The plain tuple."""
        places = zip(self.source.members, self.source.locate_all(self.index), strict=True)
        return tuple(_info(member, place) for member, place in places if place is not None)

    def __len__(self) -> int:
        return len(self.resolve())


class ChainedSources(LazyTuple, gc=False, eq=False):
    """The sources of several samples one after the other, looked up when asked for."""

    parts: tuple[Sequence[SourceInfo], ...]

    def resolve(self) -> tuple[SourceInfo, ...]:
        """The plain tuple."""
        return tuple(source for part in self.parts for source in part)

    def __len__(self) -> int:
        return sum(map(len, self.parts))


def _info(source: Any, place: SampleLocation) -> SourceInfo:
    names = tuple(f"{place.key}.{part}" for part in place.parts)
    return SourceInfo(
        dataset_path=shared_epath(source.path), index=place.index, shard_name=place.shard, file_names=names
    )
