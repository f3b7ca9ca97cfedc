"""The ArrayRecord files of a dataset, and what reads records of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from energon_grain.errors import StaleIndexError
from energon_grain.formats.columnar import ColumnarIndex
from energon_grain.formats.data_folder import DataFolder

Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class RecordShards:
    """The files by their numbers in the index.

    Attributes:
        location: The dataset, as messages name it.
        paths: Path or URL of each file.
        size_bytes: Of each, when it was indexed.
        records: How many each had then.
    """

    location: str
    paths: list[str]
    size_bytes: list[int]
    records: list[int]

    @staticmethod
    def of(folder: DataFolder, index: ColumnarIndex) -> RecordShards:
        """All files of a dataset."""
        paths = folder.shards(index.shards)
        return RecordShards(folder.location, paths, index.shard_bytes.tolist(), np.diff(index.shard_first).tolist())

    def stale(self, shard: int, found: str) -> StaleIndexError:
        """The error that says that a file is not the one that was indexed."""
        return self.changed(f"{self.paths[shard]}: {found}")

    def changed(self, found: str) -> StaleIndexError:
        """The same, where it is said already which file it is."""
        return StaleIndexError(
            f"{found}; the file was changed after it was indexed: run `energon-grain prepare {self.location} "
            f"--tar-index-only`"
        )

    def check_records(self, shard: int, records: int) -> None:
        """Raise StaleIndexError where a file has another number of records than when it was indexed."""
        if records != self.records[shard]:
            raise self.stale(shard, f"it has {records} records, not {self.records[shard]}")


class RecordReader(Protocol):
    """Reads records of a dataset's files. Thread-safe."""

    def read(self, shard: Int64Array, record: Int64Array) -> list[bytes]:
        """Read records in the order asked for.

        Args:
            shard: (n,) number of the file, ascending.
            record: (n,) number in it, ascending within each.

        Raises:
            StaleIndexError: A file has another size or number of records than when it was indexed.
            ReadError: A file is gone, or a record cannot be read.
        """
        ...

    def close(self) -> None:
        """Let go of files; reading again opens them anew."""
        ...
