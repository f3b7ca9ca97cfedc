"""Indexing a JSONL file."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from energon_grain.errors import DatasetNotFoundError
from energon_grain.formats.jsonl_index import jsonl_index_path, write_jsonl_index


@dataclass(frozen=True, kw_only=True, slots=True)
class JsonlReport:
    """What was found when a JSONL file was indexed.

    Attributes:
        path: The file.
        index: The index that was written.
        samples: Number of samples.
        size_bytes: Size of the file.
        elapsed_s: Wall-clock time.
    """

    path: Path
    index: Path
    samples: int
    size_bytes: int
    elapsed_s: float


def prepare_jsonl(
    path: str | os.PathLike[str], *, progress: Callable[[int, int, int], None] | None = None
) -> JsonlReport:
    """Write the index of a JSONL file beside it, the same bytes as Energon's; an older one is replaced.

    Args:
        path: The file.
        progress: Called now and then with (bytes read, size of the file, samples found).

    Raises:
        DatasetNotFoundError: There is no such file.
        DecodingError: Lines hold no JSON object; names the first ones.
        EmptyDatasetError: There is no sample.
        OSError: The index cannot be written.
    """
    path, begun_s = existing_file(path), time.monotonic()
    size_bytes = path.stat().st_size

    def tell(done: int, samples: int) -> None:
        if progress is not None:
            progress(done, size_bytes, samples)

    samples = write_jsonl_index(path, progress=tell)
    return JsonlReport(
        path=path,
        index=jsonl_index_path(path),
        samples=samples,
        size_bytes=size_bytes,
        elapsed_s=time.monotonic() - begun_s,
    )


def existing_file(path: str | os.PathLike[str]) -> Path:
    """The path of a file that is there. Raises DatasetNotFoundError when it is not."""
    path = Path(path)
    if not path.is_file():
        raise DatasetNotFoundError(f"{path}: no such file")
    return path
