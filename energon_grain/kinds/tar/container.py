# SPDX-License-Identifier: Apache-2.0
"""Tars as containers of samples."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from energon_grain.errors import StaleIndexError, TarError
from energon_grain.formats.columnar_header import repair_advice
from energon_grain.formats.data_folder import DataFolder
from energon_grain.formats.records import RecordEncoding
from energon_grain.formats.scan import ShardScan
from energon_grain.kinds.tar.index import read_tar_index, tar_index_path
from energon_grain.kinds.tar.scan import scan_tar
from energon_grain.kinds.tar.walk import TarBytes
from energon_grain.kinds.tar.writer import TarFile, prefix_members, read_tar
from energon_grain.prepare.columnar_build import scan_checked
from energon_grain.prepare.containers import Compression, Container, Sample
from energon_grain.storage.remote import read_beginning


class Tars(Container):
    """Tars, each with an index beside it in Energon's format."""

    name = "tar"
    file = "tar file"
    suffix = ".tar"
    compressed = {  # noqa: RUF012
        ".tgz": "gzip",
        ".tar.gz": "gzip",
        ".tbz2": "bzip2",
        ".tar.bz2": "bzip2",
        ".txz": "xz",
        ".tar.xz": "xz",
        ".tar.zst": "zstd",
    }
    has_offsets = True
    no_sample = TarError, "a regular file with an extension, such as 000.jpg"

    def scan(self, path: str, encoding: RecordEncoding | None, *, first: int) -> ShardScan:
        return scan_tar(path)

    def scan_hashed(self, path: str, encoding: RecordEncoding | None, *, first: int, whole: bool) -> ShardScan:
        return scan_tar(path, digest="whole" if whole else "free")

    def scan_indexed(
        self, folder: DataFolder, shard: str, count: int, encoding: RecordEncoding | None, *, first: int
    ) -> ShardScan:
        """See `Container`. Hidden files in folders are samples only if the index of the shard lists them."""
        location, advice, expected = folder.shard(shard), repair_advice(folder.location), None
        try:
            scan = scan_tar(location, hidden="skip", keep=True)
            with contextlib.suppress(FileNotFoundError):
                expected = read_tar_index(folder.shard(os.fspath(tar_index_path(shard))))
            if not _agrees(scan, count, expected):
                # Energon makes samples of dot files inside folders; its index shows whether it did.
                scan = scan_tar(location, hidden="keep", keep=True)
        except FileNotFoundError:
            raise StaleIndexError(f"{location}: `.info.json` lists this shard, but it is missing; {advice}") from None
        if len(scan) == count and not _agrees(scan, count, expected):
            raise StaleIndexError(
                f"{location}: its samples are not at the offsets in {tar_index_path(shard).name}; {advice}"
            )
        return scan

    def lint(
        self, folder: DataFolder, shard: str, count: int, encoding: RecordEncoding | None, *, first: int
    ) -> tuple[ShardScan, tuple[str, str] | None]:
        scan, index = scan_checked(folder, shard, count, encoding, first), tar_index_path(shard)
        if folder.bare is not None or read_beginning(folder.shard(index.as_posix()), 1):
            return scan, None
        return scan, (f"{index.name} is missing", "write it with --tar-index-only")

    def index_file(self, shard: str) -> str:
        return tar_index_path(shard).as_posix()

    def open_bytes(self, path: str) -> TarBytes:
        return TarBytes(path)

    def part(self, path: str, encoding: RecordEncoding | None, scan: ShardScan, sample: int, name: str) -> bytes:
        rows = range(int(scan.part_start[sample]), int(scan.part_start[sample + 1]))
        row = next(row for row in reversed(rows) if scan.part_names[int(scan.part_name[row])] == name)
        with TarBytes(path) as tar:
            return tar.read(int(scan.part_offset[row]), int(scan.part_size[row]))

    def writer(self, path: Path, compression: Compression) -> TarFile:
        return TarFile(path)

    def read(self, path: Path) -> Iterator[Sample]:
        return read_tar(path)

    def prefix_keys(self, path: Path, prefix: str) -> None:
        prefix_members(path, prefix)


def _agrees(scan: ShardScan, count: int, expected: npt.NDArray[np.int64] | None) -> bool:
    return len(scan) == count and (expected is None or np.array_equal(scan.sample_start, expected))
