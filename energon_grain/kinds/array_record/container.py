# SPDX-License-Identifier: Apache-2.0
"""ArrayRecord files as containers of samples."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from energon_grain.errors import FormatError
from energon_grain.formats.data_folder import DataFolder
from energon_grain.formats.nv_meta import RECORDS_JSON
from energon_grain.formats.records import RECORD_ENCODINGS, RecordEncoding
from energon_grain.formats.scan import ShardScan
from energon_grain.kinds.array_record.files import open_records, record_decoder, scan_records
from energon_grain.kinds.array_record.writer import RecordsFile, read_written
from energon_grain.prepare.containers import Compression, Container, Sample

_FILE = re.compile(r"\.array_record(?:-[0-9]+-of-[0-9]+)?\Z")


class Records(Container):
    """ArrayRecord files with one record per sample."""

    name = "array-record"
    file = "ArrayRecord file"
    suffix = ".array_record"
    marker = RECORDS_JSON
    encodings = RECORD_ENCODINGS
    no_sample = FormatError, "a record"

    def is_shard(self, name: str) -> bool:
        """Also accepts names that TensorFlow Datasets writes.

        >>> Records().is_shard("mnist-train.array_record-00000-of-00002")
        True
        """
        return _FILE.search(name) is not None

    def scan(self, path: str, encoding: RecordEncoding | None, *, first: int) -> ShardScan:
        assert encoding is not None
        return scan_records(path, encoding, first=first)

    def scan_indexed(
        self, folder: DataFolder, shard: str, count: int, encoding: RecordEncoding | None, *, first: int
    ) -> ShardScan:
        return self.scan(folder.shard(shard), encoding, first=first)

    def lint(
        self, folder: DataFolder, shard: str, count: int, encoding: RecordEncoding | None, *, first: int
    ) -> tuple[ShardScan, tuple[str, str] | None]:
        scan = self.scan(folder.shard(shard), encoding, first=first)
        if len(scan) == count:
            return scan, None
        what = f"has {len(scan):,} samples, but .info.json lists {count:,}; the shard changed"
        return scan, (what, "prepare again with --force-overwrite")

    def count(self, path: str) -> int:
        return open_records(path).records

    def part(self, path: str, encoding: RecordEncoding | None, scan: ShardScan, sample: int, name: str) -> object:
        assert encoding is not None
        return record_decoder(encoding)(open_records(path).read([sample])[0])[1][name]

    def writer(self, path: Path, compression: Compression) -> RecordsFile:
        return RecordsFile(path, compression)

    def read(self, path: Path) -> Iterator[Sample]:
        return read_written(path)
