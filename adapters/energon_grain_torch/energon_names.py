# SPDX-License-Identifier: Apache-2.0
"""Names that exist only in Energon: its file names, and small functions that this library does not need.

Served through `as_megatron_energon`, and not used otherwise.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml

from energon_grain.datasets.hooks import failure_tolerance_of
from energon_grain.formats import nv_meta
from energon_grain.media.headers import MediaFilterConfig
from energon_grain.prepare.add_media import prepare_media
from energon_grain.samples import sample as samples
from energon_grain.samples.sample import get_source_info as get_source_info, pin_memory
from energon_grain.storage.epath import EPath

_SHOWN = 10
DEFAULT_PROFILE_NAME = "__filesystem__"
INDEX_SQLITE_FILENAME = nv_meta.INDEX_SQLITE
INDEX_UUID_FILENAME = nv_meta.INDEX_UUID
INFO_JSON_FILENAME = nv_meta.INFO_JSON
INFO_YAML_FILENAME = nv_meta.INFO_YAML
JOIN_INDEX_FILENAME = "join_index.bin"
NVDATASET_CACHE_DIR = EPath(os.environ["NVDATASET_CACHE_DIR"]) if "NVDATASET_CACHE_DIR" in os.environ else None
MAIN_FOLDER_NAME = nv_meta.META_FOLDER
SPLIT_YAML_FILENAME = "split.yaml"
split_name_re = re.compile(r"^((?:.*/|)[^.]+)[.]([^/]*)$")
skip_meta_re = re.compile(r"__[^/]*__($|/)")

get_failure_tolerance = failure_tolerance_of


def get_dataset_info(path: EPath) -> dict[str, Any]:
    """Return the content of `.info.json` of a prepared dataset as a dictionary."""
    return json.loads(nv_meta.encode_info(nv_meta.read_info(path)))


def prepare_filesystem_dataset(
    root_path: EPath,
    media_filter: MediaFilterConfig,
    *,
    progress: bool,
    workers: int = 16,
    index_sqlite_tmp_path: Path | None = None,
) -> int:
    """Collect metadata of the media in a plain folder; see `prepare_media`. Returns the number with metadata."""
    del progress, index_sqlite_tmp_path
    report = prepare_media(root_path, media_filter, num_workers=workers)
    assert report.media is not None
    return report.media.found


def get_stateless(fn: Any) -> bool:
    """Return True: every hook counts as stateless."""
    return True


class _SameInstances(type):
    """Metaclass of classes that stand for another one: instances of that class count as their instances."""

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, samples.SourceInfo)


class SourceInfo(metaclass=_SameInstances):
    """Makes `energon_grain.SourceInfo`s, also from Energon's pickles, which fill an empty one."""

    def __new__(cls, **fields: Any) -> Any:
        """Return a `SourceInfo` with these fields; without fields, one that `__setstate__` fills."""
        blank: dict[str, Any] = {"dataset_path": EPath("."), "index": 0, "shard_name": "", "file_names": ()}
        return samples.SourceInfo(**(fields or blank))


class State(dict[str, Any]):
    """A state of a loader, or of a part of one, saved by Energon. It can be loaded, inspected and saved again.

    Loaders of this library cannot restore it. Use `skip` on a new loader to reach the step.
    """

    def __init__(self, *args: Any, **fields: Any) -> None:
        super().__init__(*args, **fields)

    def __setstate__(self, state: Any) -> None:
        for part in state if isinstance(state, tuple) else (state,):
            self.update(part or {})


@dataclasses.dataclass(slots=True)
class AVProbeIndexEntry:
    """A packet of a video."""

    timestamp: int
    is_keyframe: bool


class AVProbeIndex:
    """The packets of a video, in the order of the container, with their presentation times."""

    def __init__(self, container: Any, stream_idx: int = 0) -> None:
        packets = (packet for packet in container.demux(video=stream_idx) if packet.pts is not None)
        self._entries = [AVProbeIndexEntry(packet.pts, packet.is_keyframe) for packet in packets]
        container.seek(0)

    def __len__(self) -> int:
        return len(self._entries)

    def __getitem__(self, place: int) -> AVProbeIndexEntry:
        return self._entries[place]

    def search_timestamp(self, timestamp: int, *, backward: bool = True, any_frame: bool = False) -> int:
        """Return the position of the last keyframe at or before a time, or the first one if all are later; -1 if none.

        Args:
            timestamp: The time.
            backward: If False, find the first keyframe at or after the time.
            any_frame: Whether other frames count too.
        """
        places = [place for place, entry in enumerate(self._entries) if any_frame or entry.is_keyframe]
        if backward:
            before = [place for place in places if self._entries[place].timestamp <= timestamp] or places[:1]
            return max(before, default=-1)
        return min((place for place in places if self._entries[place].timestamp >= timestamp), default=-1)


class PinMemoryMixin:
    """Adds `pin_memory`, which every `Sample` and `Batch` has, to another type."""

    def pin_memory(self) -> Any:
        """Return a copy with the tensors in pinned memory."""
        return pin_memory(self)


def format_sample_compact(sample: Any) -> str:
    """Format a sample in one line, for messages."""
    return " ".join(format_sample_detailed(sample).split())


def format_sample_detailed(sample: Any) -> str:
    """Format a sample as YAML; arrays and tensors as shape, type, range and first values."""
    text: str = yaml.safe_dump(_plain(sample), sort_keys=False, allow_unicode=True, width=sys.maxsize)
    return text.rstrip("\n")


def _plain_entries(mapping: Mapping[Any, Any]) -> dict[str, Any]:
    return {str(name): _plain(value) for name, value in mapping.items()}


def _builtin(value: float | str) -> float | str:
    """Convert an enumeration member or a numpy number, which YAML does not support."""
    return int(value) if isinstance(value, int) else float(value) if isinstance(value, float) else str(value)


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int | float | str):
        return _builtin(value)
    if isinstance(value, Mapping):
        return _plain_entries(value)  # pyright: ignore[reportUnknownArgumentType]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        return {type(value).__name__: _plain_entries(fields)}
    if isinstance(value, torch.Tensor | np.ndarray):
        return _summary(value)
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]  # pyright: ignore[reportUnknownVariableType]
    if isinstance(value, bytes | memoryview):
        return f"{type(value).__name__}(len={len(value)}, starts={bytes(value[:_SHOWN])!r})"
    return repr(value)


def _summary(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        kind, where, listed = "Tensor", f", device={value.device}", value.flatten()[:_SHOWN].tolist()
        narrow = value.is_floating_point() and value.itemsize < 4  # numpy lacks some of these types
        numbers = (value.float() if narrow else value).detach().cpu().numpy()
    else:
        kind, where, listed = "np.ndarray", "", list(value.ravel()[:_SHOWN])
        numbers = value
    ordered = numbers.size and numbers.dtype.kind in "biuf"
    extent = f", min={numbers.min().item()}, max={numbers.max().item()}" if ordered else ""
    listing = ", ".join([*map(repr, listed), *(["…"] if numbers.size > _SHOWN else [])])
    return f"{kind}(shape={value.shape}, dtype={value.dtype}{where}{extent}, values=[{listing}])"
