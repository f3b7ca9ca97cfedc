"""Checking a JSONL file: every line, and its index."""

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
from energon_grain.formats.jsonl import check_jsonl_size, is_object, jsonl_index_path, read_jsonl_index
from energon_grain.prepare.lint import LISTED_FINDINGS, LintFinding, LintReport, about_columns, opened
from energon_grain.prepare.preparation import existing_file
from energon_grain.sources.kinds import LintAsk
from energon_grain.storage.location import is_url, located, name_of
from energon_grain.storage.object_bytes import ObjectStream, read_whole
from energon_grain.storage.remote_files import RemoteFiles
from energon_grain.storage.settings import storage_settings
from energon_grain.transforms.decode import json_codec

_LINES_BETWEEN_PROGRESS = 20_000
_READ_BYTES = 4 << 20


def lint_jsonl(path: str | os.PathLike[str], ask: LintAsk) -> LintReport:
    """Decode every line of a JSONL file, and compare its index, if there is one, with the lines.

    Findings name the line, counted from 1: `x.jsonl:123`. At most 10,000 are listed. The file is read once, in one
    thread.

    Raises:
        DatasetNotFoundError: There is no such file.
        ReadError: An object store cannot be reached.
        ConfigError: Pickles are asked for.
    """
    location = located(path)
    if ask.allow_pickle:
        raise ConfigError(f"{location}: a JSONL file has no pickles to decode.")
    name, decode = name_of(location), json_codec("json")
    try:
        remote = is_url(location)
        size_bytes = (
            RemoteFiles(storage_settings()).size(location) if remote else existing_file(location).stat().st_size
        )
    except MissingObjectError:
        raise DatasetNotFoundError(f"{location}: no such object") from None
    findings: list[LintFinding] = []
    starts: npt.NDArray[np.int64] | None = None
    of_index: LintFinding | None = None
    try:
        starts = _read_index(location)
        check_jsonl_size(location, starts, size_bytes)
    except FileNotFoundError:
        pass
    except EnergonGrainError as error:
        starts, of_index = None, LintFinding(where=f"{name}.idx", what=str(error))
    offset = samples = 0
    fits = True
    for number, line in enumerate(_lines(location), 1):
        text = line.strip()
        if text and not is_object(text):
            findings.append(LintFinding(where=f"{name}:{number}", what=f"holds no JSON object: {text[:40]!r}"))
        elif text:
            start = offset if samples else 0
            fits = fits and starts is not None and samples < len(starts) and starts[samples] == start
            samples += 1
            try:
                decode(text)
            except DecodingError as error:
                findings.append(LintFinding(where=f"{name}:{number}", what=str(error)))
        offset += len(line)
        if number % _LINES_BETWEEN_PROGRESS == 0:
            ask.progress(offset, size_bytes, len(findings), "")
        if len(findings) == LISTED_FINDINGS:
            what = f"Nothing was read after problem {LISTED_FINDINGS:,}."
            findings.append(LintFinding(severity="note", where=location, what=what))
            return LintReport.of(location, findings, shards=None, samples=samples)
    if starts is not None and not (fits and len(starts) == samples + 1):
        way_out = f"run `energon-grain prepare {location}`"
        of_index = LintFinding(where=f"{name}.idx", what="samples are not where it says", way_out=way_out)
    findings += [of_index] if of_index else []
    if starts is not None and of_index is None:
        opened(location, findings, lambda: findings.extend(about_columns(location, ask.trusted_modules)))
    return LintReport.of(location, findings, shards=None, samples=samples)


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


def _read_index(location: str) -> npt.NDArray[np.int64]:
    """The index beside a file or object. Raises FileNotFoundError where there is none."""
    if not is_url(location):
        return read_jsonl_index(jsonl_index_path(location))
    with tempfile.NamedTemporaryFile() as file:  # what was mapped stays when it is gone
        file.write(read_whole(f"{location}.idx"))
        file.flush()
        return read_jsonl_index(file.name, of=location)
