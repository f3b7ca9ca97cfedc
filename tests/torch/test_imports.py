"""What the adapter imports and names."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import energon_grain
import energon_grain_torch

RunScript = Callable[..., Any]

LAZY = """
import sys

def heavy():
    return sorted({"grain", "jax", "jaxlib", "orbax", "tensorstore", "tensorflow"} & sys.modules.keys())

import energon_grain_torch
assert heavy() == [], heavy()
from energon_grain_torch import WorkerConfig, get_savable_loader, get_train_dataset
for num_workers in 0, 1:
    dataset = get_train_dataset(
        sys.argv[1], batch_size=4, shuffle_buffer_size=10, max_samples_per_sequence=4,
        worker_config=WorkerConfig.default_worker_config(num_workers),
    )
    with get_savable_loader(dataset) as loader:
        loader.restore_sample(next(loader).__restore_key__)
        loader.restore_state_global(loader.save_state_global())
        loader.load_state_dict(loader.state_dict())
        assert loader.which(1)
for name in energon_grain_torch.__all__:
    assert getattr(energon_grain_torch, name), name
assert heavy() == [], heavy()
"""


def test_neither_jax_nor_grain(text_dataset: Callable[..., Path], run_script: RunScript) -> None:
    done = run_script(LAZY, text_dataset(53))
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""


def test_all_names_of_the_core_and_more() -> None:
    names = energon_grain_torch.__all__
    assert names == sorted(set(names))
    assert set(names) > set(energon_grain.__all__)
    for name in names:
        assert getattr(energon_grain_torch, name) is not None, name
    assert set(names) <= set(dir(energon_grain_torch))


def test_the_adapter_s_own_names_take_the_place_of_the_core_s() -> None:
    shared = energon_grain.__all__
    different = {name for name in shared if getattr(energon_grain_torch, name) is not getattr(energon_grain, name)}
    assert different == set(energon_grain_torch._OURS) & set(shared)
