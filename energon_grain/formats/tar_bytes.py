"""Checked access to the bytes of one tar file, and errors that say where in it."""

from __future__ import annotations

import os
import stat
from types import TracebackType
from typing import NoReturn

from energon_grain.errors import TarError
from energon_grain.formats.tar_header import BLOCK, checksum_holds
from energon_grain.storage.location import is_url, located
from energon_grain.storage.scanned_bytes import FileBytes, ScannedBytes

_COMPRESSED = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ\0": "xz", b"\x28\xb5\x2f\xfd": "zstd"}


class TarBytes:
    """One open tar file or object, never mapped, so one that shrinks meanwhile is an error and not a crash.

    Args:
        path: The tar file, or its URL.
        keep: See `ObjectBytes`.

    Attributes:
        path: The same as text.
        size_bytes: Of the tar.
        data: Its bytes.

    Raises:
        OSError: It does not exist or may not be read.
        TarError: It is not a regular file, is empty, or is compressed.
    """

    def __init__(self, path: str | os.PathLike[str], *, keep: bool = False) -> None:
        self.path = located(path)
        self.data: ScannedBytes = _open_object(self.path, keep) if is_url(self.path) else self._open_file()
        self.size_bytes = self.data.size_bytes
        try:
            self._check_start()
        except BaseException:
            self.data.close()
            raise

    def __enter__(self) -> TarBytes:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.data.close()

    def read(self, offset: int, size_bytes: int) -> bytes:
        """Read exactly `size_bytes` at `offset`.

        Raises:
            TarError: The file ends before.
        """
        data = self.data.alone(offset, size_bytes)
        if len(data) < size_bytes:
            raise self.truncated(offset, f"{size_bytes} bytes are needed here")
        return data

    def block(self, offset: int) -> bytes:
        """Read the header block at `offset`, and little around it."""
        block = self.data.alone(offset, BLOCK)
        if len(block) < BLOCK:
            self._incomplete(offset, block)
        return block

    def near_block(self, offset: int) -> bytes:
        """Read the header block at `offset` together with what follows: for small members."""
        block = self.data.near(offset, BLOCK)
        if len(block) < BLOCK:
            self._incomplete(offset, block)
        return block

    def error(self, offset: int, what: str, rule: str, member: bytes | None = None) -> TarError:
        """Make an error that names file, member and offset, then says what is wrong and what to do."""
        name = "" if member is None else f"{member.decode('utf-8', 'backslashreplace')} "
        return TarError(f"{self.path}: {name}@ {offset}: {what}. {rule}")

    def truncated(self, offset: int, what: str, member: bytes | None = None) -> TarError:
        """Make the error for a file that ends inside a member."""
        return self.error(
            offset,
            f"the file is truncated, or a header claims an absurd size: {what}, but the file ends at {self.size_bytes}",
            "Copy or create the shard again.",
            member,
        )

    def bad_checksum(self, offset: int) -> TarError:
        """Make the error for a block that should be a header and is none."""
        return self.error(
            offset,
            "no valid tar header (bad checksum) where one must be",
            "The shard is damaged, or is not a tar file: copy or create it again.",
        )

    def _open_file(self) -> FileBytes:
        descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a fifo must not block us
        try:
            mode = os.fstat(descriptor).st_mode
            if stat.S_ISDIR(mode):
                raise IsADirectoryError(f"{self.path}: a folder, not a tar file")
            if not stat.S_ISREG(mode):
                raise self.error(0, "not a regular file", "Shards must be files that can be read at any offset.")
            return FileBytes(descriptor)
        except BaseException:
            os.close(descriptor)
            raise

    def _incomplete(self, offset: int, rest: bytes) -> NoReturn:
        """Say why a block is shorter than it must be."""
        if rest.strip(b"\0"):
            raise self.truncated(offset, f"a header of {BLOCK} bytes must be here")
        raise self.error(
            offset,
            f"the end-of-archive marker is missing: the file ends at {offset + len(rest)}",
            f"A tar ends with two blocks of {BLOCK} zero bytes, so this one may have lost members: create it again, "
            f"or, if you are sure that it is whole, append two zero blocks "
            f"(truncate -s {offset + 2 * BLOCK} '{self.path}').",
        )

    def _check_start(self) -> None:
        if not self.size_bytes:
            raise self.error(0, "the file is empty", "Even a tar without members has two zero blocks: create it again.")
        start = self.data.alone(0, BLOCK)
        if len(start) == BLOCK and checksum_holds(start):  # a first member may well be called `BZh.txt`
            return
        for magic, name in _COMPRESSED.items():
            if start.startswith(magic):
                raise self.error(
                    0,
                    f"the file is compressed with {name}",
                    "Samples are read at random offsets, so shards must be plain tar files: decompress it.",
                )


def _open_object(url: str, keep: bool) -> ScannedBytes:
    from energon_grain.storage.object_bytes import ObjectBytes  # a process that scans files needs none of it

    return ObjectBytes(url, keep=keep)
