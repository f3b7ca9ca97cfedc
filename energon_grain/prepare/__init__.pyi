# SPDX-License-Identifier: Apache-2.0
"""The public names and their modules. This list is the only one: type checkers read it, and lazy imports use it."""

from energon_grain.media.headers import (
    MediaFilterConfig as MediaFilterConfig,
    MediaFilterStrategy as MediaFilterStrategy,
)
from energon_grain.metadataset.samples import measure_dataset as measure_dataset

from .add_media import FolderReport as FolderReport, prepare_media as prepare_media
from .executors import RayExecutor as RayExecutor
from .measure import (
    MeasureProgress as MeasureProgress,
    MeasureReport as MeasureReport,
    column_function as column_function,
)
from .media_headers import index_videos as index_videos
from .preparation import PrepareReport as PrepareReport, prepare_dataset as prepare_dataset
from .scan import MediaReport as MediaReport, PrepareProgress as PrepareProgress

__all__: list[str]
