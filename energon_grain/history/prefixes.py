# SPDX-License-Identifier: Apache-2.0
"""The positions of leaves that the first positions of a stream use, without routing each of them.

A blend gives each lane its first rounds of a child, so the first positions of a blend use nearly all of the first
positions of a child: those below the least round of any lane, and a few more. These few are listed, and so are the few
below that are not used. The same holds for the other routers, and so for trees of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import singledispatch

import numpy as np
import numpy.typing as npt

from energon_grain.amendments.epochs import EpochSegments
from energon_grain.amendments.holes import Holes
from energon_grain.samplers.blend import Blend, StepBlend, lane_rounds
from energon_grain.samplers.epochized_blend import EpochizedBlend
from energon_grain.samplers.routing import Concat, FoldingRouter, Limit, Router, RouteTree
from energon_grain.samplers.window_shuffle import WindowShuffle

Int64Array = npt.NDArray[np.int64]
_AT_ONCE = 1 << 20


def _none() -> Int64Array:
    return np.empty(0, np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class Prefix:
    """A set of positions.

    Attributes:
        whole: All positions below are in it, except `without`.
        rest: (k,) the positions from `whole` on that are in it, each once.
        without: (k,) the positions below `whole` that are not, each once.
    """

    whole: int
    rest: Int64Array = field(default_factory=_none)
    without: Int64Array = field(default_factory=_none)

    def __len__(self) -> int:
        return self.whole + len(self.rest) - len(self.without)

    @property
    def end(self) -> int:
        """A position behind all of them."""
        return max(self.whole, int(self.rest.max(initial=-1)) + 1)

    @classmethod
    def of_lanes(cls, rounds: Int64Array) -> Prefix:
        """The first `rounds[l]` rounds of each lane l, (L,)."""
        lanes, least = len(rounds), int(rounds.min())
        more = rounds - least
        lane = np.repeat(np.arange(lanes), more)
        turn = least + np.arange(len(lane)) - np.repeat(np.cumsum(more) - more, more)
        return cls(least * lanes, turn * lanes + lane)


def leaves_of(tree: RouteTree | None, prefix: Prefix) -> list[Prefix]:
    """The positions of each leaf that some positions of a tree of routers use."""
    if tree is None:
        return [prefix]
    found = of_children(tree.router, prefix.whole, len(tree.children))
    routed = [tree.router.route(each) for each in (prefix.rest, prefix.without)]
    leaves: list[Prefix] = []
    for number, (below, child) in enumerate(zip(found, tree.children, strict=True)):
        rest, without = (positions[which == number] for which, positions in routed)
        leaves += leaves_of(child, _combined(below, rest, without))
    return leaves


def _combined(prefix: Prefix, rest: Int64Array, without: Int64Array) -> Prefix:
    """Add positions behind those of a prefix, and remove some of its own."""
    below = without < prefix.whole
    kept = prefix.rest if below.all() else np.setdiff1d(prefix.rest, without[~below], assume_unique=True)
    return Prefix(prefix.whole, np.concatenate([kept, rest]), np.concatenate([prefix.without, without[below]]))


@singledispatch
def of_children(router: Router, position: int, children: int) -> list[Prefix]:
    """The positions of each child that the positions of a router before `position` use. By default, routes them all."""
    if isinstance(router, FoldingRouter):
        carry = router.anchor(position)
        return _continued(router, carry[0], position, [int(count) for count in router.counts(carry)])
    return _continued(router, 0, position, [0] * children)


def _continued(router: Router, start: int, position: int, wholes: list[int]) -> list[Prefix]:
    """The positions of each child, if those before `start` use the first `wholes`; the others are routed."""
    parts: list[list[Int64Array]] = [[] for _ in wholes]
    for which, below in _routed(router, start, position):
        for child, found in enumerate(parts):
            found.append(below[which == child])
    return [Prefix(whole, np.concatenate([_none(), *own])) for whole, own in zip(wholes, parts, strict=True)]


def _routed(router: Router, start: int, stop: int) -> Iterator[tuple[npt.NDArray[np.int32], Int64Array]]:
    for begin in range(start, stop, _AT_ONCE):
        yield router.route(np.arange(begin, min(begin + _AT_ONCE, stop)))


@of_children.register
def _(router: Blend, position: int, children: int) -> list[Prefix]:
    return [Prefix.of_lanes(own.view(np.int64)) for own in router.counts_at(lane_rounds(position, router.lanes))]


@of_children.register
def _(router: StepBlend, position: int, children: int) -> list[Prefix]:
    start = position - position % router.lanes  # here, all lanes that share a choice are at the same round
    counts = router.counts_at(lane_rounds(start, router.lanes))
    found = [Prefix.of_lanes(own.view(np.int64)) for own in counts]
    which, below = router.route(np.arange(start, position))
    return [_combined(prefix, below[which == child], _none()) for child, prefix in enumerate(found)]


@of_children.register(EpochSegments)
@of_children.register(EpochizedBlend)
def _(router: EpochizedBlend | EpochSegments, position: int, children: int) -> list[Prefix]:
    epoch = router.epoch_at(position)
    return _continued(router, router.start(epoch), position, router.firsts(epoch))


@of_children.register
def _(router: Concat, position: int, children: int) -> list[Prefix]:
    lengths = np.array(router.lengths, np.int64)
    turn, place = divmod(position, int(lengths.sum()))
    own = turn * lengths + np.clip(place - (np.cumsum(lengths) - lengths), 0, lengths)
    return [Prefix(whole) for whole in own.tolist()]


@of_children.register
def _(router: Limit, position: int, children: int) -> list[Prefix]:
    turn, place = divmod(position, router.limit)
    if 2 * router.limit < router.length:
        return _continued(router, 0, position, [0])
    cut = np.arange(router.limit, router.length)
    without = (np.arange(turn)[:, None] * router.length + cut).reshape(-1)
    return [Prefix(turn * router.length + place, without=without)]


@of_children.register
def _(router: WindowShuffle, position: int, children: int) -> list[Prefix]:
    start = 0
    if router.passes is not None:
        start = router.passes.start(router.passes.epoch_at(position))
    start = position - (position - start) % router.window
    return _continued(router, start, position, [start])


@of_children.register
def _(router: Holes, position: int, children: int) -> list[Prefix]:
    rounds = _rounds_behind(router, position)
    return [_combined(Prefix.of_lanes(rounds), _none(), router.before(rounds))]


def _rounds_behind(router: Holes, position: int) -> Int64Array:
    """Rounds of the leaf until the last draw of each lane before a position, (L,)."""
    draws = lane_rounds(position, router.lanes)
    return np.where(draws > 0, router.rounds(np.maximum(draws - 1, 0), np.arange(router.lanes)) + 1, 0)


@singledispatch
def ends_of(router: Router, position: int, children: int) -> list[int]:
    """Positions of each child behind all those that positions before `position` use; fast, and not much too large."""
    if isinstance(router, FoldingRouter):
        carry = router.anchor(position)
        return [int(count) + max(0, position - carry[0]) for count in router.counts(carry)]
    return [prefix.end for prefix in of_children(router, position, children)]


@ends_of.register(EpochSegments)
@ends_of.register(EpochizedBlend)
def _(router: EpochizedBlend | EpochSegments, position: int, children: int) -> list[int]:
    return router.firsts(router.epoch_at(position) + 1)


@ends_of.register
def _(router: Limit, position: int, children: int) -> list[int]:
    return [-(-position // router.limit) * router.length]


@ends_of.register
def _(router: WindowShuffle, position: int, children: int) -> list[int]:
    return [position + router.window]


@ends_of.register
def _(router: Holes, position: int, children: int) -> list[int]:
    return [int(_rounds_behind(router, position).max()) * router.lanes]


def leaf_ends(tree: RouteTree | None, position: int) -> list[int]:
    """`ends_of` for each leaf of a tree."""
    if tree is None:
        return [position]
    ends = ends_of(tree.router, position, len(tree.children))
    return [end for own, child in zip(ends, tree.children, strict=True) for end in leaf_ends(child, own)]
