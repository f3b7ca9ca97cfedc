from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grain
import pytest
from metadatasets import v2

from energon_grain import (
    ConfigError,
    DefaultTaskEncoder,
    EpochIndex,
    MultiEpochDatasetResampler,
    MultiEpochDatasetWrapper,
    MultiEpochLeaf,
    SkipSample,
    TextSample,
    WorkerConfig,
    current_draw,
    get_train_dataset,
    get_val_datasets,
    stateless,
)
from energon_grain.loader import EnergonDataSource

MakeDataset = Callable[..., Path]


class Noisy(DefaultTaskEncoder):
    """Adds its epoch and a random number to a text."""

    @stateless
    def encode_sample(self, sample: TextSample) -> tuple[str, int, int]:
        return sample.__key__, current_draw().epoch, int(self.rng.integers(2**60))


class Odd(DefaultTaskEncoder):
    """Skips every other sample."""

    @stateless
    def encode_sample(self, sample: TextSample) -> TextSample:
        if int(sample.__key__) % 2 == 0:
            raise SkipSample
        return sample


def train(path: Any, encoder: DefaultTaskEncoder | None = None, **options: Any) -> MultiEpochLeaf:
    leaf = options.pop("leaf", None)
    arguments: dict[str, Any] = {"batch_size": None, "worker_config": WorkerConfig(0, 1), **options}
    dataset = get_train_dataset(
        path, shuffle_buffer_size=None, max_samples_per_sequence=None, task_encoder=encoder, **arguments
    )
    return MultiEpochLeaf(dataset, leaf)


def test_samples_are_decoded_and_encoded(text_dataset: MakeDataset) -> None:
    leaf = train(text_dataset(53), Noisy())
    assert len(leaf) == 53
    resampled = MultiEpochDatasetResampler(leaf, num_epochs=3)
    samples = resampled.__getitems__(range(159))
    assert [epoch for _, epoch, _ in samples] == [0] * 53 + [1] * 53 + [2] * 53
    for epoch in range(3):
        assert sorted(key for key, _, _ in samples[53 * epoch :][:53]) == [f"{i:06d}" for i in range(53)]
    assert len({number for _, _, number in samples}) == 159


def test_equal_indices_give_equal_samples(text_dataset: MakeDataset) -> None:
    leaf = train(text_dataset(53), Noisy())
    index = EpochIndex(4, 31)
    sample = leaf[index]
    assert leaf.__getitems__([EpochIndex(0, 1), index, index])[1:] == [sample, sample]
    assert pickle.loads(pickle.dumps(leaf))[index] == sample
    assert train(text_dataset(53), Noisy(), worker_config=WorkerConfig(3, 4))[index] == sample
    assert train(text_dataset(53), Noisy(), seed=1)[index] != sample
    assert leaf[EpochIndex(5, 31)] != sample
    assert leaf.__getitems__([]) == []


def test_any_leaf_of_a_metadataset(text_dataset: MakeDataset) -> None:
    content = v2(
        train={
            "blend": [
                {"path": str(text_dataset(12)), "weight": 3, "subflavors": {"kind": "a"}},
                {"path": str(text_dataset(53)), "weight": 1, "subset": {"range": [10, 30]}},
            ]
        }
    )
    first, second = train(content, leaf=0), train(content, leaf=1)
    assert (len(first), len(second)) == (12, 20)
    assert first[EpochIndex(0, 3)].__key__ == "000003"
    assert first[EpochIndex(0, 3)].__subflavors__ == {"kind": "a"}
    assert [s.__key__ for s in second.__getitems__([EpochIndex(1, 0), EpochIndex(1, 19)])] == ["000010", "000029"]
    leaves = [
        MultiEpochLeaf(dataset)
        for dataset, _ in get_val_datasets(
            content, split_part="train", batch_size=None, worker_config=WorkerConfig(0, 1)
        )
    ]
    assert list(map(len, leaves)) == [12, 20]
    assert leaves[1][EpochIndex(2, 5)].text == second[EpochIndex(2, 5)].text
    assert "samples=20" in repr(second)
    for wrong in (None, 2, -1):
        with pytest.raises(ConfigError, match=r"2 leaves .*0: .*1: "):
            train(content, leaf=wrong)


def test_an_index_behind_a_leaf_is_not_the_next_one_s(text_dataset: MakeDataset) -> None:
    content = v2(train={"blend": [{"path": str(text_dataset(n))} for n in (12, 53, 9)]})
    for leaf, samples in enumerate((12, 53, 9)):
        found = train(content, leaf=leaf)
        with pytest.raises(IndexError, match=f"sample {samples} asked for, but there are {samples}"):
            found.__getitems__([EpochIndex(0, 3), EpochIndex(0, samples)])
        assert found[EpochIndex(0, samples - 1)].__key__ == f"{samples - 1:06}"


def test_batches_are_refused(text_dataset: MakeDataset) -> None:
    with pytest.raises(ConfigError, match="batch_size=None"):
        train(text_dataset(53), batch_size=4)


@pytest.mark.parametrize("index", [EpochIndex(0, 53), EpochIndex(0, -1), EpochIndex(-1, 0)])
def test_indices_are_checked(text_dataset: MakeDataset, index: EpochIndex) -> None:
    with pytest.raises(IndexError):
        train(text_dataset(53))[index]
    with pytest.raises(TypeError, match="EpochIndex"):
        train(text_dataset(53))[3]  # type: ignore[index]


def test_dropped_samples_are_none_and_counted(text_dataset: MakeDataset) -> None:
    leaf = train(text_dataset(53, broken={5}), Odd())
    samples = leaf.__getitems__([EpochIndex(0, idx) for idx in range(8)])
    assert [idx for idx, sample in enumerate(samples) if sample is None] == [0, 2, 4, 5, 6]
    assert leaf.stats()["dropped_total"] == 5
    resampled = MultiEpochDatasetResampler(leaf, num_epochs=2)
    kept = [sample.__key__ for sample in grain.MapDataset.source(resampled).to_iter_dataset(grain.ReadOptions(2, 8))]
    assert sorted(kept) == sorted([f"{i:06d}" for i in range(1, 53, 2) if i != 5] * 2)


class Shout(MultiEpochDatasetWrapper[TextSample, str]):
    """Puts the epoch in front."""

    def apply_transform(self, sample: TextSample, index: EpochIndex) -> str:
        return f"{index.epoch} {sample.__key__}"


def test_a_data_source_of_samples_in_a_wrapper(text_dataset: MakeDataset) -> None:
    source = EnergonDataSource(text_dataset(53, broken={5}))
    resampled = MultiEpochDatasetResampler(Shout(source), num_samples=60, shuffle=False)
    expected = [f"{i // 53} {i % 53:06d}" if i % 53 != 5 else None for i in range(60)]
    assert resampled.__getitems__(range(60)) == expected
    assert list(pickle.loads(pickle.dumps(resampled))) == expected
