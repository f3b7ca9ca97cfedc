"""Where the data of a sample came from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from energon_grain.storage.epath import EPath

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

S = TypeVar("S")


class SourceInfo(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One place on disk that a sample was made from.

    Immutable and hashable. A struct instead of a frozen dataclass because every sample read carries one: it is
    constructed in 0.2 µs instead of 0.9 µs.
    """

    dataset_path: EPath
    """Root of the dataset."""
    index: int | str
    """Dataset-wide number of the sample; its key where the sample was looked up by key."""
    shard_name: str
    """File that holds the sample, relative to the dataset; a base folder for loose files."""
    file_names: tuple[str, ...]
    """Full names of the members that were read."""

    def __setstate__(self, state: Sequence[Any]) -> None:
        """Take over the fields as Energon pickles them."""
        for name, value in zip(self.__struct_fields__, state, strict=True):
            msgspec.structs.force_setattr(self, name, value)


def add_source_info(sample: S, *sources: SourceInfo) -> S:
    """Append `sources` to the `__sources__` of a sample (object or dictionary) in place, and return the sample.

    Anything that has no place for sources is returned as it is.
    """
    record: Any = sample
    if isinstance(record, dict):
        record["__sources__"] = (*(record.get("__sources__") or ()), *sources)
    elif hasattr(record, "__sources__"):
        record.__sources__ = (*(record.__sources__ or ()), *sources)
    return sample


def get_source_info(sample: object) -> list[SourceInfo] | None:
    """The sources of a sample, of a batch, or of a list of samples in order; None where there are none."""
    if isinstance(sample, list):
        records: list[object] = sample
        found = [source for record in records for source in _sources(record)]
    else:
        found = list(_sources(sample))
    return found or None


def _sources(record: object) -> tuple[SourceInfo, ...]:
    if isinstance(record, dict):
        entry: Mapping[str, Any] = record
        return entry.get("__sources__") or ()
    return getattr(record, "__sources__", None) or ()
