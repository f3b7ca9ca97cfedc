# SPDX-License-Identifier: Apache-2.0
"""JSONL files, compressed ones too, read once from front to back, as a conversion does."""

from __future__ import annotations

import gzip
import io
from collections.abc import Iterator
from functools import partial
from typing import Any, BinaryIO

from energon_grain.errors import DecodingError, EnergonGrainError
from energon_grain.extras import needed_for
from energon_grain.kinds.jsonl.lines import is_object
from energon_grain.kinds.jsonl.source import PART
from energon_grain.sources.kinds import StreamedRun
from energon_grain.storage.epath import EPath

ENDINGS = (".jsonl", ".jsonl.gz", ".jsonl.zst")


def runs_of_lines(location: str, count: int) -> Iterator[StreamedRun]:
    """Runs of `count` lines with samples. Raises DecodingError."""
    path = EPath(location)
    size_bytes = path.stat().content_length
    lines: list[bytes] = []
    first = read_bytes = 0
    with path.open("rb") as file:
        for number, line in enumerate(_lines_of(file, location), 1):
            text = line.strip()
            if text:
                if not is_object(text):
                    raise DecodingError(f"{location}: line {number} holds no JSON object, {{…}}")
                lines.append(text)
            if len(lines) == count:
                at = file.tell()
                yield at - read_bytes, partial(_samples, first, lines)
                first, read_bytes, lines = first + count, at, []
    if lines:
        yield size_bytes - read_bytes, partial(_samples, first, lines)


def _samples(first: int, lines: list[bytes]) -> Iterator[dict[str, Any]]:
    """Samples of lines, by their numbers among those that are not blank, from `first` on."""
    return ({"__key__": str(number), PART: text} for number, text in enumerate(lines, first))


def _lines_of(file: BinaryIO, location: str) -> Iterator[bytes]:
    """The lines of a file, compressed or not. Raises DecodingError where it cannot be decompressed."""
    opened: Any = file
    if location.endswith(".gz"):
        opened = gzip.GzipFile(fileobj=file)
    elif location.endswith(".zst"):
        with needed_for("reading .zst files"):
            import pyarrow

        opened = pyarrow.CompressedInputStream(pyarrow.PythonFile(file, "r"), "zstd")
    try:
        yield from opened if opened is file else io.BufferedReader(opened, 1 << 20)
    except EnergonGrainError:
        raise
    except (OSError, EOFError, ValueError) as error:
        raise DecodingError(f"{location}: cannot be decompressed: {error}; copy the file again") from error
