"""The file in which a host keeps blocks of one version of one object.

    header  4096 bytes: a first line with a token of this file, then JSON for people
    map     8 bytes a block, up to a multiple of 4096: 0 for an absent block, else its check sum
    data    the object's bytes at their own offsets; absent blocks are holes

A block is written before its place in the map, and the map is believed only as far as the check sums agree. So nothing
needs to reach the disk in any order: a process may be killed, and a machine lose its power, at any moment.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from dataclasses import dataclass

import numpy as np

from energon_grain.storage.block_sums import PAGE_BYTES, block_sums
from energon_grain.storage.file_lock import open_unlinked

_MAGIC = b"energon-grain block cache 1 "
_TOKEN_BYTES = 32
_ENTRY = np.dtype("<u8")


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectVersion:
    """One version of one object, cut into blocks.

    Attributes:
        name: Of the object: its URL.
        version: What changes with its content: generation or entity tag.
        size_bytes: Of the object.
        block_bytes: Of all blocks but the last, which may be shorter.
    """

    name: str
    version: bytes
    size_bytes: int
    block_bytes: int

    @property
    def blocks(self) -> int:
        """Number of blocks."""
        return -(-self.size_bytes // self.block_bytes)

    @property
    def data_start(self) -> int:
        """Where the data begin in the file."""
        return PAGE_BYTES + -(-8 * self.blocks // PAGE_BYTES) * PAGE_BYTES

    def path(self, folder: str) -> str:
        """Where the file lies below the folder of a cache."""
        identity = json.dumps([1, self.name, self.version.hex(), self.size_bytes, self.block_bytes])
        digest = hashlib.sha256(identity.encode()).hexdigest()[:40]
        return os.path.join(folder, "objects", digest[:2], digest)

    def extent(self, first: int, stop: int) -> tuple[int, int]:
        """Bytes [start, stop) of the object that make up blocks [first, stop)."""
        return first * self.block_bytes, min(stop * self.block_bytes, self.size_bytes)

    def header(self, token: bytes) -> bytes:
        """The first 4096 bytes of the file."""
        shown = {
            "name": self.name[:1024],
            "version": self.version[:256].hex(),
            "size_bytes": self.size_bytes,
            "block_bytes": self.block_bytes,
        }
        return (_MAGIC + token + b"\n" + json.dumps(shown, indent=2).encode() + b"\n").ljust(PAGE_BYTES, b" ")


def new_token() -> bytes:
    """A name that no other file of any cache has."""
    return secrets.token_hex(_TOKEN_BYTES // 2).encode()


class BlockCopy:
    """One open file of the cache. Closed when the last user lets go of it.

    Args:
        path: Of the file.
        of: What it holds.

    Attributes:
        descriptor: Of the file, for reading and writing.
        token: Names this file, and no other that had its path before or will have it.
        verified: 1 for each block that this process has seen to be right.

    Raises:
        FileNotFoundError: There is none, or it is not one of ours.
        OSError: It cannot be opened.
    """

    __slots__ = ("_data_start", "_of", "descriptor", "token", "verified")

    def __init__(self, path: str, of: ObjectVersion) -> None:
        self.descriptor = -1
        self.descriptor = open_unlinked(path, os.O_RDWR)
        head = os.pread(self.descriptor, len(_MAGIC) + _TOKEN_BYTES + 1, 0)
        if not head.startswith(_MAGIC) or not head.endswith(b"\n"):
            raise FileNotFoundError(f"{path} is no file of a block cache")
        self.token = head[len(_MAGIC) : -1]
        self.verified = bytearray(of.blocks)
        self._of = of
        self._data_start = of.data_start

    def __del__(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)

    def read(self, start: int, stop: int) -> bytes | None:
        """Bytes [start, stop) of the object, right where every block of theirs is verified. None: the file ends before.

        It ends before when the file was emptied to make space, and when the disk fails.
        """
        size = stop - start
        try:
            data = os.pread(self.descriptor, size, self._data_start + start)
            while len(data) < size:  # a signal, or more than 2 GiB at once
                more = os.pread(self.descriptor, size - len(data), self._data_start + start + len(data))
                if not more:
                    return None
                data += more
        except OSError:
            return None
        return data

    def check(self, first: int, stop: int) -> tuple[list[int], list[int]]:
        """Verify those of the blocks [first, stop) that are not yet, and say which are absent and which are damaged."""
        absent: list[int] = []
        damaged: list[int] = []
        try:
            entries = os.pread(self.descriptor, 8 * (stop - first), PAGE_BYTES + 8 * first)
        except OSError:
            entries = b""
        sums = np.frombuffer(entries.ljust(8 * (stop - first), b"\0"), _ENTRY).tolist()
        for block, expected in enumerate(sums, first):
            if self.verified[block]:
                continue
            if not expected:
                absent.append(block)
                continue
            data = self.read(*self._of.extent(block, block + 1))
            if data is not None and int(block_sums(data, self._of.block_bytes)[0]) == expected:
                self.verified[block] = 1
            else:
                damaged.append(block)
        return absent, damaged

    def write(self, first: int, data: bytes | memoryview) -> None:
        """Write whole blocks, then their places in the map.

        Raises:
            OSError: The disk is full, or fails.
        """
        sums = block_sums(data, self._of.block_bytes)
        _write(self.descriptor, data, self._data_start + first * self._of.block_bytes)
        _write(self.descriptor, sums.astype(_ENTRY, copy=False).tobytes(), PAGE_BYTES + 8 * first)
        self.verified[first : first + len(sums)] = b"\1" * len(sums)

    def data_range(self, first: int, stop: int) -> tuple[int, int]:
        """Where blocks [first, stop) lie in the file."""
        start, end = self._of.extent(first, stop)
        return self._data_start + start, self._data_start + end

    def is_file(self, descriptor: int) -> bool:
        """Whether another descriptor is of the same file."""
        return os.path.samestat(os.fstat(self.descriptor), os.fstat(descriptor))


def _write(descriptor: int, data: bytes | memoryview, offset: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(descriptor, view, offset)
        view, offset = view[written:], offset + written
