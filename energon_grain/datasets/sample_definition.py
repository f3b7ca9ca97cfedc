"""How the samples of a leaf are made of their parts: as its `dataset.yaml` says, or the program."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from energon_grain.errors import ConfigError
from energon_grain.formats.class_ref import resolve_class
from energon_grain.formats.dataset_config import DatasetConfig
from energon_grain.sources.source import PartFilter
from energon_grain.transforms.decode import SampleDecoder
from energon_grain.transforms.field_map import FieldMap

if TYPE_CHECKING:
    from energon_grain.datasets.leaf import LeafDataset


@dataclass(frozen=True, kw_only=True, slots=True)
class SampleDefinition:
    """How samples are made of parts.

    Attributes:
        sample_type: None: they are crude, and cooked by the task encoder.
        field_map: Where the fields of `sample_type` are found.
        load: In place of a field map: makes a sample of a crude one, whose parts are bytes. May run in several threads.
        decoder: Decodes the parts; None leaves them bytes.
        part_filter: Parts to read, where there is no field map.
    """

    sample_type: type[Any] | None = None
    field_map: FieldMap | None = None
    load: Callable[[Any], Any] | None = None
    decoder: SampleDecoder | None = None
    part_filter: PartFilter = None


def define_samples(leaf: LeafDataset, config: DatasetConfig) -> SampleDefinition:
    """What the `dataset.yaml` of a leaf says.

    Raises:
        ConfigError: It is wrong.
        FieldMapError: The field map does not fit the sample type.
        UntrustedCodeError: It names a class of a module that the program did not declare.
    """
    root = leaf.path
    decoder = None if config.raw_bytes else leaf.task_encoder.decoder
    if config.decoder is not None:
        decoder = _declared_decoder(leaf.task_encoder.decoder_type, config.decoder, root)
    if config.kind == "crude":
        return SampleDefinition(decoder=decoder, part_filter=_parts(leaf, config, crude=True))
    if config.sample_loader is not None:
        raise ConfigError(
            f"{root}: `sample_loader` runs code that lies beside the data, which is refused. Import its functions "
            f"in the program and pass them: StandardWebdatasetFactory({root!r}, sample_type=…, sample_loader=function, "
            f"part_filter=function, split_part=…, training=…, worker_config=…).build() is the same dataset. Or use a "
            f"`field_map`; or make the dataset crude (`__class__: CrudeWebdataset`) with a cooker in the task encoder"
        )
    sample_type = None
    if config.sample_type is not None:
        sample_type = resolve_class(
            config.sample_type, trusted_modules=leaf.trusted_modules, where=f"{root}: {leaf.dataset_config}"
        )
    if config.kind == "custom":
        definition = _of_factory(leaf, config, sample_type, decoder)
        sample_type = definition.sample_type
    else:
        assert sample_type is not None
        assert config.field_map is not None
        field_map = FieldMap.parse(config.field_map, sample_type, where=f"{root}: field_map")
        definition = SampleDefinition(sample_type=sample_type, field_map=field_map, decoder=decoder)
    asked = leaf.sample_type
    if asked is not None and sample_type is not None and not issubclass(sample_type, asked):
        raise ConfigError(f"{root}: holds {sample_type.__name__}, but sample_type={asked.__name__} was asked for")
    return definition


def _of_factory(
    leaf: LeafDataset,
    config: DatasetConfig,
    sample_type: type[Any] | None,
    decoder: SampleDecoder | None,
) -> SampleDefinition:
    """What a class of the program's says, made with the arguments in the file."""
    from energon_grain.datasets.webdataset_factories import (
        BaseWebdatasetFactory,
        CrudeWebdataset,
        DefaultDecoderWebdatasetFactory,
        DefaultGenericWebdatasetFactory,
    )

    assert config.class_ref is not None
    factory = resolve_class(
        config.class_ref, trusted_modules=leaf.trusted_modules, where=f"{leaf.path}: {leaf.dataset_config}"
    )
    if not issubclass(factory, BaseWebdatasetFactory):
        raise ConfigError(
            f"{leaf.path}: a dataset configuration of class {config.class_ref} cannot be read; give a `sample_type` "
            f"with a `field_map`, make it crude (`__class__: CrudeWebdataset`) and cook it in the task encoder, or "
            f"derive the class from DefaultDecoderWebdatasetFactory"
        )
    arguments: dict[str, Any] = {
        "split_part": leaf.split_part,
        "training": leaf.training,
        "worker_config": leaf.worker_config,
        **config.options,
    }
    if issubclass(factory, DefaultGenericWebdatasetFactory):
        arguments["subflavors"] = {**config.subflavors, **leaf.subflavors}
    if issubclass(factory, DefaultDecoderWebdatasetFactory):
        arguments["decoder"] = decoder
    parts = _parts(leaf, config, crude=issubclass(factory, CrudeWebdataset))
    given = {"sample_type": sample_type, "field_map": config.field_map, "part_filter": parts}
    arguments |= {name: value for name, value in given.items() if value is not None}
    try:
        made = factory(leaf.path, **arguments)
    except TypeError as error:
        raise ConfigError(
            f"{leaf.path}: {config.class_ref} does not take what its dataset configuration says: {error}"
        ) from error
    return made.definition()


def _declared_decoder(decoder_type: type[SampleDecoder], options: Mapping[str, Any], root: str) -> SampleDecoder:
    try:
        return decoder_type(**options)
    except TypeError as error:
        raise ConfigError(f"{root}: `decoder` in the dataset's configuration: {error}") from error


def _parts(leaf: LeafDataset, config: DatasetConfig, *, crude: bool) -> PartFilter:
    """Parts to read: of a crude dataset the program may say which."""
    if config.part_filter is None or (crude and leaf.part_filter is not None):
        return leaf.part_filter if crude else None
    if isinstance(config.part_filter, str):
        raise ConfigError(
            f"{leaf.path}: `part_filter: {config.part_filter}` names code beside the data, which is not run; list the "
            f"part names instead"
        )
    return frozenset(config.part_filter)
