"""What programs written for Energon do with `load_dataset` and `get_dataset_from_config`, beside the entry points."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from metadatasets import write_v2

import energon_grain
from energon_grain import (
    BlendDataset,
    ConfigError,
    DatasetBlendMode,
    DatasetNotFoundError,
    DefaultTaskEncoder,
    EPath,
    SampleDecoder,
    TextSample,
    WorkerConfig,
    get_dataset_from_config,
    get_loader,
    get_train_dataset,
    load_dataset,
    traverse_metadataset,
)
from energon_grain.testing import make_crude_dataset, make_text_dataset

HOST = WorkerConfig(rank=0, world_size=1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("sets")
    for name in ("a", "b"):
        make_text_dataset(root / name, n=30, shards=3, seed=ord(name))
    make_crude_dataset(root / "crude", n=10)
    return root


def test_the_datasets_of_a_blend(folder: Path) -> None:
    nested = {"blend": [{"path": "a", "weight": 3, "subflavors": {"k": 1}}, {"path": "b", "weight": 1}]}
    write_v2(folder, "inner.yaml", train=nested)
    path = write_v2(folder, "outer.yaml", train={"blend": [{"path": "inner.yaml"}, {"path": "b"}]})
    loader = load_dataset(path)
    loader.post_initialize()
    found = loader.get_datasets(
        training=True, split_part="train", worker_config=HOST, subflavors={"by": "me"}, max_samples_per_sequence=10
    )
    assert found.blend_mode is DatasetBlendMode.DATASET_WEIGHT
    assert [float(each.weight or 0) for each in found.datasets] == [0.375, 0.125, 0.5]
    sample = next(iter(found.datasets[0].dataset))
    assert isinstance(sample, TextSample)
    assert sample.__subflavors__ == {"k": 1, "by": "me"}
    # They are what a task encoder builds a stream of.
    encoder = DefaultTaskEncoder()
    dataset = encoder.build_train_datasets(
        datasets=found.datasets, worker_config=HOST, batch_size=10, blend_mode=found.blend_mode
    )
    counts = Counter(
        sources[0].dataset_path.name
        for batch, _ in zip(dataset, range(48), strict=False)
        for sources in batch.__sources__
    )
    assert counts["a"] == pytest.approx(180, abs=20)
    assert loader.traverse(split_part="train") == traverse_metadataset(path, split_part="train")


def test_the_datasets_of_an_epochized_blend_and_of_one_dataset(folder: Path) -> None:
    node = {"blend_epochized": [{"path": "a", "repetitions": 2}, {"path": "b"}]}
    loader = load_dataset(write_v2(folder, "epochs.yaml", val=node))
    found = loader.get_datasets(training=False, split_part="val", worker_config=HOST)
    assert found.blend_mode is DatasetBlendMode.SAMPLE_REPETITIONS
    assert [each.repetitions for each in found.datasets] == [2, 1]
    assert [sample.__key__ for sample in found.datasets[0].dataset] == [f"{number:06d}" for number in range(20, 30)]
    single = load_dataset(folder / "a").get_datasets(
        training=False, split_part="train", worker_config=HOST, subset=[5, 8], decoder=None
    )
    assert single.blend_mode is DatasetBlendMode.NONE
    [sample, *_] = samples = list(single.datasets[0].dataset)
    assert len(samples) == 3
    assert isinstance(sample.text, bytes)
    with pytest.raises(TypeError, match=r"get_datasets\(\) got an unexpected keyword argument 'shuffle'"):
        loader.get_datasets(training=False, split_part="val", worker_config=HOST, shuffle=True)


def test_preparing_a_document_writes_its_joins(folder: Path) -> None:
    for name in ("left", "right"):
        make_text_dataset(folder / name, n=5)
    loader = load_dataset(write_v2(folder, "join.yaml", train={"join": [{"path": "left"}, {"path": "right"}]}))
    [index] = loader.prepare(split_part="train")
    assert isinstance(index, EPath)
    assert index.is_file()
    assert index.parent == EPath(folder / "join.yaml.cache")
    assert list(load_dataset(folder / "a").prepare()) == []


def test_one_dataset_from_its_configuration(folder: Path) -> None:
    dataset = get_dataset_from_config(
        folder / "a", split_part="val", training=False, worker_config=HOST, subflavors={"k": 1}
    )
    samples = list(dataset.build())
    assert [sample.__key__ for sample in samples] == [f"{number:06d}" for number in range(20, 30)]
    assert samples[0].__subflavors__ == {"k": 1}
    assert len(dataset) == 10
    shuffled = get_dataset_from_config(EPath(folder / "a"), worker_config=HOST, shuffle_over_epochs=-1)
    with get_loader(shuffled) as loader:
        assert next(loader).__key__ in {f"{number:06d}" for number in range(20)}
    crude = get_dataset_from_config(folder / "crude", worker_config=HOST, part_filter=["txt"])
    assert {"txt"} == {name for name in next(iter(crude)) if not name.startswith("__")}
    whole = get_dataset_from_config(folder / "a", worker_config=HOST, decoder=SampleDecoder(), subset=["0%", "50%"])
    assert len(whole) == 10
    with pytest.raises(DatasetNotFoundError, match="nowhere"):
        get_dataset_from_config(folder / "nowhere", worker_config=HOST)
    with pytest.raises(ConfigError, match="sample_type"):
        list(get_dataset_from_config(folder / "a", worker_config=HOST, sample_type=energon_grain.VQASample))


def test_mixing_what_was_loaded(folder: Path) -> None:
    parts: list[Any] = [get_dataset_from_config(folder / name, worker_config=HOST) for name in "ab"]
    names = [sample.__sources__[0].dataset_path.name for sample, _ in zip(BlendDataset(parts), range(40), strict=False)]
    assert names.count("a") == pytest.approx(20, abs=10)
    same = get_train_dataset(
        load_dataset(folder / "a"), batch_size=5, shuffle_buffer_size=10, max_samples_per_sequence=5
    )
    assert len(next(iter(same)).text) == 5
