"""Page-locked memory, from which an accelerator fetches batches while the program goes on."""

from __future__ import annotations

from typing import Any

import torch

from energon_grain.samples.fields import pin_memory


class PinMemory:
    """Copies the tensors of batches into page-locked memory.

    It runs where batches are made: with workers that is another thread, so the copy does not hold up the training loop.

    Args:
        device: Index of the CUDA device that the program uses.
    """

    def __init__(self, device: int) -> None:
        self._device = device

    def __call__(self, batch: Any) -> Any:
        """The batch, its tensors page-locked."""
        torch.cuda.set_device(self._device)  # each thread has its own
        return pin_memory(batch)


def pinning(wanted: bool | None) -> PinMemory | None:
    """What pins batches; None: nothing does, or there is no CUDA device.

    Args:
        wanted: None: where there is a CUDA device.
    """
    if wanted is False or not torch.cuda.is_available():
        return None
    return PinMemory(torch.cuda.current_device())
