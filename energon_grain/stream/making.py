"""What batches, groups and packs have in common: an item made of several items by one call of a hook."""

from __future__ import annotations

from typing import Any

from energon_grain.errors import StateError
from energon_grain.samplers.hashing import fold
from energon_grain.stream.hooks import HookGenerator, HookSpec
from energon_grain.stream.lanes import Item, Lane, LaneOperator, Reference
from energon_grain.stream.state import Form, Many, Number

Members = tuple[Reference, ...]
MakingState = tuple[int] | tuple[int, int, Members]
"""(calls so far,); of a generator function also items that came of the call that still runs, and its members."""


class MadeOfSeveral(LaneOperator):
    """Base of such operators. A reference is (number of the call, number among the items of the call, members).

    Attributes:
        child: Of whose items these are made.
        hook: Takes a list of values.
        generates: Whether it is a generator function.
        key: 64-bit key of the node.
    """

    __slots__ = ()

    child: LaneOperator
    hook: HookSpec
    generates: bool
    key: int

    def rebuild_member(self, reference: Reference, lane: Lane) -> Any:
        """A member's value, as it is handed to the hook."""
        return self.child.rebuild(reference, lane)

    def hook_key(self, lane: Lane) -> int:
        """Key of the hook's random numbers."""
        return fold(self.key, lane.number, lane.pass_number)

    @property
    def members_form(self) -> Form:
        """References of several items."""
        return Many(self.child.reference_form)

    @property
    def making_form(self) -> Form:
        """See `MakingState`."""
        return (Number(), Number(), self.members_form) if self.generates else (Number(),)

    @property
    def reference_form(self) -> Form:
        """Both numbers and the members."""
        return Number(), Number(), self.members_form

    def number(self, reference: Reference) -> int:
        """A hash of both numbers."""
        return fold(reference[0], reference[1])

    def rebuild(self, reference: Reference, lane: Lane) -> Any:
        """The hook called again."""
        call, made, members = reference
        if not members:
            raise StateError(f"{self.hook.name}: a reference names no member; it is not of this dataset, or damaged")
        values = [self.rebuild_member(member, lane) for member in members]
        if not self.generates:
            return lane.call(self.hook, self.hook_key(lane), [call], values)
        generator = lane.run(self.hook, self.hook_key(lane), [call], values)
        generator.skip(made)
        return generator.again(made)


class Making:
    """Calls the hook of an operator in one lane and hands out what comes of it.

    Args:
        node: Whose hook it is.
        lane: Where.
        state: None at the beginning of a pass.
    """

    __slots__ = ("_calls", "_generator", "_key", "_lane", "_made", "_members", "_node", "_ready")

    def __init__(self, node: MadeOfSeveral, lane: Lane, state: MakingState | None) -> None:
        self._node = node
        self._lane = lane
        self._key = node.hook_key(lane)
        self._calls = 0
        self._members: Members = ()
        self._made = 0
        self._generator: HookGenerator | None = None
        self._ready: Item | None = None
        if state is not None:
            self._calls, made, members = (*state, 0, ()) if len(state) == 1 else state
            if members:
                self._calls -= 1
                self.start(members, [node.rebuild_member(member, lane) for member in members])
                assert self._generator is not None
                self._generator.skip(made)
                self._made = made

    def start(self, members: Members, values: list[Any]) -> None:
        """Call the hook. If it drops the values, `next` has nothing."""
        node = self._node
        call, self._calls = self._calls, self._calls + 1
        if node.generates:
            self._members, self._made = members, 0
            self._generator = self._lane.run(node.hook, self._key, [call], values)
            return
        reference = (call, 0, members)
        try:
            self._ready = reference, self._lane.call(node.hook, self._key, [call], values)
        except Exception as error:
            self._lane.drop(node, reference, node.hook, error, values)

    def next(self) -> Item | None:
        """What is ready, if anything is."""
        if self._generator is None:
            item, self._ready = self._ready, None
            return item
        reference = (self._calls - 1, self._made, self._members)
        try:
            value = next(self._generator)
        except StopIteration:
            if not self._made:
                self._lane.count_drop()
            self.stop()
            return None
        except Exception as error:
            self.stop()
            self._lane.drop(self._node, reference, self._node.hook, error, None)
            return None
        self._made += 1
        if self._lane.around.failing:
            self._lane.around.succeeded(self._node.hook.name)
        return reference, value

    def stop(self) -> None:
        """Leave out what is not handed out yet."""
        self._generator = self._ready = None
        self._members, self._made = (), 0

    def state(self) -> MakingState:
        """The place behind the last item."""
        return (self._calls, self._made, self._members) if self._node.generates else (self._calls,)
