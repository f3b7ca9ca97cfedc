# SPDX-License-Identifier: Apache-2.0
"""`dataset.yaml`: the sample type of a dataset, and how its fields are made from parts."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from energon_grain.atomic_files import atomic_write_text
from energon_grain.errors import ConfigError, DatasetNotFoundError
from energon_grain.formats.class_ref import ClassRef
from energon_grain.formats.nv_meta import META_FOLDER
from energon_grain.formats.yaml_dialect import dump_yaml, parse_yaml
from energon_grain.forms import Form, Place, as_mapping, unknown, wrong
from energon_grain.storage.location import leads_out

DEFAULT_DATASET_CONFIG = "dataset.yaml"
_STANDARD_CLASSES = ("StandardWebdatasetFactory", "StandardWebdataset", "DefaultGenericWebdatasetFactory")
_CRUDE_CLASSES = ("CrudeWebdataset",)
_LEGACY_CLASSES = {
    f"{kind}Webdataset": f"{kind}Sample"
    for kind in (
        "Captioning",
        "Image",
        "ImageClassification",
        "Interleaved",
        "MultiChoiceVQA",
        "OCR",
        "SimilarityInterleaved",
        "Text",
        "VQA",
        "VQAOCR",
        "VidQA",
    )
}
DatasetClass = Literal["standard", "crude", "custom"]


class _Keys(msgspec.Struct, frozen=True, kw_only=True):
    """The keys of a `dataset.yaml` other than `__module__` and `__class__`."""

    sample_type: Annotated[
        ClassRef | None, msgspec.Meta(description="The class of the samples, by `__module__` and `__class__`")
    ] = None
    field_map: Annotated[
        dict[str, str] | None, msgspec.Meta(description="An expression for each field of the sample type")
    ] = None
    sample_loader: str | None = None
    part_filter: tuple[str, ...] | str | None = None
    subflavors: dict[str, Any] | None = None
    split_config: str | None = None
    split_part: str | None = None
    decoder: dict[str, Any] | None = None
    training: bool | None = None
    shuffle_over_epochs: int | None = None
    parallel_shard_iters: int | None = None
    max_samples_per_sequence: int | None = None
    subset: dict[str, Any] | None = None


class DatasetConfig(_Keys, frozen=True, kw_only=True):
    """The content of a `dataset.yaml`. None means that the file does not set a value and the program decides.

    Attributes:
        kind: "standard" makes samples of `sample_type`, "crude" plain dicts that the program cooks, "custom" needs the
            class `class_ref`.
        class_ref: The `__class__` of the file, None without one (then `kind` is "standard").
        sample_type: The type of the samples; always set if `kind` is "standard", never if it is "crude".
        field_map: Expression for each field. A standard dataset has either `field_map` or `sample_loader`.
        sample_loader: `file.py[:function]` beside the data.
        part_filter: Names of the parts to read, or `file.py[:function]`; used with `sample_loader` or a crude dataset.
        subflavors: Tags of every sample.
        split_config: Name of another split file.
        split_part: The part to read, overriding the program.
        decoder: Options of the `SampleDecoder` that replaces the program's.
        raw_bytes: The file has `decoder: null`: parts are not decoded.
        training, shuffle_over_epochs, parallel_shard_iters, max_samples_per_sequence, subset: As in
            `get_train_dataset`; they override the program's arguments. Those that are set are in `overrides`.
        overrides: The keys of the last group that the file has, which distinguishes an explicit null from no value.
        options: All other keys of a "custom" class.
    """

    kind: DatasetClass = "standard"
    class_ref: ClassRef | None = None
    subflavors: dict[str, Any] = {}
    raw_bytes: bool = False
    overrides: frozenset[str] = frozenset()
    options: dict[str, Any] = {}


_KEYS, _CLASS = Form(_Keys), Form(ClassRef)
_OVERRIDES = frozenset(
    ("training", "shuffle_over_epochs", "parallel_shard_iters", "max_samples_per_sequence", "subset")
)


def read_dataset_config(root: str | os.PathLike[str], name: str = DEFAULT_DATASET_CONFIG) -> DatasetConfig:
    """Read the file `name` in `.nv-meta` of the dataset at `root`.

    Imports nothing that the file names. Raises ConfigError and DatasetNotFoundError.
    """
    path = Path(root) / META_FOLDER / name
    try:
        content = parse_yaml(path.read_bytes(), where=str(path), written_floats=False)
    except FileNotFoundError:
        raise _missing(Path(root), path) from None
    return _parse({} if content is None else content, Place(str(path)))


def _parse(content: Any, place: Place) -> DatasetConfig:
    """Check and type the content of a `dataset.yaml`."""
    values = dict(as_mapping(content, place, "a mapping of keys to values"))
    if "__function__" in values:
        raise wrong(place.at("__function__"), "a dataset needs a class, not a function; use `__class__`")
    class_ref, kind = _class_of(values, place)
    options = {key: value for key, value in values.items() if key not in _KEYS.keys}
    if options and kind != "custom":
        raise unknown(place, next(iter(options)), _KEYS.keys)
    known = {key: value for key, value in values.items() if key in _KEYS.keys}
    keys: dict[str, Any] = msgspec.structs.asdict(_KEYS.read(known, place))
    if class_ref is not None and keys["sample_type"] is None and class_ref.name in _LEGACY_CLASSES:
        keys["sample_type"] = ClassRef(module="megatron.energon", name=_LEGACY_CLASSES[class_ref.name])
    if keys["decoder"] is not None:
        keys["decoder"] = dict(keys["decoder"])
        decoder, _ = _class_of(keys["decoder"], place.at("decoder"))
        if decoder is not None and not (decoder.is_ours and decoder.name == "SampleDecoder"):
            raise wrong(place.at("decoder"), f"the decoder must be megatron.energon.SampleDecoder, not `{decoder}`")
    keys["subflavors"] = keys["subflavors"] or {}
    if keys["split_config"] is not None and leads_out(keys["split_config"]):
        problem = f"{keys['split_config']!r} is not in {META_FOLDER}; use the name of a split file beside this one"
        raise wrong(place.at("split_config"), problem)
    config = DatasetConfig(
        **keys,
        kind=kind,
        class_ref=class_ref,
        raw_bytes="decoder" in known and keys["decoder"] is None,
        overrides=frozenset(known) & _OVERRIDES,
        options=options,
    )
    _check(config, str(place.document))
    return config


def _class_of(values: dict[str, Any], place: Place) -> tuple[ClassRef | None, DatasetClass]:
    """Remove the class from a mapping, and return it with the kind of dataset."""
    written = {key: values.pop(key) for key in _CLASS.keys if key in values}
    if not written:
        return None, "standard"
    ref = _CLASS.read(written, place)
    if ref.is_ours and ref.name in _CRUDE_CLASSES:
        return ref, "crude"
    return ref, "standard" if ref.is_ours and ref.name in (*_STANDARD_CLASSES, *_LEGACY_CLASSES) else "custom"


def write_dataset_config(
    root: str | os.PathLike[str], config: DatasetConfig, name: str = DEFAULT_DATASET_CONFIG
) -> None:
    """Write `config` into `.nv-meta` of the dataset at `root`, atomically."""
    atomic_write_text(Path(root) / META_FOLDER / name, encode_dataset_config(config))


def encode_dataset_config(config: DatasetConfig) -> str:
    """Return the text of a `dataset.yaml` that reads back as `config`, and that Energon can read."""
    content: dict[str, Any] = {}
    class_ref = config.class_ref
    if class_ref is None and config.kind == "crude":
        class_ref = ClassRef(module="megatron.energon", name=_CRUDE_CLASSES[0])
    if class_ref is not None:
        content |= msgspec.to_builtins(class_ref)
    if config.sample_type is not None and (class_ref is None or class_ref.name not in _LEGACY_CLASSES):
        content["sample_type"] = msgspec.to_builtins(config.sample_type)
    for name in ("field_map", "sample_loader", "part_filter", "subflavors", "split_config", "split_part"):
        value = getattr(config, name)
        if value:
            content[name] = list(value) if isinstance(value, tuple) else value
    if config.decoder is not None:
        content["decoder"] = {"__module__": "megatron.energon", "__class__": "SampleDecoder", **config.decoder}
    elif config.raw_bytes:
        content["decoder"] = None
    content |= {name: getattr(config, name) for name in _KEYS.keys if name in config.overrides}
    return dump_yaml(content | config.options)


def _check(config: DatasetConfig, where: str) -> None:
    if config.kind == "crude":
        for name in ("sample_type", "field_map", "sample_loader"):
            if getattr(config, name) is not None:
                raise ConfigError(f"{where}: $.{name}: not used by crude datasets, which the program cooks; remove it")
    elif config.kind == "standard":
        if config.sample_type is None:
            raise ConfigError(f"{where}: `sample_type` is missing; set it to the class of the samples")
        if (config.field_map is None) == (config.sample_loader is None):
            raise ConfigError(f"{where}: needs either `field_map` or `sample_loader`, not both")
        if (config.sample_loader is None) != (config.part_filter is None):
            raise ConfigError(f"{where}: `sample_loader` needs a `part_filter`, and `field_map` allows none")


def _missing(root: Path, path: Path) -> Exception:
    if not path.parent.is_dir():
        return DatasetNotFoundError(f"{root}: not a prepared dataset; run `energon-grain prepare {root}`")
    return ConfigError(
        f"{path}: no such file. `energon-grain prepare {root}` writes one with a sample type and its field map; "
        "one with `__module__: megatron.energon` and `__class__: CrudeWebdataset` yields plain dicts for cookers"
    )
