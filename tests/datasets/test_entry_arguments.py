from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from energon_grain import (
    ConfigError,
    Cooker,
    DefaultTaskEncoder,
    SampleDecoder,
    get_savable_loader,
    get_train_dataset,
    get_val_dataset,
)


class Encoder(DefaultTaskEncoder):
    def __init__(self, **attributes: Any) -> None:
        super().__init__()
        for name, value in attributes.items():
            setattr(self, name, value)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"worker_config": 4}, r"worker_config=4: a WorkerConfig is meant"),
        ({"task_encoder": Encoder}, r"task_encoder=Encoder: is a class; give an object of it, Encoder\(…\)"),
        ({"task_encoder": len}, "derives from TaskEncoder"),
        ({"task_encoder": Encoder(decoder="rgb8")}, r"Encoder\.decoder = 'rgb8': a SampleDecoder is meant"),
        ({"task_encoder": Encoder(decoder=SampleDecoder)}, "a SampleDecoder is meant"),
        ({"task_encoder": Encoder(cookers=Cooker(len))}, r"Encoder\.cookers = .*: a list of cookers is meant"),
        ({"task_encoder": Encoder(cookers=[len])}, "a list of cookers is meant"),
        ({"seed": "7"}, r"seed='7': a whole number is meant"),
    ],
)
def test_what_is_something_else_is_told_where_it_is_given(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        get_train_dataset("none", batch_size=2, shuffle_buffer_size=None, max_samples_per_sequence=None, **arguments)
    with pytest.raises(ConfigError, match=message):
        get_val_dataset("none", batch_size=2, **arguments)


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
