"""The lines of a JSONL file: which of them hold a sample, and what number a line has.

A sample is a line with one JSON object: stripped of white space it begins with `{` and ends with `}`. Blank lines hold
none. Whether what is in between is JSON shows when the sample is decoded.
"""

from __future__ import annotations

import bisect
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO

import numpy as np
import numpy.typing as npt

from energon_grain.errors import DecodingError
from energon_grain.storage.byte_store import ByteStore
from energon_grain.storage.location import is_url, located

if TYPE_CHECKING:
    from energon_grain.storage.object_bytes import ObjectStream

_BLOCK_BYTES = 1 << 20
_COUNTED_BYTES = 16 << 20
_NEWLINE, _RETURN, _OPEN, _CLOSE = b"\n\r{}"
_LISTED_LINES = 5


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class LineBlock:
    """Consecutive whole lines of a file.

    Attributes:
        starts: (n,) offset in the file of each line that holds a sample.
        stop: Offset of the first byte behind the block.
    """

    starts: npt.NDArray[np.int64]
    stop: int


def scan_lines(path: str | os.PathLike[str]) -> Iterator[LineBlock]:
    """Go through a file once, front to back, in memory of about the longest line plus a few MB.

    Lines that begin with `{` and end with `}` cost no Python; others are looked at one by one.

    Args:
        path: The file, or its URL.

    Raises:
        OSError: It cannot be read.
        DecodingError: Lines are neither blank nor hold an object; names the first five, and how many there are. Raised
            at the end, when all have been counted.
    """
    name = os.path.basename(path)
    wrong: list[str] = []
    count = lines = offset = 0
    with _open(path) as file:
        for block in _whole_lines(file):
            starts, malformed, found = _samples_of(block)
            count += len(malformed)
            wrong += [f"{name}:{lines + line + 1}: {text!r}" for line, text in malformed[: _LISTED_LINES - len(wrong)]]
            lines += found
            yield LineBlock(starts=starts + offset, stop=offset + len(block))
            offset += len(block)
    if count:
        more = f"; and {count - len(wrong):,} more" if count > len(wrong) else ""
        raise DecodingError(
            f"{path}: {count:,} of {lines:,} lines hold no JSON object: {', '.join(wrong)}{more}. A line is one "
            f"object, {{…}}; mend or remove these (`energon-grain lint {path}` lists them all)"
        )


def is_object(line: bytes) -> bool:
    """Whether a stripped line that is not blank looks like an object, as `scan_lines` tells them."""
    return line.startswith(b"{") and line.endswith(b"}")


class LineNumbers:
    """Tells the number of the line, counted from 1, that is at an offset.

    It counts line ends from the nearest place where it knows the number, so a whole file is read at most once (at 2
    GB/s or the speed of disk or store), and then 16 MB for each further question. Thread-safe.

    Args:
        path: The file, as `store` knows it.
        store: Where its bytes are.
    """

    def __init__(self, path: str, store: ByteStore) -> None:
        self._path, self._store = path, store
        self._offsets, self._lines = [0], [1]
        self._lock = threading.Lock()

    def at(self, offset: int) -> int:
        """The number of the line that the byte at `offset` belongs to. Raises ReadError when it cannot be read."""
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


def _open(path: str | os.PathLike[str]) -> BinaryIO | ObjectStream:
    location = located(path)
    if not is_url(location):
        return open(location, "rb", buffering=0)
    from energon_grain.storage.object_bytes import ObjectStream

    return ObjectStream(location)


def _whole_lines(file: BinaryIO | ObjectStream) -> Iterator[bytes]:
    """Blocks that end where a line does. A line that is longer than a block is one by itself."""
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
    """Starts of lines with samples, (line, text) of those with something else, and the number of lines."""
    data = np.frombuffer(block, np.uint8)
    ends = np.flatnonzero(data == _NEWLINE)
    if block[-1] != _NEWLINE:
        ends = np.append(ends, len(data))
    starts = np.concatenate([np.zeros(1, np.int64), ends[:-1] + 1])
    # Before a first line that is empty this looks at the last byte, but its own first byte is no brace.
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
