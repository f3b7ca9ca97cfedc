# SPDX-License-Identifier: Apache-2.0
"""The result of scanning one shard: the location of every sample and part."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from energon_grain.storage.digests import ShardDigest

_UTF8 = ("utf-8", "surrogateescape")


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class MediaRows:
    """Metadata of the media among the parts of a shard; k of them."""

    part: npt.NDArray[np.int64]  # (k,) row of the part columns, ascending
    is_av: npt.NDArray[np.bool_]  # (k,) video or audio, not an image
    texts: bytes  # results of `serialize_media_metadata`, separated by line ends

    def __len__(self) -> int:
        return len(self.part)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class ShardScan:
    """The location of every sample and part of one shard; n samples with m parts in total."""

    size_bytes: int  # of the tar file
    sample_start: npt.NDArray[np.int64]  # (n+1,) offset of sample i's first header; last: end of archive (= `.tar.idx`)
    part_start: npt.NDArray[np.int64]  # (n+1,) the parts of sample i are part_start[i]:part_start[i+1]
    part_names: tuple[str, ...]  # distinct, in order of first appearance
    part_name: npt.NDArray[np.int32]  # (m,) index into part_names
    part_offset: npt.NDArray[np.int64]  # (m,) of the payload, in bytes from the start of the tar
    part_size: npt.NDArray[np.int64]  # (m,) payload bytes
    key_start: npt.NDArray[np.int64]  # (n+1,) key i is key_bytes[key_start[i]:key_start[i+1]]
    key_bytes: npt.NDArray[np.uint8]  # UTF-8; other bytes are decoded as surrogate escapes
    generation: bytes = b""  # version of the object, for a shard in a store
    media: MediaRows | None = None  # None: not searched
    digest: ShardDigest | None = None  # of the whole file, if the scan made one

    def __len__(self) -> int:
        return len(self.sample_start) - 1

    def has_same_layout(self, other: ShardScan) -> bool:
        """Whether all samples and parts have the same location in another scan; media and version are ignored."""
        names = ("sample_start", "part_start", "part_name", "part_offset", "part_size", "key_start", "key_bytes")
        return (self.size_bytes, self.part_names) == (other.size_bytes, other.part_names) and all(
            np.array_equal(getattr(self, name), getattr(other, name)) for name in names
        )

    def key(self, index: int) -> str:
        if not 0 <= index < len(self):
            raise IndexError(f"sample {index} of a shard of {len(self)}")
        return self.key_bytes[self.key_start[index] : self.key_start[index + 1]].tobytes().decode(*_UTF8)

    def keys(self) -> list[str]:
        data, ends = self.key_bytes.tobytes(), self.key_start.tolist()
        return [data[start:end].decode(*_UTF8) for start, end in itertools.pairwise(ends)]


def parts_not_read(part_start: npt.NDArray[np.int64], part_name: npt.NDArray[np.int32]) -> npt.NDArray[np.int64]:
    """Rows of parts that are replaced by a later part of the same sample with the same name; ascending.

    Args:
        part_start: (n + 1,) as in `ShardScan`, from 0.
        part_name: (m,) as in `ShardScan`.
    """
    counts = np.diff(part_start)
    if not len(counts) or counts.max() < 2:
        return np.zeros(0, np.int64)
    member = np.repeat(np.arange(len(counts)), counts) * (int(part_name.max()) + 1) + part_name
    order = np.argsort(member, kind="stable")
    return np.sort(order[:-1][member[order[1:]] == member[order[:-1]]])
