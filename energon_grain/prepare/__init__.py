"""Building what a folder of tars needs to be a dataset: indices, splits, sample types."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from energon_grain.media.headers import MediaFilterConfig, MediaFilterStrategy
    from energon_grain.prepare.add_media import FolderReport, prepare_media
    from energon_grain.prepare.executors import RayExecutor
    from energon_grain.prepare.preparation import PrepareReport, prepare_dataset
    from energon_grain.prepare.scan import MediaReport, PrepareProgress
    from energon_grain.prepare.video_index import index_videos

__all__ = [
    "FolderReport",
    "MediaFilterConfig",
    "MediaFilterStrategy",
    "MediaReport",
    "PrepareProgress",
    "PrepareReport",
    "RayExecutor",
    "index_videos",
    "prepare_dataset",
    "prepare_media",
]

_HOMES = {
    "FolderReport": "prepare.add_media",
    "MediaFilterConfig": "media.headers",
    "MediaFilterStrategy": "media.headers",
    "MediaReport": "prepare.scan",
    "PrepareProgress": "prepare.scan",
    "PrepareReport": "prepare.preparation",
    "RayExecutor": "prepare.executors",
    "index_videos": "prepare.video_index",
    "prepare_dataset": "prepare.preparation",
    "prepare_media": "prepare.add_media",
}


def __getattr__(name: str) -> Any:
    # Lazy: a worker process imports this package for one small module.
    if name in _HOMES:
        return getattr(importlib.import_module(f"energon_grain.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
