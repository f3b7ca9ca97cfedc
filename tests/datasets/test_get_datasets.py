"""The entry points: impossible arguments are refused where they are given, with what is meant instead."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from metadatasets import v2

import energon_grain
import energon_grain_torch
from energon_grain import (
    ConfigError,
    DatasetNotFoundError,
    SplitError,
    TextSample,
    VQASample,
    WorkerConfig,
    get_train_dataset,
    get_val_dataset,
    get_val_datasets,
)

MakeDataset = Callable[..., Path]
TWO_HOSTS = WorkerConfig(rank=0, world_size=2)
USUAL: dict[str, Any] = {"batch_size": 2, "shuffle_buffer_size": None, "max_samples_per_sequence": None}


def train(path: str | os.PathLike[str] = "s3://nowhere/data", **arguments: Any) -> Any:
    return get_train_dataset(path, **{**USUAL, **arguments})


def keys(dataset: Any, batches: int | None = None) -> list[str]:
    found: list[str] = []
    for number, batch in enumerate(dataset):
        if number == batches:
            break
        found += batch.__key__
    return found


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batch_size": 0}, r"batch_size=0: expected a positive number"),
        ({"last_batch": "half"}, r"last_batch='half': expected 'keep', 'drop' or 'pad'"),
        ({"last_batch": "half", "batch_size": None}, r"last_batch='half'"),
        ({"last_batch": "pad", "batch_drop_last": True}, r"batch_drop_last=True and last_batch='pad' contradict"),
        ({"last_batch": "keep", "worker_config": TWO_HOSTS}, r"last_batch='keep' with 2 hosts.*'drop' or 'pad'"),
        ({"max_samples_per_sequence": 0}, r"max_samples_per_sequence=0: 1 or more, or None"),
        ({"shuffle_buffer_size": -1}, r"shuffle_buffer_size=-1: 0 or more, or None"),
        ({"parallel_shard_iters": 0}, r"parallel_shard_iters=0: 1 or more, or None"),
        ({"shuffle_over_epochs_multiplier": 0}, r"shuffle_over_epochs_multiplier=0: 1 or more, -1 .* or None"),
        ({"shuffle_over_epochs_multiplier": -2}, r"shuffle_over_epochs_multiplier=-2"),
        ({"virtual_epoch_length": -1}, r"virtual_epoch_length=-1 with repeat=True"),
        ({"virtual_epoch_length": 5, "repeat": False}, r"virtual_epoch_length=5 with repeat=False: .* endless"),
        ({"lanes": 0}, r"lanes=0: expected a positive number"),
        ({"subset": [3, 1]}, r"subset \[3, 1\]: 0 <= start < end must hold"),
    ],
)
def test_impossible_arguments(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        train(**arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"limit": 0}, r"limit=0: expected a positive number of batches, or None for all"),
        ({"batch_size": -3}, r"batch_size=-3"),
        ({"last_batch": "keep", "worker_config": TWO_HOSTS}, r"last_batch='keep' with 2 hosts"),
        ({"subset": "10%"}, r"subset '10%': a range \[start, end\] of two values"),
    ],
)
def test_impossible_arguments_of_validation(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        get_val_dataset("s3://nowhere/data", **{"batch_size": 2, **arguments})


@pytest.mark.parametrize("get", [get_train_dataset, get_val_dataset, get_val_datasets])
@pytest.mark.parametrize("backend", [energon_grain, energon_grain_torch])
def test_what_is_wrong_is_said_by_the_call(
    text_dataset: MakeDataset, tmp_path: Path, get: Callable[..., Any], backend: Any
) -> None:
    usual = USUAL if get is get_train_dataset else {"batch_size": 2, "split_part": "train"}
    called = getattr(backend, get.__name__)
    path = text_dataset(12)
    mixture = v2(train={"blend": [{"path": str(path), "split_part": "tran"}]})
    raw = tmp_path / "raw"
    raw.mkdir()
    for arguments, error, message in [
        ({"path": tmp_path / "nothing"}, DatasetNotFoundError, r"nothing: no such file or folder$"),
        ({"path": raw}, DatasetNotFoundError, r"run `energon-grain prepare .*raw`$"),
        ({"split_part": "tran"}, SplitError, r"no split part 'tran'; it has .*Did you mean 'train'\?$"),
        ({"path": mixture}, SplitError, r"^metadataset: \$.*blend\[0\]: .*Did you mean 'train'\?$"),
        ({"split_config": "x.yaml"}, SplitError, r"x\.yaml: no such split file; there is split\.yaml"),
        ({"dataset_config": "x.yaml"}, ConfigError, r"x\.yaml: no such file"),
        ({"sample_type": VQASample}, ConfigError, r"holds TextSample, but sample_type=VQASample was asked for$"),
        ({"sample_type": "TextSample"}, ConfigError, r"^sample_type='TextSample': expected a class"),
        ({"subset": [5, 13]}, ConfigError, r"^subset \[5, 13\]: split part 'train' of .*dataset has only 12 "),
        ({"batch_size": "32"}, ConfigError, r"^batch_size='32': expected a positive number"),
        ({"batch_size": True}, ConfigError, r"^batch_size=True: expected a positive number"),
        ({"split_part": 3}, ConfigError, r"^split_part=3: expected the name of a part"),
        ({"part_filter": "txt"}, ConfigError, r"^part_filter='txt': .*\['txt'\]"),
        ({"trusted_modules": "mine"}, ConfigError, r"^trusted_modules='mine': .*\['mine'\]"),
        ({"lanes": "x"}, ConfigError, r"^lanes='x'"),
        ({"batchsize": 3}, TypeError, rf"^{get.__name__}\(\) got .*'batchsize'\. Did you mean 'batch_size'\?$"),
    ]:
        with pytest.raises(error, match=message):
            called(**{"path": path, **usual, **arguments})


@pytest.mark.parametrize("backend", [energon_grain, energon_grain_torch])
def test_arguments_that_are_missing(backend: Any) -> None:
    with pytest.raises(TypeError, match=r"write shuffle_buffer_size=None, max_samples_per_sequence=None; with None"):
        backend.get_train_dataset("nowhere", batch_size=2)
    with pytest.raises(TypeError, match=r"needs batch_size: write batch_size=32"):
        backend.get_val_dataset("nowhere")
    with pytest.raises(TypeError, match=r"'suffle_buffer_size'\. Did you mean 'shuffle_buffer_size'\?$"):
        backend.get_train_dataset("nowhere", batch_size=2, suffle_buffer_size=None, max_samples_per_sequence=None)


def test_data_in_a_store_are_not_looked_at() -> None:
    assert train("s3://nowhere/data")


@pytest.mark.parametrize("form", [str, Path, lambda path: Path(os.path.relpath(path))])
def test_paths(text_dataset: MakeDataset, form: Callable[[Any], Any]) -> None:
    path = text_dataset(12)
    assert keys(get_val_dataset(form(path), split_part="train", batch_size=5)) == [f"{i:06d}" for i in range(12)]
    assert keys(train(form(path)), 6) == keys(train(path), 6)


def test_lengths(text_dataset: MakeDataset) -> None:
    path = text_dataset(12)
    assert len(train(path, batch_size=5)) == 2, "whole batches that one pass over the data makes"
    assert len(train(path, batch_size=5, repeat=False)) == 3
    assert len(train(path, batch_size=5, repeat=False, batch_drop_last=True)) == 2
    assert len(train(path, batch_size=5, virtual_epoch_length=7)) == 7
    assert len(train(path, batch_size=None, repeat=False)) == 12
    assert len(get_val_dataset(path, split_part="train", batch_size=5, limit=2)) == 2
    assert len(get_val_dataset(path, split_part="train", batch_size=5, worker_config=TWO_HOSTS)) == 2


def test_a_whole_pass(text_dataset: MakeDataset) -> None:
    path = text_dataset(12)
    everything = [f"{i:06d}" for i in range(12)]
    once = train(path, batch_size=5, repeat=False)
    assert keys(once) != everything
    assert sorted(keys(once)) == everything
    assert keys(once) == keys(once), "each `iter` over a description starts from the beginning"
    assert keys(train(path, repeat=False, shuffle_over_epochs_multiplier=None)) == everything
    limited = get_val_dataset(path, split_part="train", batch_size=5, limit=2)
    assert keys(limited) == keys(limited) == everything[:10]
    assert keys(get_val_dataset(path, split_part="train", batch_size=4, subset=["25%", "75%"])) == everything[3:9]


def test_seeds(text_dataset: MakeDataset) -> None:
    path = text_dataset(24)
    orders = [
        keys(train(path, seed=seed, worker_config=WorkerConfig(0, 1, seed_offset=offset)), 12)
        for seed, offset in ((0, 0), (1, 0), (0, 1))
    ]
    assert len({tuple(order) for order in orders}) == 3


def test_single_samples(text_dataset: MakeDataset) -> None:
    samples = list(train(text_dataset(12), batch_size=None, repeat=False))
    assert len(samples) == 12
    assert all(type(sample) is TextSample for sample in samples)


def test_files_that_change_between_the_call_and_the_first_batch_are_read_again(text_dataset: MakeDataset) -> None:
    path = text_dataset(12, 2)
    split = path / ".nv-meta" / "split.yaml"
    both = split.read_text()
    dataset, copied = (get_val_dataset(path, split_part="train", batch_size=2) for _ in range(2))
    split.write_text(both.replace(", 'shard_001.tar'", ""))
    assert keys(dataset) == [f"{number:06d}" for number in range(6)]
    split.write_text(both)
    assert keys(dataset) == keys(pickle.loads(pickle.dumps(copied))) == [f"{number:06d}" for number in range(12)]
