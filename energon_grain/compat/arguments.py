# SPDX-License-Identifier: Apache-2.0
"""Keywords of Energon's functions that have no effect in this library, or are set elsewhere."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypedDict

from energon_grain.datasets.dataset import SavableDataset
from energon_grain.errors import ConfigError
from energon_grain.samples.subscripts import Item
from energon_grain.watch.watchdog_dataset import WatchdogDataset

if TYPE_CHECKING:
    from energon_grain.task_encoder import TaskEncoder
    from energon_grain.transforms.decode import SampleDecoder


class EnergonArguments(TypedDict, total=False):
    """Further arguments of loaders: those of a `WatchdogDataset`, and accepted ones without effect.

    Saving takes microseconds and needs no internal checkpoints, and the garbage collector is paused where it would cost
    time. Dead workers are always detected; the watchdog detects hangs.

    Attributes:
        checkpoint_every_sec: Energon's interval between internal checkpoints; no effect.
        checkpoint_every_min_n_samples: No effect.
        n_checkpoints: Energon's number of internal checkpoints; no effect.
        gc_collect_every_n_steps: Energon's interval of garbage collection; no effect.
        watchdog_timeout_seconds: Maximum time to wait for a batch before the stacks of all threads are written to
            stderr, with a RuntimeWarning; None (the default) disables the watchdog.
        watchdog_initial_timeout_seconds: The same for the first batch. Default: the same time.
        fail_on_timeout: Whether the process then exits.
    """

    checkpoint_every_sec: float | None
    checkpoint_every_min_n_samples: int | None
    n_checkpoints: int | None
    gc_collect_every_n_steps: int | None
    watchdog_timeout_seconds: float | None
    watchdog_initial_timeout_seconds: float | None
    fail_on_timeout: bool | None


def watched(dataset: SavableDataset[Item], arguments: Mapping[str, Any]) -> SavableDataset[Item]:
    """Return the dataset with the watchdog of the arguments.

    Raises:
        ConfigError: A timeout is not positive.
        TypeError: An argument is unknown.
    """
    for name in arguments:
        if name not in EnergonArguments.__annotations__:
            raise TypeError(f"get_savable_loader() got an unexpected keyword argument {name!r}")
    timeout = arguments.get("watchdog_timeout_seconds")
    if timeout is None:
        return dataset
    return WatchdogDataset(
        dataset,
        timeout_seconds=timeout,
        initial_timeout_seconds=arguments.get("watchdog_initial_timeout_seconds"),
        fail_on_timeout=bool(arguments.get("fail_on_timeout")),
    )


class DeprecatedArguments(TypedDict, total=False):
    """Arguments that are now part of the task encoder's `decoder`, and `handler`, which has no effect.

    Attributes:
        auto_decode: False sets `decoder = None`.
        image_decode: See `SampleDecoder`, also for `av_decode` and `video_decode_audio`.
        handler: Ignored; use `WorkerConfig(global_error_handler=…)`.
    """

    auto_decode: bool
    image_decode: Any
    av_decode: Any
    video_decode_audio: bool
    handler: Any


def fold_deprecated(task_encoder: TaskEncoder, arguments: Mapping[str, Any]) -> None:
    """Set the task encoder's decoder from the given `DeprecatedArguments`, with a warning.

    Raises:
        ConfigError: The task encoder has its own, different decoder.
    """
    if "handler" in arguments:
        _warn("handler is ignored; use WorkerConfig(global_error_handler=…)")
    options = {
        name: arguments[name] for name in ("image_decode", "av_decode", "video_decode_audio") if name in arguments
    }
    if not arguments.get("auto_decode", True):
        _warn("auto_decode is deprecated; set `decoder = None` in the task encoder")
        _set_decoder(task_encoder, None, "auto_decode")
    elif options:
        names = ", ".join(options)
        _warn(f"{names}: deprecated; set `decoder = SampleDecoder(…)` in the task encoder")
        _set_decoder(task_encoder, task_encoder.decoder_type(**options), names)


def _set_decoder(task_encoder: TaskEncoder, decoder: SampleDecoder | None, names: str) -> None:
    present = task_encoder.decoder
    if present == decoder:
        return
    if present != task_encoder.decoder_type():
        raise ConfigError(
            f"{names}: {type(task_encoder).__name__} has its own decoder {present!r}, which this would replace: set it "
            f"only there"
        )
    task_encoder.decoder = decoder


def _warn(message: str) -> None:
    """Warn at the line of the program that called this library."""
    level, frame = 1, sys._getframe()
    ours = ("energon_grain", "energon_grain_torch")
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in ours:
        level, frame = level + 1, frame.f_back
    warnings.warn(message, DeprecationWarning, stacklevel=level)
