# SPDX-License-Identifier: Apache-2.0
"""Changes of a running mixture, in the words of a program: weights by name, datasets to add, datasets to remove."""

from __future__ import annotations

import copy
import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from energon_grain.amendments import mixture as mixtures
from energon_grain.amendments.change import Change, take_over
from energon_grain.amendments.cuts import AnyHost, Cut, cut_of
from energon_grain.amendments.history import (
    Amended,
    Amendments,
    appended,
    configured,
    mixture_of,
    record,
    without_left,
)
from energon_grain.amendments.lanes import LanesBefore
from energon_grain.amendments.mixture import Mixture, Unit
from energon_grain.amendments.reweight import path_to, quantised, with_segment
from energon_grain.amendments.selecting import Selected, named, select
from energon_grain.datasets.dataset import SavableDataset, put
from energon_grain.datasets.leaf import LeafDataset
from energon_grain.datasets.lowering import compile_dataset
from energon_grain.datasets.mixtures import BlendDataset
from energon_grain.errors import AmendmentError
from energon_grain.samplers.weights import Weight, exact
from energon_grain.stream.passes import Progress, Share
from energon_grain.stream.spec import Resolved, StreamSpec
from energon_grain.stream.stream import Held


def amended_now(
    dataset: SavableDataset,
    plain: StreamSpec,
    before: Amendments | None,
    share: Share,
    progress: Progress,
    *,
    weights: Mapping[str, Weight] | None = None,
    add: Mapping[str, Any] | None = None,
    remove: Sequence[str] = (),
    exclude: Any = None,
    note: str = "",
    smooth: bool = False,
    held: Held = "deliver",
    running: StreamSpec,
    any_host: AnyHost | None = None,
) -> Amended:
    """The stream of a running one whose mixture changes at its present place.

    Args:
        dataset: The configuration of the run.
        plain: The configuration, compiled.
        before: The amendments until now; None: there are none.
        share: This host's part.
        progress: Where the stream is.
        weights: Of all datasets of one blend, by name (repetitions, of a blend by repetitions); 0 pauses one. Default:
            as they are.
        add: Datasets to append to that blend, by name: a path, `{"path": …, "split_part": …, "subflavors": …}`, a
            dataset, or the name of one in another blend, which moves; each has a weight in `weights`.
        remove: Names of datasets that get the weight 0.
        exclude: Samples to leave out: keys, keys or a condition by dataset, or a file; see `amendments.selecting`.
        note: The reason, for the log.
        smooth: Whether only weights change, which are quantised, and no error adds up over many such changes. Weights
            that are equal to the present ones are no amendment.
        held: The fate of samples of removed datasets that lanes hold.
        running: The stream until now.
        any_host: See `WorkerConfig.any_host`.

    Raises:
        AmendmentError: There is no such dataset, or the mixture cannot be amended.
    """
    change = _Change(dict(weights or {}), dict(add or {}), list(remove), exclude)
    amendments = _begun(dataset, plain, before, change)
    cut = None
    if not amendments.mixture.in_lanes and amendments.mixture.per_step != mixtures.ALONE:
        cut = cut_of(running, share, progress, hosts=share.hosts, any_host=any_host)
    place = _Place(plain, running, share, progress, note, cut)
    if change.only_weights:
        return _only_weights(amendments, before, dataset, place, change.weights, smooth=smooth, held=held)
    new = _new_of(amendments.mixture)
    if change.mixes:
        _change(new, change, amendments.resolved)
    found = appended(
        amendments,
        Change(amendments.mixture, new),
        dataset,
        plain,
        running,
        share,
        progress,
        note,
        cut,
        removed=False,
        held=held,
        excluded=lambda: [] if exclude is None else _excluded(amendments, plain, exclude),
    )
    if found is None:
        raise AmendmentError(_NOTHING)
    return found


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a stream is that changes, and why: the arguments of `amended_now`, and the cut of its order."""

    plain: StreamSpec
    running: StreamSpec
    share: Share
    progress: Progress
    note: str
    cut: Cut | None


def _only_weights(
    amendments: Amendments,
    before: Amendments | None,
    dataset: SavableDataset,
    place: _Place,
    weights: dict[str, Weight],
    *,
    smooth: bool,
    held: Held,
) -> Amended:
    """The stream after a change of the weights of one blend."""
    left = {unit.number for unit in mixtures.drawn(amendments.mixture)}
    changed = _reweighted(amendments, place, weights, smooth=smooth)
    if not changed and not smooth:
        raise AmendmentError(_NOTHING)
    done = amendments if changed else before
    spec = place.plain if done is None else done.spec or done.compiled(dataset, place.plain, place.share)
    left -= {unit.number for unit in mixtures.drawn(amendments.mixture)}
    progress, dropped = without_left(spec, place.progress, amendments.mixture, left, held)
    return Amended(spec=spec, amendments=done, progress=progress, dropped=dropped)


def _new_of(mixture: Mixture) -> Mixture:
    """The mixture to change: without the places that datasets have left."""
    new = mixtures.copied(mixture)
    for each in mixtures.blends(new):  # plans of blends that do not change stay
        each.segments = [(start, [*row, *[0] * (len(each.children) - len(row))]) for start, row in each.segments]
    for same in mixtures.holders(new).values():
        for unit in same[:-1]:
            _take_out(new, unit)
    return new


@dataclass(frozen=True, slots=True)
class _Change:
    """The arguments of `amended_now`."""

    weights: dict[str, Weight]
    add: dict[str, Any]
    remove: list[str]
    exclude: Any

    @property
    def mixes(self) -> bool:
        """Whether it changes a blend."""
        return bool(self.weights or self.add or self.remove)

    @property
    def only_weights(self) -> bool:
        """Whether it does not change anything else."""
        return not self.add and not self.remove and self.exclude is None


def _begun(dataset: SavableDataset, plain: StreamSpec, before: Amendments | None, change: _Change) -> Amendments:
    """The amendments until now, to append to. Raises AmendmentError if there is no blend that can be changed."""
    found = _copy_of(before) or Amendments(mixture=mixture_of(dataset, plain))
    if found.mixture.per_step == mixtures.ALONE and (change.mixes or change.exclude is None):
        configured(dataset, plain)  # raises
    return found


_NO_WEIGHT = "amend: all weights are 0; give one dataset a weight above 0"
_NOTHING = "amend: nothing changes: give weights, add, remove or exclude that differ from what is there"


def _copy_of(before: Amendments | None) -> Amendments | None:
    """A copy to append an amendment to."""
    if before is None:
        return None
    mixture, steps, ahead = mixtures.copied(before.mixture), [*before.steps], [*before.ahead]
    return dataclasses.replace(
        before,
        mixture=mixture,
        steps=steps,
        cuts=[*before.cuts],
        ahead=ahead,
        digests=[*before.digests],
        exclusions=before.exclusions.copy(),
    )


def _reweighted(amendments: Amendments, place: _Place, weights: dict[str, Weight], *, smooth: bool) -> bool:
    """Change the weights of one blend; return whether they differ from the present ones."""
    if not weights:
        return False
    blend, row = _row_of(amendments.mixture, weights, smooth=smooth)
    in_lanes, cut, progress = amendments.mixture.in_lanes, place.cut, place.progress
    lanes = LanesBefore(place.running, amendments.mixture, progress) if in_lanes else None
    now = Mixture(segments=[(0, blend.row(row))], children=blend.children)
    places = {number: number for number in range(len(row))}
    start = f"{'~' if smooth else '#'}{len(amendments.steps)}"
    if not take_over(blend, now, places, start, progress.item if cut is None else cut.position):
        return False
    record(amendments, place.running, place.share, progress, place.note, cut, lanes)
    amendments.spec = None if cut is not None or in_lanes else _with_segment(amendments, place, blend, smooth=smooth)
    return True


def _with_segment(amendments: Amendments, place: _Place, blend: Mixture, *, smooth: bool) -> StreamSpec | None:
    """The stream with the last segment of a blend; None: it has to be compiled again."""
    path, rounds = path_to(amendments.mixture, blend), amendments.begin(len(amendments.steps) - 1, place.share)
    assert path is not None
    old = amendments.spec or dataclasses.replace(place.plain, described_by=place.plain.manifest())
    return with_segment(old, path, rounds, list(map(int, blend.weights)), smooth=smooth)


def _row_of(mixture: Mixture, weights: dict[str, Weight], *, smooth: bool) -> tuple[Mixture, list[Weight]]:
    """The blend with children of these names, and new weights for all its children."""
    numbers, blend = _children(mixture, [*weights])
    if smooth and blend.kind == mixtures.REPETITIONS:
        raise AmendmentError("reweight: this is a blend by repetitions, not by weights: use amend(weights=…)")
    row = _weighted(blend, numbers, quantised(weights) if smooth else weights)
    if not any(map(exact, row)):
        raise AmendmentError(_NO_WEIGHT)
    return blend, row


def _excluded(amendments: Amendments, plain: StreamSpec, exclude: Any) -> list[Selected]:
    """The samples to exclude, from the datasets of the run. Raises AmendmentError."""
    opened = amendments.opened(plain)
    names: dict[str, set[str]] = {}
    for unit in mixtures.units(amendments.mixture):
        nodes = [] if unit.node is None else mixtures.leaf_nodes(unit.node)
        for name, node in zip(unit.leaves, nodes, strict=False):
            for each in {name, *_names_of(node)}:
                names.setdefault(each, set()).add(name)

    def leaf_of(name: str) -> str:
        found = sorted(names.get(name, ()))
        if len(found) == 1:
            return found[0]
        problem = "there is no dataset" if not found else f"{len(found)} datasets have the name"
        raise AmendmentError(f"amend: exclude: {problem} {name!r}; there are {', '.join(opened)}")

    return select(named(exclude), {name: leaf.source for name, leaf in opened.items()}, leaf_of)


def _names_of(node: Any) -> set[str]:
    """The names of a leaf besides its key: its path, the last part of that, or its `name`."""
    label = getattr(node, "label", node.path)
    return {node.path, label, PurePosixPath(label).name, *([] if node.name is None else [node.name])}


def _change(mixture: Mixture, change: _Change, resolved: dict[str, Resolved]) -> None:
    """Change one blend of a mixture. Datasets that are added are opened into `resolved`."""
    weights, add, remove = change.weights, change.add, change.remove
    numbers, blend = _children(mixture, [*(name for name in weights if name not in add), *remove])
    for name, data in add.items():
        if name not in weights:
            raise AmendmentError(f"amend: add has {name!r}, weights do not: give it a weight")
        numbers[name] = _place_of(mixture, blend, _named(mixture, data) or _added(blend, name, data, resolved))
    row = _weighted(blend, numbers, weights)
    for name in remove:
        row[numbers[name]] = 0
    if not any(map(exact, row)):
        raise AmendmentError(_NO_WEIGHT)
    blend.segments = [(0, blend.row(row))]


def _children(mixture: Mixture, names: list[str]) -> tuple[dict[str, int], Mixture]:
    """The numbers of named children, and the one blend that has them. Raises AmendmentError if there are several."""
    index = _index(mixture)
    places = {name: _find(mixture, index, name) for name in names}
    blends = {id(blend): blend for blend, _ in places.values()} or {id(mixture): mixture}
    if len(blends) != 1:
        raise AmendmentError(f"amend: {', '.join(names)} are children of several blends: amend them one by one")
    return {name: number for name, (_, number) in places.items()}, next(iter(blends.values()))


def _weighted(blend: Mixture, numbers: Mapping[str, int], weights: Mapping[str, Weight]) -> list[Weight]:
    """The weights of all children. Raises AmendmentError unless every child with a weight is named."""
    row: list[Weight] = [*blend.weights]
    if not weights:
        return row
    missing = [number for number, weight in enumerate(row) if exact(weight) and number not in numbers.values()]
    if missing:
        names = ", ".join(_name(blend.children[number]) for number in missing)
        raise AmendmentError(
            f"amend: weights has no entry for {names}: give a weight to every dataset of the blend; 0 pauses a dataset"
        )
    for name, weight in weights.items():
        row[numbers[name]] = weight
    return row


def _place_of(mixture: Mixture, blend: Mixture, added: Unit | Mixture) -> int:
    """The place of a dataset that is added: its own, if it was removed before; else at the end.

    A dataset of another blend moves here.
    """
    units = mixtures.units(mixture)
    there = None if isinstance(added, Mixture) else next((each for each in units if each.leaves == added.leaves), None)
    if there is not None and there in blend.children:
        return _back(blend, there, added.node)
    if there is not None:
        _take_out(mixture, there)
        node = added.node if there.node is None else there.node
        added = dataclasses.replace(there, node=node, removed=False, number=-1, since=None, taken={})
    blend.children.append(added)
    return len(blend.children) - 1


def _back(blend: Mixture, unit: Unit, node: SavableDataset | None) -> int:
    """The place of a unit that is added again. Raises AmendmentError if it is still drawn from."""
    place = blend.children.index(unit)
    if unit.node is not None and exact(blend.weights[place]):
        raise AmendmentError(f"amend: {unit.leaves[0]} is in the mixture already: give its weight in `weights`")
    if unit.node is None:
        unit.node, unit.removed = node, False
    return place


def _take_out(mixture: Mixture, unit: Unit) -> None:
    """Take a unit out of its blend."""
    blend = next(each for each in mixtures.blends(mixture) if unit in each.children)
    place = blend.children.index(unit)
    del blend.children[place], blend.lengths[place : place + 1]
    blend.segments = [(start, [*row[:place], *row[place + 1 :]]) for start, row in blend.segments]


def _index(mixture: Mixture) -> dict[str, list[tuple[Mixture, int]]]:
    """The blends that have a child of each name, and its number there."""
    found: dict[str, list[tuple[Mixture, int]]] = {}
    left = {id(unit) for same in mixtures.holders(mixture).values() for unit in same[:-1]}
    for blend in mixtures.blends(mixture):
        for number, child in enumerate(blend.children):
            for name in () if id(child) in left else _names(child):
                found.setdefault(name, []).append((blend, number))
    return found


def _find(mixture: Mixture, index: Mapping[str, list[tuple[Mixture, int]]], name: str) -> tuple[Mixture, int]:
    """The blend that has a child of this name, and its number there."""
    found = index.get(name, [])
    if len(found) == 1:
        return found[0]
    known = [_name(child) for blend in mixtures.blends(mixture) for child in blend.children]
    problem = "there is no dataset" if not found else f"{len(found)} datasets have the name"
    raise AmendmentError(f"amend: {problem} {name!r}; there are {', '.join(known)}")


def _named(mixture: Mixture, data: Any) -> Unit | None:
    """A copy of the only dataset of a name; None: it is no name."""
    there = [unit for unit in mixtures.units(mixture) if isinstance(data, str) and data in _names(unit)]
    return dataclasses.replace(there[0]) if len(there) == 1 else None


def _names(child: Unit | Mixture) -> set[str]:
    """All names of a child: its key, its path, the last part of that, or its `name`."""
    if isinstance(child, Mixture):
        return set()
    names = set(child.leaves)
    for node in mixtures.leaf_nodes(child.node) if child.node is not None else ():
        if isinstance(node, LeafDataset):
            label = node.label if node.name is None else node.name
            names |= {label, PurePosixPath(label).name, node.path}
        elif getattr(node, "name", None):  # a join
            names.add(node.name)
    return names if len(child.leaves) == 1 else set(child.leaves[:1])


def _name(child: Unit | Mixture) -> str:
    """The name of a child for messages."""
    node = child.node if isinstance(child, Unit) else None
    named: Any = getattr(node, "name", None)
    if named is not None:
        return named
    return node.label if isinstance(node, LeafDataset) else next(child.names())


def _opened(data: SavableDataset, resolved: dict[str, Resolved]) -> Unit | Mixture:
    """A child for a dataset to add. Its leaves, which are opened, are added to `resolved`."""
    around = BlendDataset(data)
    spec = compile_dataset(around)
    names = ["/".join(leaf.key) for leaf in spec.leaves]
    manifest = json.loads(json.dumps(spec.manifest()))
    found = mixtures.described(manifest["mixture"], manifest["leaves"])
    assert found is not None
    mixtures.attach(found, around)
    for unit in mixtures.units(found):
        unit.number = -1
    for name, leaf in zip(names, spec.leaves, strict=True):
        resolved.setdefault(name, leaf.leaf)
    return found.children[0]


def _added(blend: Mixture, name: str, data: Any, resolved: dict[str, Resolved]) -> Unit | Mixture:
    """A child for data to add: a dataset, or a leaf like another one of the blend, with all that is done to it."""
    if isinstance(data, SavableDataset):
        return _opened(data, resolved)
    options = dict(data) if isinstance(data, Mapping) else {"path": data}
    unknown = set(options) - {"path", "split_part", "subflavors", "name"}
    if unknown or "path" not in options:
        raise AmendmentError(
            f"amend: add={{{name!r}: …}}: expected path, split_part, subflavors and name, got {sorted(options)}"
        )
    like = next(_leaves_alone(blend), None)
    if like is None:
        raise AmendmentError(f"amend: no child of the blend is a single dataset: give {name!r} as a dataset")
    unit, other = like
    leaf = dataclasses.replace(
        other,
        path=str(options["path"]),
        kind=None,
        split_part=options.get("split_part", other.split_part),
        tags=options.get("subflavors", {}),
        subset=None,
        where=None,
        written=str(options["path"]),
        through=(),
        name=options.get("name"),
    )
    assert unit.node is not None
    return Unit(
        ("/".join((*leaf.identity, "0")),), node=_with_leaf(unit.node, leaf), form=unit.form, in_lanes=unit.in_lanes
    )


def _leaves_alone(blend: Mixture) -> Iterator[tuple[Unit, LeafDataset]]:
    """The children of a blend that have one leaf: those that are one first."""
    found = [child for child in blend.children if isinstance(child, Unit) and len(child.leaves) == 1]
    for unit in sorted(found, key=lambda unit: not isinstance(unit.node, LeafDataset)):
        leaf = None if unit.node is None else next(mixtures.leaf_nodes(unit.node))
        if isinstance(leaf, LeafDataset):
            yield unit, leaf


def _with_leaf(node: SavableDataset, leaf: LeafDataset) -> SavableDataset:
    """The same nodes over another leaf."""
    if hasattr(node, "identity"):
        return leaf
    [name] = (each.name for each in dataclasses.fields(node) if isinstance(getattr(node, each.name), SavableDataset))
    changed = copy.copy(node)
    put(changed, **{name: _with_leaf(getattr(node, name), leaf)})
    return changed
