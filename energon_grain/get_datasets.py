# SPDX-License-Identifier: Apache-2.0
"""The front door: the datasets that a program trains and validates on.

Each entry point is the pipeline in its order: *open* the datasets of a path, each of which *cooks* and *shuffles* its
samples by itself; let the task encoder *mix* them, *encode*, *pack* or *group*, and *batch*; give the whole a seed.
"""

from __future__ import annotations

import difflib
import inspect
import logging
import operator
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any, TypeVar, Unpack, cast

from energon_grain.compat.arguments import DeprecatedArguments, fold_deprecated
from energon_grain.datasets.batching import Balance, choose_balance, choose_last_batch
from energon_grain.datasets.cooker import Cooker
from energon_grain.datasets.dataset import SavableDataset
from energon_grain.datasets.seeded import SeededDataset
from energon_grain.errors import ConfigError, public
from energon_grain.formats.data_files import one_text
from energon_grain.metadataset.documents import (
    OF_LEAVES,
    DatasetLoader,
    DatasetLoaderInterface,
    LeafMaker,
    Source,
    leaf_maker,
    training_datasets,
    validation_datasets,
)
from energon_grain.metadataset.flat import leaves_of
from energon_grain.metadataset.resolve import Leaf
from energon_grain.samples.subscripts import EncodedBatch
from energon_grain.storage.location import METADATASET_ENDINGS, check_url
from energon_grain.stream.spec import LastBatch, check_passes
from energon_grain.stream.worker_config import WorkerConfig
from energon_grain.task_encoder import BatchPlan, DefaultTaskEncoder, PackPlan, TaskEncoder, call_declared

_logger = logging.getLogger("energon_grain")
Entry = TypeVar("Entry", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class _Number:
    """What a keyword may be besides None, and what to say of anything else: a whole number of at least `least`."""

    meant: str
    least: int | None = None
    may_be_none: bool = True

    def takes(self, value: Any) -> bool:
        if value is None:
            return self.may_be_none
        whole = hasattr(value, "__index__") and not isinstance(value, bool)
        return whole and (self.least is None or value >= self.least)


_NUMBERS = {
    "batch_size": _Number("expected a positive number of samples, a CostBudget, or None for single samples", 1),
    "packing_buffer_size": _Number("expected a positive number of samples, or None for no packing", 1),
    "shuffle_buffer_size": _Number("0 or more, or None", 0),
    "max_samples_per_sequence": _Number("1 or more, or None", 1),
    "parallel_shard_iters": _Number("1 or more, or None", 1),
    "virtual_epoch_length": _Number("expected a whole number of batches, or 0", may_be_none=False),
    "limit": _Number("expected a positive number of batches, or None for all", 1),
    "lanes": _Number("expected a positive number", 1),
}
_WRITE = {
    "batch_size": "batch_size=32 (or another number, or None for single samples)",
    "shuffle_buffer_size": "shuffle_buffer_size=None",
    "max_samples_per_sequence": "max_samples_per_sequence=None",
}
"""What to write for keywords that must be given."""


def _checked(entry: Entry) -> Entry:
    """An entry point that refuses keywords that are unknown, missing, or cannot be used, with what to write."""
    known = [name for name, each in inspect.signature(entry).parameters.items() if each.kind is not each.VAR_KEYWORD]
    needed = [name for name in _WRITE if name in known]
    taken = {*known, *DeprecatedArguments.__annotations__}

    @wraps(entry)
    def call(*args: Any, **given: Any) -> Any:
        for name in given:
            if name not in taken:
                close = difflib.get_close_matches(name, taken, n=1)
                advice = f"Did you mean {close[0]!r}?" if close else f"It takes {', '.join(known)}"
                raise TypeError(f"{entry.__name__}() got an unexpected keyword argument {name!r}. {advice}")
        missing = [name for name in needed if name not in given]
        if missing:
            write = ", ".join(_WRITE[name] for name in missing)
            why = "" if missing[-1] == "batch_size" else _SHUFFLE
            raise TypeError(f"{entry.__name__}() needs {' and '.join(missing)}: write {write}{why}")
        for name, value in given.items():
            _check(name, value)
        return entry(*args, **given)

    return cast("Entry", call)


_SHUFFLE = (
    "; with None for both, datasets on this machine are shuffled fully, and those in object stores in blocks of about "
    "4 MiB"
)
_OTHERS: dict[str, tuple[type[Any], bool, str]] = {
    "sample_type": (type, True, "expected a class, such as sample_type=TextSample"),
    "part_filter": (str, False, "expected a list of names, such as [{!r}], or a function"),
    "split_part": (str, True, "expected the name of a part, such as split_part='train'"),
    "trusted_modules": (str, False, "expected a list of names, such as [{!r}]"),
    "packing": (PackPlan, True, "expected a plan, such as packing=PackingPlan('tokens', capacity=4096)"),
}
"""What is no number: a type, whether it must be of it or must not, and what to say."""


def _check(name: str, value: Any) -> None:
    if name in _OTHERS and value is not None:
        kind, must, meant = _OTHERS[name]
        if _is_of(value, kind) is not must:
            raise ConfigError(f"{name}={value!r}: {meant.format(value)}")
    number = _NUMBERS.get(name)
    if number is not None and not (number.takes(value) or (name == "batch_size" and _is_of(value, BatchPlan))):
        raise ConfigError(f"{name}={value!r}: {number.meant}")


def _is_of(value: object, kind: type[Any]) -> bool:
    """Whether a value is of a type; a class has all methods of a plan, but is none."""
    return isinstance(value, kind) and (kind is type or not isinstance(value, type))


def _keywords(given: dict[str, Any]) -> dict[str, Any]:
    """What an entry point was called with, its `locals()` at the beginning, except the path and the split part."""
    deprecated = given.pop("deprecated")
    return {**{name: value for name, value in given.items() if name not in ("path", "split_part")}, **deprecated}


@public
@_checked
def get_train_dataset(
    path: Source,
    *,
    split_part: str = "train",
    worker_config: WorkerConfig | None = None,
    batch_size: int | BatchPlan | None,
    batch_drop_last: bool = False,
    last_batch: LastBatch | None = None,
    balance: str | Balance | None = None,
    packing_buffer_size: int | None = None,
    packing: PackPlan | None = None,
    shuffle_buffer_size: int | None,
    max_samples_per_sequence: int | None,
    parallel_shard_iters: int | None = None,
    virtual_epoch_length: int = 0,
    shuffle_over_epochs_multiplier: int | None = 1,
    task_encoder: TaskEncoder[Any, Any, Any, EncodedBatch] | None = None,
    repeat: bool = True,
    seed: int = 0,
    lanes: int | None = None,
    subset: Any = None,
    where: str | None = None,
    sample_type: type[Any] | None = None,
    part_filter: Callable[[str], bool] | Collection[str] | None = None,
    dataset_config: str | None = None,
    split_config: str | None = None,
    split_ratio: str | Mapping[str, float] | None = None,
    trusted_modules: Collection[str] = (),
    **deprecated: Unpack[DeprecatedArguments],
) -> SavableDataset[EncodedBatch]:
    """Describe shuffled training batches of a prepared dataset.

    Which samples make a batch, and every random number used on them, depend on the data, these arguments and the step
    alone; `worker_config` decides who reads what, never what is read.

    Args:
        path: Folder of a dataset, prepared (`energon-grain prepare`) or of bare tars; tars by name, by pattern
            (`data/{000..999}.tar`, `data/**/*.tar`) or as a list; or a metadataset: a YAML file, its content as a
            mapping, or a `MetadatasetV2` made in Python. See the how-to on what can be opened.
        split_part: Part of the split to read.
        worker_config: This host among all hosts, and its workers; default: this process alone, or as `jax.distributed`
            says, without workers.
        batch_size: Samples in the batch of one host; `CostBudget("tokens", 65536)`: as many as cost so much together;
            None: single samples (of a finite pass on several hosts, those at the end that do not give one to each host
            are left out, and so are such batches).
        batch_drop_last: True: as `last_batch="drop"`. Default: False.
        last_batch: What becomes of an incomplete last batch where `repeat=False`: "keep" it short (one host only; the
            default there), "drop" it, or "pad" it (the default on several hosts) with a mask in `__valid__`.
        balance: Give hosts equal work: what a sample costs, by its columns, such as "tokens" or
            "tokens + 0.0001 * tokens**2". Each global batch is of the same samples, as many for each host, but which
            host gets which follows their costs. `Balance("tokens", micro_batches=4)` also orders those of a host, for
            gradient accumulation. Where a sample is dropped, another one of its global batch replaces it. None,
            the default: samples as they come.
        packing_buffer_size: Pack samples: choose from this many candidates in each lane, by the task encoder's
            `select_samples_to_pack` and `pack_selected_samples`. None, the default: no packing, and these hooks are
            not used.
        packing: Pack samples as planned from columns, before they are read and before they are dealt to hosts:
            `PackingPlan("tokens", capacity=4096)`. The task encoder's `pack_selected_samples` gets each pack.
        shuffle_buffer_size: With `max_samples_per_sequence`: mix at least about this many samples.
        max_samples_per_sequence: Read this many consecutive samples as one block. None: full shuffle of datasets on
            this machine, and blocks of about 4 MiB of those in object stores (1 shuffles them fully too). See the
            how-to on choosing the shuffle.
        parallel_shard_iters: Blocks that mix in a lane, where batches are formed inside a lane; default 16.
        virtual_epoch_length: End an epoch after this many batches; 0, the default: an iteration over an endless dataset
            never ends.
        shuffle_over_epochs_multiplier: Passes over the data that are shuffled as one, 1 by default; -1: draw with
            replacement; None: keep the order of the shards.
        task_encoder: The user's hooks; default: `DefaultTaskEncoder()`. What its class names last, as in
            `DefaultTaskEncoder[Raw, Encoded, RawBatch, Batch]`, is to type checkers what the dataset yields.
        repeat: Go over the data for ever, the default. With False, an iteration is one pass and the next one is
            the next pass.
        seed: Of every random choice; default: 0. `WorkerConfig.seed_offset` is mixed in.
        lanes: L, the number of interleaved sub-streams: a constant of the run, a multiple of every number of hosts that
            it will continue on. Default: 48, or lcm(48, hosts). Finite passes that pack or group take only as
            many as leave each lane 20 full buffers, but one a host at least.
        subset: Range of samples, `[start, end]` in numbers or percent.
        where: Condition on columns that samples must meet, such as `"tokens >= 16 and width * height > 65536"`; see the
            how-to on filtering by columns. What does not meet it is not there: it is never read, and counts nowhere.
        sample_type: What the dataset must hold; checked.
        part_filter: Parts to read of a crude dataset: names, or a predicate.
        dataset_config: Name of the dataset's configuration in `.nv-meta`; default: `dataset.yaml`.
        split_config: Name of its split configuration; default: as the dataset's configuration says, or `split.yaml`.
        split_ratio: How what has no split file is split: "train:0.9,val:0.1", or a mapping. Each file is cut into runs,
            so that a sample stays in its part whatever other files there are. Default: all are of the part `train`.
        trusted_modules: Modules whose classes the dataset's configuration may name.
        **deprecated: See `DeprecatedArguments`.

    Raises:
        ConfigError: Arguments contradict each other, or a configuration is wrong.
        DatasetNotFoundError: There is nothing at the path, or no prepared dataset.
        SplitError: The dataset has no such split part.

    Of datasets on this machine everything but the index is read at once, so that what is wrong is said here; those in
    object stores are looked at when they are first used.
    """
    run = _Run(_keywords(locals()), training=True)
    loaded = training_datasets(*_described(path), run.leaf, split_part=split_part, **run.outer)  # open, cook, shuffle
    dataset = run.build(  # mix, encode, pack or group, batch, cut into virtual epochs
        run.encoder.build_train_datasets,
        datasets=loaded.datasets,
        blend_mode=loaded.blend_mode,
        schedule=loaded.schedule,
    )
    return run.seeded(dataset)


@public
@_checked
def get_val_dataset(
    path: Source,
    *,
    split_part: str = "val",
    worker_config: WorkerConfig | None = None,
    batch_size: int | BatchPlan | None,
    batch_drop_last: bool = False,
    last_batch: LastBatch | None = None,
    balance: str | Balance | None = None,
    packing_buffer_size: int | None = None,
    packing: PackPlan | None = None,
    limit: int | None = None,
    task_encoder: TaskEncoder[Any, Any, Any, EncodedBatch] | None = None,
    seed: int = 0,
    lanes: int | None = None,
    subset: Any = None,
    where: str | None = None,
    sample_type: type[Any] | None = None,
    part_filter: Callable[[str], bool] | Collection[str] | None = None,
    dataset_config: str | None = None,
    split_config: str | None = None,
    split_ratio: str | Mapping[str, float] | None = None,
    trusted_modules: Collection[str] = (),
    **deprecated: Unpack[DeprecatedArguments],
) -> SavableDataset[EncodedBatch]:
    """Describe validation batches: every sample once, in the order of the shards, the same in every pass.

    Arguments are those of `get_train_dataset`, and `limit`: batches per host of each pass; None: all.

    Raises:
        ConfigError: Arguments contradict each other.
    """
    run = _Run(_keywords(locals()), training=False)
    leaves = validation_datasets(*_described(path), run.leaf, split_part=split_part, **run.outer)
    return run.seeded(run.build(run.encoder.build_val_datasets, datasets=leaves))


@public
@_checked
def get_val_datasets(
    path: Source,
    *,
    split_part: str = "val",
    worker_config: WorkerConfig | None = None,
    batch_size: int | BatchPlan | None,
    batch_drop_last: bool = False,
    last_batch: LastBatch | None = None,
    balance: str | Balance | None = None,
    packing_buffer_size: int | None = None,
    packing: PackPlan | None = None,
    limit: int | None = None,
    task_encoder: TaskEncoder[Any, Any, Any, EncodedBatch] | None = None,
    seed: int = 0,
    lanes: int | None = None,
    subset: Any = None,
    where: str | None = None,
    sample_type: type[Any] | None = None,
    part_filter: Callable[[str], bool] | Collection[str] | None = None,
    dataset_config: str | None = None,
    split_config: str | None = None,
    split_ratio: str | Mapping[str, float] | None = None,
    trusted_modules: Collection[str] = (),
    **deprecated: Unpack[DeprecatedArguments],
) -> list[tuple[SavableDataset[EncodedBatch], Leaf]]:
    """Describe validation batches of each leaf by itself, to report one loss for each.

    Arguments are those of `get_val_dataset`; `limit` counts batches of each leaf.

    Returns:
        For each leaf of the metadataset, in document order, its dataset and where it comes from: path, split part,
        subset, subflavors, name. A dataset by itself is one leaf.

    Raises:
        ConfigError: Arguments contradict each other, or a leaf cannot be read.
    """
    run = _Run(_keywords(locals()), training=False)
    leaves = validation_datasets(*_described(path), run.leaf, split_part=split_part, **run.outer)
    build = run.encoder.build_val_datasets
    return [(run.seeded(run.build(build, datasets=[each])), leaves_of(each.dataset)[0]) for each in leaves]


_UNASKED: dict[str, Any] = {
    "batch_drop_last": False,
    "last_batch": None,
    "balance": None,
    "packing_buffer_size": None,
    "packing": None,
    "virtual_epoch_length": 0,
    "repeat": True,
    "schedule": None,
    "limit": None,
}
"""Keywords that a builder need not declare as long as nothing is asked for by them."""


class _Run:
    """The arguments of an entry point, checked, and parted by who asks for them.

    Attributes:
        encoder: The user's hooks.
        leaf: Makes the leaves; what is said of all of them is in it.
        outer: What is said of the whole metadataset.
    """

    def __init__(self, arguments: Mapping[str, Any], *, training: bool) -> None:
        given = dict(arguments)
        check_passes(given.get("shuffle_over_epochs_multiplier"))
        self._config, self.encoder = _host_and_hooks(given.pop("worker_config"), given.pop("task_encoder"))
        self._training = training
        self._lanes = given.pop("lanes")
        seed = given.pop("seed")
        try:
            self._seed = operator.index(seed)  # it may be one of numpy
        except TypeError:
            raise ConfigError(f"seed={seed!r}: expected a whole number") from None
        fold_deprecated(
            self.encoder, {name: given.pop(name) for name in DeprecatedArguments.__annotations__ if name in given}
        )
        epoch, repeat = given.get("virtual_epoch_length", 0), given.get("repeat", True)
        if epoch < 0 or (epoch and not repeat):
            raise ConfigError(
                f"virtual_epoch_length={epoch} with repeat={repeat}: virtual epochs cut an endless stream; give a "
                f"positive number of batches and repeat=True, or 0"
            )
        choose_last_batch(given["last_batch"], given["batch_drop_last"], self._config.world_size)
        given["balance"] = choose_balance(given["balance"], given["batch_size"])
        self.outer = {
            name: given.pop(name) for name in ("subset", "where", "shuffle_over_epochs_multiplier") if name in given
        }
        of_leaves = {name: given.pop(name) for name in OF_LEAVES if name in given}
        self.leaf: LeafMaker = leaf_maker(
            worker_config=self._config,
            task_encoder=self.encoder,
            training=training,
            trusted_modules=tuple(given.pop("trusted_modules")),
            **of_leaves,
        )
        if training:
            given["shuffle_buffer_size"] = of_leaves["shuffle_buffer_size"]  # which Energon's builders shuffle by
        self._of_builders = given

    def build(self, builder: Callable[..., Any], **keywords: Any) -> SavableDataset:
        """What a builder of the task encoder makes of the keywords that it declares.

        Raises ConfigError if it does not declare one that is not at its default, or makes no dataset.
        """
        keywords |= {**self._of_builders, "worker_config": self._config}
        asked = {name: keywords.pop(name) for name, none in _UNASKED.items() if keywords.get(name, none) != none}
        dataset = call_declared(builder, asked=asked, **keywords)
        if not isinstance(dataset, SavableDataset):
            raise ConfigError(
                f"{getattr(builder, '__qualname__', builder)} returned a {type(dataset).__name__}; a builder returns "
                f"the dataset that it made"
            )
        return dataset

    def seeded(self, dataset: SavableDataset) -> SavableDataset:
        """The dataset as a run."""
        return SeededDataset(
            worker_config=self._config,
            dataset=dataset,
            seed=self._seed,
            lanes=self._lanes,
            same_pass=not self._training,
        )


def _host_and_hooks(
    worker_config: WorkerConfig | None, task_encoder: TaskEncoder | None
) -> tuple[WorkerConfig, TaskEncoder]:
    """The host and the task encoder, or their defaults.

    Raises ConfigError if one of them is something else, a class in place of an object for instance.
    """
    config: Any = WorkerConfig.default_worker_config(num_workers=0) if worker_config is None else worker_config
    if not isinstance(config, WorkerConfig):
        raise ConfigError(
            f"worker_config={config!r}: expected a WorkerConfig, such as WorkerConfig(rank=0, world_size=1)"
        )
    return config, _hooks(DefaultTaskEncoder() if task_encoder is None else task_encoder)


def _hooks(encoder: Any) -> TaskEncoder:
    """The same, checked. Raises ConfigError."""
    if isinstance(encoder, type):
        raise ConfigError(f"task_encoder={encoder.__name__}: is a class; give an object of it, {encoder.__name__}(…)")
    if not isinstance(encoder, TaskEncoder):
        raise ConfigError(f"task_encoder={encoder!r}: expected an object of a class that derives from TaskEncoder")
    name = type(encoder).__name__
    _warn_of_misspelt_hooks(type(encoder))
    decoder: Any = encoder.decoder
    if decoder is not None and (isinstance(decoder, type) or not hasattr(decoder, "decoder_for")):
        raise ConfigError(
            f"{name}.decoder = {decoder!r}: expected a SampleDecoder, such as SampleDecoder(image_decode='rgb8'), "
            f"or None, which leaves parts bytes"
        )
    cookers: Any = encoder.cookers
    if not isinstance(cookers, Sequence) or not all(isinstance(cooker, Cooker) for cooker in cookers):
        raise ConfigError(f"{name}.cookers = {cookers!r}: expected a list of cookers, such as [Cooker(my_function)]")
    if hasattr(encoder, "build_cook_crude_sample"):
        raise ConfigError(
            f"{name}.build_cook_crude_sample would never be called: leaves cook their samples themselves; override "
            f"cook_crude_sample, or give cookers"
        )
    return encoder


def _warn_of_misspelt_hooks(encoder: type[TaskEncoder]) -> None:
    """Log methods that are nearly called as a hook that the task encoder does not override."""
    ours = (TaskEncoder, DefaultTaskEncoder)
    idle = [name for name in dir(TaskEncoder) if any(getattr(encoder, name) is getattr(each, name) for each in ours)]
    for name in sorted({*dir(encoder)} - {*dir(DefaultTaskEncoder)}):
        near = difflib.get_close_matches(name, idle, n=1, cutoff=0.9)
        if near and not name.startswith("_") and callable(getattr(encoder, name)):
            _logger.warning(
                "%s.%s is no hook, and is not called by itself. Did you mean %r?", encoder.__name__, name, near[0]
            )


def _described(path: Source) -> tuple[Source, bool]:
    """What a path describes, and whether its data must be there: what a dataset by itself lacks, its leaf says."""
    if isinstance(path, str | os.PathLike) and not os.fspath(path).endswith(METADATASET_ENDINGS):
        return DatasetLoader(path=check_url(os.fspath(path))), False
    if isinstance(path, list | tuple):
        return DatasetLoader(path=one_text(path)), False
    given: Any = path
    if not isinstance(given, str | os.PathLike | Mapping | DatasetLoaderInterface):
        way_out = "; this one is ready for get_loader, or for BlendDataset" if isinstance(path, SavableDataset) else ""
        raise ConfigError(
            f"path={path!r}: expected the path of a dataset or of a metadataset, or what one says{way_out}"
        )
    return path, True


@public
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
    where: str | None = None,
    **options: Any,
) -> SavableDataset:
    """Describe the samples of one prepared dataset, or JSONL file, by themselves: neither encoded nor batched.

    Args:
        path: Folder of the dataset, or the file.
        dataset_config: As in `get_train_dataset`, and so are `split_config`, `worker_config`, `sample_type`, `subset`
            and `where`.
        split_part: Default: `train`.
        training: Whether samples are shuffled.
        subflavors: Tags of every sample, in place of those of equal names in the dataset's own configuration.
        shuffle_over_epochs: As `shuffle_over_epochs_multiplier` there.
        **options: As in `DatasetLoader.get_datasets`.

    Raises:
        ConfigError: An argument is not valid.
        DatasetNotFoundError: There is no prepared dataset at the path.
    """
    worker_config, encoder = _host_and_hooks(worker_config, options.pop("task_encoder", None))
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
            where=where,
            sample_type=sample_type,
            dataset_config=dataset_config,
            split_config=split_config,
            **options,
        )
        .datasets
    )
    return loaded.dataset
