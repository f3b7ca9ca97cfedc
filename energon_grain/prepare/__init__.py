"""Building what a folder of tars needs to be a dataset: indices, splits, sample types."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from energon_grain.media.headers import MediaFilterConfig, MediaFilterStrategy
    from energon_grain.prepare.add_media import FolderReport, prepare_media
    from energon_grain.prepare.executors import RayExecutor
    from energon_grain.prepare.measure import MeasureProgress, MeasureReport, column_function, measure_dataset
    from energon_grain.prepare.media_headers import index_videos
    from energon_grain.prepare.preparation import PrepareReport, prepare_dataset
    from energon_grain.prepare.scan import MediaReport, PrepareProgress

__all__ = [
    "FolderReport",
    "MeasureProgress",
    "MeasureReport",
    "MediaFilterConfig",
    "MediaFilterStrategy",
    "MediaReport",
    "PrepareProgress",
    "PrepareReport",
    "RayExecutor",
    "column_function",
    "index_videos",
    "measure_dataset",
    "prepare_dataset",
    "prepare_media",
]

_HOMES = {
    "FolderReport": "prepare.add_media",
    "MediaFilterConfig": "media.headers",
    "MediaFilterStrategy": "media.headers",
    "MeasureProgress": "prepare.measure",
    "MeasureReport": "prepare.measure",
    "MediaReport": "prepare.scan",
    "PrepareProgress": "prepare.scan",
    "PrepareReport": "prepare.preparation",
    "RayExecutor": "prepare.executors",
    "column_function": "prepare.measure",
    "index_videos": "prepare.video_index",
    "measure_dataset": "prepare.measure",
    "prepare_dataset": "prepare.preparation",
    "prepare_media": "prepare.add_media",
}


def __getattr__(name: str) -> Any:
    # Lazy: a worker process imports this package for one small module.
    if name in _HOMES:
        return getattr(importlib.import_module(f"energon_grain.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
