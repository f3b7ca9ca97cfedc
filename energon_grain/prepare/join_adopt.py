"""Taking over a join index that Energon wrote."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from energon_grain.errors import IndexFileError
from energon_grain.formats.join_index import energon_join_names, index_file_name, read_join_index
from energon_grain.formats.join_rows import JoinHeader, JoinIndex
from energon_grain.formats.nv_meta import read_uuid
from energon_grain.prepare.join_array import JoinedMembers, only_datasets
from energon_grain.prepare.join_build import name_of
from energon_grain.prepare.join_input import JoinedSamples
from energon_grain.prepare.join_match import keys_agree

Int64Array = npt.NDArray[np.int64]

_BLOCK_ROWS = 1 << 18


def energon_names_of(samples: JoinedMembers) -> list[str]:
    """Return the file names that Energon may have given to a join; none where a dataset has no uuid, or with arrays."""
    members: list[tuple[str, Sequence[str], str]] = []
    for each in only_datasets(samples) or ():
        uuid = read_uuid(each.input.root)
        if uuid is None:
            return []
        members.append((uuid, each.input.energon_excludes, each.input.nonmatch))
    return [index_file_name(digest) for digest in energon_join_names(members)]


def find_join_index(cache: Path, samples: JoinedMembers) -> JoinIndex | None:
    """Find and check an index file for these samples, of ours or of Energon; None where none fits.

    Energon's name for a file says nothing of the split part, so a file counts only when all of its rows fit: see
    `adopt_join_index`. Such files have no place for arrays.
    """
    datasets = only_datasets(samples)
    if datasets is None:
        return None
    there = {path.name for path in cache.glob(index_file_name("*"))}
    if not there:
        return None
    for name in dict.fromkeys([index_file_name(name_of(datasets)), *energon_names_of(datasets)]):
        if name in there:
            index = adopt_join_index(cache / name, datasets)
            if index is not None:
                return index
    return None


def adopt_join_index(path: Path, samples: Sequence[JoinedSamples]) -> JoinIndex | None:
    """Read an index file as the join of `samples`, or return None where it is not that.

    Every row must lie on samples of the split parts that are not excluded, with equal keys; no sample of the primary
    may come twice; all of them must come unless a dataset has `nonmatch: skip`; and only datasets with `nonmatch: none`
    may lack one. Rows are put into the order in which we write them: Energon leaves it open inside a shard. Takes 8
    bytes a row and dataset, and about 2 µs a row.
    """
    try:
        stored = read_join_index(path)
    except IndexFileError:
        return None
    if stored.shape[1] not in (0, len(samples)):
        return None
    rows = np.empty((len(stored), len(samples)), np.int64)
    for begin in range(0, len(stored), _BLOCK_ROWS):
        block = stored[begin : begin + _BLOCK_ROWS]
        for number, each in enumerate(samples):
            found = _samples_of(block[:, number], each)
            if found is None:
                return None
            rows[begin : begin + len(block), number] = found
        done = rows[begin : begin + len(block)]
        if not all(keys_agree(samples[0], done[:, 0], each, done[:, n]) for n, each in enumerate(samples)):
            return None
    ranks = samples[0].ranks_of(rows[:, 0])
    order = np.argsort(ranks, kind="stable")
    ranks = ranks[order]
    complete = len(rows) == len(samples[0]) or any(each.input.nonmatch == "skip" for each in samples)
    if not len(rows) or not complete or (ranks[1:] == ranks[:-1]).any():
        return None
    rows = rows[order]
    rows.flags.writeable = False
    header = JoinHeader(
        members=[each.describe(int(np.count_nonzero(rows[:, n] < 0))) for n, each in enumerate(samples)],
        rows=len(rows),
        skipped=len(samples[0]) - len(rows),
        checksum=hashlib.blake2b(rows.data.cast("B"), digest_size=16).hexdigest(),
    )
    return JoinIndex(rows=rows, header=header)


def _samples_of(places: Int64Array, samples: JoinedSamples) -> Int64Array | None:
    """The sample at each (shard, offset, size), -1 for (-1, -1, -1); None if one is no sample that may be joined."""
    result = np.full(len(places), -1, np.int64)
    missing = (places == -1).all(axis=1)
    if missing.any() and samples.input.nonmatch != "none":
        return None
    rows = np.flatnonzero(~missing)
    listed, start, size = places[rows, 0], places[rows, 1], places[rows, 2]
    if len(rows) and not (listed.min() >= 0 and listed.max() < len(samples.input.listed)):
        return None
    index = samples.index
    numbers = {name: number for number, name in enumerate(index.shards)}
    order = np.argsort(listed, kind="stable")
    borders = np.flatnonzero(np.diff(listed[order])) + 1
    for group in np.split(order, borders) if len(order) else ():
        shard = numbers.get(samples.input.listed[int(listed[group[0]])])
        if shard is None:
            return None
        starts = index.shard_sample_start(shard)
        place = np.searchsorted(starts[:-1], start[group])
        if not len(starts) - 1 or (place >= len(starts) - 1).any():
            return None
        if (starts[place] != start[group]).any() or (starts[place + 1] - starts[place] != size[group]).any():
            return None
        result[rows[group]] = index.shard_first[shard] + place
    ranks = samples.ranks_of(result[rows])
    samples.release()
    allowed = (ranks >= 0).all() and not np.isin(ranks, samples.left_out).any()
    return result if allowed else None
