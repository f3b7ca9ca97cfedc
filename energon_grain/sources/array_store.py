"""Arrays as TensorStore opens them: once a process, with one cache of chunks for all."""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass
from typing import Any

import numpy as np

from energon_grain.errors import ConfigError, FormatError, StaleIndexError
from energon_grain.formats.array_metadata import ArrayMetadata

CACHE_BYTES = 256 << 20
"""Chunks that are kept, decompressed, for the next read: of all arrays of a process together."""
_NO_NUMBERS = "OSUMm"


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredArray:
    """An array that can be opened. Picklable and hashable.

    Attributes:
        path: Its folder.
        metadata: What it was when it was found.
        dtype: The type of its numbers.
    """

    path: str
    metadata: ArrayMetadata
    dtype: np.dtype[Any]

    @property
    def row_shape(self) -> tuple[int, ...]:
        """Shape of one row; () where the array has one axis."""
        return self.metadata.shape[1:]

    @property
    def row_bytes(self) -> int:
        """Size of a row."""
        return self.dtype.itemsize * int(np.prod(self.row_shape, dtype=np.int64))

    def open(self) -> Any:
        """Open it for reading, as a `tensorstore.TensorStore`.

        Raises:
            StaleIndexError: It has another shape or type now.
            FormatError: TensorStore cannot read arrays of this kind.
        """
        import tensorstore

        spec = {
            "driver": self.metadata.driver,
            "kvstore": {"driver": "file", "path": os.path.join(self.path, "")},
            # What was opened once counts as long as it is open: nothing is looked up on disk again for what is cached.
            "recheck_cached_data": "open",
            "recheck_cached_metadata": "open",
        }
        try:
            store = tensorstore.open(spec, open=True, read=True, context=_context()).result()
        except Exception as error:
            raise FormatError(f"{self.path}: TensorStore cannot open it: {error}") from error
        if store.shape != self.metadata.shape or store.dtype.numpy_dtype != self.dtype:
            raise StaleIndexError(
                f"{self.path}: is {store.dtype.name}{list(store.shape)} now, and was "
                f"{self.dtype}{list(self.metadata.shape)} when it was opened; begin anew, and let nothing write to it "
                "meanwhile"
            )
        return store


@functools.cache
def _context() -> Any:
    """What the arrays of this process share: the cache."""
    import tensorstore

    return tensorstore.Context({"cache_pool": {"total_bytes_limit": CACHE_BYTES}})


def numpy_type(path: str, name: str) -> np.dtype[Any]:
    """The type of the rows of an array, whose metadata calls it `name`.

    Raises:
        ConfigError: Its elements are no numbers.
    """
    try:
        found: Any = np.dtype(name).newbyteorder("=")
    except (TypeError, SyntaxError):
        import tensorstore  # it knows more types (bfloat16, float8); this starts no threads

        try:
            found = tensorstore.dtype(name).numpy_dtype
        except ValueError:
            found = None
    if found is None or found.kind in _NO_NUMBERS or not found.itemsize:
        raise ConfigError(f"{path}: its elements are of type {name}; rows can be arrays of plain numbers only")
    return found
