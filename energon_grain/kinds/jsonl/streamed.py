# SPDX-License-Identifier: Apache-2.0
"""JSONL files, including compressed ones, read once from start to end for a conversion."""

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
    """Yield runs of `count` lines with samples. Raises DecodingError."""
    path = EPath(location)
    size_bytes = path.stat().content_length
    lines: list[bytes] = []
    first = read_bytes = 0
    with path.open("rb") as file:
        for number, line in enumerate(_lines_of(file, location), 1):
            text = line.strip()
            if text:
                if not is_object(text):
                    raise DecodingError(f"{location}: line {number} contains no JSON object, {{…}}; fix or remove it")
                lines.append(text)
            if len(lines) == count:
                at = file.tell()
                yield at - read_bytes, partial(_samples, first, lines)
                first, read_bytes, lines = first + count, at, []
    if lines:
        yield size_bytes - read_bytes, partial(_samples, first, lines)


def _samples(first: int, lines: list[bytes]) -> Iterator[dict[str, Any]]:
    """Samples of lines, numbered from `first` without blank lines."""
    return ({"__key__": str(number), PART: text} for number, text in enumerate(lines, first))


def _lines_of(file: BinaryIO, location: str) -> Iterator[bytes]:
    """The lines of a file, compressed or not. Raises DecodingError if decompression fails."""
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
