"""The scan of one shard as a file: how it gets from a worker process to `prepare`, and from a killed run to the next.

Layout: 8 bytes of magic, the length of the header as a little-endian uint32, the header as JSON padded with spaces to a
multiple of 8 bytes, then the arrays, each padded likewise. The header says which file was scanned (name, size, time of
modification), so that a scan of another file is never taken for this one's, and a CRC-32 of the arrays, because these
files are not flushed to disk one by one.
"""

from __future__ import annotations

import os
import zlib
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from energon_grain.formats.shard_scan import ShardScan

_MAGIC = b"EGSCAN1\n"
_COLUMNS: dict[str, type[Any]] = {
    "sample_start": np.int64,
    "part_start": np.int64,
    "part_name": np.int32,
    "part_offset": np.int64,
    "part_size": np.int64,
    "key_start": np.int64,
    "key_bytes": np.uint8,
}


class ShardIdentity(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What must be unchanged for a stored scan to hold: the shard's name, size in bytes and time of modification."""

    name: str
    size_bytes: int
    mtime_ns: int

    @classmethod
    def of(cls, root: Path, name: str) -> ShardIdentity:
        """Look at the file as it is now."""
        status = os.stat(root / name)
        return cls(name=name, size_bytes=status.st_size, mtime_ns=status.st_mtime_ns)


class _Header(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    shard: ShardIdentity
    part_names: tuple[str, ...]
    lengths: tuple[int, ...]
    crc32: int


def store_scan(path: Path, identity: ShardIdentity, scan: ShardScan) -> None:
    """Put a scan at `path`, by a rename, without waiting for the disk."""
    columns = [np.ascontiguousarray(getattr(scan, name), dtype) for name, dtype in _COLUMNS.items()]
    body = b"".join(_padded(column) for column in columns)
    header = msgspec.json.encode(
        _Header(
            shard=identity,
            part_names=tuple(_to_json(name) for name in scan.part_names),
            lengths=tuple(len(column) for column in columns),
            crc32=zlib.crc32(body),
        )
    )
    header += b" " * (-(len(_MAGIC) + 4 + len(header)) % 8)
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    with open(temporary, "wb") as file:
        file.write(_MAGIC + len(header).to_bytes(4, "little") + header)
        file.write(body)
    os.replace(temporary, path)


def load_scan(path: Path, identity: ShardIdentity) -> ShardScan | None:
    """Read the scan at `path`; None where there is none, it is damaged, or the shard is not the same any more."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    body_start = len(_MAGIC) + 4 + int.from_bytes(content[len(_MAGIC) : len(_MAGIC) + 4], "little")
    try:
        header = msgspec.json.decode(content[len(_MAGIC) + 4 : body_start], type=_Header)
    except msgspec.DecodeError:
        return None
    body = memoryview(content)[body_start:]
    if not content.startswith(_MAGIC) or header.shard != identity or zlib.crc32(body) != header.crc32:
        return None
    columns: dict[str, npt.NDArray[Any]] = {}
    offset = body_start
    for (name, dtype), length in zip(_COLUMNS.items(), header.lengths, strict=True):
        columns[name] = np.frombuffer(content, dtype, length, offset)
        offset += -(-columns[name].nbytes // 8) * 8
    part_names = tuple(_from_json(name) for name in header.part_names)
    return ShardScan(size_bytes=identity.size_bytes, part_names=part_names, **columns)


def _padded(column: npt.NDArray[Any]) -> bytes:
    data = column.tobytes()
    return data + bytes(-len(data) % 8)


def _to_json(name: str) -> str:
    """Tar names may hold bytes that are not UTF-8. Python keeps them as lone surrogates, which JSON may not have."""
    return name.encode("utf-8", "surrogateescape").decode("latin-1")


def _from_json(name: str) -> str:
    return name.encode("latin-1").decode("utf-8", "surrogateescape")
