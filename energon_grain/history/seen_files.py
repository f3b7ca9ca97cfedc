# SPDX-License-Identifier: Apache-2.0
"""Writes how often samples were used: a row per sample, as Parquet, CSV or numpy arrays."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from energon_grain.atomic_files import atomic_write
from energon_grain.errors import AmendmentError, ConfigError
from energon_grain.extras import needed_for
from energon_grain.history.uses import Seen, SeenDataset

_ROWS = 1 << 18
Block = tuple[str, np.ndarray[Any, np.dtype[np.int64]], list[str], np.ndarray[Any, np.dtype[np.int32]]]
"""Name of a leaf, and for some of its samples: index, key, times."""


def write_seen(seen: Seen, path: Path) -> None:
    """Write a row per sample: `dataset` (full key of the leaf), `index`, `key`, `times`. Atomic.

    Args:
        seen: The counts.
        path: Ends with `.parquet` (needs pyarrow), `.csv`, or `.npz`: there, array `times_0` has the counts of the
            first dataset by index, and `datasets` all names.

    Raises:
        ConfigError: The name has another ending.
        MissingPackageError: pyarrow is not installed.
    """
    writers = {".parquet": _parquet, ".csv": _csv, ".npz": _arrays}
    if path.suffix not in writers:
        raise ConfigError(f"{path}: the name must end with {', '.join(writers)}")
    with atomic_write(path) as file:
        writers[path.suffix](seen, file)


def _parquet(seen: Seen, file: BinaryIO) -> None:
    with needed_for("writing Parquet", instead="write .csv or .npz"):
        import pyarrow as pa
        from pyarrow import parquet
    arrow: Any = pa
    names = [each.name for each in seen]
    fields = [("dataset", arrow.dictionary(arrow.int32(), arrow.string())), ("index", arrow.int64())]
    schema = arrow.schema([*fields, ("key", arrow.string()), ("times", arrow.int32())])
    with parquet.ParquetWriter(file, schema) as writer:  # type: ignore[no-untyped-call]
        for name, index, keys, times in _blocks(seen):
            dataset = np.full(len(index), names.index(name), np.int32)
            column = arrow.DictionaryArray.from_arrays(dataset, arrow.array(names, arrow.string()))
            writer.write_table(arrow.table([column, index, arrow.array(keys, arrow.string()), times], schema=schema))


def _csv(seen: Seen, file: BinaryIO) -> None:
    text = io.TextIOWrapper(file, encoding="utf-8", errors="surrogateescape", newline="")
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(("dataset", "index", "key", "times"))
    for name, index, keys, times in _blocks(seen):
        rows.writerows(zip([name] * len(index), index.tolist(), keys, times.tolist(), strict=True))
    text.flush()
    text.detach()


def _arrays(seen: Seen, file: BinaryIO) -> None:
    arrays: dict[str, Any] = {f"times_{number}": each.times for number, each in enumerate(seen)}
    np.savez(file, datasets=np.array([each.name for each in seen], dtype=np.str_), **arrays)


def _blocks(seen: Seen) -> Iterator[Block]:
    for each in seen:
        for begin in range(0, len(each.times), _ROWS):
            index = np.arange(begin, min(begin + _ROWS, len(each.times)))
            yield each.name, index, _keys(each, index), each.times[begin : begin + _ROWS]


def _keys(dataset: SeenDataset, index: np.ndarray[Any, np.dtype[np.int64]]) -> list[str]:
    """The keys of samples, or empty texts for a dataset that was removed from the configuration."""
    try:
        return [""] * len(index) if dataset.keys is None else dataset.keys(index)
    except AmendmentError:
        return [""] * len(index)
