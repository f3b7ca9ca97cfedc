"""Look at every line of a JSONL file, and at its index."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt

from energon_grain.errors import DatasetNotFoundError, DecodingError, EnergonGrainError, MissingObjectError
from energon_grain.formats.jsonl import check_jsonl_size, is_object, jsonl_index_path, read_jsonl_index
from energon_grain.prepare.jsonl_preparation import existing_file
from energon_grain.prepare.lint_finding import LintFinding, LintReport
from energon_grain.storage.location import is_url, located, name_of
from energon_grain.storage.object_bytes import ObjectStream
from energon_grain.storage.read_whole import read_whole
from energon_grain.storage.remote_files import RemoteFiles
from energon_grain.storage.storage_settings import storage_settings
from energon_grain.transforms.decode import json_codec

LISTED_FINDINGS = 10_000
Progress = Callable[[int, int, int], None]
"""Called with (bytes read, size of the file, problems found)."""
_LINES_BETWEEN_PROGRESS = 20_000
_READ_BYTES = 4 << 20


def lint_jsonl(path: str | os.PathLike[str], *, progress: Progress | None = None) -> LintReport:
    """Decode every line of a JSONL file, and compare its index, if there is one, with the lines.

    Findings name the line, counted from 1: `x.jsonl:123`. At most 10,000 are listed. The file is read once, in one
    thread.

    Args:
        path: The file, or its URL.
        progress: Called now and then.

    Raises:
        DatasetNotFoundError: There is no such file.
        ReadError: An object store cannot be reached.
    """
    location = located(path)
    look = _Lines(location, _size(location))
    findings: list[LintFinding] = []
    for finding in look.findings(progress):
        findings.append(finding)
        if len(findings) >= LISTED_FINDINGS:
            break
    if len(findings) == LISTED_FINDINGS:
        what = f"Nothing was read behind problem {LISTED_FINDINGS:,}."
        findings.append(LintFinding(severity="note", where=location, what=what))
    return LintReport.of(location, findings, shards=1, samples=look.samples)


def _size(location: str) -> int:
    if not is_url(location):
        return existing_file(location).stat().st_size
    try:
        return RemoteFiles(storage_settings()).size(location)
    except MissingObjectError:
        raise DatasetNotFoundError(f"{location}: no such object") from None


def _lines(location: str) -> Iterator[bytes]:
    """The lines of a file or object, with their ends."""
    if not is_url(location):
        with open(location, "rb") as file:
            yield from file
        return
    rest = b""
    with ObjectStream(location) as stream:
        while block := stream.read(_READ_BYTES):
            *whole, rest = (rest + block).split(b"\n")
            yield from (line + b"\n" for line in whole)
    if rest:
        yield rest


class _Lines:
    """A pass over the lines of a file."""

    def __init__(self, location: str, size_bytes: int) -> None:
        self._location, self._size_bytes = location, size_bytes
        self._index_name = f"{name_of(location)}.idx"
        self.samples = 0

    def findings(self, progress: Progress | None) -> Iterator[LintFinding]:
        """What is wrong, in the order of the lines; what is wrong with the index, last."""
        decode, name = json_codec("json"), name_of(self._location)
        offset = found = 0
        starts = self._index()
        expected = None if isinstance(starts, EnergonGrainError) else starts
        index_fits = expected is not None
        for number, line in enumerate(_lines(self._location), 1):
            reason = None
            text = line.strip()
            if text and not is_object(text):
                reason = f"holds no JSON object: {text[:40]!r}"
            elif text:
                start, row = offset if self.samples else 0, self.samples
                index_fits = index_fits and expected is not None and row < len(expected) and expected[row] == start
                self.samples += 1
                try:
                    decode(text)
                except DecodingError as error:
                    reason = str(error)
            if reason is not None:
                found += 1
                yield LintFinding(where=f"{name}:{number}", what=reason)
            offset += len(line)
            if progress is not None and number % _LINES_BETWEEN_PROGRESS == 0:
                progress(offset, self._size_bytes, found)
        if isinstance(starts, EnergonGrainError):
            yield LintFinding(where=self._index_name, what=str(starts))
        elif expected is not None and not (index_fits and len(expected) == self.samples + 1):
            way_out = f"run `energon-grain prepare {self._location}`"
            yield LintFinding(where=self._index_name, what="samples are not where it says", way_out=way_out)

    def _index(self) -> npt.NDArray[np.int64] | EnergonGrainError | None:
        """The index beside the file, what is wrong with it, or None where there is none."""
        try:
            starts = _read_index(self._location)
            check_jsonl_size(self._location, starts, self._size_bytes)
        except FileNotFoundError:
            return None
        except EnergonGrainError as error:
            return error
        return starts


def _read_index(location: str) -> npt.NDArray[np.int64]:
    """The index beside a file or object. Raises FileNotFoundError where there is none."""
    if not is_url(location):
        return read_jsonl_index(jsonl_index_path(location))
    with tempfile.NamedTemporaryFile() as file:  # what was mapped stays when it is gone
        file.write(read_whole(f"{location}.idx"))
        file.flush()
        return read_jsonl_index(file.name, of=location)
