# SPDX-License-Identifier: Apache-2.0
"""Exact, elastic and fast data loading for Energon WebDatasets, for JAX through Grain and for PyTorch.

Everything below is imported when it is first used: `import energon_grain` by itself costs next to nothing, and neither
Grain nor JAX is loaded before a loader is made.
"""

from __future__ import annotations

from energon_grain._version import __version__ as __version__
from energon_grain.lazy_names import from_stub

__getattr__, __dir__ = from_stub(globals())
