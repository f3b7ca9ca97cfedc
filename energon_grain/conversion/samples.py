"""The samples of one shard from its first to its last, with their parts in the order of the shard."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from contextlib import closing

import numpy as np

from energon_grain.errors import FormatError
from energon_grain.formats.columnar import open_columnar
from energon_grain.formats.data_folder import DataFolder, open_folder
from energon_grain.sources.prepared import open_prepared

_AT_ONCE = 4096
_AT_ONCE_BYTES = 16 << 20

Sample = tuple[str, Mapping[str, bytes]]
"""Key, and payload by part."""


class UnfitSampleError(FormatError):
    """A container cannot hold a sample. Says which sample, not of which shard."""


def shard_samples(path: str | os.PathLike[str] | DataFolder, shard: str) -> Iterator[Sample]:
    """Read a shard, about 32 MiB at a time. A part that a sample has twice comes once, the later one.

    Raises:
        UnfitSampleError: A part is not bytes but numbers, as features of a `tf.train.Example` may be.
    """
    folder = open_folder(path)
    index = open_columnar(folder)
    first = int(index.shard_first[index.shards.index(shard)])
    with closing(open_prepared(folder, shards=[shard])) as source:
        done = 0
        while done < len(source):
            block = np.arange(done, min(done + _AT_ONCE, len(source)))
            block = block[: max(1, int(np.searchsorted(np.cumsum(source.sizes(block)), _AT_ONCE_BYTES, side="right")))]
            batch = source.read(block)
            index.check(first + block)
            starts = index.part_start[first + done : first + done + len(block) + 1].tolist()
            names = index.part_name[starts[0] : starts[-1]].tolist()
            for place, key in enumerate(batch.keys):
                own = names[starts[place] - starts[0] : starts[place + 1] - starts[0]]
                parts: dict[str, bytes] = {}
                for part in map(index.part_names.__getitem__, own):
                    value = batch.columns[part][place]
                    if not isinstance(value, bytes):
                        raise UnfitSampleError(
                            f"sample {key!r}: the part {part!r} holds numbers; only bytes can be written to files of "
                            f"another kind"
                        )
                    parts[part] = value
                yield key, parts
            done += len(block)


class SampleDigest:
    """Digest over key and parts, in order, of one sample after the other."""

    def __init__(self) -> None:
        self._hash = hashlib.blake2b(digest_size=16)
        self.samples = 0

    def add(self, key: str, parts: Mapping[str, bytes]) -> None:
        """Take in a sample."""
        told = [key.encode("utf-8", "surrogateescape")]
        for name, value in parts.items():
            told += [name.encode("utf-8", "surrogateescape"), value]
        lengths = np.array([len(told), *map(len, told)], "<u8")
        self._hash.update(lengths.tobytes())
        for text in told:
            self._hash.update(text)
        self.samples += 1

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SampleDigest) and (self.samples, self._hash.digest()) == (
            other.samples,
            other._hash.digest(),
        )

    __hash__ = None  # type: ignore[assignment]
