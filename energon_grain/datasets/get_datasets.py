"""The two entry points: a dataset for training, and one for validation."""

from __future__ import annotations

import difflib
import inspect
import operator
import os
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import wraps
from typing import Any, ParamSpec, TypedDict, TypeVar, Unpack

from energon_grain.datasets.batching import choose_last_batch
from energon_grain.datasets.cooker import Cooker
from energon_grain.datasets.dataset import SavableDataset
from energon_grain.datasets.declared_keywords import call_declared
from energon_grain.datasets.loaded_dataset import LoadedDataset
from energon_grain.datasets.run_settings import RunSettings
from energon_grain.datasets.task_encoder import DefaultTaskEncoder, TaskEncoder
from energon_grain.errors import ConfigError
from energon_grain.formats.file_ending import METADATASET_ENDINGS
from energon_grain.metadataset.documents import (
    DatasetLoader,
    Source,
    leaf_maker,
    training_datasets,
    validation_datasets,
)
from energon_grain.metadataset.flat import leaves_of
from energon_grain.metadataset.resolve import Leaf
from energon_grain.storage.location import check_url
from energon_grain.stream.spec import LastBatch, check_passes
from energon_grain.stream.worker_config import WorkerConfig
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


def fold_deprecated(task_encoder: TaskEncoder, arguments: Mapping[str, Any], *, below: int = 0) -> None:
    """Set the task encoder's decoder as deprecated arguments say, with a `DeprecationWarning`.

    Args:
        task_encoder: Of the call.
        arguments: Those of `DeprecatedArguments` that were given.
        below: Calls between this and the entry point.

    Raises:
        ConfigError: The task encoder has another decoder of its own.
    """
    if not arguments:
        return
    if "handler" in arguments:
        _warn("handler is ignored; pass it as WorkerConfig(global_error_handler=…)", below)
    options = {name: value for name, value in arguments.items() if name not in ("auto_decode", "handler")}
    if not arguments.get("auto_decode", True):
        _warn("auto_decode is deprecated; set `decoder = None` in the task encoder", below)
        _set_decoder(task_encoder, None, "auto_decode")
    elif options:
        names = ", ".join(options)
        _warn(f"{names}: deprecated; set `decoder = SampleDecoder(…)` in the task encoder", below)
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


def _warn(message: str, below: int) -> None:
    warnings.warn(message, DeprecationWarning, stacklevel=5 + below)


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


@checked_arguments
def get_train_dataset(
    path: Source,
    *,
    split_part: str = "train",
    worker_config: WorkerConfig | None = None,
    batch_size: int | None,
    batch_drop_last: bool = False,
    last_batch: LastBatch | None = None,
    packing_buffer_size: int | None = None,
    shuffle_buffer_size: int | None,
    max_samples_per_sequence: int | None,
    parallel_shard_iters: int | None = None,
    virtual_epoch_length: int = 0,
    shuffle_over_epochs_multiplier: int | None = 1,
    task_encoder: TaskEncoder | None = None,
    repeat: bool = True,
    seed: int = 0,
    lanes: int | None = None,
    subset: Any = None,
    sample_type: type[Any] | None = None,
    part_filter: Callable[[str], bool] | Collection[str] | None = None,
    dataset_config: str | None = None,
    split_config: str | None = None,
    trusted_modules: Collection[str] = (),
    **deprecated: Unpack[DeprecatedArguments],
) -> SavableDataset:
    """Describe shuffled training batches of a prepared dataset.

    Which samples make a batch, and every random number used on them, depend on the data, these arguments and the step
    alone; `worker_config` decides who reads what, never what is read.

    Args:
        path: Folder of a prepared dataset (`energon-grain prepare`), or a metadataset: a YAML file, its content as a
            mapping, or a `MetadatasetV2` made in Python.
        split_part: Part of the split to read.
        worker_config: This host among all hosts, and its workers; default: this process alone, or as `jax.distributed`
            says, without workers.
        batch_size: Samples in the batch of one host; None: single samples (of a finite pass on several hosts, those
            at the end that do not give one to each host are left out).
        batch_drop_last: As `last_batch="drop"`.
        last_batch: What becomes of an incomplete last batch where `repeat=False`: "keep" it short (one host only; the
            default there), "drop" it, or "pad" it (the default on several hosts) with a mask in `__valid__`.
        packing_buffer_size: Pack samples: choose from so many candidates in each lane, by the task encoder's
            `select_samples_to_pack` and `pack_selected_samples`. None: no packing, and these hooks are not used.
        shuffle_buffer_size: With `max_samples_per_sequence`: mix at least about this many samples.
        max_samples_per_sequence: Read this many consecutive samples as one block. None: full shuffle of datasets on
            this machine, and blocks of about 4 MiB of those in object stores (1 shuffles them fully too). See the
            how-to on choosing the shuffle.
        parallel_shard_iters: Blocks that mix in a lane, where batches are formed inside a lane; default 16.
        virtual_epoch_length: End an epoch after this many batches; 0: an iteration over an endless dataset never ends.
        shuffle_over_epochs_multiplier: Passes over the data that are shuffled as one; -1: draw with replacement; None:
            keep the order of the shards.
        task_encoder: The user's hooks; default: `DefaultTaskEncoder()`.
        repeat: Go over the data for ever. With False, an iteration is one pass and the next one is the next pass.
        seed: Of every random choice. `WorkerConfig.seed_offset` is mixed in.
        lanes: L, the number of interleaved sub-streams: a constant of the run, a multiple of every number of hosts that
            it shall continue on. Default: 48, or lcm(48, hosts). Finite passes that pack or group take only as
            many as leave each lane 20 full buffers, but one a host at least.
        subset: Range of samples, `[start, end]` in numbers or percent.
        sample_type: What the dataset must hold; checked.
        part_filter: Parts to read of a crude dataset: names, or a predicate.
        dataset_config: Name of the dataset's configuration in `.nv-meta`; default: `dataset.yaml`.
        split_config: Name of its split configuration; default: as the dataset's configuration says, or `split.yaml`.
        trusted_modules: Modules whose classes the dataset's configuration may name.
        **deprecated: See `DeprecatedArguments`.

    Raises:
        ConfigError: Arguments contradict each other, or a configuration is wrong.
        DatasetNotFoundError: There is nothing at the path, or no prepared dataset.
        SplitError: The dataset has no such split part.

    Of datasets on this machine everything but the index is read at once, so that what is wrong is said here; those in
    object stores are looked at when they are first used.
    """
    check_passes(shuffle_over_epochs_multiplier)
    worker_config, encoder, seed = checked_entry(worker_config, task_encoder, seed)
    fold_deprecated(encoder, deprecated)
    if virtual_epoch_length < 0 or (virtual_epoch_length and not repeat):
        raise ConfigError(
            f"virtual_epoch_length={virtual_epoch_length} with repeat={repeat}: virtual epochs cut an endless stream; "
            f"give a positive number of batches and repeat=True, or 0"
        )
    choose_last_batch(last_batch, batch_drop_last, worker_config.world_size)
    leaf = leaf_maker(
        worker_config=worker_config,
        task_encoder=encoder,
        training=True,
        max_samples_per_sequence=max_samples_per_sequence,
        shuffle_buffer_size=shuffle_buffer_size,
        parallel_shard_iters=parallel_shard_iters,
        dataset_config=dataset_config,
        split_config=split_config,
        part_filter=part_filter,
        sample_type=sample_type,
        trusted_modules=tuple(trusted_modules),
    )
    loaded = training_datasets(
        *_described(path),
        leaf,
        split_part=split_part,
        shuffle_over_epochs_multiplier=shuffle_over_epochs_multiplier,
        subset=subset,
    )
    dataset = _built(
        encoder.build_train_datasets,
        datasets=loaded.datasets,
        worker_config=worker_config,
        batch_size=batch_size,
        batch_drop_last=batch_drop_last,
        packing_buffer_size=packing_buffer_size,
        virtual_epoch_length=virtual_epoch_length,
        shuffle_buffer_size=shuffle_buffer_size,
        blend_mode=loaded.blend_mode,
        repeat=repeat,
        last_batch=last_batch,
        schedule=loaded.schedule,
    )
    return RunSettings(worker_config=worker_config, dataset=dataset, seed=seed, lanes=lanes)


@checked_arguments
def get_val_dataset(
    path: Source,
    *,
    split_part: str = "val",
    worker_config: WorkerConfig | None = None,
    batch_size: int | None,
    batch_drop_last: bool = False,
    last_batch: LastBatch | None = None,
    packing_buffer_size: int | None = None,
    limit: int | None = None,
    task_encoder: TaskEncoder | None = None,
    seed: int = 0,
    lanes: int | None = None,
    subset: Any = None,
    sample_type: type[Any] | None = None,
    part_filter: Callable[[str], bool] | Collection[str] | None = None,
    dataset_config: str | None = None,
    split_config: str | None = None,
    trusted_modules: Collection[str] = (),
    **deprecated: Unpack[DeprecatedArguments],
) -> SavableDataset:
    """Describe validation batches: every sample once, in the order of the shards, the same in every pass.

    Arguments are those of `get_train_dataset`, and `limit`: batches per host of each pass; None: all.

    Raises:
        ConfigError: Arguments contradict each other.
    """
    leaves, run = _validation(**locals())
    return run(leaves)


@checked_arguments
def get_val_datasets(
    path: Source,
    *,
    split_part: str = "val",
    worker_config: WorkerConfig | None = None,
    batch_size: int | None,
    batch_drop_last: bool = False,
    last_batch: LastBatch | None = None,
    packing_buffer_size: int | None = None,
    limit: int | None = None,
    task_encoder: TaskEncoder | None = None,
    seed: int = 0,
    lanes: int | None = None,
    subset: Any = None,
    sample_type: type[Any] | None = None,
    part_filter: Callable[[str], bool] | Collection[str] | None = None,
    dataset_config: str | None = None,
    split_config: str | None = None,
    trusted_modules: Collection[str] = (),
    **deprecated: Unpack[DeprecatedArguments],
) -> list[tuple[SavableDataset, Leaf]]:
    """Describe validation batches of each leaf by itself, to report one loss for each.

    Arguments are those of `get_val_dataset`; `limit` counts batches of each leaf.

    Returns:
        For each leaf of the metadataset, in document order, its dataset and where it comes from: path, split part,
        subset, subflavors, name. A dataset by itself is one leaf.

    Raises:
        ConfigError: Arguments contradict each other, or a leaf cannot be read.
    """
    leaves, run = _validation(**locals())
    return [(run([each]), leaves_of(each.dataset)[0]) for each in leaves]


def get_dataset_from_config(
    path: str | os.PathLike[str],
    *,
    dataset_config: str | None = None,
    split_config: str | None = None,
    split_part: str | None = None,
    training: bool = True,
    subflavors: Mapping[str, Any] | None = None,
    worker_config: WorkerConfig | None = None,
    sample_type: type[Any] | None = None,
    shuffle_over_epochs: int | None = 1,
    subset: Any = None,
    **options: Any,
) -> SavableDataset:
    """Describe the samples of one prepared dataset, or JSONL file, by themselves: neither encoded nor batched.

    Args:
        path: Folder of the dataset, or the file.
        dataset_config: As in `get_train_dataset`, and so are `split_config`, `worker_config`, `sample_type`, `subset`.
        split_config: See there.
        split_part: Default: `train`.
        training: Whether samples are shuffled.
        subflavors: Tags of every sample, in place of those of equal names in the dataset's own configuration.
        worker_config: See there.
        sample_type: See there.
        shuffle_over_epochs: As `shuffle_over_epochs_multiplier` there.
        subset: See there.
        **options: As in `DatasetLoader.get_datasets`.

    Raises:
        ConfigError: An argument is not valid.
        DatasetNotFoundError: There is no prepared dataset at the path.
    """
    worker_config, encoder, _ = checked_entry(worker_config, options.pop("task_encoder", None), 0)
    if "decoder" not in options:
        options["task_encoder"] = encoder
    [loaded] = (
        DatasetLoader(path=os.fspath(path))
        .get_datasets(
            training=training,
            split_part=split_part or "train",
            worker_config=worker_config,
            subflavors=subflavors,
            shuffle_over_epochs_multiplier=shuffle_over_epochs,
            subset=subset,
            sample_type=sample_type,
            dataset_config=dataset_config,
            split_config=split_config,
            **options,
        )
        .datasets
    )
    return loaded.dataset


def _validation(
    path: Source,
    *,
    split_part: str,
    subset: Any,
    worker_config: WorkerConfig | None,
    task_encoder: TaskEncoder | None,
    seed: int,
    lanes: int | None,
    trusted_modules: Collection[str],
    deprecated: Mapping[str, Any],
    **arguments: Any,
) -> tuple[list[LoadedDataset], Callable[[list[LoadedDataset]], SavableDataset]]:
    """The leaves to validate on, and what makes a run of some of them; arguments are those of `get_val_dataset`."""
    config, encoder, seed = checked_entry(worker_config, task_encoder, seed)
    fold_deprecated(encoder, deprecated, below=1)
    of_leaves = {name: arguments.pop(name) for name in _OF_LEAVES}
    leaf = leaf_maker(
        worker_config=config,
        task_encoder=encoder,
        training=False,
        trusted_modules=tuple(trusted_modules),
        **of_leaves,
    )
    leaves = validation_datasets(*_described(path), leaf, split_part=split_part, subset=subset)

    def run(datasets: list[LoadedDataset]) -> SavableDataset:
        choose_last_batch(arguments["last_batch"], arguments["batch_drop_last"], config.world_size)
        dataset = _built(encoder.build_val_datasets, datasets=datasets, worker_config=config, **arguments)
        return RunSettings(worker_config=config, dataset=dataset, seed=seed, lanes=lanes, same_pass=True)

    return leaves, run


_OF_LEAVES = ("sample_type", "part_filter", "dataset_config", "split_config")
_DEFAULTS: dict[str, Any] = {
    "batch_drop_last": False,
    "last_batch": None,
    "packing_buffer_size": None,
    "virtual_epoch_length": 0,
    "repeat": True,
    "schedule": None,
    "limit": None,
}


def _built(builder: Callable[..., Any], **keywords: Any) -> SavableDataset:
    """What a builder makes of the keywords that it declares. It must declare those that are not at their defaults."""
    asked = [name for name, default in _DEFAULTS.items() if keywords.get(name, default) != default]
    dataset = call_declared(builder, asked=asked, **keywords)
    if not isinstance(dataset, SavableDataset):
        raise ConfigError(
            f"{getattr(builder, '__qualname__', builder)} returned a {type(dataset).__name__}; a builder returns the "
            f"dataset that it made"
        )
    return dataset


def _described(path: Source) -> tuple[Source, bool]:
    """What a path describes, and whether its data must be there: what a dataset by itself lacks, its leaf says."""
    if isinstance(path, str | os.PathLike) and not os.fspath(path).endswith(METADATASET_ENDINGS):
        return DatasetLoader(path=check_url(os.fspath(path))), False
    return path, True
