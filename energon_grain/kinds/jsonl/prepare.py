# SPDX-License-Identifier: Apache-2.0
"""Indexes a JSONL file."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from energon_grain.errors import DatasetNotFoundError
from energon_grain.kinds.jsonl.lines import jsonl_index_path, write_jsonl_index
from energon_grain.storage.location import is_url, located
from energon_grain.storage.remote import scan_object, shared_client
from energon_grain.storage.settings import storage_settings
from energon_grain.words import counted, format_bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class JsonlReport:
    """The result of indexing a JSONL file.

    Attributes:
        path: The file; a URL as text.
        index: The index that was written.
        samples: Number of samples.
        size_bytes: Size of the file.
        elapsed_s: Wall-clock time.
    """

    path: Path | str
    index: Path | str
    samples: int
    size_bytes: int
    elapsed_s: float

    def lines(self) -> list[str]:
        """The report as text."""
        prepared = f"Prepared {self.path}: {counted(self.samples, 'sample')}, {format_bytes(self.size_bytes)}"
        found = f"Found {counted(self.samples, 'sample')}."
        return [found, f"{prepared}, in {self.elapsed_s:.2f} s.", f"  index: {self.index}"]


@dataclass(frozen=True, kw_only=True, slots=True)
class JsonlPlan:
    """Plan of preparing a JSONL file: it is read once, and its index is written beside it."""

    path: str
    size_bytes: int
    write: str

    def lines(self) -> list[str]:
        """The plan as text lines."""
        return [
            f"Plan: index {self.path}. Nothing was written.",
            f"  read    {self.path}: {self.size_bytes:,} bytes",
            f"  write   {self.write}",
        ]


def prepare_jsonl(
    path: str | os.PathLike[str], *, progress: Callable[[int, int, int], None] | None = None
) -> JsonlReport:
    """Write the index of a JSONL file beside it, byte-identical to Energon's. Replaces an existing one.

    Args:
        path: The file, or its URL. An object is read once, from start to end.
        progress: Called from time to time with (bytes read, size of the file, samples found).

    Raises:
        DatasetNotFoundError: There is no such file.
        DecodingError: Lines contain no JSON object; names the first ones.
        EmptyDatasetError: There is no sample.
        ReadError: The object does not exist or cannot be reached.
        OSError: The index cannot be written.
    """
    plan, begun_s = plan_jsonl(path), time.monotonic()

    def report(done: int, samples: int) -> None:
        if progress is not None:
            progress(done, plan.size_bytes, samples)

    if is_url(plan.path):
        with tempfile.TemporaryDirectory(prefix="energon-grain-") as folder:
            index = Path(folder, "index")
            samples = write_jsonl_index(plan.path, target=index, progress=report)
            shared_client(storage_settings()).write(plan.write, index.read_bytes())
    else:
        samples = write_jsonl_index(plan.path, progress=report)
    kind = str if is_url(plan.path) else Path
    return JsonlReport(
        path=kind(plan.path),
        index=kind(plan.write),
        samples=samples,
        size_bytes=plan.size_bytes,
        elapsed_s=time.monotonic() - begun_s,
    )


def plan_jsonl(path: str | os.PathLike[str]) -> JsonlPlan:
    """Plan of `prepare_jsonl`. Raises DatasetNotFoundError and ReadError, like it."""
    location = located(path)
    size_bytes = scan_object(location).size_bytes if is_url(location) else existing_file(location).stat().st_size
    index = f"{location}.idx" if is_url(location) else str(jsonl_index_path(location))
    return JsonlPlan(path=location, size_bytes=size_bytes, write=index)


def existing_file(path: str | os.PathLike[str]) -> Path:
    """The path of an existing file. Raises DatasetNotFoundError if it does not exist."""
    path = Path(path)
    if not path.is_file():
        raise DatasetNotFoundError(f"{path}: no such file")
    return path
