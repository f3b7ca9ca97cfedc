"""Building what a folder of tars needs to be a dataset: indices, splits, sample types."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from energon_grain.prepare.executors import RayExecutor
    from energon_grain.prepare.preparation import PrepareReport, prepare_dataset
    from energon_grain.prepare.scan import PrepareProgress
    from energon_grain.prepare.video_index import index_videos

__all__ = ["PrepareProgress", "PrepareReport", "RayExecutor", "index_videos", "prepare_dataset"]

_HOMES = {
    "PrepareProgress": "scan",
    "PrepareReport": "preparation",
    "RayExecutor": "executors",
    "index_videos": "video_index",
    "prepare_dataset": "preparation",
}


def __getattr__(name: str) -> Any:
    # Lazy: a worker process imports this package for one small module.
    if name in _HOMES:
        return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
