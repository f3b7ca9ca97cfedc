"""What the entry points share: arguments that are checked where they are given, before anything is read."""

from __future__ import annotations

import difflib
import inspect
import operator
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from energon_grain.datasets.cooker import Cooker
from energon_grain.datasets.deprecated_arguments import DeprecatedArguments
from energon_grain.datasets.task_encoder import DefaultTaskEncoder, TaskEncoder
from energon_grain.datasets.worker_config import WorkerConfig
from energon_grain.errors import ConfigError

P = ParamSpec("P")
R = TypeVar("R")

_NUMBERS = {
    "batch_size": (1, "a positive number of samples is meant, or None for single samples"),
    "packing_buffer_size": (1, "a positive number of samples is meant, or None for no packing"),
    "shuffle_buffer_size": (0, "0 or more, or None"),
    "max_samples_per_sequence": (1, "1 or more, or None"),
    "parallel_shard_iters": (1, "1 or more, or None"),
    "virtual_epoch_length": (None, "a whole number of batches is meant, or 0"),
    "limit": (1, "a positive number of batches, or None for all, is meant"),
    "lanes": (1, "a positive number is meant"),
}
"""The least that each may be, and what to say of anything else."""
_TO_WRITE = {
    "batch_size": "batch_size=32 (or another number, or None for single samples)",
    "shuffle_buffer_size": "shuffle_buffer_size=None",
    "max_samples_per_sequence": "max_samples_per_sequence=None",
}
_SHUFFLE = (
    "; with None for both, datasets on this machine are shuffled fully, and those in object stores in blocks of about "
    "4 MiB"
)


def checked_arguments(entry: Callable[P, R]) -> Callable[P, R]:
    """Let an entry point refuse keywords that it does not know, lacks or cannot use, and say what to write."""
    parameters = inspect.signature(entry).parameters.values()
    named = {each.name: each for each in parameters if each.kind is not each.VAR_KEYWORD}
    required = [name for name in _TO_WRITE if name in named and named[name].default is inspect.Parameter.empty]
    known = {*named, *DeprecatedArguments.__annotations__}

    @wraps(entry)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        unknown = [name for name in kwargs if name not in known]
        if unknown:
            close = difflib.get_close_matches(unknown[0], known, n=1)
            advice = f"Did you mean {close[0]!r}?" if close else f"It takes {', '.join(named)}"
            raise TypeError(f"{entry.__name__}() got an unexpected keyword argument {unknown[0]!r}. {advice}")
        missing = [name for name in required if name not in kwargs]
        if missing and args:
            write = ", ".join(_TO_WRITE[name] for name in missing)
            why = _SHUFFLE if "shuffle_buffer_size" in missing or "max_samples_per_sequence" in missing else ""
            raise TypeError(f"{entry.__name__}() needs {' and '.join(missing)}: write {write}{why}")
        _check_values(kwargs)
        return entry(*args, **kwargs)

    return call


def _check_values(arguments: Mapping[str, Any]) -> None:
    for name, (least, meant) in _NUMBERS.items():
        value = arguments.get(name)
        whole = hasattr(value, "__index__") and not isinstance(value, bool)
        if value is not None and not (whole and (least is None or value >= least)):
            raise ConfigError(f"{name}={value!r}: {meant}")
    sample_type: Any = arguments.get("sample_type")
    if sample_type is not None and not isinstance(sample_type, type):
        raise ConfigError(f"sample_type={sample_type!r}: a class is meant, such as sample_type=TextSample")
    parts = arguments.get("part_filter")
    if isinstance(parts, str):
        raise ConfigError(f"part_filter={parts!r}: a list of names is meant, such as [{parts!r}], or a function")
    split_part = arguments.get("split_part")
    if split_part is not None and not isinstance(split_part, str):
        raise ConfigError(f"split_part={split_part!r}: the name of a part is meant, such as split_part='train'")
    modules = arguments.get("trusted_modules")
    if isinstance(modules, str):
        raise ConfigError(f"trusted_modules={modules!r}: a list of names is meant, such as [{modules!r}]")


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
