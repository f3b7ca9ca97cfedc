"""energon-grain's programs: Megatron-Energon's themselves, `peers/energon.py`, their import led to ours.

But for states, which ours gives as JSON, and for `rgb8-256`: there a hook resizes what the decoder made, here the
decoder does both.
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
    """Images of 256 x 256, by the same filter. Made here, as earlier revisions have no `image_size`."""

    def __init__(self) -> None:
        super().__init__()
        self.decoder = energon_grain.SampleDecoder(image_decode="rgb8", image_size=256)


def build_loader(folder: str, program: str, workers: int, **options: Any) -> Any:
    """The loader of a program; see there."""
    encoder = Resized() if program == "rgb8-256" else None
    return programs.build_loader(folder, program, workers, encoder=encoder, trusted_modules=[__name__], **options)


def save(loader: Any) -> Any:
    """The loader's state."""
    return loader.get_state()


def restore(loader: Any, state: Any) -> None:
    """Set a new loader to a saved state."""
    loader.set_state(state)


def state_bytes(state: Any) -> int:
    """How large the state is in a checkpoint."""
    return len(state if isinstance(state, bytes) else json.dumps(state))
