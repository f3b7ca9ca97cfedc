"""`dataset.yaml`: which sample type a dataset holds and how its fields are made of the parts."""

from __future__ import annotations

import difflib
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import msgspec

from energon_grain.errors import ConfigError, DatasetNotFoundError
from energon_grain.formats.class_ref import ClassRef, resolve_class
from energon_grain.formats.nv_meta import META_FOLDER
from energon_grain.formats.yaml_dialect import dump_yaml, parse_yaml
from energon_grain.forms import Form
from energon_grain.storage.atomic import atomic_write_text

__all__ = [
    "DEFAULT_DATASET_CONFIG",
    "ClassRef",
    "DatasetConfig",
    "encode_dataset_config",
    "parse_dataset_config",
    "read_dataset_config",
    "resolve_class",
    "write_dataset_config",
]

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


@dataclass(frozen=True, kw_only=True, slots=True)
class DatasetConfig:
    """What a `dataset.yaml` says. None means that the file does not say it and the program decides.

    Attributes:
        kind: "standard" makes samples of `sample_type`, "crude" plain dicts that the program cooks, "custom" needs the
            class `class_ref`.
        class_ref: The `__class__` of the file, None where it has none (then `kind` is "standard").
        sample_type: The type of the samples; always given if `kind` is "standard", never if it is "crude".
        field_map: Expression for each field. Of `field_map` and `sample_loader` a standard dataset has exactly one.
        sample_loader: `file.py[:function]` beside the data.
        part_filter: Names of the parts to read, or `file.py[:function]`; goes with `sample_loader` or a crude dataset.
        subflavors: Tags of every sample.
        split_config: Name of another split file.
        split_part: The part to read, whatever the program asks for.
        decoder: Options of the `SampleDecoder` to use instead of the program's.
        raw_bytes: The file says `decoder: null`: parts are not decoded.
        training, shuffle_over_epochs, parallel_shard_iters, max_samples_per_sequence, subset: As in
            `get_train_dataset`; they override what the program passes. Which of them are set is in `overrides`.
        overrides: The keys of the last group that the file has, so that an explicit null can be told from no value.
        options: All other keys of a "custom" class.
    """

    kind: DatasetClass = "standard"
    class_ref: ClassRef | None = None
    sample_type: ClassRef | None = None
    field_map: dict[str, str] | None = None
    sample_loader: str | None = None
    part_filter: tuple[str, ...] | str | None = None
    subflavors: dict[str, Any] = field(default_factory=dict[str, Any])
    split_config: str | None = None
    split_part: str | None = None
    decoder: dict[str, Any] | None = None
    raw_bytes: bool = False
    training: bool | None = None
    shuffle_over_epochs: int | None = None
    parallel_shard_iters: int | None = None
    max_samples_per_sequence: int | None = None
    subset: dict[str, Any] | None = None
    overrides: frozenset[str] = frozenset()
    options: dict[str, Any] = field(default_factory=dict[str, Any])


def read_dataset_config(root: str | os.PathLike[str], name: str = DEFAULT_DATASET_CONFIG) -> DatasetConfig:
    """Read the file `name` in `.nv-meta` of the dataset at `root`.

    Nothing that the file names is imported.

    Raises:
        ConfigError: The file is missing or not valid; names the key and, for an unknown one, the nearest known.
        DatasetNotFoundError: `root` has no `.nv-meta` folder.
    """
    path = Path(root) / META_FOLDER / name
    try:
        content = parse_yaml(path.read_bytes(), where=str(path), written_floats=False)
    except FileNotFoundError:
        raise _missing(Path(root), path) from None
    return parse_dataset_config({} if content is None else content, where=str(path))


def parse_dataset_config(content: Any, *, where: str) -> DatasetConfig:
    """Check and type the content of a `dataset.yaml`; `where` names it in errors.

    Raises:
        ConfigError: The content is not valid.
    """
    if not isinstance(content, dict):
        raise ConfigError(f"{where}: must be a mapping of keys to values, not {type(content).__name__}")
    values: dict[str, Any] = {str(key): value for key, value in content.items()}
    class_ref, kind = _class_of(values, where)
    known = {name: values.pop(name) for name in _Content.__struct_fields__ if name in values}
    options = {key: value for key, value in values.items() if key not in _CLASS_KEYS}
    if options and kind != "custom":
        raise _unknown_key(next(iter(options)), _Content.__struct_fields__, where)
    try:
        parsed = _CONTENT.from_value(known)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{where}: {error}") from error
    sample_type = None if parsed.sample_type is None else _reference(parsed.sample_type, f"{where}: $.sample_type")
    if class_ref is not None and sample_type is None and class_ref.name in _LEGACY_CLASSES:
        sample_type = ClassRef(module="megatron.energon", name=_LEGACY_CLASSES[class_ref.name])
    config = DatasetConfig(
        kind=kind,
        class_ref=class_ref,
        sample_type=sample_type,
        field_map=parsed.field_map,
        sample_loader=parsed.sample_loader,
        part_filter=tuple(parsed.part_filter) if isinstance(parsed.part_filter, list) else parsed.part_filter,
        subflavors=parsed.subflavors or {},
        split_config=parsed.split_config,
        split_part=parsed.split_part,
        decoder=None if parsed.decoder is None else _decoder_options(parsed.decoder, f"{where}: $.decoder"),
        raw_bytes="decoder" in known and parsed.decoder is None,
        training=parsed.training,
        shuffle_over_epochs=parsed.shuffle_over_epochs,
        parallel_shard_iters=parsed.parallel_shard_iters,
        max_samples_per_sequence=parsed.max_samples_per_sequence,
        subset=parsed.subset,
        overrides=frozenset(known) & _OVERRIDES,
        options=options,
    )
    _check(config, where)
    return config


def write_dataset_config(
    root: str | os.PathLike[str], config: DatasetConfig, name: str = DEFAULT_DATASET_CONFIG
) -> None:
    """Write `config` into `.nv-meta` of the dataset at `root`, atomically."""
    atomic_write_text(Path(root) / META_FOLDER / name, encode_dataset_config(config))


def encode_dataset_config(config: DatasetConfig) -> str:
    """Return the text of a `dataset.yaml` that reads back as `config`, and that Energon reads."""
    content: dict[str, Any] = {}
    class_ref = config.class_ref
    if class_ref is None and config.kind == "crude":
        class_ref = ClassRef(module="megatron.energon", name=_CRUDE_CLASSES[0])
    if class_ref is not None:
        content |= _plain(class_ref)
    if config.sample_type is not None and (class_ref is None or class_ref.name not in _LEGACY_CLASSES):
        content["sample_type"] = _plain(config.sample_type)
    for name in ("field_map", "sample_loader", "part_filter", "subflavors", "split_config", "split_part"):
        value = getattr(config, name)
        if value:
            content[name] = list(value) if isinstance(value, tuple) else value
    if config.decoder is not None:
        content["decoder"] = {"__module__": "megatron.energon", "__class__": "SampleDecoder", **config.decoder}
    elif config.raw_bytes:
        content["decoder"] = None
    content |= {name: getattr(config, name) for name in _Content.__struct_fields__ if name in config.overrides}
    return dump_yaml(content | config.options)


class _Content(msgspec.Struct):
    """The keys of a `dataset.yaml` beside `__module__` and `__class__`."""

    sample_type: dict[str, Any] | None = None
    field_map: dict[str, str] | None = None
    sample_loader: str | None = None
    part_filter: list[str] | str | None = None
    subflavors: dict[str, Any] | None = None
    split_config: str | None = None
    split_part: str | None = None
    decoder: dict[str, Any] | None = None
    training: bool | None = None
    shuffle_over_epochs: int | None = None
    parallel_shard_iters: int | None = None
    max_samples_per_sequence: int | None = None
    subset: dict[str, Any] | None = None


_CONTENT = Form(_Content)
_CLASS_KEYS = ("__module__", "__class__", "__function__")
_OVERRIDES = frozenset(
    ("training", "shuffle_over_epochs", "parallel_shard_iters", "max_samples_per_sequence", "subset")
)


def _class_of(values: Mapping[str, Any], where: str) -> tuple[ClassRef | None, DatasetClass]:
    if not any(key in values for key in _CLASS_KEYS):
        return None, "standard"
    if "__function__" in values:
        raise ConfigError(f"{where}: $.__function__: a dataset is made by a class, not by a function")
    ref = _reference({key: values[key] for key in _CLASS_KEYS if key in values}, f"{where}: $")
    if not ref.is_ours:
        return ref, "custom"
    if ref.name in _CRUDE_CLASSES:
        return ref, "crude"
    return ref, "standard" if ref.name in _STANDARD_CLASSES or ref.name in _LEGACY_CLASSES else "custom"


def _reference(value: Mapping[str, Any], where: str) -> ClassRef:
    module, name = value.get("__module__"), value.get("__class__")
    if not isinstance(module, str) or not isinstance(name, str):
        raise ConfigError(f"{where}: needs `__module__` and `__class__`, both text, to name a class")
    for key in value:
        if key not in ("__module__", "__class__"):
            raise _unknown_key(key, ("__module__", "__class__"), where)
    return ClassRef(module=module, name=name)


def _decoder_options(value: Mapping[str, Any], where: str) -> dict[str, Any]:
    options = {key: option for key, option in value.items() if key not in _CLASS_KEYS}
    if len(options) == len(value):
        return options
    reference = _reference({key: value[key] for key in _CLASS_KEYS if key in value}, where)
    if not reference.is_ours or reference.name != "SampleDecoder":
        raise ConfigError(f"{where}: only megatron.energon.SampleDecoder can be named here, not `{reference}`")
    return options


def _check(config: DatasetConfig, where: str) -> None:
    if config.kind == "crude":
        for name in ("sample_type", "field_map", "sample_loader"):
            if getattr(config, name) is not None:
                raise ConfigError(f"{where}: $.{name}: a crude dataset has none, the program cooks its samples")
    elif config.kind == "standard":
        if config.sample_type is None:
            raise ConfigError(f"{where}: `sample_type` is missing; it names the class of the samples")
        if (config.field_map is None) == (config.sample_loader is None):
            raise ConfigError(f"{where}: needs either `field_map` or `sample_loader`, and not both")
        if (config.sample_loader is None) != (config.part_filter is None):
            raise ConfigError(f"{where}: `part_filter` goes with `sample_loader`, and `field_map` goes without it")


def _unknown_key(key: str, known: Collection[str], where: str) -> ConfigError:
    close = difflib.get_close_matches(key, known, n=1)
    place = f"{where}.{key}" if where.endswith("$") or "$." in where else f"{where}: $.{key}"
    advice = f"Did you mean `{close[0]}`?" if close else f"Known are {', '.join(known)}"
    return ConfigError(f"{place}: there is no such key. {advice}")


def _missing(root: Path, path: Path) -> Exception:
    if not path.parent.is_dir():
        return DatasetNotFoundError(f"{root}: not a prepared dataset; run `energon-grain prepare {root}`")
    return ConfigError(
        f"{path}: no such file. `energon-grain prepare {root}` writes one that names a sample type and its field map; "
        "one with `__module__: megatron.energon` and `__class__: CrudeWebdataset` gives plain dicts for cookers"
    )


def _plain(ref: ClassRef) -> dict[str, str]:
    return {"__module__": ref.module, "__class__": ref.name}
