# SPDX-License-Identifier: Apache-2.0
"""Files looked up by name: a cooker reads them beside its sample."""

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

    A custom store implements `get_path` and either `read`, which can sort and coalesce several keys, or `__getitem__`
    for one key. Stores are thread-safe and picklable: a copy in another process opens its own files.
    """

    def __new__(cls, *_: Any, **__: Any) -> Self:
        """Check that a subclass implements reading. Raises TypeError."""
        if cls.read is FileStore.read and cls.__getitem__ is FileStore.__getitem__:
            raise TypeError(f"{cls.__name__} implements neither `read` nor `__getitem__`; a store needs one of them")
        return super().__new__(cls)

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        ways = ("read", "__getitem__", "read_or_open")
        first = next(base for base in cls.__mro__ if not base.__dict__.keys().isdisjoint(ways))
        if "read_or_open" not in first.__dict__:
            cls.read_or_open = FileStore.read_or_open  # a class with its own way of reading reads everything

    def read(self, keys: Sequence[str]) -> list[tuple[T_co, SourceInfo]]:
        """Read the values of several keys, in order; keys may repeat.

        Raises:
            KeyNotFoundError: The store has no entry for one of the keys.
            ReadError: Bytes could not be read after retries.
        """
        return [self[key] for key in keys]

    def __contains__(self, key: object) -> bool:
        """Whether the store has a key. Our own stores read no data for this; by default the value is read."""
        try:
            self[key]  # type: ignore[index]
        except KeyError:
            return False
        return True

    @abstractmethod
    def get_path(self) -> str:
        """Location of the store."""

    def __getitem__(self, key: str) -> tuple[T_co, SourceInfo]:
        """The value of a key and its source. Raises as `read` does."""
        return self.read((key,))[0]

    def get(self, key: str, sample: Any = None) -> T_co:
        """The value of a key.

        Args:
            key: Name of the file.
            sample: The sample (an object, or a crude sample) to whose `__sources__` this file is added.

        Raises:
            KeyNotFoundError: The store has nothing under the key.
            ReadError: Bytes could not be read after retries.
        """
        value, source = self[key]
        if sample is not None:
            add_source_info(sample, source)
        return value

    def read_or_open(self, keys: Sequence[str], lazy: LazyFrom) -> list[tuple[Any, SourceInfo]]:
        """Read values, except large files for which `lazy` requests streams and the store supports them.

        A subclass of a built-in store that overrides `read` returns no streams: it may read other bytes.

        Raises:
            KeyNotFoundError: The store has no entry for one of the keys.
            ReadError: Bytes could not be read after retries.
        """
        del lazy
        return [*self.read(keys)]

    def stored(self, key: str) -> tuple[Any, SourceInfo]:
        """The stored form of a key's value, which `decoded` decodes. Raises as `read` does."""
        return self[key]

    def decoded(self, key: str, data: Any) -> T_co:
        """Decode what `stored` returned for a key.

        Raises:
            DecodingError: Decoding fails.
        """
        return data

    def _decoded_as(self, key: str) -> str:
        """The name whose ending determines how the value of a key is decoded; by default the key."""
        return key

    def get_media_metadata(self, key: str) -> AVMetadata | ImageMetadata:
        """Metadata of an image, video or audio file, without reading it.

        Raises:
            FatalSampleError: The store has no media metadata: `energon-grain prepare-media` was not run, or this class
                of store does not support them. A `RuntimeError`, as in Energon.
            KeyNotFoundError: The file has no metadata.
        """
        raise FatalSampleError(f"{self.get_path()}: {key!r}: {type(self).__name__} does not support media metadata")

    def close(self) -> None:
        """Release file handles. The next read opens them again."""


class OwnFileStore(FileStore[T_co]):
    """Base of our stores. Equal to another of the same class with the same `_identity`."""

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
    """Values of keys with their sources."""
    location = shared_epath(path)
    return [
        (value, SourceInfo(dataset_path=location, index=key, shard_name=shard, file_names=(key,)))
        for key, shard, value in zip(keys, shards, values, strict=False)
    ]
