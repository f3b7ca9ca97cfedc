"""Look at every line of a JSONL file, and at its index."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from energon_grain.errors import DecodingError, EnergonGrainError
from energon_grain.formats.jsonl_index import check_jsonl_size, jsonl_index_path, read_jsonl_index
from energon_grain.formats.jsonl_lines import is_object
from energon_grain.prepare.jsonl_preparation import existing_file
from energon_grain.prepare.lint_finding import LintFinding, LintReport
from energon_grain.transforms.text import json_codec

LISTED_FINDINGS = 10_000
Progress = Callable[[int, int, int], None]
"""Called with (bytes read, size of the file, problems found)."""
_LINES_BETWEEN_PROGRESS = 20_000


def lint_jsonl(path: str | os.PathLike[str], *, progress: Progress | None = None) -> LintReport:
    """Decode every line of a JSONL file, and compare its index, if there is one, with the lines.

    Findings name the line, counted from 1: `x.jsonl:123`. At most 10,000 are listed. The file is read once, in one
    thread.

    Args:
        path: The file.
        progress: Called now and then.

    Raises:
        DatasetNotFoundError: There is no such file.
    """
    path = existing_file(path)
    look = _Lines(path)
    findings: list[LintFinding] = []
    for finding in look.findings(progress):
        findings.append(finding)
        if len(findings) >= LISTED_FINDINGS:
            break
    notes = (f"Nothing was read behind problem {LISTED_FINDINGS:,}.",) if len(findings) == LISTED_FINDINGS else ()
    return LintReport(root=path, shards=1, samples=look.samples, findings=tuple(findings), notes=notes)


class _Lines:
    """A pass over the lines of a file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.samples = 0

    def findings(self, progress: Progress | None) -> Iterator[LintFinding]:
        """What is wrong, in the order of the lines; what is wrong with the index, last."""
        decode, name = json_codec("json"), self._path.name
        total, offset, found = self._path.stat().st_size, 0, 0
        starts = self._index()
        expected = None if isinstance(starts, EnergonGrainError) else starts
        index_fits = expected is not None
        with open(self._path, "rb") as file:
            for number, line in enumerate(file, 1):
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
                    yield LintFinding(shard=f"{name}:{number}", key=None, reason=reason)
                offset += len(line)
                if progress is not None and number % _LINES_BETWEEN_PROGRESS == 0:
                    progress(offset, total, found)
        if isinstance(starts, EnergonGrainError):
            yield LintFinding(shard=jsonl_index_path(self._path).name, key=None, reason=str(starts))
        elif expected is not None and not (index_fits and len(expected) == self.samples + 1):
            reason = f"samples are not where it says; run `energon-grain prepare {self._path}`"
            yield LintFinding(shard=jsonl_index_path(self._path).name, key=None, reason=reason)

    def _index(self) -> npt.NDArray[np.int64] | EnergonGrainError | None:
        """The index beside the file, what is wrong with it, or None where there is none."""
        try:
            starts = read_jsonl_index(jsonl_index_path(self._path))
            check_jsonl_size(self._path, starts, self._path.stat().st_size)
        except FileNotFoundError:
            return None
        except EnergonGrainError as error:
            return error
        return starts
