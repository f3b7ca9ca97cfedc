"""Arrays as TensorStore opens them: once a process, with one cache of chunks for all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from energon_grain.errors import ConfigError, EmptyDatasetError, FormatError, ReadError, StaleIndexError
from energon_grain.formats.array_metadata import ArrayMetadata
from energon_grain.sources.array_context import shared_context
from energon_grain.storage.kvstore_spec import kvstore_spec
from energon_grain.storage.location import is_url
from energon_grain.storage.storage_settings import StorageSettings, storage_settings

CACHE_BYTES = 256 << 20
"""Chunks that are kept, decompressed, for the next read: of all local arrays of a process together, and as much of all
remote ones."""
_NO_NUMBERS = "OSUMm"
_WAY_OUT = "; in a group, leave it out by part_filter"
_UNREACHABLE = ("UNAVAILABLE", "DEADLINE_EXCEEDED", "ABORTED", "PERMISSION_DENIED", "UNAUTHENTICATED")
"""What TensorStore's messages begin with where the array itself may be all right."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredArray:
    """An array that can be opened. Picklable.

    Attributes:
        location: Its folder.
        metadata: What it was when it was found.
        dtype: The type of its numbers.
        settings: How its store is reached; None: it lies on this machine.
    """

    location: str
    metadata: ArrayMetadata
    dtype: np.dtype[Any]
    settings: StorageSettings | None

    @classmethod
    def found(cls, location: str, metadata: ArrayMetadata) -> StoredArray:
        """An array that was just found there.

        Raises:
            ConfigError: It holds no numbers, or it is a single number.
            EmptyDatasetError: It has zero rows.
        """
        if not metadata.shape:
            raise ConfigError(f"{location}: is a single number without a first axis, so it has no rows{_WAY_OUT}")
        if not metadata.rows:
            shape = list(metadata.shape)
            raise EmptyDatasetError(f"{location}: the array has shape {shape}, so it has no rows{_WAY_OUT}")
        return cls(
            location=location,
            metadata=metadata,
            dtype=_numpy_type(location, metadata.type_name),
            settings=storage_settings() if is_url(location) else None,
        )

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
            ReadError: The store cannot be reached.
        """
        import tensorstore

        kvstore, key = {"driver": "file"}, self.location
        if self.settings is not None:
            kvstore, key = kvstore_spec(self.location, self.settings)
        spec = {
            "driver": self.metadata.driver,
            "kvstore": {**kvstore, "path": f"{key.rstrip('/')}/"},
            # What was opened once counts as long as it is open: nothing is looked up again for what is cached.
            "recheck_cached_data": "open",
            "recheck_cached_metadata": "open",
        }
        try:
            store = tensorstore.open(spec, open=True, read=True, context=_context(self.settings)).result()
        except Exception as error:
            kind = ReadError if str(error).startswith(_UNREACHABLE) else FormatError
            raise kind(f"{self.location}: TensorStore cannot open it: {error}") from error
        if store.shape != self.metadata.shape or store.dtype.numpy_dtype != self.dtype:
            raise StaleIndexError(
                f"{self.location}: is {store.dtype.name}{list(store.shape)} now, and was "
                f"{self.dtype}{list(self.metadata.shape)} when it was opened; begin anew, and let nothing write to it "
                "meanwhile"
            )
        return store


_contexts: dict[bytes, Any] = {}


def _context(settings: StorageSettings | None) -> Any:
    """What the arrays of this process share: the cache, and the bound on the requests to stores in flight.

    Failed requests are repeated by TensorStore, whose reads consist of many.
    """
    import tensorstore

    key = msgspec.json.encode(settings)
    if key not in _contexts:
        spec: dict[str, Any] = {"cache_pool": {"total_bytes_limit": CACHE_BYTES}}
        if settings is not None:
            retries = {
                "max_retries": settings.attempts - 1,
                "initial_delay": f"{settings.first_pause_s}s",
                "max_delay": f"{settings.longest_pause_s}s",
            }
            spec |= {f"{driver}_request_retries": retries for driver in ("s3", "gcs", "http")}
        parent = None if settings is None else shared_context(settings)
        _contexts.setdefault(key, tensorstore.Context(tensorstore.Context.Spec(spec), parent))
    return _contexts[key]


def _numpy_type(location: str, name: str) -> np.dtype[Any]:
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
    if found is None or found.kind in _NO_NUMBERS or found.type is np.void or not found.itemsize:
        raise ConfigError(f"{location}: its elements are of type {name}; rows can be arrays of plain numbers only")
    return found
