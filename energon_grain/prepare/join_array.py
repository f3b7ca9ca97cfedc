"""One array that takes part in a join: which of its rows belongs to which sample."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from energon_grain.errors import ConfigError, DatasetNotFoundError
from energon_grain.formats.columnar_header import release_pages
from energon_grain.formats.join_rows import JoinedMember
from energon_grain.formats.key_order import KeyWords
from energon_grain.prepare.join_input import JoinedSamples, JoinInput, Nonmatch, close_together
from energon_grain.prepare.key_lines import KeyLines, read_key_lines
from energon_grain.sources.arrays import ArraySource
from energon_grain.storage.location import is_url, located
from energon_grain.storage.read_whole import read_whole

Int64Array = npt.NDArray[np.int64]


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
