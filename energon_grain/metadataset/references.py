"""The form that names a dataset, or another metadataset: `path:` and what goes with it."""

# ruff: noqa: RUF009 (`key` is a field specifier)
from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from energon_grain.metadataset.keys import build, check, form_schema, key
from energon_grain.metadataset.place import Place, as_mapping, wrong, wrong_type
from energon_grain.metadataset.subset import Subset
from energon_grain.metadataset.values import Passes, PathText, SubsetRange, Tags, Text

PATH_DOC = "A prepared dataset folder, a .jsonl file or another metadataset (.yaml); relative to this file."
SPLIT_DOC = "The split part to read, or the split of a nested metadataset; default: the one that is being loaded."
SUBFLAVORS_DOC = "Tags for every sample. What an outer reference says wins."
PASSES_DOC = "Passes shuffled as one; -1 draws with replacement, null keeps the order. Multiplies with outer ones."
SUBFLAVOR_DOC = "Older way to write `subflavors: {__subflavor__: …}`."
DATASET_CONFIG_DOC = "Name of another dataset.yaml in the dataset's .nv-meta folder."
SPLIT_CONFIG_DOC = "Name of another split.yaml in the dataset's .nv-meta folder."
NAME_DOC = "The identity of this dataset in the random order; with it, path and subset may change and the order stays."
SUBSET_DOC = "A range of the samples: numbers for a single dataset, percentages at every level."

_URL = re.compile(r"(?P<protocol>[a-z][a-z0-9+.-]*)://(?P<rest>.*)", re.IGNORECASE | re.DOTALL)


@dataclass(frozen=True, kw_only=True, slots=True)
class AuxReference:
    """A store that cookers read from by key.

    Attributes:
        kind: "webdataset" for a prepared dataset, "filesystem" for a folder of files.
        path: As written, without the protocol `filesystem`; absolute once resolved.
        place: Where it stands, for messages.
    """

    kind: Literal["webdataset", "filesystem"] = "webdataset"
    path: str
    place: Place | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class _AuxDataset:
    """A prepared dataset as auxiliary store."""

    path: str = key(PathText(), "A prepared dataset folder, relative to this file.")
    place: Place | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, kw_only=True, slots=True)
class _AuxFiles:
    """A folder of files as auxiliary store."""

    fs_path: str = key(PathText(), "A folder of files, relative to this file.")
    place: Place | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, slots=True)
class AuxStores:
    """A mapping of names to auxiliary stores."""

    def convert(self, value: Any, place: Place) -> dict[str, AuxReference]:
        """Read every form of each."""
        stores = as_mapping(value, place, "a mapping of names to auxiliary stores")
        return {name: _aux(store, place.at(name)) for name, store in stores.items()}

    def schema(self) -> dict[str, Any]:
        """JSON Schema."""
        path = {"description": "A prepared dataset, or filesystem://folder.", **PathText().schema()}
        forms = [path, form_schema(_AuxDataset), form_schema(_AuxFiles)]
        return {"type": "object", "additionalProperties": {"anyOf": forms}}


def _aux(value: Any, place: Place) -> AuxReference:
    if isinstance(value, AuxReference):
        return value
    if isinstance(value, Mapping):
        if "fs_path" in value:
            return AuxReference(kind="filesystem", path=build(_AuxFiles, value, place).fs_path, place=place)
        return AuxReference(path=build(_AuxDataset, value, place).path, place=place)
    if not isinstance(value, str) and not hasattr(value, "__fspath__"):
        raise wrong_type(place, "a path, or a mapping with `path` or `fs_path`,", value)
    text = PathText().convert(value, place)
    url = _URL.fullmatch(text)
    if url is None:
        return AuxReference(path=text, place=place)
    protocol, rest = url["protocol"].lower(), url["rest"]
    if protocol == "filesystem":
        if not rest:
            raise wrong(place, f"{text!r} names no folder")
        return AuxReference(kind="filesystem", path=rest, place=place)
    if "+" not in protocol:
        return AuxReference(path=text, place=place)
    store, _, inner = protocol.partition("+")
    if store != "filesystem" or "+" in inner:
        raise wrong(place, f"{protocol}:// is not known; filesystem+<protocol>:// names a folder of files")
    return AuxReference(kind="filesystem", path=f"{inner}://{rest}", place=place)


@dataclass(frozen=True, kw_only=True, slots=True)
class DatasetReference:
    """A dataset, or the split of another metadataset, by its path."""

    path: str = key(PathText(), PATH_DOC)
    split_part: str | None = key(Text(), SPLIT_DOC, default=None)
    subflavor: str | None = key(Text(), SUBFLAVOR_DOC, default=None)
    subflavors: Mapping[str, Any] | None = key(Tags(), SUBFLAVORS_DOC, default=None)
    shuffle_over_epochs_multiplier: int | None = key(Passes(), PASSES_DOC, default=1, nullable=True)
    dataset_config: str | None = key(Text(), DATASET_CONFIG_DOC, default=None)
    split_config: str | None = key(Text(), SPLIT_CONFIG_DOC, default=None)
    aux: Mapping[str, AuxReference] | None = key(
        AuxStores(), "Auxiliary stores for the cookers of a crude dataset.", default=None
    )
    subset: Subset | None = key(SubsetRange(), SUBSET_DOC, default=None)
    name: str | None = key(Text(), NAME_DOC, default=None)
    place: Place | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        check(self)
        fold_subflavor(self)


def fold_subflavor(node: Any) -> None:
    """Move the `subflavor` of a checked form into its `subflavors`, unless these say `__subflavor__` themselves."""
    if node.subflavor is not None:
        object.__setattr__(node, "subflavors", {"__subflavor__": node.subflavor, **(node.subflavors or {})})
        object.__setattr__(node, "subflavor", None)
