"""Indexing a JSONL file."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from energon_grain.formats.jsonl import jsonl_index_path, write_jsonl_index
from energon_grain.prepare.preparation import existing_file
from energon_grain.storage.location import is_url, located
from energon_grain.storage.object_bytes import ObjectBytes
from energon_grain.storage.object_client import shared_client
from energon_grain.storage.settings import storage_settings
from energon_grain.words import counted, format_bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class JsonlReport:
    """What was found when a JSONL file was indexed.

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
        """What people read."""
        prepared = f"Prepared {self.path}: {counted(self.samples, 'sample')}, {format_bytes(self.size_bytes)}"
        found = f"Found {counted(self.samples, 'sample')}."
        return [found, f"{prepared}, in {self.elapsed_s:.2f} s.", f"  index: {self.index}"]


def prepare_jsonl(
    path: str | os.PathLike[str], *, progress: Callable[[int, int, int], None] | None = None
) -> JsonlReport:
    """Write the index of a JSONL file beside it, the same bytes as Energon's; an older one is replaced.

    Args:
        path: The file, or its URL. An object is read once, front to back.
        progress: Called now and then with (bytes read, size of the file, samples found).

    Raises:
        DatasetNotFoundError: There is no such file.
        DecodingError: Lines hold no JSON object; names the first ones.
        EmptyDatasetError: There is no sample.
        ReadError: There is no such object, or it cannot be reached.
        OSError: The index cannot be written.
    """
    location, begun_s = located(path), time.monotonic()
    is_remote = is_url(location)
    size_bytes = ObjectBytes(location).size_bytes if is_remote else existing_file(location).stat().st_size

    def tell(done: int, samples: int) -> None:
        if progress is not None:
            progress(done, size_bytes, samples)

    if is_remote:
        with tempfile.TemporaryDirectory(prefix="energon-grain-") as folder:
            index = Path(folder, "index")
            samples = write_jsonl_index(location, target=index, progress=tell)
            shared_client(storage_settings()).write(f"{location}.idx", index.read_bytes())
    else:
        samples = write_jsonl_index(location, progress=tell)
    return JsonlReport(
        path=location if is_remote else Path(location),
        index=f"{location}.idx" if is_remote else jsonl_index_path(location),
        samples=samples,
        size_bytes=size_bytes,
        elapsed_s=time.monotonic() - begun_s,
    )
