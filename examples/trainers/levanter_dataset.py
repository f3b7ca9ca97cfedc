"""Levanter: an `AsyncDataset` of our samples.

Levanter shuffles, mixes and counts; its checkpoint holds the step alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from levanter.data.dataset import AsyncDataset

from energon_grain.loader import EnergonDataSource


class EnergonAsyncDataset(AsyncDataset[Any]):
    """The decoded samples of a prepared dataset, by index; a batch is one read.

    Args:
        path: The dataset.
        encode: Makes the item of a sample, for example a `LmExample`.
        **options: As in `EnergonDataSource`.
    """

    def __init__(self, path: str, encode: Callable[[Any], Any] = lambda sample: sample, **options: Any) -> None:
        super().__init__()
        self._samples = EnergonDataSource(path, **options)
        self._encode = encode

    async def async_len(self) -> int:
        return len(self._samples)

    def is_finite(self) -> bool:
        return True

    # The newest Levanter, in Marin's repository, calls neither of the following two.
    async def final_length_is_known(self) -> bool:
        return True

    async def current_len(self) -> int:
        return len(self._samples)

    async def get_batch(self, indices: Sequence[int]) -> Sequence[Any]:
        """The samples, in this order.

        Raises:
            ValueError: One of them does not decode: Levanter has no place for it to be missing.
        """
        samples = await asyncio.to_thread(self._samples.__getitems__, indices)
        broken = [index for index, sample in zip(indices, samples, strict=True) if sample is None]
        if broken:
            raise ValueError(f"samples {broken} of {self._samples!r} do not decode: {self._samples.stats()}")
        return [self._encode(sample) for sample in samples]
