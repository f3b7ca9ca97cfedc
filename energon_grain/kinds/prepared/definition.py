# SPDX-License-Identifier: Apache-2.0
"""Interprets the `dataset.yaml` of a leaf: how samples are made."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, cast

from energon_grain.datasets.leaf import LeafDataset, LoadSample, SampleDefinition, SampleFactory
from energon_grain.errors import ConfigError, UntrustedCodeError
from energon_grain.formats.class_ref import function_beside, resolve_class
from energon_grain.formats.dataset_config import DatasetConfig
from energon_grain.formats.nv_meta import META_FOLDER
from energon_grain.forms import did_you_mean
from energon_grain.sources.source import PartFilter
from energon_grain.storage.location import join
from energon_grain.transforms.decode import SampleDecoder
from energon_grain.transforms.field_map import FieldMap


def define_samples(leaf: LeafDataset, config: DatasetConfig) -> SampleDefinition:
    """Interpret the `dataset.yaml` of a leaf.

    Raises:
        ConfigError: It is invalid.
        FieldMapError: The field map does not match the sample type.
        UntrustedCodeError: It names a class of an untrusted module, or untrusted code beside the data.
    """
    root = leaf.path
    decoder = None if config.raw_bytes else leaf.task_encoder.decoder
    if config.decoder is not None:
        decoder = _declared_decoder(leaf.task_encoder.decoder_type, config.decoder, root)
    if config.kind == "crude":
        return SampleDefinition(decoder=decoder, part_filter=_parts(leaf, config, crude=True))
    sample_type = None
    if config.sample_type is not None:
        sample_type = resolve_class(
            config.sample_type, trusted_modules=leaf.trusted_modules, where=f"{root}: {leaf.dataset_config}"
        )
    if config.kind == "custom":
        definition = _of_factory(leaf, config, sample_type, decoder)
        sample_type = definition.sample_type
    elif config.sample_loader is not None:
        assert sample_type is not None
        load = LoadSample(sample_type, _beside(leaf, config.sample_loader, "sample_loader"), decoder)
        definition = SampleDefinition(sample_type=sample_type, load=load, part_filter=_parts(leaf, config, crude=False))
    else:
        assert sample_type is not None
        assert config.field_map is not None
        field_map = FieldMap.parse(config.field_map, sample_type, where=f"{root}: field_map")
        definition = SampleDefinition(sample_type=sample_type, field_map=field_map, decoder=decoder)
    asked = leaf.sample_type
    if asked is not None and sample_type is not None and not issubclass(sample_type, asked):
        raise ConfigError(f"{root}: contains {sample_type.__name__}, but sample_type={asked.__name__} is requested")
    return definition


def _of_factory(
    leaf: LeafDataset,
    config: DatasetConfig,
    sample_type: type[Any] | None,
    decoder: SampleDecoder | None,
) -> SampleDefinition:
    """Call a factory class of the program with the arguments in the file."""
    assert config.class_ref is not None
    factory = resolve_class(
        config.class_ref, trusted_modules=leaf.trusted_modules, where=f"{leaf.path}: {leaf.dataset_config}"
    )
    if not issubclass(factory, SampleFactory):
        raise ConfigError(
            f"{leaf.path}: cannot read a dataset configuration of class {config.class_ref}; set a `sample_type` "
            f"with a `field_map`, make the dataset crude (`__class__: CrudeWebdataset`) and cook it in the task "
            f"encoder, or derive the class from DefaultDecoderWebdatasetFactory"
        )
    arguments: dict[str, Any] = {
        "split_part": leaf.split_part,
        "training": leaf.training,
        "worker_config": leaf.worker_config,
        **config.options,
    }
    offered = {"subflavors": {**config.subflavors, **leaf.tags}, "decoder": decoder}
    arguments |= {name: offered[name] for name in factory._takes}
    parts = _parts(leaf, config, crude=factory._crude)
    given = {"sample_type": sample_type, "field_map": config.field_map, "part_filter": parts}
    arguments |= {name: value for name, value in given.items() if value is not None}
    try:
        made = cast("type[Any]", factory)(leaf.path, **arguments)
    except TypeError as error:
        raise ConfigError(
            f"{leaf.path}: {config.class_ref} does not accept the arguments in its dataset configuration: {error}"
        ) from error
    return made.definition()


def _declared_decoder(decoder_type: type[SampleDecoder], options: Mapping[str, Any], root: str) -> SampleDecoder:
    try:
        return decoder_type(**options)
    except TypeError as error:
        known = inspect.signature(decoder_type).parameters
        unknown = next((name for name in options if name not in known), None)
        problem = error if unknown is None else f"unknown option {unknown!r}{did_you_mean(unknown, known)}"
        raise ConfigError(f"{root}: `decoder` in the dataset's configuration: {problem}") from error


def _parts(leaf: LeafDataset, config: DatasetConfig, *, crude: bool) -> PartFilter:
    """Parts to read. For a crude dataset the program's selection takes precedence."""
    if config.part_filter is None or (crude and leaf.part_filter is not None):
        return leaf.part_filter if crude else None
    if isinstance(config.part_filter, str):
        return _beside(leaf, config.part_filter, "part_filter")
    return frozenset(config.part_filter)


def _beside(leaf: LeafDataset, written: str, key: str) -> Callable[..., Any]:
    """The function that the dataset's configuration names, from a file beside it."""
    where, folder = f"{leaf.path}: `{key}: {written}`", join(leaf.path, META_FOLDER)
    try:
        return function_beside(written, folder, key, trusted_modules=leaf.trusted_modules, where=where)
    except UntrustedCodeError as error:
        instead = (
            f". Or list the part names in {leaf.dataset_config}"
            if key == "part_filter"
            else f". Or import its functions in the program and pass them: StandardWebdatasetFactory({leaf.path!r}, "
            f"sample_type=…, sample_loader=function, part_filter=function, split_part=…, training=…, "
            f"worker_config=…).build() creates the same dataset. Or use a `field_map`, or make the dataset crude "
            f"(`__class__: CrudeWebdataset`) with a cooker in the task encoder"
        )
        raise UntrustedCodeError(f"{error}{instead}") from None
