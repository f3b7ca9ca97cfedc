from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from energon_grain import (
    EpochIndex,
    IdentityMultiEpochDatasetWrapper,
    MultiEpochDatasetResampler,
    MultiEpochDatasetWrapper,
    RawSample,
    WebDatasetSource,
)

MakeDataset = Callable[..., Path]


@dataclass
class Jitter(MultiEpochDatasetWrapper[int, tuple[int, float]]):
    """Adds noise."""

    scale: float

    def apply_transform(self, sample: int, index: EpochIndex) -> tuple[int, float]:
        assert sample == index.idx * 10
        return sample, float(self.rng(index).normal(scale=self.scale))


def test_a_wrapper_transforms() -> None:
    wrapper = Jitter(range(0, 1000, 10), 0.5)
    assert len(wrapper) == 100
    assert wrapper.seed == 42
    sample = wrapper[EpochIndex(3, 7)]
    assert sample == wrapper[EpochIndex(3, 7)] == pickle.loads(pickle.dumps(wrapper))[EpochIndex(3, 7)]
    assert sample == wrapper[EpochIndex(np.int64(3), np.int64(7))]  # type: ignore[arg-type]
    assert wrapper.__getitems__([EpochIndex(0, 1), EpochIndex(3, 7)]) == [wrapper[EpochIndex(0, 1)], sample]


def test_random_numbers_depend_on_seed_epoch_and_index() -> None:
    drawn = {
        Jitter(range(0, 1000, 10), 1.0, seed=seed)[EpochIndex(epoch, idx)]
        for seed in range(3)
        for epoch in range(3)
        for idx in range(3)
    }
    assert len({noise for _, noise in drawn}) == 27
    wrapper = Jitter(range(0, 1000, 10), 1.0, seed=-1)
    assert 0 <= wrapper.random_seed(EpochIndex(2**40, 2**40)) < 2**63
    assert wrapper.rng(EpochIndex(0, 0)).random() == wrapper.rng(EpochIndex(0, 0)).random()


def test_random_numbers_are_pinned() -> None:
    wrapper = IdentityMultiEpochDatasetWrapper(range(10))
    assert wrapper.random_seed(EpochIndex(1, 2)) == 0x4A83D87743E477CF
    assert wrapper.rng(EpochIndex(1, 2)).integers(0, 1000, 3).tolist() == [904, 395, 372]


def test_the_identity_gives_samples_as_they_are() -> None:
    samples = [object(), object()]
    wrapper = IdentityMultiEpochDatasetWrapper(samples)
    assert len(wrapper) == 2
    assert wrapper[EpochIndex(5, 1)] is samples[1]
    assert wrapper.__getitems__([]) == []


def test_apply_transform_must_be_there() -> None:
    with pytest.raises(TypeError, match="apply_transform"):
        MultiEpochDatasetWrapper(range(3))  # type: ignore[abstract]


@pytest.mark.parametrize("index", [3, (1, 2, 3), [0, 1], None, "01"], ids=repr)
def test_plain_numbers_are_refused(index: Any) -> None:
    with pytest.raises(TypeError, match="MultiEpochDatasetResampler"):
        IdentityMultiEpochDatasetWrapper(range(3))[index]


def test_plain_pairs_will_do() -> None:
    assert IdentityMultiEpochDatasetWrapper(range(3))[(4, 2)] == 2  # type: ignore[index]


@pytest.mark.parametrize("index", [EpochIndex(0, 3), EpochIndex(0, -1), EpochIndex(-1, 0)])
def test_indices_are_checked(index: EpochIndex) -> None:
    with pytest.raises(IndexError):
        IdentityMultiEpochDatasetWrapper(range(3))[index]


class Batched:
    """Counts its reads."""

    def __init__(self) -> None:
        self.asked: list[list[int]] = []

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> int:
        raise AssertionError("batches are read together")

    def __getitems__(self, indices: Sequence[int]) -> list[int]:
        self.asked.append(list(indices))
        return [index * 10 for index in indices]


def test_batches_are_read_together() -> None:
    dataset = Batched()
    resampled = MultiEpochDatasetResampler(Jitter(dataset, 1.0), num_epochs=2)
    batch = resampled.__getitems__(range(8, 28))
    assert [len(asked) for asked in dataset.asked] == [20]
    assert batch == [resampled[index] for index in range(8, 28)]


def test_what_the_dataset_lacks_is_not_transformed() -> None:
    wrapper = Jitter([0, None, 20], 1.0)  # type: ignore[list-item]
    assert [sample is None for sample in wrapper.__getitems__([EpochIndex(0, idx) for idx in range(3)])] == [
        False,
        True,
        False,
    ]


def test_over_a_source_of_raw_samples(text_dataset: MakeDataset) -> None:
    source = WebDatasetSource(text_dataset(53), parts=["txt"])
    resampled = MultiEpochDatasetResampler(IdentityMultiEpochDatasetWrapper(source), num_epochs=2)
    samples = resampled.__getitems__(range(106))
    assert all(type(sample) is RawSample and set(sample.parts) == {"txt"} for sample in samples)
    assert sorted(sample.key for sample in samples) == sorted([f"{i:06d}" for i in range(53)] * 2)
    assert [sample.key for sample in samples[:53]] != [sample.key for sample in samples[53:]]
    assert pickle.loads(pickle.dumps(resampled))[77] == resampled[77] == samples[77]
    with pytest.raises(IndexError):
        IdentityMultiEpochDatasetWrapper(source)[EpochIndex(0, 53)]
