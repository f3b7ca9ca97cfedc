"""`EnergonDataSource` in Grain pipelines of one's own."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path

import grain
import numpy as np
import pytest

from energon_grain import DefaultTaskEncoder, TextSample, generic_batch
from energon_grain.loader import EnergonDataSource
from energon_grain.testing import make_classification_dataset, make_image_dataset

MakeDataset = Callable[..., Path]


def test_grain_knows_it_as_a_source(text_dataset: MakeDataset) -> None:
    source = EnergonDataSource(text_dataset(53))
    assert isinstance(source, grain.sources.RandomAccessDataSource)
    assert len(source) == 53
    sample = source[np.int64(7)]
    assert isinstance(sample, TextSample)
    assert sample.__key__ == "000007"
    assert [s.__key__ for s in source.__getitems__([9, 3, 9])] == ["000009", "000003", "000009"]
    assert [s.text for s in source._getitems([7])] == [sample.text]
    assert source.paths == str(text_dataset(53))
    assert repr(source) == repr(EnergonDataSource(text_dataset(53)))
    assert repr(source) != repr(EnergonDataSource(text_dataset(54)))


@pytest.mark.parametrize("index", [53, -54, 10**12])
def test_indices_are_checked(text_dataset: MakeDataset, index: int) -> None:
    with pytest.raises(IndexError, match=str(index)):
        EnergonDataSource(text_dataset(53))[index]


def test_indices_are_whole_numbers(text_dataset: MakeDataset) -> None:
    with pytest.raises(TypeError, match="float"):
        EnergonDataSource(text_dataset(53))[1.7]  # type: ignore[index]


def test_it_is_indexed_as_a_list(text_dataset: MakeDataset) -> None:
    source = EnergonDataSource(text_dataset(53))
    assert source[-1].__key__ == "000052"
    assert [sample.__key__ for sample in source[50:]] == ["000050", "000051", "000052"]
    assert [sample.__key__ for sample in source[-1:40:-6]] == ["000052", "000046"]


def test_dictionaries_for_grain(text_dataset: MakeDataset) -> None:
    source = EnergonDataSource(text_dataset(53, broken={5}), as_dict=True)
    assert source[7] == {"text": EnergonDataSource(text_dataset(53))[7].text}
    assert source[4:7][1] is None
    batch = grain.MapDataset.source(pickle.loads(pickle.dumps(source)))[6:].batch(4)[0]
    assert list(batch) == ["text"]
    assert batch["text"].shape == (4,)


def test_shuffle_and_batch(text_dataset: MakeDataset) -> None:
    source = EnergonDataSource(text_dataset(53, broken={5}))
    dataset = grain.MapDataset.source(source).shuffle(seed=3).to_iter_dataset(grain.ReadOptions(2, 8))
    batches = list(dataset.batch(4, drop_remainder=False, batch_fn=generic_batch))
    keys = [key for batch in batches for key in batch.__key__]
    assert sorted(keys) == [f"{i:06d}" for i in range(53) if i != 5]
    assert keys != sorted(keys)
    assert all(len(batch.text) == len(batch.__key__) for batch in batches)
    assert source.stats()["dropped_total"] == 1


class Undecoded(DefaultTaskEncoder):
    decoder = None


def test_arrays_batch_as_grain_does(tmp_path: Path) -> None:
    make_classification_dataset(tmp_path / "data", n=20, shards=2)
    source = EnergonDataSource(tmp_path / "data", split_part="val")
    assert len(source) == 10
    dataset = grain.MapDataset.source(source).shuffle(seed=1).map(lambda sample: {"image": sample.image}).batch(4)
    assert dataset[0]["image"].shape == (4, 3, 16, 16)


def test_the_task_encoder_decides_about_decoding(tmp_path: Path) -> None:
    make_image_dataset(tmp_path / "data", n=8, shards=2)
    raw = EnergonDataSource(tmp_path / "data", subset=[0, 3], task_encoder=Undecoded())
    assert len(raw) == 3
    assert isinstance(raw[0].image, bytes)


def test_pickles_as_its_arguments(text_dataset: MakeDataset) -> None:
    source = EnergonDataSource(text_dataset(53))
    data = pickle.dumps(source)
    assert len(data) < 3000
    again = pickle.loads(data)
    assert again[5].text == source[5].text


def test_grains_data_loader(text_dataset: MakeDataset) -> None:
    source = EnergonDataSource(text_dataset(53))
    sampler = grain.samplers.IndexSampler(num_records=53, shuffle=True, seed=1, num_epochs=1)
    loader = grain.DataLoader(data_source=source, sampler=sampler, worker_count=0)
    iterator = iter(loader)
    first = [next(iterator).__key__ for _ in range(10)]
    state = iterator.get_state()
    rest = [sample.__key__ for sample in iterator]
    assert len({*first, *rest}) == 53
    other = iter(loader)
    other.set_state(state)
    assert [sample.__key__ for sample in other] == rest


def test_nothing_is_read_where_nothing_is_asked_for(text_dataset: MakeDataset) -> None:
    assert EnergonDataSource(text_dataset(24)).__getitems__([]) == []
