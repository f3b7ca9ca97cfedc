# SPDX-License-Identifier: Apache-2.0
"""Writes a tar sample by sample, and reads it back.

The result equals that of `tarfile` for the same members in GNU format, with time 0 and owner 0, byte for byte,
independent of the machine. Names of up to 100 bytes and sizes below 8 GiB fit a plain header, a template with four
fields filled in: 1.5 µs, where `tarfile` takes 15. All other headers are made by `tarfile`.
"""

from __future__ import annotations

import os
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

from energon_grain.atomic_files import atomic_write
from energon_grain.kinds.tar.header import BLOCK, CHECKSUM, NAME, SIZE
from energon_grain.kinds.tar.names import split_member_name
from energon_grain.kinds.tar.scan import scan_tar
from energon_grain.prepare.containers import Sample, UnfitSampleError

_UTF8 = ("utf-8", "surrogateescape")
_TAR_RECORD = 20 * BLOCK
_BUFFER_BYTES = 1 << 20
_PLAIN_NAME_BYTES = NAME.stop - NAME.start
_PLAIN_SIZE = 1 << 33
_PADDING = bytes(BLOCK)


def _template() -> tuple[bytes, bytes, bytes, int]:
    """A header without name, size and checksum: the bytes between them, and the sum of all its bytes."""
    header = tarfile.TarInfo("").tobuf(tarfile.GNU_FORMAT)
    bare = header[: SIZE.start] + bytes(12) + header[SIZE.stop : CHECKSUM.start] + b" " * 8 + header[CHECKSUM.stop :]
    return header[NAME.stop : SIZE.start], header[SIZE.stop : CHECKSUM.start], header[CHECKSUM.stop :], sum(bare)


_BEFORE_SIZE, _AFTER_SIZE, _AFTER_SUM, _SUM = _template()


def member_header(name: str, size_bytes: int) -> bytes:
    """The header of a regular member, with any extension headers needed, as `tarfile` writes it."""
    raw = name.encode(*_UTF8)
    if len(raw) > _PLAIN_NAME_BYTES or size_bytes >= _PLAIN_SIZE:
        member = tarfile.TarInfo(name)
        member.size = size_bytes
        return member.tobuf(tarfile.GNU_FORMAT, *_UTF8)
    size = b"%011o\0" % size_bytes
    checksum = b"%06o\0 " % (_SUM + sum(raw) + sum(size))
    return b"".join((raw.ljust(_PLAIN_NAME_BYTES, b"\0"), _BEFORE_SIZE, size, _AFTER_SIZE, checksum, _AFTER_SUM))


class TarFile:
    """Parts of samples as members of a tar."""

    def __init__(self, path: Path) -> None:
        self._file: BinaryIO = open(path, "xb", buffering=_BUFFER_BYTES)  # noqa: SIM115 (closed by `close`)
        self.end = 0

    def add(self, key: str, parts: Mapping[str, bytes]) -> tuple[list[int], int]:
        """Write a sample; return the offset of each part, and the end of the sample."""
        if not parts:
            raise UnfitSampleError(f"sample {key!r} has no parts, so it cannot be stored in a tar; add a part")
        offsets: list[int] = []
        pieces: list[bytes] = []
        end = self.end
        for part, data in parts.items():
            name = f"{key}.{part}"
            if "\0" in name or split_member_name(name) != (key, part):
                raise UnfitSampleError(
                    f"sample {key!r}, part {part!r}: the member {name!r} would not be read as this sample and part; "
                    f"remove dots after the last slash of the key, slashes from the part name, and zero bytes from both"
                )
            header = member_header(name, len(data))
            offsets.append(end + len(header))
            padding = -len(data) % BLOCK
            end += len(header) + len(data) + padding
            pieces += (header, data, _PADDING[:padding])
        self._file.writelines(pieces)
        self.end = end
        return offsets, end

    def close(self) -> None:
        marker = 2 * BLOCK
        self._file.write(bytes(marker + -(self.end + marker) % _TAR_RECORD))
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()

    def abandon(self) -> None:
        self._file.raw.close()  # type: ignore[attr-defined] (discards the buffer)


def read_tar(path: Path) -> Iterator[Sample]:
    """See `Container.read`."""
    scan = scan_tar(path)
    bounds = scan.part_start.tolist()
    with open(path, "rb") as file:
        for sample, key in enumerate(scan.keys()):
            parts: dict[str, bytes] = {}
            for row in range(bounds[sample], bounds[sample + 1]):
                file.seek(int(scan.part_offset[row]))
                parts[scan.part_names[int(scan.part_name[row])]] = file.read(int(scan.part_size[row]))
            yield key, parts


def prefix_members(path: Path, prefix: str) -> None:
    """See `Container.prefix_keys`. Members that are not parts of samples keep their names."""
    with open(path, "rb") as data, tarfile.open(fileobj=data, mode="r:") as old:
        members = old.getmembers()
        parts = [member for member in members if member.isreg() and split_member_name(member.name)]
        if all(member.name.startswith(prefix) for member in parts):
            return  # done before by a killed run
        for member in parts:
            member.name = prefix + member.name
        with atomic_write(path) as file, tarfile.open(fileobj=file, mode="w", format=tarfile.GNU_FORMAT) as new:
            for member in members:
                data.seek(member.offset_data)
                new.addfile(member, data if member.isreg() else None)
