# SPDX-License-Identifier: Apache-2.0
"""The forms of metadataset nodes: `path:`, `blend:`, `blend_epochized:`, `concat:` and `join:`.

Each form is a struct whose fields are its keys; its own key identifies it. `read_node` parses a node with everything
inside it. The same structs define the JSON Schema.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from typing import Annotated, Any, NamedTuple, TypeAlias, TypeVar

import msgspec

from energon_grain.cooking.aux_stores import read_aux
from energon_grain.errors import ConfigError
from energon_grain.formats.class_ref import ClassRef
from energon_grain.formats.data_files import one_text
from energon_grain.formats.yaml_dialect import WrittenFloat
from energon_grain.forms import Form, Place, as_mapping, expected, unknown, wrong
from energon_grain.kinds.joins.leaf import Joiner
from energon_grain.samplers.expression import Expression
from energon_grain.samplers.split_ratio import SplitRatio
from energon_grain.samplers.subset import PERCENT, Subset
from energon_grain.samplers.weights import exact
from energon_grain.storage.location import check_url

NODE_KEYS = ("path", "blend", "blend_epochized", "concat", "join")
"""The keys that identify the forms of nodes."""


class PathText(str):
    """A path or URL as text, or a list of tars as one text; from Python, also path objects."""

    __slots__ = ()


class Passes(int):
    """Number of passes over a dataset that are shuffled together: 1 or more, or -1 to draw with replacement."""

    __slots__ = ()


def passes_of(value: Any) -> int | None:
    """Check a number of passes that are shuffled together; None disables shuffling. Raises ConfigError."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigError(expected("a whole number", value))
    if value < 1 and value != -1:
        raise ConfigError(f"expected 1 or more, or -1 to draw with replacement, got {value}")
    return int(value)


def _amount(value: Any) -> Fraction:
    """Return an exact number of at least 0: the fraction of its decimal text."""
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal | Fraction):
        raise ConfigError(expected("a number", value))
    text = value.text if isinstance(value, WrittenFloat) else str(value)
    if not isinstance(value, int | Fraction) and not (math.isfinite(value) and _is_usable(text)):
        raise ConfigError(f"{text} is not a usable number")
    if value < 0:
        raise ConfigError(f"{text} is negative: it must be above 0")
    return exact(value.text if isinstance(value, WrittenFloat) else value)


def _is_usable(text: str) -> bool:
    try:
        number = Decimal(text)
    except InvalidOperation:  # an exponent of 20 digits
        return False
    return not number or abs(number.adjusted()) < 400


def _convert(kind: Any, value: Any) -> Any:
    """Convert a value to one of this module's types, for msgspec."""
    if isinstance(value, kind):
        return value
    if kind is Fraction:
        return _amount(value)
    if kind is Passes:
        return Passes(passes_of(value))  # type: ignore[arg-type]
    if kind is SplitRatio:
        return SplitRatio(value)
    assert kind is PathText
    if isinstance(value, list | tuple):
        value = one_text(value)
    text = os.fspath(value) if isinstance(value, os.PathLike) else value
    if not isinstance(text, str):
        raise ConfigError(expected("text", value))
    if not text:
        raise ConfigError("the text is empty")
    return PathText(check_url(text))


def _schema_of(kind: Any) -> dict[str, Any]:
    if kind is PathText:
        return _TEXT
    if kind is SplitRatio:
        numbers = {"type": "number", "minimum": 0}
        ratios = [{"type": "object", "additionalProperties": numbers}, {"type": "array", "items": numbers}, _TEXT]
        return {"anyOf": [*ratios, {"type": "null"}]}
    if kind is Fraction:
        return {"type": "number"}
    assert kind is Passes
    return {"anyOf": [{"type": "integer", "minimum": 1}, {"const": -1}, {"type": "null"}]}


def _doc(description: str, **schema: Any) -> msgspec.Meta:
    return msgspec.Meta(description=description, extra_json_schema=schema or None)


def _form(description: str, properties: dict[str, Any], *required: str, **more: Any) -> dict[str, Any]:
    """Return the schema of a mapping that is parsed by hand."""
    described = {"description": description} if description else {}
    return {
        "type": "object",
        **described,
        "properties": properties,
        "required": list(required),
        **more,
        "additionalProperties": False,
    }


_TEXT = {"type": "string", "minLength": 1}
Text: TypeAlias = Annotated[str, msgspec.Meta(min_length=1)]
SplitPart: TypeAlias = Annotated[
    Text | None,
    _doc("The split part to read, or the split of a nested metadataset. Default: the split that is being loaded."),
]
DatasetConfigName: TypeAlias = Annotated[
    Text | None, _doc("Name of another dataset.yaml in the dataset's .nv-meta folder.")
]
SplitConfigName: TypeAlias = Annotated[
    Text | None, _doc("Name of another split.yaml in the dataset's .nv-meta folder.")
]
PassesShuffled: TypeAlias = Annotated[
    Passes | None,
    _doc("Passes shuffled together; -1 draws with replacement, null keeps the order. Multiplied over levels."),
]
Name: TypeAlias = Annotated[
    Text | None,
    _doc("Identity of this dataset in the random order: its path and subset may change without changing the order."),
]
_NUMBER, _PERCENT = {"type": "integer", "minimum": 0}, {"type": "string", "pattern": f"^{PERCENT}$"}
_PAIR = {"type": "array", "minItems": 2, "maxItems": 2}
_BOUNDS = [
    {**_PAIR, "items": [_NUMBER, {"anyOf": [_NUMBER, {"const": "end"}]}]},
    {**_PAIR, "items": [_PERCENT, _PERCENT]},
]
Range: TypeAlias = Annotated[
    Any,  # a `Subset` once parsed
    _doc(
        "A range of the samples: numbers for a single dataset, percentages at every level.",
        anyOf=[{"anyOf": [_form("", {"range": {"anyOf": _BOUNDS}}, "range"), *_BOUNDS]}, {"type": "null"}],
    ),
]
Where: TypeAlias = Annotated[
    Any,  # an `Expression` once parsed
    _doc(
        "A condition on columns, such as `tokens >= 16 and width * height > 65536`. Other samples are left out. "
        "Conditions of outer levels are joined with `and`.",
        anyOf=[_TEXT, {"type": "null"}],
    ),
]
DatasetPath: TypeAlias = Annotated[
    PathText,
    _doc(
        "A dataset folder, prepared or of tars; tars by name or pattern, or a list of them; a .jsonl file; or another "
        "metadataset (.yaml). Relative to this file."
    ),
]


class Node(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A form of a node, or a part of one, with its position."""

    place: Place | None = None

    @property
    def at(self) -> Place:
        """Its position in the document."""
        assert self.place is not None  # set by the reader
        return self.place


N = TypeVar("N", bound=Node)


class _Tagged(Node, frozen=True, kw_only=True):
    """Common keys of datasets and joins."""

    split_part: SplitPart = None
    subflavor: Annotated[Text | None, _doc("Older form of `subflavors: {__subflavor__: …}`.")] = None
    subflavors: Annotated[dict[str, Any] | None, _doc("Tags for every sample. Outer references override them.")] = None
    dataset_config: DatasetConfigName = None
    split_config: SplitConfigName = None

    @property
    def tags(self) -> dict[str, Any]:
        """`subflavors`, with the older `subflavor` unless they already contain it."""
        older = {} if self.subflavor is None else {"__subflavor__": self.subflavor}
        return plain({**older, **(self.subflavors or {})})


_AUX: list[dict[str, Any]] = [
    {"description": "A prepared dataset, or filesystem://folder.", **_TEXT},
    _form(
        "A prepared dataset as auxiliary store.",
        {"path": {"description": "A prepared dataset folder, relative to this file.", **_TEXT}},
        "path",
    ),
    _form(
        "A folder of files as auxiliary store.",
        {"fs_path": {"description": "A folder of files, relative to this file.", **_TEXT}},
        "fs_path",
    ),
]


class DatasetReference(_Tagged, frozen=True, kw_only=True):
    """A dataset, or the split of another metadataset, by its path."""

    path: DatasetPath
    shuffle_over_epochs_multiplier: PassesShuffled = 1  # type: ignore[assignment]
    aux: Annotated[
        Annotated[dict[str, Any], msgspec.Meta(extra_json_schema={"additionalProperties": {"anyOf": _AUX}})] | None,
        _doc("Auxiliary stores for the cookers of a crude dataset."),
    ] = None
    subset: Range = None
    where: Where = None
    split_ratio: Annotated[
        SplitRatio | None,
        _doc("Split of data without a split file: a share for each split part, such as {train: 0.9, val: 0.1}."),
    ] = None
    name: Name = None


class WeightedReference(_Tagged, frozen=True, kw_only=True):
    """A weighted dataset of the older form."""

    path: DatasetPath
    weight: Annotated[
        Fraction | msgspec.UnsetType, _doc("Share of the stream, relative to the other weights.", exclusiveMinimum=0)
    ] = msgspec.UNSET
    shuffle_over_epochs_multiplier: PassesShuffled = 1  # type: ignore[assignment]
    name: Name = None


class BlendEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The key that a blend adds to its child nodes."""

    weight: Annotated[
        Fraction | msgspec.UnsetType,
        _doc("Share of the stream, relative to the other weights of this blend. Default: 1.", exclusiveMinimum=0),
    ] = msgspec.UNSET


class EpochizedEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The key that an epochized blend adds to its child nodes."""

    repetitions: Annotated[
        Fraction | msgspec.UnsetType,
        _doc(
            "Occurrences of each sample in an epoch; fractions average out exactly over epochs.",
            exclusiveMinimum=0,
        ),
    ] = msgspec.UNSET


class ScheduleStep(Node, frozen=True, kw_only=True):
    """The weights of a blend from a position on."""

    from_position: Annotated[
        int, msgspec.Meta(ge=0), _doc("First position with these weights, in the stream of the outermost blend.")
    ]
    weights: Annotated[
        list[Annotated[Fraction, msgspec.Meta(extra_json_schema={"minimum": 0})]],
        msgspec.Meta(min_length=1),
        _doc("One weight per child, in order; 0 pauses a child."),
    ]


STEP = Form(ScheduleStep, _convert)


def _children(entry: str) -> dict[str, Any]:
    return {"items": {"$ref": f"#/definitions/{entry}"}}


class Child(NamedTuple):
    """A child of a blend: a node with its weight or its repetitions; None: the number is not written."""

    node: Node
    number: Fraction | None


class MetadatasetBlend(Node, frozen=True, kw_only=True):
    """An endless mixture of datasets by weights."""

    blend: Annotated[
        tuple[Any, ...],
        msgspec.Meta(min_length=1),
        _doc("The children, each with a `weight`.", **_children("BlendEntry")),
    ]
    schedule: Annotated[
        Annotated[tuple[Any, ...], msgspec.Meta(min_length=1, extra_json_schema={"items": STEP.schema(_schema_of)})]
        | None,
        _doc("Weights that change along the stream. They replace the weights of the children."),
    ] = None
    weight_unit: Annotated[
        str | None,
        _doc("Unit of the shares: a column, such as `tokens`, or arithmetic of columns. Default: samples."),
    ] = None
    subset: Range = None
    where: Where = None


class MetadatasetBlendEpochized(Node, frozen=True, kw_only=True):
    """A finite mixture: an epoch contains each sample of each dataset as often as its repetitions."""

    blend_epochized: Annotated[
        tuple[Any, ...],
        msgspec.Meta(min_length=1),
        _doc("The children, each with its `repetitions`.", **_children("EpochizedEntry")),
    ]
    subset: Range = None
    where: Where = None


class MetadatasetConcat(Node, frozen=True, kw_only=True):
    """Concatenated datasets."""

    concat: Annotated[tuple[Any, ...], msgspec.Meta(min_length=1), _doc("The children, in order.", **_children("node"))]
    subset: Range = None
    where: Where = None


_NONMATCH, _BY = ["error", "skip", "none"], ["row", "key"]


class JoinDatasetReference(_Tagged, frozen=True, kw_only=True):
    """A dataset in a join."""

    path: Annotated[
        PathText,
        _doc(
            "A dataset folder, prepared or of tars, or files of another kind that are read directly. Relative to this "
            "file."
        ),
    ]
    by: Annotated[
        Any,
        _doc(
            "How samples of unprepared files are matched: by key, or by their number in the first dataset.",
            enum=_BY,
        ),
    ] = "key"
    keys: Annotated[
        Text | None,
        _doc("The key column of Parquet, Arrow and MDS files. Default: the keys of the samples."),
    ] = None
    nonmatch: Annotated[
        Any,
        _doc(
            "Handling of a row whose key is missing in this dataset: raise an error, skip the row, or use None.",
            enum=_NONMATCH,
        ),
    ] = "error"


class JoinArrayReference(Node, frozen=True, kw_only=True):
    """An array in a join: each of its rows belongs to a sample.

    By row number, a sample is matched with the row of its number among all samples of the primary dataset.
    """

    array: Annotated[
        PathText, _doc("The folder of a zarr (v2, v3) or N5 array, relative to this file; its first axis counts rows.")
    ]
    by: Annotated[
        Any,
        _doc(
            "How rows are matched: by the number of the sample in the first dataset, or by its key. Default: by key "
            "if `keys` is set.",
            anyOf=[{"enum": _BY}, {"type": "null"}],
        ),
    ] = None
    keys: Annotated[
        PathText | None,
        _doc("A text file with the key of each row of the array, one per line, relative to this file."),
    ] = None
    nonmatch: Annotated[
        Any,
        _doc(
            "Handling of a sample without a row in the array: raise an error, skip the sample, or use None.",
            enum=_NONMATCH,
        ),
    ] = "error"
    field: Annotated[
        Text | None,
        _doc(
            "The field, or part of a crude sample, for the row, unless a joiner decides. Default: the argument name, "
            "or the name of the array's folder without its extension."
        ),
    ] = None


JOINED_DATASET, JOINED_ARRAY = Form(JoinDatasetReference, _convert), Form(JoinArrayReference, _convert)
_JOINED = {"anyOf": [JOINED_DATASET.schema(_schema_of), JOINED_ARRAY.schema(_schema_of)]}
_JOINER_KEYS = ("__module__", "__class__", "__function__")


class MetadatasetJoin(_Tagged, frozen=True, kw_only=True):
    """Samples of several datasets with the same key, joined into one."""

    join: Annotated[
        Any,
        _doc(
            "The datasets and arrays, in order or by argument name. The first is the primary, a dataset.",
            anyOf=[
                {"type": "array", "items": _JOINED, "minItems": 1},
                {"type": "object", "additionalProperties": _JOINED, "minProperties": 1},
            ],
        ),
    ]
    joiner: Annotated[
        Any,
        _doc(
            "The sample class whose from_joined makes the joined sample, or a function that does. Default: the fields "
            "of all samples are merged into the primary sample.",
            anyOf=[
                _form(
                    "",
                    dict.fromkeys(_JOINER_KEYS, _TEXT),
                    "__module__",
                    oneOf=[{"required": ["__class__"]}, {"required": ["__function__"]}],
                ),
                {"type": "null"},
            ],
        ),
    ] = None
    shuffle_over_epochs_multiplier: PassesShuffled = 1  # type: ignore[assignment]
    subset: Range = None
    where: Where = None
    name: Name = None


OLDER = Form(WeightedReference, _convert)
_BLEND_ENTRY, _EPOCHIZED_ENTRY = Form(BlendEntry, _convert), Form(EpochizedEntry, _convert)
_REFERENCE = Form(DatasetReference, _convert)
_BLEND, _BLEND_EPOCHIZED = Form(MetadatasetBlend, _convert), Form(MetadatasetBlendEpochized, _convert)
_CONCAT, _JOIN = Form(MetadatasetConcat, _convert), Form(MetadatasetJoin, _convert)
_FORMS: dict[str, Form[Any]] = dict(zip(NODE_KEYS, (_REFERENCE, _BLEND, _BLEND_EPOCHIZED, _CONCAT, _JOIN), strict=True))


def read_node(value: Any, place: Place, *, extra: Collection[str] = ()) -> Node:
    """Parse a node of any form, with everything inside it. Keys in `extra` belong to the parent of the node.

    Raises ConfigError.
    """
    if isinstance(value, Node):
        return value
    listed = ", ".join(f"`{key}`" for key in NODE_KEYS)
    mapping = as_mapping(value, place, f"a mapping with one of {listed}")
    found = [key for key in NODE_KEYS if key in mapping]
    if not found:
        raise _no_node(mapping, place, extra, listed)
    if len(found) > 1:
        raise wrong(place, f"has {' and '.join(f'`{key}`' for key in found)}: a node must have only one of {listed}")
    node = _FORMS[found[0]].read(mapping, place, extra=extra)
    if node.subset is not None:
        try:
            _put(node, subset=Subset.parse(node.subset))
        except ConfigError as error:
            raise wrong(place.at("subset"), str(error)) from None
    if node.where is not None:
        _put(node, where=Expression.parse(node.where, where=str(place.at("where"))))
    _READ_INSIDE[type(node)](node, place)
    return node


def _no_node(mapping: Mapping[str, Any], place: Place, extra: Collection[str], listed: str) -> ConfigError:
    known = {key for form in _FORMS.values() for key in form.keys} - set(NODE_KEYS)
    for key in mapping:
        if key not in known and key not in extra:
            return unknown(place, key, [*NODE_KEYS, *sorted({*known, *extra})])
    return wrong(place, f"the node needs one of {listed}")


def _read_reference(node: DatasetReference, place: Place) -> None:
    if node.aux is not None:
        stores = as_mapping(node.aux, place.at("aux"), "a mapping of names to auxiliary stores")
        _put(node, aux={name: read_aux(store, place.at("aux", name)) for name, store in stores.items()})


def _read_blend(node: MetadatasetBlend, place: Place) -> None:
    _put(node, blend=_entries(node.blend, place.at("blend"), _BLEND_ENTRY))
    if node.schedule is not None:
        at = place.at("schedule")
        _put(node, schedule=tuple(STEP.read(step, at.at(number)) for number, step in enumerate(node.schedule)))
        _check_schedule(node)
    if node.weight_unit is not None:
        Expression.parse(node.weight_unit, where=str(place.at("weight_unit")))


def _read_epochized(node: MetadatasetBlendEpochized, place: Place) -> None:
    _put(node, blend_epochized=_entries(node.blend_epochized, place.at("blend_epochized"), _EPOCHIZED_ENTRY))


def _read_concat(node: MetadatasetConcat, place: Place) -> None:
    children = enumerate(node.concat)
    _put(node, concat=tuple(read_node(child, place.at("concat", number)) for number, child in children))


def _read_join(node: MetadatasetJoin, place: Place) -> None:
    _put(node, join=_joined(node.join, place.at("join")))
    if node.joiner is not None:
        _put(node, joiner=_joiner(node.joiner, place.at("joiner")))


_READ_INSIDE: dict[type[Node], Callable[[Any, Place], None]] = {
    DatasetReference: _read_reference,
    MetadatasetBlend: _read_blend,
    MetadatasetBlendEpochized: _read_epochized,
    MetadatasetConcat: _read_concat,
    MetadatasetJoin: _read_join,
}


def _put(node: Node, **fields: Any) -> None:
    """Replace the written content of a node by the parsed content."""
    for name, value in fields.items():
        msgspec.structs.force_setattr(node, name, value)


def _entries(values: Sequence[Any], place: Place, form: Form[Any]) -> tuple[Child, ...]:
    """Return the children of a blend; each may have the key of `form` in addition to those of its node."""
    [key] = form.keys
    children: list[Child] = []
    for number, value in enumerate(values):
        at = place.at(number)
        node = read_node(value, at, extra=form.keys)
        entry = form.read({} if node is value or key not in value else {key: value[key]}, at)
        amount = getattr(entry, key)
        if amount == 0:
            raise wrong(at.at(key), f"{key} 0: it must be above 0; to exclude the dataset, remove it")
        children.append(Child(node, None if amount is msgspec.UNSET else amount))
    return tuple(children)


_LAST_POSITION = 1 << 62


def _check_position(position: int, before: int, at: Place) -> None:
    if before < 0 and position:
        raise wrong(at, f"the schedule must start at position 0, got {position}")
    if position <= before:
        raise wrong(at, f"positions must ascend: {position} follows {before}")
    if position > _LAST_POSITION:
        raise wrong(at, f"{position} is above the limit of 2**62")


def _check_schedule(node: MetadatasetBlend) -> None:
    """Check that a schedule starts at 0, ascends, has one weight per child, and uses each child."""
    place, steps = node.at, node.schedule or ()
    for number, child in enumerate(node.blend):
        if child.number is not None:
            raise wrong(place.at("blend", number, "weight"), "the blend has a `schedule`: write the weights there")
    before = -1
    for step in steps:
        _check_position(step.from_position, before, step.at.at("from_position"))
        before = step.from_position
        if len(step.weights) != len(node.blend):
            raise wrong(
                step.at.at("weights"), f"expected {len(node.blend)} weights, one per dataset, got {len(step.weights)}"
            )
        if not any(step.weights):
            raise wrong(step.at.at("weights"), "at least one weight must be above 0")
    for child in range(len(node.blend)):
        if not any(step.weights[child] for step in steps):
            raise wrong(
                place.at("schedule"),
                f"weight {child} is 0 in every step, so its dataset is never used: remove it",
            )


Joined: TypeAlias = tuple[str | None, JoinDatasetReference | JoinArrayReference]
"""The argument name of a join member, if it has one, and the member."""


def _joined(value: Any, place: Place) -> tuple[Joined, ...]:
    """Parse the members of a join, which are listed or named."""
    if not isinstance(value, list | tuple | Mapping):
        raise wrong(place, expected("a list of datasets, or a mapping of names to them", value))
    if not value:
        raise wrong(place, "got no dataset to join, expected at least one")
    if isinstance(value, Mapping):
        named: list[tuple[str | int, Any]] = list(as_mapping(value, place, "").items())
    else:
        named = list(enumerate(value))
    members = tuple((name if isinstance(name, str) else None, _member(each, place.at(name))) for name, each in named)
    primary = members[0][1]
    if isinstance(primary, JoinArrayReference):
        raise wrong(primary.at, "the first member of a join must be a dataset: move the array behind it")
    if primary.nonmatch != "error":
        raise wrong(
            primary.at.at("nonmatch"),
            f"`{primary.nonmatch}` has no effect on the first dataset of a join, the primary, whose keys are looked up "
            f"in the others: remove it",
        )
    return members


_IGNORED = {
    "shuffle_over_epochs_multiplier": "the rows of a join are shuffled together; write it at the join",
    "subset": "a range applies to the rows of a join; write it at the join",
    "aux": "a joined sample has no auxiliary stores; remove it",
    "name": "a join is one dataset with one name; write it at the join",
}
"""Keys that Energon accepts at a joined dataset and ignores. This library accepts only values without effect."""


def _joined_dataset(mapping: Mapping[str, Any], place: Place) -> JoinDatasetReference:
    for name, reason in _IGNORED.items():
        without_effect = 1 if name == "shuffle_over_epochs_multiplier" else None
        if name in mapping and mapping[name] != without_effect:
            raise wrong(place.at(name), f"`{name}` has no meaning for one dataset of a join: {reason}")
    dataset = JOINED_DATASET.read({key: each for key, each in mapping.items() if key not in _IGNORED}, place)
    if _choose(dataset, "by", _BY).by == "row" and dataset.keys is not None:
        raise wrong(place.at("keys"), "`keys` has no effect with `by: row`: remove one of them")
    return _choose(dataset, "nonmatch", _NONMATCH)


def _member(value: Any, place: Place) -> JoinDatasetReference | JoinArrayReference:
    mapping = as_mapping(value, place, f"a mapping with {', '.join(JOINED_DATASET.keys)}")
    if "array" not in mapping:
        return _joined_dataset(mapping, place)
    array = _choose(JOINED_ARRAY.read(mapping, place), "nonmatch", _NONMATCH)
    if array.by is not None:
        _choose(array, "by", _BY)
    if array.by == "key" and array.keys is None:
        raise wrong(place.at("by"), "`key` needs `keys`, the file with the key of each row: add it")
    if array.by == "row" and array.keys is not None:
        raise wrong(place.at("keys"), "`keys` has no effect with `by: row`: remove one of them")
    return array


def _choose(member: N, key: str, words: Sequence[str]) -> N:
    if getattr(member, key) not in words:
        raise wrong(member.at.at(key), expected(f"one of {', '.join(words)}", getattr(member, key)))
    return member


def _joiner(value: Any, place: Place) -> Joiner:
    """Parse `__module__` with `__class__` or `__function__`; from Python, also a class or function."""
    if callable(value):
        return Joiner(target=value, is_function=not isinstance(value, type))
    named = as_mapping(value, place, "a mapping with __module__ and __class__ or __function__")
    for key, text in named.items():
        if key not in _JOINER_KEYS:
            raise unknown(place, key, _JOINER_KEYS)
        if not isinstance(text, str) or not text:
            raise wrong(place.at(key), expected("text", text))
    is_function = "__function__" in named
    if "__module__" not in named or is_function == ("__class__" in named):
        raise wrong(place, "needs `__module__`, and either `__class__` or `__function__`")
    name = named["__function__" if is_function else "__class__"]
    return Joiner(ref=ClassRef(module=named["__module__"], name=name), is_function=is_function)


def plain(value: Any) -> Any:
    """Copy a free value, without this library's number types."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return float(value) if isinstance(value, WrittenFloat) else value


def node_schemas() -> dict[str, Any]:
    """Return the JSON Schema definitions of metadatasets: nodes, and nodes as children of blends."""
    forms = [form.schema(_schema_of) for form in _FORMS.values()]
    entries = {
        entry.of.__name__: [
            {**form, "properties": {**form["properties"], **entry.schema(_schema_of)["properties"]}} for form in forms
        ]
        for entry in (_BLEND_ENTRY, _EPOCHIZED_ENTRY)
    }
    return {name: {"oneOf": schemas} for name, schemas in {"node": forms, **entries}.items()}


def older_schema() -> dict[str, Any]:
    """Return the JSON Schema of a dataset in the older form of metadatasets."""
    return OLDER.schema(_schema_of)
