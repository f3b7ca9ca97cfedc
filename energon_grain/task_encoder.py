# SPDX-License-Identifier: Apache-2.0
"""The user's part of the pipeline: hooks from decoded sample to encoded batch.

Hooks run in this order. Each receives the result of the one before:

1. `decoder`: the parts of a raw sample, before the sample object is made;
2. `cookers` with `cook_crude_sample`: crude leaves only;
3. `encode_sample` or `preencode_sample`, sample by sample, or `encode_samples`, on many samples at once;
4. with `packing_buffer_size`: `select_samples_to_pack` on a full buffer, `postencode_sample` on each sample of a group,
   `pack_selected_samples` on the group; with `packing`: `postencode_sample`, sample by sample, and
   `pack_selected_samples` on each pack of the plan; otherwise: `postencode_sample`, sample by sample;
5. `batch_group_criterion`, if overridden: the samples that belong in one batch;
6. `batch`: the samples of one batch;
7. `encode_batch`: the batch. The last two do not run without batching (`batch_size=None` without groups).

A hook that is not overridden costs nothing. Random numbers come from `self.rng`. The builders `build_train_datasets`,
`build_val_datasets`, `build_encode_sample` and `build_batch` compose the hooks into a graph of dataset nodes. They may
be overridden too; an override receives only the keywords that it declares.
"""

from __future__ import annotations

import dataclasses
import inspect
import logging
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, cast, runtime_checkable

from energon_grain.cooking.cooker import Cooker
from energon_grain.datasets.batching import Balance, BatchDataset
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
    """Plans the samples of each pack."""

    def packed(self, encoder: TaskEncoder, dataset: SavableDataset, worker_config: WorkerConfig) -> SavableDataset:
        """Return the dataset in packs, made by a hook of the encoder. Raises ConfigError if it has none."""
        ...


@runtime_checkable
class BatchPlan(Protocol):
    """Plans the samples of each batch, in place of a fixed number of samples."""

    def batched(
        self, encoder: TaskEncoder, dataset: SavableDataset, last_batch: LastBatch | None, worker_config: WorkerConfig
    ) -> SavableDataset:
        """Return the dataset in batches, made by the encoder's `batch`. Raises ConfigError if that is impossible."""
        ...


def call_declared(builder: Callable[..., Any], *arguments: Any, requested: Mapping[str, Any], **keywords: Any) -> Any:
    """Call a builder with the keywords that it declares.

    Overrides that were written for an earlier version, or for Energon, keep working when a keyword is added.

    Args:
        builder: May be overridden.
        *arguments: Passed unchanged.
        requested: Keywords that the user set, which must not be dropped.
        **keywords: Passed if declared.

    Raises:
        ConfigError: One of `requested` is not declared.
    """
    parameters = inspect.signature(builder).parameters.values()
    keywords |= requested
    if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        names = {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
        lost = [name for name in requested if name not in names]
        if lost:
            what = ", ".join(f"{name}={requested[name]!r}" for name in lost)
            raise ConfigError(
                f"{getattr(builder, '__qualname__', repr(builder))} does not accept {what}: declare {', '.join(lost)} "
                f"there (or **kwargs) and pass it on, or leave it out of the call"
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
    """Combine the datasets as the metadataset describes.

    Raises ConfigError if there is no dataset, or if the mixture is endless although `repeat` is False.
    """
    if not datasets:
        raise ConfigError("build_train_datasets: got no dataset, expected at least one")
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
    elif repeat:  # other numbers than weights and repetitions do not count: equal shares
        return BlendDataset(*alone, worker_config=worker_config)
    else:
        mixture = BlendEpochizedDataset(*alone, worker_config=worker_config)
    return RepeatDataset(mixture, worker_config=worker_config) if repeat else mixture


def _endless(dataset: LoadedDataset) -> ConfigError:
    place = getattr(dataset, "combined_at", "")
    return ConfigError(
        f"{place}{': ' if place else ''}a blend by weights is endless, so it cannot use repeat=False: use "
        f"`blend_epochized` with repetitions, or virtual_epoch_length"
    )


def _check_packing(buffer_size: int | None, batch_size: int | BatchPlan | None) -> None:
    if buffer_size is not None or isinstance(batch_size, BatchPlan):
        other = "packing_buffer_size" if buffer_size is not None else "batch_size=CostBudget(…)"
        raise ConfigError(f"packing and {other}: both define the packs; use only one of them")


def _check_grouping(encoder: Any, last_batch: LastBatch | None, balance: Balance | None) -> None:
    if last_batch == "pad":
        raise ConfigError(
            f"last_batch='pad' with {type(encoder).__name__}.batch_group_criterion: groups that are incomplete at "
            f"the end cannot be padded. Use 'drop', or 'keep' on one host"
        )
    if balance is not None:
        raise ConfigError(
            f"balance={balance.by!r} with {type(encoder).__name__}.batch_group_criterion: the groups depend on the "
            f"content of samples, so hosts cannot know their costs in advance. Use only one of them"
        )


def _named_fields(value: Any) -> dict[str, Any]:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return {name: getattr(value, name) for name in cast("Any", value)._fields}
    if isinstance(value, Mapping):
        return dict(cast("Mapping[str, Any]", value))
    raise ConfigError(
        f"cannot convert a {type(value).__name__} by field name: expected a dataclass, a NamedTuple or a dict"
    )


def _convert(value: Any, target: type[Any] | None) -> Any:
    """Make a `target` from the fields of `value`. Returns `value` if it is one already, or if there is no target.

    Raises ConfigError if `value` has no named fields, or if they do not fit the target.
    """
    if target is None or isinstance(value, target):
        return value
    fields = _named_fields(value)
    if fields.get("__valid__", 0) is None:
        del fields["__valid__"]  # the mask of padded batches, which other types need not have
    if issubclass(target, dict):
        return target(fields)
    try:
        return target(**fields)
    except TypeError as error:
        raise ConfigError(
            f"fields {sorted(fields)} of {type(value).__name__} do not fit {target.__name__}: {error}. Use the same "
            f"field names in both, or override the hook that converts"
        ) from error


class TaskEncoder(FourSubscripts[RawSample, EncodedSample, RawBatch, EncodedBatch]):
    """Base class of task encoders. Override the hooks that a task needs.

    Subscripts name types for readers and type checkers: `TaskEncoder[sample, encoded sample, raw batch, batch]`.

    Example:
        Tokenize captions and crop at random, the same in every run:

            class Captions(DefaultTaskEncoder):
                decoder = SampleDecoder(image_decode="rgb8")

                @stateless
                def encode_sample(self, sample: CaptioningSample) -> dict:
                    top, left = self.rng.integers(0, 32, size=2)
                    if len(sample.caption) < 3:
                        raise SkipSample()
                    return {
                        "image": sample.image[top : top + 224, left : left + 224],
                        "tokens": np.asarray(tokenizer.encode(sample.caption)),
                    }

            dataset = get_train_dataset("data/captions", task_encoder=Captions(), batch_size=32, ...)

        `DefaultTaskEncoder.batch` pads and stacks the arrays of each field.

    Attributes:
        decoder: Decodes the parts of each sample; None keeps them as bytes. A `decoder:` in the dataset's own
            configuration takes precedence.
        decoder_type: Class of the decoders whose arguments a dataset configuration holds.
        cookers: Turn crude samples into typed samples. Each leaf uses the first cooker whose `has_subflavors` match.
        thread_safe: Whether hooks may run in several threads at once. Unless it is True, one hook runs at a time.

    Any hook may raise `SkipSample` to drop its sample. Other exceptions go to `WorkerConfig.global_error_handler`.
    After `__default_failure_tolerance__` consecutive failures of one hook the iteration ends with `FatalSampleError`;
    `@stateless(failure_tolerance=…)` sets another limit for one hook.
    """

    decoder: SampleDecoder | None = DEFAULT_DECODER
    decoder_type: type[SampleDecoder] = SampleDecoder
    cookers: Sequence[Cooker] = ()
    thread_safe: ClassVar[bool] = False
    __default_failure_tolerance__: ClassVar[int] = DEFAULT_FAILURE_TOLERANCE

    @idle()
    @stateless
    def cook_crude_sample(self, sample: Any, cooker: Cooker, aux: dict[str, Any]) -> Any:
        """Turn a crude sample into a typed sample with the cooker of its leaf."""
        return cooker.cook(sample, **aux)

    @idle()
    @stateless
    def encode_sample(self, sample: RawSample) -> Any:
        """Encode one sample. A generator may yield any number of samples. Default: returns the sample."""
        return sample

    @idle()
    @stateless
    def preencode_sample(self, sample: Any) -> Any:
        """Encode one sample as far as needed to select packs. A generator may yield any number of samples.

        It replaces `encode_sample`: override only one of the two.
        """
        return sample

    @idle()
    @stateless
    def encode_samples(self, samples: list[RawSample]) -> list[Any]:
        """Encode many samples at once, for code that is faster on lists. It replaces `encode_sample`.

        The number and choice of samples in a call are unspecified. The result for a sample must depend only on that
        sample and on its own random numbers in `self.rngs`: no batch norm, and no padding to the longest sample.

        If the hook raises, the samples are made again and passed one by one, so only failing samples are dropped.

        Returns:
            One entry per sample, in order: the encoded sample, or an exception, such as `SkipSample()`, that drops it.
        """
        return samples

    @idle()
    @stateless
    def postencode_sample(self, sample: Any) -> Any:
        """Finish encoding a sample that is going to be used. With packing, it must not be a generator."""
        return sample

    @idle()
    def select_samples_to_pack(self, samples: list[Any]) -> list[list[Any]]:
        """Divide the samples of a full buffer into groups. Samples in no group are dropped.

        Not called for packs that are planned from columns (`packing`).
        """
        raise NotImplementedError(f"{type(self).__name__}.select_samples_to_pack: packing needs this hook")

    @idle()
    @stateless
    def pack_selected_samples(self, samples: list[Any]) -> Any:
        """Make one sample of a group. A generator may yield any number of samples. `__restore_key__` may stay `()`.

        A planned pack (`packing`) must result in exactly one sample. If the hook has a parameter `ranges`, it receives
        (start, stop) for each sample: the units of the plan's first cost that belong to the pack. The range covers the
        whole sample, unless the plan split the sample.
        """
        raise NotImplementedError(f"{type(self).__name__}.pack_selected_samples: packing needs this hook")

    @idle()
    def batch_group_criterion(self, sample: EncodedSample) -> tuple[Hashable, int | None]:
        """Return (key, size): a batch contains samples of one key, `size` of them, or `batch_size` if `size` is None.

        Default: batches of consecutive samples.
        """
        return None, None

    @stateless
    def batch(self, samples: list[EncodedSample]) -> Any:
        """Make a batch of samples. A generator may yield any number of batches (without groups).

        Default: `generic_batch`, which pads and stacks arrays and puts other values in lists.
        """
        return generic_batch(samples)

    @idle()
    @stateless
    def encode_batch(self, batch: RawBatch) -> Any:
        """Encode a batch. A generator may yield any number of batches. Default: returns the batch."""
        return batch

    @property
    def rng(self) -> np.random.Generator:
        """Random generator of the current sample (or batch), the same in every run and on every host and worker."""
        return current_draw().rng

    @property
    def rngs(self) -> list[np.random.Generator]:
        """In `encode_samples`: a random generator for each sample, in order. In other hooks: `[rng]`."""
        return [draw.rng for draw in current_draws()]

    @property
    def cache(self) -> CachePool:
        """The loader's `cache_pool`, for use in hooks. Without one: a pool that reads on request and caches nothing."""
        return active_cache()

    @property
    def current_batch_index(self) -> int:
        """Number of the current batch on this host and in this pass. See `Draw.batch_index`."""
        return current_draw().batch_index

    @property
    def current_sample_index(self) -> int:
        """Position of the current sample in the stream of its leaf; in batch hooks, of the first item of the batch.

        It is independent of host, worker and time, and unique within a leaf.
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
        """Combine datasets, then add encoding, packing, batching and virtual epochs.

        Args:
            datasets: (dataset, number) pairs; `BlendDataset(*datasets)` blends them.
            worker_config: Configuration of the nodes.
            batch_size: See `get_train_dataset`, also for `batch_drop_last`, `packing_buffer_size`, `packing`,
                `virtual_epoch_length`, `repeat`, `last_batch` and `balance`.
            shuffle_buffer_size: See `get_train_dataset`; the leaves are already shuffled by it.
            blend_mode: Meaning of the numbers in the pairs.
            schedule: (from_position, one weight per dataset) of each segment, if weights change over time.

        Raises:
            ConfigError: The hooks or arguments contradict each other.
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
        """Concatenate datasets, then add encoding, packing, batching and the limit.

        Args:
            datasets: (dataset, number) pairs; the numbers are ignored.
            worker_config: Configuration of the nodes.
            batch_size: See `get_val_dataset`, also for the other arguments.

        Raises:
            ConfigError: The hooks or arguments contradict each other.
        """
        if not datasets:
            raise ConfigError("build_val_datasets: got no dataset, expected at least one")
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
        """Apply `encode_sample`, `preencode_sample` or `encode_samples` to a dataset, if one of them is overridden.

        Raises:
            ConfigError: Several of them are overridden.
        """
        names = ("encode_sample", "preencode_sample", "encode_samples")
        hooks = [name for name in names if overridden_hook(self, name) is not None]
        if len(hooks) > 1:
            raise ConfigError(
                f"{type(self).__name__} overrides {' and '.join(hooks)}, which replace each other: keep only one of "
                f"them (encoded_sample_type=… converts in encode_sample)"
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
        """Apply packing, grouping or batching, and `encode_batch` to a dataset.

        Args:
            dataset: Dataset of encoded samples.
            batch_size: See `get_train_dataset`, also for the other arguments.
            worker_config: Configuration of the nodes.

        Raises:
            ConfigError: A required hook is not overridden, or is a generator where one value is required.
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
    """Apply the builders of single steps, each of which may be overridden."""
    dataset = call_declared(encoder.build_encode_sample, dataset, requested={}, worker_config=worker_config)
    requested = {name: options.pop(name) for name in list(options) if options[name]}
    return call_declared(
        encoder.build_batch, dataset, requested=requested, batch_size=batch_size, worker_config=worker_config, **options
    )


def _packed(
    encoder: TaskEncoder, dataset: SavableDataset, buffer_size: int, worker_config: WorkerConfig
) -> SavableDataset:
    select, pack = (overridden_hook(encoder, name) for name in ("select_samples_to_pack", "pack_selected_samples"))
    if select is None or pack is None:
        missing = "select_samples_to_pack" if select is None else "pack_selected_samples"
        raise ConfigError(
            f"packing_buffer_size={buffer_size}, but {type(encoder).__name__} has no {missing}. Packing needs both "
            f"select_samples_to_pack (divides samples into groups) and pack_selected_samples (makes one sample of each "
            f"group)"
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
    """Return the dataset with a hook applied, if the hook is overridden."""
    function, owner = overridden_hook(encoder, hook), owner_of_hooks(encoder, hook)
    if function is None:
        return dataset
    lists = hook == "encode_samples"
    return MapDataset(dataset, function, hook=hook, task_encoder=owner, lists=lists, worker_config=worker_config)


def owner_of_hooks(encoder: TaskEncoder, *hooks: str) -> TaskEncoder:
    """Return the encoder whose `thread_safe` applies: the owner of all the hooks, or the outer one if they differ."""
    owners = [owner_of_hook(encoder, hook) for hook in hooks]
    return owners[0] if all(owner is owners[0] for owner in owners) else encoder


class DefaultTaskEncoder(TaskEncoder[RawSample, EncodedSample, RawBatch, EncodedBatch]):
    """A task encoder that converts between types by field name and otherwise behaves as `TaskEncoder`.

    Types may be dataclasses, NamedTuples or `dict`.

    Args:
        encoded_sample_type: Result type of `encode_sample`. Default: the type of the sample.
        raw_batch_type: Result type of `batch`. Default: the type of the first sample, with batched fields.
        batch_type: Result type of `encode_batch`. Default: the type of the raw batch.
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
        """Batch field by field into `raw_batch_type`; metadata fields become lists with one value per sample."""
        return batch_samples(samples, self._raw_batch_type)

    @idle(unless="_batch_type")
    @stateless
    def encode_batch(self, batch: RawBatch) -> Any:
        """Convert the batch to `batch_type`."""
        return batch if self._batch_type is self._raw_batch_type else _convert(batch, self._batch_type)


_BUILDERS = ("build_train_datasets", "build_val_datasets", "build_encode_sample", "build_batch")


def _forwarded(name: str) -> Any:
    """Return a hook that calls the inner encoder's hook."""

    @forwarding
    @wraps(getattr(TaskEncoder, name))
    def hook(self: AugmentTaskEncoder, *arguments: Any, **named: Any) -> Any:
        return getattr(self.inner, name)(*arguments, **named)

    return hook


class AugmentTaskEncoder(TaskEncoder[RawSample, EncodedSample, RawBatch, EncodedBatch]):
    """A task encoder that forwards to another one, except for the hooks that a subclass overrides.

    Forwarding a hook costs nothing: the inner encoder's hook is called directly, with its own `thread_safe` and failure
    tolerance. Random numbers in both are those of the sample.

    Attributes:
        inner: The encoder that receives forwarded hooks.

    Args:
        task_encoder: The inner encoder.

    Raises:
        ConfigError: The inner encoder overrides a builder and this class does not. The graph would use the hooks of the
            inner encoder, or ignore its builder.
    """

    def __init__(self, task_encoder: TaskEncoder[RawSample, EncodedSample, RawBatch, EncodedBatch]) -> None:
        self.inner = task_encoder
        for name in _BUILDERS:
            plain = getattr(TaskEncoder, name)
            theirs = getattr(getattr(task_encoder, name), "__func__", None)
            if theirs is not plain and getattr(type(self), name) is plain:
                raise ConfigError(
                    f"{type(task_encoder).__name__} overrides {name}, which {type(self).__name__} cannot forward, "
                    f"because the graph would use the inner encoder's hooks: override {name} in {type(self).__name__} "
                    f"too"
                )

    @property
    def decoder(self) -> SampleDecoder | None:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The inner encoder's decoder. A subclass may set its own as a class attribute."""
        return self.inner.decoder

    @decoder.setter
    def decoder(self, decoder: SampleDecoder | None) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]
        self.inner.decoder = decoder

    @property
    def decoder_type(self) -> type[SampleDecoder]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The inner encoder's decoder type."""
        return self.inner.decoder_type

    @property
    def cookers(self) -> Sequence[Cooker]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The inner encoder's cookers. A subclass may set its own as a class attribute."""
        return self.inner.cookers

    cook_crude_sample = _forwarded("cook_crude_sample")
    encode_sample = _forwarded("encode_sample")
    preencode_sample = _forwarded("preencode_sample")
    encode_samples = _forwarded("encode_samples")
    postencode_sample = _forwarded("postencode_sample")
    select_samples_to_pack = _forwarded("select_samples_to_pack")
    pack_selected_samples = _forwarded("pack_selected_samples")
    batch_group_criterion = _forwarded("batch_group_criterion")
    batch = _forwarded("batch")
    encode_batch = _forwarded("encode_batch")
