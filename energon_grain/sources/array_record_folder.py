"""The records of a prepared folder of ArrayRecord files by their numbers in the dataset."""

from __future__ import annotations

import os
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from energon_grain.errors import ConfigError, DatasetNotFoundError, FormatError, ReadError, StaleIndexError
from energon_grain.formats.array_record_encoding import read_records_file, record_decoder
from energon_grain.formats.array_record_files import ArrayRecordFile, ArrayRecordFiles
from energon_grain.formats.columnar import ColumnarIndex
from energon_grain.formats.data_folder import DataFolder
from energon_grain.formats.nv_meta import META_FOLDER, RECORDS_JSON, preparing
from energon_grain.sources.raw import PartValue

Int64Array = npt.NDArray[np.int64]


class ArrayRecordFolder:
    """The index of a dataset and the files that it describes. Thread-safe.

    Args:
        folder: Where the dataset lies, on this machine.
        index: Its columnar index.

    Attributes:
        location: The folder, as messages name it.
        index: The columnar index.

    Raises:
        DatasetNotFoundError: It is not prepared as a dataset of ArrayRecord files.
        ConfigError: It lies in an object store.
    """

    def __init__(self, folder: DataFolder, index: ColumnarIndex) -> None:
        self.location = folder.location
        if folder.is_remote:
            raise ConfigError(
                f"{self.location}: ArrayRecord files are read from file systems only, by array_record's own reader; "
                f"copy the dataset to one, or keep tars in the store: `energon-grain convert SOURCE TARGET --to tar` "
                f"makes them of a local copy"
            )
        self.index = index
        encoding = read_records_file(folder.local)
        if encoding is None:
            raise DatasetNotFoundError(
                f"{self.location}: there is no {META_FOLDER}/{RECORDS_JSON}, so it is not prepared as ArrayRecord "
                f"files; run `{preparing(folder.local)}`"
            )
        self._decode = record_decoder(encoding)
        self._paths = [folder.shard(name) for name in self.index.shards]
        self._files = ArrayRecordFiles()
        self._verified = np.zeros(len(self._paths), np.bool_)

    def read(self, samples: Int64Array, keys: list[str]) -> list[Mapping[str, PartValue]]:
        """Read and take apart records; repeated ones are read once.

        Args:
            samples: (n,) numbers in the dataset, in any order.
            keys: Theirs, by the index.

        Raises:
            StaleIndexError: A file has another size or number of records than when it was indexed, or a record is not
                the sample that the index says.
            ReadError: A file is gone, or a record cannot be read.
        """
        wanted, first, back = np.unique(samples, return_index=True, return_inverse=True)
        shard_first = self.index.shard_first
        bounds = np.searchsorted(wanted, shard_first)
        rows: list[Mapping[str, PartValue]] = []
        for shard in np.flatnonzero(np.diff(bounds)).tolist():
            here = slice(int(bounds[shard]), int(bounds[shard + 1]))
            records: list[int] = (wanted[here] - shard_first[shard]).tolist()
            expected = [keys[place] for place in first[here].tolist()]
            rows += self._taken_apart(shard, records, self._file(shard).read(records), expected)
        return [rows[place] for place in back.tolist()]

    def _taken_apart(
        self, shard: int, records: list[int], data: list[bytes], keys: list[str]
    ) -> list[Mapping[str, PartValue]]:
        rows: list[Mapping[str, PartValue]] = []
        for place, record in enumerate(data):
            try:
                key, parts = self._decode(record)
            except FormatError as error:
                raise self._stale(shard, f"record {records[place]} {error}") from error
            if key != keys[place] and key is not None:
                raise self._stale(shard, f"record {records[place]} has the key {key!r}, not {keys[place]!r}")
            rows.append(parts)
        return rows

    def _file(self, shard: int) -> ArrayRecordFile:
        path = self._paths[shard]
        if self._verified[shard]:
            return self._files.file(path)
        expected = int(self.index.shard_bytes[shard])
        try:
            size = os.path.getsize(path)
        except OSError as error:
            raise ReadError(f"{path}: {error.strerror}") from error
        if size != expected:
            raise self._stale(shard, f"it has {size} bytes, not {expected}")
        file = self._files.file(path)
        records = int(self.index.shard_first[shard + 1] - self.index.shard_first[shard])
        if file.records != records:
            raise self._stale(shard, f"it has {file.records} records, not {records}")
        self._verified[shard] = True
        return file

    def _stale(self, shard: int, found: str) -> StaleIndexError:
        return StaleIndexError(
            f"{self._paths[shard]}: {found}; the file was changed after it was indexed: run `energon-grain prepare "
            f"{self.location} --tar-index-only`"
        )

    def close(self) -> None:
        """Close the files; reading again opens them anew."""
        self._files.close()
