"""What `dataset.yaml` and the names of parts say that matters for a move: how samples are made."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from energon_grain.errors import ConfigError, FieldMapError, UntrustedCodeError
from energon_grain.formats.class_ref import resolve_class
from energon_grain.formats.dataset_config import DatasetConfig, read_dataset_config
from energon_grain.formats.nv_meta import META_FOLDER
from energon_grain.migration.finding import Finding, refusal
from energon_grain.migration.options import CheckOptions
from energon_grain.migration.trust import untrusted
from energon_grain.transforms.decode import SampleDecoder
from energon_grain.transforms.field_map import FieldMap
from energon_grain.transforms.image import IMAGE_EXTENSIONS
from energon_grain.transforms.media import AV_EXTENSIONS
from energon_grain.transforms.serialised import CBOR_EXTENSIONS, MSGPACK_EXTENSIONS

_TO_COOK = (
    "write a `field_map` if one is enough; else make the dataset crude (`__class__: CrudeWebdataset`) and move the "
    "code into a cooker of your task encoder, where it also works in Energon. As it is, the code goes on working if "
    "the program imports it and passes it on: StandardWebdatasetFactory(path, sample_loader=function, …)"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class PartNames:
    """Names of the parts of a dataset.

    Attributes:
        names: Those that were seen.
        all_seen: Whether the dataset has no others.
    """

    names: frozenset[str]
    all_seen: bool


def read_definition(root: Path, name: str) -> tuple[DatasetConfig | None, list[Finding]]:
    """Read the `dataset.yaml` called `name`; None, and why, where it cannot be read."""
    try:
        return read_dataset_config(root, name), []
    except ConfigError as error:
        return None, [refusal(root / META_FOLDER / name, error)]


def definition_findings(
    root: Path, name: str, config: DatasetConfig, parts: PartNames, options: CheckOptions
) -> Iterator[Finding]:
    """Say how samples will be made here, and what will not work.

    Args:
        root: The dataset.
        name: Of its `dataset.yaml`.
        config: What that says.
        parts: The names of parts that were seen.
        options: What the program allows.
    """
    where = f"{root / META_FOLDER / name}"
    yield from _code(where, config, options)
    read = parts.names
    if config.kind == "standard" and config.sample_type is not None and config.field_map is not None:
        field_map, findings = _field_map(where, config, parts, options)
        yield from findings
        read = None if field_map is None else frozenset(field_map.parts)
    elif isinstance(config.part_filter, tuple):
        read = frozenset(config.part_filter)
    if read is not None and not config.raw_bytes:
        yield from _decoding(root, where, config, read, options)


def _code(where: str, config: DatasetConfig, options: CheckOptions) -> Iterator[Finding]:
    """What would run code that lies beside the data, or make samples by a class of its own."""
    for key in ("sample_loader", "part_filter"):
        value = getattr(config, key)
        if isinstance(value, str):
            yield Finding(
                severity="error",
                where=f"{where}: $.{key}",
                what=f"`{value}` names code beside the data.",
                energon="runs it",
                here="refused: data does not bring code along",
                advice=_TO_COOK if key == "sample_loader" else "list the names of the parts instead",
            )
    if config.kind == "custom" and config.class_ref is not None:
        ours = config.class_ref.is_ours
        yield untrusted(f"{where}: $.__class__", config.class_ref, options) or Finding(
            severity="error" if ours else "differs",
            where=f"{where}: $.__class__",
            what=f"`{config.class_ref}` makes the samples.",
            energon="imports the class and calls it",
            here="refused" if ours else "taken if it derives from one of our factories, refused otherwise",
            advice=_TO_COOK if ours else "change the import in that module, and see that it has `load_sample`",
        )
    if config.kind == "standard" and config.class_ref is not None and config.class_ref.name.endswith("Webdataset"):
        yield Finding(
            severity="note",
            where=f"{where}: $.__class__",
            what=f"`{config.class_ref}` is an old way to name a sample type.",
            energon="warns that it is deprecated",
            here=f"the same as `sample_type` {config.sample_type.name if config.sample_type else 'of the file'}",
        )


def _field_map(
    where: str, config: DatasetConfig, parts: PartNames, options: CheckOptions
) -> tuple[FieldMap | None, list[Finding]]:
    assert config.sample_type is not None
    assert config.field_map is not None
    finding = untrusted(f"{where}: $.sample_type", config.sample_type, options)
    if finding is not None:
        return None, [finding]
    try:
        sample_type = resolve_class(config.sample_type, trusted_modules=options.trusted_modules)
    except ConfigError as error:
        return None, [refusal(f"{where}: $.sample_type", error)]
    place = f"{where}: $.field_map"
    try:
        field_map = FieldMap.parse(config.field_map, sample_type, where=place)
        if parts.all_seen:
            field_map.check_parts(parts.names, where=place)
    except FieldMapError as error:
        every = "does not check it: every sample fails, and is skipped with a message each"
        return None, [refusal(place, error, energon=every)]
    return field_map, []


def _decoding(
    root: Path, definition: str, config: DatasetConfig, parts: Collection[str], options: CheckOptions
) -> Iterator[Finding]:
    """What the decoder makes of the parts that are read."""
    place, where = f"{definition}: $.decoder", str(root)
    said: dict[str, Any] = {"allow_pickle": options.allow_pickle, **(config.decoder or {})}
    try:
        decoder = SampleDecoder(**said)
    except (ConfigError, TypeError) as error:
        yield refusal(place, error)
        return
    endings = {part: part.removesuffix(".gz").rpartition(".")[2] for part in sorted(parts)}

    def among(known: Collection[str], *, any_case: bool = False) -> str:
        return ", ".join(part for part, end in endings.items() if (end.lower() if any_case else end) in known)

    refused: list[str] = []
    for part in endings:
        with suppress(ConfigError):  # a package that is missing on this machine: said below
            try:
                decoder.decoder_for(part)
            except UntrustedCodeError:
                refused.append(part)
    if refused:
        yield Finding(
            severity="error",
            where=where,
            what=f"The parts {', '.join(refused)} are pickles, or torch files, which are pickles inside.",
            energon="loads them, and runs whatever code is in them",
            here="refused, unless the program says that it trusts the data; energon_grain_torch reads .pth files of "
            "plain tensors",
            advice="SampleDecoder(allow_pickle=True) as `decoder` of your task encoder (and here: --allow-pickle); or "
            "read them as bytes, or leave them out by field_map or part_filter",
        )
    if images := among(IMAGE_EXTENSIONS, any_case=True):
        mode = decoder.config()["image_decode"]
        if mode.startswith("torch"):
            yield Finding(
                severity="differs",
                where=where,
                what=f"The parts {images} are images, decoded as {mode}.",
                energon="gives torch tensors",
                here="energon_grain gives numpy arrays of the same shape, type and values; energon_grain_torch tensors",
            )
    if media := among(AV_EXTENSIONS, any_case=True):
        yield Finding(
            severity="differs",
            where=where,
            what=f"The parts {media} are video or audio.",
            energon="gives its AVDecoder, which cuts clips and frames",
            here="gives an AVDecoder whose open() is a PyAV container; its methods for clips are not there yet. "
            "av_decode='torch' is for energon_grain_torch",
            advice='pip install "energon-grain[av]", and decode with PyAV in your hook',
        )
    if coded := among(MSGPACK_EXTENSIONS | CBOR_EXTENSIONS):
        yield Finding(
            severity="note",
            where=where,
            what=f"The parts {coded} are msgpack or CBOR.",
            here="decoded where the packages for it are installed",
            advice='pip install "energon-grain[codecs]"',
        )
