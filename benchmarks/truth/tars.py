"""The data of a history: tars of numbered samples; needs only the standard library."""

from __future__ import annotations

import io
import tarfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.truth.adapter import Dataset

HEAD = 16
LONGEST = 32  # tokens of the longest sample


def tokens_of(dataset: int, number: int) -> int:
    """Return the length of a sample in tokens, 1 to `LONGEST`: fixed by its place, so that pieces can be summed."""
    return 1 + zlib.crc32(b"%d/%d" % (dataset, number)) % LONGEST


def text_of(dataset: int, number: int) -> bytes:
    """Return the part `.txt` of a sample, which `Sample.of` reads: `HEAD` bytes, and one more for each token.

    So loaders that plan by the sizes of parts know the tokens of a sample before they read it.
    """
    tokens = tokens_of(dataset, number)
    return (b"%d %d %d" % (dataset, number, tokens)).ljust(HEAD + tokens)


def shard_ranges(dataset: Dataset) -> Iterator[tuple[int, int]]:
    """Yield the first number of each shard, and the one after its last."""
    each, more = divmod(dataset.samples, dataset.shards)
    first = 0
    for shard in range(dataset.shards):
        end = first + each + (shard < more)
        yield first, end
        first = end


def write(folder: Path, datasets: Sequence[Dataset]) -> None:
    """Write the tars of the datasets of one history."""
    for index, dataset in enumerate(datasets):
        (folder / dataset.name).mkdir(parents=True)
        for shard, (first, end) in enumerate(shard_ranges(dataset)):
            with tarfile.open(folder / dataset.name / f"shard-{shard:03d}.tar", "w") as tar:
                for number in range(first, end):
                    body = text_of(index, number)
                    member = tarfile.TarInfo(f"{number:06d}.txt")
                    member.size = len(body)
                    tar.addfile(member, io.BytesIO(body))


def members(tar: Path) -> Iterator[bytes]:
    """Yield the parts `.txt` of a tar, in their order."""
    with tarfile.open(tar) as file:
        for member in file:
            extracted = file.extractfile(member)
            if extracted is not None:
                yield extracted.read()
