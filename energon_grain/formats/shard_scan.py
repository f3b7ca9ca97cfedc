"""Where every sample and every part of a tar shard lies, found without reading the payloads.

Which members count, and which of them make a sample together: see `member_names`. A new sample starts where the key
differs from the one of the part before; members that are no parts do not matter.
"""

from __future__ import annotations

import itertools
import os
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from energon_grain.formats.member_names import Hidden
from energon_grain.formats.tar_bytes import TarBytes
from energon_grain.formats.tar_header import BLOCK
from energon_grain.formats.tar_parts import PartReader
from energon_grain.formats.tar_walk import HeaderWalk, Strategy


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class ShardScan:
    """Where every sample and every part of one shard lies; n samples with m parts together."""

    size_bytes: int  # of the tar file
    sample_start: npt.NDArray[np.int64]  # (n+1,) offset of sample i's first header; last: end of archive (= `.tar.idx`)
    part_start: npt.NDArray[np.int64]  # (n+1,) the parts of sample i are part_start[i]:part_start[i+1]
    part_names: tuple[str, ...]  # distinct, in order of first appearance
    part_name: npt.NDArray[np.int32]  # (m,) index into part_names
    part_offset: npt.NDArray[np.int64]  # (m,) of the payload, in bytes from the start of the tar
    part_size: npt.NDArray[np.int64]  # (m,) payload bytes
    key_start: npt.NDArray[np.int64]  # (n+1,) key i is key_bytes[key_start[i]:key_start[i+1]]
    key_bytes: npt.NDArray[np.uint8]  # UTF-8; bytes that are not come back as surrogate escapes
    generation: bytes = b""  # version of the object, of a shard in a store

    def __len__(self) -> int:
        return len(self.sample_start) - 1

    def key(self, index: int) -> str:
        """Give the key of sample `index`, 0 to n-1."""
        if not 0 <= index < len(self):
            raise IndexError(f"sample {index} of a shard of {len(self)}")
        return self.key_bytes[self.key_start[index] : self.key_start[index + 1]].tobytes().decode(*_UTF8)

    def keys(self) -> list[str]:
        """Give all keys, in the order of the samples."""
        data, ends = self.key_bytes.tobytes(), self.key_start.tolist()
        return [data[start:end].decode(*_UTF8) for start, end in itertools.pairwise(ends)]


def scan_tar(
    path: str | os.PathLike[str], *, hidden: Hidden = "skip", strategy: Strategy = "auto", keep: bool = False
) -> ShardScan:
    """Scan a tar shard: ustar, GNU and PAX, with their long names and large sizes.

    Reads only headers where members are large: above a mean of 16 KiB in a file, of 256 KiB in an object store.
    Memory: a few MiB (up to 24 for an object), and about 40 bytes a sample and 24 a part for the result. A tar without
    any sample is fine here.

    Args:
        path: The tar file, or its URL.
        hidden: "skip" ignores hidden files everywhere; "keep" reproduces Energon, where `d/.h.jpg` makes a sample `d/`.
        strategy: How headers are found; "auto" goes by the size of the members. The result does not depend on it.
        keep: Where payloads of an object are read in passing, they stay in the block cache.

    Raises:
        OSError: The file is not there or may not be read.
        TarError: It is damaged, compressed, or has hard links or sparse members. Names file, member and offset.
    """
    with TarBytes(path, keep=keep) as tar:
        walk, reader = HeaderWalk(tar, strategy), PartReader(tar, hidden)
        columns = _Columns()
        for batch in walk:
            found = reader.read(batch)
            columns.part_name.append(found.part)
            columns.part_offset.append(batch.offset[found.row] + BLOCK)
            columns.part_size.append(batch.size[found.row])
            columns.is_new.append(found.is_new_key)
            columns.sample_start.append(batch.start[found.row[found.is_new_key]])
            columns.key_length.append(found.key_length)
            columns.key_bytes.append(found.key_bytes)
        return columns.join(tar, walk.end, reader.part_names)


class _Columns:
    """The columns of a scan, batch by batch."""

    def __init__(self) -> None:
        self.part_name: list[npt.NDArray[np.int32]] = [np.zeros(0, np.int32)]
        self.part_offset: list[npt.NDArray[np.int64]] = [np.zeros(0, np.int64)]
        self.part_size: list[npt.NDArray[np.int64]] = [np.zeros(0, np.int64)]
        self.is_new: list[npt.NDArray[np.bool_]] = [np.zeros(0, np.bool_)]
        self.sample_start: list[npt.NDArray[np.int64]] = []
        self.key_length: list[npt.NDArray[np.int64]] = [np.zeros(1, np.int64)]
        self.key_bytes: list[npt.NDArray[np.uint8]] = [np.zeros(0, np.uint8)]

    def join(self, tar: TarBytes, end: int, part_names: tuple[str, ...]) -> ShardScan:
        is_new = np.concatenate(self.is_new)
        return ShardScan(
            size_bytes=tar.size_bytes,
            generation=tar.data.generation,
            sample_start=np.concatenate([*self.sample_start, np.array([end], np.int64)]),
            part_start=np.append(np.flatnonzero(is_new), len(is_new)).astype(np.int64),
            part_names=part_names,
            part_name=np.concatenate(self.part_name),
            part_offset=np.concatenate(self.part_offset),
            part_size=np.concatenate(self.part_size),
            key_start=np.cumsum(np.concatenate(self.key_length)),
            key_bytes=np.concatenate(self.key_bytes),
        )


_UTF8 = ("utf-8", "surrogateescape")
