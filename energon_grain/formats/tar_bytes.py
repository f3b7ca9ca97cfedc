"""Checked access to the bytes of one tar file, and errors that say where in it."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from types import TracebackType

from energon_grain.errors import TarError
from energon_grain.formats.tar_header import BLOCK, checksum_holds

_WINDOW_BYTES = 256 * 1024
_COMPRESSED = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ\0": "xz", b"\x28\xb5\x2f\xfd": "zstd"}


class TarBytes:
    """One open tar file, read with `pread` only, so a file that shrinks meanwhile is an error and not a crash.

    Args:
        path: The tar file.

    Raises:
        OSError: The file does not exist or may not be read.
        TarError: It is not a regular file, is empty, or is compressed.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._window, self._window_at = b"", 0
        self.fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a fifo must not block us
        try:
            status = os.fstat(self.fd)
            if stat.S_ISDIR(status.st_mode):
                raise IsADirectoryError(f"{self.path}: a folder, not a tar file")
            if not stat.S_ISREG(status.st_mode):
                raise self.error(0, "not a regular file", "Shards must be files that can be read at any offset.")
            self.size_bytes = status.st_size
            self._check_start()
        except BaseException:
            os.close(self.fd)
            raise

    def __enter__(self) -> TarBytes:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        os.close(self.fd)

    def read(self, offset: int, size_bytes: int) -> bytes:
        """Read exactly `size_bytes` at `offset`.

        Raises:
            TarError: The file ends before.
        """
        data = os.pread(self.fd, size_bytes, offset)
        while len(data) < size_bytes:
            more = os.pread(self.fd, size_bytes - len(data), offset + len(data))
            if not more:
                raise self.truncated(offset, f"{size_bytes} bytes are needed here")
            data += more
        return data

    def block(self, offset: int) -> bytes:
        """Read the header block at `offset` and nothing around it."""
        block = os.pread(self.fd, BLOCK, offset)
        return block if len(block) == BLOCK else self._last_block(offset)

    def near_block(self, offset: int) -> bytes:
        """Read the header block at `offset` through a window of 256 KiB: for small members."""
        start = offset - self._window_at
        if not 0 <= start <= len(self._window) - BLOCK:
            self._window, self._window_at, start = os.pread(self.fd, _WINDOW_BYTES, offset), offset, 0
        block = self._window[start : start + BLOCK]
        return block if len(block) == BLOCK else self._last_block(offset)

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

    def _last_block(self, offset: int) -> bytes:
        """Read a block after a short read: whole after all, or the reason why not."""
        rest = os.pread(self.fd, BLOCK, offset)
        if len(rest) == BLOCK:
            return rest
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
        start = os.pread(self.fd, BLOCK, 0)
        if len(start) == BLOCK and checksum_holds(start):  # a first member may well be called `BZh.txt`
            return
        for magic, name in _COMPRESSED.items():
            if start.startswith(magic):
                raise self.error(
                    0,
                    f"the file is compressed with {name}",
                    "Samples are read at random offsets, so shards must be plain tar files: decompress it.",
                )
