"""Compare the batches of both backends for one dataset."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from digits import DigitEncoder, train_dataset
from train_torch import TensorDigitEncoder

import energon_grain
import energon_grain_torch


def same_in_both(dataset: Path, state: Any, steps: int) -> bool:
    """Return whether the core's loader and the PyTorch loader deliver equal batches, step by step, from a saved state.

    Args:
        dataset: Path of the digits.
        state: The state to start from, saved by either loader on any number of ranks. None starts at the beginning.
        steps: Number of batches to compare.
    """
    ours = energon_grain.WorkerConfig(rank=0, world_size=1)
    theirs = energon_grain_torch.WorkerConfig(rank=0, world_size=1)
    grain = energon_grain.get_savable_loader(train_dataset(dataset, DigitEncoder(augment=True), ours))
    torch = energon_grain_torch.get_savable_loader(train_dataset(dataset, TensorDigitEncoder(augment=True), theirs))
    with torch:
        grain.restore_state_rank(state)
        torch.restore_state_rank(state)
        same = all(_equal(next(grain), next(torch)) for _ in range(steps))
        same &= grain.save_state_rank() == torch.save_state_rank()
    grain.close()
    return same


def _equal(arrays: Any, tensors: Any) -> bool:
    """Return whether the keys, restore keys, array types and array contents are equal bit for bit."""
    pairs = [(arrays.image, tensors.image.numpy()), (arrays.label, tensors.label.numpy())]
    return (
        (arrays.__key__, arrays.__restore_key__) == (tensors.__key__, tensors.__restore_key__)
        and all(left.dtype == right.dtype and left.shape == right.shape for left, right in pairs)
        and all(np.array_equal(left.view(np.uint32), right.view(np.uint32)) for left, right in pairs)
    )
