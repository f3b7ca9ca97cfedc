"""Read decoded JPEGs with captions, as a captioning task does."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from energon_grain import DefaultTaskEncoder, SampleDecoder, WorkerConfig, get_loader, get_train_dataset


class CaptionEncoder(DefaultTaskEncoder):
    """Images as (height, width, 3) uint8."""

    decoder = SampleDecoder(image_decode="rgb8")


@dataclass
class Reading:
    """The result of one pass."""

    every_tile_once: bool
    rate: float  # tiles per second over the whole pass


def read_photographs(path: Path, expected: int) -> Reading:
    """Read all tiles once in shuffled order. `expected` is the number of tiles."""
    dataset = get_train_dataset(
        path,
        worker_config=WorkerConfig(rank=0, world_size=1, num_workers=2),
        batch_size=16,
        shuffle_buffer_size=None,
        max_samples_per_sequence=None,
        repeat=False,
        task_encoder=CaptionEncoder(),
    )
    loader = get_loader(dataset)
    keys: list[str] = []
    start = time.perf_counter()
    for batch in loader:
        assert batch.image.shape[1:] == (128, 128, 3)
        assert all(batch.caption)
        keys += batch.__key__
    seconds = time.perf_counter() - start
    loader.close()
    return Reading(every_tile_once=sorted(keys) == [f"{n:06d}" for n in range(expected)], rate=len(keys) / seconds)
