"""`x.jsonl.idx`: where the samples of a JSONL file start, as Energon writes it beside the file.

No header; n+1 unsigned 64-bit little-endian numbers: 0, the offset of the line of each further sample, and last the
size of the file. So blank lines belong to the sample before them, leading ones to the first. The lines `{"a":0}`, an
empty one and `{"a":1}` give (0, 9, 17).
"""

from __future__ import annotations

import contextlib
import errno
import glob
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from energon_grain.errors import DatasetNotFoundError, EmptyDatasetError, IndexFileError, StaleIndexError
from energon_grain.formats.column_file import read_or_map
from energon_grain.formats.index_cache import index_cache_folder
from energon_grain.formats.jsonl_lines import scan_lines
from energon_grain.storage.atomic import atomic_write
from energon_grain.storage.file_lock import locked, sweep, writing_in

Int64Array = npt.NDArray[np.int64]
Progress = Callable[[int, int], None]
"""Called with (bytes read, samples found)."""


def jsonl_index_path(path: str | os.PathLike[str]) -> Path:
    """Give the path of the index of a JSONL file: `x.jsonl` → `x.jsonl.idx`."""
    return Path(f"{os.fspath(path)}.idx")


def read_jsonl_index(path: str | os.PathLike[str], *, of: str | None = None) -> Int64Array:
    """Map an index, read-only: (n+1,) offsets. Costs the same for any number of samples.

    Args:
        path: The index.
        of: The file that it is of, as messages name it; default: what `path` says.

    Raises:
        OSError: The file is not there or may not be read.
        IndexFileError: It holds no whole number of offsets, fewer than two of them, or does not begin with 0.
    """
    with open(path, "rb") as file:
        size_bytes = os.fstat(file.fileno()).st_size
        defect = None
        if size_bytes < 16 or size_bytes % 8:
            defect = f"{size_bytes} bytes are not two or more 8-byte offsets"
        else:
            starts = np.ndarray((size_bytes // 8,), "<i8", buffer=read_or_map(file, size_bytes))
            if int(starts[0]) == 0:
                return starts
            defect = f"its first offset is {int(starts[0])}, not 0"
    data = str(path).removesuffix(".idx") if of is None else of
    raise IndexFileError(f"{data}.idx: {defect}. The index is damaged; `energon-grain prepare {data}` writes it anew")


def write_jsonl_index(
    path: str | os.PathLike[str], *, target: Path | None = None, progress: Progress | None = None
) -> int:
    """Write the index of a JSONL file, whole or not at all, in one pass over the file, and return how many samples.

    Memory does not grow with the file.

    Args:
        path: The JSONL file, or its URL.
        target: Where to write; default: beside the file, which then lies on this machine.
        progress: Called after each MB or so.

    Raises:
        OSError: The file cannot be read, or the index cannot be written.
        DecodingError: Lines hold no object; names them.
        EmptyDatasetError: There is no sample.
    """
    samples = stop = 0
    target = target or jsonl_index_path(path)
    sweep(target.parent, f".{glob.escape(target.name)}.*.tmp")
    with writing_in(target.parent), atomic_write(target) as file:
        for block in scan_lines(path):
            if not samples and len(block.starts):
                block.starts[0] = 0
            file.write(block.starts.astype("<i8").data)
            samples, stop = samples + len(block.starts), block.stop
            if progress is not None:
                progress(stop, samples)
        if not samples:
            raise EmptyDatasetError(f"{path}: has no sample; a line with one JSON object is one")
        file.write(stop.to_bytes(8, "little"))
    return samples


def find_jsonl_index(path: str | os.PathLike[str], *, cache_dir: Path | None = None) -> Path:
    """Give the path of an index that fits a file of this machine; make it first if there is none.

    It is made beside the file, or in `cache_dir` where that folder is not writable. Of two processes that make it at
    once the second waits and then finds it there.

    Raises:
        DatasetNotFoundError: There is no such file.
        StaleIndexError: The index is of another version of the file.
        IndexFileError: The index is damaged.
        DecodingError: There is no index, and lines hold no object.
        EmptyDatasetError: There is no index, and no sample.
    """
    path = Path(path)
    own, cached = jsonl_index_path(path), index_cache_folder(path, cache_dir) / jsonl_index_path(path).name
    found = _existing(path, own, cached)
    if found is not None:
        return found
    with open(path, "rb") as file, locked(file):
        found = _existing(path, own, cached)
        if found is not None:
            return found
        try:
            write_jsonl_index(path, target=own)
            return own
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
                raise
        cached.parent.mkdir(parents=True, exist_ok=True)
        write_jsonl_index(path, target=cached)
        return cached


def check_jsonl_size(path: str | os.PathLike[str], starts: Int64Array, size_bytes: int) -> None:
    """Check that a file has the size that its index says.

    Raises:
        StaleIndexError: It has another one.
    """
    if int(starts[-1]) != size_bytes:
        raise StaleIndexError(
            f"{path} was indexed with {int(starts[-1])} bytes, but it has {size_bytes}; the file was changed after it "
            f"was indexed: run `energon-grain prepare {path}`"
        )


def _existing(path: Path, own: Path, cached: Path) -> Path | None:
    """The index beside the file; or the one in the cache folder, unless the file is newer than that."""
    try:
        status = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        raise DatasetNotFoundError(f"{path}: no such file") from None
    with contextlib.suppress(FileNotFoundError):
        check_jsonl_size(path, read_jsonl_index(own), status.st_size)
        return own
    with contextlib.suppress(FileNotFoundError, NotADirectoryError, IndexFileError):
        if cached.stat().st_mtime_ns >= status.st_mtime_ns:
            return cached if int(read_jsonl_index(cached)[-1]) == status.st_size else None
    return None
