# SPDX-License-Identifier: Apache-2.0
"""Prepare folders of tars as datasets: indices, splits, sample types.

Names are imported lazily: a worker process imports this package for one small module.
"""

from __future__ import annotations

from energon_grain.lazy_names import from_stub

__getattr__, __dir__ = from_stub(globals())
