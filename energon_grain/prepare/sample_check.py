"""Read, decode and build samples as a loader would, and say which ones fail."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from energon_grain.errors import ConfigError, FormatError
from energon_grain.formats.class_ref import resolve_class
from energon_grain.formats.dataset_config import DatasetConfig
from energon_grain.prepare.lint_finding import LintFinding
from energon_grain.sources.prepared import PreparedSource
from energon_grain.sources.source import RawSample
from energon_grain.transforms.decode import SampleDecoder
from energon_grain.transforms.field_map import FieldMap


@dataclass(frozen=True, kw_only=True, slots=True)
class SampleRecipe:
    """How a sample is made of its parts.

    Attributes:
        decoders: The decoder of each part name; None leaves bytes.
        sample_type: What is made; None where samples stay dicts.
        field_map: Where its fields come from.
        parts: The parts that are read; None for all.
        note: Why not all that a loader does is checked; None where it is.
    """

    decoders: Mapping[str, Callable[[Any], object] | None]
    sample_type: type[Any] | None
    field_map: FieldMap | None
    parts: frozenset[str] | None
    note: str | None

    def make(self, raw: RawSample) -> object:
        """Decode the parts and build the sample. Raises whatever goes wrong."""
        parts: dict[str, object] = {"__key__": raw.key, "__shard__": raw.shard}
        for name, data in raw.parts.items():
            decode = self.decoders[name]
            parts[name] = decode(data) if decode is not None and isinstance(data, bytes) else data
        if self.sample_type is None or self.field_map is None:
            return parts
        fields = self.field_map.evaluate(parts)
        return self.sample_type(**{"__key__": raw.key, "__restore_key__": (), **fields})


def make_recipe(
    location: str,
    config: DatasetConfig | None,
    part_names: Collection[str],
    *,
    allow_pickle: bool = False,
    trusted_modules: Collection[str] = (),
) -> SampleRecipe:
    """Resolve decoders, sample type and field map of a dataset.

    Args:
        location: Of the dataset.
        config: What `dataset.yaml` says; None where there is none.
        part_names: All part names of the dataset.
        allow_pickle: Decode pickles too. They can run any code.
        trusted_modules: Modules whose sample types may be imported.

    Raises:
        FieldMapError: The field map does not fit the sample type.
        UntrustedCodeError: A part is a pickle, or the sample type lies in a module that is not trusted.
        ConfigError: A decoder needs a package that is not installed.
    """
    sample_type = field_map = note = None
    parts: frozenset[str] | None = None
    if config is None:
        note = (
            "There is no dataset.yaml, without which only auxiliary stores read a dataset: parts are decoded, but no "
            "samples are made of them."
        )
    elif config.field_map is not None and config.sample_type is not None:
        sample_type = resolve_class(config.sample_type, trusted_modules=trusted_modules, where=location)
        field_map = FieldMap.parse(config.field_map, sample_type, where=f"{location}: field_map")
        parts = frozenset(field_map.parts)
    elif config.kind != "crude":
        note = "The dataset makes its samples by code of its own, which is not run; its parts are decoded."
    if parts is None and config is not None and isinstance(config.part_filter, tuple):
        parts = frozenset(config.part_filter)
    decoders: dict[str, Callable[[Any], object] | None] = dict.fromkeys(part_names)
    if config is None or not config.raw_bytes:
        options: dict[str, Any] = {"image_decode": "rgb8"}  # quick, and it fails where the others fail
        if config is not None and config.decoder is not None:
            options = {**config.decoder}
        if allow_pickle:
            options["allow_pickle"] = True
        try:
            decoder = SampleDecoder(**options)
        except TypeError as error:
            raise ConfigError(f"{location}: `decoder` in the dataset's configuration: {error}") from error
        decoders = {name: decoder.decoder_for(name) for name in part_names if parts is None or name in parts}
    return SampleRecipe(decoders=decoders, sample_type=sample_type, field_map=field_map, parts=parts, note=note)


def check_samples(source: PreparedSource, recipe: SampleRecipe, indices: npt.NDArray[np.int64]) -> list[LintFinding]:
    """Make the samples `indices` of a source and report those that fail."""
    try:
        batch = source.read(indices)
    except (FormatError, OSError) as error:
        if len(indices) > 1:  # find out which ones
            return [finding for index in indices for finding in check_samples(source, recipe, np.array([index]))]
        place = source.locate(int(indices[0]))
        return [LintFinding(where=f"{place.shard}/{place.key}", what=str(error))]
    findings: list[LintFinding] = []
    for raw in batch:
        try:
            recipe.make(raw)
        except Exception as error:  # decoders and sample types may raise anything
            what = f"{error}" or type(error).__name__
            findings.append(LintFinding(where=f"{raw.shard}/{raw.key}", what=what))
    return findings
