"""Building the index of a join."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from energon_grain.errors import ConfigError, EmptyDatasetError
from energon_grain.formats.columnar_header import release_pages
from energon_grain.formats.join_index import index_file_name, join_name, write_join_index
from energon_grain.formats.join_rows import (
    JoinHeader,
    JoinIndex,
    JoinRowsWriter,
    join_folder,
    new_join_folder,
    open_join_index,
    write_join_header,
    writing_joins,
)
from energon_grain.prepare.join_array import (
    JoinedArray,
    JoinedMembers,
    JoinInputs,
    only_datasets,
    open_inputs,
    primary_of,
)
from energon_grain.prepare.join_input import JoinedSamples
from energon_grain.prepare.join_match import HashCollision, KeyedSamples, Matching

Int64Array = npt.NDArray[np.int64]

JOIN_MEMORY_BYTES = 256 << 20
_LISTED = 5
_BLOCK_ROWS = 1 << 18
_HASH_BITS = (64, 64, 64, 64)


def build_join(
    members: JoinInputs,
    target: Path | None,
    *,
    progress: Callable[[int, int], None] | None = None,
    memory_bytes: int = JOIN_MEMORY_BYTES,
    hash_bits: Sequence[int] = _HASH_BITS,
) -> JoinIndex:
    """Join datasets by key: a row for each sample of the first one, the primary, in its order.

    Writes both forms of the index, whole or not at all: `formats.join_rows` and `formats.join_index` say how they look.
    Equal data gives equal bytes. With arrays among the members only the first form is written, as the other, Energon's,
    has no place for them.

    Args:
        members: The primary, then the others.
        target: The `.cache` folder of the metadataset, made where it is missing; None: rows are kept in memory, in a
            run that is small enough.
        progress: Called with how many keys of how many have been gone through.
        memory_bytes: About the most memory to take, beside the rows themselves where they are kept. What does not fit
            goes through temporary files in `target`, 32 bytes a key and dataset.
        hash_bits: Bits of the key hashes, of one attempt after the other: the next begins where two different keys
            have the same hash.

    Raises:
        ConfigError: The primary has a key that a dataset with `nonmatch: error` lacks, or a sample that such an array
            has no row for; or an array has not as many keys as rows.
        DuplicateKeyError: A dataset has a key twice in its split part.
        EmptyDatasetError: No row is left.
        StaleIndexError: The index of a dataset does not fit its shards.
    """
    samples = open_inputs(members)
    primary_of(samples)
    report = _Report(progress, sum(each.total for each in samples))
    with contextlib.nullcontext() if target is None else writing_joins(target):
        for seed, bits in enumerate(hash_bits):
            with contextlib.suppress(HashCollision):
                return _attempt(samples, target, report, memory_bytes, seed, bits)
    raise AssertionError("keys collide in every one of several 64-bit hashes")


def name_of(samples: JoinedMembers) -> str:
    """Return the name of the join of these samples: see `formats.join_index.join_name`."""
    return join_name([each.identity for each in samples])


def write_energon_form(path: Path, samples: Sequence[JoinedSamples], rows: Int64Array) -> None:
    """Write rows as Energon has them: see `formats.join_index`."""
    write_join_index(path, len(samples), energon_blocks(samples, rows))


def energon_blocks(samples: Sequence[JoinedSamples], rows: Int64Array) -> Iterator[Int64Array]:
    """Give (n, datasets, 3) shard, offset and size of the samples of rows, block by block."""
    listed = [_listed_places(each) for each in samples]
    for each in samples:
        each.index.check()
    for begin in range(0, len(rows), _BLOCK_ROWS):
        block = rows[begin : begin + _BLOCK_ROWS]
        places = np.full((*block.shape, 3), -1, np.int64)
        for number, (each, place) in enumerate(zip(samples, listed, strict=True)):
            found = np.flatnonzero(block[:, number] >= 0)
            for at in each.windows(block[found, number]):
                sample = block[found[at], number]
                shard = each.index.shard_of(sample)
                start = each.index.sample_start[sample + shard]
                size = each.index.sample_start[sample + shard + 1] - start
                for field, values in enumerate((place[shard], start, size)):
                    places[found[at], number, field] = values
        release_pages(rows)
        yield places


def _listed_places(samples: JoinedSamples) -> Int64Array:
    """Place of each shard of a dataset among those that its split part lists, excluded ones included."""
    numbers = {name: number for number, name in enumerate(samples.index.shards)}
    places = np.full(len(numbers), -1, np.int64)
    for place, name in enumerate(samples.input.listed):
        if name in numbers:
            places[numbers[name]] = place
    return places


class _Report:
    def __init__(self, progress: Callable[[int, int], None] | None, total: int) -> None:
        self._progress, self._total, self._done = progress, total, 0

    def advance(self, keys: int) -> None:
        self._done = min(self._done + keys, self._total)
        if self._progress is not None:
            self._progress(self._done, self._total)


def _attempt(
    samples: JoinedMembers, target: Path | None, report: _Report, memory_bytes: int, seed: int, bits: int
) -> JoinIndex:
    primary = primary_of(samples)
    name = name_of(samples)
    with contextlib.ExitStack() as stack:
        folder = None if target is None else stack.enter_context(new_join_folder(target, name))
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=".tmp_join_", dir=target)))
        by_key: dict[int, KeyedSamples] = {}
        by_row: dict[int, JoinedArray] = {}
        for number, each in enumerate(samples[1:], 1):
            if isinstance(each, JoinedSamples):
                by_key[number] = each
            elif each.input.keys is not None:
                by_key[number] = each.keyed(scratch)
            else:
                by_row[number] = each
        largest = max((each.total for each in by_key.values()), default=0)
        matching = Matching(
            primary, largest, scratch, memory_bytes=memory_bytes, seed=seed, bits=bits, progress=report.advance
        )
        for other in by_key.values():
            matching.look_up(other)
        writer = JoinRowsWriter(len(samples), folder)
        missing = _Missing(samples)
        for matched in matching.rows(list(by_key.values())):
            rows = np.empty((len(matched), len(samples)), np.int64)
            rows[:, [0, *by_key]] = matched
            for number, array in by_row.items():
                rows[:, number] = array.rows_of(matched[:, 0])
            writer.append(missing.take(rows))
        rows, checksum, block_sums = writer.close()
        missing.check(writer.rows)
        header = JoinHeader(
            members=[each.describe(count) for each, count in zip(samples, missing.counts, strict=True)],
            rows=writer.rows,
            skipped=len(primary) - writer.rows,
            checksum=checksum,
            block_sums=block_sums,
        )
        if folder is not None:
            write_join_header(folder, header)
    if target is None:
        assert rows is not None
        return JoinIndex(rows=rows, header=header)
    index = open_join_index(join_folder(target, name))
    datasets = only_datasets(samples)
    if datasets is not None:
        write_energon_form(target / index_file_name(name), datasets, index.rows)
    index.release()
    return index


class _Missing:
    """Does to rows without a match what `nonmatch` says."""

    def __init__(self, samples: JoinedMembers) -> None:
        self._samples = samples
        self.counts = [0] * len(samples)
        self._first: list[list[int]] = [[] for _ in samples]

    def take(self, rows: Int64Array) -> Int64Array:
        """Leave out rows that a dataset with `skip` lacks, and count what is missing in the others."""
        keep = np.ones(len(rows), np.bool_)
        for number, each in enumerate(self._samples):
            if each.input.nonmatch == "skip":
                keep &= rows[:, number] >= 0
        rows = rows if keep.all() else rows[keep]
        for number, each in enumerate(self._samples):
            places = np.flatnonzero(rows[:, number] < 0)
            self.counts[number] += len(places)
            first = self._first[number]
            if each.input.nonmatch == "error" and len(first) < _LISTED:
                first.extend(rows[places[: _LISTED - len(first)], 0].tolist())
        return rows

    def check(self, rows: int) -> None:
        """Raise if something is missing that may not be, or if nothing is left."""
        primary = primary_of(self._samples)
        for each, count, first in zip(self._samples, self.counts, self._first, strict=True):
            if each.input.nonmatch == "error" and count:
                by_row = isinstance(each, JoinedArray) and each.input.keys is None
                named = [f"{primary.key(sample)!r}{f' (sample {sample})' if by_row else ''}" for sample in first]
                what, lacking = ("samples", "have no row") if by_row else ("keys", "are not")
                raise ConfigError(
                    f"{count} of {len(primary)} {what} of {primary.label} {lacking} in {each.label}: {', '.join(named)}"
                    f"{', …' if count > len(first) else ''}. Complete it, or say at this "
                    f"{'array' if isinstance(each, JoinedArray) else 'dataset'} `nonmatch: skip` (rows without it are "
                    "left out) or `nonmatch: none` (None takes its place)"
                )
        if not rows:
            skipping = " and ".join(each.label for each in self._samples if each.input.nonmatch == "skip")
            raise EmptyDatasetError(
                f"no key of {primary.label} ({len(primary)} samples) is in {skipping}, so that the join has no "
                "row; do both name their samples alike, and are these the right split parts?"
            )
