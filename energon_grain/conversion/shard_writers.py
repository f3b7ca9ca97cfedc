"""Writing samples to a new shard."""

from __future__ import annotations

import os
import tarfile
from pathlib import Path
from typing import Any, Protocol

import msgspec

from energon_grain.conversion.report import Compression
from energon_grain.conversion.samples import Sample, UnfitSampleError
from energon_grain.formats.array_record_encoding import KEY
from energon_grain.formats.tar.names import split_member_name

_BLOCK = 512
_TAR_RECORD = 20 * _BLOCK


class ShardWriter(Protocol):
    """Writes one shard; `close` makes it whole."""

    def write(self, sample: Sample) -> None:
        """Add a sample. Raises UnfitSampleError where the container cannot hold it."""
        ...

    def close(self) -> None:
        """Write the end. Raises OSError or RuntimeError when the disk is full."""
        ...


class RecordWriter:
    """Writes samples as msgpack records of an ArrayRecord file, each compressed by itself or not at all.

    Args:
        path: A new file.
        compression: Of each record.
    """

    def __init__(self, path: Path, compression: Compression) -> None:
        from array_record.python.array_record_module import ArrayRecordWriter

        option = "uncompressed" if compression == "none" else compression
        self._encoder = msgspec.msgpack.Encoder()
        self._writer: Any = ArrayRecordWriter(os.fspath(path), f"group_size:1,{option}")

    def write(self, sample: Sample) -> None:
        """Add a sample.

        Raises:
            UnfitSampleError: Its key or the name of a part is not UTF-8, it has a part named like the key, or one of 4
                GiB or more.
        """
        key, parts = sample
        if KEY in parts:
            raise UnfitSampleError(f"sample {key!r} has a part {KEY!r}, which in records is the key")
        try:
            record = self._encoder.encode({KEY: key, **parts})
        except UnicodeEncodeError as error:
            raise UnfitSampleError(
                f"sample {key!r}: its key or the name of a part is not UTF-8, as records need"
            ) from error
        except msgspec.EncodeError as error:
            raise UnfitSampleError(f"sample {key!r}: a part is too large for a record: {error}") from error
        self._writer.write(record)

    def close(self) -> None:
        """Write the end of the file."""
        self._writer.close()


class TarWriter:
    """Writes parts of samples as regular members of a GNU tar, with the same bytes for the same samples.

    Args:
        path: A new file.
    """

    def __init__(self, path: Path) -> None:
        self._file = open(path, "xb", buffering=1 << 20)  # noqa: SIM115 (`close` closes it)
        self._last: str | None = None

    def write(self, sample: Sample) -> None:
        """Add a sample.

        Raises:
            UnfitSampleError: It has no part, its names would be read as those of another sample, or the sample before
                it has the same key.
        """
        key, parts = sample
        if not parts or key == self._last:
            reason = "has no part" if not parts else "has the key of the sample before it"
            raise UnfitSampleError(f"sample {key!r} {reason}, so a tar cannot tell it")
        self._last = key
        for part, data in parts.items():
            name = f"{key}.{part}"
            if "\0" in name or split_member_name(name) != (key, part):
                raise UnfitSampleError(
                    f"sample {key!r}, part {part!r}: a tar would hold it as {name!r}, which is not read as that sample "
                    f"and part: keys may have no dot behind their last slash, parts no slash, and neither a zero byte"
                )
            member = tarfile.TarInfo(name)  # time 0, owner 0: nothing depends on the machine
            member.size = len(data)
            self._file.write(member.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape"))
            self._file.write(data)
            self._file.write(bytes(-len(data) % _BLOCK))

    def close(self) -> None:
        """Write the end of the archive."""
        end = 2 * _BLOCK
        self._file.write(bytes(end + -(self._file.tell() + end) % _TAR_RECORD))
        self._file.close()
