"""The columnar index: where every part of every sample of a dataset lies, as memory-mapped numpy columns.

    .nv-meta/columnar/header.json          names the current generation; replaced atomically
    .nv-meta/columnar/<generation>/*.npy   the columns

With S shards, N samples and M parts in all:

    sample_start  (N + S,)  the `.tar.idx` of all shards, one after the other: shard s has rows first[s] + s and on
    part_start    (N + 1,)  parts of sample i are rows part_start[i]:part_start[i + 1] of the part columns
    part_name, part_offset, part_size  (M,)  place in `part_names`, offset of the payload in its tar, bytes of it
    key_start     (N + 1,)  key i is key_bytes[key_start[i]:key_start[i + 1]], UTF-8
    key_order     (N,)      argsort of the keys as bytes

Opening it costs one small JSON file and eight memory maps, whatever the number of shards.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from energon_grain.errors import IndexFileError
from energon_grain.formats.column_file import read_column
from energon_grain.formats.columnar_header import (
    COLUMN_TYPES,
    HEADER_NAME,
    ColumnarHeader,
    columnar_folder,
    mending,
    read_header,
)
from energon_grain.formats.data_folder import DataFolder, naming, open_folder
from energon_grain.formats.index_cache import index_cache_folder
from energon_grain.formats.nv_meta import DatasetInfo, read_info

_VECTORISED_KEYS = 64  # below, a loop over the keys is as fast


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class ColumnarIndex:
    """Where every part of every sample of a dataset lies. Samples are numbered from 0 through all shards.

    Attributes:
        root: The dataset.
        shards: Names of the shards, relative to `root`, in the order of `.info.json`.
        shard_bytes: (S,) size of each tar file when the index was written.
        shard_first: (S + 1,) number of the first sample of each shard; the last entry is the number of samples.
        part_names: Distinct part names.
        content_id: 32 hex digits; see `ColumnarHeader.content_id`.
    """

    root: Path
    shards: tuple[str, ...]
    shard_bytes: npt.NDArray[np.int64]
    shard_first: npt.NDArray[np.int64]
    part_names: tuple[str, ...]
    content_id: str
    sample_start: npt.NDArray[np.int64]  # (N + S,)
    part_start: npt.NDArray[np.int64]  # (N + 1,)
    part_name: npt.NDArray[np.int32]  # (M,)
    part_offset: npt.NDArray[np.int64]  # (M,)
    part_size: npt.NDArray[np.int64]  # (M,)
    key_start: npt.NDArray[np.int64]  # (N + 1,)
    key_bytes: npt.NDArray[np.uint8]
    key_order: npt.NDArray[np.int64]  # (N,)

    def __len__(self) -> int:
        """The number of samples."""
        return len(self.part_start) - 1

    @property
    def columns(self) -> tuple[npt.NDArray[Any], ...]:
        """All columns, in the order of `COLUMN_TYPES`."""
        return tuple(getattr(self, name) for name in COLUMN_TYPES)

    @property
    def rows(self) -> int:
        """Length of the longest column whose entries have 8 bytes."""
        return max(len(self), len(self.part_offset))

    def shard_of(self, samples: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the number of the shard of each sample."""
        return np.searchsorted(self.shard_first, samples, side="right") - 1

    def shard_sample_start(self, shard: int) -> npt.NDArray[np.int64]:
        """Return the content of the `.tar.idx` of a shard: (n + 1,) offsets of its samples and of its end."""
        return self.sample_start[self.shard_first[shard] + shard : self.shard_first[shard + 1] + shard + 1]

    def keys(self, samples: npt.NDArray[np.int64]) -> list[str]:
        """Return the key of each sample, at about 0.1 µs a key.

        Bytes that are not UTF-8 come as surrogates, as Python decodes file names.
        """
        start, stop = self.key_start[samples], self.key_start[samples + 1]
        length = stop - start
        if len(start) >= _VECTORISED_KEYS:
            same = int(length[0]) if length[0] > 0 and (length == length[0]).all() else None
            text = self._join_keys(start, length) if same is None else self._join_keys_of_length(start, same)
            keys = text.decode("utf-8", "surrogateescape").split("\0")
            if len(keys) == len(start) + 1:  # else a key holds a NUL itself
                keys.pop()
                return keys
        view = self.key_bytes.data
        bounds = zip(start.tolist(), stop.tolist(), strict=True)
        return [str(view[begin:end], "utf-8", "surrogateescape") for begin, end in bounds]

    def key(self, sample: int) -> str:
        """Return the key of one sample."""
        return self._key_bytes(sample).decode("utf-8", "surrogateescape")

    def find(self, key: str) -> int | None:
        """Return the sample with this key (the first of them where several have it), or None."""
        wanted = key.encode("utf-8", "surrogateescape")
        low, high = 0, len(self)
        while low < high:
            middle = (low + high) // 2
            if self._key_bytes(int(self.key_order[middle])) < wanted:
                low = middle + 1
            else:
                high = middle
        if low == len(self):
            return None
        sample = int(self.key_order[low])
        return sample if self._key_bytes(sample) == wanted else None

    def _join_keys_of_length(self, start: npt.NDArray[np.int64], length: int) -> bytes:
        """Return the keys that start at `start`, all of the same length, with a NUL after each."""
        starting_anywhere = np.ndarray(
            (len(self.key_bytes) - length + 1,), dtype=f"V{length}", buffer=self.key_bytes, strides=(1,)
        )
        text = np.zeros((len(start), length + 1), dtype=np.uint8)
        text[:, :length] = starting_anywhere[start].view(np.uint8).reshape(len(start), length)
        return text.tobytes()

    def _join_keys(self, start: npt.NDArray[np.int64], length: npt.NDArray[np.int64]) -> bytes:
        """Return the keys that start at `start` with a NUL after each."""
        place = np.cumsum(length + 1)
        source = np.arange(int(place[-1])) + np.repeat(start - place + length + 1, length + 1)
        text = self.key_bytes.take(source, mode="clip")
        text[place - 1] = 0
        return text.tobytes()

    def _key_bytes(self, sample: int) -> bytes:
        return self.key_bytes[self.key_start[sample] : self.key_start[sample + 1]].tobytes()


def open_columnar(
    path: str | os.PathLike[str] | DataFolder, *, info: DatasetInfo | None = None, cache_dir: Path | None = None
) -> ColumnarIndex:
    """Open the columnar index of the prepared dataset at `path`; build it first where it is missing.

    An index that does not list the shards of `.info.json` with their numbers of samples (Energon prepared the dataset
    again, say) counts as missing. The index is built from the tars and checked against their `.tar.idx`, and kept in
    the dataset if that is writable, else in `cache_dir`; of a dataset in an object store in its mirror. No tar file is
    looked at where it exists.

    Args:
        path: A dataset that `energon-grain prepare` or `energon prepare` prepared.
        info: What its `.info.json` says, where that was read already.
        cache_dir: Where to keep the index of a read-only dataset: `$XDG_CACHE_HOME/energon-grain` if None.

    Raises:
        DatasetNotFoundError: There is no prepared dataset at `path`.
        IndexFileError: The index is damaged.
        StaleIndexError: The tars do not fit `.info.json` or their `.tar.idx`.
        ReadError: An object store cannot be reached.
    """
    folder = open_folder(path)
    with naming(folder):
        return _opened(folder, info or read_info(folder.local), cache_dir)


def _opened(folder: DataFolder, info: DatasetInfo, cache_dir: Path | None) -> ColumnarIndex:
    from energon_grain.formats.columnar_build import build_columnar, info_stamp

    root = folder.local
    for _ in range(3):
        for place in _places(root, cache_dir):
            header = read_header(place, root)
            if header is None or not header.fits(info):
                continue
            if header.info_stamp is not None and header.info_stamp != info_stamp(root):
                continue
            try:
                return load_generation(root, place, header)
            except FileNotFoundError:
                if read_header(place, root) == header:  # else it was replaced while we were opening it
                    raise IndexFileError(
                        f"{place / header.generation}: columns named by {HEADER_NAME} are missing; {mending(root)}"
                    ) from None
        build_columnar(folder, info, cache_dir=cache_dir)
    raise IndexFileError(f"{root}: the columnar index kept changing while it was opened; {mending(root)}")


def _places(root: Path, cache_dir: Path | None) -> Iterator[Path]:
    yield columnar_folder(root)
    yield index_cache_folder(root, cache_dir)  # follows the links in the path: only where it must


def load_generation(root: Path, folder: Path, header: ColumnarHeader) -> ColumnarIndex:
    """Map the columns that `header` names, inside the index folder `folder` of the dataset at `root`.

    Raises:
        FileNotFoundError: A column is missing.
        IndexFileError: A column is damaged, or the columns do not fit each other.
    """
    samples = [count for _, _, count in header.shards]
    total, parts = sum(samples), header.columns["part_offset"].rows
    expected = dict.fromkeys(("part_name", "part_offset", "part_size"), parts)
    expected |= {"part_start": total + 1, "key_start": total + 1, "key_order": total}
    expected["sample_start"] = total + len(samples)
    expected["key_bytes"] = header.columns["key_bytes"].rows
    generation = folder / header.generation
    try:
        columns = {
            name: read_column(generation / f"{name}.npy", dtype, expected[name]) for name, dtype in COLUMN_TYPES.items()
        }
    except IndexFileError as error:
        raise IndexFileError(f"{error}; {mending(root)}") from error
    for start, end in (("part_start", parts), ("key_start", expected["key_bytes"])):
        if columns[start][0] != 0 or columns[start][-1] != end:
            raise IndexFileError(f"{folder / header.generation / start}.npy: must go from 0 to {end}; {mending(root)}")
    shard_first = np.zeros(len(samples) + 1, np.int64)
    np.cumsum(samples, out=shard_first[1:])
    return ColumnarIndex(
        root=root,
        shards=tuple(name for name, _, _ in header.shards),
        shard_bytes=np.array([size for _, size, _ in header.shards], dtype=np.int64),
        shard_first=shard_first,
        part_names=tuple(header.part_names),
        content_id=header.content_id,
        **columns,
    )
