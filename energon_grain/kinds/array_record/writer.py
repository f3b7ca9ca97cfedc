# SPDX-License-Identifier: Apache-2.0
"""Writes samples as msgpack records of an ArrayRecord file, and reads them back."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import msgspec

from energon_grain.extras import needed_for
from energon_grain.kinds.array_record.files import KEY, ArrayRecordFile, record_decoder
from energon_grain.prepare.containers import Compression, Sample, UnfitSampleError

_RECORDS_AT_ONCE = 64


class RecordsFile:
    """Samples as msgpack records of an ArrayRecord file, each compressed separately or not at all."""

    def __init__(self, path: Path, compression: Compression) -> None:
        with needed_for("writing ArrayRecord files"):
            from array_record.python.array_record_module import ArrayRecordWriter

        option = "uncompressed" if compression == "none" else compression
        self._path = path
        self._writer: Any = ArrayRecordWriter(os.fspath(path), f"group_size:1,{option}")
        self._encoder = msgspec.msgpack.Encoder()
        self.end = 0

    def add(self, key: str, parts: Mapping[str, bytes]) -> tuple[list[int], int]:
        """Write a sample; return the offset of each part and the end of the sample, counted as in a scan."""
        if KEY in parts:
            raise UnfitSampleError(f"sample {key!r} has a part {KEY!r}, which records use for the key; rename the part")
        try:
            record = self._encoder.encode({KEY: key, **parts})
        except UnicodeEncodeError as error:
            raise UnfitSampleError(
                f"sample {key!r}: its key or a part name is not UTF-8, which records require; rename it"
            ) from error
        except msgspec.EncodeError as error:
            raise UnfitSampleError(f"sample {key!r}: a part is too large for a record: {error}") from error
        self._writer.write(record)
        self.end += len(record)
        return [0] * len(parts), self.end

    def close(self) -> None:
        self._writer.close()
        with open(self._path, "rb") as file:
            os.fsync(file.fileno())

    def abandon(self) -> None:
        self._writer.close()


def read_written(path: Path) -> Iterator[Sample]:
    """See `Container.read`."""
    records, decode = ArrayRecordFile(str(path)), record_decoder("msgpack")
    for start in range(0, records.records, _RECORDS_AT_ONCE):
        for data in records.read(list(range(start, min(start + _RECORDS_AT_ONCE, records.records)))):
            yield cast("Sample", decode(data))
