"""Building the index of a join, from datasets and arrays, or from one that Energon built."""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from energon_grain.errors import ConfigError, DatasetNotFoundError, EmptyDatasetError, IndexFileError
from energon_grain.formats.columnar_header import ColumnWriter, read_column, release_pages
from energon_grain.formats.join_index import (
    energon_join_names,
    index_file_name,
    join_name,
    read_join_index,
    write_join_index,
)
from energon_grain.formats.join_rows import (
    JoinedMember,
    JoinHeader,
    JoinIndex,
    JoinRowsWriter,
    join_folder,
    new_join_folder,
    open_join_index,
    write_join_header,
    writing_joins,
)
from energon_grain.formats.key_order import KeyWords
from energon_grain.formats.nv_meta import read_uuid
from energon_grain.prepare.join_input import JoinedSamples, JoinInput, Nonmatch, close_together
from energon_grain.prepare.join_match import HashCollision, KeyedSamples, Matching, keys_agree
from energon_grain.sources.arrays import ArraySource
from energon_grain.storage.location import is_url, located
from energon_grain.storage.read_whole import read_whole

_BLOCK_BYTES = 16 << 20
_LINE_FEED, _CARRIAGE_RETURN = 10, 13
Int64Array = npt.NDArray[np.int64]
JOIN_MEMORY_BYTES = 256 << 20
_LISTED = 5
_BLOCK_ROWS = 1 << 18
_HASH_BITS = (64, 64, 64, 64)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class KeyLines:
    """The lines of a file, one after the other without their ends; mapped from a temporary file where they are many.

    Attributes:
        start: (n + 1,) where each begins.
        data: All of them.
    """

    start: npt.NDArray[np.int64]
    data: npt.NDArray[np.uint8]

    def __len__(self) -> int:
        return len(self.start) - 1

    def line(self, number: int) -> str:
        """A line, counted from 0; bytes that are not UTF-8 become surrogates, as in names of tar members."""
        return self.data[self.start[number] : self.start[number + 1]].tobytes().decode("utf-8", "surrogateescape")


def read_key_lines(path: Path, scratch: Path, *, block_bytes: int = _BLOCK_BYTES) -> KeyLines:
    """Read the lines of a file, which end with LF or CR LF; the last one may lack its end.

    Takes about 12 bytes of memory for each of `block_bytes`, whatever the size of the file.

    Args:
        path: The file.
        scratch: A folder for what does not stay in memory: 8 bytes a line, and the lines.
        block_bytes: Read at once.
    """
    folder = Path(tempfile.mkdtemp(dir=scratch))
    starts, data = ColumnWriter(folder / "start", np.int64), ColumnWriter(folder / "data", np.uint8)
    starts.append(np.zeros(1, np.int64))
    held, ended = b"", True
    with open(path, "rb") as file:
        while block := file.read(block_bytes):
            ended = block.endswith(b"\n")
            block = held + block
            held = b"\r" if block.endswith(b"\r") else b""  # an LF may come next
            _append(block[: len(block) - len(held)], starts, data)
    if not ended:
        _append(held + b"\n", starts, data)
    starts.close()
    data.close()
    return KeyLines(
        start=read_column(folder / "start", np.int64, starts.rows, block_sums=starts.block_sums),
        data=read_column(folder / "data", np.uint8, data.rows, block_sums=data.block_sums),
    )


def _append(block: bytes, starts: ColumnWriter, data: ColumnWriter) -> None:
    found = np.frombuffer(block, np.uint8)
    line_feed = found == _LINE_FEED
    kept = ~line_feed
    kept[:-1] &= ~((found[:-1] == _CARRIAGE_RETURN) & line_feed[1:])
    starts.append(data.rows + np.cumsum(kept)[line_feed])
    data.append(found[kept])


@dataclass(frozen=True, kw_only=True, slots=True)
class JoinArray:
    """An array of a join.

    Attributes:
        path: The array's folder, or its URL.
        keys: A text file, or its URL, with the key of each row; None: row i belongs to sample i of the whole primary
            dataset, its shards in the order of its columnar index, whatever its split parts and excludes.
        nonmatch: What happens to a sample without a row.
        written: The path as it is shown and compared.
    """

    path: str | os.PathLike[str]
    keys: str | os.PathLike[str] | None = None
    nonmatch: Nonmatch = "error"
    written: str = ""


JoinInputs: TypeAlias = Sequence[JoinInput | JoinArray]
"""The primary, which is a dataset, then the others."""


class JoinedArray:
    """The rows of a `JoinArray`, counted through.

    Attributes:
        input: The array.
        source: Its rows.

    Raises:
        DatasetNotFoundError: There is no array, or no file with keys.
        ConfigError, FormatError, EmptyDatasetError: As `ArraySource`.
    """

    def __init__(self, member: JoinArray) -> None:
        self.input = member
        self.source = ArraySource(member.path)
        self._content_id = self.source.content_id
        if member.keys is not None:
            self._content_id += f"-{_digest(located(member.keys))}"

    @property
    def identity(self) -> tuple[str, str, Sequence[str], Sequence[str], str]:
        """What the name of a join is made of: see `formats.join_index.join_name`."""
        return self._content_id, "", (), (), self.input.nonmatch

    @property
    def total(self) -> int:
        """Number of keys to go through."""
        return 0 if self.input.keys is None else len(self.source)

    @property
    def label(self) -> str:
        """How messages call it."""
        return f"{self.input.path} ({len(self.source)} rows)"

    def rows_of(self, samples: Int64Array) -> Int64Array:
        """The row of each sample of the primary by its number, -1 where the array has none."""
        return np.where(samples < len(self.source), samples, -1)

    def keyed(self, scratch: Path) -> ArrayKeys:
        """Read the keys of the rows.

        Raises:
            ConfigError: There are more or fewer than rows.
        """
        assert self.input.keys is not None
        keys = located(self.input.keys)
        file = Path(keys)
        if is_url(keys):
            file = scratch / f"keys_{self._content_id}"
            file.write_bytes(read_whole(keys))
        lines = read_key_lines(file, scratch)
        if len(lines) != len(self.source):
            raise ConfigError(
                f"{keys}: has {len(lines)} lines, but {self.input.path} has {len(self.source)} rows; there "
                "must be one line with a key for each row, in the same order"
            )
        return ArrayKeys(keys, lines)

    def describe(self, missing: int = 0) -> JoinedMember:
        """What the header of a join says of this array."""
        return JoinedMember(
            path=self.input.written,
            split_part="",
            content_id=self._content_id,
            samples=len(self.source),
            shards="",
            excludes=[],
            nonmatch=self.input.nonmatch,
            missing=missing,
            array="row" if self.input.keys is None else "key",
        )


class ArrayKeys:
    """The keys of an array's rows, as `join_match.KeyedSamples`: a sample is a row."""

    instead_of_renaming = ""

    def __init__(self, location: str, lines: KeyLines) -> None:
        self.label = location
        self.words = KeyWords(lines.start, lines.data)
        self._lines = lines

    @property
    def total(self) -> int:
        """Number of rows."""
        return len(self._lines)

    def key(self, sample: int) -> str:
        """The key of a row."""
        return self._lines.line(sample)

    def where(self, sample: int) -> str:
        """Where the key of a row stands."""
        return f"line {sample + 1}"

    def samples_at(self, ranks: Int64Array) -> Int64Array:
        """Rows are ranked as they lie."""
        return ranks

    def blocks(self, rows: int) -> Iterator[Int64Array]:
        """All rows in order, `rows` at a time at most."""
        for begin in range(0, self.total, rows):
            yield np.arange(begin, min(begin + rows, self.total), dtype=np.int64)
            self.release()

    def windows(self, samples: Int64Array) -> Iterator[Int64Array]:
        """Cut rows in any order into pieces that lie close together; see `join_input.close_together`."""
        for piece in close_together(samples, self.total, self._lines.start.nbytes + self._lines.data.nbytes):
            yield piece
            self.release()

    def release(self) -> None:
        """Give back the memory of the keys that were read."""
        release_pages(self._lines.start)
        release_pages(self._lines.data)


JoinedMembers: TypeAlias = Sequence[JoinedSamples | JoinedArray]
"""`JoinInputs`, opened."""


def open_inputs(members: JoinInputs) -> list[JoinedSamples | JoinedArray]:
    """Open the datasets and arrays of a join."""
    return [JoinedArray(member) if isinstance(member, JoinArray) else JoinedSamples(member) for member in members]


def primary_of(members: JoinedMembers) -> JoinedSamples:
    """The first of a join.

    Raises:
        ConfigError: There is none, it is an array, or it has a mode of its own.
    """
    if not members:
        raise ConfigError("a join needs at least one dataset")
    primary = members[0]
    if isinstance(primary, JoinedArray):
        raise ConfigError(f"{primary.label}: an array cannot be the primary of a join; put a dataset before it")
    if primary.input.nonmatch != "error":
        raise ConfigError(
            f"{primary.label}: is the primary of the join, whose keys are looked up in the others; "
            f"nonmatch={primary.input.nonmatch!r} has no meaning for it"
        )
    return primary


def only_datasets(members: JoinedMembers) -> list[JoinedSamples] | None:
    """The members of a join, or None where there is an array among them."""
    datasets = [member for member in members if isinstance(member, JoinedSamples)]
    return datasets if len(datasets) == len(members) else None


def _digest(location: str) -> str:
    try:
        if is_url(location):
            return hashlib.blake2b(read_whole(location), digest_size=8).hexdigest()
        with open(location, "rb") as file:
            return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=8)).hexdigest()
    except (FileNotFoundError, IsADirectoryError) as error:
        raise DatasetNotFoundError(
            f"{location}: here must be a text file with one key a line: {error.strerror or 'there is none'}"
        ) from error


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
