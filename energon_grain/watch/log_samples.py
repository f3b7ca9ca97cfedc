# SPDX-License-Identifier: Apache-2.0
"""What hands items on as they are: noting which samples went into each, collecting garbage."""

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
    """Keys of the samples in a batch, or of a sample: what it has as `__key__`, `__keys__` or (a dictionary) `keys`.

    None: it has nothing of the kind. A list of samples has the keys of all.
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
    """The items of a dataset, each noted as it is made: one line of `WorkerConfig.worker_debug_path`.

    A line is `{"t": "yield_batch", "r": rank, "w": worker, "m": mode, "epoch": pass, "idx": number, "keys": [...]}`.
    `idx` is the number of the batch on this host and in this pass; of items that are not yet batched, the position of
    the item. Lines are written where and when items are made: with worker processes maybe in their files, some ahead of
    what is delivered, and again for what is made again (after a resume, or because of a drop). What comes out does not
    change, nor does the state.

    `get_train_dataset` puts one below virtual epochs where `worker_log_level` is 1 or more, `get_val_dataset` one below
    `limit` where it is 2 or more.

    Args:
        dataset: What is passed on.
        mode: "train" or "val", for the lines.
        worker_config: Says where to write; with `worker_log_level=0` nothing is written. Default: that of the dataset.
        get_keys_fn: Names the samples of an item; None: nobody knows them.
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
    """Writes a line about an item and hands it on."""

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
            # An item must not be dropped because it could not be noted.
            raise FatalSampleError(f"LogSampleDataset cannot note an item: {type(error).__name__}: {error}") from error
        return item


def _number(draw: Draw) -> int:
    if draw.index < 0:  # not a sample as it is read
        try:
            return draw.batch_index
        except RuntimeError:
            pass
    return draw.position


@dataclass(frozen=True, slots=True, init=False)
class GcDataset(MapDataset):
    """The items of a dataset, with a full garbage collection after every `every_n_iter` of them.

    It happens where the items are made, by themselves in each process that makes some. It helps hooks whose objects
    refer to each other in circles and hold much memory; loaders by themselves leave no such circles. Making samples
    pauses the automatic collector for about half a second at most; this one is not automatic and runs nevertheless.

    Args:
        dataset: What is passed on.
        worker_config: Default: that of the dataset.
        every_n_iter: Items from one collection to the next.
        freeze: Accepted for compatibility: `gc.freeze` is about the whole process, in which other loaders live too.
            Call it before the training loop, where it shortens every collection.

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
    """Hands items on and counts them."""

    every: int
    passed: int = 0

    def __call__(self, item: Any) -> Any:
        self.passed += 1
        if self.passed >= self.every:
            self.passed = 0
            gc.collect()
        return item
