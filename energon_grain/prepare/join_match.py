"""Finding the samples with the same keys in several datasets, in bounded memory.

Every dataset is read once from beginning to end. Hashes of its keys go with their ranks into partitions by the upper
bits of the hash, so that equal keys meet in one partition; there the hashes are sorted and looked up, and what was
found goes into partitions again, by rank of the primary, so that rows come out in the primary's order. Then the keys
themselves are compared, so that nothing depends on hashes being different:

    keys 20 bytes  ->  (hash, rank)  ->  sorted by hash, looked up  ->  (rank, sample)  ->  rows of the primary's order
                       16 bytes, spilled by hash                        16 bytes, spilled by rank
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Protocol

import numpy as np
import numpy.typing as npt

from energon_grain.errors import DuplicateKeyError
from energon_grain.formats.key_order import KeyWords, hash_keys
from energon_grain.prepare.join_input import JoinedSamples

_RECORD_WORDS = 2
Int64Array = npt.NDArray[np.int64]
_BYTES_A_KEY = 128  # of a partition at its worst moment: the records of both sides, their sorted order, the results
_BLOCK_BYTES_A_KEY = 256
_MOST_PARTITIONS = 256
_LISTED = 5


class Spill:
    """Pairs of 64-bit numbers, taken in any order and given back partition by partition.

    Args:
        folder: Where the files lie.
        name: Begins their names.
        partitions: At most a few hundred, as every one is an open file while records are taken.
    """

    def __init__(self, folder: Path, name: str, partitions: int) -> None:
        self.partitions = partitions
        self._paths = [folder / f"{name}-{number}" for number in range(partitions)]
        self._kept: list[npt.NDArray[np.uint64]] = []
        self._stack = contextlib.ExitStack()
        self._files: list[BinaryIO] = []
        for path in self._paths if partitions > 1 else ():
            file = open(path, "wb", buffering=1 << 16)  # noqa: SIM115 (closed by `finish`)
            self._files.append(self._stack.enter_context(file))

    def add(
        self, partition: npt.NDArray[np.int64], first: npt.NDArray[np.uint64], second: npt.NDArray[np.int64]
    ) -> None:
        """Set pairs aside; `partition` says of each where."""
        if not len(first):
            return
        records = np.empty((len(first), _RECORD_WORDS), np.uint64)
        if self.partitions == 1:
            records[:, 0], records[:, 1] = first, second.view(np.uint64)
            self._kept.append(records)
            return
        order = np.argsort(partition.astype(np.uint16), kind="stable")
        records[:, 0], records[:, 1] = first[order], second.view(np.uint64)[order]
        ends = np.cumsum(np.bincount(partition, minlength=self.partitions)).tolist()
        begin = 0
        for number, end in enumerate(ends):
            if end > begin:
                self._files[number].write(records[begin:end].data.cast("B"))
            begin = end

    def finish(self) -> None:
        """No more records will come."""
        self._stack.close()

    def take(self, partition: int) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.int64]]:
        """The pairs of a partition, in the order in which they came."""
        if self.partitions == 1:
            records = np.concatenate(self._kept) if self._kept else np.zeros((0, _RECORD_WORDS), np.uint64)
            self._kept = [records]
        else:
            records = np.fromfile(self._paths[partition], np.uint64).reshape(-1, _RECORD_WORDS)
        return np.ascontiguousarray(records[:, 0]), np.ascontiguousarray(records[:, 1]).view(np.int64)

    def replace(self, partition: int, first: npt.NDArray[np.uint64], second: npt.NDArray[np.int64]) -> None:
        """Put other pairs in the place of those of a partition."""
        records = np.stack([first, second.view(np.uint64)], axis=1)
        if self.partitions == 1:
            self._kept = [records]
        else:
            records.tofile(self._paths[partition])

    def remove(self) -> None:
        """Delete everything."""
        self._stack.close()
        self._kept = []
        for path in self._paths if self.partitions > 1 else ():
            path.unlink(missing_ok=True)


class HashCollision(Exception):  # noqa: N818 (no error: the caller begins anew with other hashes)
    """Two different keys have the same hash."""


class KeyedSamples(Protocol):
    """What keys are looked up in: the samples of a dataset that a join takes, or the rows of an array.

    Attributes:
        label: How messages call it.
        instead_of_renaming: What else can be done about repeated keys, to follow "Rename them".
        total: Number of ranks, those included that are left out.
        words: The keys, by number of the sample.
    """

    @property
    def label(self) -> str: ...
    @property
    def instead_of_renaming(self) -> str: ...
    @property
    def total(self) -> int: ...
    @property
    def words(self) -> KeyWords: ...

    def key(self, sample: int) -> str:
        """The key of a sample."""
        ...

    def where(self, sample: int) -> str:
        """Where a sample lies."""
        ...

    def samples_at(self, ranks: Int64Array) -> Int64Array:
        """Number of the sample of each rank."""
        ...

    def blocks(self, rows: int) -> Iterator[Int64Array]:
        """All ranks that count, ascending, `rows` at a time at most."""
        ...

    def windows(self, samples: Int64Array) -> Iterator[Int64Array]:
        """Places in `samples`, in pieces whose samples lie close together."""
        ...


@dataclass(kw_only=True, slots=True)
class _Duplicates:
    """Samples that have the key of another one of theirs."""

    samples: KeyedSamples
    count: int = 0
    listed: list[str] = field(default_factory=list[str])

    def add(self, one: Int64Array, other: Int64Array) -> None:
        """Note pairs of dataset-wide sample numbers with equal hashes; raises HashCollision if a key differs."""
        samples, words = self.samples, self.samples.words
        if not words.equal(one, words, other).all():
            raise HashCollision
        self.count += len(one)
        for pair in zip(one[: _LISTED - len(self.listed)].tolist(), other.tolist(), strict=False):
            first, second = sorted(pair)
            self.listed.append(f"{samples.key(first)!r} in {samples.where(first)} and in {samples.where(second)}")

    def refuse(self) -> None:
        """Raise if there are any."""
        if not self.count:
            return
        more = f" and {self.count - len(self.listed)} more" if self.count > len(self.listed) else ""
        raise DuplicateKeyError(
            f"{self.samples.label}: cannot be joined, {self.count} of its keys repeat another: "
            f"{'; '.join(self.listed)}{more}. Rename them{self.samples.instead_of_renaming}"
        )


def keys_agree(primary: JoinedSamples, rows: Int64Array, other: KeyedSamples, others: Int64Array) -> bool:
    """Say whether samples of two datasets have the same keys, pair by pair; -1 in `others` agrees with any."""
    hit = np.flatnonzero(others >= 0)
    rows, others = rows[hit], others[hit]
    return all(primary.words.equal(rows[at], other.words, others[at]).all() for at in other.windows(others))


class Matching:
    """Looks the keys of a primary up in other datasets.

    Args:
        primary: The samples that make rows.
        scratch: A folder for temporary files: 16 bytes a key for the primary, and 16 a row for each other dataset.
        memory_bytes: About the most memory to take.
        seed: Of the hashes.
        bits: Of the hashes.
        progress: Called with the number of keys that have been gone through.

    Raises:
        DuplicateKeyError: A dataset has a key twice.
        HashCollision: Another seed is needed.
    """

    def __init__(
        self,
        primary: JoinedSamples,
        largest: int,
        scratch: Path,
        *,
        memory_bytes: int,
        seed: int = 0,
        bits: int = 64,
        progress: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._primary, self._scratch = primary, scratch
        self._seed, self._bits, self._progress = seed, bits, progress
        wanted = -(-(primary.total + largest) * _BYTES_A_KEY // memory_bytes)
        self._partition_bits = min(max(0, (wanted - 1).bit_length()), _MOST_PARTITIONS.bit_length() - 1)
        self._block = max(1, memory_bytes // _BLOCK_BYTES_A_KEY)
        self._stripe = max(1, -(-primary.total // (1 << self._partition_bits)))
        self._keys = self._spill_keys(primary, "primary")
        duplicates = _Duplicates(samples=primary)
        for partition in range(self._keys.partitions):
            hashed, ranks = _by_hash(*self._keys.take(partition))
            same = np.flatnonzero(hashed[1:] == hashed[:-1])
            duplicates.add(primary.samples_at(ranks[same]), primary.samples_at(ranks[same + 1]))
            self._keys.replace(partition, hashed, ranks)
        duplicates.refuse()
        self._found: list[Spill] = []

    def look_up(self, other: KeyedSamples) -> None:
        """Find the keys of the primary in another dataset."""
        keys = self._spill_keys(other, f"other-{len(self._found)}")
        found = Spill(self._scratch, f"found-{len(self._found)}", 1 << self._partition_bits)
        duplicates = _Duplicates(samples=other)
        for partition in range(keys.partitions):
            hashed, ranks = _by_hash(*keys.take(partition))
            same = np.flatnonzero(hashed[1:] == hashed[:-1])
            duplicates.add(other.samples_at(ranks[same]), other.samples_at(ranks[same + 1]))
            if not len(hashed):
                continue
            wanted, rows = self._keys.take(partition)
            place = np.minimum(np.searchsorted(hashed, wanted), len(hashed) - 1)
            hits = hashed[place] == wanted
            rows = rows[hits]
            found.add(rows // self._stripe, rows.view(np.uint64), ranks[place[hits]])
        duplicates.refuse()
        keys.remove()
        found.finish()
        self._found.append(found)

    def rows(self, others: Sequence[KeyedSamples]) -> Iterator[Int64Array]:
        """Give (n, datasets) rows of dataset-wide sample numbers, -1 where a key is missing, in the primary's order.

        Args:
            others: The datasets that were looked up, in the same order.
        """
        primary = self._primary
        for stripe in range(1 << self._partition_bits):
            begin = stripe * self._stripe
            matches: list[Int64Array] = []
            for found, other in zip(self._found, others, strict=True):
                ranks, there = found.take(stripe)
                column = np.full(self._stripe, -1, np.int64)
                column[ranks.view(np.int64) - begin] = other.samples_at(there)
                matches.append(column)
            for low in range(begin, min(begin + self._stripe, primary.total), self._block):
                ranks = primary.ranks(low, min(low + self._block, begin + self._stripe))
                rows = np.empty((len(ranks), 1 + len(others)), np.int64)
                rows[:, 0] = primary.samples_at(ranks)
                for number, (other, column) in enumerate(zip(others, matches, strict=True), 1):
                    rows[:, number] = column[ranks - begin]
                    if not keys_agree(primary, rows[:, 0], other, rows[:, number]):
                        raise HashCollision
                primary.release()
                yield rows

    def _spill_keys(self, samples: KeyedSamples, name: str) -> Spill:
        """Set (hash, rank) of all keys aside, by the upper bits of the hash."""
        spill = Spill(self._scratch, name, 1 << self._partition_bits)
        for ranks in samples.blocks(self._block):
            hashed = hash_keys(samples.words, samples.samples_at(ranks), seed=self._seed, bits=self._bits)
            partition = hashed >> np.uint64(64 - self._partition_bits) if self._partition_bits else hashed
            spill.add(partition.view(np.int64), hashed, ranks)
            self._progress(len(ranks))
        spill.finish()
        return spill


def _by_hash(hashed: npt.NDArray[np.uint64], ranks: Int64Array) -> tuple[npt.NDArray[np.uint64], Int64Array]:
    order = np.argsort(hashed)
    return hashed[order], ranks[order]
