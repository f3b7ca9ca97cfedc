"""What the entry points share: a task encoder, the hosts and the seed, checked where they are given."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

from energon_grain.datasets.cooker import Cooker
from energon_grain.datasets.task_encoder import DefaultTaskEncoder, TaskEncoder
from energon_grain.datasets.worker_config import WorkerConfig
from energon_grain.errors import ConfigError


def checked_entry(
    worker_config: WorkerConfig | None, task_encoder: TaskEncoder | None, seed: int
) -> tuple[WorkerConfig, TaskEncoder, int]:
    """The hosts and the task encoder, or their defaults, and the seed, which may be a numpy number, as a plain one.

    Raises:
        ConfigError: One of the arguments is something else, a class in place of an object for instance.
    """
    config: Any = WorkerConfig.default_worker_config(num_workers=0) if worker_config is None else worker_config
    if not isinstance(config, WorkerConfig):
        raise ConfigError(
            f"worker_config={config!r}: a WorkerConfig is meant, such as WorkerConfig(rank=0, world_size=1)"
        )
    encoder: Any = DefaultTaskEncoder() if task_encoder is None else task_encoder
    if isinstance(encoder, type):
        raise ConfigError(f"task_encoder={encoder.__name__}: is a class; give an object of it, {encoder.__name__}(…)")
    if not isinstance(encoder, TaskEncoder):
        raise ConfigError(f"task_encoder={encoder!r}: an object of a class that derives from TaskEncoder is meant")
    _check_attributes(encoder)
    try:
        return config, encoder, operator.index(seed)
    except TypeError:
        raise ConfigError(f"seed={seed!r}: a whole number is meant") from None


def _check_attributes(encoder: TaskEncoder) -> None:
    name = type(encoder).__name__
    decoder: Any = encoder.decoder
    if decoder is not None and (isinstance(decoder, type) or not hasattr(decoder, "decoder_for")):
        raise ConfigError(
            f"{name}.decoder = {decoder!r}: a SampleDecoder is meant, such as SampleDecoder(image_decode='rgb8'), "
            f"or None, which leaves parts bytes"
        )
    cookers: Any = encoder.cookers
    if not isinstance(cookers, Sequence) or not all(isinstance(cooker, Cooker) for cooker in cookers):
        raise ConfigError(f"{name}.cookers = {cookers!r}: a list of cookers is meant, such as [Cooker(my_function)]")
    if hasattr(encoder, "build_cook_crude_sample"):
        raise ConfigError(
            f"{name}.build_cook_crude_sample would never be called: leaves cook their samples themselves; override "
            f"cook_crude_sample, or give cookers"
        )
