"""energon-grain in PyTorch: docs/train-with-pytorch.md, docs/mix-datasets.md, docs/resume.md, docs/how-to/pack.md."""

from __future__ import annotations

from typing import Any

import energon_grain_torch as library
from benchmarks.truth.loaders import energon_grain_jax
from benchmarks.truth.loaders.energon_grain_jax import Hooks


class Encoder(Hooks, library.DefaultTaskEncoder[Any, Any, Any, Any]):
    """The hooks, for torch."""


class Loader(energon_grain_jax.Loader):
    """The savable loader of the torch adapter."""

    name = "energon-grain-torch"
    page = "https://energon-grain.readthedocs.io/en/latest/train-with-pytorch/"
    settings = energon_grain_jax.Loader.settings.replace("processes", "`DataLoader` processes").replace(
        "get_state", "state_dict"
    )
    library: Any = library
    encoder: Any = Encoder
    processes = "dataloader"
