# SPDX-License-Identifier: Apache-2.0
"""Keywords of Energon's functions that have nothing to set here, or are set elsewhere by now."""

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
    """Further arguments of loaders: those of a `WatchdogDataset`, and what is accepted and has no effect.

    Saving costs microseconds and keeps no internal checkpoints, and the garbage collector is paused where it costs
    time. A worker that dies is noticed by itself; the watchdog is for what hangs.

    Attributes:
        checkpoint_every_sec: Energon's interval between internal checkpoints.
        checkpoint_every_min_n_samples: Likewise.
        n_checkpoints: How many of them it keeps.
        gc_collect_every_n_steps: When it collects garbage.
        watchdog_timeout_seconds: For which the program may wait for a batch before the stacks of all threads are
            written to stderr, with a RuntimeWarning; None (the default): nobody watches.
        watchdog_initial_timeout_seconds: The same for the first batch; default: no other.
        fail_on_timeout: Whether the process ends then.
    """

    checkpoint_every_sec: float | None
    checkpoint_every_min_n_samples: int | None
    n_checkpoints: int | None
    gc_collect_every_n_steps: int | None
    watchdog_timeout_seconds: float | None
    watchdog_initial_timeout_seconds: float | None
    fail_on_timeout: bool | None


def watched(dataset: SavableDataset[Item], arguments: Mapping[str, Any]) -> SavableDataset[Item]:
    """The dataset, watched as `EnergonArguments` say.

    Raises:
        ConfigError: A timeout is not positive.
        TypeError: An argument is not known.
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
    """What belongs in the task encoder's `decoder` today, and `handler`, which has no effect.

    Attributes:
        auto_decode: False: `decoder = None`.
        image_decode: As in `SampleDecoder`, and so are `av_decode` and `video_decode_audio`.
        handler: Ignored; give `WorkerConfig(global_error_handler=…)`.
    """

    auto_decode: bool
    image_decode: Any
    av_decode: Any
    video_decode_audio: bool
    handler: Any


def fold_deprecated(task_encoder: TaskEncoder, arguments: Mapping[str, Any]) -> None:
    """Set the task encoder's decoder as those of `DeprecatedArguments` say that were given, with a warning.

    Raises:
        ConfigError: The task encoder has another decoder of its own.
    """
    if "handler" in arguments:
        _warn("handler is ignored; pass it as WorkerConfig(global_error_handler=…)")
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
            f"{names}: {type(task_encoder).__name__} has the decoder {present!r} of its own, which this would replace; "
            f"set it there alone"
        )
    task_encoder.decoder = decoder


def _warn(message: str) -> None:
    """Warn of the line of the program that called us, through however many of our own functions."""
    level, frame = 1, sys._getframe()
    ours = ("energon_grain", "energon_grain_torch")
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in ours:
        level, frame = level + 1, frame.f_back
    warnings.warn(message, DeprecationWarning, stacklevel=level)
