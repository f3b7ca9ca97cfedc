# SPDX-License-Identifier: Apache-2.0
"""Nodes that pass items on unchanged: logging the samples of each item, and collecting garbage."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any, ClassVar, Literal, cast

from energon_grain.datasets.dataset import SavableDataset, check_size
from energon_grain.datasets.mapping import MapDataset
from energon_grain.errors import FatalSampleError
from energon_grain.stream.hooks import Draw, current_draw
from energon_grain.stream.worker_config import WorkerConfig, WorkerLog

GetKeys = Callable[[Any], list[str] | None]


def default_get_batch_keys(batch: Any) -> list[str] | None:
    """Keys of the samples in a batch, or of a sample: its `__key__`, `__keys__` or (in a dictionary) `keys`.

    None: it has none of these. A list of samples has the keys of all of them.
    """
    if isinstance(batch, list):
        found = [default_get_batch_keys(sample) for sample in cast("list[Any]", batch)]
        return None if not found or None in found else list(chain.from_iterable(filter(None, found)))
    if isinstance(batch, Mapping):
        entries = cast("Mapping[Any, Any]", batch)
        candidates = [entries.get(name) for name in ("__key__", "__keys__", "keys")]
    else:
        candidates = [getattr(batch, name, None) for name in ("__key__", "__keys__")]
    return next((keys for keys in map(_texts, candidates) if keys is not None), None)


def _texts(keys: Any) -> list[str] | None:
    if isinstance(keys, str):
        return [keys]
    if not isinstance(keys, list | tuple):
        return None
    entries = cast("list[Any]", keys)
    return list(entries) if all(isinstance(key, str) for key in entries) else None


@dataclass(frozen=True, slots=True, init=False)
class LogSampleDataset(MapDataset):
    """The items of a dataset. Each is logged when it is made: one line in `WorkerConfig.worker_debug_path`.

    A line is `{"t": "yield_batch", "r": rank, "w": worker, "m": mode, "epoch": pass, "idx": number, "keys": [...]}`.
    `idx` is the number of the batch on this host and in this pass; for items that are not batched yet, the position of
    the item. Lines are written where and when items are made. With worker processes, they may be in the files of these.
    Some are ahead of delivery, and items that are made again (after a resume, or because of a drop) are logged again.
    The output and the state do not change.

    `get_train_dataset` adds this node below virtual epochs if `worker_log_level` is 1 or more, and `get_val_dataset`
    adds it below `limit` if it is 2 or more.

    Args:
        dataset: The dataset below.
        mode: "train" or "val", for the lines.
        worker_config: Where to write; with `worker_log_level=0` nothing is written. Default: that of the dataset.
        get_keys_fn: Returns the keys of the samples of an item; None: unknown.
    """

    _watches: ClassVar[bool] = True

    def __init__(
        self,
        dataset: SavableDataset,
        mode: Literal["train", "val"],
        worker_config: WorkerConfig | None = None,
        get_keys_fn: GetKeys = default_get_batch_keys,
    ) -> None:
        config = worker_config or dataset.worker_config
        log = config.log if config.should_log(1) else None
        MapDataset.__init__(
            self, dataset, _Note(mode=mode, log=log, keys=get_keys_fn), hook="log", worker_config=config
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Note:
    """Writes a line about an item and returns the item."""

    mode: str
    log: WorkerLog | None
    keys: GetKeys

    def __call__(self, item: Any) -> Any:
        if self.log is None:
            return item
        draw = current_draw()
        entry: dict[str, Any] = {
            "t": "yield_batch",
            "r": self.log.rank,
            "w": self.log.worker_id,
            "m": self.mode,
            "epoch": draw.epoch,
            "idx": _number(draw),
        }
        try:
            if (keys := self.keys(item)) is not None:
                entry["keys"] = keys
            self.log.write(entry)
        except Exception as error:
            # An item must not be dropped because it could not be logged.
            raise FatalSampleError(f"LogSampleDataset cannot log an item: {type(error).__name__}: {error}") from error
        return item


def _number(draw: Draw) -> int:
    if draw.index < 0:  # not a single sample
        try:
            return draw.batch_index
        except RuntimeError:
            pass
    return draw.position


@dataclass(frozen=True, slots=True, init=False)
class GcDataset(MapDataset):
    """The items of a dataset, with a full garbage collection after every `every_n_iter` of them.

    It runs where items are made, separately in each process that makes some. It helps if hooks make objects that refer
    to each other in cycles and hold much memory; loaders themselves leave no such cycles. Making samples pauses the
    automatic collector for at most about half a second. This collection is not automatic, so it runs anyway.

    Args:
        dataset: The dataset below.
        worker_config: Default: that of the dataset.
        every_n_iter: Items between two collections.
        freeze: Accepted for compatibility. `gc.freeze` affects the whole process, which may run other loaders too. Call
            it before the training loop, where it shortens every collection.

    Raises:
        ConfigError: `every_n_iter` is not a positive number.
    """

    _watches: ClassVar[bool] = True

    def __init__(
        self,
        dataset: SavableDataset,
        *,
        worker_config: WorkerConfig | None = None,
        every_n_iter: int = 10,
        freeze: bool = True,
    ) -> None:
        del freeze
        check_size(self, "every_n_iter", every_n_iter, "items")
        MapDataset.__init__(
            self, dataset, _Collect(every_n_iter), hook="gc", worker_config=worker_config or dataset.worker_config
        )


@dataclass(slots=True)
class _Collect:
    """Passes items on and counts them."""

    every: int
    passed: int = 0

    def __call__(self, item: Any) -> Any:
        self.passed += 1
        if self.passed >= self.every:
            self.passed = 0
            gc.collect()
        return item
