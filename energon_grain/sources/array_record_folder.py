"""The records of a prepared folder of ArrayRecord files by their numbers in the dataset."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from energon_grain.errors import DatasetNotFoundError, FormatError
from energon_grain.formats.array_record_encoding import read_records_file, record_decoder
from energon_grain.formats.columnar import ColumnarIndex
from energon_grain.formats.data_folder import DataFolder
from energon_grain.formats.nv_meta import META_FOLDER, RECORDS_JSON, preparing
from energon_grain.sources.local_records import LocalRecords
from energon_grain.sources.object_records import ObjectRecords
from energon_grain.sources.raw import PartValue
from energon_grain.sources.record_shards import RecordReader, RecordShards
from energon_grain.storage.remote_files import RemoteFiles

Int64Array = npt.NDArray[np.int64]


class ArrayRecordFolder:
    """The index of a dataset and the files that it describes. Thread-safe.

    Args:
        folder: Where the dataset lies.
        index: Its columnar index.

    Attributes:
        location: The folder, as messages name it.
        index: The columnar index.
        shards: The files.
        objects: What reads them where they lie in an object store.

    Raises:
        DatasetNotFoundError: It is not prepared as a dataset of ArrayRecord files.
    """

    def __init__(self, folder: DataFolder, index: ColumnarIndex) -> None:
        self.location = folder.location
        self.index = index
        encoding = read_records_file(folder.local)
        if encoding is None:
            raise DatasetNotFoundError(
                f"{self.location}: there is no {META_FOLDER}/{RECORDS_JSON}, so it is not prepared as ArrayRecord "
                f"files; run `{preparing(folder.local)}`"
            )
        self._decode = record_decoder(encoding)
        self.shards = RecordShards.of(folder, index)
        store = folder.store
        self.objects = ObjectRecords(self.shards, store) if isinstance(store, RemoteFiles) else None
        self._reader: RecordReader = self.objects or LocalRecords(self.shards)

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
        shard = self.index.shard_of(wanted)
        record = wanted - self.index.shard_first[shard]
        rows: list[Mapping[str, PartValue]] = []
        data = self._reader.read(shard, record)
        for place, found in enumerate(data):
            try:
                key, parts = self._decode(found)
            except FormatError as error:
                raise self.shards.stale(int(shard[place]), f"record {record[place]} {error}") from error
            if key is not None and key != keys[first[place]]:
                raise self.shards.stale(
                    int(shard[place]), f"record {record[place]} has the key {key!r}, not {keys[first[place]]!r}"
                )
            rows.append(parts)
        return [rows[place] for place in back.tolist()]

    def close(self) -> None:
        """Close the files; reading again opens them anew."""
        self._reader.close()
