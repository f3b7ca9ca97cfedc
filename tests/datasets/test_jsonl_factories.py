from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from energon_grain import (
    CrudeJsonlDatasetFactory,
    DatasetNotFoundError,
    DefaultCrudeJsonlDatasetFactory,
    Stream,
    WorkerConfig,
)

CONFIG = WorkerConfig(rank=0, world_size=1, num_workers=0)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "x.jsonl"
    path.write_text('{"n": 0}\n{"n": 1}\n{"n": 2}\n')
    return path


def test_bytes(path: Path) -> None:
    assert CrudeJsonlDatasetFactory.prepare_dataset(path) == 3
    factory = CrudeJsonlDatasetFactory(path, training=False, worker_config=CONFIG, subset=[1, 3])
    assert len(factory) == 2
    assert [(sample["__key__"], sample["json"]) for sample in Stream.of(factory.build())] == [
        ("1", b'{"n": 1}\n'),
        ("2", b'{"n": 2}\n'),
    ]
    assert factory.as_file_store().get("0.json") == b'{"n": 0}\n'


def test_values(path: Path) -> None:
    factory = DefaultCrudeJsonlDatasetFactory(
        path, training=False, worker_config=CONFIG, subflavors={"a": 1}, decoder=None
    )
    samples = list(Stream.of(factory.build()))
    assert [sample["json"] for sample in samples] == [{"n": 0}, {"n": 1}, {"n": 2}]
    assert samples[0]["__subflavors__"] == {"a": 1}


class Numbers(DefaultCrudeJsonlDatasetFactory):
    def load_sample(self, sample: Any) -> Any:
        sample["n"] = sample["json"]["n"] * 10
        return sample


def test_a_class_may_load_samples_itself(path: Path) -> None:
    built = Numbers(path, training=False, worker_config=CONFIG).build()
    assert [sample["n"] for sample in Stream.of(built)] == [0, 10, 20]


def test_files_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(DatasetNotFoundError):
        CrudeJsonlDatasetFactory.prepare_dataset(tmp_path / "x.jsonl")
