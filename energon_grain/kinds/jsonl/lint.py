# SPDX-License-Identifier: Apache-2.0
"""Checks a JSONL file: every line, and the index."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from energon_grain.errors import (
    ConfigError,
    DatasetNotFoundError,
    DecodingError,
    EnergonGrainError,
    MissingObjectError,
)
from energon_grain.kinds.jsonl.lines import check_jsonl_size, is_object, jsonl_index_path, read_jsonl_index
from energon_grain.kinds.jsonl.prepare import existing_file
from energon_grain.prepare.lint import LISTED_FINDINGS, LintFinding, LintReport, about_columns, opened
from energon_grain.sources.kinds import LintOptions
from energon_grain.storage.location import is_url, located, name_of
from energon_grain.storage.remote import open_object, read_whole, remote_files
from energon_grain.storage.settings import storage_settings
from energon_grain.transforms.decode import json_codec

_LINES_BETWEEN_PROGRESS = 20_000
_READ_BYTES = 4 << 20


def lint_jsonl(path: str | os.PathLike[str], ask: LintOptions) -> LintReport:
    """Decode every line of a JSONL file, and compare its index, if it has one, with the lines.

    Findings name the line, counted from 1: `x.jsonl:123`. At most 10,000 are listed. The file is read once, in one
    thread.

    Raises:
        DatasetNotFoundError: There is no such file.
        ReadError: An object store cannot be reached.
        ConfigError: Decoding of pickles is requested.
    """
    location = located(path)
    if ask.allow_pickle:
        raise ConfigError(f"{location}: a JSONL file contains no pickles; remove --allow-pickle.")
    name, size_bytes = name_of(location), _size_of(location)
    starts, of_index = _index_of_lines(location, size_bytes)
    findings: list[LintFinding] = []
    checked = _CheckedLines(name, starts)
    for number, line in enumerate(_lines(location), 1):
        if (finding := checked.check(number, line)) is not None:
            findings.append(finding)
        if number % _LINES_BETWEEN_PROGRESS == 0:
            ask.progress(checked.offset, size_bytes, len(findings), "")
        if len(findings) == LISTED_FINDINGS:
            what = f"The check stopped after problem {LISTED_FINDINGS:,}."
            findings.append(LintFinding(severity="note", where=location, what=what))
            return LintReport.of(location, findings, shards=None, samples=checked.samples)
    if starts is not None and not checked.fit():
        way_out = f"run `energon-grain prepare {location}`"
        of_index = LintFinding(where=f"{name}.idx", what="its offsets do not match the samples", way_out=way_out)
    findings += [of_index] if of_index else []
    if starts is not None and of_index is None:
        opened(location, findings, lambda: findings.extend(about_columns(location, ask.trusted_modules)))
    return LintReport.of(location, findings, shards=None, samples=checked.samples)


def _size_of(location: str) -> int:
    """Size of a file or object in bytes. Raises DatasetNotFoundError."""
    if not is_url(location):
        return existing_file(location).stat().st_size
    try:
        return remote_files(storage_settings()).size(location)
    except MissingObjectError:
        raise DatasetNotFoundError(f"{location}: no such object") from None


def _index_of_lines(location: str, size_bytes: int) -> tuple[npt.NDArray[np.int64] | None, LintFinding | None]:
    """The line offsets from the index beside a file, if it has one; or the problem with the index."""
    try:
        starts = _read_index(location)
        check_jsonl_size(location, starts, size_bytes)
    except FileNotFoundError:
        return None, None
    except EnergonGrainError as error:
        return None, LintFinding(where=f"{name_of(location)}.idx", what=str(error))
    return starts, None


class _CheckedLines:
    """Decodes the lines of a file in order, and compares their offsets with an index.

    Attributes:
        offset: Bytes read so far.
        samples: Samples found so far.
    """

    def __init__(self, name: str, starts: npt.NDArray[np.int64] | None) -> None:
        self.offset = self.samples = 0
        self._name = name
        self._starts = starts
        self._fits = True
        self._decode = json_codec("json")

    def check(self, number: int, line: bytes) -> LintFinding | None:
        """Check the next line, number `number` from 1. Returns its problem, if any."""
        text, start = line.strip(), self.offset if self.samples else 0
        self.offset += len(line)
        if not text:
            return None
        if not is_object(text):
            return LintFinding(where=f"{self._name}:{number}", what=f"contains no JSON object: {text[:40]!r}")
        if self._starts is not None:
            self._fits = self._fits and self.samples < len(self._starts) and self._starts[self.samples] == start
        self.samples += 1
        try:
            self._decode(text)
        except DecodingError as error:
            return LintFinding(where=f"{self._name}:{number}", what=str(error))
        return None

    def fit(self) -> bool:
        """Whether all lines match the index, and the index has no more."""
        return self._fits and self._starts is not None and len(self._starts) == self.samples + 1


def _lines(location: str) -> Iterator[bytes]:
    """The lines of a file or object, with their ends."""
    if not is_url(location):
        with open(location, "rb") as file:
            yield from file
        return
    rest = b""
    with open_object(location) as stream:
        while block := stream.read(_READ_BYTES):
            *whole, rest = (rest + block).split(b"\n")
            yield from (line + b"\n" for line in whole)
    if rest:
        yield rest


def _read_index(location: str) -> npt.NDArray[np.int64]:
    """The index beside a file or object. Raises FileNotFoundError without one."""
    if not is_url(location):
        return read_jsonl_index(jsonl_index_path(location))
    with tempfile.NamedTemporaryFile() as file:  # the mapping outlives the file
        file.write(read_whole(f"{location}.idx"))
        file.flush()
        return read_jsonl_index(file.name, of=location)
