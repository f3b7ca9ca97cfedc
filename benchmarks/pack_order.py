"""Measure how alike neighbouring packs are if a packer sorts by length: `python -m benchmarks.pack_order [LANES…]`.

Documents are packed from buffers of 100 by packers that sort them first, so the packs of a buffer range from those with
short documents to those with long ones; a variant groups by length instead. Printed, for the mean length of the
documents in a pack: the autocorrelation at some distances in the stream, and how much the mean over a batch varies,
relative to packs in random order.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
import typer

from benchmarks.child import program
from benchmarks.token_packing import BUFFER, CAPACITY, LENGTHS
from energon_grain import GroupBatchDataset, MapDataset, PackingDataset, SavableDataset, Stream, get_train_dataset
from energon_grain.testing import make_text_dataset

PACKS = 19_200
_DISTANCES = (1, 2, 8, 24, 47, 48, 96)
_BATCHES = (8, 48, 192)


def _tens(lengths: list[int]) -> list[list[int]]:
    ascending = sorted(lengths)
    return [ascending[at : at + 10] for at in range(0, len(ascending), 10)]


def _full(lengths: list[int]) -> list[list[int]]:
    packs: list[list[int]] = []
    available = 0
    for length in sorted(lengths):
        if length > available:
            packs.append([])
            available = CAPACITY
        packs[-1].append(length)
        available -= length
    return packs


FORMS: dict[str, Callable[[SavableDataset], SavableDataset]] = {
    "packs of ten": lambda documents: PackingDataset(documents, BUFFER, _tens, np.mean),
    f"packs of up to {CAPACITY} tokens": lambda documents: PackingDataset(documents, BUFFER, _full, np.mean),
    "groups of eight": lambda documents: GroupBatchDataset(documents, 8, lambda n: (n.bit_length(), None), np.mean),
}


def pack_lengths(path: Path, form: str, lanes: int) -> npt.NDArray[np.float64]:
    """Return the mean length of the documents in each of (PACKS,) packs of an endless stream."""
    lengths = LENGTHS["documents"]().tolist()

    def length(sample: Any) -> int:
        return lengths[int(sample.__key__)]

    texts = get_train_dataset(
        path, batch_size=None, shuffle_buffer_size=None, max_samples_per_sequence=None, lanes=lanes
    )
    with Stream.of(FORMS[form](MapDataset(texts, length))) as stream:
        return np.array([next(stream) for _ in range(PACKS)], np.float64)


def autocorrelation(values: npt.NDArray[np.float64], distance: int) -> float:
    """Return the correlation of the values that are `distance` apart."""
    return float(np.corrcoef(values[:-distance], values[distance:])[0, 1])


def spread_of_means(values: npt.NDArray[np.float64], batch: int) -> float:
    """Return the standard deviation of the means of consecutive batches; 1 is that of values in random order."""
    return float(values.reshape(-1, batch).mean(1).std() / (values.std() / np.sqrt(batch)))


def main(lanes: Annotated[list[int] | None, typer.Argument()] = None) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "documents"
        make_text_dataset(path, n=len(LENGTHS["documents"]()), text_bytes=20)
        for form in FORMS:
            for count in lanes or [48]:
                values = pack_lengths(path, form, count)
                near = "  ".join(f"{distance}: {autocorrelation(values, distance):+.2f}" for distance in _DISTANCES)
                means = "  ".join(f"{batch}: {spread_of_means(values, batch):.2f}" for batch in _BATCHES)
                print(f"{form}, {count} lanes")
                print(f"    autocorrelation at {near}\n    spread of the means of batches of {means}")


if __name__ == "__main__":
    program(main)
