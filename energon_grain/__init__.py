# SPDX-License-Identifier: Apache-2.0
"""Deterministic, resumable data loading for Energon WebDatasets, for JAX through Grain and for PyTorch.

The names below are imported on first use. `import energon_grain` is cheap: it loads neither Grain nor JAX.
"""

from __future__ import annotations

from energon_grain._version import __version__ as __version__
from energon_grain.lazy_names import from_stub

__getattr__, __dir__ = from_stub(globals())
