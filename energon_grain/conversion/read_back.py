"""Reading a shard that was just written, without any index of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import cast

from energon_grain.conversion.report import Container
from energon_grain.conversion.samples import Sample
from energon_grain.formats.array_record_encoding import record_decoder
from energon_grain.formats.array_record_files import ArrayRecordFile
from energon_grain.formats.tar.scan import scan_tar

_AT_ONCE = 64


def written_samples(path: Path, container: Container) -> Iterator[Sample]:
    """Read all samples of a shard that was written by a `ShardWriter`.

    Raises:
        FormatError: It is damaged.
        ReadError: It is damaged.
    """
    return _records(path) if container == "array-record" else _members(path)


def _records(path: Path) -> Iterator[Sample]:
    file, decode = ArrayRecordFile(str(path)), record_decoder("msgpack")
    for start in range(0, file.records, _AT_ONCE):
        for data in file.read(list(range(start, min(start + _AT_ONCE, file.records)))):
            yield cast(Sample, decode(data))


def _members(path: Path) -> Iterator[Sample]:
    scan = scan_tar(path)
    bounds = scan.part_start.tolist()
    with open(path, "rb") as file:
        for sample, key in enumerate(scan.keys()):
            parts: dict[str, bytes] = {}
            for row in range(bounds[sample], bounds[sample + 1]):
                file.seek(int(scan.part_offset[row]))
                parts[scan.part_names[int(scan.part_name[row])]] = file.read(int(scan.part_size[row]))
            yield key, parts
