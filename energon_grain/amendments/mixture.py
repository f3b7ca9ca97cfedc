# SPDX-License-Identifier: Apache-2.0
"""A blend over the whole run: every child that it ever had, and its weights in each segment.

Children are only ever appended. A child that was removed stays in its place with weight 0, so that the numbers of its
siblings, and with them all random keys and restore keys, stay what they are. A dataset that moves to another blend
stays in its old place too, and continues in a new one; both have the same leaves.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from energon_grain.datasets.dataset import SavableDataset, put
from energon_grain.datasets.lowering import nodes_below
from energon_grain.datasets.mixtures import BlendDataset, BlendEpochizedDataset
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
Taken = dict[int, npt.NDArray[np.int64]]
"""Rounds that each lane had taken, (L,), by amendment; 0 in lanes of other hosts that this host does not know."""
_IN_LANES = ("filter", "pack", "group", "batch", "generate", "iter_map")
"""Operations, as a manifest names them, whose items are not positions."""


@dataclass(slots=True, eq=False)
class Unit:
    """A child that is no blend: a leaf, or what is combined of leaves in another way.

    Attributes:
        leaves: Keys of its leaves in this run, `/` between their parts.
        rows: The manifest's entry of each leaf, if the configuration of the saved state does not have it, after it was
            removed or added during the run; else None.
        removed: Whether the configuration no longer has it.
        node: Its description, if there is one.
        number: Number of its first leaf. Those of the others follow.
        since: The amendment at which it took over from the unit with the same leaves elsewhere; None: from none.
        opened: Keys of its leaves in the configuration.
        form: How a manifest describes it, if it is known.
        in_lanes: Whether its items are not positions, because it filters, groups, packs or generates.
        taken: Rounds of its lanes, if they are in a state of their own.
    """

    leaves: tuple[str, ...]
    rows: list[dict[str, Any]] | None = None
    removed: bool = False
    node: SavableDataset | None = None
    number: int = -1
    since: int | None = None
    opened: tuple[str, ...] = ()
    form: Any = None
    in_lanes: bool = False
    taken: Taken = field(default_factory=Taken)

    def names(self) -> Iterator[str]:
        """Keys of its leaves."""
        yield from self.leaves


@dataclass(slots=True, eq=False)
class Mixture:
    """A blend.

    Attributes:
        segments: The start of each segment, and a weight for each child that existed by then.
        children: In the order in which they were added.
        per_step: Consecutive items that share a choice; 0: each has its own. `ALONE`: there is no blend, and the only
            child is the whole configuration.
        kind: `WEIGHTS`, `REPETITIONS`, or the unit of weights that are shares of costs.
        lengths: Of a blend by repetitions: samples of each child.
        node: Its description, below those in `above`.
        above: The outermost description between it and the blend above, such as a map; None: there is none.
        anchor: If earlier segments are unknown: where the first of these begins.
        resumed: Where a later segment begins, to make those before it only when they are needed.
        taken: Rounds of its lanes, if they are in a state of their own.
    """

    segments: list[tuple[Start, Row]]
    children: list[Unit | Mixture] = field(default_factory=list["Unit | Mixture"])
    per_step: int = 0
    kind: str = WEIGHTS
    lengths: list[int] = field(default_factory=list[int])
    node: AnyBlend | None = None
    above: SavableDataset | None = None
    anchor: Anchor | None = None
    resumed: Anchor | None = None
    taken: Taken = field(default_factory=Taken)

    def names(self) -> Iterator[str]:
        """Keys of all leaves below, removed ones too, in document order."""
        for child in self.children:
            yield from child.names()

    @property
    def weights(self) -> Row:
        """Of the last segment, one for each child."""
        last = self.segments[-1][1]
        return [*last, *(0 for _ in self.children[len(last) :])]

    @property
    def in_lanes(self) -> bool:
        """Whether it counts items, not positions, because something below filters, groups, packs or generates."""
        return any(unit.in_lanes for unit in units(self))

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
        return _numbered(found) if isinstance(found, Mixture) else None
    return _numbered(_of_units(blend, leaves))


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


def _numbered(mixture: Mixture) -> Mixture:
    number_leaves(mixture)
    return mixture


def _unit(node: Any, names: Iterator[str]) -> Unit:
    return Unit(tuple(next(names) for _ in range(leaf_count(node))), form=node, in_lanes=_forms_items(node))


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
    leaves = tuple(names)
    return _numbered(Mixture(segments=[(0, [1])], children=[Unit(leaves, node=node, opened=leaves)], per_step=ALONE))


def _forms_items(node: Any) -> bool:
    """Whether the items of a node of a manifest's mixture are not positions."""
    if not isinstance(node, Mapping):
        return False
    entry = cast("Mapping[str, Any]", node)
    below = entry.get("of", entry.get("generate"))
    parts = cast("list[Any]", below) if isinstance(below, list) else [below]
    return any(name in entry for name in _IN_LANES) or any(map(_forms_items, parts))


def number_leaves(mixture: Mixture) -> None:
    """Number the leaves that have no number yet, in document order, behind all others."""
    found = list(units(mixture))
    number = max((unit.number + len(unit.leaves) for unit in found if unit.number >= 0), default=0)
    for unit in found:
        if unit.number < 0:
            unit.number, number = number, number + len(unit.leaves)


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
        if isinstance(child, Mixture):
            child.above = None if isinstance(below, AnyBlend) else below
            attach(child, outermost_blend(below))
        else:
            child.node, child.opened = below, child.leaves


def units(mixture: Mixture) -> Iterator[Unit]:
    """All children below that are no blends, in document order."""
    for child in mixture.children:
        if isinstance(child, Unit):
            yield child
        else:
            yield from units(child)


def names_by_number(chosen: Iterable[Unit]) -> dict[int, str]:
    """The keys of the leaves of some units, by number."""
    return {unit.number + at: name for unit in chosen for at, name in enumerate(unit.leaves)}


def drawn(mixture: Mixture) -> Iterator[Unit]:
    """The units that are drawn from: all weights above them are not 0."""
    for child, weight in zip(mixture.children, mixture.weights, strict=True):
        if exact(weight):
            yield from [child] if isinstance(child, Unit) else drawn(child)


def blends(mixture: Mixture) -> Iterator[Mixture]:
    """A mixture and all blends below it, in document order."""
    yield mixture
    for child in mixture.children:
        if isinstance(child, Mixture):
            yield from blends(child)


def holders(mixture: Mixture) -> dict[int, list[Unit]]:
    """The units that have had the same leaves, by the number of the first leaf: the present one is the last."""
    found: dict[int, list[Unit]] = {}
    for unit in sorted(units(mixture), key=lambda unit: -1 if unit.since is None else unit.since):
        found.setdefault(unit.number, []).append(unit)
    return found


def own_states(mixture: Mixture) -> Iterator[Mixture | Unit]:
    """Everything below a mixture with a state of its own in each lane, whose rounds amendments need; in document order.

    That is each blend right below one that counts items, and each unit there that has moved to another blend.
    """
    if not mixture.in_lanes:
        return
    moved = {id(unit) for same in holders(mixture).values() for unit in same[:-1]}
    for blend in blends(mixture):
        if blend.in_lanes:
            yield from (child for child in blend.children if isinstance(child, Mixture) or id(child) in moved)


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
        below = shares(child, amendment, position, share) if isinstance(child, Mixture) else {child.leaves[0]: share}
        for name, each in below.items():  # a dataset that moved is there twice
            found[name] = found.get(name, 0.0) + each
    return found


def know_forms(mixture: Mixture, was: Mixture) -> None:
    """Give a run's mixture the forms that a saved manifest knows."""
    forms = {unit.leaves: unit.form for unit in units(was)}
    for unit in units(mixture):
        if unit.form is None:
            unit.form = forms.get(unit.opened or unit.leaves)


def note_removed(mixture: Mixture, rows: Mapping[str, dict[str, Any]]) -> bool:
    """Mark the units that a configuration no longer has, with their entries of the last manifest that had them.

    Returns whether one was not marked before.
    """
    changed = False
    for same in holders(mixture).values():
        last = same[-1]
        for unit in same[:-1]:  # it continues elsewhere
            unit.node, unit.opened, unit.removed, unit.rows = last.node, last.opened, last.removed, last.rows
        if last.node is None:
            changed |= not last.removed
            for unit in same:
                unit.removed = True
                if unit.rows is None:
                    unit.rows = [dict(rows.get(name, {})) for name in unit.opened or unit.leaves]
    return changed


def leaf_nodes(node: Any) -> Iterator[Any]:
    """The leaves below a node, in document order."""
    if hasattr(node, "identity"):
        yield node
        return
    for below in nodes_below(node):
        yield from leaf_nodes(below)


def copied(tree: Mixture) -> Mixture:
    """A copy of a mixture with the same nodes."""

    def copy_of(child: Unit | Mixture) -> Unit | Mixture:
        return copied(child) if isinstance(child, Mixture) else dataclasses.replace(child, taken={**child.taken})

    segments = [(start, [*weights]) for start, weights in tree.segments]
    return dataclasses.replace(
        tree,
        segments=segments,
        children=list(map(copy_of, tree.children)),
        lengths=[*tree.lengths],
        taken={**tree.taken},
    )


def _rest(unit: Unit, number: int) -> dict[str, Any]:
    """The fields of a unit that most have in common. `number`: that of its first leaf in document order."""
    rest: dict[str, Any] = {} if unit.number == number else {"number": unit.number}
    if unit.since is not None:
        rest["since"] = unit.since
    if unit.opened and unit.opened != unit.leaves:
        rest["opened"] = list(unit.opened)
    if unit.in_lanes:
        rest["form"] = unit.form if unit.removed else 1
    return rest


def packed(mixture: Mixture) -> list[Any]:
    """A mixture as JSON."""
    number = 0

    def pack(tree: Unit | Mixture) -> list[Any]:
        nonlocal number
        if isinstance(tree, Mixture):
            more = [tree.lengths] if tree.lengths else []
            if tree.anchor is not None:
                more = [[tree.anchor.number, int(tree.anchor.phases is not None)]]
            kind = tree.per_step if tree.kind == WEIGHTS else tree.kind
            return [kind, list(map(list, tree.segments)), list(map(pack, tree.children)), *more]
        rest = _rest(tree, number)
        number += len(tree.leaves)
        if tree.rows is None and not rest:
            return [list(tree.leaves)]
        return [list(tree.leaves), tree.rows, int(tree.removed), *([rest] if rest else [])]

    return pack(mixture)


def unpacked(value: Any) -> Unit | Mixture:
    """The mixture of `packed`. Raises ValueError, TypeError, LookupError where it is none."""
    number = 0

    def unpack(value: Any) -> Unit | Mixture:
        nonlocal number
        if isinstance(value[0], list):
            fields: list[Any] = [*value, *[None, False, {}][len(value) - 1 :]]
            names, rows, removed, rest = fields
            unit = Unit(tuple(map(str, names)), rows=None if rows is None else list(map(dict, rows)))
            unit.removed = bool(removed)
            unit.number, unit.since = int(rest.get("number", number)), rest.get("since")
            unit.opened, form = tuple(rest.get("opened", unit.leaves)), rest.get("form")
            unit.in_lanes, unit.form = form is not None, None if form == 1 else form
            number += len(unit.leaves)
            return unit
        kind, segments, children, *more = value
        mixture = Mixture(segments=[], children=list(map(unpack, children)))
        if isinstance(kind, str):
            mixture.kind = kind
            mixture.lengths = [int(each) for each in (more[0] if more else ())]
        else:
            mixture.per_step = int(kind)
            mixture.anchor = _empty_anchor(*more[0]) if more else None
        weight_of = str if mixture.kind == REPETITIONS else int
        mixture.segments = [(start, [weight_of(weight) for weight in weights]) for start, weights in segments]
        return mixture

    return unpack(value)


def _empty_anchor(number: int, smooth: int) -> Anchor:
    """An anchor that `anchors.take_rows` completes."""
    nothing = np.zeros((0, 0), np.int64)
    phases = nothing.view(np.uint64) if smooth else None
    return Anchor(number=int(number), rounds=nothing, counts=nothing, tail=nothing, phases=phases)


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
