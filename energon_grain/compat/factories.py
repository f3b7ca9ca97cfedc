# SPDX-License-Identifier: Apache-2.0
"""Datasets, JSONL files and joins as classes, for programs and `dataset.yaml` files written for Energon.

An object of these classes describes one split part of a dataset and how its samples are made, regardless of the
dataset's own `dataset.yaml`; `build` returns the dataset node. If none of this is needed, `get_train_dataset` is
simpler.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Generic, NoReturn, TypeVar, cast

from energon_grain.cooking.aux_stores import open_primary
from energon_grain.datasets.leaf import LeafDataset, SampleDefinition, SampleFactory
from energon_grain.errors import ConfigError
from energon_grain.formats.brace_patterns import expand_braces
from energon_grain.formats.splits import DEFAULT_SPLIT_CONFIG
from energon_grain.forms import Place
from energon_grain.kinds.joins.leaf import JoinedLeafDataset, Joiner, JoinMember
from energon_grain.kinds.joins.members import Nonmatch
from energon_grain.media.headers import MediaFilterConfig
from energon_grain.prepare.add_media import prepare_media
from energon_grain.prepare.preparation import prepare_dataset
from energon_grain.prepare.scan import PrepareProgress
from energon_grain.samplers.subset import Subset
from energon_grain.samples.sample import Sample
from energon_grain.samples.types import (
    CaptioningSample,
    CrudeSample,
    ImageClassificationSample,
    ImageSample,
    InterleavedSample,
    MultiChoiceVQASample,
    OCRSample,
    SimilarityInterleavedSample,
    TextSample,
    VidQASample,
    VQAOCRSample,
    VQASample,
)
from energon_grain.sources.file_store import FileStore
from energon_grain.sources.kinds import kind_at
from energon_grain.storage.location import located, without_revision
from energon_grain.stream.worker_config import WorkerConfig
from energon_grain.task_encoder import TaskEncoder
from energon_grain.transforms.decode import SampleDecoder
from energon_grain.transforms.field_map import FieldMap

T_sample = TypeVar("T_sample")
Parts = Callable[[str], bool] | Collection[str]
ShowProgress = Callable[..., Iterable[Any]]
_DECODER = SampleDecoder()


def _without_display(elements: Iterable[Any], length: int) -> Iterable[Any]:
    del length
    return elements


@contextlib.contextmanager
def _shown(progress_fn: ShowProgress) -> Generator[Callable[[PrepareProgress], None]]:
    """Return a progress callback that drives `progress_fn`, and exhaust the latter at the end."""
    ticks: Iterator[Any] = iter(())
    shown = -1

    def show(progress: PrepareProgress) -> None:
        nonlocal ticks, shown
        if shown < 0:
            ticks, shown = iter(progress_fn(range(progress.shards_total), progress.shards_total)), 0
        while shown < progress.shards_done:
            next(ticks, None)
            shown += 1

    yield show
    for _ in ticks:
        pass


class _Ordered(Generic[T_sample]):
    """Common base: samples in an order, which the dataset from `build` reads."""

    def __init__(
        self,
        *,
        training: bool,
        worker_config: WorkerConfig,
        shuffle_over_epochs: int | None,
        parallel_shard_iters: int | None,
        max_samples_per_sequence: int | None,
        subset: Subset | Any,
    ) -> None:
        self.training = training
        self.worker_config = worker_config
        self.shuffle_over_epochs = shuffle_over_epochs
        self.parallel_shard_iters = parallel_shard_iters
        self.max_samples_per_sequence = max_samples_per_sequence
        self.subset = None if subset is None else Subset.parse(subset)

    def build(self, worker_rotation_offset: int = 0) -> LeafDataset | JoinedLeafDataset:
        """Return the dataset node.

        Args:
            worker_rotation_offset: Accepted for compatibility: workers do not own samples.
        """
        raise NotImplementedError

    def __len__(self) -> int:
        """Samples of one pass, without those that are excluded or outside the subset. Opens the index, or joins."""
        return len(self.build().resolve().source)

    def __bool__(self) -> bool:
        return True

    def __getitem__(self, index: Any) -> NoReturn:
        raise TypeError(f"{self} is a description without samples: pass the dataset from its `build()` to a loader")

    def config(self) -> dict[str, Any]:
        """Return a JSON-native description for logs."""
        return {
            "type": type(self).__qualname__,
            "training": self.training,
            "shuffle_over_epochs": self.shuffle_over_epochs,
            "parallel_shard_iters": self.parallel_shard_iters,
            "max_samples_per_sequence": self.max_samples_per_sequence,
            "subset": None if self.subset is None else str(self.subset),
        }


class BaseWebdatasetFactory(_Ordered[T_sample], SampleFactory):
    """One split part of a prepared dataset. Subclasses make a sample in `load_sample`.

    Args:
        path: The dataset's folder.
        split_part: The part to read.
        training: Whether samples are shuffled.
        worker_config: Configuration of the built dataset.
        shuffle_over_epochs: Passes that are shuffled together; -1: draw with replacement; None: keep order.
        parallel_shard_iters: See `get_train_dataset`, also for `max_samples_per_sequence`.
        subset: Range of samples, `[start, end]`, in numbers or percent.
        split_config: Name of another `split.yaml`.
        part_filter: Names of the parts to read, or a predicate; None: all.
    """

    __sample_type__: type[Any] | None = None

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        split_part: str,
        training: bool,
        worker_config: WorkerConfig,
        shuffle_over_epochs: int | None = 1,
        parallel_shard_iters: int | None = None,
        max_samples_per_sequence: int | None = None,
        subset: Subset | Any = None,
        split_config: str | None = None,
        part_filter: Parts | None = None,
    ) -> None:
        if isinstance(part_filter, str):
            raise ConfigError(
                f"{type(self).__name__}(part_filter={part_filter!r}): expected part names, or a function; code next to "
                f"the data does not run"
            )
        super().__init__(
            training=training,
            worker_config=worker_config,
            shuffle_over_epochs=shuffle_over_epochs,
            parallel_shard_iters=parallel_shard_iters,
            max_samples_per_sequence=max_samples_per_sequence,
            subset=subset,
        )
        self.path = os.fspath(path)
        self.split_part = split_part
        self.split_config = split_config
        self.part_filter = part_filter
        self.subflavors: Mapping[str, Any] = {}

    @property
    def paths(self) -> list[str]:
        """The dataset's folder, as a list."""
        return [self.path]

    def load_sample(self, sample: Any) -> T_sample:
        """Make a sample from a crude one: a dictionary of `__key__`, the other base fields, and the parts as bytes.

        May run in several threads at once.
        """
        raise NotImplementedError(f"{type(self).__name__}.load_sample: a subclass must make the samples")

    def definition(self) -> SampleDefinition:
        """Return how samples are made.

        Raises:
            ConfigError: `load_sample` is not overridden.
        """
        if type(self).load_sample is BaseWebdatasetFactory.load_sample:
            raise ConfigError(f"{type(self).__name__} has no load_sample, which makes the samples: implement it")
        return SampleDefinition(sample_type=self.__sample_type__, load=self.load_sample, part_filter=self.part_filter)

    def build(self, worker_rotation_offset: int = 0) -> LeafDataset:
        """Return the dataset node. The rotation offset has no effect, because workers do not own samples."""
        del worker_rotation_offset
        return LeafDataset(
            worker_config=self.worker_config,
            path=self.path,
            split_part=self.split_part,
            split_config=self.split_config,
            subset=self.subset,
            tags=self.subflavors,
            training=self.training,
            max_samples_per_sequence=self.max_samples_per_sequence,
            parallel_shard_iters=self.parallel_shard_iters,
            shuffle_over_epochs_multiplier=self.shuffle_over_epochs if self.training else None,
            task_encoder=TaskEncoder[Any, Any, Any, Any](),
            definition=self.definition(),
        )

    @staticmethod
    def prepare_dataset(
        parent_path: str | os.PathLike[str],
        paths: Sequence[str],
        *,
        split_parts_ratio: Sequence[tuple[str, float]] | None = None,
        split_parts_patterns: Sequence[tuple[str, str]] | None = None,
        split_config: str = DEFAULT_SPLIT_CONFIG,
        shuffle_seed: int | None = 42,
        progress_fn: ShowProgress = _without_display,
        workers: int = 32,
        tar_index_only: bool = False,
        media_filter: Any = None,
        fix_duplicates: bool = False,
        index_sqlite_tmp_path: str | os.PathLike[str] | None = None,
    ) -> set[str]:
        """Index tar files and write splits, but no `dataset.yaml`. An existing preparation is replaced.

        Args:
            parent_path: The dataset folder, or its URL.
            paths: Paths of the tar files relative to it; braces expand (`parts/data-{0..9}.tar`).
            split_parts_ratio: (name, share) of each split part.
            split_parts_patterns: (name, pattern) of each split part; replaces the ratio.
            split_config: Name of the split file to write in `.nv-meta`, YAML or JSON by its extension.
            shuffle_seed: Seed for shuffling the shards before the split; None: no shuffling.
            progress_fn: Called with an iterable and its length; yields its elements and shows the progress.
            workers: Maximum number of processes; 0: none.
            tar_index_only: Only rewrite the indexes of a prepared dataset.
            media_filter: Parts whose media metadata are collected: a `MediaFilterConfig`.
            fix_duplicates: If tars share keys, prefix every member name with the path of its tar, in all tars; see
                `prepare_dataset`.
            index_sqlite_tmp_path: For a dataset in an object store: the local file in which `index.sqlite` is built.

        Returns:
            Names of the parts.

        Raises:
            EnergonGrainError: See `prepare_dataset`.
        """
        patterns: dict[str, list[str]] = {}
        for part, pattern in split_parts_patterns or ():
            patterns.setdefault(part, []).append(pattern)
        with _shown(progress_fn) as show:
            report = prepare_dataset(
                os.fspath(parent_path),
                shards=None if tar_index_only else [name for path in paths for name in _expand(path)],
                split_ratio=None if split_parts_ratio is None else dict(split_parts_ratio),
                split_patterns=patterns or None,
                split_config=split_config,
                shuffle_tars=shuffle_seed is not None,
                shuffle_seed=shuffle_seed or 0,
                force_overwrite=True,
                tar_index_only=tar_index_only,
                fix_duplicates=fix_duplicates,
                media_filter=None if media_filter is None else MediaFilterConfig.of(media_filter),
                num_workers=workers,
                sqlite_build_path=None if index_sqlite_tmp_path is None else Path(index_sqlite_tmp_path),
                progress=show,
            )
        return set(report.part_names)

    @staticmethod
    def add_media_metadata(
        parent_path: str | os.PathLike[str],
        *,
        media_filter: Any,
        workers: int = 32,
        progress_fn: ShowProgress = _without_display,
        index_sqlite_tmp_path: str | os.PathLike[str] | None = None,
    ) -> int:
        """Add media metadata to the index of a prepared dataset, or collect them again.

        Args:
            parent_path: The dataset folder, or its URL.
            media_filter: Parts to inspect: a `MediaFilterConfig`.
            workers: See `prepare_dataset`, also for the other arguments.

        Returns:
            Number of media parts with metadata.

        Raises:
            EnergonGrainError: See `prepare_media`.
        """
        with _shown(progress_fn) as show:
            report = prepare_media(
                parent_path,
                MediaFilterConfig.of(media_filter),
                num_workers=workers,
                sqlite_build_path=None if index_sqlite_tmp_path is None else Path(index_sqlite_tmp_path),
                progress=show,
            )
        assert report.media is not None
        return report.media.found

    def as_file_store(self) -> FileStore[bytes]:
        """Return the whole dataset by file name, undecoded."""
        return open_primary(self.path, None)

    def config(self) -> dict[str, Any]:
        """Return a JSON-native description for logs."""
        own = {"_path": self.path, "split_part": self.split_part, "subflavors": dict(self.subflavors)}
        return {**super().config(), **own}

    def __str__(self) -> str:
        return f"{type(self).__name__}(path={self.path})"

    def __getstate__(self) -> dict[str, Any]:
        # `load_sample` is sent to worker processes, but a configuration may hold objects that cannot be pickled.
        return {**vars(self), "worker_config": None}


class DefaultGenericWebdatasetFactory(BaseWebdatasetFactory[T_sample]):
    """A dataset of samples of the class's `__sample_type__`, whose fields are parts as bytes.

    Args:
        path: See `BaseWebdatasetFactory`, also for `kwargs`.
        subflavors: Tags of every sample.
        field_map: Expression for each field of the type.
        sample_loader: Replaces a field map: makes the fields from a crude sample.
        part_filter: Parts that the loader needs; required with `sample_loader`.

    Raises:
        ConfigError: Not exactly one of `field_map` and `sample_loader` is set, or the class has no sample type.
        FieldMapError: The field map does not fit the type.
    """

    _takes: ClassVar[tuple[str, ...]] = ("subflavors",)

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        subflavors: Mapping[str, Any] | None = None,
        field_map: Mapping[str, str] | None = None,
        sample_loader: Callable[[Any], Mapping[str, Any]] | None = None,
        part_filter: Parts | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(path, part_filter=part_filter, **kwargs)
        name = type(self).__name__
        if self.__sample_type__ is None:
            raise ConfigError(f"{name} has no `__sample_type__`: set one in the class, or use the factory of a type")
        if isinstance(sample_loader, str):
            raise ConfigError(
                f"{name}(sample_loader={sample_loader!r}): code next to the data does not run; pass a function"
            )
        if (field_map is None) == (sample_loader is None) or (sample_loader is None) != (part_filter is None):
            raise ConfigError(f"{name}: set either `field_map`, or `sample_loader` with `part_filter`")
        self.subflavors = dict(subflavors or {})
        self._field_map = None if field_map is None else FieldMap.parse(field_map, self.__sample_type__, where=name)
        self._sample_loader = sample_loader

    def load_sample(self, sample: Any) -> T_sample:
        """Make a sample from a crude one with the field map or the sample loader."""
        if self._field_map is not None:
            fields: Mapping[str, Any] = self._field_map.evaluate(sample)
        else:
            assert self._sample_loader is not None
            fields = self._sample_loader(sample)
        assert self.__sample_type__ is not None
        base = {name: sample[name] for name in ("__key__", "__restore_key__", "__subflavors__", "__sources__")}
        return self.__sample_type__(**{**base, **fields})

    def _decoder(self) -> SampleDecoder | None:
        return None

    def definition(self) -> SampleDefinition:
        """Return how samples are made: by column, unless the class or the program has code for it."""
        own = type(self).load_sample.__module__ != __name__
        if own or self._field_map is None:
            return super().definition()
        return SampleDefinition(sample_type=self.__sample_type__, field_map=self._field_map, decoder=self._decoder())


class DefaultDecoderWebdatasetFactory(DefaultGenericWebdatasetFactory[T_sample]):
    """A dataset of samples of the class's `__sample_type__`, whose fields are decoded parts.

    Args:
        path: See `DefaultGenericWebdatasetFactory`, also for `kwargs`.
        decoder: Decodes the parts; None keeps them as bytes.
    """

    _takes: ClassVar[tuple[str, ...]] = ("subflavors", "decoder")

    def __init__(
        self, path: str | os.PathLike[str], *, decoder: SampleDecoder | None = _DECODER, **kwargs: Any
    ) -> None:
        self.decoder = decoder
        super().__init__(path, **kwargs)

    def load_sample(self, sample: Any) -> T_sample:
        """Decode the parts of a crude sample and make a typed sample."""
        return super().load_sample(sample if self.decoder is None else CrudeSample(self.decoder(sample)))

    def _decoder(self) -> SampleDecoder | None:
        return self.decoder

    def config(self) -> dict[str, Any]:
        """Return a JSON-native description for logs."""
        return {**super().config(), "decoder": None if self.decoder is None else self.decoder.config()}


class StandardWebdatasetFactory(DefaultDecoderWebdatasetFactory[T_sample]):
    """A dataset of samples of any type.

    Args:
        path: See `DefaultDecoderWebdatasetFactory`, also for `kwargs`.
        sample_type: The type, a subclass of `Sample`.
    """

    def __init__(self, path: str | os.PathLike[str], *, sample_type: type[T_sample], **kwargs: Any) -> None:
        if not issubclass(sample_type, Sample):
            raise ConfigError(f"sample_type={sample_type.__qualname__}: expected a subclass of Sample")
        self.__sample_type__ = sample_type
        super().__init__(path, **kwargs)


class CrudeWebdataset(DefaultDecoderWebdatasetFactory[CrudeSample]):
    """A dataset of crude samples: dictionaries of decoded parts.

    Args:
        path: See `DefaultDecoderWebdatasetFactory`, also for `kwargs`, except `field_map` and `sample_loader`.
        part_filter: Names of the parts to read, or a predicate. Default: all.
    """

    _crude: ClassVar[bool] = True
    __sample_type__ = CrudeSample

    def __init__(self, path: str | os.PathLike[str], *, part_filter: Parts | None = None, **kwargs: Any) -> None:
        for name in ("sample_loader", "field_map"):
            if kwargs.get(name) is not None:
                raise ConfigError(f"{type(self).__name__}({name}=…): crude samples are cooked; remove {name}")
        kwargs |= {"sample_loader": _unchanged, "field_map": None}
        super().__init__(path, part_filter=_every_part if part_filter is None else part_filter, **kwargs)

    def load_sample(self, sample: Any) -> CrudeSample:
        """Decode the parts of a crude sample."""
        return sample if self.decoder is None else CrudeSample(self.decoder(sample))

    def definition(self) -> SampleDefinition:
        """Return how samples are made: they stay crude, unless a subclass changes them."""
        load = None if type(self).load_sample is CrudeWebdataset.load_sample else self.load_sample
        return SampleDefinition(load=load, decoder=self.decoder, part_filter=self.part_filter)


def _unchanged(sample: Any) -> Any:
    return sample


def _every_part(part: str) -> bool:
    return True


def _factory_of(sample_type: type[T_sample]) -> type[DefaultDecoderWebdatasetFactory[T_sample]]:
    """Return the factory named after a sample type."""
    members = {
        "__doc__": f"A dataset of `{sample_type.__name__}`s. See `DefaultDecoderWebdatasetFactory`.",
        "__module__": __name__,
        "__sample_type__": sample_type,
    }
    name = sample_type.__name__.removesuffix("Sample") + "Webdataset"
    made = type(name, (DefaultDecoderWebdatasetFactory,), members)
    return cast("type[DefaultDecoderWebdatasetFactory[T_sample]]", made)


CaptioningWebdataset = _factory_of(CaptioningSample)
ImageClassificationWebdataset = _factory_of(ImageClassificationSample)
ImageWebdataset = _factory_of(ImageSample)
InterleavedWebdataset = _factory_of(InterleavedSample)
MultiChoiceVQAWebdataset = _factory_of(MultiChoiceVQASample)
OCRWebdataset = _factory_of(OCRSample)
SimilarityInterleavedWebdataset = _factory_of(SimilarityInterleavedSample)
TextWebdataset = _factory_of(TextSample)
VQAOCRWebdataset = _factory_of(VQAOCRSample)
VQAWebdataset = _factory_of(VQASample)
VidQAWebdataset = _factory_of(VidQASample)


class CrudeJsonlDatasetFactory(BaseWebdatasetFactory[CrudeSample]):
    """The crude samples of a JSONL file, with the line as bytes in `json`.

    Args:
        path: The file, whose name ends in `.jsonl`.
        training: See `BaseWebdatasetFactory`, also for the other arguments.
        part_filter: See there; the only part is `json`.
    """

    __sample_type__ = CrudeSample

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        training: bool,
        worker_config: WorkerConfig,
        shuffle_over_epochs: int | None = 1,
        parallel_shard_iters: int | None = None,
        max_samples_per_sequence: int | None = None,
        subset: Any = None,
        part_filter: Parts | None = None,
    ) -> None:
        super().__init__(
            path,
            split_part="train",  # a JSONL file has no splits, but the split part keys its order
            training=training,
            worker_config=worker_config,
            shuffle_over_epochs=shuffle_over_epochs,
            parallel_shard_iters=parallel_shard_iters,
            max_samples_per_sequence=max_samples_per_sequence,
            subset=subset,
            part_filter=part_filter,
        )

    def load_sample(self, sample: Any) -> CrudeSample:
        """Make a sample from a crude sample. Default: returns the crude sample."""
        return sample

    def definition(self) -> SampleDefinition:
        """Return how samples are made: they stay crude, unless a subclass changes them."""
        load = None if type(self).load_sample is CrudeJsonlDatasetFactory.load_sample else self.load_sample
        return SampleDefinition(load=load, part_filter=self.part_filter)

    @staticmethod
    def prepare_dataset(path: str | os.PathLike[str]) -> int:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Write the index of the file and return its number of samples.

        Raises:
            ConfigError: Data of this kind have no index.
            DatasetNotFoundError: It does not exist.
            DecodingError: A line is not a JSON object.
            EmptyDatasetError: It has no sample.
        """
        location = located(path)
        kind = kind_at(location)
        if kind.index is None:
            raise ConfigError(f"{location}: is {kind.described}, which needs no index")
        return kind.index(location, lambda *_: None).samples


class DefaultCrudeJsonlDatasetFactory(CrudeJsonlDatasetFactory):
    """The crude samples of a JSONL file, with the decoded line in `json`.

    Args:
        path: See `CrudeJsonlDatasetFactory`, also for `kwargs`.
        subflavors: Tags of every sample.
        **kwargs: See there. A `decoder` is accepted and ignored: JSON is always decoded the same way.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, subflavors: Mapping[str, Any] | None = None, **kwargs: Any
    ) -> None:
        kwargs.pop("decoder", None)
        super().__init__(path, **kwargs)
        self.subflavors = dict(subflavors or {})

    def definition(self) -> SampleDefinition:
        """Return the sample definition, which decodes the line of a sample."""
        load = None if type(self).load_sample is CrudeJsonlDatasetFactory.load_sample else self._decode_and_load
        return SampleDefinition(load=load, decoder=None if load else _DECODER, part_filter=self.part_filter)

    def _decode_and_load(self, sample: Any) -> CrudeSample:
        return self.load_sample(CrudeSample(_DECODER(sample)))


class JoinedWebdatasetFactory(_Ordered[T_sample]):
    """Datasets joined by the keys of their samples, like `join:` in a metadataset.

    The join is computed on use, for at most a million samples: write a metadataset for larger joins.

    Args:
        inner_datasets: The primary, and the others; with a mapping, the joiner receives its samples by name.
        training: See `BaseWebdatasetFactory`, also for the arguments that are not listed here.
        shuffle_over_epochs: See there; applies to the joined samples.
        subset: Range of the joined samples.
        join_index: Accepted for compatibility.
        joiner: A sample type whose `from_joined` makes the samples, or a function that does.
        nonmatch: Handling of keys of the primary that another dataset lacks: raise an "error", "skip" the sample, or
            use "none" in its place.

    Raises:
        ConfigError: There are fewer than two datasets.
    """

    def __init__(
        self,
        inner_datasets: Sequence[BaseWebdatasetFactory[Any]] | Mapping[str, BaseWebdatasetFactory[Any]],
        *,
        training: bool,
        worker_config: WorkerConfig,
        shuffle_over_epochs: int | None = 1,
        parallel_shard_iters: int | None = None,
        max_samples_per_sequence: int | None = None,
        subset: Subset | Any = None,
        join_index: str | os.PathLike[str] | None = None,
        joiner: type[T_sample] | Callable[..., T_sample],
        nonmatch: Nonmatch = "error",
    ) -> None:
        del join_index
        super().__init__(
            training=training,
            worker_config=worker_config,
            shuffle_over_epochs=shuffle_over_epochs,
            parallel_shard_iters=parallel_shard_iters,
            max_samples_per_sequence=max_samples_per_sequence,
            subset=subset,
        )
        if len(inner_datasets) < 2:
            raise ConfigError(f"JoinedWebdatasetFactory: expected at least two datasets, got {len(inner_datasets)}")
        if isinstance(inner_datasets, Mapping):
            self.inner_dataset_keys: list[str] | None = list(inner_datasets)
            self.inner_datasets = list(inner_datasets.values())
        else:
            self.inner_dataset_keys = None
            self.inner_datasets = list(inner_datasets)
        self.joiner = joiner
        self.nonmatch: Nonmatch = nonmatch

    @property
    def paths(self) -> list[str]:
        """The folders of the datasets."""
        return [inner.path for inner in self.inner_datasets]

    def build(self, worker_rotation_offset: int = 0) -> JoinedLeafDataset:
        """Return the dataset node. The rotation offset has no effect, because workers do not own samples."""
        del worker_rotation_offset
        names = self.inner_dataset_keys or [None] * len(self.inner_datasets)
        # Rows are ordered and cut, not the joined datasets; the primary leaf holds the order.
        leaves = [
            dataclasses.replace(inner.build(), written=Path(without_revision(inner.path)).name, subset=None)
            for inner in self.inner_datasets
        ]
        leaves[0] = dataclasses.replace(
            leaves[0],
            training=self.training,
            shuffle_over_epochs_multiplier=self.shuffle_over_epochs,
            max_samples_per_sequence=self.max_samples_per_sequence,
            parallel_shard_iters=self.parallel_shard_iters,
        )
        return JoinedLeafDataset(
            worker_config=self.worker_config,
            members=tuple(
                JoinMember(leaf=leaf, nonmatch=self.nonmatch if number else "error", argument=name)
                for number, (leaf, name) in enumerate(zip(leaves, names, strict=True))
            ),
            joiner=Joiner(target=self.joiner, is_function=not isinstance(self.joiner, type)),
            subset=self.subset,
            place=Place("JoinedWebdatasetFactory"),
        )

    def config(self) -> dict[str, Any]:
        """Return a JSON-native description for logs."""
        return {**super().config(), "joined_datasets": [inner.config() for inner in self.inner_datasets]}

    def __str__(self) -> str:
        return f"JoinedWebdatasetFactory(paths={self.paths})"


def _expand(path: str) -> Iterable[str]:
    try:
        return expand_braces(path)
    except ValueError as error:
        raise ConfigError(f"{path!r}: {error}. Write a brace in a file name as \\{{.") from error
