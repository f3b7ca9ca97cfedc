"""The form that joins datasets by the keys of their samples, and arrays by key or row number: `join:`.

`split_part`, `dataset_config` and `split_config` of the join hold for its datasets that have none of their own;
`subflavors` of the join override those of its datasets.
"""

# ruff: noqa: RUF009 (`key` is a field specifier)
from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from energon_grain.formats.class_ref import ClassRef
from energon_grain.metadataset.keys import build, check, form_schema, key, place_of
from energon_grain.metadataset.place import Place, as_mapping, unknown, wrong, wrong_type
from energon_grain.metadataset.references import (
    DATASET_CONFIG_DOC,
    NAME_DOC,
    PASSES_DOC,
    SPLIT_CONFIG_DOC,
    SPLIT_DOC,
    SUBFLAVOR_DOC,
    SUBFLAVORS_DOC,
    SUBSET_DOC,
    fold_subflavor,
)
from energon_grain.metadataset.subset import Subset
from energon_grain.metadataset.values import Choice, Passes, PathText, SubsetRange, Tags, Text

Nonmatch = Literal["error", "skip", "none"]
_NONMATCH = Choice(("error", "skip", "none"))


@dataclass(frozen=True, kw_only=True, slots=True)
class Joiner:
    """What makes one sample of the joined ones. Reading it imports nothing.

    Attributes:
        ref: The class or function that a file names; None where the program passed `target` itself.
        is_function: Whether it is called as it is; else it is a sample class whose `from_joined` is called.
        target: The class or function itself.
    """

    ref: ClassRef | None = None
    is_function: bool
    target: Callable[..., Any] | None = None

    def __str__(self) -> str:
        return str(self.ref) if self.ref is not None else repr(self.target)


@dataclass(frozen=True, slots=True)
class JoinerName:
    """`__module__` with `__class__` or `__function__`."""

    def convert(self, value: Any, place: Place) -> Joiner:
        """Read it; from Python, a class or function itself is taken too."""
        if isinstance(value, Joiner):
            return value
        if callable(value):
            return Joiner(target=value, is_function=not isinstance(value, type))
        named = as_mapping(value, place, "a mapping with __module__ and __class__ or __function__")
        for name in named:
            if name not in ("__module__", "__class__", "__function__"):
                raise unknown(place, name, ("__module__", "__class__", "__function__"))
        is_function = "__function__" in named
        if "__module__" not in named or is_function == ("__class__" in named):
            raise wrong(place, "needs `__module__`, and either `__class__` or `__function__`")
        kind = "__function__" if is_function else "__class__"
        module, name = (Text().convert(named[part], place.at(part)) for part in ("__module__", kind))
        return Joiner(ref=ClassRef(module=module, name=name), is_function=is_function)

    def schema(self) -> dict[str, Any]:
        """JSON Schema."""
        text = Text().schema()
        return {
            "type": "object",
            "properties": {"__module__": text, "__class__": text, "__function__": text},
            "required": ["__module__"],
            "oneOf": [{"required": ["__class__"]}, {"required": ["__function__"]}],
            "additionalProperties": False,
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class JoinDatasetReference:
    """A dataset that takes part in a join."""

    path: str = key(PathText(), "A prepared dataset folder, relative to this file.")
    nonmatch: Nonmatch = key(
        _NONMATCH,
        "What happens to a row whose key this dataset lacks: an error, the row is left out, or None takes its place.",
        default="error",
    )
    split_part: str | None = key(Text(), SPLIT_DOC, default=None)
    subflavor: str | None = key(Text(), SUBFLAVOR_DOC, default=None)
    subflavors: Mapping[str, Any] | None = key(Tags(), SUBFLAVORS_DOC, default=None)
    dataset_config: str | None = key(Text(), DATASET_CONFIG_DOC, default=None)
    split_config: str | None = key(Text(), SPLIT_CONFIG_DOC, default=None)
    place: Place | None = dataclasses.field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        check(self)
        fold_subflavor(self)


@dataclass(frozen=True, kw_only=True, slots=True)
class JoinArrayReference:
    """An array that takes part in a join: each of its rows belongs to a sample.

    By row number, a sample gets the row that has its number among all samples of the primary dataset.
    """

    array: str = key(
        PathText(), "The folder of a zarr (v2, v3) or N5 array, relative to this file; its first axis counts rows."
    )
    by: Literal["row", "key"] | None = key(
        Choice(("row", "key")),
        "How rows are found: by the number of the sample in the first dataset, or by its key. Default: by key where "
        "there are `keys`.",
        default=None,
    )
    keys: str | None = key(
        PathText(),
        "A text file with the key of each row of the array, one a line, relative to this file.",
        default=None,
    )
    nonmatch: Nonmatch = key(
        _NONMATCH,
        "What happens to a sample that the array has no row for: an error, the sample is left out, or None takes the "
        "place of the row.",
        default="error",
    )
    field: str | None = key(
        Text(),
        "The field, or part of a crude sample, that the row becomes where no joiner says otherwise. Default: the "
        "argument name, else the name of the array's folder without its ending.",
        default=None,
    )
    place: Place | None = dataclasses.field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        check(self)
        if self.by == "key" and self.keys is None:
            raise wrong(place_of(self).at("by"), "`key` needs `keys`, the file with the key of each row")
        if self.by == "row" and self.keys is not None:
            raise wrong(place_of(self).at("keys"), "rows are found `by: row`, so keys have no meaning; leave one out")


JoinedReference: TypeAlias = JoinDatasetReference | JoinArrayReference

_IGNORED = {
    "shuffle_over_epochs_multiplier": "the rows of a join are shuffled as one; write it at the join",
    "subset": "a range is taken of the rows of a join; write it at the join",
    "aux": "a joined sample has no auxiliary stores",
    "name": "a join is one dataset with one name; write it at the join",
}
"""Keys that Energon reads at a joined dataset and silently ignores. Here only a value without effect passes."""


def meaningless_keys(member: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Give each key of a joined dataset that has no meaning there, and why it has none."""
    for name, reason in _IGNORED.items():
        without_effect = 1 if name == "shuffle_over_epochs_multiplier" else None
        if name in member and member[name] != without_effect:
            yield name, reason


@dataclass(frozen=True, slots=True)
class JoinMembers:
    """A list of joined datasets and arrays, or a mapping of argument names to them. The first is the primary."""

    def convert(self, value: Any, place: Place) -> tuple[JoinedReference, ...] | dict[str, JoinedReference]:
        """Read them."""
        if not isinstance(value, list | tuple | Mapping):
            raise wrong_type(place, "a list of datasets, or a mapping of names to them,", value)
        if not value:
            raise wrong(place, "there is no dataset to join")
        if isinstance(value, Mapping):
            named = as_mapping(value, place, "")
            members = {name: _member(member, place.at(name)) for name, member in named.items()}
            primary, first = next(iter(members.values())), next(iter(members))
        else:
            members = tuple(_member(member, place.at(number)) for number, member in enumerate(value))
            primary, first = members[0], 0
        if isinstance(primary, JoinArrayReference):
            raise wrong(place.at(first), "the first of a join is the primary, a dataset; put the array behind it")
        if primary.nonmatch != "error":
            raise wrong(
                place.at(first, "nonmatch"),
                f"the first dataset of a join is the primary, whose keys are looked up in the others; "
                f"`{primary.nonmatch}` has no meaning there, leave it out",
            )
        return members

    def schema(self) -> dict[str, Any]:
        """JSON Schema."""
        member = {"anyOf": [form_schema(JoinDatasetReference), form_schema(JoinArrayReference)]}
        return {
            "anyOf": [
                {"type": "array", "items": member, "minItems": 1},
                {"type": "object", "additionalProperties": member, "minProperties": 1},
            ]
        }


def _member(value: Any, place: Place) -> JoinedReference:
    if isinstance(value, JoinArrayReference):
        return value
    if isinstance(value, Mapping):
        if "array" in value:
            return build(JoinArrayReference, value, place)
        for name, reason in meaningless_keys(value):
            raise wrong(place.at(name), f"`{name}` has no meaning for one dataset of a join: {reason}")
        value = {name: item for name, item in value.items() if name not in _IGNORED}
    return build(JoinDatasetReference, value, place)


@dataclass(frozen=True, kw_only=True, slots=True)
class MetadatasetJoin:
    """Samples with the same key in several datasets, made into one."""

    join: tuple[JoinedReference, ...] | Mapping[str, JoinedReference] = key(
        JoinMembers(), "The datasets and arrays, in order or by argument name. The first is the primary, a dataset."
    )
    joiner: Joiner | None = key(
        JoinerName(),
        "The sample class whose from_joined makes the joined sample, or the function that does. Default: the fields of "
        "all samples are merged into the primary's.",
        default=None,
    )
    split_part: str | None = key(Text(), SPLIT_DOC, default=None)
    subflavor: str | None = key(Text(), SUBFLAVOR_DOC, default=None)
    subflavors: Mapping[str, Any] | None = key(Tags(), SUBFLAVORS_DOC, default=None)
    shuffle_over_epochs_multiplier: int | None = key(Passes(), PASSES_DOC, default=1, nullable=True)
    subset: Subset | None = key(SubsetRange(), SUBSET_DOC, default=None)
    dataset_config: str | None = key(Text(), DATASET_CONFIG_DOC, default=None)
    split_config: str | None = key(Text(), SPLIT_CONFIG_DOC, default=None)
    name: str | None = key(Text(), NAME_DOC, default=None)
    place: Place | None = dataclasses.field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        check(self)
        fold_subflavor(self)
