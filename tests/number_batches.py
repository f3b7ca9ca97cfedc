"""A task encoder whose batches are arrays alone, so that anything can compare and send them."""

from __future__ import annotations

from typing import Any

import numpy as np

from energon_grain import DefaultTaskEncoder, SkipSample


class Numbers(DefaultTaskEncoder):
    """The number of each sample and a random number of its own."""

    def encode_sample(self, sample: Any) -> dict[str, Any]:
        return {"number": np.int64(sample.__key__), "noise": self.rng.random()}

    def batch(self, samples: list[Any]) -> dict[str, Any]:
        return {name: np.stack([sample[name] for sample in samples]) for name in samples[0]}


class Skipping(Numbers):
    """Every tenth sample is skipped."""

    def encode_sample(self, sample: Any) -> dict[str, Any]:
        if int(sample.__key__) % 10 == 7:
            raise SkipSample
        return super().encode_sample(sample)
