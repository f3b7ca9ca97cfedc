# SPDX-License-Identifier: Apache-2.0
"""Building what a folder of tars needs to be a dataset: indices, splits, sample types.

Names are imported when they are first asked for: a worker process imports this package for one small module.
"""

from __future__ import annotations

from energon_grain.lazy_names import from_stub

__getattr__, __dir__ = from_stub(globals())
