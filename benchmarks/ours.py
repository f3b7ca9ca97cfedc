"""energon-grain's programs: those of Megatron-Energon, `peers/energon.py`, with the import redirected.

Exceptions are states, which are JSON, and `rgb8-256`: Energon's program resizes in a hook, while this decoder does
both.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import simplejpeg  # noqa: F401

import energon_grain

sys.modules["megatron.energon"] = energon_grain

from benchmarks.peers import energon as programs  # noqa: E402
from benchmarks.peers.energon import CrudeBlob, Pair, weigh  # noqa: E402

__all__ = ["CrudeBlob", "Pair", "build_loader", "restore", "save", "state_bytes", "weigh"]


class Resized(energon_grain.DefaultTaskEncoder[Any, Any, Any, Any]):
    """Images of 256 x 256 with the same filter. Made on demand, because earlier revisions have no `image_size`."""

    def __init__(self) -> None:
        super().__init__()
        self.decoder = energon_grain.SampleDecoder(image_decode="rgb8", image_size=256)


def build_loader(folder: str, program: str, workers: int, **options: Any) -> Any:
    """Return the loader of a program; see `peers/energon.py`."""
    encoder = options.pop("encoder", None) or (Resized() if program == "rgb8-256" else None)
    return programs.build_loader(folder, program, workers, encoder=encoder, trusted_modules=[__name__], **options)


def save(loader: Any) -> Any:
    """Return the loader's state."""
    return loader.get_state()


def restore(loader: Any, state: Any) -> None:
    """Set a new loader to a saved state."""
    loader.set_state(state)


def state_bytes(state: Any) -> int:
    """Return the size of the state in a checkpoint."""
    return len(state if isinstance(state, bytes) else json.dumps(state))
