"""One dataset that takes part in a join: which of its samples, and where they lie."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from energon_grain.errors import DuplicateKeyError
from energon_grain.formats.columnar import ColumnarIndex, open_columnar
from energon_grain.formats.data_folder import DataFolder, naming, open_folder
from energon_grain.formats.dataset_config import DEFAULT_DATASET_CONFIG, read_dataset_config
from energon_grain.formats.join_rows import JoinedMember, shards_digest
from energon_grain.formats.key_order import KeyWords
from energon_grain.formats.nv_meta import META_FOLDER, read_info, read_uuid
from energon_grain.formats.splits import DEFAULT_SPLIT_CONFIG, read_split_config, select_shards

Int64Array = npt.NDArray[np.int64]
Nonmatch = Literal["error", "skip", "none"]

_WINDOW_BYTES = 32 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class JoinInput:
    """A dataset of a join.

    Attributes:
        folder: Where the dataset lies.
        split_part: Name of the split part.
        listed: Shards that the part lists, in order, those included that are excluded.
        shards: Those that remain.
        excluded: (shard, key) of samples of these that are left out.
        energon_excludes: Excludes of the whole split file that Energon takes for samples (those with a `/`).
        nonmatch: What happens to a row whose key this dataset lacks. The first dataset has `error`.
        written: The path as it is shown and compared: relative to the metadataset's folder, say.
    """

    folder: DataFolder
    split_part: str
    listed: tuple[str, ...]
    shards: tuple[str, ...]
    excluded: tuple[tuple[str, str], ...] = ()
    energon_excludes: tuple[str, ...] = ()
    nonmatch: Nonmatch = "error"
    written: str = ""

    @property
    def root(self) -> Path:
        """The folder of this machine with `.nv-meta`."""
        return self.folder.local

    @property
    def excludes(self) -> tuple[str, ...]:
        """Everything of the part that is left out, shards and `<shard>/<key>`, sorted."""
        kept = set(self.shards)
        whole = {shard for shard in self.listed if shard not in kept}
        return tuple(sorted(whole | {f"{shard}/{key}" for shard, key in self.excluded}))

    @property
    def label(self) -> str:
        """How messages call it."""
        return f"{self.folder.location} [{self.split_part}]"


def read_join_input(
    path: str | os.PathLike[str],
    split_part: str,
    *,
    split_config: str | None = None,
    dataset_config: str | None = None,
    nonmatch: Nonmatch = "error",
    written: str | None = None,
) -> JoinInput:
    """Read which samples of a dataset a join takes.

    Args:
        path: A prepared dataset, a path or a URL.
        split_part: Its split part, unless its `dataset.yaml` insists on another.
        split_config: Name of its split file; default: what `dataset.yaml` says, else `split.yaml`.
        dataset_config: Name of its `dataset.yaml`, which may be missing.
        nonmatch: As in `JoinInput`.
        written: As in `JoinInput`; default: the path.

    Raises:
        DatasetNotFoundError: `path` is not prepared.
        SplitError: There is no such split part, or it lists shards that the dataset does not have.
        EmptyDatasetError: Nothing is left of the split part.
        DuplicateKeyError: The split part lists a shard twice.
    """
    folder = open_folder(path)
    with naming(folder):
        return _read(folder, split_part, split_config, dataset_config, nonmatch, written)


def _read(
    folder: DataFolder,
    split_part: str,
    split_config: str | None,
    dataset_config: str | None,
    nonmatch: Nonmatch,
    written: str | None,
) -> JoinInput:
    root = folder.local
    info = read_info(root)
    name = dataset_config or DEFAULT_DATASET_CONFIG
    if (root / META_FOLDER / name).exists():
        config = read_dataset_config(root, name)
        split_config, split_part = split_config or config.split_config, config.split_part or split_part
    splits = read_split_config(root, split_config or DEFAULT_SPLIT_CONFIG, shards=info.shard_counts)
    selected = select_shards(splits, split_part, info)
    if len(set(selected.shards)) < len(selected.shards):
        twice = next(shard for shard in selected.shards if selected.shards.count(shard) > 1)
        raise DuplicateKeyError(
            f"{root}: split part {split_part!r} lists {twice} more than once, so that its keys are not unique; "
            "a dataset that is joined must list each shard once"
        )
    return JoinInput(
        folder=folder,
        split_part=split_part,
        listed=splits.split_parts[split_part],
        shards=selected.shards,
        excluded=selected.excluded_samples,
        energon_excludes=tuple(dict.fromkeys(exclude for exclude in splits.exclude if "/" in exclude)),
        nonmatch=nonmatch,
        written=folder.location if written is None else written,
    )


class JoinedSamples:
    """The samples of a `JoinInput`, ranked in the order of its shards.

    Attributes:
        input: The dataset.
        index: Its columnar index.
        shards: (s,) number of each shard.
        first: (s + 1,) rank of the first sample of each shard; the last entry is the number of ranks.
        left_out: Ranks of excluded samples, ascending.
    """

    def __init__(self, member: JoinInput) -> None:
        self.input = member
        self.index: ColumnarIndex = open_columnar(member.folder)
        self._words = KeyWords(self.index.key_start, self.index.key_bytes)
        numbers = {name: number for number, name in enumerate(self.index.shards)}
        self.shards = np.array([numbers[name] for name in member.shards], np.int64)
        counts = self.index.shard_first[self.shards + 1] - self.index.shard_first[self.shards]
        self.first = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        shifts = np.unique(self.index.shard_first[self.shards] - self.first[:-1])
        self._shift = int(shifts[0]) if len(shifts) == 1 else None  # one where the shards follow each other
        self._rank_of_shard = np.full(len(self.index.shards), -1, np.int64)
        self._rank_of_shard[self.shards] = self.first[:-1]
        excluded = [sample for shard, key in member.excluded for sample in self._find(numbers[shard], key)]
        self.left_out = np.unique(self.ranks_of(np.array(excluded, np.int64)))
        self.release()

    @property
    def words(self) -> KeyWords:
        """The keys of the whole dataset, by sample. Raises IndexFileError when its index is damaged anywhere."""
        self.index.check()
        return self._words

    @property
    def identity(self) -> tuple[str, str, Sequence[str], Sequence[str], str]:
        """What the name of a join is made of: see `formats.join_index.join_name`."""
        member = self.input
        return self.index.content_id, member.split_part, member.listed, member.excludes, member.nonmatch

    @property
    def label(self) -> str:
        """How messages call it."""
        return self.input.label

    @property
    def instead_of_renaming(self) -> str:
        """What else can be done about samples with the same key."""
        return ", or exclude all but one of each in the split file"

    @property
    def total(self) -> int:
        """Number of ranks, excluded samples included."""
        return int(self.first[-1])

    def __len__(self) -> int:
        return self.total - len(self.left_out)

    def samples_at(self, ranks: Int64Array) -> Int64Array:
        """Number in the whole dataset of the sample of each rank."""
        if self._shift is not None:
            return ranks + self._shift
        place = np.searchsorted(self.first, ranks, side="right") - 1
        return ranks - self.first[place] + self.index.shard_first[self.shards[place]]

    def ranks_of(self, samples: Int64Array) -> Int64Array:
        """Rank of each sample of the dataset, -1 outside of the part. Excluded samples have a rank."""
        shard = self.index.shard_of(samples)
        start = self._rank_of_shard[shard]
        return np.where(start < 0, -1, samples - self.index.shard_first[shard] + start)

    def ranks(self, begin: int, end: int) -> Int64Array:
        """The ranks [begin, end) without excluded ones."""
        ranks = np.arange(begin, min(end, self.total), dtype=np.int64)
        low, high = np.searchsorted(self.left_out, [begin, end])
        return np.delete(ranks, self.left_out[low:high] - begin) if high > low else ranks

    def blocks(self, rows: int) -> Iterator[Int64Array]:
        """All ranks in order, `rows` at a time at most, without excluded ones. Releases the index in between."""
        for begin in range(0, self.total, rows):
            yield self.ranks(begin, begin + rows)
            self.release()

    def windows(self, samples: Int64Array, window_bytes: int = _WINDOW_BYTES) -> Iterator[Int64Array]:
        """Cut samples in any order into pieces that lie close together, and release the index after each.

        Looking 1,000 samples up at random places of an index makes 64 MiB of it resident, at each 64 KiB.

        Args:
            samples: (n,) numbers in the whole dataset.
            window_bytes: About how much of the index a piece covers.

        Returns:
            Places in `samples`, each in one piece.
        """
        index = self.index
        index_bytes = index.key_start.nbytes + index.key_bytes.nbytes + index.sample_start.nbytes
        for piece in close_together(samples, len(index), index_bytes, window_bytes):
            yield piece
            self.release()

    def release(self) -> None:
        """Give back the memory of the parts of the index that were read."""
        self.index.release()

    def key(self, sample: int) -> str:
        """The key of a sample."""
        return self.index.key(sample)

    def where(self, sample: int) -> str:
        """The shard that a sample lies in."""
        return self.index.shards[int(self.index.shard_of(np.array([sample]))[0])]

    def describe(self, missing: int = 0) -> JoinedMember:
        """What the header of a join says of this dataset."""
        member = self.input
        return JoinedMember(
            path=member.written,
            split_part=member.split_part,
            content_id=self.index.content_id,
            uuid=read_uuid(member.root),
            samples=len(self.index),
            shards=shards_digest(member.listed),
            excludes=list(member.excludes),
            nonmatch=member.nonmatch,
            missing=missing,
        )

    def _find(self, shard: int, key: str) -> list[int]:
        """Samples of a shard with this key: none or one, but where keys repeat."""
        first, last = int(self.index.shard_first[shard]), int(self.index.shard_first[shard + 1])
        sample = self.index.find(key)
        if sample is None or first <= sample < last:
            return [] if sample is None else [sample]
        return [first + place for place, other in enumerate(self.index.keys(np.arange(first, last))) if other == key]


def close_together(
    samples: Int64Array, count: int, index_bytes: int, window_bytes: int = _WINDOW_BYTES
) -> Iterator[Int64Array]:
    """Cut samples in any order into pieces that lie close together.

    Args:
        samples: (n,) numbers below `count`.
        count: Number of samples that there are.
        index_bytes: What their index takes.
        window_bytes: About how much of the index a piece covers.

    Returns:
        Places in `samples`, each in one piece.
    """
    borders = index_bytes // window_bytes
    if not borders:
        yield np.arange(len(samples))
        return
    order = np.argsort(samples)
    limits = np.arange(1, borders + 1) * (count // (borders + 1))
    yield from (piece for piece in np.split(order, np.searchsorted(samples[order], limits)) if len(piece))
