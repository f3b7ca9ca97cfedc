# SPDX-License-Identifier: Apache-2.0
"""Entry points for training and validation datasets.

Each entry point follows the pipeline: *open* the datasets of a path, where each one *cooks* and *shuffles* its own
samples; let the task encoder *mix* them, *encode*, *pack* or *group*, and *batch*; then set the seed.
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
from energon_grain.cooking.cooker import Cooker
from energon_grain.datasets.batching import Balance, choose_balance, choose_last_batch
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
    """A keyword that is a whole number of at least `least`, or None, and the message for any other value."""

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
    "shuffle_buffer_size": _Number("expected 0 or more, or None", 0),
    "max_samples_per_sequence": _Number("expected 1 or more, or None", 1),
    "parallel_shard_iters": _Number("expected 1 or more, or None", 1),
    "virtual_epoch_length": _Number("expected a whole number of batches, or 0", may_be_none=False),
    "limit": _Number("expected a positive number of batches, or None for all", 1),
    "lanes": _Number("expected a positive number", 1),
}
_WRITE = {
    "batch_size": "batch_size=32 (or another number, or None for single samples)",
    "shuffle_buffer_size": "shuffle_buffer_size=None",
    "max_samples_per_sequence": "max_samples_per_sequence=None",
}
"""Advice for each required keyword."""


def _checked(entry: Entry) -> Entry:
    """Wrap an entry point to reject unknown, missing and invalid keywords, with advice on what to write."""
    known = [name for name, each in inspect.signature(entry).parameters.items() if each.kind is not each.VAR_KEYWORD]
    needed = [name for name in _WRITE if name in known]
    taken = {*known, *DeprecatedArguments.__annotations__}

    @wraps(entry)
    def call(*args: Any, **given: Any) -> Any:
        for name in given:
            if name not in taken:
                close = difflib.get_close_matches(name, taken, n=1)
                advice = f"Did you mean {close[0]!r}?" if close else f"Known keywords: {', '.join(known)}"
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
    ". None for both shuffles local datasets fully, and shuffles datasets in object stores in blocks of about 4 MiB"
)
_OTHERS: dict[str, tuple[type[Any], bool, str]] = {
    "sample_type": (type, True, "expected a class, such as sample_type=TextSample"),
    "part_filter": (str, False, "expected a list of names, such as [{!r}], or a function"),
    "split_part": (str, True, "expected the name of a part, such as split_part='train'"),
    "trusted_modules": (str, False, "expected a list of names, such as [{!r}]"),
    "packing": (PackPlan, True, "expected a plan, such as packing=PackingPlan('tokens', capacity=4096)"),
}
"""Keywords that are not numbers: a type, whether the value must or must not be of it, and the message."""


def _check(name: str, value: Any) -> None:
    if name in _OTHERS and value is not None:
        kind, must, meant = _OTHERS[name]
        if _is_of(value, kind) is not must:
            raise ConfigError(f"{name}={value!r}: {meant.format(value)}")
    number = _NUMBERS.get(name)
    if number is not None and not (number.takes(value) or (name == "batch_size" and _is_of(value, BatchPlan))):
        raise ConfigError(f"{name}={value!r}: {number.meant}")


def _is_of(value: object, kind: type[Any]) -> bool:
    """Return whether a value is of a type. A class has all methods of a plan but is not one."""
    return isinstance(value, kind) and (kind is type or not isinstance(value, type))


def _keywords(given: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of an entry point (its `locals()` on entry) without the path and the split part."""
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
    """Return a dataset of shuffled training batches.

    Opening a dataset is cheap: it reads indexes and configuration. A loader, such as `get_savable_loader`, reads the
    samples. Each batch, with every random number used to make it, is a pure function of the data, these arguments and
    the step. `worker_config` decides which host and worker reads a sample; it never changes the samples of a global
    batch.

    Example:
        Train on shuffled batches of 32 samples, and save the position of the loop:

            from energon_grain import WorkerConfig, get_savable_loader, get_train_dataset

            dataset = get_train_dataset(
                "data/captions",
                worker_config=WorkerConfig.default_worker_config(num_workers=4),
                batch_size=32,
                shuffle_buffer_size=None,
                max_samples_per_sequence=None,
            )
            with get_savable_loader(dataset) as loader:
                for batch in loader:  # endless; repeat=False stops after one pass
                    train_step(batch)
                    state = loader.save_state_rank()

    Args:
        path: Folder of a dataset, either prepared (`energon-grain prepare`) or of bare tars; tars by name, by pattern
            (`data/{000..999}.tar`, `data/**/*.tar`) or as a list; or a metadataset: a YAML file, its content as a
            mapping, or a `MetadatasetV2` made in Python. The how-to *Open data* lists all supported sources.
        split_part: Part of the split to read.
        worker_config: This host, all hosts, and the workers. Default: this process alone, or the hosts of
            `jax.distributed`, without workers.
        batch_size: Samples in the batch of one host. `CostBudget("tokens", 65536)` fills each batch up to a total cost.
            None yields single samples. A finite pass on several hosts drops the single samples (or cost batches) at the
            end that are too few to give each host one.
        batch_drop_last: True has the effect of `last_batch="drop"`. Default: False.
        last_batch: Handling of an incomplete last batch with `repeat=False`: "keep" leaves it short (one host only, and
            the default for one host), "drop" removes it, "pad" fills it (the default for several hosts) and marks real
            samples in `__valid__`.
        balance: Give all hosts equal work. The cost of a sample is an expression over its columns, such as "tokens" or
            "tokens + 0.0001 * tokens**2". Each global batch keeps its samples and each host its number of samples;
            costs decide which host gets which sample. `Balance("tokens", micro_batches=4)` also orders the samples of a
            host for gradient accumulation. A dropped sample is replaced by another one of its global batch. None, the
            default, keeps the order of the stream.
        packing_buffer_size: Pack samples. Each lane buffers this many candidates for the task encoder's
            `select_samples_to_pack` and `pack_selected_samples`. None, the default, disables packing and these hooks.
        packing: Pack samples by a plan made from columns, before samples are read and assigned to hosts:
            `PackingPlan("tokens", capacity=4096)`. The task encoder's `pack_selected_samples` receives each pack.
        shuffle_buffer_size: With `max_samples_per_sequence`: mix at least about this many samples.
        max_samples_per_sequence: Read this many consecutive samples as one block. None shuffles local datasets fully,
            and datasets in object stores in blocks of about 4 MiB; 1 shuffles those fully too. See the how-to on
            shuffling.
        parallel_shard_iters: Blocks that a lane mixes, where batches are formed inside a lane. Default: 16.
        virtual_epoch_length: End an epoch after this many batches. 0, the default: an endless dataset never ends.
        shuffle_over_epochs_multiplier: Number of passes over the data that are shuffled together. Default: 1. -1 draws
            with replacement. None keeps the order of the shards.
        task_encoder: The user's hooks. Default: `DefaultTaskEncoder()`. Type checkers infer the type of a batch from
            the last subscript of its class, as in `DefaultTaskEncoder[Raw, Encoded, RawBatch, Batch]`.
        repeat: Repeat the data forever (default). With False, each iteration is one pass, and the next iteration is the
            next pass.
        seed: Seed of every random choice. Default: 0. `WorkerConfig.seed_offset` is mixed in.
        lanes: L, the number of interleaved sub-streams. It is constant for a run and must be a multiple of every number
            of hosts that the run uses. Default: 48, or lcm(48, hosts). Finite passes that pack or group use fewer by
            default: each lane gets at least 20 full buffers, and each host at least one lane.
        subset: Range of samples, `[start, end]`, in numbers or percent.
        where: Condition on columns, such as `"tokens >= 16 and width * height > 65536"`. Samples that do not meet it
            are never read and do not count anywhere. See the how-to on filtering by columns.
        sample_type: Expected sample type; checked.
        part_filter: Parts to read from a crude dataset: names, or a predicate.
        dataset_config: File name of the dataset configuration in `.nv-meta`. Default: `dataset.yaml`.
        split_config: File name of the split configuration. Default: the name in the dataset configuration, or
            `split.yaml`.
        split_ratio: Split for data without a split file: "train:0.9,val:0.1", or a mapping. Each file is cut into runs,
            so a sample keeps its part when files are added. Default: all samples are in the part `train`.
        trusted_modules: Modules whose classes the dataset configuration may name.
        **deprecated: See `DeprecatedArguments`.

    Returns:
        A description of the batches. Pass it to a loader, or to Grain through `BatchIterDataset`.

    Raises:
        ConfigError: Arguments contradict each other, or a configuration is invalid.
        DatasetNotFoundError: The path does not exist, or holds no dataset.
        SplitError: The dataset has no such split part.

    Local datasets are opened immediately, except for their indexes, so these errors are raised by this call. Datasets
    in object stores are opened on first use.
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
    """Return a dataset of validation batches: every sample once, in the order of the shards, the same in every pass.

    The arguments are those of `get_train_dataset`, and `limit`: batches per host in each pass; None reads all.

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
    """Return one validation dataset for each leaf, to report a loss per dataset.

    The arguments are those of `get_val_dataset`; `limit` counts the batches of each leaf.

    Returns:
        For each leaf of the metadataset, in document order, its dataset and its description: path, split part, subset,
        subflavors, name. A plain dataset is one leaf.

    Raises:
        ConfigError: Arguments contradict each other, or a leaf cannot be read.
    """
    run = _Run(_keywords(locals()), training=False)
    leaves = validation_datasets(*_described(path), run.leaf, split_part=split_part, **run.outer)
    build = run.encoder.build_val_datasets
    return [(run.seeded(run.build(build, datasets=[each])), leaves_of(each.dataset)[0]) for each in leaves]


_OPTIONAL: dict[str, Any] = {
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
"""Defaults of the keywords that a builder must declare only if they are set to something else."""


class _Run:
    """The checked arguments of an entry point, grouped by consumer.

    Attributes:
        encoder: The user's hooks.
        leaf: Makes the leaves, with the arguments that apply to every leaf.
        outer: Arguments that apply to the whole metadataset.
    """

    def __init__(self, arguments: Mapping[str, Any], *, training: bool) -> None:
        given = dict(arguments)
        check_passes(given.get("shuffle_over_epochs_multiplier"))
        self._config, self.encoder = _host_and_hooks(given.pop("worker_config"), given.pop("task_encoder"))
        self._training = training
        self._lanes = given.pop("lanes")
        seed = given.pop("seed")
        try:
            self._seed = operator.index(seed)  # accepts numpy integers
        except TypeError:
            raise ConfigError(f"seed={seed!r}: expected a whole number") from None
        fold_deprecated(
            self.encoder, {name: given.pop(name) for name in DeprecatedArguments.__annotations__ if name in given}
        )
        epoch, repeat = given.get("virtual_epoch_length", 0), given.get("repeat", True)
        if epoch < 0 or (epoch and not repeat):
            raise ConfigError(
                f"virtual_epoch_length={epoch} with repeat={repeat}: virtual epochs divide an endless stream. Use a "
                f"positive number of batches with repeat=True, or 0"
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
            given["shuffle_buffer_size"] = of_leaves["shuffle_buffer_size"]  # Energon's builders shuffle by it
        self._of_builders = given

    def build(self, builder: Callable[..., Any], **keywords: Any) -> SavableDataset:
        """Call a builder of the task encoder with the keywords that it declares.

        Raises ConfigError if it lacks one that differs from its default, or does not return a dataset.
        """
        keywords |= {**self._of_builders, "worker_config": self._config}
        requested = {name: keywords.pop(name) for name, none in _OPTIONAL.items() if keywords.get(name, none) != none}
        dataset = call_declared(builder, requested=requested, **keywords)
        if not isinstance(dataset, SavableDataset):
            raise ConfigError(
                f"{getattr(builder, '__qualname__', builder)} returned a {type(dataset).__name__}, expected a dataset: "
                f"return the dataset that it builds"
            )
        return dataset

    def seeded(self, dataset: SavableDataset) -> SavableDataset:
        """Return the dataset with the seed and lanes of the run."""
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
    """Return the host and the task encoder, or their defaults.

    Raises ConfigError if one of them has the wrong type, for example a class instead of an instance.
    """
    config: Any = WorkerConfig.default_worker_config(num_workers=0) if worker_config is None else worker_config
    if not isinstance(config, WorkerConfig):
        raise ConfigError(
            f"worker_config={config!r}: expected a WorkerConfig, such as WorkerConfig(rank=0, world_size=1)"
        )
    return config, _hooks(DefaultTaskEncoder() if task_encoder is None else task_encoder)


def _hooks(encoder: Any) -> TaskEncoder:
    """Check a task encoder and return it. Raises ConfigError."""
    if isinstance(encoder, type):
        raise ConfigError(f"task_encoder={encoder.__name__}: expected an instance, got a class: {encoder.__name__}()")
    if not isinstance(encoder, TaskEncoder):
        raise ConfigError(f"task_encoder={encoder!r}: expected an instance of a subclass of TaskEncoder")
    name = type(encoder).__name__
    _warn_of_misspelt_hooks(type(encoder))
    decoder: Any = encoder.decoder
    if decoder is not None and (isinstance(decoder, type) or not hasattr(decoder, "decoder_for")):
        raise ConfigError(
            f"{name}.decoder = {decoder!r}: expected a SampleDecoder, such as SampleDecoder(image_decode='rgb8'), "
            f"or None to keep the bytes of each part"
        )
    cookers: Any = encoder.cookers
    if not isinstance(cookers, Sequence) or not all(isinstance(cooker, Cooker) for cooker in cookers):
        raise ConfigError(f"{name}.cookers = {cookers!r}: expected a list of cookers, such as [Cooker(my_function)]")
    if hasattr(encoder, "build_cook_crude_sample"):
        raise ConfigError(
            f"{name}.build_cook_crude_sample is never called, because each leaf cooks its own samples: override "
            f"cook_crude_sample, or set cookers"
        )
    return encoder


def _warn_of_misspelt_hooks(encoder: type[TaskEncoder]) -> None:
    """Log methods whose names nearly match a hook that the task encoder does not override."""
    ours = (TaskEncoder, DefaultTaskEncoder)
    idle = [name for name in dir(TaskEncoder) if any(getattr(encoder, name) is getattr(each, name) for each in ours)]
    for name in sorted({*dir(encoder)} - {*dir(DefaultTaskEncoder)}):
        near = difflib.get_close_matches(name, idle, n=1, cutoff=0.9)
        if near and not name.startswith("_") and callable(getattr(encoder, name)):
            _logger.warning(
                "%s.%s is not a hook, so it is never called. Did you mean %r?", encoder.__name__, name, near[0]
            )


def _described(path: Source) -> tuple[Source, bool]:
    """Return the source of a path, and whether its data must exist; the leaf of a single dataset checks that itself."""
    if isinstance(path, str | os.PathLike) and not os.fspath(path).endswith(METADATASET_ENDINGS):
        return DatasetLoader(path=check_url(os.fspath(path))), False
    if isinstance(path, list | tuple):
        return DatasetLoader(path=one_text(path)), False
    given: Any = path
    if not isinstance(given, str | os.PathLike | Mapping | DatasetLoaderInterface):
        way_out = "; pass this dataset to get_loader or BlendDataset" if isinstance(path, SavableDataset) else ""
        raise ConfigError(
            f"path={path!r}: expected the path of a dataset or metadataset, or a metadataset as a mapping{way_out}"
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
    """Return the samples of one prepared dataset or JSONL file, neither encoded nor batched.

    Args:
        path: Folder of the dataset, or the file.
        dataset_config: See `get_train_dataset`, also for `split_config`, `worker_config`, `sample_type`, `subset` and
            `where`.
        split_part: Default: `train`.
        training: Whether samples are shuffled.
        subflavors: Tags of every sample. They override tags of the same name in the dataset configuration.
        shuffle_over_epochs: `shuffle_over_epochs_multiplier` of `get_train_dataset`.
        **options: See `DatasetLoader.get_datasets`.

    Raises:
        ConfigError: An argument is invalid.
        DatasetNotFoundError: The path holds no prepared dataset.
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
