"""Batches made from columns equal batches of samples."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_graphs import require_exact_states, take
from stream_hosts import config

from energon_grain import (
    DefaultTaskEncoder,
    SampleDecoder,
    SavableDataset,
    Stream,
    TaskEncoder,
    generic_batch,
    get_train_dataset,
)
from energon_grain.column_batches import ColumnBatches
from energon_grain.testing import make_captioning_dataset, make_crude_dataset, make_text_dataset
from energon_grain.testing.dataset_folder import Recipe, write_dataset


class Sampled(TaskEncoder):
    """Its own batch hook sees samples, so they are made."""

    def batch(self, samples: list[Any]) -> Any:
        return generic_batch(samples)


def made_by_hand(root: Path, array: Callable[[int], np.ndarray[Any, Any]], **options: Any) -> Path:
    """Samples with an array, and two fields that get their defaults."""

    def parts(i: int, rng: np.random.Generator) -> Mapping[str, Any]:
        return {"npy": array(i)}

    recipe = Recipe(parts=parts, breaks="npy", sample_type="ImageClassificationSample", field_map={"image": "npy"})
    return write_dataset(root, recipe, **options)


def ragged(i: int) -> np.ndarray[Any, Any]:
    return np.full((1 + i % 3, 2), i, np.int32)


MAKERS: dict[str, Callable[..., Path]] = {
    "text": make_text_dataset,
    "captions": make_captioning_dataset,
    "arrays": lambda root, **options: made_by_hand(root, ragged, **options),
}


@pytest.fixture
def from_columns(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Of each chunk that columns were tried for, whether it has batches made from them."""
    found: list[bool] = []
    call = ColumnBatches.__call__

    def spied(self: ColumnBatches, *arguments: Any) -> Any:
        encoded = call(self, *arguments)
        found.append(encoded is not None and encoded.made)
        return encoded

    monkeypatch.setattr(ColumnBatches, "__call__", spied)
    return found


def flat(value: Any) -> Any:
    """Comparable: arrays with their types, samples by field, sources as they are found."""
    if isinstance(value, np.ndarray):
        return str(value.dtype), value.shape, value.tobytes()
    if dataclasses.is_dataclass(value):
        return type(value), {field.name: flat(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, list):
        return [flat(entry) for entry in value]
    return tuple(value) if hasattr(value, "resolve") else value


def train(path: Path, encoder: TaskEncoder, **options: Any) -> SavableDataset:
    given: dict[str, Any] = {
        "batch_size": 4,
        "shuffle_buffer_size": 20,
        "max_samples_per_sequence": 4,
        "worker_config": config(),
    }
    encoder.decoder = SampleDecoder(image_decode="rgb8")
    return get_train_dataset(path, task_encoder=encoder, **{**given, "worker_config": config(), **options})


def told(path: Path, encoder: TaskEncoder, steps: int, **options: Any) -> Any:
    with Stream.of(train(path, encoder, **options)) as stream:
        found = [(flat(batch), stream.cursor()) for batch in take(stream, steps)]
        return found, stream.stats()["dropped"]


@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize("seed", range(4))
def test_they_equal_batches_of_samples(tmp_path: Path, kind: str, seed: int, from_columns: list[bool]) -> None:
    rng = np.random.default_rng([seed, len(kind)])
    count, shards = int(rng.integers(20, 200)), int(rng.integers(1, 5))
    broken = rng.integers(0, count, int(rng.integers(0, 3))).tolist() if seed % 2 else []
    path = MAKERS[kind](tmp_path / "data", n=count, shards=shards, broken=broken)
    hosts = int(rng.integers(1, 4))
    options: dict[str, Any] = {
        "batch_size": int(rng.integers(1, 12)),
        "repeat": bool(rng.integers(2)),
        "worker_config": config(int(rng.integers(hosts)), hosts, int(rng.integers(2)), worker_type="thread"),
    }
    if hosts > 1:
        options["last_batch"] = "pad"
    found = told(path, TaskEncoder(), 40, **options)
    assert any(from_columns)
    from_columns.clear()
    assert found == told(path, Sampled(), 40, **options)
    assert not from_columns


def test_states_are_exact(tmp_path: Path) -> None:
    path = make_text_dataset(tmp_path / "data", n=61, shards=2, broken=[7])
    batches = require_exact_states(lambda: train(path, TaskEncoder(), repeat=False), 25, every=3)
    assert any(batch is None for batch in batches)
    assert any(batch is not None for batch in batches)


def test_batches_of_processes_are_the_same(tmp_path: Path) -> None:
    path = make_text_dataset(tmp_path / "data", n=80)
    workers = config(num_workers=1, worker_type="process")
    assert told(path, TaskEncoder(), 30, worker_config=workers) == told(path, Sampled(), 30)


def test_every_sample_has_its_own_tags_and_defaults(tmp_path: Path) -> None:
    path = made_by_hand(tmp_path / "data", ragged, n=30)
    with Stream.of(train(path, TaskEncoder())) as stream:
        batch = next(stream)
    assert batch.label == [None] * 4
    assert batch.__valid__ is None
    assert batch.__subflavors__[0] == batch.__subflavors__[1]
    assert batch.__subflavors__[0] is not batch.__subflavors__[1]
    batch.label.append(1)
    assert batch.label_name == [None] * 4


def test_batches_that_cannot_be_made_are_dropped_alike(tmp_path: Path) -> None:
    def mixed(i: int) -> np.ndarray[Any, Any]:
        return np.zeros((2,) * (2 if i == 11 else 1))

    path = made_by_hand(tmp_path / "data", mixed, n=40)
    found = told(path, TaskEncoder(), 20)
    assert found == told(path, Sampled(), 20)
    assert found[1]


class Encoding(TaskEncoder):
    def encode_batch(self, batch: Any) -> Any:
        return {**vars_of(batch), "more": self.rng.integers(100)}


class Renaming(DefaultTaskEncoder):
    def encode_sample(self, sample: Any) -> Any:
        sample.text = f"{sample.__key__}: {sample.text}"
        return sample


class Batching(DefaultTaskEncoder):
    def batch(self, samples: list[Any]) -> Any:
        return [sample.text for sample in samples]


def vars_of(batch: Any) -> dict[str, Any]:
    return {field.name: getattr(batch, field.name) for field in dataclasses.fields(batch)}


@pytest.mark.parametrize("encoder", [Encoding, Renaming, Batching])
def test_a_hook_of_the_user_sees_what_it_always_saw(
    tmp_path: Path, encoder: Callable[[], TaskEncoder], from_columns: list[bool]
) -> None:
    path = make_text_dataset(tmp_path / "data", n=40)
    found, _ = told(path, encoder(), 12)
    assert len(found) == 12
    assert not from_columns


def test_crude_samples_are_made(tmp_path: Path, from_columns: list[bool]) -> None:
    found, _ = told(make_crude_dataset(tmp_path / "data", n=40), TaskEncoder(), 8)
    assert len(found) == 8
    assert not any(from_columns)
