"""The forms that combine: `blend:`, `blend_epochized:` and `concat:`, which may contain each other."""

# ruff: noqa: RUF009 (`key` is a field specifier)
from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, TypeAlias, TypeVar

from energon_grain.metadataset.joins import MetadatasetJoin
from energon_grain.metadataset.keys import build, check, form_schema, key, keys_of, place_of
from energon_grain.metadataset.place import Place, as_mapping, unknown, wrong, wrong_type
from energon_grain.metadataset.references import SUBSET_DOC, DatasetReference
from energon_grain.metadataset.subset import Subset
from energon_grain.metadataset.values import Amount, Amounts, Count, SubsetRange

Entry = TypeVar("Entry")


@dataclass(frozen=True, slots=True)
class AnyNode:
    """A node of any form, told apart by the key that only that form has."""

    def convert(self, value: Any, place: Place) -> Node:
        """Read it."""
        return parse_node(value, place)

    def schema(self) -> dict[str, Any]:
        """JSON Schema, by name: forms contain each other."""
        return {"$ref": "#/definitions/node"}


@dataclass(frozen=True, kw_only=True, slots=True)
class BlendEntry:
    """A child of a blend, with its weight."""

    node: Node
    weight: Fraction | None = key(
        Amount("weight"),
        "Share of the stream, relative to the other weights of this blend. Default: 1.",
        default=None,
        nullable=False,
    )
    place: Place | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, kw_only=True, slots=True)
class EpochizedEntry:
    """A child of an epochized blend, with how often its samples are seen in an epoch."""

    node: Node
    repetitions: Fraction = key(
        Amount("repetitions"),
        "How often each sample is seen in an epoch; fractions average out exactly over epochs.",
        default=Fraction(1),
    )
    place: Place | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, slots=True)
class Entries:
    """A list of nodes; an entry may carry the keys of the form `entry`, next to those of its node."""

    entry: type[Any] | None = None

    def convert(self, value: Any, place: Place) -> tuple[Any, ...]:
        """Read them."""
        if not isinstance(value, list | tuple):
            raise wrong_type(place, "a list of datasets", value)
        if not value:
            raise wrong(place, "the list is empty")
        return tuple(self._entry(item, place.at(number)) for number, item in enumerate(value))

    def _entry(self, value: Any, place: Place) -> Any:
        """Read an entry of a mapping; from Python also of a node, or of a pair of a node and its number."""
        if self.entry is None:
            return parse_node(value, place)
        if isinstance(value, self.entry):
            return value
        own = keys_of(self.entry)
        if isinstance(value, tuple):
            if len(value) != 2:
                raise wrong_type(place, f"a node, or a pair of a node and its {next(iter(own))},", value)
            return self.entry(node=parse_node(value[0], place), place=place, **{next(iter(own)): value[1]})
        node = parse_node(value, place, extra=own)
        extra = {name: value[name] for name in own if name in value} if isinstance(value, Mapping) else {}
        for name, item in extra.items():
            own[name].kind.convert(item, place.at(name))
        return self.entry(node=node, place=place, **extra)

    def schema(self) -> dict[str, Any]:
        """JSON Schema, by name."""
        name = "node" if self.entry is None else self.entry.__name__
        return {"type": "array", "items": {"$ref": f"#/definitions/{name}"}, "minItems": 1}


@dataclass(frozen=True, kw_only=True, slots=True)
class ScheduleStep:
    """The weights of a blend from a position on."""

    from_position: int = key(Count(), "First position with these weights, in the stream of the outermost blend.")
    weights: tuple[Fraction, ...] = key(Amounts("weight"), "A weight for each child, in order; 0 pauses a child.")
    place: Place | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, slots=True)
class Steps:
    """A list of schedule steps; from Python, also of pairs (from_position, weights)."""

    def convert(self, value: Any, place: Place) -> tuple[ScheduleStep, ...]:
        """Read them."""
        if not isinstance(value, list | tuple) or not value:
            raise wrong_type(place, "a list of steps with `from_position` and `weights`", value)
        return tuple(
            ScheduleStep(from_position=step[0], weights=step[1], place=place.at(number))
            if isinstance(step, tuple) and len(step) == 2
            else build(ScheduleStep, step, place.at(number))
            for number, step in enumerate(value)
        )

    def schema(self) -> dict[str, Any]:
        """JSON Schema."""
        return {"type": "array", "items": form_schema(ScheduleStep), "minItems": 1}


@dataclass(frozen=True, kw_only=True, slots=True)
class MetadatasetBlend:
    """An endless mixture of datasets by weights."""

    blend: tuple[BlendEntry, ...] = key(Entries(BlendEntry), "The children, each with a `weight`.")
    schedule: tuple[ScheduleStep, ...] | None = key(
        Steps(), "Weights that change along the stream, in place of those of the children.", default=None
    )
    subset: Subset | None = key(SubsetRange(), SUBSET_DOC, default=None)
    place: Place | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        check(self)
        if self.schedule is None:
            return
        place = place_of(self)
        for number, entry in enumerate(self.blend):
            if entry.weight is not None:
                raise wrong(place.at("blend", number, "weight"), "the blend has a `schedule`; its weights go there")
        check_schedule(
            [(step.from_position, step.weights) for step in self.schedule], len(self.blend), place.at("schedule")
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class MetadatasetBlendEpochized:
    """A finite mixture: an epoch has each sample of each dataset as often as its repetitions say."""

    blend_epochized: tuple[EpochizedEntry, ...] = key(
        Entries(EpochizedEntry), "The children, each with its `repetitions`."
    )
    subset: Subset | None = key(SubsetRange(), SUBSET_DOC, default=None)
    place: Place | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, kw_only=True, slots=True)
class MetadatasetConcat:
    """Datasets one after the other."""

    concat: tuple[Node, ...] = key(Entries(), "The children, in order.")
    subset: Subset | None = key(SubsetRange(), SUBSET_DOC, default=None)
    place: Place | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        check(self)


Node: TypeAlias = DatasetReference | MetadatasetBlend | MetadatasetBlendEpochized | MetadatasetConcat | MetadatasetJoin

NODE_FORMS: dict[str, type[Any]] = {
    "path": DatasetReference,
    "blend": MetadatasetBlend,
    "blend_epochized": MetadatasetBlendEpochized,
    "concat": MetadatasetConcat,
    "join": MetadatasetJoin,
}
"""Every form of a node, by the key that tells it apart."""


def parse_node(value: Any, place: Place, *, extra: Collection[str] = ()) -> Node:
    """Read a node of any form. Keys in `extra` belong to the entry that holds the node.

    Raises:
        ConfigError: It has none of the keys that tell forms apart, or two of them, or is wrong further down.
    """
    if isinstance(value, tuple(NODE_FORMS.values())):
        return value
    listed = ", ".join(f"`{name}`" for name in NODE_FORMS)
    mapping = as_mapping(value, place, f"a mapping with one of {listed}")
    found = [name for name in NODE_FORMS if name in mapping]
    if len(found) == 1:
        return build(NODE_FORMS[found[0]], mapping, place, extra=extra)
    if found:
        raise wrong(place, f"has {' and '.join(f'`{name}`' for name in found)}: a node is one of {listed}")
    known = {name for form in NODE_FORMS.values() for name in keys_of(form)} | set(extra)
    for name in mapping:
        if name not in known:
            raise unknown(place, name, [*NODE_FORMS, *sorted(known - set(NODE_FORMS))])
    raise wrong(place, f"needs one of {listed}")


def check_schedule(steps: Sequence[tuple[int, Sequence[Fraction]]], children: int, place: Place) -> None:
    """Check that a schedule begins at 0, ascends, has a weight for each child, and gives each child a turn.

    Raises:
        ConfigError: It does not.
    """
    if steps[0][0] != 0:
        raise wrong(place.at(0, "from_position"), f"the schedule must begin at position 0, not {steps[0][0]}")
    for number, (start, weights) in enumerate(steps):
        if number and start <= steps[number - 1][0]:
            raise wrong(
                place.at(number, "from_position"), f"{start} must be above {steps[number - 1][0]}, the one before"
            )
        if len(weights) != children:
            raise wrong(place.at(number, "weights"), f"has {len(weights)} weights for {children} datasets")
        if min(weights) < 0 or not any(weights):
            raise wrong(place.at(number, "weights"), "must be at least 0, and one of them above 0")
    for child in range(children):
        if not any(weights[child] for _, weights in steps):
            raise wrong(place, f"weight {child} is 0 in every step: that dataset would never be drawn; leave it out")
