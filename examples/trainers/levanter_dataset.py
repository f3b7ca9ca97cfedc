"""Levanter: an `AsyncDataset` over our samples.

Levanter shuffles, mixes and counts the samples. Its checkpoint holds only the step.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from levanter.data.dataset import AsyncDataset

from energon_grain.loader import EnergonDataSource


class EnergonAsyncDataset(AsyncDataset[Any]):
    """The decoded samples of a prepared dataset, by index. Each batch is one read.

    Args:
        path: Prepared dataset.
        encode: Makes an item from a sample, for example an `LmExample`.
        **options: Options of `EnergonDataSource`.
    """

    def __init__(self, path: str, encode: Callable[[Any], Any] = lambda sample: sample, **options: Any) -> None:
        super().__init__()
        self._samples = EnergonDataSource(path, **options)
        self._encode = encode

    async def async_len(self) -> int:
        return len(self._samples)

    def is_finite(self) -> bool:
        return True

    # The newest Levanter (in Marin's repository) does not call the next two methods.
    async def final_length_is_known(self) -> bool:
        return True

    async def current_len(self) -> int:
        return len(self._samples)

    async def get_batch(self, indices: Sequence[int]) -> Sequence[Any]:
        """Return the samples in the order of `indices`.

        Raises:
            ValueError: A sample does not decode. Levanter does not support missing samples.
        """
        samples = await asyncio.to_thread(self._samples.__getitems__, indices)
        broken = [index for index, sample in zip(indices, samples, strict=True) if sample is None]
        if broken:
            raise ValueError(f"samples {broken} of {self._samples!r} do not decode: {self._samples.stats()}")
        return [self._encode(sample) for sample in samples]
