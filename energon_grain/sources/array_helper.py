"""Rows through a helper process, for processes in which TensorStore cannot be used: children by a fork."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from functools import partial
from multiprocessing.connection import Connection
from typing import Any, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from energon_grain.errors import ReadError
from energon_grain.sources.array_reads import OpenArray, read_rows, separate_rows
from energon_grain.sources.array_store import StoredArray
from energon_grain.sources.helper_process import helper_process, serve_connections

Int64Array = npt.NDArray[np.int64]
_Opened: TypeAlias = dict[bytes, OpenArray]


def read_rows_by_helper(arrays: Sequence[StoredArray], indices: Int64Array) -> list[list[npt.NDArray[Any]]]:
    """Read rows as `read_rows` does. The helper starts with the first read, and opens what it reads.

    Args:
        arrays: As there, but not opened.
        indices: (n,) as there; at least one.

    Raises:
        ReadError: As there, or the helper ended twice.
        StaleIndexError: An array has another shape or type now than when it was opened.
        FormatError: TensorStore cannot read arrays of this kind.
        WorkerError: The helper cannot be started.
    """
    try:
        blocks = _ask(arrays, indices)
    except (EOFError, ConnectionError):
        try:
            blocks = _ask(arrays, indices)
        except (EOFError, ConnectionError) as error:
            where = ", ".join(array.location for array in arrays)
            raise ReadError(
                f"{where}: the helper process that reads rows for a forked process ended, twice; was it out of memory?"
            ) from error
    return [
        separate_rows(np.frombuffer(block, array.dtype).reshape(len(indices), *array.row_shape))
        for array, block in zip(arrays, blocks, strict=True)
    ]


def _ask(arrays: Sequence[StoredArray], indices: Int64Array) -> list[bytes]:
    helper = helper_process(__name__)
    try:
        connection = helper.connection()
        connection.send((tuple(arrays), indices))
        error = cast("Exception | None", connection.recv())  # from our own process, over a private socket
        blocks = [connection.recv_bytes() for _ in arrays] if error is None else []
    except BaseException:
        helper.forget()  # also when interrupted: an answer that nobody waits for would be taken for the next one
        raise
    if error is not None:
        raise error
    return blocks


def serve() -> None:
    """The program of the helper."""
    serve_connections(partial(_serve, opened={}))


def _serve(connection: Connection, opened: _Opened) -> None:
    arrays, indices = cast("tuple[tuple[StoredArray, ...], Int64Array]", connection.recv())
    try:
        rows = read_rows([_opened(array, opened) for array in arrays], indices)
    except Exception as error:
        connection.send(error)
        return
    connection.send(None)
    for found in rows:
        connection.send_bytes(np.stack(found).reshape(-1).view(np.uint8).data)


def _opened(array: StoredArray, opened: _Opened) -> OpenArray:
    key = pickle.dumps(array)
    if key not in opened:
        opened[key] = OpenArray.of(array)
    return opened[key]
