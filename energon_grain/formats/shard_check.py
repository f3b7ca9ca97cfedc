"""Whether tar shards still are the files that were indexed."""

from __future__ import annotations

from collections.abc import Sequence

from energon_grain.errors import RangeError, StaleIndexError
from energon_grain.formats.columnar import ColumnarIndex
from energon_grain.formats.data_folder import DataFolder

_TAR_BLOCK_BYTES = 512


def check_shards(folder: DataFolder, index: ColumnarIndex, shards: Sequence[int] | None = None) -> None:
    """Check that tar shards have the size of the index and end where it says that they end.

    Reads what lies behind the last sample of each: 1 to 10 KiB, as a rule.

    Args:
        folder: Where the dataset lies.
        index: Of the dataset.
        shards: Numbers of the shards to look at; all of them if None.

    Raises:
        StaleIndexError: A shard has changed.
        ReadError: A shard is gone or cannot be reached.
    """
    numbers = range(len(index.shards)) if shards is None else shards
    paths = [folder.shard(index.shards[number]) for number in numbers]
    ends = [int(index.shard_sample_start(number)[-1]) for number in numbers]
    advice = (
        f"the shard was changed after it was indexed: run `energon-grain prepare {folder.location} --tar-index-only`"
    )
    try:
        tails = folder.store.tails(paths, ends)
    except RangeError as error:
        raise StaleIndexError(f"{error}; {advice}") from error
    for number, path, end, tail in zip(numbers, paths, ends, tails, strict=True):
        expected = int(index.shard_bytes[number])
        if end + len(tail) != expected:
            raise StaleIndexError(
                f"{path} was indexed with {expected} bytes ending at {end}, but it has {end + len(tail)} bytes; "
                f"{advice}"
            )
        if tail[:_TAR_BLOCK_BYTES].strip(b"\0"):
            raise StaleIndexError(
                f"{path} was indexed with {expected} bytes ending at {end}, but there is data at its end marker @ "
                f"{end}; {advice}"
            )
