# SPDX-License-Identifier: Apache-2.0
"""The user's side of the pipeline: hooks from decoded sample to encoded batch.

Hooks run in this order, each on what the one before returned:

1. `decoder` on the parts of a raw sample, before the sample object is made;
2. `cookers` with `cook_crude_sample`, on crude leaves only;
3. `encode_sample` or `preencode_sample`, sample by sample, or `encode_samples`, on many at once;
4. with `packing_buffer_size`: `select_samples_to_pack` on a full buffer, `postencode_sample` on each sample of a group,
   `pack_selected_samples` on the group; with `packing`: `postencode_sample`, sample by sample, and
   `pack_selected_samples` on each pack of the plan; without them: `postencode_sample`, sample by sample;
5. `batch_group_criterion`, where it is overridden, says which samples belong in a batch;
6. `batch`, on the samples of one batch;
7. `encode_batch`, on the batch. Where nothing is batched (`batch_size=None` without groups) the last two do not run.

A hook that is not overridden costs nothing. Random numbers come from `self.rng`. The builders
`build_train_datasets`, `build_val_datasets`, `build_encode_sample` and `build_batch` put the hooks into a graph of
dataset nodes and may be overridden too; an override gets those keywords alone that it declares.
"""

from __future__ import annotations

import dataclasses
import inspect
import logging
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, cast, runtime_checkable

from energon_grain.datasets.batching import Balance, BatchDataset
from energon_grain.datasets.cooker import Cooker
from energon_grain.datasets.dataset import SavableDataset
from energon_grain.datasets.grouping import GroupBatchDataset
from energon_grain.datasets.hooks import forwarding, idle, overridden_hook, owner_of_hook, stateless
from energon_grain.datasets.mapping import MapDataset
from energon_grain.datasets.mixtures import (
    BlendDataset,
    BlendEpochizedDataset,
    ConcatDataset,
    DatasetBlendMode,
    LoadedDataset,
    Schedule,
)
from energon_grain.datasets.packing import PackingDataset
from energon_grain.datasets.passes import EpochizeDataset, LimitDataset, RepeatDataset
from energon_grain.errors import ConfigError
from energon_grain.samples.subscripts import EncodedBatch, EncodedSample, FourSubscripts, RawBatch, RawSample
from energon_grain.sources.cache_pool import CachePool, active_cache
from energon_grain.stream.extensions import LOG_SAMPLES, extension
from energon_grain.stream.hooks import DEFAULT_FAILURE_TOLERANCE, current_draw, current_draws
from energon_grain.stream.spec import LastBatch
from energon_grain.stream.worker_config import WorkerConfig
from energon_grain.transforms.batching import batch_samples, generic_batch
from energon_grain.transforms.decode import DEFAULT_DECODER, SampleDecoder

if TYPE_CHECKING:
    import numpy as np

_logger = logging.getLogger("energon_grain")


@runtime_checkable
class PackPlan(Protocol):
    """Plans which samples make a pack."""

    def packed(self, encoder: TaskEncoder, dataset: SavableDataset, worker_config: WorkerConfig) -> SavableDataset:
        """The packs of a dataset, made by a hook of the encoder. Raises ConfigError where it has none."""
        ...


@runtime_checkable
class BatchPlan(Protocol):
    """Plans which samples make a batch, in place of a number of samples."""

    def batched(
        self, encoder: TaskEncoder, dataset: SavableDataset, last_batch: LastBatch | None, worker_config: WorkerConfig
    ) -> SavableDataset:
        """The batches of a dataset, made by the encoder's `batch`. Raises ConfigError where that does not fit."""
        ...


def call_declared(builder: Callable[..., Any], *arguments: Any, asked: Mapping[str, Any], **keywords: Any) -> Any:
    """Call a builder with the keywords that it declares, and no others.

    So an override that was written for an earlier version, or for Energon, goes on working when a keyword is added.

    Args:
        builder: May be overridden.
        *arguments: Passed as they are.
        asked: Keywords that carry what the user asked for, and that must not be lost.
        **keywords: Passed where they are declared.

    Raises:
        ConfigError: One of `asked` is not declared.
    """
    parameters = inspect.signature(builder).parameters.values()
    keywords |= asked
    if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        names = {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
        lost = [name for name in asked if name not in names]
        if lost:
            what = ", ".join(f"{name}={asked[name]!r}" for name in lost)
            raise ConfigError(
                f"{getattr(builder, '__qualname__', repr(builder))} does not take {what}, which was asked for; declare "
                f"{', '.join(lost)} there (or **kwargs) and pass it on, or do not ask for it"
            )
        keywords = {name: value for name, value in keywords.items() if name in names}
    return builder(*arguments, **keywords)


def _training_mixture(
    datasets: Sequence[LoadedDataset],
    worker_config: WorkerConfig,
    blend_mode: DatasetBlendMode,
    schedule: Schedule | None,
    repeat: bool,
) -> SavableDataset:
    """The datasets combined in the way that the metadataset says.

    Raises ConfigError if there is no dataset, or the mixture has no end although `repeat` is False.
    """
    if not datasets:
        raise ConfigError("build_train_datasets: there is no dataset; pass at least one")
    by_cost = blend_mode is DatasetBlendMode.NONE and isinstance(datasets[0][0], BlendDataset)
    if blend_mode is DatasetBlendMode.DATASET_WEIGHT or by_cost:
        if not repeat:
            raise _endless(datasets[0])
        return datasets[0][0] if by_cost else BlendDataset(*datasets, schedule=schedule, worker_config=worker_config)
    alone = [dataset for dataset, _ in datasets]
    if blend_mode is DatasetBlendMode.SAMPLE_REPETITIONS:
        mixture: SavableDataset = BlendEpochizedDataset(*datasets, worker_config=worker_config)
    elif len(datasets) == 1:
        mixture = alone[0]
    elif repeat:  # numbers that are neither weights nor repetitions do not count: equal shares
        return BlendDataset(*alone, worker_config=worker_config)
    else:
        mixture = BlendEpochizedDataset(*alone, worker_config=worker_config)
    return RepeatDataset(mixture, worker_config=worker_config) if repeat else mixture


def _endless(dataset: LoadedDataset) -> ConfigError:
    place = getattr(dataset, "combined_at", "")
    return ConfigError(
        f"{place}{': ' if place else ''}a blend by weights has no end, so repeat=False has no meaning; use "
        f"`blend_epochized` with repetitions, or virtual_epoch_length"
    )


def _check_packing(buffer_size: int | None, batch_size: int | BatchPlan | None) -> None:
    if buffer_size is not None or isinstance(batch_size, BatchPlan):
        other = "packing_buffer_size" if buffer_size is not None else "batch_size=CostBudget(…)"
        raise ConfigError(f"packing and {other}: packs are made in one way; give one of the two")


def _check_grouping(encoder: Any, last_batch: LastBatch | None, balance: Balance | None) -> None:
    if last_batch == "pad":
        raise ConfigError(
            f"last_batch='pad' with {type(encoder).__name__}.batch_group_criterion: groups that are incomplete at "
            f"the end cannot be filled up; use 'drop', or 'keep' on one host"
        )
    if balance is not None:
        raise ConfigError(
            f"balance={balance.by!r} with {type(encoder).__name__}.batch_group_criterion: which samples make a "
            f"batch depends on what is in them, so hosts cannot know beforehand what it costs; use one of both"
        )


def _named_fields(value: Any) -> dict[str, Any]:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return {name: getattr(value, name) for name in cast("Any", value)._fields}
    if isinstance(value, Mapping):
        return dict(cast("Mapping[str, Any]", value))
    raise ConfigError(
        f"cannot convert a {type(value).__name__} by field name; dataclasses, NamedTuples and dicts have named fields"
    )


def _convert(value: Any, target: type[Any] | None) -> Any:
    """Make a `target` of the fields of `value`; `value` itself when it is one already, or there is no target.

    Raises ConfigError if `value` has no named fields, or they do not fit the target.
    """
    if target is None or isinstance(value, target):
        return value
    fields = _named_fields(value)
    if fields.get("__valid__", 0) is None:
        del fields["__valid__"]  # a place for the mask of padded batches, which other types need not have
    if issubclass(target, dict):
        return target(fields)
    try:
        return target(**fields)
    except TypeError as error:
        raise ConfigError(
            f"fields {sorted(fields)} of {type(value).__name__} do not fit {target.__name__}: {error}; name the fields "
            f"alike, or override the hook that converts"
        ) from error


class TaskEncoder(FourSubscripts[RawSample, EncodedSample, RawBatch, EncodedBatch]):
    """Base of user task encoders: override what the task needs.

    Subscripts name types for readers and type checkers: `TaskEncoder[sample, encoded sample, raw batch, batch]`.

    Attributes:
        decoder: Decodes the parts of each sample; None leaves them bytes. A `decoder:` in the dataset's own
            configuration takes precedence.
        decoder_type: The class of such decoders, of which a configuration gives the arguments alone.
        cookers: Turn crude samples into samples; for each leaf the first whose `has_subflavors` fit is taken.
        thread_safe: Whether hooks may run in several threads at once. Unless it is True they run one at a time.

    Any hook may raise `SkipSample`. Other exceptions go to `WorkerConfig.global_error_handler`; after
    `__default_failure_tolerance__` failures of one hook in a row the iteration ends with `FatalSampleError`.
    `@stateless(failure_tolerance=…)` says otherwise for one hook.
    """

    decoder: SampleDecoder | None = DEFAULT_DECODER
    decoder_type: type[SampleDecoder] = SampleDecoder
    cookers: Sequence[Cooker] = ()
    thread_safe: ClassVar[bool] = False
    __default_failure_tolerance__: ClassVar[int] = DEFAULT_FAILURE_TOLERANCE

    @idle()
    @stateless
    def cook_crude_sample(self, sample: Any, cooker: Cooker, aux: dict[str, Any]) -> Any:
        """Turn a crude sample into a sample with the cooker chosen for its leaf."""
        return cooker.cook(sample, **aux)

    @idle()
    @stateless
    def encode_sample(self, sample: RawSample) -> Any:
        """Encode one sample; or, as a generator, yield any number. Default: the sample as it is."""
        return sample

    @idle()
    @stateless
    def preencode_sample(self, sample: Any) -> Any:
        """Encode one sample as far as choosing what to pack needs; or, as a generator, yield any number.

        It stands at the place of `encode_sample`: only one of the two may be overridden.
        """
        return sample

    @idle()
    @stateless
    def encode_samples(self, samples: list[RawSample]) -> list[Any]:
        """Encode many samples at once, for what is faster on lists. It stands at the place of `encode_sample`.

        How many, and which ones, is not said: what a sample becomes must depend on that sample alone, and on its own
        random numbers in `self.rngs`. So no batch norms, and no padding to the longest.

        Where it raises, the samples are made again and given to it one by one, so that only those are dropped that it
        fails on.

        Returns:
            An entry for each sample, in their order: what it becomes, or an exception, such as `SkipSample()`, that
            drops it.
        """
        return samples

    @idle()
    @stateless
    def postencode_sample(self, sample: Any) -> Any:
        """Finish encoding a sample, once it is known that it is used; inside packs it may not be a generator."""
        return sample

    @idle()
    def select_samples_to_pack(self, samples: list[Any]) -> list[list[Any]]:
        """Which of a full buffer's samples belong together. Samples left out are dropped.

        Not called where packs are planned from columns (`packing`).
        """
        raise NotImplementedError(f"{type(self).__name__}.select_samples_to_pack: packing needs this hook")

    @idle()
    @stateless
    def pack_selected_samples(self, samples: list[Any]) -> Any:
        """Make one sample of a group; or, as a generator, any number. Its `__restore_key__` may be left `()`.

        Of a pack that was planned (`packing`) it must make one. Where it has a parameter `ranges`, it is given
        (start, stop) of each sample by it: which units of its first cost belong to the pack, all of them but for
        samples that were split.
        """
        raise NotImplementedError(f"{type(self).__name__}.pack_selected_samples: packing needs this hook")

    @idle()
    def batch_group_criterion(self, sample: EncodedSample) -> tuple[Hashable, int | None]:
        """(key, size): samples of one key are batched together, `size` of them, or `batch_size` where it is None.

        Default: batches are made of consecutive samples.
        """
        return None, None

    @stateless
    def batch(self, samples: list[EncodedSample]) -> Any:
        """Make a batch of samples; or, as a generator (not with groups), yield any number.

        Default: `generic_batch`, which pads and stacks arrays and lists all else.
        """
        return generic_batch(samples)

    @idle()
    @stateless
    def encode_batch(self, batch: RawBatch) -> Any:
        """Encode a batch; or, as a generator, yield any number. Default: the batch as it is."""
        return batch

    @property
    def rng(self) -> np.random.Generator:
        """Random numbers of the running hook's sample (or batch): equal in every run, on every host and worker."""
        return current_draw().rng

    @property
    def rngs(self) -> list[np.random.Generator]:
        """In `encode_samples`: random numbers of each sample, in their order; in other hooks `rng` alone."""
        return [draw.rng for draw in current_draws()]

    @property
    def cache(self) -> CachePool:
        """The loader's `cache_pool`, in a hook; without one, a pool that reads when it is asked, and keeps nothing."""
        return active_cache()

    @property
    def current_batch_index(self) -> int:
        """Number, on this host and in this pass, of the batch that is being made. See `Draw.batch_index`."""
        return current_draw().batch_index

    @property
    def current_sample_index(self) -> int:
        """Position of the running hook's sample in the stream of its leaf; in batch hooks, of the batch's first item.

        It is the same wherever and whenever the sample is made, and different for samples of one leaf.
        """
        return current_draw().position

    def build_train_datasets(
        self,
        *,
        datasets: list[LoadedDataset],
        worker_config: WorkerConfig,
        batch_size: int | BatchPlan | None,
        batch_drop_last: bool = False,
        packing_buffer_size: int | None = None,
        packing: PackPlan | None = None,
        virtual_epoch_length: int = 0,
        shuffle_buffer_size: int | None = None,
        blend_mode: DatasetBlendMode = DatasetBlendMode.NONE,
        repeat: bool = True,
        last_batch: LastBatch | None = None,
        balance: Balance | None = None,
        schedule: Schedule | None = None,
    ) -> SavableDataset:
        """Combine datasets and put encoding, packing, batching and virtual epochs over them.

        Args:
            datasets: (dataset, number) pairs; `BlendDataset(*datasets)` blends them.
            worker_config: Of the nodes.
            batch_size: As in `get_train_dataset`, and so are `batch_drop_last`, `packing_buffer_size`, `packing`,
                `virtual_epoch_length`, `repeat`, `last_batch` and `balance`.
            shuffle_buffer_size: As in `get_train_dataset`; the leaves are shuffled by it already.
            blend_mode: What the numbers of the pairs mean.
            schedule: (from_position, a weight for each dataset) of each segment, where weights change on the way.

        Raises:
            ConfigError: The hooks or arguments do not fit together.
        """
        del shuffle_buffer_size
        dataset = _training_mixture(datasets, worker_config, blend_mode, schedule, repeat)
        dataset = _encoded_and_batched(
            self,
            dataset,
            worker_config,
            batch_size,
            batch_drop_last=batch_drop_last,
            packing_buffer_size=packing_buffer_size,
            packing=packing,
            last_batch=last_batch,
            balance=balance,
        )
        if worker_config.should_log(1):
            dataset = extension(LOG_SAMPLES)(dataset, "train", worker_config)
        if virtual_epoch_length > 0:
            dataset = EpochizeDataset(dataset, virtual_epoch_length, worker_config=worker_config)
        return dataset

    def build_val_datasets(
        self,
        *,
        datasets: list[LoadedDataset],
        worker_config: WorkerConfig,
        batch_size: int | BatchPlan | None,
        batch_drop_last: bool = False,
        packing_buffer_size: int | None = None,
        packing: PackPlan | None = None,
        limit: int | None = None,
        last_batch: LastBatch | None = None,
        balance: Balance | None = None,
    ) -> SavableDataset:
        """Concatenate datasets and put encoding, packing, batching and the limit over them.

        Args:
            datasets: (dataset, number) pairs; numbers do not count.
            worker_config: Of the nodes.
            batch_size: As in `get_val_dataset`, and so are the other arguments.

        Raises:
            ConfigError: The hooks or arguments do not fit together.
        """
        if not datasets:
            raise ConfigError("build_val_datasets: there is no dataset; pass at least one")
        dataset = datasets[0][0] if len(datasets) == 1 else ConcatDataset(*datasets, worker_config=worker_config)
        dataset = _encoded_and_batched(
            self,
            dataset,
            worker_config,
            batch_size,
            batch_drop_last=batch_drop_last,
            packing_buffer_size=packing_buffer_size,
            packing=packing,
            last_batch=last_batch,
            balance=balance,
        )
        if worker_config.should_log(2):
            dataset = extension(LOG_SAMPLES)(dataset, "val", worker_config)
        return dataset if limit is None else LimitDataset(dataset, limit, worker_config=worker_config)

    def build_encode_sample(self, dataset: SavableDataset, *, worker_config: WorkerConfig) -> SavableDataset:
        """Put `encode_sample`, `preencode_sample` or `encode_samples` over a dataset, where one of them is overridden.

        Raises:
            ConfigError: Several are.
        """
        names = ("encode_sample", "preencode_sample", "encode_samples")
        hooks = [name for name in names if overridden_hook(self, name) is not None]
        if len(hooks) > 1:
            raise ConfigError(
                f"{type(self).__name__} has {' and '.join(hooks)}; they stand at the same place, so keep one of them "
                f"(encoded_sample_type=… converts in encode_sample)"
            )
        return mapped(self, dataset, hooks[0], worker_config) if hooks else dataset

    def build_batch(
        self,
        dataset: SavableDataset,
        *,
        batch_size: int | BatchPlan | None,
        batch_drop_last: bool = False,
        packing_buffer_size: int | None = None,
        packing: PackPlan | None = None,
        worker_config: WorkerConfig,
        last_batch: LastBatch | None = None,
        balance: Balance | None = None,
    ) -> SavableDataset:
        """Put packing, grouping or batching, and `encode_batch` over a dataset.

        Args:
            dataset: Of encoded samples.
            batch_size: As in `get_train_dataset`, and so are the other arguments.
            worker_config: Of the nodes.

        Raises:
            ConfigError: A hook that is needed is not overridden, or is a generator where one value is needed.
        """
        if packing is not None:
            _check_packing(packing_buffer_size, batch_size)
            dataset = packing.packed(self, dataset, worker_config)
        elif packing_buffer_size is not None:
            dataset = _packed(self, dataset, packing_buffer_size, worker_config)
        else:
            dataset = mapped(self, dataset, "postencode_sample", worker_config)
        if isinstance(batch_size, BatchPlan):
            dataset = batch_size.batched(self, dataset, last_batch, worker_config)
            return mapped(self, dataset, "encode_batch", worker_config)
        batcher = owner_of_hook(self, "batch").batch
        if (criterion := overridden_hook(self, "batch_group_criterion")) is not None:
            _check_grouping(self, last_batch, balance)
            dataset = GroupBatchDataset(
                dataset,
                batch_size,
                criterion,
                batcher,
                drop_last=batch_drop_last or last_batch == "drop",
                task_encoder=owner_of_hooks(self, "batch", "batch_group_criterion"),
                worker_config=worker_config,
            )
        elif batch_size is not None:
            dataset = BatchDataset(
                dataset,
                batch_size,
                batcher,
                drop_last=batch_drop_last,
                last_batch=last_batch,
                balance=balance,
                task_encoder=owner_of_hooks(self, "batch"),
                worker_config=worker_config,
            )
        else:
            return dataset
        return mapped(self, dataset, "encode_batch", worker_config)


def _encoded_and_batched(
    encoder: TaskEncoder,
    dataset: SavableDataset,
    worker_config: WorkerConfig,
    batch_size: int | BatchPlan | None,
    **options: Any,
) -> SavableDataset:
    """What the builders of single steps make, each of which may be overridden by itself."""
    dataset = call_declared(encoder.build_encode_sample, dataset, asked={}, worker_config=worker_config)
    asked = {name: options.pop(name) for name in list(options) if options[name]}
    return call_declared(
        encoder.build_batch, dataset, asked=asked, batch_size=batch_size, worker_config=worker_config, **options
    )


def _packed(
    encoder: TaskEncoder, dataset: SavableDataset, buffer_size: int, worker_config: WorkerConfig
) -> SavableDataset:
    select, pack = (overridden_hook(encoder, name) for name in ("select_samples_to_pack", "pack_selected_samples"))
    if select is None or pack is None:
        missing = "select_samples_to_pack" if select is None else "pack_selected_samples"
        raise ConfigError(
            f"packing_buffer_size={buffer_size}, but {type(encoder).__name__} has no {missing}; packing needs "
            f"select_samples_to_pack (which samples go together) and pack_selected_samples (one sample of each group)"
        )
    return PackingDataset(
        dataset,
        buffer_size,
        select,
        pack,
        sample_encoder=overridden_hook(encoder, "postencode_sample"),
        task_encoder=owner_of_hooks(encoder, "select_samples_to_pack", "pack_selected_samples", "postencode_sample"),
        worker_config=worker_config,
    )


def mapped(encoder: TaskEncoder, dataset: SavableDataset, hook: str, worker_config: WorkerConfig) -> SavableDataset:
    """The dataset with a hook applied, where that is overridden."""
    function, owner = overridden_hook(encoder, hook), owner_of_hooks(encoder, hook)
    if function is None:
        return dataset
    lists = hook == "encode_samples"
    return MapDataset(dataset, function, hook=hook, task_encoder=owner, lists=lists, worker_config=worker_config)


def owner_of_hooks(encoder: TaskEncoder, *hooks: str) -> TaskEncoder:
    """Whose `thread_safe` counts: the encoder that has all of the hooks, or the outer one where they are of several."""
    owners = [owner_of_hook(encoder, hook) for hook in hooks]
    return owners[0] if all(owner is owners[0] for owner in owners) else encoder


class DefaultTaskEncoder(TaskEncoder[RawSample, EncodedSample, RawBatch, EncodedBatch]):
    """Converts between types by field name; all else as in `TaskEncoder`.

    Types may be dataclasses, NamedTuples or `dict`.

    Args:
        encoded_sample_type: What `encode_sample` returns; default: the sample's own type.
        raw_batch_type: What `batch` returns; default: the type of the first sample, its fields batched.
        batch_type: What `encode_batch` returns; default: the raw batch's type.
    """

    _encoded_sample_type: type[Any] | None = None
    _raw_batch_type: type[Any] | None = None
    _batch_type: type[Any] | None = None

    def __init__(
        self,
        *,
        encoded_sample_type: type[EncodedSample] | None = None,
        raw_batch_type: type[RawBatch] | None = None,
        batch_type: type[EncodedBatch] | None = None,
    ) -> None:
        self._encoded_sample_type = encoded_sample_type
        self._raw_batch_type = raw_batch_type
        self._batch_type = batch_type

    @idle(unless="_encoded_sample_type")
    @stateless
    def encode_sample(self, sample: RawSample) -> Any:
        """Convert the sample to `encoded_sample_type`."""
        return _convert(sample, self._encoded_sample_type)

    @stateless
    def batch(self, samples: list[EncodedSample]) -> Any:
        """Batch field by field into `raw_batch_type`; metadata fields become lists, one value a sample."""
        return batch_samples(samples, self._raw_batch_type)

    @idle(unless="_batch_type")
    @stateless
    def encode_batch(self, batch: RawBatch) -> Any:
        """Convert the batch to `batch_type`."""
        return batch if self._batch_type is self._raw_batch_type else _convert(batch, self._batch_type)


_BUILDERS = ("build_train_datasets", "build_val_datasets", "build_encode_sample", "build_batch")


def _handed_on(name: str) -> Any:
    """The hook of the inner encoder."""

    @forwarding
    @wraps(getattr(TaskEncoder, name))
    def hook(self: AugmentTaskEncoder, *arguments: Any, **named: Any) -> Any:
        return getattr(self.inner, name)(*arguments, **named)

    return hook


class AugmentTaskEncoder(TaskEncoder[RawSample, EncodedSample, RawBatch, EncodedBatch]):
    """A task encoder that does what another one does, but for the hooks that a subclass overrides.

    A hook that is merely handed on costs nothing: the inner encoder's own is called, under its own `thread_safe` and
    failure tolerance. Random numbers in both are those of the sample.

    Attributes:
        inner: The encoder that hooks are handed on to.

    Args:
        task_encoder: The inner encoder.

    Raises:
        ConfigError: The inner encoder overrides a builder and this class does not: its graph would be made of its
            own hooks, or lost.
    """

    def __init__(self, task_encoder: TaskEncoder[RawSample, EncodedSample, RawBatch, EncodedBatch]) -> None:
        self.inner = task_encoder
        for name in _BUILDERS:
            plain = getattr(TaskEncoder, name)
            theirs = getattr(getattr(task_encoder, name), "__func__", None)
            if theirs is not plain and getattr(type(self), name) is plain:
                raise ConfigError(
                    f"{type(task_encoder).__name__} overrides {name}, which {type(self).__name__} cannot hand on: "
                    f"the graph would be made of the inner encoder's hooks; override {name} here too"
                )

    @property
    def decoder(self) -> SampleDecoder | None:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The inner encoder's; a subclass may set its own as an attribute of the class."""
        return self.inner.decoder

    @decoder.setter
    def decoder(self, decoder: SampleDecoder | None) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]
        self.inner.decoder = decoder

    @property
    def decoder_type(self) -> type[SampleDecoder]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The inner encoder's."""
        return self.inner.decoder_type

    @property
    def cookers(self) -> Sequence[Cooker]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The inner encoder's; a subclass may set its own as an attribute of the class."""
        return self.inner.cookers

    cook_crude_sample = _handed_on("cook_crude_sample")
    encode_sample = _handed_on("encode_sample")
    preencode_sample = _handed_on("preencode_sample")
    encode_samples = _handed_on("encode_samples")
    postencode_sample = _handed_on("postencode_sample")
    select_samples_to_pack = _handed_on("select_samples_to_pack")
    pack_selected_samples = _handed_on("pack_selected_samples")
    batch_group_criterion = _handed_on("batch_group_criterion")
    batch = _handed_on("batch")
    encode_batch = _handed_on("encode_batch")
