"""From a join in a metadataset to its rows."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path

from energon_grain.errors import DatasetNotFoundError, IndexFileError, StaleIndexError
from energon_grain.formats.join_index import (
    JoinedMember,
    JoinHeader,
    JoinIndex,
    cache_folder,
    join_folder,
    joins_in,
    open_join_index,
)
from energon_grain.metadataset.remote_joins import fetch_join, stored_joins
from energon_grain.metadataset.tree import ArrayReference, Join
from energon_grain.prepare.join_build import build_join, find_join_index, name_of, primary_of
from energon_grain.prepare.join_members import JoinedArray, JoinedDataset, JoinMember
from energon_grain.storage.atomic import is_writable
from energon_grain.storage.location import is_url

JOINED_ON_USE = 1_000_000
"""Up to so many samples of the primary are joined when the join is first used: about a second."""


def join_inputs(
    join: Join, *, split_config: str | None = None, dataset_config: str | None = None
) -> tuple[JoinMember, ...]:
    """Open the datasets and arrays of a join.

    Args:
        join: The join.
        split_config: Name of the split files of datasets for which the metadataset names none.
        dataset_config: Name of their `dataset.yaml`, likewise.

    Raises:
        DatasetNotFoundError: A dataset is missing or not prepared.
        SplitError: A dataset has no such split part.
        EmptyDatasetError: A split part is empty.
    """
    inputs: list[JoinMember] = []
    for member in join.members:
        leaf, nonmatch = member.leaf, member.nonmatch
        if isinstance(leaf, ArrayReference):
            inputs.append(JoinedArray(leaf.path, leaf.keys, nonmatch=nonmatch, written=leaf.written))
            continue
        splits, config = leaf.split_config or split_config, leaf.dataset_config or dataset_config
        joined = partial(JoinedDataset, split_config=splits, dataset_config=config)
        inputs.append(joined(leaf.path, leaf.split_part, nonmatch=nonmatch, written=leaf.written))
    return tuple(inputs)


def open_join(
    join: Join,
    *,
    split_config: str | None = None,
    dataset_config: str | None = None,
    joined_on_use: int = JOINED_ON_USE,
) -> JoinIndex:
    """Open the index of a join.

    What `energon-grain prepare` wrote is mapped; else an index that Energon wrote is taken over where all of its rows
    fit; else a small join is made now, and kept beside the metadataset if that is writable.

    Args:
        join: The join.
        split_config: As in `join_inputs`.
        dataset_config: As in `join_inputs`.
        joined_on_use: Samples of the primary up to which it is made now.

    Raises:
        DatasetNotFoundError: A dataset or array is missing, or the join is large and was not prepared.
        StaleIndexError: A dataset, array or split file changed since the join was prepared.
        IndexFileError: The index is damaged.
        ConfigError: A key is missing in a dataset, or a row in an array, and `nonmatch` does not allow that.
        DuplicateKeyError: A dataset has a key twice.
        EmptyDatasetError: The join has no row.
    """
    samples = join_inputs(join, split_config=split_config, dataset_config=dataset_config)
    primary = primary_of(samples)
    cache = None if join.metadataset is None else cache_folder(join.metadataset)
    mending = "write it into a metadataset file, and run `energon-grain prepare` on that"
    if cache is not None and join.metadataset is not None:
        mending = f"run `energon-grain prepare {join.metadataset}`"
        try:
            return _fetched(join.metadataset, join_folder(cache, name_of(samples)))
        except (FileNotFoundError, NotADirectoryError):
            pass
        except IndexFileError as error:
            told = str(error).replace(str(cache), f"{join.metadataset}.cache")  # not the mirror of one in a store
            raise IndexFileError(f"{told}: {mending}") from error
        found = find_join_index(cache, samples)
        if found is not None:
            return found
        _refuse_stale({**joins_in(cache), **stored_joins(join.metadataset)}.values(), samples, join, mending)
    if len(primary) > joined_on_use:
        raise DatasetNotFoundError(
            f"{join.place}: {len(primary)} samples of {primary.folder.location} are to be joined with other "
            f"datasets, which is done on first use for up to {joined_on_use} only; {mending}"
        )
    return build_join(samples, cache if cache is not None and is_writable(cache) else None)


def _fetched(metadataset: str, folder: Path) -> JoinIndex:
    """Open the index of a join; the copy of one in an object store is made anew where it is damaged."""
    url = f"{metadataset}.cache/{folder.name}" if is_url(metadataset) else None
    fetch_join(metadataset, folder)
    try:
        return open_join_index(folder, url=url)
    except IndexFileError:
        if url is None:
            raise
        shutil.rmtree(folder, ignore_errors=True)
    fetch_join(metadataset, folder)
    return open_join_index(folder, url=url)


def _refuse_stale(prepared: Iterable[JoinHeader], samples: Sequence[JoinMember], join: Join, mending: str) -> None:
    """Raise if the same datasets were joined when they or their split files were different."""
    now = [each.describe() for each in samples]
    for header in prepared:
        told = [[(each.path, each.split_part, each.nonmatch, each.array) for each in m] for m in (header.members, now)]
        if told[0] != told[1]:
            continue
        changes = [change for old, new in zip(header.members, now, strict=True) if (change := _change(old, new))]
        raise StaleIndexError(
            f"{join.place}: this join was prepared, but since then {' and '.join(changes)}; {mending}"
        )


def _change(old: JoinedMember, new: JoinedMember) -> str:
    if old.content_id != new.content_id and new.array is not None:
        return f"the array {new.path} or the keys of its rows were changed ({old.samples} rows then, {new.samples} now)"
    if old.content_id != new.content_id:
        return f"{new.path} was prepared with other samples ({old.samples} then, {new.samples} now)"
    if old.shards != new.shards or old.excludes != new.excludes:
        return f"the split part {new.split_part!r} of {new.path} was changed"
    return ""
