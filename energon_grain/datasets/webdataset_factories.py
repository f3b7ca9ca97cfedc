"""Datasets by class, as programs and `dataset.yaml` files that were written for Energon name them.

An object of these classes describes one split part of one dataset and how its samples are made, whatever the dataset's
own `dataset.yaml` says; `build` gives the dataset node. Without such a wish `get_train_dataset` is simpler.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from typing import Any, ClassVar, Generic, TypeVar, cast

from energon_grain.datasets.aux_stores import open_primary
from energon_grain.datasets.leaf import LeafDataset, SampleDefinition, SampleFactory
from energon_grain.datasets.task_encoder import TaskEncoder
from energon_grain.errors import ConfigError
from energon_grain.prepare.energon_arguments import prepare_with_energon_arguments
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
from energon_grain.stream.worker_config import WorkerConfig
from energon_grain.transforms.decode import SampleDecoder
from energon_grain.transforms.field_map import FieldMap

T_sample = TypeVar("T_sample")
Parts = Callable[[str], bool] | Collection[str]
_DECODER = SampleDecoder()


class BaseWebdatasetFactory(SampleFactory, Generic[T_sample]):
    """One split part of a prepared dataset. A subclass says in `load_sample` what a sample is made of.

    Args:
        path: The dataset's folder.
        split_part: The part to read.
        training: Whether samples are shuffled.
        worker_config: Of the dataset that is built.
        shuffle_over_epochs: Passes that are shuffled as one; -1: draw with replacement; None: keep order.
        parallel_shard_iters: As in `get_train_dataset`, and so is the next one.
        max_samples_per_sequence: See there.
        subset: Range of samples, `[start, end]` in numbers or percent.
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
                f"{type(self).__name__}(part_filter={part_filter!r}): names of parts, or a function are meant; code "
                f"beside the data is not run"
            )
        self.path = os.fspath(path)
        self.split_part = split_part
        self.training = training
        self.worker_config = worker_config
        self.shuffle_over_epochs = shuffle_over_epochs
        self.parallel_shard_iters = parallel_shard_iters
        self.max_samples_per_sequence = max_samples_per_sequence
        self.subset = None if subset is None else Subset.parse(subset)
        self.split_config = split_config
        self.part_filter = part_filter
        self.subflavors: Mapping[str, Any] = {}

    @property
    def paths(self) -> list[str]:
        """The dataset's folder, in a list."""
        return [self.path]

    def load_sample(self, sample: Any) -> T_sample:
        """Make a sample of a crude one: a dictionary of `__key__` and the other base fields, and the parts as bytes.

        It may run in several threads at once.
        """
        raise NotImplementedError(f"{type(self).__name__}.load_sample: a subclass says how samples are made")

    def definition(self) -> SampleDefinition:
        """How samples are made.

        Raises:
            ConfigError: Nobody says it.
        """
        if type(self).load_sample is BaseWebdatasetFactory.load_sample:
            raise ConfigError(f"{type(self).__name__} has no load_sample, which says how samples are made; write one")
        return SampleDefinition(sample_type=self.__sample_type__, load=self.load_sample, part_filter=self.part_filter)

    def build(self, worker_rotation_offset: int = 0) -> LeafDataset:
        """The dataset node.

        Args:
            worker_rotation_offset: Accepted for compatibility: workers do not own samples.
        """
        del worker_rotation_offset
        return LeafDataset(
            worker_config=self.worker_config,
            path=self.path,
            split_part=self.split_part,
            split_config=self.split_config,
            subset=self.subset,
            subflavors=self.subflavors,
            training=self.training,
            max_samples_per_sequence=self.max_samples_per_sequence,
            parallel_shard_iters=self.parallel_shard_iters,
            shuffle_over_epochs_multiplier=self.shuffle_over_epochs if self.training else None,
            task_encoder=TaskEncoder[Any, Any, Any, Any](),
            definition=self.definition(),
        )

    prepare_dataset = staticmethod(prepare_with_energon_arguments)

    def as_file_store(self) -> FileStore[bytes]:
        """The whole dataset by the names of its files, undecoded."""
        return open_primary(self.path, None)

    def __len__(self) -> int:
        """Samples of one pass, without those that are excluded or outside of the subset. Opens the index."""
        return len(self.build().resolve().source)

    def __bool__(self) -> bool:
        return True

    def config(self) -> dict[str, Any]:
        """What describes it in logs; JSON-native."""
        return {
            "type": type(self).__qualname__,
            "training": self.training,
            "_path": self.path,
            "split_part": self.split_part,
            "shuffle_over_epochs": self.shuffle_over_epochs,
            "parallel_shard_iters": self.parallel_shard_iters,
            "max_samples_per_sequence": self.max_samples_per_sequence,
            "subset": None if self.subset is None else str(self.subset),
            "subflavors": dict(self.subflavors),
        }

    def __str__(self) -> str:
        return f"{type(self).__name__}(path={self.path})"

    def __getstate__(self) -> dict[str, Any]:
        # `load_sample` goes to worker processes; a configuration may hold what cannot.
        return {**vars(self), "worker_config": None}


class DefaultGenericWebdatasetFactory(BaseWebdatasetFactory[T_sample]):
    """A dataset of samples of the class's `__sample_type__`, whose fields are parts as bytes.

    Args:
        path: As in `BaseWebdatasetFactory`, and so are `kwargs`.
        subflavors: Tags of every sample.
        field_map: Expression for each field of the type.
        sample_loader: In place of a field map: makes the fields of a crude sample.
        part_filter: Parts that the loader needs; it goes with that.
        **kwargs: See there.

    Raises:
        ConfigError: Not exactly one of `field_map` and `sample_loader` is given, or the class has no sample type.
        FieldMapError: The field map does not fit the type.
    """

    takes: ClassVar[tuple[str, ...]] = ("subflavors",)

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
            raise ConfigError(f"{name} has no `__sample_type__`; name one in the class, or use the factory of a type")
        if isinstance(sample_loader, str):
            raise ConfigError(
                f"{name}(sample_loader={sample_loader!r}): code beside the data is not run; pass a function"
            )
        if (field_map is None) == (sample_loader is None) or (sample_loader is None) != (part_filter is None):
            raise ConfigError(f"{name}: give either `field_map`, or `sample_loader` with `part_filter`")
        self.subflavors = dict(subflavors or {})
        self._field_map = None if field_map is None else FieldMap.parse(field_map, self.__sample_type__, where=name)
        self._sample_loader = sample_loader

    def load_sample(self, sample: Any) -> T_sample:
        """Make a sample of a crude one by the field map or the sample loader."""
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
        """How samples are made: column by column, unless the class or the program brings code for it."""
        own = type(self).load_sample.__module__ != __name__
        if own or self._field_map is None:
            return super().definition()
        return SampleDefinition(sample_type=self.__sample_type__, field_map=self._field_map, decoder=self._decoder())


class DefaultDecoderWebdatasetFactory(DefaultGenericWebdatasetFactory[T_sample]):
    """A dataset of samples of the class's `__sample_type__`, whose fields are decoded parts.

    Args:
        path: As in `DefaultGenericWebdatasetFactory`, and so are `kwargs`.
        decoder: Decodes the parts; None leaves them bytes.
        **kwargs: See there.
    """

    takes: ClassVar[tuple[str, ...]] = ("subflavors", "decoder")

    def __init__(
        self, path: str | os.PathLike[str], *, decoder: SampleDecoder | None = _DECODER, **kwargs: Any
    ) -> None:
        self.decoder = decoder
        super().__init__(path, **kwargs)

    def load_sample(self, sample: Any) -> T_sample:
        """Decode the parts of a crude sample and make a sample of it."""
        return super().load_sample(sample if self.decoder is None else CrudeSample(self.decoder(sample)))

    def _decoder(self) -> SampleDecoder | None:
        return self.decoder

    def config(self) -> dict[str, Any]:
        """What describes it in logs; JSON-native."""
        return {**super().config(), "decoder": None if self.decoder is None else self.decoder.config()}


class StandardWebdatasetFactory(DefaultDecoderWebdatasetFactory[T_sample]):
    """A dataset of samples of any type.

    Args:
        path: As in `DefaultDecoderWebdatasetFactory`, and so are `kwargs`.
        sample_type: The type, derived from `Sample`.
        **kwargs: See there.
    """

    def __init__(self, path: str | os.PathLike[str], *, sample_type: type[T_sample], **kwargs: Any) -> None:
        if not issubclass(sample_type, Sample):
            raise ConfigError(f"sample_type={sample_type.__qualname__}: a class derived from Sample is meant")
        self.__sample_type__ = sample_type
        super().__init__(path, **kwargs)


class CrudeWebdataset(DefaultDecoderWebdatasetFactory[CrudeSample]):
    """A dataset of crude samples: dictionaries of decoded parts.

    Args:
        path: As in `DefaultDecoderWebdatasetFactory`, and so are `kwargs`, but for `field_map` and `sample_loader`.
        part_filter: Names of the parts to read, or a predicate; default: all.
        **kwargs: See there.
    """

    crude: ClassVar[bool] = True
    __sample_type__ = CrudeSample

    def __init__(self, path: str | os.PathLike[str], *, part_filter: Parts | None = None, **kwargs: Any) -> None:
        for name in ("sample_loader", "field_map"):
            if kwargs.get(name) is not None:
                raise ConfigError(f"{type(self).__name__}({name}=…): crude samples are not loaded, but cooked")
        kwargs |= {"sample_loader": _itself, "field_map": None}
        super().__init__(path, part_filter=_every_part if part_filter is None else part_filter, **kwargs)

    def load_sample(self, sample: Any) -> CrudeSample:
        """Decode the parts of a crude sample."""
        return sample if self.decoder is None else CrudeSample(self.decoder(sample))

    def definition(self) -> SampleDefinition:
        """How samples are made: not at all, unless a subclass does it."""
        load = None if type(self).load_sample is CrudeWebdataset.load_sample else self.load_sample
        return SampleDefinition(load=load, decoder=self.decoder, part_filter=self.part_filter)


def _itself(sample: Any) -> Any:
    return sample


def _every_part(part: str) -> bool:
    return True


def _factory_of(sample_type: type[T_sample]) -> type[DefaultDecoderWebdatasetFactory[T_sample]]:
    """The factory that is named after a sample type."""
    members = {
        "__doc__": f"A dataset of `{sample_type.__name__}`s; otherwise as `DefaultDecoderWebdatasetFactory`.",
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
