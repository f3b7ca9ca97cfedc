"""Reading records of ArrayRecord files, many at a time, by array_record's own reader in C++.

Opening a file takes it 0.05 µs a record and keeps 15 to 20 bytes for each, since it loads the places of all; so files
stay open, as long as they are not too many.

Its calls for several records at once go through threads of its own, of which it starts 64, and a list of records costs
2.7 ns for *every* record of the file, asked for or not. So records are read one by one, in the thread that asks, which
takes less of the processor in every case. Measured with records of 1 KB, wall-clock and processor time in µs a record:

| records asked for | of | one by one | as a range, consecutive | as a list |
|---|---|---|---|---|
| 10 | 10,000 | 2.9 to 3.9 | 7.8 / 13 | 12 / 20 |
| 100 | 10,000 | 2.5 to 3.2 | 3.9 / 7.4 | 4.3 / 8.3 |
| 1,000 | 10,000 | 2.6 to 3.0 | 1.5 / 2.8 | 1.7 / 3.3 |
| 100 | 200,000 | 2.6 to 3.7 | 3.6 / 6.9 | 12 / 17 |

Of records of 100 KB: 40, 85 / 115 and 85 / 115. Only files whose records are compressed in groups are read by lists,
since each call decompresses the groups that it touches.
"""

from __future__ import annotations

import os
import re
from typing import Any

from energon_grain.errors import ReadError
from energon_grain.extras import needed_for
from energon_grain.formats.open_files import OpenFiles

_OPTIONS = "readahead_buffer_size:0,max_parallelism:0"
_BUFFER_BYTES = 2048  # at the default of 1 MiB, a record of 1 KB takes 70 µs


class ArrayRecordFile:
    """One open file. Thread-safe; closed with the last reference to it.

    Args:
        path: A file of this machine.

    Attributes:
        records: How many it has.

    Raises:
        ReadError: It is not there, or is no ArrayRecord file.
    """

    __slots__ = ("_alone", "_path", "_reader", "records")

    def __init__(self, path: str) -> None:
        with needed_for("reading ArrayRecord files"):
            from array_record.python.array_record_module import ArrayRecordReader

        self._path = path
        if not os.path.isfile(path):
            raise ReadError(f"{path}: there is no such file")
        self._reader: Any = ArrayRecordReader(path, _OPTIONS, file_reader_buffer_size=_BUFFER_BYTES)
        if not self._reader.ok():
            raise ReadError(f"{path}: is no ArrayRecord file, or a damaged one: {self._reason()}")
        self.records: int = self._reader.num_records()
        group = re.search(r"group_size:(\d+)", self._reader.writer_options_string() or "")
        self._alone = group is not None and group[1] == "1"

    def read(self, records: list[int]) -> list[bytes]:
        """Read records, in the order asked for.

        Raises:
            ReadError: One of them cannot be read; names it.
        """
        read = self._reader.read
        try:
            return [read(record, record + 1)[0] for record in records] if self._alone else read(records)
        except (RuntimeError, IndexError):
            return [self._one(record) for record in records]  # which says of which record it is

    def _one(self, record: int) -> bytes:
        try:
            return self._reader.read(record, record + 1)[0]
        except (RuntimeError, IndexError) as error:
            raise ReadError(f"{self._path}: record {record}: {error}") from error

    def _reason(self) -> str:
        """What the reader says when it is asked for something after it failed to open the file."""
        try:
            self._reader.read([0])
        except RuntimeError as error:
            return str(error)
        return "its end, which says where records lie, is missing"


class ArrayRecordFiles(OpenFiles[ArrayRecordFile]):
    """Files that stay open: memory, 15 to 20 bytes a record. See `OpenFiles`."""

    def file(self, path: str) -> ArrayRecordFile:
        """Open a file, or find it open.

        Raises:
            ReadError: It is not there, or is no ArrayRecord file.
        """
        file = self.get(path)
        if file is None:
            file = ArrayRecordFile(path)
            self.put(path, file)
        return file
