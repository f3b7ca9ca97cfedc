# SPDX-License-Identifier: Apache-2.0
"""Batches as the consumer receives them."""

from __future__ import annotations

import dataclasses
import threading
from contextlib import nullcontext
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from energon_grain.errors import ConfigError, FatalSampleError
from energon_grain.samplers.hashing import fold
from energon_grain.stream.clock import Clock
from energon_grain.stream.drops import DropBudget, Dropped, raise_if_fatal
from energon_grain.stream.hooks import HookSpec, call_hook
from energon_grain.stream.spec import BatchSpec

RestoreKey = tuple[Any, ...]
"""See `history.replay`."""
_NO_LOCK = nullcontext()
NO_BATCH = object()
"""Takes the place of a batch that hooks dropped."""


class BatchDropped(Exception):  # noqa: N818 (a signal, not a failure)
    """A batch hook raised an error."""

    def __init__(self, hook: HookSpec, error: Exception, value: Any) -> None:
        super().__init__(hook.name)
        self.hook = hook
        self.error = error
        self.value = value


class BatchMaker:
    """Runs the batch hooks. It is pure and can run in any thread or process.

    Args:
        hook_lock: Held around hooks that must not run at the same time as others.
    """

    def __init__(self, spec: BatchSpec, *, seed: int, hook_lock: threading.RLock) -> None:
        self._lock = hook_lock
        self._hooks = [(hook, fold(seed, "batch hooks", hook.name)) for hook in (spec.hook, *spec.encode)]

    def make(
        self,
        samples: list[Any],
        restore_keys: list[tuple[Any, ...]],
        *,
        item: int,
        pass_number: int,
        step: int,
        valid: npt.NDArray[np.bool_] | None,
        clock: Clock | None = None,
    ) -> Any:
        """Make one batch.

        Args:
            samples: The items of this host.
            restore_keys: Restore keys of the samples.
            item: Global number of the first item, counted over all passes. It keys the random numbers.
            pass_number: For the draw of batch hooks.
            step: Number of the step in the pass, for the draw of batch hooks.
            valid: (batch,) True for real samples, False for padding; None: all are real.
            clock: Measures the times of hooks; None: nothing is measured.

        Raises:
            BatchDropped: A hook raised an error.
            ConfigError: The batch has no place for the validity mask.
        """
        value: Any = samples
        for hook, key in self._hooks:
            try:
                lock: Any = _NO_LOCK if hook.concurrent else self._lock
                if clock is not None:
                    lock = clock.timing(hook, lock)
                value = call_hook(hook, key, [item], value, lock, epoch=pass_number, batch=step)
            except Exception as error:
                raise BatchDropped(hook, error, value) from error
        if valid is not None:
            value = with_validity(value, valid)
        padding = None if valid is None else tuple(np.flatnonzero(~valid).tolist())
        return with_restore_key(value, ("batch", pass_number, step, item, padding, *restore_keys))


class BatchStage:
    """Makes batches and counts dropped ones.

    Args:
        spec: None: samples are delivered one by one.
        hosts: Number of hosts. With several hosts, a batch dropped on one of them ends the iteration.
    """

    def __init__(
        self, spec: BatchSpec | None, *, seed: int, hosts: int, hook_lock: threading.RLock, drops: DropBudget
    ) -> None:
        self._maker = None if spec is None else BatchMaker(spec, seed=seed, hook_lock=hook_lock)
        self._hosts = hosts
        self._drops = drops

    def make(self, samples: list[Any], restore_keys: list[tuple[Any, ...]], **numbers: Any) -> Any:
        """One batch, or `NO_BATCH` if it was dropped. Arguments are those of `BatchMaker.make`.

        Raises FatalSampleError if a hook raised an error of `FATAL` or too many batches in a row were dropped, and
        ConfigError if the batch has no place for the validity mask.
        """
        if self._maker is None:
            return with_restore_key(samples[0], restore_keys[0])
        try:
            return self._maker.make(samples, restore_keys, **numbers)
        except BatchDropped as dropped:
            self._fail(dropped.hook, dropped.error, dropped.value)
            return NO_BATCH

    def _fail(self, hook: HookSpec, error: Exception, value: Any) -> None:
        raise_if_fatal(error, hook.name, "a batch")
        if self._hosts > 1:
            raise FatalSampleError(
                f"{hook.name} dropped a batch ({type(error).__name__}: {error}) on one of {self._hosts} hosts; the "
                f"other hosts would have one batch more. Drop samples in `encode_sample` instead"
            ) from error
        self._drops.drop(
            Dropped(
                leaf=-1,
                hook=hook.name,
                failure_tolerance=hook.failure_tolerance,
                error=error,
                sample=value,
                what="batch",
            )
        )


def with_validity(batch: Any, valid: npt.NDArray[np.bool_]) -> Any:
    """The batch with its mask: under the key `__valid__` of a dict, or in the field `__valid__` of a dataclass.

    Raises ConfigError if the batch is neither, or is a dataclass without the field.
    """
    if isinstance(batch, dict):
        batch["__valid__"] = valid
        return batch
    if dataclasses.is_dataclass(batch) and any(field.name == "__valid__" for field in dataclasses.fields(batch)):
        cast("Any", batch).__valid__ = valid
        return batch
    raise ConfigError(
        f"last_batch='pad' fills the last batch and marks real rows in `__valid__`, but a {type(batch).__name__} has "
        f"no place for it: derive the batch from `Batch` or `Sample`, add a field "
        f"`__valid__: np.ndarray | None = None`, return a dict, or use last_batch='drop'"
    )


def with_restore_key(value: Any, key: RestoreKey) -> Any:
    """The value. Sets its attribute `__restore_key__`, or that key of a dict, if it has one."""
    if isinstance(value, dict):
        if "__restore_key__" in value:
            cast("dict[str, Any]", value)["__restore_key__"] = key
    elif hasattr(value, "__restore_key__"):
        value.__restore_key__ = key
    return cast("Any", value)
