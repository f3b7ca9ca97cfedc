# SPDX-License-Identifier: Apache-2.0
"""JSONL files: scanning lines, the index `x.jsonl.idx`, and locating file and index."""

from __future__ import annotations

import bisect
import contextlib
import errno
import glob
import hashlib
import logging
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from energon_grain.atomic_files import atomic_write, locked, sweep, writing_in
from energon_grain.errors import (
    DatasetNotFoundError,
    DecodingError,
    EmptyDatasetError,
    IndexFileError,
    MissingObjectError,
    RangeError,
    StaleIndexError,
)
from energon_grain.formats.columnar_header import index_cache_folder, read_or_map, release_pages
from energon_grain.formats.columns import Measured
from energon_grain.formats.local_files import LocalFiles
from energon_grain.samplers.hashing import fold
from energon_grain.storage.byte_store import ByteStore
from energon_grain.storage.location import is_url, located, name_of
from energon_grain.storage.remote import (
    UNVERSIONED,
    ObjectClient,
    ObjectRange,
    RemoteFiles,
    is_unchanged,
    mirror_of,
    open_object,
    remote_files,
    shared_client,
)
from energon_grain.storage.settings import storage_settings
from energon_grain.storage.urls import revision_of

Int64Array = npt.NDArray[np.int64]
Progress = Callable[[int, int], None]
"""Called with (bytes read, samples found)."""
_BLOCK_BYTES = 1 << 20
_COUNTED_BYTES = 16 << 20
_NEWLINE, _RETURN, _OPEN, _CLOSE = b"\n\r{}"
_LISTED_LINES = 5
_HASHED_OFFSETS = 1 << 17
_SMALLEST_INDEX_BYTES = 16
_COPIED_BYTES = 16 << 20
_logger = logging.getLogger("energon_grain")


def scan_lines(path: str | os.PathLike[str]) -> Iterator[tuple[Int64Array, int]]:
    """Scan a file once from start to end, in memory of about the longest line plus a few MB.

    Lines that begin with `{` and end with `}` are handled without Python code; others are checked individually.

    Yields:
        (n,) offsets in the file of the lines with a sample, for some whole lines, and the offset after them.

    Raises:
        OSError: The file cannot be read.
        DecodingError: Lines are neither blank nor contain an object. Names the first five and their number. Raised at
            the end, after all have been counted.
    """
    location, name = located(path), os.path.basename(path)
    wrong: list[str] = []
    count = lines = offset = 0
    with open_object(location) if is_url(location) else open(location, "rb", buffering=0) as file:
        for block in _whole_lines(file):
            starts, malformed, found = _samples_of(block)
            count += len(malformed)
            wrong += [f"{name}:{lines + line + 1}: {text!r}" for line, text in malformed[: _LISTED_LINES - len(wrong)]]
            lines += found
            yield starts + offset, offset + len(block)
            offset += len(block)
    if count:
        more = f"; and {count - len(wrong):,} more" if count > len(wrong) else ""
        raise DecodingError(
            f"{path}: {count:,} of {lines:,} lines contain no JSON object: {', '.join(wrong)}{more}. Each line must be "
            f"one object, {{…}}; fix or remove these lines (`energon-grain lint {path}` lists all of them)"
        )


def is_object(line: bytes) -> bool:
    """Whether a stripped line that is not blank looks like an object, by the rule of `scan_lines`."""
    return line.startswith(b"{") and line.endswith(b"}")


class LineNumbers:
    """Finds the number of the line at an offset, counted from 1.

    Counts line ends from the nearest known position. The whole file is read at most once (at 2 GB/s, or the speed of
    the disk or store), and each further call reads at most 16 MB. Thread-safe.
    """

    def __init__(self, path: str, store: ByteStore) -> None:
        self._path, self._store = path, store
        self._offsets, self._lines = [0], [1]
        self._lock = threading.Lock()

    def at(self, offset: int) -> int:
        """The number of the line that contains the byte at `offset`. Raises ReadError when it cannot be read."""
        with self._lock:
            known = bisect.bisect_right(self._offsets, offset) - 1
            position, line = self._offsets[known], self._lines[known]
            while position < offset:
                stop = min(position + _COUNTED_BYTES, offset)
                file = np.zeros(1, np.int64)
                (block,) = self._store.read_spans([self._path], file, np.array([position]), np.array([stop]))
                position, line = stop, line + block.count(b"\n")
                if position - self._offsets[-1] >= _COUNTED_BYTES:
                    self._offsets.append(position)
                    self._lines.append(line)
            return line


def _whole_lines(file: BinaryIO) -> Iterator[bytes]:
    """Blocks of whole lines. A line longer than a block is a block of its own."""
    open_line: list[bytes] = []
    while block := file.read(_BLOCK_BYTES):
        cut = block.rfind(b"\n") + 1
        if cut:
            yield b"".join((*open_line, block[:cut]))
            open_line = []
        open_line.append(block[cut:])
    rest = b"".join(open_line)
    if rest:
        yield rest


def _samples_of(block: bytes) -> tuple[npt.NDArray[np.int64], list[tuple[int, bytes]], int]:
    """Starts of lines with samples, (line, text) of malformed lines, and the number of lines."""
    data = np.frombuffer(block, np.uint8)
    ends = np.flatnonzero(data == _NEWLINE)
    if block[-1] != _NEWLINE:
        ends = np.append(ends, len(data))
    starts = np.concatenate([np.zeros(1, np.int64), ends[:-1] + 1])
    # For an empty first line this reads the last byte, but the line's own first byte is no brace.
    last = data[ends - 1]
    last = np.where(last == _RETURN, data[np.maximum(ends - 2, 0)], last)
    holds = (data[starts] == _OPEN) & (last == _CLOSE)
    malformed: list[tuple[int, bytes]] = []
    for line in np.flatnonzero(~holds).tolist():
        text = block[starts[line] : ends[line]].strip()
        if is_object(text):
            holds[line] = True
        elif text:
            malformed.append((line, text[:40]))
    return starts[holds], malformed, len(ends)


def jsonl_index_path(path: str | os.PathLike[str]) -> Path:
    """Return the path of the index of a JSONL file: `x.jsonl` → `x.jsonl.idx`."""
    return Path(f"{os.fspath(path)}.idx")


def read_jsonl_index(path: str | os.PathLike[str], *, of: str | None = None) -> Int64Array:
    """Map an index, read-only: (n+1,) offsets. The cost is independent of the number of samples.

    Args:
        of: The JSONL file, for messages; default: derived from `path`.

    Raises:
        OSError: The file does not exist or cannot be read.
        IndexFileError: Its size is not a multiple of 8, it has fewer than two offsets, or it does not begin with 0.
    """
    with open(path, "rb") as file:
        size_bytes = os.fstat(file.fileno()).st_size
        defect = None
        if size_bytes < 16 or size_bytes % 8:
            defect = f"expected two or more 8-byte offsets, found {size_bytes} bytes"
        else:
            starts = np.ndarray((size_bytes // 8,), "<i8", buffer=read_or_map(file.fileno(), size_bytes))
            if int(starts[0]) == 0:
                return starts
            defect = f"its first offset is {int(starts[0])}, not 0"
    data = str(path).removesuffix(".idx") if of is None else of
    raise IndexFileError(f"{data}.idx: {defect}. The index is damaged; `energon-grain prepare {data}` rewrites it")


def lines_id(starts: Int64Array) -> int:
    """A 64-bit digest of the number of samples and their offsets.

    For large files at most 131,072 evenly spaced offsets are hashed: hashing all would read the whole index.
    """
    step = -(-len(starts) // _HASHED_OFFSETS)
    return fold(len(starts), int(starts[-1]), starts[::step].tobytes())


def measured_lines(starts: Int64Array) -> Measured:
    """Properties of the samples that columns of lines belong to, from their offsets."""

    def sizes(numbers: Int64Array | slice, _: int | None) -> Int64Array:
        if isinstance(numbers, slice):
            return np.diff(starts[numbers.start : numbers.stop + 1])
        return starts[numbers + 1] - starts[numbers]

    return Measured(
        content_id=f"{lines_id(starts):016x}",
        samples=len(starts) - 1,
        parts=("json",),
        sizes=sizes,
        release=partial(release_pages, starts),
    )


def write_jsonl_index(
    path: str | os.PathLike[str], *, target: Path | None = None, progress: Progress | None = None
) -> int:
    """Write the index of a JSONL file atomically, in one pass over the file, and return the number of samples.

    Memory does not grow with the file.

    Args:
        path: The JSONL file, or its URL.
        target: Where to write; default: beside the file, which must be local.
        progress: Called about once per MB.

    Raises as `scan_lines`, OSError if the index cannot be written, and EmptyDatasetError if there is no sample.
    """
    samples = stop = 0
    target = target or jsonl_index_path(path)
    sweep(target.parent, f".{glob.escape(target.name)}.*.tmp")
    with writing_in(target.parent), atomic_write(target) as file:
        for starts, stop in scan_lines(path):
            if not samples and len(starts):
                starts[0] = 0
            file.write(starts.astype("<i8").data)
            samples += len(starts)
            if progress is not None:
                progress(stop, samples)
        if not samples:
            raise EmptyDatasetError(f"{path}: has no samples; write one JSON object per line")
        file.write(stop.to_bytes(8, "little"))
    return samples


def find_jsonl_index(path: str | os.PathLike[str], *, cache_dir: Path | None = None) -> Path:
    """Return the path of an index that matches a local file; create it if there is none.

    It is created beside the file, or in `cache_dir` if that folder is not writable. Of two concurrent processes, the
    second waits and uses the index of the first.

    Raises:
        DatasetNotFoundError: There is no such file.
        StaleIndexError: The index belongs to another version of the file.
        IndexFileError: The index is damaged.
        DecodingError: There is no index, and lines contain no object.
        EmptyDatasetError: There is no index, and no sample.
    """
    path = Path(path)
    own, cached = jsonl_index_path(path), index_cache_folder(path, cache_dir) / jsonl_index_path(path).name
    found = _existing(path, own, cached)
    if found is not None:
        return found
    with open(path, "rb") as file, locked(file):
        found = _existing(path, own, cached)
        if found is not None:
            return found
        try:
            write_jsonl_index(path, target=own)
            return own
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
                raise
        cached.parent.mkdir(parents=True, exist_ok=True)
        write_jsonl_index(path, target=cached)
        return cached


def check_jsonl_size(path: str | os.PathLike[str], starts: Int64Array, size_bytes: int) -> None:
    """Check that a file has the size recorded in its index. Raises StaleIndexError otherwise."""
    if int(starts[-1]) != size_bytes:
        raise StaleIndexError(
            f"{path}: was indexed with {int(starts[-1])} bytes, but has {size_bytes}; the file changed after it was "
            f"indexed: run `energon-grain prepare {path}`"
        )


def _existing(path: Path, own: Path, cached: Path) -> Path | None:
    """The index beside the file, or the one in the cache folder unless the file is newer."""
    try:
        status = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        raise DatasetNotFoundError(f"{path}: no such file") from None
    with contextlib.suppress(FileNotFoundError):
        check_jsonl_size(path, read_jsonl_index(own), status.st_size)
        return own
    with contextlib.suppress(FileNotFoundError, NotADirectoryError, IndexFileError):
        if cached.stat().st_mtime_ns >= status.st_mtime_ns:
            return cached if int(read_jsonl_index(cached)[-1]) == status.st_size else None
    return None


def index_of_object(url: str, files: RemoteFiles) -> tuple[Path, bytes]:
    """Return the path of an index that matches the current version of an object, and the object's generation.

    Takes three small requests. An index beside the object, `x.jsonl.idx`, is copied once per version. Without one, the
    object is read once per version, from start to end, into the block cache. For a server without versions this is done
    every time.

    Raises as `find_jsonl_index`, StaleIndexError if the object was replaced during the read, and ReadError.
    """
    client = shared_client(files.settings)
    size_bytes, generation, index_generation = _versions(url, files, client)
    version = repr((size_bytes, generation, index_generation))
    mirror = mirror_of(url, files.settings)
    index = mirror.folder / f"{hashlib.blake2b(version.encode(), digest_size=16).hexdigest()}.idx"

    def fits() -> bool:
        """Whether there is an index of exactly these versions, not damaged at its ends."""
        with contextlib.suppress(FileNotFoundError, IndexFileError):
            check_jsonl_size(url, read_jsonl_index(index, of=url), size_bytes)
            return UNVERSIONED not in (generation, index_generation)
        return False

    if not fits():
        with mirror.locked():
            if not fits():  # otherwise another process was faster
                if index_generation is None:
                    _make(url, size_bytes, generation, index)
                else:
                    with open_object(f"{url}.idx") as source, atomic_write(index) as target:
                        shutil.copyfileobj(source, target, _COPIED_BYTES)  # type: ignore[arg-type]
            for other in mirror.folder.glob("*.idx"):
                if other != index:
                    other.unlink(missing_ok=True)
    check_jsonl_size(url, read_jsonl_index(index, of=url), size_bytes)
    return index, generation


def _versions(url: str, files: RemoteFiles, client: ObjectClient) -> tuple[int, bytes, bytes | None]:
    """Size and generation of an object, and the generation of its index (None without one), requested in parallel."""

    def ask(of: str) -> tuple[int, bytes | None]:
        if of == url:
            return files.version(url)
        found = client.read(ObjectRange(of, 0, _SMALLEST_INDEX_BYTES))
        return 0, None if found is None else found.generation

    try:
        (size_bytes, generation), (_, index_generation) = client.map(ask, [url, f"{url}.idx"])
    except RangeError as error:
        raise IndexFileError(
            f"{url}.idx: has fewer than two offsets. The index is damaged; `energon-grain prepare {url}` rewrites it"
        ) from error
    except MissingObjectError:
        raise DatasetNotFoundError(f"{url}: no such object") from None
    assert generation is not None
    return size_bytes, generation, index_generation


def _make(url: str, size_bytes: int, generation: bytes, index: Path) -> None:
    to_all = f"`energon-grain prepare {url}` creates one for all machines"
    if revision_of(url) is not None:  # read-only
        to_all = f"to share one, run `energon-grain prepare` on a copy and upload {name_of(url)}.idx"
    _logger.warning(
        "%s has no index beside it: reading its %.3g MB once to create one in %s; %s",
        url,
        size_bytes / 1e6,
        index.parent,
        to_all,
    )
    write_jsonl_index(url, target=index)
    if generation != UNVERSIONED and not is_unchanged(url, generation):
        index.unlink()
        raise StaleIndexError(f"{url}: was replaced while it was indexed; restart")


@dataclass(frozen=True, kw_only=True, slots=True)
class JsonlFile:
    """A JSONL file and its index. Picklable: copies in other processes of this machine do not search again.

    Attributes:
        location: Path or URL of the file, for messages.
        index: Path of its index.
        generation: Version of the object that was indexed; None: a local file.
        store: Reads its bytes.
    """

    location: str
    index: Path
    generation: bytes | None = None
    store: ByteStore = field(compare=False)

    def starts(self) -> Int64Array:
        """Map the index. See `read_jsonl_index`.

        Raises StaleIndexError if it was removed because another version of the file was opened on this machine, and
        IndexFileError if it is damaged.
        """
        try:
            return read_jsonl_index(self.index, of=self.location)
        except FileNotFoundError:
            raise StaleIndexError(
                f"{self.location}: its index on this machine, {self.index}, was removed because another version of the "
                f"file or of its index was opened; restart"
            ) from None

    def check_version(self, size_bytes: int) -> None:
        """Check that an object still has the version that was indexed, now and in later reads.

        Sends no request: the next response is compared. A local file has no version.

        Raises StaleIndexError if an earlier response had another version.
        """
        if self.generation is not None and isinstance(self.store, RemoteFiles):
            self.store.expect(self.location, (size_bytes, self.generation))


def open_jsonl(path: str | os.PathLike[str] | JsonlFile, *, cache_dir: Path | None = None) -> JsonlFile:
    """Locate a JSONL file and its index on this machine; the index is created if there is none.

    Args:
        cache_dir: Folder for a new index if the file's folder is not writable. The index of an object is created in the
            folder of the cache for stores.

    Raises as `find_jsonl_index`, ConfigError if the URL's store is not supported, and ReadError.
    """
    if isinstance(path, JsonlFile):
        return path
    location = located(path)
    if not is_url(location):
        index = find_jsonl_index(location, cache_dir=cache_dir)
        store = LocalFiles(indexed_by=f"energon-grain prepare {location}")
        return JsonlFile(location=location, index=index, store=store)
    files = remote_files(storage_settings())
    location = shared_client(files.settings).pinned(location)
    index, generation = index_of_object(location, files)
    return JsonlFile(location=location, index=index, generation=generation, store=files)
