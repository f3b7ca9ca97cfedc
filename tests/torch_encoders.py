"""Task encoders of the tests of the PyTorch adapter, in a module that any worker process can import."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from energon_grain_torch import DefaultTaskEncoder, SkipSample, TaskEncoder, stateless


def told(value: Any) -> Any:
    """All that decides whether two batches are the same, as what can be compared and printed."""
    if isinstance(value, torch.Tensor | np.ndarray):
        return str(value.dtype), value.tolist()
    if isinstance(value, dict):
        return {key: told(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [told(entry) for entry in value]
    if dataclasses.is_dataclass(value):  # attributes that are no fields are in `vars` alone
        return told({field.name: getattr(value, field.name) for field in dataclasses.fields(value)} | vars(value))
    return told(vars(value)) if hasattr(value, "__dict__") else value


def number(sample: Any) -> int:
    """Of a sample of a text dataset."""
    return int(sample.__key__)


class Everything(DefaultTaskEncoder):
    """Tensors with random numbers of all kinds; skips some samples and fails on others."""

    __default_failure_tolerance__ = 0

    @stateless(restore_seeds=True)
    def encode_sample(self, sample: Any) -> dict[str, Any]:
        if number(sample) % 7 == 3:
            raise SkipSample
        if number(sample) % 11 == 5:
            raise ValueError("a bad sample")
        return {
            "__key__": sample.__key__,
            "__restore_key__": sample.__restore_key__,
            "text": sample.text,
            "own": torch.from_numpy(self.rng.random(2)),
            "seeded": torch.rand(2),
            "number": torch.tensor(number(sample)),
        }

    def encode_batch(self, batch: dict[str, Any]) -> dict[str, Any]:
        return {**batch, "of_batch": float(self.rng.random())}


class Several(TaskEncoder):
    """0, 1 or 2 samples of each."""

    def encode_sample(self, sample: Any) -> Iterator[Any]:
        for at in range(number(sample) % 3):
            yield {"key": sample.__key__, "at": at, "noise": torch.from_numpy(self.rng.random(3))}


class SkippingHooks:
    """Numbers at random, in numpy alone; for task encoders of any backend."""

    rng: np.random.Generator

    def encode_sample(self, sample: Any) -> Any:
        if number(sample) % 13 == 4:
            raise SkipSample
        return {"key": sample.__key__, "noise": self.rng.random(1)}

    def batch(self, samples: list[dict[str, Any]]) -> dict[str, Any]:
        return {name: [sample[name] for sample in samples] for name in samples[0]}


class PackingHooks(SkippingHooks):
    """Packs of one to three of them."""

    def select_samples_to_pack(self, samples: list[Any]) -> list[list[Any]]:
        groups: list[list[Any]] = []
        for sample in samples:
            if not groups or len(groups[-1]) > int(groups[-1][0]["key"]) % 3:
                groups.append([])
            groups[-1].append(sample)
        return groups

    def pack_selected_samples(self, samples: list[Any]) -> dict[str, Any]:
        return {"key": [sample["key"] for sample in samples], "noise": [sample["noise"] for sample in samples]}


class Skips(SkippingHooks, TaskEncoder):
    pass


class Packs(PackingHooks, TaskEncoder):
    pass


class Groups(TaskEncoder):
    """Batches of samples whose numbers leave the same rest."""

    def batch_group_criterion(self, sample: Any) -> tuple[int, int]:
        return number(sample) % 2, 3


class Slow(TaskEncoder):
    """Hooks that run for as long as a file says so: in all processes, or in that whose number it holds."""

    def __init__(self, flag: Path) -> None:
        self.flag = flag

    def encode_sample(self, sample: Any) -> Any:
        while self.flag.exists() and self.flag.read_text() in ("", str(os.getpid())):
            time.sleep(0.01)
        return sample
