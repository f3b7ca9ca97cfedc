"""Arguments of `get_train_dataset` that programs written for older versions of Energon still pass."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any, TypedDict

from energon_grain.datasets.task_encoder import TaskEncoder
from energon_grain.errors import ConfigError
from energon_grain.transforms.decode import SampleDecoder


class DeprecatedArguments(TypedDict, total=False):
    """What belongs in the task encoder's `decoder` today, and `handler`, which has no effect.

    Attributes:
        auto_decode: False: `decoder = None`.
        image_decode: As in `SampleDecoder`, and so are the next two.
        av_decode: See there.
        video_decode_audio: See there.
        handler: Ignored; give `WorkerConfig(global_error_handler=…)`.
    """

    auto_decode: bool
    image_decode: Any
    av_decode: Any
    video_decode_audio: bool
    handler: Any


def fold_deprecated(task_encoder: TaskEncoder, arguments: Mapping[str, Any]) -> None:
    """Set the task encoder's decoder as deprecated arguments say, with a `DeprecationWarning`.

    Args:
        task_encoder: Of the call.
        arguments: Those of `DeprecatedArguments` that were given.

    Raises:
        ConfigError: The task encoder has another decoder of its own.
    """
    if not arguments:
        return
    if "handler" in arguments:
        _warn("handler is ignored; pass it as WorkerConfig(global_error_handler=…)")
    options = {name: value for name, value in arguments.items() if name not in ("auto_decode", "handler")}
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
    warnings.warn(message, DeprecationWarning, stacklevel=5)
