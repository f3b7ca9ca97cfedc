"""PyTorch's global generator, for hooks with `@stateless(restore_seeds=True)`. Importing this registers it."""

from __future__ import annotations

import torch
from torch import default_generator

from energon_grain.stream.hooks import GENERATORS, GlobalGenerator

GENERATORS["torch"] = GlobalGenerator(
    seed=lambda seed: default_generator.manual_seed(seed),
    get_state=torch.get_rng_state,
    set_state=torch.set_rng_state,
)
