# SPDX-License-Identifier: Apache-2.0
"""The last changes of a mixture without the earlier ones: where each of its blends was, instead of how it got there.

An anchor of a blend is the first round of a segment in each lane, the rounds of each child before it, the children of
the last three rounds before it, and 8 bits for each inner node of its share tree, if the segment carries on divisions.
All of these are numbers of each lane.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from energon_grain.amendments.mixture import Mixture, Start
from energon_grain.samplers.blend import Blend, StepBlend
from energon_grain.samplers.routing import RouteTree
from energon_grain.samplers.segment import TAIL
from energon_grain.samplers.share_tree import ShareTree, share_tree
from energon_grain.samplers.weights import Anchor

Int64Array = npt.NDArray[np.int64]


def shortened(mixture: Mixture, tree: RouteTree | None, count: int) -> Mixture | None:
    """A mixture without the segments before an amendment.

    Args:
        mixture: The mixture.
        tree: The compiled routers of the same blends.
        count: Number of the amendment. It becomes number 0.

    Returns:
        None if the routers are no blends by weights.
    """
    if tree is None or not isinstance(tree.router, Blend | StepBlend):
        return None
    children = list(mixture.children)
    for place, child in enumerate(children):
        if isinstance(child, Mixture):
            below = shortened(child, tree.children[place], count)
            if below is None:
                return None
            children[place] = below
    before = (n for n, (start, _) in enumerate(mixture.segments) if isinstance(start, str) and int(start[1:]) < count)
    number = max(before, default=0)
    (_, weights), *later = mixture.segments[number:]
    place = _first(mixture) + number
    segments = [(0, weights), *((_renumbered(start, count), row) for start, row in later)]
    anchor = None if place == 0 else tree.router.anchor(place)
    return dataclasses.replace(mixture, segments=segments, children=children, anchor=anchor, resumed=None)


def _first(mixture: Mixture) -> int:
    return 0 if mixture.anchor is None else mixture.anchor.number


def _renumbered(start: Start, count: int) -> Start:
    return f"{start[0]}{int(start[1:]) - count}" if isinstance(start, str) else start


def anchored(mixture: Mixture) -> Iterator[Mixture]:
    """The blends that have an anchor, in document order."""
    if mixture.anchor is not None:
        yield mixture
    for child in mixture.children:
        if isinstance(child, Mixture):
            yield from anchored(child)


def rows_of(mixture: Mixture, lanes: int) -> Int64Array:
    """All anchors of a mixture, as numbers of each lane, int64 (rows, lanes)."""
    found: list[Int64Array] = [np.zeros((0, lanes), np.int64)]
    for blend in anchored(mixture):
        anchor = blend.anchor
        assert anchor is not None
        rows = [anchor.rounds[None], anchor.counts[:-1], anchor.tail]
        if anchor.phases is not None:
            rows.append(anchor.phases[_inner(share_tree(len(anchor.counts)))].view(np.int64))
        found.append(np.repeat(np.concatenate(rows), lanes // len(anchor.rounds), axis=1))
    return np.concatenate(found)


def take_rows(mixture: Mixture, rows: Int64Array) -> None:
    """Give the anchors of a mixture, which `unpacked` has left empty, the numbers of `rows_of`, (rows, lanes).

    Raises:
        ValueError: There are too few rows, or too many.
    """
    at = 0
    for blend in anchored(mixture):
        assert blend.anchor is not None
        number, smooth = blend.anchor.number, blend.anchor.phases is not None
        children = len(blend.segments[0][1])
        needed = children + TAIL + (children - 1) * smooth
        own = rows[at : at + needed, :: max(1, blend.per_step)]
        at += needed
        if at > len(rows):
            break
        counts = np.concatenate([own[1:children], own[:1] - own[1:children].sum(axis=0)])
        phases = None
        if smooth:
            tree = share_tree(children)
            phases = np.zeros((len(tree), own.shape[1]), np.uint64)
            phases[_inner(tree)] = own[children + TAIL :]
        tail = own[children : children + TAIL]
        if (own[1:] < 0).any() or (tail >= children).any():
            raise ValueError("its anchor has numbers of no child")
        blend.anchor = Anchor(number=number, rounds=own[0], counts=counts, tail=tail, phases=phases)
    if at != len(rows):
        raise ValueError(f"there are {len(rows)} rows of lanes for {at} numbers of the last changes")


def blends(mixture: Mixture) -> Iterator[Mixture]:
    """All blends of a mixture, in document order."""
    yield mixture
    for child in mixture.children:
        if isinstance(child, Mixture):
            yield from blends(child)


def resume(mixture: Mixture, last: Mixture) -> None:
    """Let a mixture over the whole run begin with the anchors of its last changes, and make the rest when asked.

    Raises ValueError if the last changes are not those of this mixture.
    """
    for whole, part in zip(blends(mixture), blends(last), strict=True):
        whole.resumed = part.anchor
        cut = 0 if part.anchor is None else part.anchor.number - _first(whole)
        if [row for _, row in whole.segments[cut:]] != [row for _, row in part.segments]:
            raise ValueError("its last changes are not the last of all changes")


def _inner(tree: ShareTree) -> npt.NDArray[Any]:
    return np.flatnonzero(tree.left != tree.right)
