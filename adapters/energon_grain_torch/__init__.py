# SPDX-License-Identifier: Apache-2.0
"""energon-grain for PyTorch: the names of `energon_grain`, with tensors, `torch.distributed` and `DataLoader` workers.

Order, reading, batching and state are those of the core, so both backends deliver the same batches and restore each
other's state. Neither grain nor jax is imported.
"""

from __future__ import annotations

import importlib

import energon_grain
from energon_grain.extras import needed_for
from energon_grain.lazy_names import from_stub

with needed_for("energon_grain_torch"):
    importlib.import_module("torch")

from energon_grain_torch import tensors as tensors  # registers itself

__getattr__, __dir__ = from_stub(globals(), besides=energon_grain)
