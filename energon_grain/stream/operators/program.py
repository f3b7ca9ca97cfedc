"""All lanes of one host at work."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from energon_grain.errors import EmptyDatasetError, StateError
from energon_grain.stream.dropped import raise_if_fatal
from energon_grain.stream.lanes import Taken
from energon_grain.stream.operators.lane import Lane, Surroundings
from energon_grain.stream.operators.operator import Node, Operator, Reference, State
from energon_grain.stream.operators.passes import CutNode
from energon_grain.stream.operators.sample_reader import AheadReader
from energon_grain.stream.restore_key import RestoreKey, with_restore_key
from energon_grain.stream.share import Share
from energon_grain.stream.spec import Program
from energon_grain.stream.state import positions


class LaneProgram:
    """Turns samples into a host's items: local item m is item `m div L'` of local lane `m mod L'`.

    Args:
        program: What lanes do.
        share: This host's part.
        reader: Gives the samples.
        around: What the lanes share.
        pass_number: As it counts for the order.
        states: Of each local lane; None: nothing was made yet.
        begins: Whether the pass begins, and `states` are those of the end of the one before.
        batch_size: Items of a step, to read ahead for.
    """

    def __init__(
        self,
        *,
        program: Program,
        share: Share,
        reader: AheadReader,
        around: Surroundings,
        pass_number: int,
        states: tuple[State, ...] | None,
        begins: bool,
        batch_size: int,
    ) -> None:
        self._root = program.root
        self._share = share
        self._around = around
        self._pass = pass_number
        self._lanes = [
            Lane(int(local) * share.hosts + share.host, pass_number, reader, around)
            for local in range(share.local_lanes)
        ]
        self._at_once = max(1, min(batch_size, len(self._lanes)))
        self._operators: list[Operator | None] = [None] * len(self._lanes)
        if states is None:
            self._operators = [self._root.open(lane, None) for lane in self._lanes]
            states = tuple(operator.state() for operator in self._operators if operator is not None)
        self._states = list(states)
        self._ended = [False] * len(self._lanes)
        self._soon = max(1.0, batch_size / len(self._lanes))
        reader.expect = self._expect
        if begins:
            # A saved state does not tell of single lanes that they are still at the end of the pass before.
            self._at_once = len(self._lanes)
            for local, operator in enumerate(self._operators):
                opened = operator or self._open(local)
                opened.begin(pass_number)
                self._states[local] = opened.state()

    def begin_batch(self, number: int) -> None:
        """Tell hooks the number, in the pass, of the batch that the next items are for."""
        self._around.batch = number

    def _open(self, local: int) -> Operator:
        """The operator of a local lane, and with it those of the lanes that the same step will ask for.

        What they hold is read together; what other lanes hold is read when it is their turn, so that the first batch
        after a restore does not wait for it.
        """
        lanes = [(local + place) % len(self._lanes) for place in range(self._at_once)]
        lanes = [lane for lane in lanes if self._operators[lane] is None]
        held = [*positions((self._root.state_form,) * len(lanes), tuple(self._states[lane] for lane in lanes))]
        samples = self._around.read(held) if held else {}
        with rebuilding(self._around):
            for lane in lanes:
                self._lanes[lane].samples = samples
                self._operators[lane] = self._root.open(self._lanes[lane], self._states[lane])
                self._lanes[lane].replays.clear()
        samples.clear()  # parts of the graph that count passes on their own share it
        opened = self._operators[local]
        assert opened is not None
        return opened

    def _expect(self) -> None:
        for operator, ended in zip(self._operators, self._ended, strict=True):
            if operator is not None and not ended:
                operator.expect(self._soon)

    @property
    def states(self) -> tuple[State, ...]:
        """Of each local lane, behind what was taken."""
        return tuple(self._states)

    @property
    def ended(self) -> bool:
        """Whether no lane has any further item in this pass."""
        return all(self._ended)

    def take(self, first: int, count: int) -> Taken:
        """Local items first, …, first + count - 1. Items must be asked for in ascending order, without gaps."""
        taken = Taken([], [], [])
        touched: dict[int, Operator] = {}
        for place in range(count):
            local = (first + place) % len(self._lanes)
            operator = touched.get(local) or self._operators[local] or self._open(local)
            touched[local] = operator
            item = operator.next()
            if item is None:
                self._ended[local] = True
                taken.missing.append(place)
                continue
            self._around.in_a_row = self._around.passes_in_a_row = 0
            key = ("item", self._pass, self._lanes[local].number, item[0])
            taken.samples.append(with_restore_key(item[1], key))
            taken.restore_keys.append(key)
        for local, operator in touched.items():
            self._states[local] = operator.state()
        return taken

    def filler(self) -> tuple[Any, RestoreKey]:
        """The first item of the pass and its restore key: it stands where a padded batch has no item. Always made anew.

        Raises:
            EmptyDatasetError: The pass has none.
        """
        with self._around.replay():
            for number in range(self._share.lanes):
                lane = Lane(number, self._pass, self._around.direct, self._around)
                item = self._root.open(lane, None).next()
                if item is not None:
                    key = ("item", self._pass, number, item[0])
                    return with_restore_key(item[1], key), key
        raise EmptyDatasetError("a pass has no item at all: filters and packers drop everything")


@contextmanager
def rebuilding(around: Surroundings) -> Generator[None]:
    """A context in which what hooks made once is made again.

    Raises:
        FatalSampleError: A hook failed as no policy may skip.
        StateError: A hook failed in another way.
    """
    with around.replay():
        try:
            yield
        except StateError:
            raise
        except Exception as error:
            raise_if_fatal(error, "a hook", "a sample that is rebuilt")
            around.restore_failed(error, None, None)
            raise StateError(
                f"a sample that a saved state holds cannot be rebuilt, a hook fails on it now with "
                f"{type(error).__name__}: {error}; hooks must do the same whenever they see a sample"
            ) from error


def rebuild_item(program: Program, around: Surroundings, pass_number: int, lane: int, reference: Reference) -> Any:
    """An item again, from its restore key."""
    at = Lane(lane, pass_number, around.direct, around)
    at.samples = around.read([*positions(program.root.reference_form, reference)])
    with rebuilding(around):
        value = program.root.rebuild(reference, at)
    return with_restore_key(value, ("item", pass_number, lane, reference))


def goes_on(node: Node) -> bool:
    """Whether a pass goes on where the last one ended, so that states outlive passes."""
    return (isinstance(node, CutNode) and node.goes_on) or any(goes_on(child) for child in node.children())
