"""Task encoders that tests and actors import."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np

from energon_grain import DefaultTaskEncoder, SampleDecoder, SkipSample, TaskEncoder, current_draw


class Noisy(TaskEncoder):
    """Uses random numbers, drops samples, fails on some, and returns arrays that are large enough to stay in files."""

    __default_failure_tolerance__ = 0

    def encode_sample(self, sample: Any) -> Any:
        number = int(sample.__key__)
        if number % 11 == 4:
            raise ValueError(f"hook of {number}")
        if self.rng.random() < 0.2:
            raise SkipSample
        return {
            "key": sample.__key__,
            "pass": current_draw().epoch,
            "noise": self.rng.standard_normal(3),
            "large": np.full(9_000, number, np.float32),
        }


class Arrays(TaskEncoder):
    """Returns large arrays. Nothing is dropped, so workers make the batches."""

    def encode_sample(self, sample: Any) -> Any:
        return {"key": sample.__key__, "large": np.full(9_000, int(sample.__key__), np.float32)}


class Packing(Noisy):
    """Packs what `Noisy` leaves."""

    def select_samples_to_pack(self, samples: list[Any]) -> list[list[Any]]:
        return [samples[at : at + 3] for at in range(0, len(samples), 3)]

    def pack_selected_samples(self, samples: list[Any]) -> Any:
        return {"keys": [sample["key"] for sample in samples], "sum": sum(sample["large"] for sample in samples)}


class Gated(TaskEncoder):
    """Waits while a file exists."""

    def __init__(self, gate: Path) -> None:
        self.gate = gate

    def encode_sample(self, sample: Any) -> Any:
        while self.gate.exists():
            time.sleep(0.01)
        return sample


class Frames(DefaultTaskEncoder):
    """Decodes the frames of videos, and returns them shuffled."""

    decoder = SampleDecoder(image_decode="rgb8", av_decode="AVDecoder")

    def encode_sample(self, sample: Any) -> Any:
        frames = sample.video.get_video_clips([(0, 0.9)])[0][0]
        return {"key": sample.__key__, "frames": np.asarray(frames)[self.rng.permutation(len(frames))]}


class Sleepy(TaskEncoder):
    """Waits as for a service."""

    def encode_sample(self, sample: Any) -> Any:
        time.sleep(0.005)
        return {"key": sample.__key__}
