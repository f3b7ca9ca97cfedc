"""The scan of one shard as bytes: how it gets from a worker to `prepare`, and as a file from a killed run to the next.

Layout: 8 bytes of magic; as little-endian uint32, the length of the header, and the CRC-32 of all that follows (begun
with that length), because these files are not flushed to disk one by one; the header as JSON, padded with spaces to a
multiple of 8 bytes; the arrays, each padded likewise. The header says which file was scanned (name, size, time of
modification, or version of an object), so that the scan of another file is never taken for this one's.
"""

from __future__ import annotations

import os
import struct
import zlib
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from energon_grain.formats.tar.scan import ShardScan
from energon_grain.forms import Form
from energon_grain.storage.atomic import naming_when_full
from energon_grain.storage.location import is_url, join

_MAGIC = b"EGSCAN1\n"
_PREFIX = struct.Struct("<II")
_COLUMNS: dict[str, type[Any]] = {
    "sample_start": np.int64,
    "part_start": np.int64,
    "part_name": np.int32,
    "part_offset": np.int64,
    "part_size": np.int64,
    "key_start": np.int64,
    "key_bytes": np.uint8,
}


class ShardIdentity(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What must be unchanged for a stored scan to hold.

    Attributes:
        name: Of the shard, relative to the dataset.
        size_bytes: Of the file or object.
        mtime_ns: When a file was modified.
        generation: Version of an object.
    """

    name: str
    size_bytes: int
    mtime_ns: int = 0
    generation: bytes = b""

    @classmethod
    def of(cls, root: str | os.PathLike[str], name: str) -> ShardIdentity:
        """Look at the file as it is now."""
        status = os.stat(os.path.join(root, name))
        return cls(name=name, size_bytes=status.st_size, mtime_ns=status.st_mtime_ns)

    def holds(self, root: str) -> bool:
        """Look whether the shard below a path or URL is the same now. Raises OSError where that cannot be told."""
        if not is_url(root):
            return ShardIdentity.of(root, self.name) == self
        from energon_grain.storage.object_bytes import is_unchanged  # processes that scan files need none of it

        return is_unchanged(join(root, self.name), self.generation)


class _Header(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    shard: ShardIdentity
    part_names: tuple[str, ...]
    lengths: tuple[int, ...]


_HEADER = Form(_Header)


def encode_scan(identity: ShardIdentity, scan: ShardScan) -> bytes:
    """Write a scan as the bytes of such a file: 24 bytes a sample, 20 a part, and the keys."""
    columns = [np.ascontiguousarray(getattr(scan, name), dtype) for name, dtype in _COLUMNS.items()]
    header = msgspec.json.encode(
        _Header(
            shard=identity,
            part_names=tuple(_to_json(name) for name in scan.part_names),
            lengths=tuple(len(column) for column in columns),
        )
    )
    header += b" " * (-len(header) % 8)
    pieces = [header]
    for column in columns:
        pieces += [column.tobytes(), bytes(-column.nbytes % 8)]
    crc32 = len(header)
    for piece in pieces:
        crc32 = zlib.crc32(piece, crc32)
    return b"".join([_MAGIC, _PREFIX.pack(len(header), crc32), *pieces])


def decode_scan(content: bytes) -> tuple[ShardIdentity, ShardScan] | None:
    """Read what `encode_scan` wrote, and which file it is of; None where it is damaged. The arrays share memory."""
    header_start = len(_MAGIC) + _PREFIX.size
    if not content.startswith(_MAGIC) or len(content) < header_start:
        return None
    header_bytes, crc32 = _PREFIX.unpack_from(content, len(_MAGIC))
    if zlib.crc32(memoryview(content)[header_start:], header_bytes) != crc32:
        return None
    offset = header_start + header_bytes
    try:
        header = _HEADER.from_json(content[header_start:offset])
    except msgspec.DecodeError:
        return None  # of another version of this library
    columns: dict[str, npt.NDArray[Any]] = {}
    for (name, dtype), length in zip(_COLUMNS.items(), header.lengths, strict=True):
        columns[name] = np.frombuffer(content, dtype, length, offset)
        offset += -(-columns[name].nbytes // 8) * 8
    part_names = tuple(_from_json(name) for name in header.part_names)
    shard = header.shard
    scan = ShardScan(size_bytes=shard.size_bytes, part_names=part_names, generation=shard.generation, **columns)
    return shard, scan


def store_scan(path: Path, content: bytes) -> None:
    """Put an encoded scan at `path`, by a rename, without waiting for the disk."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        with naming_when_full(path):
            temporary.write_bytes(content)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def load_scan(path: Path, identity: ShardIdentity) -> ShardScan | None:
    """Read the scan at `path`; None where there is none, it is damaged, or the shard is not the same any more."""
    found, scan = read_scan(path) or (None, None)
    return scan if found == identity else None


def read_scan(path: Path) -> tuple[ShardIdentity, ShardScan] | None:
    """Read the scan at `path`, and which file it is of; None where there is none, or it is damaged."""
    try:
        return decode_scan(path.read_bytes())
    except FileNotFoundError:
        return None


def _to_json(name: str) -> str:
    """Tar names may hold bytes that are not UTF-8. Python keeps them as lone surrogates, which JSON may not have."""
    return name.encode("utf-8", "surrogateescape").decode("latin-1")


def _from_json(name: str) -> str:
    return name.encode("latin-1").decode("utf-8", "surrogateescape")
