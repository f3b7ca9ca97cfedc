# SPDX-License-Identifier: Apache-2.0
"""Builds the index of a join of datasets and arrays.

A sort-merge over hashed keys, in bounded memory. Key hashes and sample numbers of each member are spilled into buckets
by the upper bits of the hash, so equal keys share a bucket. In each bucket both sides are sorted by hash and merged,
and the matches are spilled again, by rank of the primary, so rows are written in its order. Finally the keys themselves
are compared, so hash collisions cannot affect the result:

    keys 20 bytes  ->  (hash, sample)  ->  sorted by hash, merged  ->  (rank, sample)  ->  rows in the primary's order
                       16 bytes, spilled by hash                       16 bytes, spilled by rank
"""

from __future__ import annotations

import contextlib
import itertools
import os
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from energon_grain.errors import ConfigError, DuplicateKeyError, EmptyDatasetError
from energon_grain.formats.columnar_header import ColumnWriter
from energon_grain.formats.key_order import hash_keys
from energon_grain.formats.nv_meta import read_uuid
from energon_grain.kinds.joins.index import (
    ROWS_NAME,
    JoinHeader,
    JoinIndex,
    energon_join_name,
    index_file_name,
    join_folder,
    join_name,
    new_join_folder,
    open_join_index,
    write_join_header,
    write_join_index,
    writing_joins,
)
from energon_grain.kinds.joins.members import JoinedArray, JoinedDataset, JoinMember, Primary
from energon_grain.storage.memory_maps import release_pages

Int64Array = npt.NDArray[np.int64]
UInt64Array = npt.NDArray[np.uint64]
JOIN_MEMORY_BYTES = 256 << 20
_BYTES_PER_KEY = 256  # peak memory of a bucket: pairs of both sides, their order, the matches and the keys
_MAX_BUCKETS = 1 << 12
_WINDOW_BYTES = 32 << 20
_BLOCK_ROWS = 1 << 18
_LISTED = 5


def primary_of(members: Sequence[JoinMember]) -> Primary:
    """The first member of a join. Raises ConfigError."""
    if not members:
        raise ConfigError("a join needs at least one dataset")
    primary = members[0]
    if not isinstance(primary, Primary):
        raise ConfigError(f"{primary.label}: an array cannot be the primary of a join; list a dataset before it")
    if primary.by_row:
        raise ConfigError(f"{primary.label}: is the primary of the join, which defines the row order; remove `by: row`")
    if primary.nonmatch != "error":
        raise ConfigError(
            f"{primary.label}: is the primary of the join, whose keys are looked up in the others; remove "
            f"`nonmatch: {primary.nonmatch}`"
        )
    return primary


def only_datasets(members: Sequence[JoinMember]) -> list[JoinedDataset] | None:
    """The members of a join, or None if an array is among them."""
    datasets = [member for member in members if isinstance(member, JoinedDataset)]
    return datasets if len(datasets) == len(members) else None


def name_of(members: Sequence[JoinMember]) -> str:
    """Return the name of the join of these members: see `kinds.joins.index.join_name`."""
    return join_name([member.identity for member in members])


def build_join(
    members: Sequence[JoinMember],
    target: Path | None,
    *,
    progress: Callable[[int, int], None] | None = None,
    memory_bytes: int = JOIN_MEMORY_BYTES,
) -> JoinIndex:
    """Join datasets by key: one row for each sample of the first one, the primary, in its order.

    Writes both forms of the index, described in `kinds.joins.index`, completely or not at all. Equal data produce equal
    bytes. With arrays among the members only our form is written, since Energon's cannot represent them.

    Args:
        members: The primary, then the others.
        target: The `.cache` folder of the metadataset, created if missing; None: rows are kept in memory.
        progress: Called with (keys processed, total keys).
        memory_bytes: Approximate memory limit, in addition to rows kept in memory. Temporary files take 16 bytes per
            key, and 16 per row for each other dataset.

    Raises:
        ConfigError: A dataset with `nonmatch: error` lacks a key of the primary, or such an array lacks a row; or the
            numbers of keys and rows of an array differ.
        DuplicateKeyError: A dataset has a key twice in its split part.
        EmptyDatasetError: The join has no rows.
        StaleIndexError: The index of a dataset does not match its shards.
    """
    primary_of(members)
    name, total, done = name_of(members), sum(member.total for member in members), 0

    def advance(keys: int) -> None:
        nonlocal done
        done = min(done + keys, total)
        if progress is not None:
            progress(done, total)

    with contextlib.ExitStack() as stack:
        cache = target or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="energon-grain-")))
        stack.enter_context(writing_joins(cache))
        for seed in itertools.count():  # retries after a collision
            with contextlib.suppress(HashCollision), new_join_folder(cache, name) as folder:
                with tempfile.TemporaryDirectory(prefix=".tmp_join_", dir=cache) as scratch:
                    _write(members, folder, _Matching(members, Path(scratch), memory_bytes, seed, advance))
                break
        index = open_join_index(join_folder(cache, name))
        if target is None:
            rows = np.array(index.rows)
            rows.flags.writeable = False
            return JoinIndex(rows=rows, header=index.header)
        datasets = only_datasets(members)
        if datasets is not None:
            write_energon_form(target / index_file_name(name), datasets, index.rows)
        index.release()
        return index
    raise AssertionError


def _write(members: Sequence[JoinMember], folder: Path, matching: _Matching) -> None:
    """Write rows and header. Skips or refuses rows without a match, as `nonmatch` specifies."""
    counts = [0] * len(members)
    first: list[list[int]] = [[] for _ in members]
    writer = ColumnWriter(folder / ROWS_NAME, np.int64, width=len(members))
    with contextlib.closing(writer):
        for rows in matching.rows():
            rows = _without_skipped(members, rows)
            for number in range(1, len(members)):
                places = np.flatnonzero(rows[:, number] < 0)
                counts[number] += len(places)
                first[number] += rows[places[: _LISTED - len(first[number])], 0].tolist()
            writer.append(rows)
    primary = primary_of(members)
    for member, count, samples in zip(members, counts, first, strict=True):
        if member.nonmatch == "error" and count:
            raise ConfigError(_incomplete(primary, member, count, samples))
    if not writer.rows:
        raise EmptyDatasetError(_without_rows(primary, members))
    header = JoinHeader(
        members=[member.describe(count) for member, count in zip(members, counts, strict=True)],
        rows=writer.rows,
        skipped=len(primary) - writer.rows,
        checksum=writer.checksum,
        block_sums=writer.block_sums,
    )
    write_join_header(folder, header)


def _without_skipped(members: Sequence[JoinMember], rows: Int64Array) -> Int64Array:
    for number, member in enumerate(members):
        if member.nonmatch == "skip":
            rows = rows[rows[:, number] >= 0]
    return rows


def _without_rows(primary: Primary, members: Sequence[JoinMember]) -> str:
    skipping = " and ".join(member.label for member in members if member.nonmatch == "skip")
    return (
        f"no key of {primary.label} ({len(primary)} samples) is in {skipping}, so the join has no rows; check that "
        "both name their samples the same way, and that the split parts are correct"
    )


def _incomplete(primary: Primary, member: JoinMember, count: int, samples: Sequence[int]) -> str:
    named = [f"{primary.key(sample)!r}{f' (sample {sample})' * member.by_row}" for sample in samples]
    what, lacking = ("samples", "have no row") if member.by_row else ("keys", "are missing")
    return (
        f"{count} of {len(primary)} {what} of {primary.label} {lacking} in {member.label}: {', '.join(named)}"
        f"{', …' * (count > len(samples))}. Add them, or set on this "
        f"{'dataset' if isinstance(member, Primary) else 'array'} `nonmatch: skip` (leaves out rows without a match) "
        "or `nonmatch: none` (uses None)"
    )


class HashCollision(Exception):  # noqa: N818 (not an error: the caller retries with another seed)
    """Two different keys have the same hash."""


class _Matching:
    """Finds samples with the same keys, in about `memory_bytes`. `seed` is that of the hashes."""

    def __init__(
        self,
        members: Sequence[JoinMember],
        scratch: Path,
        memory_bytes: int,
        seed: int,
        advance: Callable[[int], None],
    ) -> None:
        self._members, self._scratch, self._seed, self._advance = members, scratch, seed, advance
        self._primary = primary_of(members)
        for member in members:
            if isinstance(member, JoinedArray) and not member.by_row:
                member.read_keys(scratch)
        wanted = (self._primary.total + max(member.total for member in members)) * _BYTES_PER_KEY // memory_bytes
        self._bits = min(wanted.bit_length(), _MAX_BUCKETS.bit_length() - 1)
        self._stripe = max(1, -(-self._primary.total >> self._bits))
        self._block = max(1, memory_bytes // _BYTES_PER_KEY)

    def rows(self) -> Iterator[Int64Array]:
        """Yield (n, members) sample numbers, -1 for missing keys, in the order of the primary.

        Raises DuplicateKeyError, and HashCollision if another seed is needed.
        """
        with contextlib.ExitStack() as until:
            yield from self._in_order(self._merge(until))

    def _in_order(self, found: dict[int, _Spill]) -> Iterator[Int64Array]:
        for stripe, samples in enumerate(self._primary.blocks(self._stripe)):
            ranks = self._primary.ranks_of(samples) - stripe * self._stripe
            rows = np.full((len(samples), len(self._members)), -1, np.int64)
            rows[:, 0] = samples
            for number, member in enumerate(self._members):
                if number in found:
                    places, matches = found[number].take(stripe)
                    column = np.full(self._stripe, -1, np.int64)
                    column[places.view(np.int64) - stripe * self._stripe] = matches
                    rows[:, number] = column[ranks]
                    if not keys_agree(self._primary, samples, member, rows[:, number]):
                        raise HashCollision
                elif member.by_row:
                    rows[:, number] = np.where(samples < len(member), samples, -1)
            yield rows

    def _merge(self, until: contextlib.ExitStack) -> dict[int, _Spill]:
        """Find the keys of the primary in the others. Returns (rank, sample) by stripe, for each member number."""
        keyed = {number: member for number, member in enumerate(self._members) if not member.by_row}
        found = {number: _Spill(self._scratch, 1 << self._bits, until) for number in keyed if number}
        repeated = dict.fromkeys(keyed, 0)
        listed = defaultdict[int, list[list[int]]](list)
        with contextlib.ExitStack() as merging:
            hashes = {number: self._hash(member, merging) for number, member in keyed.items()}
            for bucket in range(1 << self._bits):
                wanted = primary = np.zeros(0, np.uint64), np.zeros(0, np.int64)
                for number, member in keyed.items():
                    hashed, samples = _by_hash(*hashes[number].take(bucket))
                    same = _same_keys(member, hashed, samples)
                    repeated[number] += len(same)
                    listed[number] += _pairs(samples, same[: _LISTED - len(listed[number])])
                    if not number:
                        wanted, primary = hashed, self._primary.ranks_of(samples)
                    elif len(hashed):
                        place = np.minimum(np.searchsorted(hashed, wanted), len(hashed) - 1)
                        hits = hashed[place] == wanted
                        ranks = primary[hits]
                        found[number].add(ranks // self._stripe, ranks.view(np.uint64), samples[place[hits]])
        _refuse_repeated(keyed, repeated, listed)
        return found

    def _hash(self, member: JoinMember, until: contextlib.ExitStack) -> _Spill:
        """Spill (hash, sample) of all keys by the upper bits of the hash."""
        spill = _Spill(self._scratch, 1 << self._bits, until)
        for samples in member.blocks(self._block):
            hashed = hash_keys(member.words, samples, seed=self._seed)
            bucket = hashed >> np.uint64(64 - self._bits) if self._bits else np.zeros_like(hashed)
            spill.add(bucket, hashed, samples)
            self._advance(len(samples))
        return spill


class _Spill:
    """Pairs of 64-bit numbers in a temporary file, added in any order and returned by bucket."""

    def __init__(self, folder: Path, buckets: int, until: contextlib.ExitStack) -> None:
        self._file = until.enter_context(tempfile.TemporaryFile(dir=folder))  # noqa: SIM115 (closed by `until`)
        self._buckets, self._pairs = np.arange(buckets + 1, dtype=np.uint16), 0
        self._cuts: list[Int64Array] = []

    def add(self, bucket: npt.NDArray[Any], first: UInt64Array, second: Int64Array) -> None:
        """Store pairs, each in the given bucket."""
        bucket = bucket.astype(np.uint16)
        order = np.argsort(bucket, kind="stable")
        pairs = np.stack([first[order], second[order].view(np.uint64)], axis=1)
        self._cuts.append(self._pairs + np.searchsorted(bucket[order], self._buckets))
        self._pairs += len(pairs)
        pairs.tofile(self._file)

    def take(self, bucket: int) -> tuple[UInt64Array, Int64Array]:
        """The pairs of a bucket, in the order in which they were added."""
        self._file.flush()
        cuts = [(16 * int(cut[bucket]), 16 * int(cut[bucket + 1])) for cut in self._cuts]
        found = b"".join([os.pread(self._file.fileno(), end - begin, begin) for begin, end in cuts])
        pairs = np.frombuffer(found, np.uint64).reshape(-1, 2)
        return np.ascontiguousarray(pairs[:, 0]), np.ascontiguousarray(pairs[:, 1]).view(np.int64)


def _pairs(samples: Int64Array, at: Int64Array) -> list[list[int]]:
    return [sorted(samples[pair : pair + 2].tolist()) for pair in at.tolist()]


def _same_keys(member: JoinMember, hashed: UInt64Array, samples: Int64Array) -> Int64Array:
    """Indices of samples, sorted by hash, whose successor has the same key. Raises HashCollision."""
    same = np.flatnonzero(hashed[1:] == hashed[:-1])
    if len(same) and not member.words.equal(samples[same], member.words, samples[same + 1]).all():
        raise HashCollision
    return same


def _by_hash(hashed: UInt64Array, samples: Int64Array) -> tuple[UInt64Array, Int64Array]:
    order = np.argsort(hashed)
    return hashed[order], samples[order]


def _refuse_repeated(
    members: Mapping[int, JoinMember], repeated: Mapping[int, int], pairs: Mapping[int, Sequence[Sequence[int]]]
) -> None:
    for number, member in members.items():
        if count := repeated[number]:
            listed = [
                f"{member.key(one)!r} in {member.where(one)} and in {member.where(other)}"
                for one, other in pairs[number]
            ]
            more = f" and {count - len(listed)} more" * (count > len(listed))
            raise DuplicateKeyError(
                f"{member.key_label}: cannot be joined, {count} of its keys are duplicates: {'; '.join(listed)}{more}. "
                f"Rename them{member.advice}"
            )


def keys_agree(primary: Primary, samples: Int64Array, other: JoinMember, others: Int64Array) -> bool:
    """Whether samples of two datasets have the same keys, pair by pair; -1 in `others` matches any key."""
    hit = np.flatnonzero(others >= 0)
    samples, others = samples[hit], others[hit]
    return all(primary.words.equal(samples[at], other.words, others[at]).all() for at in windows(other, others))


def windows(member: JoinMember, samples: Int64Array, window_bytes: int = _WINDOW_BYTES) -> Iterator[Int64Array]:
    """Split samples into pieces that are close together, and release the member's index after each.

    1,000 random lookups make 64 MiB of an index resident, 64 KiB each. Yields the indices in `samples` of each piece.
    """
    pieces, count = sum(column.nbytes for column in member.columns) // window_bytes + 1, len(member.columns[0])
    order = np.argsort(samples) if pieces > 1 else np.arange(len(samples))
    limits = np.arange(1, pieces) * (count // pieces)
    for piece in np.split(order, np.searchsorted(samples[order], limits)):
        if len(piece):
            yield piece
            member.release()


def write_energon_form(path: Path, members: Sequence[JoinedDataset], rows: Int64Array) -> None:
    """Write rows in Energon's format, see `kinds.joins.index`."""
    for member in members:
        member.index.check()
    write_join_index(path, len(members), _energon_blocks(members, rows))


def _energon_blocks(members: Sequence[JoinedDataset], rows: Int64Array) -> Iterator[Int64Array]:
    """Yield (n, datasets, 3) shard, offset and size of the samples of rows, in blocks."""
    for begin in range(0, len(rows), _BLOCK_ROWS):
        block = rows[begin : begin + _BLOCK_ROWS]
        places = np.full((*block.shape, 3), -1, np.int64)
        for number, member in enumerate(members):
            index, listed = member.index, {name: place for place, name in enumerate(member.listed)}
            place = np.array([listed.get(name, -1) for name in index.shards])
            found = np.flatnonzero(block[:, number] >= 0)
            for at in windows(member, block[found, number]):
                sample = block[found[at], number]
                shard = index.shard_of(sample)
                start, end = index.sample_start[sample + shard], index.sample_start[sample + shard + 1]
                places[found[at], number] = np.stack([place[shard], start, end - start], axis=1)
        release_pages(rows)
        yield places


def energon_name_of(members: Sequence[JoinMember]) -> str | None:
    """Return Energon's file name of a join, see `kinds.joins.index.energon_join_name`; None without one."""
    described: list[tuple[str, Sequence[str], str]] = []
    for member in only_datasets(members) or ():
        uuid = read_uuid(member.folder.local)
        if uuid is None or len(member.energon_excludes) > 1:
            return None
        described.append((uuid, member.energon_excludes, member.nonmatch))
    return index_file_name(energon_join_name(described)) if described else None
