# SPDX-License-Identifier: Apache-2.0
"""Changes of a running mixture, in the words of a program: weights by name, datasets to add, datasets to remove."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from energon_grain.amendments import mixture as mixtures
from energon_grain.amendments.cuts import AnyHost, Cut, cut_of
from energon_grain.amendments.history import (
    Amended,
    Amendments,
    append,
    compiled,
    configured,
    mixture_of,
    record,
)
from energon_grain.amendments.mixture import Mixture, Unit
from energon_grain.amendments.reweight import path_to, quantised, with_segment
from energon_grain.amendments.selecting import Selected, named, select
from energon_grain.datasets.dataset import SavableDataset
from energon_grain.datasets.leaf import LeafDataset
from energon_grain.errors import AmendmentError
from energon_grain.samplers.weights import Weight, exact
from energon_grain.stream.passes import Progress, Share
from energon_grain.stream.spec import StreamSpec


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
        add: Datasets to append to that blend, by name: a path, `{"path": …, "split_part": …, "subflavors": …}`, or a
            dataset; each has a weight in `weights`.
        remove: Names of datasets that get the weight 0.
        exclude: Samples to leave out: keys, keys or a condition by dataset, or a file; see `amendments.selecting`.
        note: The reason, for the log.
        smooth: Whether only weights change, which are quantised, and no error adds up over many such changes. Weights
            that are equal to the present ones are no amendment.
        running: The stream until now.
        any_host: See `WorkerConfig.any_host`.

    Raises:
        AmendmentError: There is no such dataset, or the mixture cannot be amended.
    """
    change = _Change(dict(weights or {}), dict(add or {}), list(remove), exclude)
    amendments = _begun(dataset, plain, before, change)
    alone = amendments.mixture.per_step == mixtures.ALONE
    cut = None if alone else cut_of(running, share, progress, hosts=share.hosts, any_host=any_host)
    if change.only_weights:
        given = change.weights
        changed = bool(given) and _reweighted(amendments, plain, share, progress, given, note, cut, smooth=smooth)
        if not (changed or smooth):
            raise AmendmentError(_NOTHING)
        done = amendments if changed else before
        spec = plain if done is None else done.spec or compiled(dataset, plain, done, share)
        return Amended(spec=spec, amendments=done)
    new = _changed(amendments.mixture, change)
    excluded = [] if exclude is None else _excluded(amendments, new, plain, exclude)
    if not append(amendments, new, plain, share, progress, note, cut, excluded):
        raise AmendmentError(_NOTHING)
    return Amended(spec=compiled(dataset, plain, amendments, share), amendments=amendments)


def _changed(mixture: Mixture, change: _Change) -> Mixture:
    """A copy of a mixture with a change."""
    new = _copied(mixture)
    for each in _blends(new):  # plans of blends that do not change stay
        each.segments = [(start, [*row, *[0] * (len(each.children) - len(row))]) for start, row in each.segments]
    if change.mixes:
        _change(new, change.weights, change.add, change.remove)
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
    mixture, steps, ahead = _copied(before.mixture), [*before.steps], [*before.ahead]
    return dataclasses.replace(
        before,
        mixture=mixture,
        steps=steps,
        cuts=[*before.cuts],
        ahead=ahead,
        digests=[*before.digests],
        exclusions=before.exclusions.copy(),
    )


def _reweighted(
    amendments: Amendments,
    plain: StreamSpec,
    share: Share,
    progress: Progress,
    weights: dict[str, Weight],
    note: str,
    cut: Cut | None,
    *,
    smooth: bool,
) -> bool:
    """Change the weights of one blend; return whether they differ from the present ones."""
    blend, row = _row_of(amendments.mixture, weights, smooth=smooth)
    now = Mixture(segments=[(0, blend.row(row))], children=blend.children)
    places = {number: number for number in range(len(row))}
    start = f"{'~' if smooth else '#'}{len(amendments.steps)}"
    if not mixtures.take_over(blend, now, places, start, progress.item if cut is None else cut.position):
        return False
    record(amendments, plain, share, progress, note, cut)
    if cut is not None:
        amendments.spec = None
        return True
    path, rounds = path_to(amendments.mixture, blend), amendments.begin(len(amendments.steps) - 1, share)
    assert path is not None
    old = amendments.spec or dataclasses.replace(plain, described_by=plain.manifest())
    amendments.spec = with_segment(old, path, rounds, list(map(int, blend.weights)), smooth=smooth)
    return True


def _row_of(mixture: Mixture, weights: dict[str, Weight], *, smooth: bool) -> tuple[Mixture, list[Weight]]:
    """The blend with children of these names, and new weights for all its children."""
    numbers, blend = _children(mixture, [*weights])
    if smooth and blend.kind == mixtures.REPETITIONS:
        raise AmendmentError("reweight: this is a blend by repetitions, not by weights: use amend(weights=…)")
    row = _weighted(blend, numbers, quantised(weights) if smooth else weights)
    if not any(map(exact, row)):
        raise AmendmentError(_NO_WEIGHT)
    return blend, row


def _excluded(amendments: Amendments, new: Mixture, plain: StreamSpec, exclude: Any) -> list[Selected]:
    """The samples to exclude, from the datasets of a mixture. Raises AmendmentError."""
    known = {"/".join(leaf.key): leaf.leaf for leaf in plain.leaves} | amendments.resolved
    sources: dict[str, Any] = {}
    names: dict[str, set[str]] = {}
    for unit in mixtures.units(new):
        if unit.node is None or unit.removed:
            continue
        for name, node in zip(unit.leaves, mixtures.leaf_nodes(unit.node), strict=True):
            if name not in known:
                known[name] = amendments.resolved[name] = node.resolve()
            sources[name] = known[name].source
            for each in {name, *_names_of(node)}:
                names.setdefault(each, set()).add(name)

    def leaf_of(name: str) -> str:
        found = sorted(names.get(name, ()))
        if len(found) == 1:
            return found[0]
        problem = "there is no dataset" if not found else f"{len(found)} datasets have the name"
        raise AmendmentError(f"amend: exclude: {problem} {name!r}; there are {', '.join(sources)}")

    return select(named(exclude), sources, leaf_of)


def _names_of(node: Any) -> set[str]:
    """The names of a leaf besides its key: its path, the last part of that, or its `name`."""
    label = getattr(node, "label", node.path)
    return {node.path, label, PurePosixPath(label).name, *([] if node.name is None else [node.name])}


def _copied(tree: Any) -> Any:
    """A copy of a mixture with the same nodes."""
    if isinstance(tree, Unit):
        return dataclasses.replace(tree)
    return dataclasses.replace(
        tree, segments=[*tree.segments], children=list(map(_copied, tree.children)), lengths=[*tree.lengths]
    )


def _blends(mixture: Mixture) -> Iterator[Mixture]:
    yield mixture
    for child in mixture.children:
        if isinstance(child, Mixture):
            yield from _blends(child)


def _change(mixture: Mixture, weights: dict[str, Weight], add: dict[str, Any], remove: list[str]) -> None:
    numbers, blend = _children(mixture, [*(name for name in weights if name not in add), *remove])
    for name, data in add.items():
        if name not in weights:
            raise AmendmentError(f"amend: add has {name!r}, weights do not: give it a weight")
        numbers[name] = _place_of(mixture, blend, _added(blend, name, data))
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


def _place_of(mixture: Mixture, blend: Mixture, added: Unit) -> int:
    """The place of a dataset that is added: its own, if it was removed before; else at the end."""
    for place, child in enumerate(blend.children):
        if isinstance(child, Unit) and child.leaves == added.leaves:
            if child.node is None or not exact(blend.weights[place]):
                child.node, child.removed = added.node, False
                return place
            raise AmendmentError(f"amend: {added.leaves[0]} is in the mixture already: give its weight in `weights`")
    if set(added.leaves) & set(mixture.names()):
        raise AmendmentError(f"amend: {added.leaves[0]} is in another blend of the mixture")
    blend.children.append(added)
    return len(blend.children) - 1


def _index(mixture: Mixture) -> dict[str, list[tuple[Mixture, int]]]:
    """The blends that have a child of each name, and its number there."""
    found: dict[str, list[tuple[Mixture, int]]] = {}
    for blend in _blends(mixture):
        for number, child in enumerate(blend.children):
            for name in _names(child):
                found.setdefault(name, []).append((blend, number))
    return found


def _find(mixture: Mixture, index: Mapping[str, list[tuple[Mixture, int]]], name: str) -> tuple[Mixture, int]:
    """The blend that has a child of this name, and its number there."""
    found = index.get(name, [])
    if len(found) == 1:
        return found[0]
    known = [_name(child) for blend in _blends(mixture) for child in blend.children]
    problem = "there is no dataset" if not found else f"{len(found)} datasets have the name"
    raise AmendmentError(f"amend: {problem} {name!r}; there are {', '.join(known)}")


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


def _added(blend: Mixture, name: str, data: Any) -> Unit:
    """A child for data to add: a leaf like the other leaves of the blend."""
    if isinstance(data, SavableDataset):
        nodes = list(mixtures.leaf_nodes(data))
        return Unit(tuple("/".join((*node.identity, "0")) for node in nodes), node=data)
    like = next((child.node for child in blend.children if isinstance(getattr(child, "node", None), LeafDataset)), None)
    if not isinstance(like, LeafDataset):
        raise AmendmentError(f"amend: no child of the blend is a plain dataset: give {name!r} as a dataset")
    options = dict(data) if isinstance(data, Mapping) else {"path": data}
    unknown = set(options) - {"path", "split_part", "subflavors", "name"}
    if unknown or "path" not in options:
        raise AmendmentError(
            f"amend: add={{{name!r}: …}}: expected path, split_part, subflavors and name, got {sorted(options)}"
        )
    leaf = dataclasses.replace(
        like,
        path=str(options["path"]),
        kind=None,
        split_part=options.get("split_part", like.split_part),
        tags=options.get("subflavors", {}),
        subset=None,
        where=None,
        written=str(options["path"]),
        through=(),
        name=options.get("name"),
    )
    return Unit(("/".join((*leaf.identity, "0")),), node=leaf)
