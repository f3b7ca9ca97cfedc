# SPDX-License-Identifier: Apache-2.0
"""Checks the contract of `Source`: reading by index, locations, sizes, columns, identity, copies."""

from __future__ import annotations

import copy
import os
import pickle
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt

from energon_grain.errors import KeyNotFoundError
from energon_grain.sources.remote_runs import ReadInBlocks, ReadInRuns
from energon_grain.sources.source import Int64Array, Source
from energon_grain.storage.byte_stream import ByteStream

_LOOKED_AT = 64  # samples read from a large source
_CHILD_S = 600.0  # generous for a busy machine; a child that needs a lock of its parent would wait forever

Row = tuple[int, str, str, dict[str, Any]]
"""Index, key, shard and parts of a sample, with arrays as dtype, shape and bytes, for comparison."""


def check_source(
    open_source: Callable[[], Source], expected: Sequence[Mapping[str, Any]] | None = None, *, fork: bool = True
) -> None:
    """Check that a source reads the same samples for any indices, in any thread, copy and process.

    Covers the order and repetition of indices, indices out of range, keys, locations, sizes, runs and blocks, columns,
    content ids, copies by `pickle` and `copy.deepcopy`, a second opening, eight threads, a forked process, and reading
    after `close`.

    Args:
        open_source: Opens the source; called several times.
        expected: The parts of every sample, by name: bytes, or arrays for values that are not decoded. None: parts are
            compared only between reads.
        fork: Whether to also read in a forked process.

    Raises:
        AssertionError: The source breaks the contract; the message says where.
    """
    source = open_source()
    assert isinstance(source, Source), f"{type(source).__name__} lacks a member of `Source`"
    count = len(source)
    assert count > 0, f"{source.path}: is empty, so nothing was checked"
    some = np.unique(np.linspace(0, count - 1, min(count, _LOOKED_AT)).astype(np.int64))
    rows = rows_of(source, some)
    if expected is not None:
        _check_contents(source, rows, expected)
    _check_orders(source, some, rows)
    _check_range(source)
    _check_places(source, some, rows)
    _check_runs(source)
    for name in source.columns:
        _check_column(source, name)
    _check_unknown_column(source)
    _check_copies(source, open_source, some, rows)
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda place: rows_of(source, some[place : place + 1])[0], range(len(some))))
    assert found == rows, f"{source.path}: reads other samples in several threads"
    if fork:
        _check_forked(source, some, rows)
    source.close()
    assert rows_of(source, some) == rows, f"{source.path}: reads other samples after close"


def rows_of(source: Source, indices: Int64Array) -> list[Row]:
    """Return the samples at the indices, in a comparable form."""
    batch = source.read(indices)
    assert len(batch) == len(indices), f"{source.path}: {len(batch)} samples for {len(indices)} indices"
    return [
        (raw.index, raw.key, raw.shard, {name: value_of(value) for name, value in raw.parts.items()}) for raw in batch
    ]


def value_of(value: Any) -> Any:
    """Return a part in a comparable form: an array as dtype, shape and bytes, a stream as all its bytes."""
    if isinstance(value, np.ndarray | np.generic):
        array = np.asarray(value)
        return array.dtype.str, array.shape, array.tolist() if array.dtype.hasobject else array.tobytes()
    if isinstance(value, ByteStream):
        value.seek(0)
        return value.readall()
    return value


def _check_contents(source: Source, rows: list[Row], expected: Sequence[Mapping[str, Any]]) -> None:
    assert len(source) == len(expected), f"{source.path}: has {len(source)} samples, expected {len(expected)}"
    for index, key, _, parts in rows:
        wanted = {name: value_of(value) for name, value in expected[index].items() if name != "__key__"}
        assert parts == wanted, f"{source.path}: sample {index} has {parts!r}, expected {wanted!r}"
        named = expected[index].get("__key__", key)
        assert key == named, f"{source.path}: sample {index} has the key {key!r}, expected {named!r}"


def _check_orders(source: Source, some: Int64Array, rows: list[Row]) -> None:
    assert [row[0] for row in rows] == some.tolist(), f"{source.path}: samples have other indices than requested"
    shuffled = np.random.default_rng(0).integers(0, len(some), 2 * len(some) + 1)
    for order in (np.arange(len(some))[::-1], shuffled, shuffled[:1], shuffled[:0]):
        indices = some[order]
        wanted = [rows[place] for place in order.tolist()]
        assert rows_of(source, indices) == wanted, f"{source.path}: reads other samples at {indices.tolist()}"
        keys = source.keys(indices)
        assert keys == [row[1] for row in wanted], f"{source.path}: keys() returns other keys than read()"
        sizes = source.sizes(indices)
        assert (sizes.dtype, sizes.shape) == (np.int64, indices.shape), f"{source.path}: sizes are {sizes.dtype}"
        assert not (sizes < 0).any(), f"{source.path}: a size is negative"


def _check_range(source: Source) -> None:
    ways: dict[str, Callable[[int], Any]] = {
        "read": lambda index: source.read(np.array([0, index])),
        "keys": lambda index: source.keys(np.array([0, index])),
        "sizes": lambda index: source.sizes(np.array([0, index])),
        "locate": source.locate,
        "place_of": source.place_of,
        **{
            f"column {name}": lambda index, name=name: source.column(name, np.array([index])) for name in source.columns
        },
    }
    for way, ask in ways.items():
        for index in (-1, len(source), len(source) + 2**40):
            must_raise(IndexError, lambda ask=ask, index=index: ask(index), f"{source.path}: {way} of index {index}")


def must_raise(error: type[Exception], ask: Callable[[], Any], what: str) -> None:
    """Raise AssertionError unless `ask` raises `error`."""
    try:
        ask()
    except error:
        return
    raise AssertionError(f"{what} does not raise {error.__name__}")


def _check_places(source: Source, some: Int64Array, rows: list[Row]) -> None:
    places = [source.locate(index) for index in some.tolist()]
    for place, (index, key, shard, _) in zip(places, rows, strict=True):
        found = (place.index, place.key, place.shard)
        assert found == (index, key, shard), f"{source.path}: locate({index}) is {found}, read {(index, key, shard)}"
        assert place.start <= place.stop, f"{source.path}: locate({index}) ends at {place.stop}, before {place.start}"
    for index in some.tolist():
        assert source.place_of(index), f"{source.path}: place_of({index}) is empty"


def _check_runs(source: Source) -> None:
    """Check the blocks and runs of sources that define them."""
    if isinstance(source, ReadInRuns):
        run = source.run_samples
        assert run is None or run > 0, f"{source.path}: run_samples is {run}"
    if not isinstance(source, ReadInBlocks):
        return
    for at_least in (None, 1, 3):
        starts = source.block_starts(at_least)
        sizes, where = np.diff(starts), f"{source.path}: block_starts({at_least})"
        assert (starts[0], starts[-1]) == (0, len(source)), f"{where} go from {starts[0]} to {starts[-1]}"
        assert (sizes > 0).all(), f"{where} do not ascend"
        assert (sizes[:-1] >= (at_least or 1)).all(), f"{where} has smaller blocks"


def _check_column(source: Source, name: str) -> None:
    whole = source.column(name, slice(None))
    assert whole.shape == (len(source),), f"{source.path}: column {name!r} has the shape {whole.shape}"
    picked = np.random.default_rng(1).integers(0, len(source), 50)
    for indices in (
        picked,
        picked[:0],
        slice(1, 3),
        slice(-2, None),
        slice(9, 2),
        slice(None, None, 7),
        slice(0, 10**9),
    ):
        found: npt.NDArray[Any] = source.column(name, indices)
        same = found.dtype == whole.dtype and np.array_equal(found, whole[indices], equal_nan=whole.dtype.kind == "f")
        assert same, f"{source.path}: column {name!r} has other numbers at {indices}"


def _check_unknown_column(source: Source) -> None:
    name = "no such column"
    must_raise(KeyNotFoundError, lambda: source.column(name, slice(None)), f"{source.path}: column({name!r})")
    must_raise(KeyNotFoundError, lambda: source.column_id(name), f"{source.path}: column_id({name!r})")


def _check_copies(source: Source, open_source: Callable[[], Source], some: Int64Array, rows: list[Row]) -> None:
    ids = [source.column_id(name) for name in source.columns]
    pickled = pickle.loads(pickle.dumps(source))
    for how, other in (("pickled", pickled), ("deep", copy.deepcopy(source)), ("newly opened", open_source())):
        what = f"{source.path}: the {how} copy"
        assert other.content_id == source.content_id, f"{what} has another content id"
        assert (len(other), other.columns) == (len(source), source.columns), f"{what} has another length or columns"
        assert [other.column_id(name) for name in other.columns] == ids, f"{what} has other column ids"
        assert rows_of(other, some) == rows, f"{what} reads other samples"
        other.close()


def _check_forked(source: Source, some: Int64Array, rows: list[Row]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about threads of the caller, which the child does not use
        child = os.fork()
    if child == 0:
        status = 1
        try:
            status = 0 if rows_of(source, some) == rows else 2
        finally:
            os._exit(status)
    deadline = time.monotonic() + _CHILD_S
    ended, status = os.waitpid(child, os.WNOHANG)
    while not ended and time.monotonic() < deadline:
        time.sleep(0.005)
        ended, status = os.waitpid(child, os.WNOHANG)
    if not ended:
        os.kill(child, 9)
        os.waitpid(child, 0)
    assert ended, f"{source.path}: a forked process did not finish reading in {_CHILD_S:.0f} s"
    assert status == 0, f"{source.path}: a forked process reads other samples, or fails (status {status})"
