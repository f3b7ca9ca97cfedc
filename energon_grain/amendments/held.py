# SPDX-License-Identifier: Apache-2.0
"""Samples of removed datasets that lanes hold above the outermost blend: in packs, groups and shuffles."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import numpy as np

from energon_grain.datasets.mixtures import BlendLanes
from energon_grain.stream.lanes import LaneOperator, State
from energon_grain.stream.passes import Progress
from energon_grain.stream.spec import StreamSpec
from energon_grain.stream.state import Deferred, Form, ListOf, Number, OneOf, Place, Position, WithExtra, positions

_GONE: Any = object()


def operators_above(root: LaneOperator) -> Iterator[tuple[LaneOperator, int | None]]:
    """The operators above the outermost blend, each with the index of the state of the next one in its own.

    The index is None where both are the same.
    """
    operator = root
    while not isinstance(operator, BlendLanes) and len(operator.children) == 1:
        form, below = operator.state_form, operator.child.state_form
        yield operator, None if form == below else next(at for at, part in enumerate(form) if part == below)
        operator = operator.child


def without_held(spec: StreamSpec, progress: Progress, removed: Collection[int]) -> tuple[Progress, dict[int, int]]:
    """A place without the samples of some leaves that lanes hold, and their number by leaf.

    A group or pack that would be empty is dropped. A pack that a generator function was making ends.

    Args:
        spec: The stream.
        progress: A place in it.
        removed: Numbers of the leaves.
    """
    if spec.program is None or progress.lanes is None or not removed:
        return progress, {}
    above = list(operators_above(spec.program.root))
    held: set[Position] = set()
    for state in progress.lanes:
        held.update(_each_own(above, state))
    gone = dict(_of_leaves(spec, held, removed))
    if not gone:
        return progress, {}
    dropped: Counter[int] = Counter()
    lanes: list[State] = []
    for state in progress.lanes:
        dropped.update(gone[position] for position in _each_own(above, state) if position in gone)
        lanes.append(_replaced(above, state, gone))
    return progress._replace(lanes=tuple(lanes)), dict(dropped)


def _each_own(above: list[tuple[LaneOperator, int | None]], state: State) -> Iterator[Position]:
    """The samples that the operators of a lane hold themselves."""
    for operator, place in above:
        if place is None:
            continue
        for at, (form, value) in enumerate(zip(operator.state_form, state, strict=True)):
            if at != place:
                yield from positions(_read_now(form), value)
        state = state[place]


def _read_now(form: Form) -> Form:
    """A form without the marks of what is read later."""
    match form:
        case Deferred():
            return _read_now(form.form)
        case tuple():
            return tuple(map(_read_now, form))
        case _:
            return form


def _of_leaves(spec: StreamSpec, held: set[Position], leaves: Collection[int]) -> Iterator[tuple[Position, int]]:
    """Those of some leaves, with the leaf of each."""
    assert spec.program is not None
    by_feed: dict[int, list[int]] = {}
    for feed, position in held:
        by_feed.setdefault(feed, []).append(position)
    for feed, places in by_feed.items():
        found = spec.program.feeds[feed].draw(np.array(places, np.int64)).leaf.tolist()
        yield from (((feed, place), leaf) for place, leaf in zip(places, found, strict=True) if leaf in leaves)


def _replaced(above: list[tuple[LaneOperator, int | None]], state: State, gone: Mapping[Position, int]) -> State:
    """The state of a lane without some samples."""
    if not above:
        return state
    (operator, place), *rest = above
    if place is None:
        return _replaced(rest, state, gone)
    return tuple(
        _replaced(rest, value, gone) if at == place else _state_without(form, value, gone)
        for at, (form, value) in enumerate(zip(operator.state_form, state, strict=True))
    )


def _state_without(form: Form, value: State, gone: Mapping[Position, int]) -> State:
    match form:
        case Deferred():
            return _state_without(form.form, value, gone)
        case (Number(), Number(), ListOf()) if any(position in gone for position in positions(form, value)):
            return value[0], 0, ()  # the call that makes a pack now
        case ListOf():
            kept = (_item_without(form.each, entry, gone) for entry in value)
            return tuple(entry for entry in kept if entry is not _GONE)
        case _:
            return value


def _item_without(form: Form, value: Any, gone: Mapping[Position, int]) -> Any:
    """The reference of an item without some samples, or a group of such; `_GONE`: nothing is left."""
    match form:
        case Place():
            return _GONE if (form.feed, value) in gone else value
        case ListOf():
            kept = tuple(each for entry in value if (each := _item_without(form.each, entry, gone)) is not _GONE)
            return kept or _GONE
        case OneOf():
            return _part_without(form.forms[value[0]], value, 1, gone)
        case WithExtra():
            return _part_without(form.value, value, 1, gone)
        case (Number(), Number(), ListOf() as members):
            return _part_without(members, value, 2, gone)
        case _:
            return value


def _part_without(form: Form, value: Any, at: int, gone: Mapping[Position, int]) -> Any:
    """A reference with one part that has samples."""
    part = _item_without(form, value[at], gone)
    return _GONE if part is _GONE else (*value[:at], part, *value[at + 1 :])
