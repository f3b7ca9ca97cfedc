# SPDX-License-Identifier: Apache-2.0
"""A blend over the whole run: every child that it ever had, and its weights in each segment.

Children are only ever appended. A child that was removed stays in its place with weight 0, so that the numbers of its
siblings, and with them all random keys and restore keys, stay what they are.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, cast

import numpy as np

from energon_grain.amendments.epochs import amended_epochs
from energon_grain.datasets.dataset import SavableDataset, put
from energon_grain.datasets.leaf import LeafDataset
from energon_grain.datasets.lowering import nodes_below
from energon_grain.datasets.mixtures import BlendDataset, BlendEpochizedDataset, amended_blend
from energon_grain.errors import AmendmentError
from energon_grain.mixture_shares import leaf_count, pass_length
from energon_grain.samplers.weights import Anchor, exact, integer_weights

Start = int | str
"""Where a segment begins: at a position of the blend; "#n", at amendment n; or "~n", the same without new phases."""
Row = list[int | str]
"""A weight for each child, as an integer; or its repetitions, as a fraction in text."""
ALONE = -1
WEIGHTS, REPETITIONS = "weights", "repetitions"
AnyBlend = BlendDataset | BlendEpochizedDataset


@dataclass(slots=True)
class Unit:
    """A child that is no blend: a leaf, or what is combined of leaves in another way.

    Attributes:
        leaves: Keys of its leaves, `/` between their parts.
        rows: The manifest's entry of each leaf, if the configuration of the saved state does not have it, after it was
            removed or added during the run; else None.
        removed: Whether the configuration no longer has it.
        node: Its description, if there is one.
        form: How a manifest describes it, if it is known.
    """

    leaves: tuple[str, ...]
    rows: list[dict[str, Any]] | None = None
    removed: bool = False
    node: SavableDataset | None = None
    form: Any = None

    def names(self) -> Iterator[str]:
        """Keys of its leaves."""
        yield from self.leaves


@dataclass(slots=True)
class Mixture:
    """A blend.

    Attributes:
        segments: The start of each segment, and a weight for each child that existed by then.
        children: In the order in which they were added.
        per_step: Consecutive items that share a choice; 0: each has its own. `ALONE`: there is no blend, and the only
            child is the whole configuration.
        kind: `WEIGHTS`, `REPETITIONS`, or the unit of weights that are shares of costs.
        lengths: Of a blend by repetitions: samples of each child.
        node: Its description.
        anchor: If earlier segments are unknown: where the first of these begins.
        resumed: Where a later segment begins, to make those before it only when they are needed.
    """

    segments: list[tuple[Start, Row]]
    children: list[Unit | Mixture] = field(default_factory=list["Unit | Mixture"])
    per_step: int = 0
    kind: str = WEIGHTS
    lengths: list[int] = field(default_factory=list[int])
    node: SavableDataset | None = None
    anchor: Anchor | None = None
    resumed: Anchor | None = None

    def names(self) -> Iterator[str]:
        """Keys of all leaves below, removed ones too, in document order."""
        for child in self.children:
            yield from child.names()

    @property
    def weights(self) -> Row:
        """Of the last segment, one for each child."""
        last = self.segments[-1][1]
        return [*last, *(0 for _ in self.children[len(last) :])]

    def row(self, weights: Sequence[Any]) -> Row:
        """Weights in the form of a segment."""
        return [str(exact(each)) for each in weights] if self.kind == REPETITIONS else [*integer_weights(weights)]

    def shares(self, row: Row) -> list[float]:
        """Share of each child in the items (or the cost) of a segment."""
        sizes = [float(exact(weight)) for weight in row]
        if self.kind == REPETITIONS:
            sizes = [often * n for often, n in zip(sizes, self.lengths, strict=False)]
        total = sum(sizes) or 1.0
        return [size / total for size in sizes]


def is_blend(node: Any) -> bool:
    """Whether a node of a manifest is a blend."""
    return isinstance(node, Mapping) and ("blend" in node or "blend_epochized" in node)


def described(manifest_mixture: Any, leaves: Mapping[str, Mapping[str, Any]]) -> Mixture | None:
    """The outermost blend as a manifest has it; None: there is none that can be amended."""
    node = manifest_mixture
    while isinstance(node, Mapping) and not is_blend(node):
        node = cast("Mapping[str, Any]", node).get("of", cast("Mapping[str, Any]", node).get("generate"))
    if not isinstance(node, Mapping):
        return None
    blend = cast("Mapping[str, Any]", node)
    if "blend" in blend and "means" not in blend:
        found = _described(blend, iter(leaves))
        return found if isinstance(found, Mixture) else None
    return _of_units(blend, leaves)


def _of_units(blend: Mapping[str, Any], leaves: Mapping[str, Mapping[str, Any]]) -> Mixture:
    """A blend by cost or by repetitions: what is below it stays as it is."""
    names = iter(leaves)
    units = [_unit(child, names) for child in blend["of"]]
    if "blend" in blend:
        weights, starts = blend["blend"]
        segments: list[tuple[Start, Row]] = [(start, list(row)) for start, row in zip(starts, weights, strict=True)]
        return Mixture(segments=segments, children=[*units], kind=blend["unit"])
    lengths = [round(pass_length(unit.form, [leaves[name]["samples"] for name in unit.leaves])) for unit in units]
    repetitions: Row = [*blend["blend_epochized"]]
    return Mixture(segments=[(0, repetitions)], children=[*units], kind=REPETITIONS, lengths=lengths)


def _unit(node: Any, names: Iterator[str]) -> Unit:
    return Unit(tuple(next(names) for _ in range(leaf_count(node))), form=node)


def _described(node: Any, names: Iterator[str]) -> Unit | Mixture:
    if isinstance(node, Mapping) and "blend" in node and "means" not in node:
        blend = cast("Mapping[str, Any]", node)
        weights, starts = blend["blend"]
        return Mixture(
            segments=[(start, list(row)) for start, row in zip(starts, weights, strict=True)],
            children=[_described(child, names) for child in blend["of"]],
            per_step=blend.get("per_step", 0),
        )
    return _unit(node, names)


def whole(names: Iterable[str], node: SavableDataset | None) -> Mixture:
    """A configuration without a blend, in the form of a mixture."""
    return Mixture(segments=[(0, [1])], children=[Unit(tuple(names), node=node)], per_step=ALONE)


def outermost_blend(dataset: SavableDataset) -> AnyBlend:
    """The blend right below what works on the whole stream. Raises AmendmentError if there is none."""
    node: Any = dataset
    while not isinstance(node, AnyBlend):
        below = list(nodes_below(node))
        if len(below) != 1:
            raise AmendmentError(f"{dataset!r} has no blend at its top: only such a mixture can be amended")
        node = below[0]
    return node


def attach(mixture: Mixture, node: AnyBlend) -> None:
    """Give a mixture that a manifest describes, and all below it, the nodes of a description."""
    mixture.node = node
    for child, below in zip(mixture.children, node.datasets, strict=True):
        if isinstance(child, Mixture) and isinstance(below, BlendDataset):
            attach(child, below)
        elif isinstance(child, Mixture):  # under another node, such as a map: it is taken as it is
            mixture.children[mixture.children.index(child)] = Unit(tuple(child.names()), node=below)
        else:
            child.node = below


def amend(old: Mixture, new: Mixture, start: str, position: int) -> bool:
    """Change a mixture to that of a new configuration, from an amendment on; return whether anything changed.

    Args:
        old: The mixture of the run until now; it is changed.
        new: That of the configuration.
        start: "#n" of the amendment.
        position: Of the outermost blend, at which the amendment takes effect.

    Raises:
        AmendmentError: It cannot be amended: what and why, with a way out.
    """
    elsewhere = {name: id(unit) for unit in units(old) for name in unit.leaves}
    return _amend(old, new, start, position, elsewhere, last=True)


def _amend(old: Mixture, new: Mixture, start: str, position: int, elsewhere: Mapping[str, int], *, last: bool) -> bool:
    if old.per_step != new.per_step:
        raise AmendmentError(f"per_step was {old.per_step} and is now {new.per_step}: that cannot be amended")
    check_kind(old, new)
    changed = False
    places: dict[int, int] = {}  # of children of `new` among those of `old`
    for number, child in enumerate(new.children):
        place = _matching(old, child, taken=set(places.values()))
        if place is None:
            _check_addition(old, child, elsewhere, last=last)
            place = len(old.children)
            old.children.append(child)
            old.lengths += new.lengths[number : number + 1]
        places[number] = place
    added = {id(child) for child in new.children}
    _check_same_data(old, places, added)
    for number, place in places.items():
        one, other = old.children[place], new.children[number]
        if id(one) in added:
            continue
        if isinstance(one, Mixture):
            assert isinstance(other, Mixture)
            at_end = last and place == len(old.children) - 1
            changed |= _amend(one, other, start, position, elsewhere, last=at_end)
        else:
            assert isinstance(other, Unit)
            _check_form(one, other)
            one.node, one.removed = other.node, other.removed
    if isinstance(new.node, AnyBlend):
        old.node = new.node
    return take_over(old, new, places, start, position) or changed


def check_kind(old: Mixture, new: Mixture) -> None:
    """Refuse a blend of another kind. Raises AmendmentError."""
    if old.kind != new.kind:
        raise AmendmentError(f"the blend was by {old.kind} and is now by {new.kind}: that cannot be amended")


def _check_form(one: Unit, other: Unit) -> None:
    """Refuse a combination of datasets that changed below the blend."""
    if one.form is not None and other.form is not None and one.form != other.form:
        raise AmendmentError(
            f"{one.leaves[0]}: it is in a combination of datasets that changed from {one.form} to {other.form}, which "
            f"would change their order. Leave it as it was; only the blend above it can be amended"
        )


def _check_same_data(old: Mixture, places: Mapping[int, int], added: set[int]) -> None:
    """Refuse an added leaf that selects other samples from the data of a leaf that is gone."""
    kept = set(places.values())
    drawn = [place for place, weight in enumerate(old.weights) if weight and place not in kept]
    gone = [name for place in drawn for name in old.children[place].names()]
    for node in (child.node for child in old.children if id(child) in added):
        if not isinstance(node, LeafDataset) or node.name is not None:
            continue
        data = "/".join(node.identity[:3]) + "/"
        if any(name.startswith(data) for name in gone):
            raise AmendmentError(
                f"{node.label}: its `where` or `subset` changed, which makes it another dataset in another order, so "
                f"samples would repeat; leave them unchanged"
            )


def take_over(old: Mixture, new: Mixture, places: Mapping[int, int], start: str, position: int) -> bool:
    """Append the segments of the weights of a new blend; return whether they differ from those of the old one.

    Args:
        old: The blend of the run; it is changed.
        new: The same blend in another configuration.
        places: For each child of the new one, the number of the same child in the old one.
        start: "#n" or "~n" of the amendment.
        position: Of the outermost blend, at which the amendment takes effect.

    Raises AmendmentError if all weights are 0.
    """

    def placed(weights: Row) -> Row:
        row: Row = [0] * len(old.children)
        for number, place in places.items():
            row[place] = weights[number]
        return row

    (_, now), *planned = [(begin, placed(row)) for begin, row in new.segments[_in_force(new, position) :]]
    (_, was), *was_planned = old.segments[_in_force(old, position) :]
    padded: Row = [*was, *[0] * (len(now) - len(was))]
    if old.row(padded) == old.row(now) and was_planned == planned:
        return False
    if not any(map(exact, now)):
        raise AmendmentError("all weights are 0 from this step on; give one dataset a weight above 0")
    old.segments += [(start, now), *planned]
    return True


def _in_force(mixture: Mixture, position: int) -> int:
    """Number of the last segment that has started at a position."""
    starts = (start for start, _ in mixture.segments)
    return max(number for number, start in enumerate(starts) if isinstance(start, str) or start <= position)


def units(mixture: Mixture) -> Iterator[Unit]:
    """All children below that are no blends, in document order."""
    for child in mixture.children:
        if isinstance(child, Unit):
            yield child
        else:
            yield from units(child)


def _matching(old: Mixture, child: Unit | Mixture, taken: set[int]) -> int | None:
    """The place of the same child in the old mixture."""
    names = set(child.names())
    for place, other in enumerate(old.children):
        if place in taken or type(other) is not type(child):
            continue
        same = names & set(other.names()) if isinstance(other, Mixture) else list(other.names()) == list(child.names())
        if same:
            return place
    return None


def _check_addition(old: Mixture, child: Unit | Mixture, elsewhere: Mapping[str, int], *, last: bool) -> None:
    moved = [name for name in child.names() if name in elsewhere]
    if moved:
        raise AmendmentError(
            f"{moved[0]}: it is elsewhere in the mixture already, or was combined in another way; moving a dataset "
            f"between blends cannot be amended: change its weight where it is"
        )
    if not last:
        raise AmendmentError(
            f"{next(child.names())}: it was added to a blend that others follow, which would renumber their samples' "
            f"restore keys: add it to the last blend, or to the outermost one"
        )
    del old


def shares(mixture: Mixture, amendment: int, position: int, of: float = 1.0) -> dict[str, float]:
    """Share of each dataset in the whole mixture after an amendment (-1: before the first), by its first leaf's key.

    Args:
        mixture: The mixture.
        amendment: Number of the amendment.
        position: Position of the outermost blend; decides which segment of a schedule applies.
        of: Share of this mixture in the outermost one.
    """
    if mixture.per_step == ALONE:
        return {}
    number = 0
    for place, (start, _) in enumerate(mixture.segments):
        if int(start[1:]) <= amendment if isinstance(start, str) else start <= position:
            number = place
    found: dict[str, float] = {}
    parts = mixture.shares(mixture.segments[number][1])
    for child, part in zip(mixture.children, parts, strict=False):  # others were added later
        share = of * part
        if isinstance(child, Mixture):
            found |= shares(child, amendment, position, share)
        else:
            found[child.leaves[0]] = share
    return found


def note_removed(mixture: Mixture, new: Mixture, rows: Mapping[str, dict[str, Any]]) -> None:
    """Keep the manifest's entries of leaves that a configuration no longer has."""
    kept = set(new.names())
    for unit in units(mixture):
        if not kept.issuperset(unit.leaves):
            unit.node, unit.removed = None, True
            if unit.rows is None:
                unit.rows = [dict(rows.get(name, {})) for name in unit.leaves]


def know(mixture: Mixture, was: Mixture, new: Mixture) -> None:
    """Give a run's mixture what a saved manifest and a configuration know of its datasets: form, node, blends."""
    forms = {unit.leaves: unit.form for unit in units(was)}
    nodes = {unit.leaves: unit.node for unit in units(new)}
    for unit in units(mixture):
        unit.form = forms.get(unit.leaves)
        unit.node = nodes.get(unit.leaves, unit.node)
    join_blends(mixture, new)


def leaf_nodes(node: Any) -> Iterator[Any]:
    """The leaves below a node, in document order."""
    if hasattr(node, "identity"):
        yield node
        return
    for below in nodes_below(node):
        yield from leaf_nodes(below)


def packed(tree: Unit | Mixture) -> list[Any]:
    """A mixture as JSON."""
    if isinstance(tree, Unit):
        return [list(tree.leaves), *([] if tree.rows is None else [tree.rows, int(tree.removed)])]
    more = [tree.lengths] if tree.lengths else []
    if tree.anchor is not None:
        more = [[tree.anchor.number, int(tree.anchor.phases is not None)]]
    kind = tree.per_step if tree.kind == WEIGHTS else tree.kind
    return [kind, list(map(list, tree.segments)), list(map(packed, tree.children)), *more]


def unpacked(value: Any) -> Unit | Mixture:
    """The mixture of `packed`. Raises ValueError, TypeError, LookupError where it is none."""
    if isinstance(value[0], list):
        names, *rest = value
        rows, removed = rest or (None, False)
        return Unit(tuple(map(str, names)), rows=None if rows is None else list(map(dict, rows)), removed=bool(removed))
    return _unpacked_blend(*value)


def _unpacked_blend(kind: Any, segments: Any, children: Any, *more: Any) -> Mixture:
    mixture = Mixture(segments=[], children=list(map(unpacked, children)))
    if isinstance(kind, str):
        mixture.kind = kind
        mixture.lengths = [int(each) for each in (more[0] if more else ())]
    else:
        mixture.per_step = int(kind)
        mixture.anchor = _empty_anchor(*more[0]) if more else None
    number = str if mixture.kind == REPETITIONS else int
    mixture.segments = [(start, [number(weight) for weight in weights]) for start, weights in segments]
    return mixture


def _empty_anchor(number: int, smooth: int) -> Anchor:
    """An anchor that `anchors.take_rows` completes."""
    nothing = np.zeros((0, 0), np.int64)
    phases = nothing.view(np.uint64) if smooth else None
    return Anchor(number=int(number), rounds=nothing, counts=nothing, tail=nothing, phases=phases)


def rebuilt(
    mixture: Mixture, amendment: Callable[[int, bool], Any], removed: Callable[[str, Mapping[str, Any]], SavableDataset]
) -> SavableDataset:
    """The description of a mixture over the whole run.

    Args:
        mixture: With the nodes of a configuration.
        amendment: Makes the start of a segment from the number of an amendment, and whether it is smooth.
        removed: Makes the placeholder of a removed leaf from its key and its entry in the manifest.
    """
    children: list[SavableDataset] = []
    for child in mixture.children:
        if isinstance(child, Mixture):
            children.append(rebuilt(child, amendment, removed))
        elif child.node is not None:
            children.append(child.node)
        elif len(child.leaves) == 1:
            children.append(removed(child.leaves[0], (child.rows or [{}])[0]))
        else:
            raise AmendmentError(
                f"{child.leaves[0]}: a combination of datasets cannot be removed; give it the weight 0"
            )
    schedule: list[tuple[Any, tuple[int | Fraction, ...]]] = [
        (
            amendment(int(start[1:]), start[0] == "~") if isinstance(start, str) else start,
            tuple(map(_number, weights)),
        )
        for start, weights in mixture.segments
    ]
    if isinstance(mixture.node, BlendEpochizedDataset):
        return amended_epochs(mixture.node, tuple(children), tuple(schedule))
    assert isinstance(mixture.node, BlendDataset)
    return amended_blend(mixture.node, tuple(children), _resumed(mixture, schedule))


def _resumed(
    mixture: Mixture, schedule: list[tuple[Any, tuple[int | Fraction, ...]]]
) -> tuple[tuple[Any, tuple[int | Fraction, ...]], ...]:
    """The segments of a mixture with its anchors."""
    if mixture.anchor is not None:
        schedule[0] = mixture.anchor, schedule[0][1]
    if mixture.resumed is not None:
        known = mixture.resumed.number - (0 if mixture.anchor is None else mixture.anchor.number)
        earlier, schedule = schedule[:known], schedule[known:]
        schedule[0] = dataclasses.replace(mixture.resumed, earlier=earlier), schedule[0][1]
    return tuple(schedule)


def _number(weight: int | str) -> int | Fraction:
    return exact(weight) if isinstance(weight, str) else weight


def replaced(dataset: SavableDataset, blend: SavableDataset) -> SavableDataset:
    """A description with another outermost blend."""
    if isinstance(dataset, AnyBlend):
        return blend
    (name,) = (
        each.name for each in dataclasses.fields(dataset) if isinstance(getattr(dataset, each.name), SavableDataset)
    )
    changed = copy.copy(dataset)
    put(changed, **{name: replaced(getattr(dataset, name), blend)})
    return changed


def join_blends(mixture: Mixture, new: Mixture) -> None:
    """Give each blend of a run's mixture the node of the configuration's."""
    mixture.node = new.node
    for child in mixture.children:
        if isinstance(child, Mixture):
            names = set(child.names())
            same = (each for each in new.children if isinstance(each, Mixture) and names & set(each.names()))
            join_blends(child, next(same, new))
