"""Multi-epoch datasets: the wrapper, the resampler, and the leaf that they stand on."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grain
import numpy as np
import pytest
from hypothesis import given, strategies as st
from metadatasets import v2
from patience import PATIENCE_S

from energon_grain import (
    ConfigError,
    DefaultTaskEncoder,
    EmptyDatasetError,
    EpochIndex,
    IdentityMultiEpochDatasetWrapper,
    MultiEpochDatasetResampler,
    MultiEpochDatasetWrapper,
    MultiEpochLeaf,
    RawSample,
    SkipSample,
    TextSample,
    WebDatasetSource,
    WorkerConfig,
    current_draw,
    get_train_dataset,
    get_val_datasets,
    stateless,
)
from energon_grain.loader import EnergonDataSource

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


class Echo:
    """Has n samples, each of which is its own index."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: EpochIndex) -> EpochIndex:
        assert type(index) is EpochIndex
        assert type(index.epoch) is int
        assert type(index.idx) is int
        return index


class BatchedEcho(Echo):
    """The same, with a count of batched reads."""

    reads = 0

    def __getitems__(self, indices: Sequence[EpochIndex]) -> list[EpochIndex]:
        self.reads += 1
        return [self[index] for index in indices]


def test_epochs_are_laid_out_one_after_the_other() -> None:
    resampled = MultiEpochDatasetResampler(Echo(5), num_epochs=3, shuffle=False)
    assert len(resampled) == resampled.num_samples == 15
    assert resampled.num_epochs == 3
    assert list(resampled) == [EpochIndex(epoch, idx) for epoch in range(3) for idx in range(5)]


def test_without_a_number_there_is_one_epoch() -> None:
    resampled = MultiEpochDatasetResampler(Echo(5))
    assert (resampled.num_epochs, resampled.num_samples, len(resampled)) == (1, 5, 5)
    assert (resampled.shuffle, resampled.seed) == (True, 42)
    assert sorted(resampled) == [EpochIndex(0, idx) for idx in range(5)]


@pytest.mark.parametrize(("num_samples", "epochs"), [(275, 3), (300, 3), (301, 4), (100, 1), (99, 1), (1, 1)], ids=str)
def test_the_last_epoch_is_cut_short(num_samples: int, epochs: int) -> None:
    resampled = MultiEpochDatasetResampler(Echo(100), num_samples=num_samples)
    assert (len(resampled), resampled.num_epochs) == (num_samples, epochs)
    longer = MultiEpochDatasetResampler(Echo(100), num_epochs=4)
    assert list(resampled) == [longer[index] for index in range(num_samples)]


@pytest.mark.parametrize("name", ["num_epochs", "num_samples"])
@pytest.mark.parametrize("number", [0, -1, 0.5, 2.0, "3"], ids=repr)
def test_numbers_are_whole_and_at_least_one(name: str, number: Any) -> None:
    with pytest.raises(ConfigError, match=f"{name}={number!r}"):
        MultiEpochDatasetResampler(Echo(5), **{name: number})


def test_only_one_number_is_given() -> None:
    with pytest.raises(ConfigError, match="num_epochs=3 and num_samples=15"):
        MultiEpochDatasetResampler(Echo(5), num_epochs=3, num_samples=15)


def test_an_empty_dataset_is_refused() -> None:
    with pytest.raises(EmptyDatasetError, match="Echo has no samples"):
        MultiEpochDatasetResampler(Echo(0), num_samples=3)


def test_lengths_that_len_cannot_say_are_refused() -> None:
    assert len(MultiEpochDatasetResampler(Echo(2**40), num_epochs=2**22)) == 2**62
    with pytest.raises(ConfigError, match="below 2\\*\\*63"):
        MultiEpochDatasetResampler(Echo(2**40), num_epochs=2**23)
    with pytest.raises(ConfigError, match="at most 2\\*\\*62"):
        MultiEpochDatasetResampler(Echo(2**62 + 1))


@pytest.mark.parametrize("index", [15, -1, -15, 2**63, -(2**70)], ids=str)
def test_indices_of_resampling_are_checked(index: int) -> None:
    resampled = MultiEpochDatasetResampler(Echo(5), num_epochs=3)
    with pytest.raises(IndexError, match=f"index {index}: .* 15 samples"):
        resampled[index]
    with pytest.raises(IndexError, match=f"index {index}: .* 15 samples"):
        resampled.__getitems__([0, index])


def test_indices_are_integers_of_any_kind() -> None:
    resampled = MultiEpochDatasetResampler(Echo(5), num_epochs=3)
    expected = resampled[7]
    assert resampled[np.int32(7)] == expected
    for indices in ([7], (7,), range(7, 8), [np.int64(7)], np.array([7], np.uint8), np.array([7], np.uint64)):
        assert resampled.__getitems__(indices) == [expected]
    assert resampled.__getitems__([]) == []
    for indices in ([7.0], ["7"], np.array([7.0])):
        with pytest.raises(TypeError):
            resampled.__getitems__(indices)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        resampled[1.0]  # type: ignore[index]
    with pytest.raises(IndexError, match=str(2**63)):
        resampled.__getitems__(np.array([2**63], np.uint64))


def test_a_dataset_of_one_sample() -> None:
    resampled = MultiEpochDatasetResampler(Echo(1), num_epochs=4)
    assert list(resampled) == resampled.__getitems__(range(4)) == [EpochIndex(epoch, 0) for epoch in range(4)]


@given(
    n=st.integers(1, 1500),
    epochs=st.integers(1, 5),
    seed=st.integers(-(2**70), 2**70),
    shuffle=st.booleans(),
    data=st.data(),
)
def test_batches_and_single_samples_agree(n: int, epochs: int, seed: int, shuffle: bool, data: st.DataObject) -> None:
    resampled = MultiEpochDatasetResampler(Echo(n), num_epochs=epochs, seed=seed, shuffle=shuffle)
    indices = data.draw(st.lists(st.integers(0, n * epochs - 1), max_size=20))
    batch = resampled.__getitems__(indices)
    assert batch == [resampled[index] for index in indices] == [resampled.epoch_index(index) for index in indices]
    epoch, idx = resampled.draw(np.array(indices, np.int64))
    assert epoch.dtype == idx.dtype == np.int64
    assert list(zip(epoch.tolist(), idx.tolist(), strict=True)) == batch


@given(n=st.integers(1, 3000), epochs=st.integers(1, 4), seed=st.integers(0, 2**64 - 1))
def test_each_epoch_has_every_sample_once(n: int, epochs: int, seed: int) -> None:
    resampled = MultiEpochDatasetResampler(Echo(n), num_epochs=epochs, seed=seed)
    epoch, idx = resampled.draw(range(n * epochs))
    assert (epoch == np.repeat(np.arange(epochs), n)).all()
    assert (np.sort(idx.reshape(epochs, n), axis=1) == np.arange(n)).all()


def test_orders_of_epochs_and_seeds_are_independent() -> None:
    """Where two orders agree in as many of 1,000 places as two random orders do (1 on average), nothing is shared."""
    n, epochs = 1000, 4
    orders = {
        (seed, epoch): order
        for seed in range(4)
        for epoch, order in enumerate(
            MultiEpochDatasetResampler(Echo(n), num_epochs=epochs, seed=seed).draw(range(n * epochs))[1].reshape(-1, n)
        )
    }
    for a, first in orders.items():
        for b, second in orders.items():
            if a < b:
                assert (first == second).sum() < 10, (a, b)
                assert (np.diff(first) == np.diff(second)).sum() < 10, (a, b)


def test_the_orders_of_a_small_dataset_all_come_up() -> None:
    resampled = MultiEpochDatasetResampler(Echo(4), num_epochs=24_000)
    orders = resampled.draw(range(len(resampled)))[1].reshape(-1, 4)
    counts = Counter(map(tuple, orders.tolist()))
    assert len(counts) == 24
    assert sum((count - 1000) ** 2 / 1000 for count in counts.values()) < 60  # chi-square, 23 degrees of freedom
    follow = Counter(zip(map(tuple, orders[:-1].tolist()), map(tuple, orders[1:].tolist()), strict=True))
    assert len(follow) == 24 * 24  # no order tells which comes next


def test_the_order_is_pinned() -> None:
    """It is part of what resumed runs rely on."""
    resampled = MultiEpochDatasetResampler(Echo(10), num_samples=25)
    assert [index.idx for index in resampled] == [
        *(8, 2, 7, 3, 9, 0, 5, 6, 4, 1),
        *(6, 8, 0, 4, 2, 1, 7, 9, 5, 3),
        *(2, 4, 1, 3, 5),
    ]


def test_another_process_gives_equal_samples() -> None:
    program = (
        "from energon_grain import IdentityMultiEpochDatasetWrapper as Wrapper\n"
        "from energon_grain import MultiEpochDatasetResampler as Resampler\n"
        "print(Resampler(Wrapper(range(3000)), num_epochs=9, seed=3).__getitems__(range(0, 27000, 1001)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=PATIENCE_S
    )
    here = MultiEpochDatasetResampler(IdentityMultiEpochDatasetWrapper(range(3000)), num_epochs=9, seed=3)
    assert done.stdout.strip() == str([here[index] for index in range(0, 27000, 1001)])


def test_it_pickles() -> None:
    resampled = MultiEpochDatasetResampler(Echo(100), num_samples=250, seed=9)
    data = pickle.dumps(resampled)
    assert len(data) < 500
    again = pickle.loads(data)
    assert repr(again) == repr(resampled)
    assert list(again) == list(resampled)


def test_length_costs_no_memory() -> None:
    resampled = MultiEpochDatasetResampler(
        IdentityMultiEpochDatasetWrapper(range(10**9)), num_epochs=10**9, shuffle=True
    )
    assert len(resampled) == 10**18
    assert len(pickle.dumps(resampled)) < 500
    places = [0, 10**9 - 1, 10**9, 10**18 - 1, 123_456_789_012_345_678]
    assert resampled.__getitems__(places) == [resampled[place] for place in places]


def test_batched_reads_are_handed_on() -> None:
    dataset = BatchedEcho(10)
    resampled = MultiEpochDatasetResampler(dataset, num_epochs=2)
    assert resampled.__getitems__([3, 14, 3]) == [resampled[3], resampled[14], resampled[3]]
    assert dataset.reads == 1


def test_grain_knows_it_as_a_source() -> None:
    resampled = MultiEpochDatasetResampler(IdentityMultiEpochDatasetWrapper(range(50)), num_epochs=3, seed=1)
    assert isinstance(resampled, grain.sources.RandomAccessDataSource)
    expected = list(resampled)
    pipeline = grain.MapDataset.source(resampled)
    assert len(pipeline) == 150
    assert list(pipeline) == expected
    assert pipeline._getitems([140, 2]) == [expected[140], expected[2]]
    shards = [list(pipeline[host::2].to_iter_dataset(grain.ReadOptions(4, 16))) for host in range(2)]
    assert shards == [expected[0::2], expected[1::2]]


def test_grains_iterator_resumes_within_an_epoch() -> None:
    resampled = MultiEpochDatasetResampler(IdentityMultiEpochDatasetWrapper(range(50)), num_epochs=3, seed=1)
    dataset = grain.MapDataset.source(resampled).to_iter_dataset(grain.ReadOptions(0, 0)).batch(8)
    iterator = iter(dataset)
    for _ in range(9):
        next(iterator)
    state = iterator.get_state()
    rest = [batch.tolist() for batch in iterator]
    again = iter(dataset)
    again.set_state(state)
    assert [batch.tolist() for batch in again] == rest
    assert sum(rest, []) == list(resampled)[72:144] + list(resampled)[144:]


def test_torch_takes_it_as_a_map_style_dataset() -> None:
    data = pytest.importorskip("torch.utils.data", reason="torch is not installed")
    resampled = MultiEpochDatasetResampler(IdentityMultiEpochDatasetWrapper(range(50)), num_epochs=3, seed=1)
    expected = list(resampled)
    for workers in (0, 2):
        # Not "fork": other tests of this process may have started jax.
        context = "spawn" if workers else None
        loader = data.DataLoader(resampled, batch_size=16, num_workers=workers, multiprocessing_context=context)
        assert sum((batch.tolist() for batch in loader), []) == expected
    shuffled = data.DataLoader(resampled, batch_size=16, shuffle=True)
    assert sorted(sum((batch.tolist() for batch in shuffled), [])) == sorted(expected)
    one_by_one = data.DataLoader(resampled, batch_size=None)
    assert [int(sample) for sample in one_by_one] == expected
    sampler = data.DistributedSampler(resampled, num_replicas=2, rank=1, shuffle=False)
    assert sum((b.tolist() for b in data.DataLoader(resampled, batch_size=5, sampler=sampler)), []) == expected[1::2]


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
        with pytest.raises(IndexError, match=f"sample {samples} is out of range: there are {samples}"):
            found.__getitems__([EpochIndex(0, 3), EpochIndex(0, samples)])
        assert found[EpochIndex(0, samples - 1)].__key__ == f"{samples - 1:06}"


def test_batches_are_refused(text_dataset: MakeDataset) -> None:
    with pytest.raises(ConfigError, match="batch_size=None"):
        train(text_dataset(53), batch_size=4)


@pytest.mark.parametrize("index", [EpochIndex(0, 53), EpochIndex(0, -1), EpochIndex(-1, 0)])
def test_indices_of_leaves_are_checked(text_dataset: MakeDataset, index: EpochIndex) -> None:
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
