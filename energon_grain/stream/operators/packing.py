"""Packing in lanes: choosing, among the items a lane holds, those that make one item together."""

from __future__ import annotations

import reprlib
from collections import deque
from dataclasses import dataclass
from typing import Any

from energon_grain.errors import ConfigError, SkipSample
from energon_grain.samplers.hashing import fold
from energon_grain.stream.operators.lane import Lane
from energon_grain.stream.operators.made_of_several import MadeOfSeveral, Making, Members
from energon_grain.stream.operators.operator import Item, Node, NumberOf, Operator, Reference, State
from energon_grain.stream.spec import HookSpec
from energon_grain.stream.state import Form, Many, Number

_TYPICAL_GROUP = 8


@dataclass(frozen=True, slots=True, eq=False)
class PackNode(MadeOfSeveral):
    """Items packed into one.

    A lane fills its buffer, hands it to `selector` and packs the groups that come back, one after the other; meanwhile
    the buffer is filled up again. The buffer and the groups that wait hold at most `size` items together. Where the
    selector's result has a `rest` (as that of our packers with `keep_rest=True`), those items stay candidates.

    All lanes fill their buffers at the same time. So that they do not hand out the first group of each buffer at the
    same time, too (the smallest, if the selector sorts), lane l begins at group `G * phases[l] div L` of the G groups
    of each buffer, and takes those before it last.

    Attributes:
        child: Of whose items packs are made.
        hook: Packs a list of values into one; may be a generator function.
        generates: Whether it is one.
        key: 64-bit key of the node.
        size: Items that are candidates at once.
        selector: Takes all candidates and returns lists of them; those in none are dropped.
        encoder: Hook on each selected item; None: there is none.
        phases: (L,) a permutation of [0, L).
    """

    child: Node
    hook: HookSpec
    generates: bool
    key: int
    size: int
    selector: HookSpec
    encoder: HookSpec | None
    phases: tuple[int, ...]

    @property
    def finite(self) -> bool:
        """As below."""
        return self.child.finite

    def items(self) -> int:
        """As below, at most."""
        return self.child.items()

    def encoder_key(self, lane: Lane) -> int:
        """Key of the encoder's random numbers."""
        return fold(self.key, "encoder", lane.number, lane.pass_number)

    def rebuild_member(self, reference: Reference, lane: Lane) -> Any:
        """An item, encoded."""
        value = self.child.rebuild(reference, lane)
        if self.encoder is None:
            return value
        return lane.call(self.encoder, self.encoder_key(lane), NumberOf(self.child, reference), value)

    def open(self, lane: Lane, state: State | None) -> Operator:
        """The packer of a lane."""
        if state is None:
            return _Pack(self, lane, self.child.open(lane, None), Making(self, lane, None))
        below, making, rounds, buffer, groups = state
        operator = _Pack(self, lane, self.child.open(lane, below), Making(self, lane, making))
        operator.fill(
            rounds,
            [(reference, self.child.rebuild(reference, lane)) for reference in buffer],
            [[(reference, self.child.rebuild(reference, lane)) for reference in group] for group in groups],
        )
        return operator

    @property
    def state_form(self) -> Form:
        """The state below, that of the making, calls of the selector, buffer, and groups that wait."""
        groups = Many(self.members_form)
        return self.child.state_form, self.making_form, Number(), self.members_form, groups

    def children(self) -> tuple[Node]:
        """The only one."""
        return (self.child,)


class _Pack:
    __slots__ = ("_buffer", "_child", "_encoder_key", "_groups", "_lane", "_making", "_node", "_rounds", "_waiting")

    def __init__(self, node: PackNode, lane: Lane, child: Operator, making: Making) -> None:
        self._node = node
        self._lane = lane
        self._child = child
        self._making = making
        self._encoder_key = node.encoder_key(lane)
        self._rounds = 0
        self._buffer: list[Item] = []
        self._groups: deque[list[Item]] = deque()
        self._waiting = 0

    def fill(self, rounds: int, buffer: list[Item], groups: list[list[Item]]) -> None:
        """Put items back that were held."""
        self._rounds = rounds
        self._buffer = buffer
        self._groups.extend(groups)
        self._waiting = sum(map(len, groups))

    def next(self) -> Item | None:
        while True:
            item = self._making.next()
            if item is not None:
                return item
            if not self._groups:
                self._top_up()
                if not self._buffer:
                    return None
                self._select()
                continue
            group = self._groups.popleft()
            self._waiting -= len(group)
            self._top_up()
            self._pack(group)

    def _top_up(self) -> None:
        room = self._node.size - len(self._buffer) - self._waiting
        following, append = self._child.next, self._buffer.append
        for _ in range(room):
            item = following()
            if item is None:
                return
            append(item)

    def _select(self) -> None:
        """Turn the buffer into groups."""
        node, buffer = self._node, self._buffer
        self._buffer = []
        call, self._rounds = self._rounds, self._rounds + 1
        by_identity: dict[int, list[Item]] = {}
        for item in reversed(buffer):
            by_identity.setdefault(id(item[1]), []).append(item)
        key = fold(node.key, "selector", self._lane.number, self._lane.pass_number)
        try:
            groups = self._lane.call(node.selector, key, [call], [value for _, value in buffer])
            try:
                kept = getattr(groups, "rest", None)
                parts = [list(group) for group in (groups if not kept else (*groups, kept))]
            except TypeError as error:
                raise _no_groups(node.selector, groups) from error
        except ConfigError:
            raise
        except Exception as error:
            for number, (reference, value) in enumerate(buffer):
                # The call failed once, however many samples it takes along.
                why = SkipSample("its selection failed") if number else error
                self._lane.drop(node.child, reference, node.selector, why, value)
            return
        try:
            chosen = [[by_identity[id(value)].pop() for value in part] for part in parts]
        except (KeyError, IndexError) as error:
            raise _no_groups(node.selector, groups) from error
        kept = chosen.pop() if kept else []
        for left in by_identity.values():
            for reference, value in left:
                self._lane.drop(node.child, reference, node.selector, SkipSample("not selected"), value)
        chosen = [group for group in chosen if group]
        if not chosen and kept:
            chosen, kept = [kept], []  # nothing will ever join them: the buffer is full, or the pass is over
        self._buffer = kept
        first = len(chosen) * node.phases[self._lane.number] // len(node.phases)
        self._groups.extend(chosen[first:] + chosen[:first])
        self._waiting = sum(map(len, self._groups))

    def _pack(self, group: list[Item]) -> None:
        node = self._node
        if node.encoder is None:
            self._making.start(tuple([reference for reference, _ in group]), [value for _, value in group])
            return
        members: list[Reference] = []
        values: list[Any] = []
        for reference, value in group:
            try:
                values.append(self._lane.call(node.encoder, self._encoder_key, NumberOf(node.child, reference), value))
            except Exception as error:
                self._lane.drop(node.child, reference, node.encoder, error, value)
                continue
            members.append(reference)
        if members:
            self._making.start(tuple(members), values)

    def begin(self, pass_number: int) -> None:
        self._making.stop()
        self._buffer.clear()
        self._groups.clear()
        self._waiting = 0
        self._child.begin(pass_number)

    def state(self) -> State:
        buffer: Members = tuple([reference for reference, _ in self._buffer])
        groups = tuple([tuple([reference for reference, _ in group]) for group in self._groups])
        return self._child.state(), self._making.state(), self._rounds, buffer, groups

    def expect(self, items: float) -> None:
        room = self._node.size - len(self._buffer) - self._waiting
        self._child.expect(room + items * _TYPICAL_GROUP)


def _no_groups(selector: HookSpec, returned: Any) -> ConfigError:
    return ConfigError(
        f"{selector.name} must return a list of groups, each a list of samples of its argument, of which none may be "
        f"new and none there twice; it returned {reprlib.repr(returned)}. Change samples in `postencode_sample` or "
        f"`pack_selected_samples` instead"
    )
