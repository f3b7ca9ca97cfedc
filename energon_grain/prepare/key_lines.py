"""Text files with one key a line, as the columns of bytes that keys are compared in."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from energon_grain.formats.columnar_header import ColumnWriter, read_column

_BLOCK_BYTES = 16 << 20
_LINE_FEED, _CARRIAGE_RETURN = 10, 13


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class KeyLines:
    """The lines of a file, one after the other without their ends; mapped from a temporary file where they are many.

    Attributes:
        start: (n + 1,) where each begins.
        data: All of them.
    """

    start: npt.NDArray[np.int64]
    data: npt.NDArray[np.uint8]

    def __len__(self) -> int:
        return len(self.start) - 1

    def line(self, number: int) -> str:
        """A line, counted from 0; bytes that are not UTF-8 become surrogates, as in names of tar members."""
        return self.data[self.start[number] : self.start[number + 1]].tobytes().decode("utf-8", "surrogateescape")


def read_key_lines(path: Path, scratch: Path, *, block_bytes: int = _BLOCK_BYTES) -> KeyLines:
    """Read the lines of a file, which end with LF or CR LF; the last one may lack its end.

    Takes about 12 bytes of memory for each of `block_bytes`, whatever the size of the file.

    Args:
        path: The file.
        scratch: A folder for what does not stay in memory: 8 bytes a line, and the lines.
        block_bytes: Read at once.
    """
    folder = Path(tempfile.mkdtemp(dir=scratch))
    starts, data = ColumnWriter(folder / "start", np.int64), ColumnWriter(folder / "data", np.uint8)
    starts.append(np.zeros(1, np.int64))
    held, ended = b"", True
    with open(path, "rb") as file:
        while block := file.read(block_bytes):
            ended = block.endswith(b"\n")
            block = held + block
            held = b"\r" if block.endswith(b"\r") else b""  # an LF may come next
            _append(block[: len(block) - len(held)], starts, data)
    if not ended:
        _append(held + b"\n", starts, data)
    starts.close()
    data.close()
    return KeyLines(
        start=read_column(folder / "start", np.int64, starts.rows, block_sums=starts.block_sums),
        data=read_column(folder / "data", np.uint8, data.rows, block_sums=data.block_sums),
    )


def _append(block: bytes, starts: ColumnWriter, data: ColumnWriter) -> None:
    found = np.frombuffer(block, np.uint8)
    line_feed = found == _LINE_FEED
    kept = ~line_feed
    kept[:-1] &= ~((found[:-1] == _CARRIAGE_RETURN) & line_feed[1:])
    starts.append(data.rows + np.cumsum(kept)[line_feed])
    data.append(found[kept])
