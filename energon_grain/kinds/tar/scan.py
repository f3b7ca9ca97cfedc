# SPDX-License-Identifier: Apache-2.0
"""Finds the location of every sample and part of a tar shard without reading the payloads.

`tar.names` determines which members are parts, and which form a sample together. A new sample starts where the key
differs from that of the previous part; members that are not parts are ignored.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt

from energon_grain.formats.scan import ShardScan
from energon_grain.kinds.tar.header import BLOCK, CONTIGUOUS, NAME, OLD_REGULAR, PREFIX, REGULAR, TYPE, full_name
from energon_grain.kinds.tar.names import Hidden, part_dot, part_dots
from energon_grain.kinds.tar.walk import HeaderBatch, HeaderWalk, Strategy, TarBytes
from energon_grain.prepare.hashed_bytes import HashedBytes

_KNOWN_IN_BULK: Final = 64


@dataclass(slots=True)
class PartBatch:
    """The parts among the members of a batch, in file order."""

    row: npt.NDArray[np.int64]  # (m,) row in the batch
    part: npt.NDArray[np.int32]  # (m,) part name id
    is_new_key: npt.NDArray[np.bool_]  # (m,) the key differs from that of the previous part
    key_bytes: npt.NDArray[np.uint8]  # the new keys, concatenated
    key_length: npt.NDArray[np.int64]  # (number of new keys,)


class PartReader:
    """Reads the parts of one tar in batches. Keeps the part names and the last key between batches."""

    def __init__(self, tar: TarBytes, hidden: Hidden) -> None:
        self._tar = tar
        self._hidden: Hidden = hidden
        self._ids: dict[bytes, int] = {}
        self._last_key: bytes | None = None

    @property
    def part_names(self) -> tuple[str, ...]:
        """The distinct part names so far, in order of first appearance."""
        return tuple(name.decode("utf-8", "surrogateescape") for name in self._ids)

    def read(self, batch: HeaderBatch) -> PartBatch:
        """Find the parts in a batch.

        Raises TarError if a header has bytes in the field of the name's prefix, but its format has none.
        """
        kinds = batch.headers[:, TYPE]
        regular = kinds == REGULAR
        if not regular.all():
            regular |= (kinds == OLD_REGULAR) | (kinds == CONTIGUOUS)
        rows = np.flatnonzero(regular)
        headers = batch.headers if len(rows) == len(batch) else batch.headers[rows]
        if batch.names or headers[:, PREFIX.start].any():
            return self._read_long(batch, rows)
        return self._read_short(headers[:, NAME], rows)

    def _read_short(self, fields: npt.NDArray[np.uint8], rows: npt.NDArray[np.int64]) -> PartBatch:
        names, lengths = _pad(fields)
        dots = part_dots(names, self._hidden)
        kept = np.flatnonzero(dots >= 0)
        if not len(kept):
            return _no_parts()
        if len(kept) < len(rows):
            names, lengths, dots, rows = names[kept], lengths[kept], dots[kept], rows[kept]
        keys, parts = _split(names, dots, int((lengths - dots).max()) - 1)
        is_new = np.zeros(len(keys), np.bool_)
        for word in keys.view("<u8").T:
            is_new[1:] |= word[1:] != word[:-1]
        is_new[0] = keys[0, : dots[0]].tobytes() != self._last_key
        self._last_key = keys[-1, : dots[-1]].tobytes()
        new_keys, key_length = keys[is_new], dots[is_new]
        return PartBatch(
            row=rows,
            part=self._number(parts),
            is_new_key=is_new,
            key_bytes=new_keys[new_keys != 0],  # keys contain no zero bytes
            key_length=key_length,
        )

    def _number(self, parts: npt.NDArray[np.uint8]) -> npt.NDArray[np.int32]:
        """Number (n, w) contiguous zero-padded part names, w a multiple of 8."""
        width = parts.shape[1]
        kind: Any = "<u8" if width == 8 else f"S{width}"
        codes = parts.view(kind)[:, 0]
        ids = np.full(len(codes), -1, np.int32)
        if len(self._ids) <= _KNOWN_IN_BULK:
            for name, number in self._ids.items():
                if len(name) <= width:
                    ids[codes == np.frombuffer(name.ljust(width, b"\0"), kind)[0]] = number
        unknown = np.flatnonzero(ids < 0)
        if len(unknown):
            _, first, inverse = np.unique(codes[unknown], return_index=True, return_inverse=True)
            numbers = np.zeros(len(first), np.int32)
            for group in np.argsort(first):
                name = parts[unknown[first[group]]].tobytes().rstrip(b"\0")
                numbers[group] = self._ids.setdefault(name, len(self._ids))
            ids[unknown] = numbers[inverse]
        return ids

    def _read_long(self, batch: HeaderBatch, rows: npt.NDArray[np.int64]) -> PartBatch:
        kept: list[int] = []
        parts: list[int] = []
        is_new: list[bool] = []
        keys: list[bytes] = []
        for row in rows.tolist():
            name = batch.names.get(row) or self._header_name(batch, row)
            dot = part_dot(name, self._hidden)
            if dot < 0:
                continue
            key = name[:dot]
            kept.append(row)
            parts.append(self._ids.setdefault(name[dot + 1 :], len(self._ids)))
            is_new.append(key != self._last_key)
            if key != self._last_key:
                keys.append(key)
                self._last_key = key
        return PartBatch(
            row=np.array(kept, np.int64),
            part=np.array(parts, np.int32),
            is_new_key=np.array(is_new, np.bool_),
            key_bytes=np.frombuffer(b"".join(keys), np.uint8),
            key_length=np.fromiter(map(len, keys), np.int64, len(keys)),
        )

    def _header_name(self, batch: HeaderBatch, row: int) -> bytes:
        try:
            return full_name(batch.headers[row].tobytes())
        except ValueError as error:
            raise self._tar.error(
                int(batch.offset[row]), str(error), "Create the shard again, without `--incremental`."
            ) from None


def _pad(fields: npt.NDArray[np.uint8]) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """Trim (n, 100) name fields to the width in use, a multiple of 8, with at least eight zeros after each name.

    Returns:
        The names, and their lengths.
    """
    used = np.flatnonzero(np.bitwise_or.reduce(fields, axis=0))
    width = int(used[-1]) + 1 if len(used) else 0
    names = np.zeros((len(fields), (width + 15) // 8 * 8), np.uint8)
    names[:, :width] = fields[:, :width]
    is_zero = names == 0
    lengths = is_zero.argmax(axis=1)
    if names.size - np.count_nonzero(is_zero) != lengths.sum():  # bytes after the zero at the end of a name
        names *= np.arange(names.shape[1]) < lengths[:, None]
    return names, lengths


def _split(
    names: npt.NDArray[np.uint8], dots: npt.NDArray[np.int64], longest_part: int
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
    """Split padded names at their dots into keys and part names, both padded with zeros to multiples of 8 bytes."""
    width = -(-max(1, longest_part) // 8) * 8
    if width > 8:
        names = np.pad(names, ((0, 0), (0, width - 8)))
    dot = int(dots[0])
    if (dots == dot).all():  # common case of numbered samples: plain slices
        parts = np.ascontiguousarray(names[:, dot + 1 : dot + 1 + width])
        keys = np.zeros((len(names), (dot + 7) // 8 * 8), np.uint8)
        keys[:, :dot] = names[:, :dot]
        return keys, parts
    flat = np.ndarray((names.size - 7,), "<u8", names, 0, (1,))  # the eight bytes from each offset
    places = np.arange(len(names)) * names.shape[1] + dots + 1
    parts = flat[places[:, None] + np.arange(0, width, 8)].view(np.uint8)
    return names * (np.arange(names.shape[1]) < dots[:, None]), parts


def _no_parts() -> PartBatch:
    none = np.zeros(0, np.int64)
    return PartBatch(none, none.astype(np.int32), none.astype(np.bool_), none.astype(np.uint8), none)


def scan_tar(
    path: str | os.PathLike[str],
    *,
    hidden: Hidden = "skip",
    strategy: Strategy = "auto",
    keep: bool = False,
    digest: Literal["none", "free", "whole"] = "none",
) -> ShardScan:
    """Scan a tar shard: ustar, GNU and PAX, including long names and large sizes.

    Reads only headers if members are large: above a mean of 16 KiB in a file, of 256 KiB in an object store.
    Memory: a few MiB (up to 24 for an object), and about 40 bytes per sample and 24 per part for the result. A tar
    without samples is valid.

    Args:
        path: The tar file, or its URL.
        hidden: "skip" ignores hidden files everywhere; "keep" reproduces Energon, where `d/.h.jpg` makes a sample `d/`.
        strategy: How headers are found; "auto" depends on the size of the members. Does not affect the result.
        keep: Whether payloads of an object that are read in passing stay in the block cache.
        digest: Whether to make a digest of a local file: "free" if nearly all bytes are read anyway, "whole" always.

    Raises:
        OSError: The file does not exist or cannot be read.
        TarError: It is damaged, compressed, or has hard links or sparse members. Names file, member and offset.
    """
    with TarBytes(path, keep=keep) as tar:
        hashed = None if digest == "none" else HashedBytes(tar.data, whole=digest == "whole")
        tar.data = hashed or tar.data
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
        scan = columns.join(tar, walk.end, reader.part_names)
        return scan if hashed is None else replace(scan, digest=hashed.digest())


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
