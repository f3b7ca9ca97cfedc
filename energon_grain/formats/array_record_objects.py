"""Records of ArrayRecord files in object stores, by ranges of bytes. See `riegeli_chunk` and `record_places`."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Sequence

import numpy as np
import numpy.typing as npt

from energon_grain.errors import FormatError, ReadError
from energon_grain.formats.array_record_files import ArrayRecordFile
from energon_grain.formats.record_places import (
    POSTSCRIPT_BYTES,
    RecordPlaces,
    footer_start,
    postscript_start,
    read_places,
)
from energon_grain.formats.riegeli_chunk import chunk_records
from energon_grain.storage.byte_store import ByteStore
from energon_grain.storage.location import is_url
from energon_grain.storage.remote_files import RemoteFiles
from energon_grain.storage.spans import coalesce
from energon_grain.storage.storage_settings import storage_settings

Int64Array = npt.NDArray[np.int64]


def find_places(store: ByteStore, paths: Sequence[str], sizes_bytes: Sequence[int]) -> list[RecordPlaces]:
    """Read where the records of some files lie; two rounds of requests, each side by side.

    Raises:
        ReadError: One is no ArrayRecord file, or a damaged one, or cannot be had.
    """
    every = np.arange(len(paths))
    ends, begins, places = list[int](), list[int](), list[RecordPlaces]()
    for path, size in zip(paths, sizes_bytes, strict=True):
        with _naming(path):
            ends.append(postscript_start(size))
    stops = np.array(ends, np.int64)
    postscripts = store.read_spans(paths, every, stops, stops + POSTSCRIPT_BYTES)
    for path, data, end in zip(paths, postscripts, ends, strict=True):
        with _naming(path):
            begins.append(footer_start(data, end))
    footers = store.read_spans(paths, every, np.array(begins, np.int64), stops)
    for path, data, begin in zip(paths, footers, begins, strict=True):
        with _naming(path):
            places.append(read_places(data, begin))
    return places


def record_extents(
    places: Sequence[RecordPlaces], file: Int64Array, record: Int64Array
) -> tuple[Int64Array, Int64Array]:
    """(n,) first byte of the chunk that holds each record, and (n,) size of it.

    Args:
        places: Of the files.
        file: (n,) which of them.
        record: (n,) number in the file.
    """
    start, size = np.empty(len(record), np.int64), np.empty(len(record), np.int64)
    for number in np.unique(file).tolist():
        here = np.flatnonzero(file == number)
        chunk = places[number].chunk_of(record[here])
        start[here] = places[number].start[chunk]
        size[here] = places[number].start[chunk + 1] - start[here]
    return start, size


def read_records(
    store: ByteStore, paths: Sequence[str], places: Sequence[RecordPlaces], file: Int64Array, record: Int64Array
) -> list[bytes]:
    """Read records of some files in the order asked for; a chunk of several is read and decompressed once.

    Args:
        store: Where they lie.
        paths: URLs of the files.
        places: Of each of them.
        file: (n,) which of them, ascending.
        record: (n,) number in the file, ascending within each.

    Raises:
        ReadError: A record cannot be had, or is damaged; names it.
    """
    start, size = record_extents(places, file, record)
    new = np.ones(len(record), np.bool_)
    new[1:] = (start[1:] != start[:-1]) | (file[1:] != file[:-1])
    heads = np.flatnonzero(new)
    spans = coalesce(
        file[heads],
        start[heads],
        size[heads],
        merge_gap_bytes=store.merge_gap_bytes,
        solo_bytes=store.solo_bytes,
    )
    data = store.read_spans(paths, spans.file, spans.start, spans.stop)
    chunks: list[list[bytes]] = []
    for head, span, begin in zip(heads.tolist(), spans.span.tolist(), spans.offset.tolist(), strict=True):
        try:
            chunks.append(chunk_records(data[span][begin : begin + int(size[head])], int(start[head])))
        except FormatError as error:
            raise ReadError(f"{paths[int(file[head])]}: record {int(record[head])}: its chunk {error}") from error
    if all(len(chunk) == 1 for chunk in chunks):
        return [chunk[0] for chunk in chunks]
    return _picked(places, file, record, chunks, (np.cumsum(new) - 1).tolist(), paths)


def _picked(
    places: Sequence[RecordPlaces],
    file: Int64Array,
    record: Int64Array,
    chunks: list[list[bytes]],
    chunk: list[int],
    paths: Sequence[str],
) -> list[bytes]:
    """The records asked for, out of the chunks that hold them."""
    found: list[bytes] = []
    for number, which, held in zip(file.tolist(), record.tolist(), chunk, strict=True):
        first = places[number].first
        place = int(first[np.searchsorted(first, which, side="right") - 1])
        if which - place >= len(chunks[held]):
            raise ReadError(f"{paths[number]}: record {which}: its chunk has fewer records than the footer says")
        found.append(chunks[held][which - place])
    return found


class ArrayRecordObject:
    """One file in an object store, as `ArrayRecordFile` is one on this machine.

    Args:
        url: Of the file.

    Attributes:
        records: How many it has.
        size_bytes: Of the file.
        generation: Version of the object.

    Raises:
        ReadError: It is not there, or is no ArrayRecord file.
    """

    def __init__(self, url: str) -> None:
        self._store = RemoteFiles(storage_settings())
        self._url = url
        self.size_bytes = self._store.size(url)
        self.generation = self._store.versions.of(url).generation
        self._places = find_places(self._store, [url], [self.size_bytes])
        self.records = self._places[0].records

    def read(self, records: list[int]) -> list[bytes]:
        """Read records, ascending. Raises ReadError when one cannot be read; names it."""
        numbers = np.array(records, np.int64)
        return read_records(self._store, [self._url], self._places, np.zeros_like(numbers), numbers)


def open_records(location: str) -> ArrayRecordFile | ArrayRecordObject:
    """Open the ArrayRecord file at a path or URL. Raises ReadError when there is none."""
    return ArrayRecordObject(location) if is_url(location) else ArrayRecordFile(location)


@contextlib.contextmanager
def _naming(path: str) -> Generator[None]:
    try:
        yield
    except FormatError as error:
        raise ReadError(f"{path}: {error}") from error
