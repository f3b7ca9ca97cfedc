# SPDX-License-Identifier: Apache-2.0
"""The change from the mixture of a run to that of another configuration: what stays, what is new, and what moved."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from energon_grain.amendments.mixture import Mixture, Row, Unit, blends, holders, number_leaves, units
from energon_grain.datasets.leaf import LeafDataset
from energon_grain.errors import AmendmentError
from energon_grain.samplers.weights import exact

Child = Unit | Mixture


@dataclass(eq=False)
class _Pair:
    """A blend of the run, the same blend of the configuration, and where each child of that is in the first."""

    old: Mixture
    new: Mixture
    places: dict[int, int] = field(default_factory=dict[int, int])

    def match(self, same: Callable[[Child, Child], bool]) -> None:
        """Find more of the places, in order, each for one child."""
        for number, child in enumerate(self.new.children):
            if number in self.places:
                continue
            taken = self.places.values()
            free = (place for place in range(len(self.old.children)) if place not in taken)
            place = next((place for place in free if same(self.old.children[place], child)), None)
            if place is not None:
                self.places[number] = place

    def append(self) -> list[int]:
        """Append the children without a place to the blend of the run, and return their places."""
        added = [number for number in range(len(self.new.children)) if number not in self.places]
        for number in added:
            self.places[number] = len(self.old.children)
            self.old.children.append(self.new.children[number])
            self.old.lengths += self.new.lengths[number : number + 1]
        return [self.places[number] for number in added]

    def gone(self) -> Iterator[str]:
        """Keys of the leaves that were drawn from until now, and have no place."""
        kept = set(self.places.values())
        for place, weight in enumerate(self.old.weights):
            if exact(weight) and place not in kept:
                yield from self.old.children[place].names()

    def units(self) -> Iterator[Unit]:
        """The units of the children without a place."""
        for number, child in enumerate(self.new.children):
            if number not in self.places:
                yield from [child] if isinstance(child, Unit) else units(child)


class Change:
    """The mixture of a run, joined with that of a configuration. `append` then makes it the mixture from a step on.

    Joining gives the children that stay the nodes of the configuration. Children without a node afterwards are removed.

    Args:
        old: The mixture of the run until now; it is changed.
        new: That of the configuration.
    """

    def __init__(self, old: Mixture, new: Mixture) -> None:
        self._old, self._new = old, new
        self._last = {unit.leaves: unit for same in holders(old).values() for unit in same[-1:]}
        self._stay: set[int] = set()
        self._pairs: list[_Pair] = []
        for unit in units(old):
            unit.node = None
        self._join(old, new)

    def _join(self, old: Mixture, new: Mixture) -> None:
        """Find the children that stay, by the names of their leaves, or where those were renumbered, by their data."""
        pair = _Pair(old, new)
        self._pairs.append(pair)
        if old.per_step != new.per_step:
            raise AmendmentError(f"per_step was {old.per_step} and is now {new.per_step}: that cannot be amended")
        check_kind(old, new)
        old.node, old.above = new.node, new.above
        for same in (self._same_name, self._same_data):
            pair.match(same)
        for number, place in pair.places.items():
            one, other = old.children[place], new.children[number]
            if isinstance(one, Mixture) and isinstance(other, Mixture):
                self._join(one, other)
            elif isinstance(one, Unit) and isinstance(other, Unit):
                self._stay.add(id(one))
                _settle(one, other)

    def _same_name(self, one: Child, other: Child) -> bool:
        if isinstance(one, Mixture) or isinstance(other, Mixture):
            return type(one) is type(other) and not set(one.names()).isdisjoint(other.names())
        return self._last.get(one.leaves) is one and other.leaves == (one.opened or one.leaves)

    def _same_data(self, one: Child, other: Child) -> bool:
        if isinstance(one, Mixture) or isinstance(other, Mixture):
            same = not set(_data([*one.names()])).isdisjoint(_data([*other.names()]))
            return type(one) is type(other) and same
        return self._last.get(one.leaves) is one and _data(one.leaves) == _data(other.leaves)

    def append(self, number: int, position: int) -> bool:
        """Make the configuration's mixture that of the run from an amendment on; return whether anything changed.

        Args:
            number: Number of the amendment.
            position: Position of the outermost blend at which it takes effect.

        Raises:
            AmendmentError: It cannot be amended: what and why, with a way out.
        """
        counted = {id(each): each.in_lanes for each in blends(self._old)}
        changed = False
        for pair in self._pairs:
            for unit in pair.units():
                self._add(unit, number)
            added = pair.append()
            _check_same_data(pair, added)
            places = pair.places
            changed |= take_over(pair.old, pair.new, places, f"#{number}", position, grown=bool(added))
        number_leaves(self._old)
        for each in blends(self._old):
            if counted.get(id(each), each.in_lanes) != each.in_lanes:
                raise AmendmentError(
                    f"{next(each.names())}: the blend of this dataset has no filters, groups, packs or generators "
                    f"below it, and one was added: put it above the blend, or into a nested blend of its own"
                )
        return changed

    def _add(self, unit: Unit, number: int) -> None:
        """Let an added unit continue where another one is, or give it names and numbers of its own."""
        before = self._last.get(unit.leaves)
        unit.opened = unit.leaves
        if before is None or id(before) in self._stay:
            self._name(unit)
        elif not unit.in_lanes or _only_filters(unit.form):
            self._stay.add(id(before))
            unit.number, unit.since = before.number, number
        else:
            raise AmendmentError(
                f"{unit.leaves[0]}: a dataset with groups, packs or generators below the blend cannot move to another "
                f"blend: leave it where it is, and change its weight there"
            )
        self._last[unit.leaves] = unit
        self._stay.add(id(unit))

    def _name(self, unit: Unit) -> None:
        """Give an added unit names that no other one has. Raises AmendmentError if its leaves were combined before."""
        _check_combined(unit, [each for each in self._last.values() if id(each) not in self._stay])
        taken = [name for leaves in self._last for name in leaves]
        occurrences = Counter(_data(taken))
        names: list[str] = []
        for name, data in zip(unit.leaves, _data(unit.leaves), strict=True):
            names.append(f"{data}/{occurrences[data]}" if name in taken else name)
            occurrences[data] += 1
        unit.leaves, unit.number = tuple(names), -1


def check_kind(old: Mixture, new: Mixture) -> None:
    """Refuse a blend of another kind. Raises AmendmentError."""
    if old.kind != new.kind:
        raise AmendmentError(f"the blend was by {old.kind} and is now by {new.kind}: that cannot be amended")


def _settle(one: Unit, other: Unit) -> None:
    if one.form is not None and other.form is not None and one.form != other.form:
        raise AmendmentError(
            f"{one.leaves[0]}: it is in a combination of datasets that changed from {one.form} to {other.form}, which "
            f"would change their order. Leave it as it was; only the blend above it can be amended"
        )
    one.node, one.removed, one.opened = other.node, other.removed, other.opened or other.leaves
    one.form = one.form if other.form is None else other.form


def _data(leaves: Sequence[str]) -> list[str]:
    """Names without their occurrence numbers."""
    return [name.rpartition("/")[0] for name in leaves]


def _only_filters(form: object) -> bool:
    while isinstance(form, Mapping):
        if "filter" not in form:
            return False
        form = form["of"]
    return True


def _check_combined(unit: Unit, gone: Sequence[Unit]) -> None:
    for each in gone:
        common = set(unit.leaves) & set(each.leaves)
        if common:
            raise AmendmentError(
                f"{min(common)}: it was combined in another way (join, concatenation, repetitions, packs), which "
                f"changes its order: leave it as it was, and change its weight"
            )


def _check_same_data(pair: _Pair, added: Sequence[int]) -> None:
    """Refuse an added leaf that selects other samples from the data of a leaf that is gone."""
    new = [child for child in (pair.old.children[place] for place in added) if isinstance(child, Unit)]
    gone = list(pair.gone())
    for node in (unit.node for unit in new if unit.since is None):
        if isinstance(node, LeafDataset) and node.name is None and _selects(node, gone):
            raise AmendmentError(
                f"{node.label}: its `where` or `subset` changed, which makes it another dataset in another order, so "
                f"samples would repeat; leave them unchanged"
            )


def _selects(node: LeafDataset, names: Sequence[str]) -> bool:
    """Whether one of some leaves has the same data."""
    data = "/".join(node.identity[:3]) + "/"
    return any(name.startswith(data) for name in names)


def take_over(
    old: Mixture, new: Mixture, places: Mapping[int, int], start: str, position: int, *, grown: bool = False
) -> bool:
    """Append the segments of the weights of a new blend; return whether they differ from those of the old one.

    Args:
        old: The blend of the run; it is changed.
        new: The same blend in another configuration.
        places: For each child of the new one, the number of the same child in the old one.
        start: "#n" or "~n" of the amendment.
        position: Of the outermost blend, at which the amendment takes effect.
        grown: Whether children were added, so that there is a segment even if the weights are the same.

    Raises AmendmentError if all weights are 0.
    """

    def placed(weights: Row) -> Row:
        row: Row = [0] * len(old.children)
        for number, place in places.items():
            row[place] = weights[number] if number < len(weights) else 0
        return row

    (_, now), *planned = [(begin, placed(row)) for begin, row in new.segments[_in_force(new, position) :]]
    (_, was), *was_planned = old.segments[_in_force(old, position) :]
    padded: Row = [*was, *[0] * (len(now) - len(was))]
    if not grown and old.row(padded) == old.row(now) and was_planned == planned:
        return False
    if not any(map(exact, now)):
        raise AmendmentError("all weights are 0 from this step on; give one dataset a weight above 0")
    old.segments += [(start, now), *planned]
    return True


def _in_force(mixture: Mixture, position: int) -> int:
    """Number of the last segment that has started at a position."""
    starts = (start for start, _ in mixture.segments)
    return max(number for number, start in enumerate(starts) if isinstance(start, str) or start <= position)
