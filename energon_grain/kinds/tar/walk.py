# SPDX-License-Identifier: Apache-2.0
"""Reads all headers of a tar in batches, by a strategy suited to the sizes of its members."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final, Literal, NoReturn

import numpy as np
import numpy.typing as npt

from energon_grain.errors import TarError
from energon_grain.kinds.tar.header import (
    BLOCK,
    CONTIGUOUS,
    GNU_LONG_LINK,
    GNU_LONG_NAME,
    GNU_MULTI_VOLUME,
    GNU_SPARSE,
    HARD_LINK,
    LINK_NAME,
    MAGIC,
    NAME,
    OLD_REGULAR,
    PAX_GLOBAL,
    PAX_MEMBER,
    PAX_SOLARIS,
    REGULAR,
    SIZE,
    TYPE,
    WITHOUT_PAYLOAD,
    ZERO_BLOCK,
    checksum_holds,
    first_bad_checksum,
    parse_number,
    read_sizes,
    round_up,
    text,
)
from energon_grain.storage.location import is_url, located
from energon_grain.storage.remote import scan_object
from energon_grain.storage.scanned_bytes import FileBytes, ScannedBytes


@dataclass(slots=True)
class HeaderBatch:
    """A run of headers in file order, including extension headers.

    Their chain is verified: each is at the offset given by the previous one.
    """

    headers: npt.NDArray[np.uint8]  # (n, 512) contiguous
    offset: npt.NDArray[np.int64]  # (n,) offset of the header
    start: npt.NDArray[np.int64]  # (n,) start of the member: its first extension header, or the header itself
    size: npt.NDArray[np.int64]  # (n,) payload bytes
    names: dict[int, bytes] = field(default_factory=dict[int, bytes])  # row -> name from an extension header

    def __len__(self) -> int:
        return len(self.offset)

    def head(self, rows: int) -> HeaderBatch:
        """Return the first `rows` headers."""
        names = {row: name for row, name in self.names.items() if row < rows}
        return HeaderBatch(self.headers[:rows], self.offset[:rows], self.start[:rows], self.size[:rows], names)


@dataclass(slots=True)
class Walked:
    """The result of one step of a walk over the headers of a tar."""

    batch: HeaderBatch
    next_offset: int  # of the next header; at the end: of the first zero block
    at_end: bool = False
    stopped: bool = False  # at a header that only hops can handle
    error: TarError | None = None  # ends the walk; defects inside the batch precede it


_COMPRESSED = {
    b"\x1f\x8b": "gzip",
    b"BZh": "bzip2",
    b"\xfd7zXZ\0": "xz",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"\x04\x22\x4d\x18": "lz4",
    b"\x02\x21\x4c\x18": "lz4",  # early versions, and `lz4 -l`
    b"\x1f\x9d": "compress",
    b"\x5d\0\0": "lzma",
    b"LZIP": "lzip",
    b"\x89LZO": "lzo",
}
"""Magic bytes of compressed files, with the tool that wrote them."""


class TarBytes:
    """One open tar file or object. Never memory-mapped, so a file that shrinks during a read is an error, not a crash.

    Raises OSError, and TarError if it is not a regular file, is empty, or is compressed.
    """

    def __init__(self, path: str | os.PathLike[str], *, keep: bool = False) -> None:
        self.path = located(path)
        self.data: ScannedBytes = scan_object(self.path, keep=keep) if is_url(self.path) else self._open_file()
        self.size_bytes = self.data.size_bytes
        try:
            self._check_start()
        except BaseException:
            self.data.close()
            raise

    def __enter__(self) -> TarBytes:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.data.close()

    def read(self, offset: int, size_bytes: int) -> bytes:
        """Read exactly `size_bytes` at `offset`. Raises TarError."""
        data = self.data.read_random(offset, size_bytes)
        if len(data) < size_bytes:
            raise self.truncated(offset, f"expected {size_bytes} bytes")
        return data

    def error(self, offset: int, what: str, rule: str, member: bytes | None = None) -> TarError:
        """An error that names file, member and offset, the problem and the remedy."""
        name = "" if member is None else f"{member.decode('utf-8', 'backslashreplace')} "
        return TarError(f"{self.path}: {name}@ {offset}: {what}. {rule}")

    def truncated(self, offset: int, what: str, member: bytes | None = None) -> TarError:
        """The error for a file that ends inside a member."""
        return self.error(
            offset,
            f"the file is truncated, or a header declares a wrong size: {what}, but the file ends at {self.size_bytes}",
            "Copy or create the shard again.",
            member,
        )

    def _open_file(self) -> FileBytes:
        descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a FIFO must not block
        try:
            mode = os.fstat(descriptor).st_mode
            if stat.S_ISDIR(mode):
                raise IsADirectoryError(f"{self.path}: a folder, not a tar file")
            if not stat.S_ISREG(mode):
                raise self.error(0, "not a regular file", "Shards must be files that can be read at any offset.")
            return FileBytes(descriptor)
        except BaseException:
            os.close(descriptor)
            raise

    def incomplete(self, offset: int, rest: bytes) -> NoReturn:
        """Raise the error for a block that is too short."""
        if rest.strip(b"\0"):
            raise self.truncated(offset, f"expected a header of {BLOCK} bytes")
        raise self.error(
            offset,
            f"the end-of-archive marker is missing: the file ends at {offset + len(rest)}",
            f"A tar ends with two blocks of {BLOCK} zero bytes, so this one may have lost members: create it again, "
            f"or, if it is certainly complete, append two zero blocks "
            f"(truncate -s {offset + 2 * BLOCK} '{self.path}').",
        )

    def _check_start(self) -> None:
        if not self.size_bytes:
            raise self.error(
                0, "the file is empty", "Even a tar without members contains two zero blocks. Create the shard again."
            )
        start = self.data.read_random(0, BLOCK)
        if len(start) == BLOCK and checksum_holds(start):  # a first member may be named `BZh.txt`
            return
        for magic, name in _COMPRESSED.items():
            if start.startswith(magic):
                raise self.error(
                    0,
                    f"the file is compressed with {name}",
                    "Samples are read at random offsets, so shards must be plain tar files: decompress it.",
                )


EXTENSION_TYPES: Final = frozenset((GNU_LONG_NAME, GNU_LONG_LINK, PAX_MEMBER, PAX_SOLARIS, PAX_GLOBAL))
MAX_EXTENSION_BYTES: Final = 1 << 20
_MAX_CHAIN: Final = 64
_MAX_DIGITS: Final = 19


@dataclass(slots=True)
class Extension:
    """The information that extension headers give about the next member."""

    start: int  # offset of the first one that belongs to the member
    headers: int = 0
    name: bytes | None = None
    link_name: bytes | None = None
    size: int | None = None
    sparse: bool = False

    def add(self, tar: TarBytes, offset: int, kind: int, payload: bytes) -> None:
        """Process one extension header at `offset`. If two contain the same field, the first counts, as in `tarfile`.

        Raises TarError if the payload is invalid for its type, or a global header sets path or size of all members.
        """
        self.headers += 1
        if self.headers > _MAX_CHAIN:
            raise tar.error(offset, f"more than {_MAX_CHAIN} extension headers before one member", _RULE)
        if kind == GNU_LONG_NAME:
            self._name(tar, offset, payload.partition(b"\0")[0])
        elif kind == GNU_LONG_LINK:
            self.link_name = self.link_name or payload.partition(b"\0")[0]
        else:
            self._records(tar, offset, kind, payload)

    def _name(self, tar: TarBytes, offset: int, name: bytes) -> None:
        if not name or b"\0" in name:
            raise tar.error(offset, "an extension header contains an empty name, or one with a zero byte", _RULE)
        if self.name is None:
            self.name = name

    def _records(self, tar: TarBytes, offset: int, kind: int, payload: bytes) -> None:
        size: int | None = None
        path: bytes | None = None
        for keyword, value in _parse_records(tar, offset, payload):
            if keyword.startswith(b"GNU.sparse."):
                self.sparse = True
            elif keyword == b"path":
                path = value.rstrip(b"/")
            elif keyword == b"linkpath":
                self.link_name = self.link_name or value
            elif keyword == b"size":
                digits = value.lstrip(b"0")  # any number of zeros is allowed
                if not value.isdigit() or len(digits) > _MAX_DIGITS:
                    raise tar.error(offset, f"a PAX header contains the size {value[:40]!r}", _RULE)
                size = int(digits or b"0")
            else:
                continue
            if kind == PAX_GLOBAL:
                raise tar.error(
                    offset,
                    f"a global PAX header sets {keyword.decode('ascii', 'replace')!r} for all members",
                    "Only the PAX header of a single member may set it: create the shard again.",
                )
        if path is not None:
            self._name(tar, offset, path)
        if size is not None and self.size is None:
            self.size = size


def _parse_records(tar: TarBytes, offset: int, payload: bytes) -> list[tuple[bytes, bytes]]:
    r"""Split a PAX payload into keywords and values.

    Example:
        `b"16 path=abc.jpg\n"` is 16 bytes long and contains `(b"path", b"abc.jpg")`.
    """
    records: list[tuple[bytes, bytes]] = []
    start = 0
    while start < len(payload):
        blank = payload.find(b" ", start, start + _MAX_DIGITS)
        digits = payload[start:blank] if blank > 0 else b""
        end = start + int(digits) if digits.isdigit() else 0
        keyword, equals, value = payload[blank + 1 : end - 1].partition(b"=")
        if not blank < end <= len(payload) or payload[end - 1 : end] != b"\n" or not (keyword and equals):
            raise tar.error(offset, f"no record '<length> <key>=<value>' at byte {start} of a PAX header", _RULE)
        records.append((keyword, value))
        start = end
    return records


_RULE: Final = "The shard is damaged: copy or create it again."


_CHUNK_BYTES: Final = 4 << 20
_PIECE_BYTES: Final = 256 << 10
_MAGIC: Final = np.frombuffer(b"usta", "<u4")[0]
_DIRECTORY_LIKE: Final = tuple(b"23456")  # symlinks, devices, folders, FIFOs: no payload, even if their size is not 0


class HeaderGrid:
    """Finds runs of plain headers. Reuses its buffers, so a batch is valid only until the next run."""

    def __init__(self, tar: TarBytes) -> None:
        self._tar = tar
        self._piece = np.empty((_PIECE_BYTES // BLOCK, BLOCK), np.uint8)
        self._first_words = np.ndarray((len(self._piece),), "<u4", self._piece, MAGIC, (BLOCK,))
        self._headers = np.empty((_CHUNK_BYTES // BLOCK, BLOCK), np.uint8)

    def run(self, offset: int) -> Walked:
        """Find the plain headers in the 4 MiB from the header at `offset`; none if that header is not plain."""
        headers, places, blocks = self._candidates(offset)
        if not len(places) or places[0] != 0:
            headers, places, sizes, end, stopped = headers[:0], places[:0], places[:0], 0, True
        else:
            sizes, following = _follow(headers, places)
            rows, end, stopped = _chain(places, following, blocks)
            if len(rows) and offset + end * BLOCK >= self._tar.size_bytes:  # size too large, or no end marker
                rows, end, stopped = rows[:-1], int(places[rows[-1]]), True
            if len(rows) < len(places):
                headers, sizes, places = headers[rows], sizes[rows], places[rows]
        at = offset + places * BLOCK
        return Walked(HeaderBatch(headers, at, at, sizes), offset + end * BLOCK, stopped=stopped)

    def _candidates(self, offset: int) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64], int]:
        """Collect the blocks with the magic, in pieces that fit into the core's cache.

        Returns:
            The (n, 512) candidates, their (n,) block numbers from `offset`, and the number of blocks read.
        """
        places: list[npt.NDArray[np.int64]] = []
        blocks, count = 0, 0
        while blocks < len(self._headers):
            read = self._tar.data.fill(self._piece.data.cast("B"), offset + blocks * BLOCK) // BLOCK
            found = np.flatnonzero(self._first_words[:read] == _MAGIC)
            np.take(self._piece, found, axis=0, out=self._headers[count : count + len(found)], mode="clip")
            count += len(found)
            places.append(found + blocks)
            blocks += read
            if read < len(self._piece):
                break
        return self._headers[:count], np.concatenate(places), blocks


def _follow(
    headers: npt.NDArray[np.uint8], places: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return each candidate's size and the block after its payload, -1 if it is not a plain member."""
    kinds = headers[:, TYPE]
    sizes = read_sizes(headers)
    following = places + 1 + (sizes + (BLOCK - 1)) // BLOCK
    unusual = np.flatnonzero(kinds != REGULAR)
    if len(unusual):
        kinds = kinds[unusual]
        bare = np.isin(kinds, _DIRECTORY_LIKE)
        following[unusual[bare]] = places[unusual[bare]] + 1
        following[unusual[~bare & (kinds != CONTIGUOUS)]] = -1
    following[sizes < 0] = -1
    return sizes, following


def _chain(
    places: npt.NDArray[np.int64], following: npt.NDArray[np.int64], blocks: int
) -> tuple[npt.NDArray[np.int64], int, bool]:
    """Keep the candidates that a chain from the first one reaches.

    Example:
        Candidates at blocks 0, 2, 3, 6 with next blocks 2, 6, 9, 8 of 8 in the chunk: 0 leads to 2, 2 leads to 6, so
        the one at 3 is inside a payload; rows 0, 1, 3 are kept and the next header is in block 8.

    Returns:
        The rows kept, the block where the chain continues, and whether it stopped at an unusual header.
    """
    breaks = np.flatnonzero(following[:-1] != places[1:])
    kept: list[npt.NDArray[np.int64]] = []
    row = 0
    while True:
        at = int(np.searchsorted(breaks, row))
        last = int(breaks[at]) if at < len(breaks) else len(places) - 1
        target = int(following[last])
        if target < 0:
            kept.append(np.arange(row, last))
            return np.concatenate(kept), int(places[last]), True
        kept.append(np.arange(row, last + 1))
        if target >= blocks:
            return np.concatenate(kept), target, False
        row = int(np.searchsorted(places, target))
        if row == len(places) or places[row] != target:
            return np.concatenate(kept), target, True


_PLAIN_SIZE: Final = re.compile(rb"[0-7]{11}[\0 ]")


class HeaderHops:
    """Walks from header to header of any kind: through a window (small members) or one by one."""

    def __init__(self, tar: TarBytes, *, window: bool) -> None:
        self._tar = tar
        self._read = tar.data.read_sequential if window else tar.data.read_random
        # Includes the header that caused an error: its bad checksum explains more.
        self._headers: list[bytes] = []
        self._offsets: list[int] = []
        self._sizes: list[int] = []
        self._starts: dict[int, int] = {}
        self._names: dict[int, bytes] = {}

    def run(self, offset: int, limit: int) -> Walked:
        """Walk about `limit` headers from the header or end marker at `offset`, up to the end of a member."""
        at_end, error = False, None
        try:
            while len(self._headers) < limit and not at_end:
                offset, block = self._plain(offset, limit)
                at_end = block == ZERO_BLOCK
                if block is not None and not at_end:
                    offset = self._special(offset, block)
        except TarError as raised:
            error = raised
        offsets = np.array(self._offsets, np.int64)
        starts = offsets.copy()
        starts[list(self._starts)] = list(self._starts.values())
        headers = np.frombuffer(b"".join(self._headers), np.uint8).reshape(-1, BLOCK)
        batch = HeaderBatch(headers, offsets, starts, np.array(self._sizes, np.int64), self._names)
        return Walked(batch, offset, at_end, error=error)

    def _plain(self, offset: int, limit: int) -> tuple[int, bytes | None]:
        """Collect plain headers; return the offset of the next header, and that header if it is not plain."""
        read, plain_size, file_size = self._read, _PLAIN_SIZE.match, self._tar.size_bytes
        headers, offsets, sizes = self._headers, self._offsets, self._sizes
        while len(headers) < limit:
            block = read(offset, BLOCK)
            if len(block) < BLOCK:
                self._tar.incomplete(offset, block)
            if block[TYPE] != REGULAR or not plain_size(block, SIZE.start):
                return offset, block
            size = int(block[SIZE.start : SIZE.stop - 1], 8)
            after = offset + BLOCK + -(-size // BLOCK) * BLOCK
            if after >= file_size:  # truncated, or without an end marker
                return offset, block
            headers.append(block)
            offsets.append(offset)
            sizes.append(size)
            offset = after
        return offset, None

    def _block(self, offset: int) -> bytes:
        block = self._read(offset, BLOCK)
        if len(block) < BLOCK:
            self._tar.incomplete(offset, block)
        return block

    def _special(self, offset: int, block: bytes) -> int:
        """Process a header of any kind with its extension headers; return the offset of the next header."""
        tar, extension = self._tar, Extension(start=-1)
        while block[TYPE] in EXTENSION_TYPES:
            kind = block[TYPE]
            size = self._append(offset, block)
            if size > MAX_EXTENSION_BYTES:
                raise tar.error(
                    offset,
                    f"an extension header has {size} bytes",
                    f"Names and PAX records may have up to {MAX_EXTENSION_BYTES} bytes; the shard is probably damaged.",
                )
            if kind != PAX_GLOBAL and extension.start < 0:
                extension.start = offset
            one_block = 0 < size <= BLOCK and offset + 2 * BLOCK <= tar.size_bytes
            payload = self._block(offset + BLOCK)[:size] if one_block else tar.read(offset + BLOCK, size)
            extension.add(tar, offset, kind, payload)
            offset += BLOCK + round_up(size)
            block = self._block(offset)
            if block == ZERO_BLOCK:
                raise tar.error(offset, "an extension header without a member after it", "Create the shard again.")
        row = len(self._headers)
        size = self._append(offset, block, extension.size)
        self._refuse(offset, block, extension)
        if extension.start >= 0:
            self._starts[row] = extension.start
        if extension.name is not None:
            self._names[row] = extension.name
        has_payload = block[TYPE] not in WITHOUT_PAYLOAD and not _is_old_folder(block)
        after = offset + BLOCK + (round_up(size) if has_payload else 0)
        if after > tar.size_bytes:
            raise tar.truncated(offset, f"the member has {size} bytes", _name(block, extension))
        return after

    def _append(self, offset: int, block: bytes, known_size: int | None = None) -> int:
        """Record a header and return its size, or `known_size` from an extension header."""
        self._headers.append(block)
        self._offsets.append(offset)
        self._sizes.append(0)
        try:
            size = parse_number(block[SIZE]) if known_size is None else known_size
        except ValueError as error:
            raise self._damaged(offset, block, f"the size field is damaged: {error}") from None
        if not 0 <= size < 1 << 62:
            raise self._damaged(offset, block, f"the header declares an impossible size of {size} bytes")
        self._sizes[-1] = size
        return size

    def _damaged(self, offset: int, block: bytes, what: str) -> TarError:
        return self._tar.error(offset, what, "The shard is damaged: copy or create it again.", text(block[NAME]))

    def _refuse(self, offset: int, block: bytes, extension: Extension) -> None:
        """Raise if the bytes of a member do not simply follow its header."""
        kind = block[TYPE]
        if kind == HARD_LINK:
            target = (extension.link_name or text(block[LINK_NAME])).decode("utf-8", "backslashreplace")
            what = f"a hard link to {target}, which has the content"
            rule = "Every sample must contain its own bytes: create the shard with `tar --hard-dereference`."
        elif kind == GNU_SPARSE or (extension.sparse and kind not in WITHOUT_PAYLOAD):
            what, rule = "a sparse member, whose bytes are not contiguous", "Create the shard without `--sparse`."
        elif kind == GNU_MULTI_VOLUME:
            what, rule = "the rest of a member from another volume", "Create the shard without `--multi-volume`."
        elif extension.name is not None and _is_old_folder(block):
            what, rule = "a member that is a folder by one name and a file by another", "Create the shard again."
        else:
            return
        raise self._tar.error(offset, what, rule, _name(block, extension))


def _is_old_folder(block: bytes) -> bool:
    """Whether a header of the old format, without typed folders, names a folder."""
    return block[TYPE] == OLD_REGULAR and text(block[NAME]).endswith(b"/")


def _name(block: bytes, extension: Extension) -> bytes:
    return extension.name or text(block[NAME])


Strategy = Literal["auto", "grid", "hops"]

_FIRST_HOPS: Final = 16
_HOPS: Final = 4096
_GOOD_RUN: Final = 1024  # headers
_TAIL_BYTES: Final = 1 << 20


class HeaderWalk:
    """Walks a whole tar once: iterate over it for the headers, then read `end`.

    All strategies return the same headers; "auto" chooses by the mean size of the last members.
    """

    def __init__(self, tar: TarBytes, strategy: Strategy = "auto") -> None:
        self._tar = tar
        self._strategy: Strategy = strategy
        self.end = -1  # offset of the first zero block, after the walk

    def __iter__(self) -> Iterator[HeaderBatch]:
        """Yield the headers in batches with verified chain and checksums.

        Raises TarError at the first defect in file order, after yielding everything before it.
        """
        tar, strategy, grid = self._tar, self._strategy, HeaderGrid(self._tar)
        offset, small, patience, hops_due = 0, False, _FIRST_HOPS, _FIRST_HOPS
        while self.end < 0:
            if strategy == "hops" or hops_due or not (small or strategy == "grid"):
                limit = _HOPS if strategy == "hops" else hops_due or _HOPS
                walked, hops_due = HeaderHops(tar, window=small).run(offset, limit), 0
            else:
                walked = grid.run(offset)
                if walked.stopped:  # hop over it, in growing distances
                    patience = _FIRST_HOPS if len(walked.batch) >= _GOOD_RUN else min(2 * patience, _HOPS)
                    hops_due = patience
            yield from self._checked(walked.batch)
            if walked.error is not None:
                raise walked.error
            if len(walked.batch):
                small = (walked.next_offset - offset) < len(walked.batch) * tar.data.skip_bytes
            offset = walked.next_offset
            if walked.at_end:
                self._check_tail(offset)
                self.end = offset

    def _checked(self, batch: HeaderBatch) -> Iterator[HeaderBatch]:
        bad = first_bad_checksum(batch.headers)
        if bad is None:
            if len(batch):
                yield batch
            return
        if bad:
            yield batch.head(bad)
        raise self._tar.error(
            int(batch.offset[bad]),
            "expected a tar header, but the checksum is wrong",
            "The shard is damaged, or is not a tar file: copy or create it again.",
        )

    def _check_tail(self, end: int) -> None:
        """Verify that only zeros follow the end marker.

        Other data would be silently lost: the members of a second tar appended with `cat`, or all members after a
        header that a damaged disk filled with zeros.
        """
        tar, offset = self._tar, end + BLOCK
        while offset < tar.size_bytes:
            data = tar.read(offset, min(_TAIL_BYTES, tar.size_bytes - offset))
            if data.count(0) != len(data):
                raise tar.error(
                    offset + len(data) - len(data.lstrip(b"\0")),
                    f"data after the end-of-archive marker at {end}",
                    "These data would be lost. If tars were joined with `cat`, use `tar --concatenate`; "
                    "otherwise the shard is damaged: copy or create it again.",
                )
            offset += len(data)
