"""Encoders that write down what is called, and a dataset for them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from small_graphs import number
from stream_hosts import config

from energon_grain import (
    Cooker,
    CrudeSample,
    SavableDataset,
    TaskEncoder,
    TextSample,
    basic_sample_keys,
    get_train_dataset,
)


def train(path: Path, encoder: TaskEncoder, **options: Any) -> SavableDataset:
    arguments: dict[str, Any] = {
        "batch_size": 2,
        "shuffle_buffer_size": None,
        "max_samples_per_sequence": None,
        "shuffle_over_epochs_multiplier": None,
        "repeat": False,
        "lanes": 1,
        "worker_config": config(),
    }
    return get_train_dataset(path, task_encoder=encoder, **{**arguments, **options})


def cook(sample: CrudeSample) -> TextSample:
    return TextSample(**basic_sample_keys(sample), text=sample["txt"][:4])


class Logs(TaskEncoder):
    """Writes down every call of a hook; `trouble` may raise in any of them, with the numbers of its samples."""

    cookers = (Cooker(cook),)

    def __init__(self, trouble: Callable[[str, list[int]], None] = lambda hook, numbers: None) -> None:
        self.log: list[tuple[str, list[int]]] = []
        self.trouble = trouble

    def note(self, hook: str, samples: list[Any]) -> None:
        numbers = [int(sample["__key__"] if isinstance(sample, dict) else sample.__key__) for sample in samples]
        self.log.append((hook, numbers))
        self.trouble(hook, numbers)

    def cook_crude_sample(self, sample: Any, cooker: Cooker, aux: dict[str, Any]) -> Any:
        assert isinstance(sample, CrudeSample)
        assert isinstance(sample["txt"], str)
        self.note("cook_crude_sample", [sample])
        return super().cook_crude_sample(sample, cooker, aux)

    def batch(self, samples: list[Any]) -> Any:
        self.note("batch", samples)
        return [int(sample.__key__) for sample in samples]

    def encode_batch(self, batch: Any) -> Any:
        self.log.append(("encode_batch", batch))
        self.trouble("encode_batch", batch)
        return batch


class Packs(Logs):
    def preencode_sample(self, sample: Any) -> Any:
        self.note("preencode_sample", [sample])
        return sample

    def select_samples_to_pack(self, samples: list[Any]) -> list[list[Any]]:
        self.note("select_samples_to_pack", samples)
        return [samples[at : at + 2] for at in range(0, len(samples), 2)]

    def postencode_sample(self, sample: Any) -> Any:
        self.note("postencode_sample", [sample])
        return sample

    def pack_selected_samples(self, samples: list[Any]) -> Any:
        self.note("pack_selected_samples", samples)
        return samples[0]


class Groups(Logs):
    def encode_sample(self, sample: Any) -> Any:
        self.note("encode_sample", [sample])
        return sample

    def postencode_sample(self, sample: Any) -> Any:
        self.note("postencode_sample", [sample])
        return sample

    def batch_group_criterion(self, sample: Any) -> tuple[int, None]:
        self.note("batch_group_criterion", [sample])
        return number(sample) % 2, None
