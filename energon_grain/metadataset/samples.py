# SPDX-License-Identifier: Apache-2.0
"""What is known of the samples that a path names: those of a dataset, or the rows of the join in a metadataset."""

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
    """Open the columns of the dataset at `path`: what is known of its samples before they are read.

    Args:
        path: Whatever can be trained on: a prepared dataset, tars, a JSONL file, files of Parquet, Arrow, MDS or
            tokens, arrays; or a metadataset that has one join in `split_part`. Or its URL: a column that lies in an
            object store is copied when it is first asked for.
        split_part: Of a metadataset, the split that the join is in. Of a dataset all samples count.

    Raises:
        DatasetNotFoundError: There is no dataset.
        ConfigError: It is a metadataset with no join in this split, or with several.
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
    """Have a function say a number of every sample of a dataset, and keep these as columns; or take them from files.

    A function gets the parts of one sample, as they lie in its shard: `{"jpg": b"…", "txt": b"…"}`, of a JSONL file
    `{"json": b"…"}`; of a record of numbers their array, of Parquet files columns. Of a join it gets the parts of the
    primary, and those of every other member with its name and a dot before: `{"jpg": b"…", "captions.txt": b"…"}`; the
    row of an array by its name alone. It returns an int, a float or a bool; None (or NaN) stands for
    a sample that has no such number. `column_function` marks functions that take many samples at once, and gives a
    version. Where all numbers of a column are ints it is of int64, else of float64.

    All samples are read once for all functions, in pieces that workers measure. A run that was killed, or ended by an
    error, is taken up by the same call. The columns appear together when all samples are measured; those of the same
    names are replaced, others stay. Where shards were appended since all columns that are asked for were measured, by
    the same functions in the same versions, only their samples are read, and 32 of the others, to see whether the
    functions still say the same. Columns stay, too, when the same samples are prepared again, whatever their shards are
    called then; of other samples they are not given out any more.

    Args:
        path: A prepared dataset, tars, a JSONL file or Parquet files; or their URL. Or a metadataset that has one join
            in `split_part`: then it is the rows of the join that are measured.
        columns: By name a function, or where it is to be imported from: `my_module:count_tokens`. A name is made of
            letters, digits and underscores; there may be dots between.
        attach: By name a file to take a column from. Of `.npy` a number a sample, in the order of the shards; an array
            in memory is as good. Of `.parquet`, `.csv` and `.jsonl` the field of that name, by the field `key`
            (`__key__`), or by row where there is none; `scores.csv:aesthetic` is another field. What the file does not
            say of a sample is missing.
        parts: Names of the parts that functions get; None: all. Tars are read at these alone.
        version: Of all functions, instead of their own.
        split_part: Of a metadataset, the split that the join is in. Of a dataset all samples are measured.
        num_workers: As in `prepare_dataset`: processes at most, 0 for none, None for one a core. Functions of the
            program itself (`__main__`), and others that cannot be pickled, run in this process.
        executor: As in `prepare_dataset`: runs the pieces instead, as `RayExecutor` does; its workers must be able to
            import the functions, and see `path`.
        progress: Called after every piece.

    Raises:
        DatasetNotFoundError: There is no dataset, or no such file to attach.
        ConfigError: A name, a function or a file does not fit; or it is no kind of data that has columns.
        FatalSampleError: A function raised, or gave no number; names the sample. What was measured is kept.
        RefusedError: Another process prepares or measures the dataset right now.
        ReadError: A store cannot be read or written.
        WorkerError: A process died, or the executor failed.
    """
    plan = MeasurePlan.of(path, columns or {}, attach or {}, parts, version)
    opened = partial(_opened, plan.location, parts, split_part)
    return carry_out(plan, opened, num_workers=num_workers, executor=executor, progress=progress)


def _opened(location: str, parts: Collection[str] | None, split_part: str) -> MeasurableSource:
    """All samples of a dataset, or all rows of the join in a metadataset, with some of their parts."""
    if kind_at(location) is not METADATASET:
        return opened_samples(location, parts)
    join = _opened_join(location, parts, split_part)
    if join.kept is None:
        raise ConfigError(
            f"{join.path}: this join was made in memory, and columns are kept beside its index: run "
            "`energon-grain prepare` on the metadataset first"
        )
    return join


def _opened_join(location: str, parts: Collection[str] | None, split_part: str) -> JoinedSource:
    """All rows of the one join in a split of a metadataset. Raises ConfigError where there is none, or another one."""
    found = {join.index_id: join for join in (each.rows() for each in find_joins(location, split_part))}
    if len(found) != 1:
        raise ConfigError(
            f"{location}: has {len(found) or 'no'} joins in the split {split_part!r}. Of a metadataset the rows of its "
            "one join are measured; write several into metadatasets of their own, and measure datasets by their paths"
        )
    (join,) = found.values()
    refuse_unknown(location, parts, join.part_names)
    return join if parts is None else join.with_parts(frozenset(parts))
