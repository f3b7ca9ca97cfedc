# SPDX-License-Identifier: Apache-2.0
"""Files looked up by their names: what a cooker reads beside its sample."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, Generic, Self, TypeVar, cast

from energon_grain.errors import FatalSampleError, public
from energon_grain.samples.media_metadata import AVMetadata, ImageMetadata
from energon_grain.samples.sample import SourceInfo, add_source_info
from energon_grain.sources.source import LazyFrom
from energon_grain.storage.epath import shared_epath

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


@public
class FileStore(ABC, Generic[T_co]):
    """Random access by key: `store[key]`, or `store.get(key, sample)` inside a cooker.

    A store of your own has `get_path` and either `read`, which can sort and coalesce several keys, or `__getitem__` for
    one. Stores are thread-safe and picklable: a copy in another process opens its own files.
    """

    def __new__(cls, *_: Any, **__: Any) -> Self:
        """Check that a subclass says how values are read. Raises TypeError."""
        if cls.read is FileStore.read and cls.__getitem__ is FileStore.__getitem__:
            raise TypeError(f"{cls.__name__} has neither `read` nor `__getitem__`, one of which gives a store's values")
        return super().__new__(cls)

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        ways = ("read", "__getitem__", "read_or_open")
        first = next(base for base in cls.__mro__ if not base.__dict__.keys().isdisjoint(ways))
        if "read_or_open" not in first.__dict__:
            cls.read_or_open = FileStore.read_or_open  # who reads in a way of its own is asked for all that is read

    def read(self, keys: Sequence[str]) -> list[tuple[T_co, SourceInfo]]:
        """Read the values of several keys, in their order; repeated keys are fine.

        Raises:
            KeyNotFoundError: The store has nothing under one of the keys.
            ReadError: Bytes could not be read after retries.
        """
        return [self[key] for key in keys]

    def __contains__(self, key: object) -> bool:
        """Whether there is something under a key. Our own stores read no data for it; by default the value is read."""
        try:
            self[key]  # type: ignore[index]
        except KeyError:
            return False
        return True

    @abstractmethod
    def get_path(self) -> str:
        """Where the store lies."""

    def __getitem__(self, key: str) -> tuple[T_co, SourceInfo]:
        """The value of a key, and where it came from. Raises as `read` does."""
        return self.read((key,))[0]

    def get(self, key: str, sample: Any = None) -> T_co:
        """The value of a key.

        Args:
            key: Name of the file.
            sample: The sample (an object, or a crude sample) whose `__sources__` list this file.

        Raises:
            KeyNotFoundError: The store has nothing under the key.
            ReadError: Bytes could not be read after retries.
        """
        value, source = self[key]
        if sample is not None:
            add_source_info(sample, source)
        return value

    def read_or_open(self, keys: Sequence[str], lazy: LazyFrom) -> list[tuple[Any, SourceInfo]]:
        """Read, but for files that are so large that `lazy` wants streams of them, where this store can give these.

        A class that derives from ours and has a `read` of its own gives none: what it reads may be other bytes.

        Raises:
            KeyNotFoundError: The store has nothing under one of the keys.
            ReadError: Bytes could not be read after retries.
        """
        del lazy
        return [*self.read(keys)]

    def stored(self, key: str) -> tuple[Any, SourceInfo]:
        """What lies under a key as it is stored, which `decoded` makes the value of. Raises as `read` does."""
        return self[key]

    def decoded(self, key: str, data: Any) -> T_co:
        """The value of a key, from what `stored` returned.

        Raises:
            DecodingError: It does not decode.
        """
        return data

    def _decoded_as(self, key: str) -> str:
        """The name by whose ending the value of a key is decoded; by default the key itself."""
        return key

    def get_media_metadata(self, key: str) -> AVMetadata | ImageMetadata:
        """What is known of a file that is an image, a video or a sound, without reading it.

        Raises:
            FatalSampleError: Nothing is known of any: `energon-grain prepare-media` was not run, or the store is of a
                kind that has no such metadata. A `RuntimeError`, as in Energon.
            KeyNotFoundError: Nothing is known of this one.
        """
        raise FatalSampleError(f"{self.get_path()}: {key!r}: a {type(self).__name__} knows no metadata of media")

    def close(self) -> None:
        """Release file handles; reading again opens them anew."""


class OwnFileStore(FileStore[T_co]):
    """One of ours, equal to another of its kind that has the same `_identity`."""

    @property
    def _identity(self) -> Any:
        return self.get_path()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.get_path()!r})"

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and self._identity == cast("Any", other)._identity

    def __hash__(self) -> int:
        return hash(self._identity)


def with_sources(
    path: str, keys: Iterable[str], shards: Iterable[str], values: Iterable[T]
) -> list[tuple[T, SourceInfo]]:
    """Values of keys, and where each came from."""
    location = shared_epath(path)
    return [
        (value, SourceInfo(dataset_path=location, index=key, shard_name=shard, file_names=(key,)))
        for key, shard, value in zip(keys, shards, values, strict=False)
    ]
