# SPDX-License-Identifier: Apache-2.0
"""The graph of a whole run: a configuration with every child that its blends ever had, and all their segments."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from energon_grain.amendments import mixture as mixtures
from energon_grain.amendments.cuts import blend_of, order_of
from energon_grain.amendments.epochs import EpochSegments, amended_epochs
from energon_grain.amendments.exclusions import Exclusions, compiled_without, is_one_leaf
from energon_grain.amendments.mixture import Mixture, Unit
from energon_grain.amendments.moves import BegunDataset, Handover, MovingDataset
from energon_grain.amendments.narrowing import check_kept
from energon_grain.amendments.removed import RemovedLeaf, placeholder
from energon_grain.amendments.selecting import where
from energon_grain.datasets.dataset import SavableDataset, put
from energon_grain.datasets.lowering import compile_dataset
from energon_grain.datasets.mixtures import AmendedAt, BlendEpochizedDataset, amended_blend
from energon_grain.errors import AmendmentError
from energon_grain.samplers.weights import exact
from energon_grain.stream.passes import Share
from energon_grain.stream.spec import Resolved, StreamSpec

Int64Array = npt.NDArray[np.int64]
BeginsOf = Callable[[Mixture | Unit], tuple[Int64Array, ...]]


class _Graph:
    """Makes the description of a run's mixture.

    Args:
        mixture: With the nodes of a configuration.
        begins: Rounds of a blend or a unit with states of its own, (L,), at each amendment.
    """

    def __init__(self, mixture: Mixture, begins: BeginsOf) -> None:
        self._begins = begins
        self._own = {id(each) for each in mixtures.own_states(mixture)}
        self._holders = mixtures.holders(mixture)
        self._handovers: dict[int, Handover] = {}
        for same in self._holders.values():
            before: Handover | None = None
            for unit in same[1:]:
                before = self._handovers[id(unit)] = Handover(before)
        self._places: dict[int, str] = {}
        self._set_places(mixture, "")
        self.nodes = {id(unit): unit.node or _absent(unit) for unit in mixtures.units(mixture)}
        self._root = mixture

    def _set_places(self, mixture: Mixture, place: str) -> None:
        for number, child in enumerate(mixture.children):
            if isinstance(child, Mixture):
                self._set_places(child, f"{place}.{number}")
            elif child.since is None:
                self._places[child.number] = f"{place}.{number}"

    def blend(self, mixture: Mixture) -> SavableDataset:
        """The description of a mixture, and all below."""
        children = tuple(self._over(child) for child in mixture.children)
        schedule = [(_start(start), tuple(map(_number, weights))) for start, weights in mixture.segments]
        node = mixture.node or self._root.node
        if isinstance(node, BlendEpochizedDataset):
            return amended_epochs(node, children, tuple(schedule))
        assert node is not None
        blend = amended_blend(node, children, _resumed(mixture, schedule))
        put(blend, per_step=mixture.per_step or False)
        return blend

    def _over(self, child: Mixture | Unit) -> SavableDataset:
        node: SavableDataset
        if isinstance(child, Unit):
            node = self._unit(child)
        else:
            node = self.blend(child)
            node = node if child.above is None else mixtures.replaced(child.above, node)
        return BegunDataset(dataset=node, begins=self._begins(child)) if id(child) in self._own else node

    def _unit(self, unit: Unit) -> SavableDataset:
        node, same = self.nodes[id(unit)], self._holders[unit.number]
        if len(same) == 1:
            return node
        after = next(iter(same[same.index(unit) + 1 :]), None)
        return MovingDataset(
            dataset=node,
            place=self._places[unit.number],
            begins=self._handovers.get(id(unit)),
            ends=None if after is None else after.since,
            next=None if after is None else self._handovers[id(after)],
        )


def _start(start: int | str) -> int | AmendedAt:
    return AmendedAt(int(start[1:]), start[0] == "~") if isinstance(start, str) else start


def _resumed(
    mixture: Mixture, schedule: list[tuple[Any, tuple[int | Fraction, ...]]]
) -> tuple[tuple[Any, tuple[int | Fraction, ...]], ...]:
    """The segments of a mixture with its anchors."""
    if mixture.anchor is not None:
        schedule[0] = mixture.anchor, schedule[0][1]
    if mixture.resumed is not None:
        known = mixture.resumed.number - (0 if mixture.anchor is None else mixture.anchor.number)
        earlier, schedule = schedule[:known], schedule[known:]
        schedule[0] = replace(mixture.resumed, earlier=earlier), schedule[0][1]
    return tuple(schedule)


def _number(weight: int | str) -> int | Fraction:
    return exact(weight) if isinstance(weight, str) else weight


def _absent(unit: Unit) -> SavableDataset:
    rows: Sequence[Mapping[str, Any]] = unit.rows or [{}] * len(unit.leaves)
    return placeholder(unit.form if unit.in_lanes else None, list(zip(unit.leaves, rows, strict=True)))


def graph_of(
    dataset: SavableDataset,
    plain: StreamSpec,
    mixture: Mixture,
    share: Share,
    *,
    begins: Sequence[Int64Array],
    begins_of: BeginsOf,
    resolved: dict[str, Resolved],
    exclusions: Exclusions,
    taken: Sequence[Int64Array],
) -> StreamSpec:
    """A configuration compiled with the mixture of its run.

    Args:
        dataset: The configuration.
        plain: The same, compiled.
        mixture: Of the run, with the nodes of the configuration.
        share: This host's part.
        begins: The round of each lane, (L,), at which each amendment begins.
        begins_of: The same for what has states of its own.
        resolved: Leaves that the configuration does not have, opened, by key; it is completed.
        exclusions: Samples that the run leaves out; conditions are evaluated.
        taken: The round of each lane, (L,), that was next at each amendment.

    Raises:
        AmendmentError: Samples cannot be excluded there.
        StateError: A condition selects other samples now.
    """
    _check_excluded(exclusions, mixture)
    alone = mixture.per_step == mixtures.ALONE
    graph = _Graph(mixture, begins_of)
    known = {"/".join(leaf.key): leaf.leaf for leaf in plain.leaves}
    leaves = list(_leaves(mixture, graph.nodes))
    opened: dict[int, Resolved] = {}
    for leaf in leaves:
        if leaf.number not in opened:
            opened[leaf.number] = leaf.resolved(known, resolved, exclusions)
    exclusions.evaluate({leaf.name: opened[leaf.number].source for leaf in leaves}, where)
    compile_ = partial(
        compile_dataset,
        hosts=share.hosts,
        cache_pool=plain.cache_pool,
        resolved=[opened[number] for number in sorted(opened)],
        begins=() if alone and not is_one_leaf(plain) else begins,
        numbered=None if alone else [(leaf.number, leaf.name.rpartition("/")[2]) for leaf in leaves],
    )
    whole = dataset if alone else mixtures.replaced(dataset, graph.blend(mixture))
    spec = compiled_without(whole, compile_, exclusions, [(leaf.number, leaf.name) for leaf in leaves], taken)
    check_kept(exclusions, spec)
    router = None if alone or mixture.in_lanes else blend_of(order_of(spec))
    if isinstance(router, EpochSegments):
        mixture.lengths = [*router.samples]
    rows = spec.manifest()["leaves"]
    for unit in mixtures.units(mixture):  # so that a later change of them is found
        if unit.rows is None and not known.keys() >= set(unit.opened):
            unit.rows = [dict(rows.get(name, {})) for name in unit.leaves]
    return dataclasses.replace(
        spec, described_by=plain.manifest(), observers=plain.observers, steps=plain.steps, limit=plain.limit
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Leaf:
    """A leaf of a run: its unit, number, key, key in the configuration, and node."""

    unit: Unit
    number: int
    name: str
    opened: str
    node: Any

    def resolved(self, known: Mapping[str, Resolved], more: dict[str, Resolved], exclusions: Exclusions) -> Resolved:
        """The opened leaf, one that is known if possible; others are added to `more`."""
        if self.name in exclusions.nodes and self.unit.node is not None:
            return more[self.name]  # as it was in the run
        if self.unit.node is None or isinstance(self.node, RemovedLeaf):
            return self.node.resolve()
        found = known.get(self.opened) or more.get(self.opened)
        if found is None:
            found = more[self.opened] = self.node.resolve()
        return found


def _leaves(mixture: Mixture, nodes: Mapping[int, SavableDataset]) -> Iterator[_Leaf]:
    """The leaves in document order."""
    for unit in mixtures.units(mixture):
        yield from leaves_of(unit, nodes[id(unit)])


def leaves_of(unit: Unit, node: SavableDataset) -> Iterator[_Leaf]:
    """The leaves of a unit with a description."""
    opened = unit.opened or unit.leaves
    below = list(mixtures.leaf_nodes(node))
    for at, (name, other, leaf) in enumerate(zip(unit.leaves, opened, below, strict=True)):
        yield _Leaf(unit, unit.number + at, name, other, leaf)


def _check_excluded(exclusions: Exclusions, mixture: Mixture) -> None:
    """Refuse to exclude samples where that is not known to keep the order. Raises AmendmentError."""
    names = {entry.leaf for entry in exclusions.entries}
    if names and mixture.in_lanes:
        raise AmendmentError(
            "exclude: datasets below a blend or a concatenation filter, group or pack; move these steps above it, or "
            "add the samples to keep as a dataset with a `name` and a `where` of its own, and remove this one"
        )
    for same in mixtures.holders(mixture).values():
        moved = names & set(same[0].leaves) if len(same) > 1 else None
        if moved:
            raise AmendmentError(
                f"{min(moved)}: samples of a dataset that moves to another blend cannot be excluded: leave it where it "
                f"is, or add the samples to keep as a dataset with a `name` and a `where` of its own, and remove this "
                f"one"
            )
