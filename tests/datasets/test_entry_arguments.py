from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from energon_grain import (
    BatchDataset,
    BlendDataset,
    BlendEpochizedDataset,
    ConfigError,
    Cooker,
    DefaultTaskEncoder,
    SampleDecoder,
    WorkerConfig,
    generic_batch,
    get_savable_loader,
    get_train_dataset,
    get_val_dataset,
)
from energon_grain.testing import make_text_dataset


class Encoder(DefaultTaskEncoder):
    def __init__(self, **attributes: Any) -> None:
        super().__init__()
        for name, value in attributes.items():
            setattr(self, name, value)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"worker_config": 4}, r"worker_config=4: expected a WorkerConfig"),
        ({"task_encoder": Encoder}, r"task_encoder=Encoder: is a class; give an object of it, Encoder\(…\)"),
        ({"task_encoder": len}, "derives from TaskEncoder"),
        ({"task_encoder": Encoder(decoder="rgb8")}, r"Encoder\.decoder = 'rgb8': expected a SampleDecoder"),
        ({"task_encoder": Encoder(decoder=SampleDecoder)}, "expected a SampleDecoder"),
        ({"task_encoder": Encoder(cookers=Cooker(len))}, r"Encoder\.cookers = .*: expected a list of cookers"),
        ({"task_encoder": Encoder(cookers=[len])}, "expected a list of cookers"),
        (
            {"task_encoder": Encoder(build_cook_crude_sample=len)},
            r"Encoder\.build_cook_crude_sample would never be called",
        ),
        ({"seed": "7"}, r"seed='7': expected a whole number"),
    ],
)
def test_what_is_something_else_is_told_where_it_is_given(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        get_train_dataset("none", batch_size=2, shuffle_buffer_size=None, max_samples_per_sequence=None, **arguments)
    with pytest.raises(ConfigError, match=message):
        get_val_dataset("none", batch_size=2, **arguments)


class Misspelt(DefaultTaskEncoder):
    def encode_sampel(self, sample: Any) -> Any:
        raise NotImplementedError

    def encode_batch(self, batch: Any) -> Any:
        return self.encode_batchs(batch)

    def encode_batchs(self, batch: Any) -> Any:  # a part of the hook, which is there
        return batch


def test_a_method_that_is_nearly_called_as_a_hook_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    make_text_dataset(tmp_path / "data", n=8)
    get_val_dataset(tmp_path / "data", batch_size=2, task_encoder=Encoder())
    assert not caplog.messages
    get_val_dataset(tmp_path / "data", batch_size=2, task_encoder=Misspelt())
    (message,) = caplog.messages
    assert message == "Misspelt.encode_sampel is no hook, and is not called by itself. Did you mean 'encode_sample'?"


def test_none_is_no_number_where_it_has_no_meaning() -> None:
    with pytest.raises(ConfigError, match="virtual_epoch_length=None: expected a whole number of batches, or 0"):
        get_train_dataset(
            "none",
            batch_size=2,
            shuffle_buffer_size=None,
            max_samples_per_sequence=None,
            virtual_epoch_length=None,  # type: ignore[arg-type]
        )


@pytest.mark.parametrize(
    "numbers",
    [
        {"batch_size": np.int64(2)},
        {"batch_size": 2, "lanes": np.int64(6)},
        {"batch_size": 2, "packing_buffer_size": np.int32(3)},
        {"batch_size": 2, "virtual_epoch_length": np.int32(3)},
        {"batch_size": 2, "worker_config": WorkerConfig(*np.array([0, 1, 1]), seed_offset=np.int64(1))},  # type: ignore[arg-type]
    ],
)
def test_numbers_of_numpy_are_numbers(text_dataset: Callable[..., Path], numbers: dict[str, Any]) -> None:
    class Packs(DefaultTaskEncoder):
        def select_samples_to_pack(self, samples: Any) -> Any:
            return [samples]

        def pack_selected_samples(self, samples: Any) -> Any:
            return samples[0]

    dataset = get_train_dataset(
        text_dataset(20), shuffle_buffer_size=None, max_samples_per_sequence=None, task_encoder=Packs(), **numbers
    )
    with get_savable_loader(dataset) as loader, get_savable_loader(dataset) as other:
        next(loader)
        other.restore_state_rank(json.loads(json.dumps(loader.save_state_rank())))
        assert next(loader).__key__ == next(other).__key__


def test_mixtures_of_numbers_of_numpy(text_dataset: Callable[..., Path]) -> None:
    samples = get_train_dataset(
        text_dataset(20), batch_size=None, shuffle_buffer_size=None, max_samples_per_sequence=None, repeat=False
    )
    for mixture in (
        BlendDataset((samples, np.int64(3)), (samples, 1)),  # type: ignore[arg-type]
        BlendDataset(samples, samples, schedule=[(np.int64(0), np.array([1, 2])), (np.int64(4), [1, 0])]),  # type: ignore[list-item]
        BlendEpochizedDataset((samples, np.int32(2)), (samples, np.float32(0.7))),  # type: ignore[arg-type]
    ):
        with get_savable_loader(BatchDataset(mixture, 4, generic_batch)) as loader:
            next(loader)
            assert json.loads(json.dumps(loader.save_state_rank())) == loader.save_state_rank()


def test_a_seed_of_numpy_is_a_seed(text_dataset: Callable[..., Path]) -> None:
    def loader(seed: Any) -> Any:
        return get_savable_loader(
            get_train_dataset(
                text_dataset(8), batch_size=2, shuffle_buffer_size=None, max_samples_per_sequence=None, seed=seed
            )
        )

    with loader(np.int64(7)) as one, loader(7) as other:
        assert next(one).__key__ == next(other).__key__
        other.restore_state_rank(one.save_state_rank())
