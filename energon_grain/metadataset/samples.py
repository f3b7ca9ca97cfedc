# SPDX-License-Identifier: Apache-2.0
"""Columns of a path: of the samples of a dataset, or of the rows of the join in a metadataset."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Executor
from functools import partial
from typing import Any

import numpy.typing as npt

from energon_grain.errors import ConfigError, public
from energon_grain.kinds.joins.source import JoinedSource
from energon_grain.metadataset.documents import find_joins
from energon_grain.prepare.measure import Function, MeasurePlan, MeasureProgress, MeasureReport, carry_out
from energon_grain.prepare.samples import Columns, MeasurableSource, columns_of, opened_samples, refuse_unknown
from energon_grain.sources.kinds import METADATASET, kind_at
from energon_grain.storage.location import located


@public
def open_columns(path: str | os.PathLike[str], *, split_part: str = "train") -> Columns:
    """Open the columns of the dataset at `path`: metadata of its samples that is known before they are read.

    Args:
        path: Any trainable data: a prepared dataset, tars, a JSONL file, Parquet, Arrow, MDS or token files, arrays; or
            a metadataset with exactly one join in `split_part`. URLs work too: a column in an object store is copied on
            first use.
        split_part: For a metadataset, the split of the join. For a dataset, all samples count.

    Raises:
        DatasetNotFoundError: There is no dataset.
        ConfigError: It is a metadataset without a join in this split, or with several.
        IndexFileError: An index is damaged.
        ReadError: An object store cannot be reached.
    """
    location = located(path)
    if kind_at(location) is METADATASET:
        return Columns(_opened_join(location, None, split_part))
    return columns_of(location)


@public
def measure_dataset(
    path: str | os.PathLike[str],
    columns: Mapping[str, Function | str] | None = None,
    *,
    attach: Mapping[str, str | os.PathLike[str] | npt.NDArray[Any]] | None = None,
    parts: Collection[str] | None = None,
    version: int | None = None,
    split_part: str = "train",
    num_workers: int | None = None,
    executor: Executor | None = None,
    progress: Callable[[MeasureProgress], None] | None = None,
) -> MeasureReport:
    """Compute columns of a dataset: a function returns a number for every sample, or a file holds the numbers.

    A function receives the parts of one sample as stored in its shard: `{"jpg": b"…", "txt": b"…"}`, for a JSONL file
    `{"json": b"…"}`; for numeric records and Parquet files, arrays and columns. For a join, it receives the parts of
    the primary, and those of other members prefixed by their name and a dot: `{"jpg": b"…", "captions.txt": b"…"}`; the
    row of an array by its name alone. It returns an int, a float or a bool; None (or NaN) marks a sample without a
    value. `column_function` marks functions that take many samples at once, and sets a version. A column of only ints
    is int64, otherwise float64.

    All samples are read once for all functions, in pieces that workers measure. Repeating the call continues a run that
    was killed or failed. The columns appear together when all samples are measured; they replace columns of the same
    names, and others stay. If shards were appended after all requested columns were measured by the same functions in
    the same versions, only the new samples are read, and 32 of the others, to check that the functions still return the
    same. Columns also stay valid if the same samples are prepared again, even under other shard names; for other
    samples they are no longer used.

    Args:
        path: A prepared dataset, tars, a JSONL file or Parquet files; or their URL. Or a metadataset with exactly one
            join in `split_part`, to measure the rows of the join.
        columns: Column name to a function, or to its import path: `my_module:count_tokens`. Names consist of letters,
            digits and underscores, with optional dots in between.
        attach: Column name to a file with its values. A `.npy` file (or an array in memory) has one number per sample,
            in the order of the shards. A `.parquet`, `.csv` or `.jsonl` file has a field of that name, matched by the
            field `key` (`__key__`), or by row without one; `scores.csv:aesthetic` selects another field. Samples that
            are not in the file have no value.
        parts: Names of the parts passed to functions; None: all. Only these are read from tars.
        version: Version of all functions, instead of their own.
        split_part: For a metadataset, the split of the join. For a dataset, all samples are measured.
        num_workers: See `prepare_dataset`: maximum number of processes, 0 for none, None for one per core. Functions of
            the program itself (`__main__`), and functions that cannot be pickled, run in this process.
        executor: See `prepare_dataset`: runs the pieces instead, such as `RayExecutor`. Its workers must be able to
            import the functions and to read `path`.
        progress: Called after every piece.

    Raises:
        DatasetNotFoundError: The dataset, or a file to attach, does not exist.
        ConfigError: A name, a function or a file is invalid, or the data is of a kind without columns.
        FatalSampleError: A function raised, or returned no number; names the sample. Finished measurements are kept.
        RefusedError: Another process is preparing or measuring the dataset.
        ReadError: A store cannot be read or written.
        WorkerError: A process died, or the executor failed.
    """
    plan = MeasurePlan.of(path, columns or {}, attach or {}, parts, version)
    opened = partial(_opened, plan.location, parts, split_part)
    return carry_out(plan, opened, num_workers=num_workers, executor=executor, progress=progress)


def _opened(location: str, parts: Collection[str] | None, split_part: str) -> MeasurableSource:
    """Open all samples of a dataset, or all rows of the join in a metadataset, with some of their parts."""
    if kind_at(location) is not METADATASET:
        return opened_samples(location, parts)
    join = _opened_join(location, parts, split_part)
    if join.kept is None:
        raise ConfigError(
            f"{join.path}: this join was made in memory, but columns are stored next to its index: run "
            "`energon-grain prepare` on the metadataset first"
        )
    return join


def _opened_join(location: str, parts: Collection[str] | None, split_part: str) -> JoinedSource:
    """Open the rows of the only join in a split of a metadataset. Raises ConfigError if there is not exactly one."""
    found = {join.index_id: join for join in (each.rows() for each in find_joins(location, split_part))}
    if len(found) != 1:
        raise ConfigError(
            f"{location}: has {len(found) or 'no'} joins in the split {split_part!r}, expected one. Move each join "
            f"into its own metadataset, and measure datasets by their own paths"
        )
    (join,) = found.values()
    refuse_unknown(location, parts, join.part_names)
    return join if parts is None else join.with_parts(frozenset(parts))
