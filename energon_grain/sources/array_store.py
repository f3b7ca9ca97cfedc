"""Arrays as TensorStore opens them: once a process, with one cache of chunks for all."""

from __future__ import annotations

import functools
import os
from typing import Any

import numpy as np

from energon_grain.errors import ConfigError, FormatError, StaleIndexError, WorkerError
from energon_grain.formats.array_metadata import ArrayMetadata

CACHE_BYTES = 256 << 20
"""Chunks that are kept, decompressed, for the next read: of all arrays of a process together."""
_NO_NUMBERS = "OSUMm"


def open_array(path: str, metadata: ArrayMetadata, dtype: np.dtype[Any]) -> Any:
    """Open an array for reading, as a `tensorstore.TensorStore`.

    Args:
        path: Its folder.
        metadata: What it was when it was found.
        dtype: Likewise.

    Raises:
        StaleIndexError: It has another shape or type now.
        FormatError: TensorStore cannot read arrays of this kind.
    """
    import tensorstore

    spec = {
        "driver": metadata.driver,
        "kvstore": {"driver": "file", "path": os.path.join(path, "")},
        # What was opened once counts as long as it is open: nothing is looked up on disk again for what is cached.
        "recheck_cached_data": "open",
        "recheck_cached_metadata": "open",
    }
    try:
        store = tensorstore.open(spec, open=True, read=True, context=_context()[1]).result()
    except Exception as error:
        raise FormatError(f"{path}: TensorStore cannot open it: {error}") from error
    if store.shape != metadata.shape or store.dtype.numpy_dtype != dtype:
        raise StaleIndexError(
            f"{path}: is {store.dtype.name}{list(store.shape)} now, and was {dtype}{list(metadata.shape)} when it was "
            "opened; begin anew, and let nothing write to it meanwhile"
        )
    return store


def check_process(path: str) -> None:
    """Check that no array was opened in a process that this one was forked from.

    Raises:
        WorkerError: There was one.
    """
    if _context()[0] != os.getpid():
        raise WorkerError(
            f"{path}: arrays were read in the process that this one was forked from, and TensorStore cannot "
            "be used in both; start workers with `spawn` or `forkserver`, or read no arrays before they start"
        )


@functools.cache
def _context() -> tuple[int, Any]:
    """The process, and what its arrays share: the cache."""
    import tensorstore

    return os.getpid(), tensorstore.Context({"cache_pool": {"total_bytes_limit": CACHE_BYTES}})


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
