"""File stores on top of file stores: with values decoded, and with keys of the current sample."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from energon_grain.errors import DecodingError
from energon_grain.samples.source_info import SourceInfo
from energon_grain.sources.file_store import FileStore, T_co


class FileStoreDecoder(Protocol):
    """Decodes a file by its name; a `SampleDecoder` is one."""

    def decode(self, fname: str, data: bytes, /) -> Any:
        """The value of a file.

        Raises:
            DecodingError: The bytes do not decode.
        """
        ...


class DecodeFileStore(FileStore[Any]):
    """Decodes what another store reads, by the endings of the keys.

    Args:
        inner: Reads the bytes.
        decoder: Decodes them.
    """

    def __init__(self, inner: FileStore[bytes], *, decoder: FileStoreDecoder) -> None:
        self.inner = inner
        self.decoder = decoder

    def __repr__(self) -> str:
        return f"DecodeFileStore({self.inner!r}, decoder={self.decoder!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DecodeFileStore) and (self.inner, self.decoder) == (other.inner, other.decoder)

    def __hash__(self) -> int:
        return hash(self.inner)

    def get_path(self) -> str:
        """Where the inner store lies."""
        return self.inner.get_path()

    def __contains__(self, key: object) -> bool:
        """Whether the inner store has something under a key, decodable or not."""
        return key in self.inner

    def read(self, keys: Sequence[str]) -> list[tuple[Any, SourceInfo]]:
        """Read and decode. See `FileStore.read`.

        Raises:
            DecodingError: The bytes of a file do not decode.
        """
        return [
            (self._decoded(key, data), source) for key, (data, source) in zip(keys, self.inner.read(keys), strict=True)
        ]

    def stored(self, key: str) -> tuple[Any, SourceInfo]:
        """As the inner store has it."""
        return self.inner.stored(key)

    def decoded(self, key: str, data: Any) -> Any:
        """Decode what the inner store has. Raises as `read` does."""
        return self._decoded(key, self.inner.decoded(key, data))

    def _decoded(self, key: str, data: Any) -> Any:
        if isinstance(data, np.ndarray):
            return data  # numbers of a record, which need no decoding
        try:
            return self.decoder.decode(key, data)
        except DecodingError as error:
            raise DecodingError(f"{self.get_path()}: {key}: {error}") from error

    def close(self) -> None:
        """Close the inner store."""
        self.inner.close()


@dataclass(frozen=True, slots=True)
class PrimaryFileStore(FileStore[T_co]):
    """A store in which a key that begins with a dot means that part of the current sample: `.wav` is `000012.wav`.

    Attributes:
        inner: The store.
        current_key: Key of the sample that is being cooked.
    """

    inner: FileStore[T_co]
    current_key: str

    def get_path(self) -> str:
        """Where the store lies."""
        return self.inner.get_path()

    def __contains__(self, key: object) -> bool:
        """Whether there is something under a key."""
        return isinstance(key, str) and self._full(key) in self.inner

    def read(self, keys: Sequence[str]) -> list[tuple[T_co, SourceInfo]]:
        """Read whole names as they are, parts as those of the current sample. See `FileStore.read`."""
        return self.inner.read([self._full(key) for key in keys])

    def stored(self, key: str) -> tuple[Any, SourceInfo]:
        """As the store has it."""
        return self.inner.stored(self._full(key))

    def decoded(self, key: str, data: Any) -> T_co:
        """As the store decodes it."""
        return self.inner.decoded(self._full(key), data)

    def _full(self, key: str) -> str:
        return self.current_key + key if key.startswith(".") else key

    def close(self) -> None:
        """Close the store."""
        self.inner.close()
