# SPDX-License-Identifier: Apache-2.0
"""The states of lanes over an amendment: every operator that stays keeps its own, in a graph with more children.

Below a blend that counts items, because something below it filters, groups, packs or generates, each child has a state
of its own in each lane. An added child begins with an empty one, and a removed one keeps its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from energon_grain.amendments.held import operators_above
from energon_grain.amendments.mixture import Mixture, Unit, own_states
from energon_grain.amendments.removed import initial
from energon_grain.datasets.mixtures import BlendLanes
from energon_grain.errors import AmendmentError
from energon_grain.stream.lanes import LaneOperator, State
from energon_grain.stream.passes import Progress, Share
from energon_grain.stream.spec import StreamSpec

Int64Array = npt.NDArray[np.int64]
States = dict[int, Any]
"""Of one lane, by `id` of their owners: rounds of a blend that counts items; (pass, state) of any other child."""


@dataclass(frozen=True, slots=True)
class Above:
    """The outermost blend, and where the operators above it have the state of the one below, outermost first.

    Attributes:
        places: Index in the operator's state; None: its state is that of the one below.
    """

    places: tuple[int | None, ...]
    blend: BlendLanes

    @classmethod
    def of(cls, root: LaneOperator) -> Above:
        """Find the blend. Raises AmendmentError if there is none."""
        operator, places = root, []
        for above, place in operators_above(root):
            operator = above.child
            places.append(place)
        if not isinstance(operator, BlendLanes):
            raise AmendmentError("the outermost blend is below another mixture: its lanes cannot be amended")
        return cls(tuple(places), operator)

    def below(self, state: State) -> State:
        """The state of the blend in the outermost one."""
        for place in self.places:
            state = state if place is None else state[place]
        return state

    def over(self, state: State, below: State, at: int = 0) -> State:
        """The outermost state with another state of the blend."""
        if at == len(self.places):
            return below
        place = self.places[at]
        if place is None:
            return self.over(state, below, at + 1)
        return (*state[:place], self.over(state[place], below, at + 1), *state[place + 1 :])


def _take_apart(blend: BlendLanes, mixture: Mixture, state: State, found: States) -> None:
    found[id(mixture)], places = state
    for part, child, place in zip(blend.parts, mixture.children, places, strict=True):
        if isinstance(child, Mixture) and child.in_lanes:
            _take_apart(Above.of(part).blend, child, place[1], found)
        else:
            found[id(child)] = place


def _put_together(blend: BlendLanes, mixture: Mixture, found: States) -> State:
    places: list[State] = []
    for part, child in zip(blend.parts, mixture.children, strict=True):
        if isinstance(child, Mixture) and child.in_lanes:
            places.append((0, _put_together(Above.of(part).blend, child, found)))
        else:
            places.append(found.get(id(child)) or (0, initial(part.state_form)))
    return found.get(id(mixture), 0), tuple(places)


class LanesBefore:
    """The states of a host's lanes before an amendment.

    Args:
        spec: The stream until then.
        mixture: Its mixture. It may grow afterwards.
        progress: Its place.
    """

    def __init__(self, spec: StreamSpec, mixture: Mixture, progress: Progress) -> None:
        self._mixture, self._progress = mixture, progress
        self._states: list[States] = []
        assert spec.program is not None
        above = Above.of(spec.program.root)
        for state in progress.lanes or ():
            found: States = {}
            _take_apart(above.blend, mixture, above.below(state), found)
            self._states.append(found)

    def rounds(self, of: Mixture | Unit) -> Int64Array:
        """Rounds that each lane has taken of a blend or a unit, (lanes of the host,)."""
        taken = np.zeros(self._progress.drops.size, np.int64)
        for lane, found in enumerate(self._states):
            state = found.get(id(of), 0)
            taken[lane] = state if isinstance(state, int) else state[1][1]
        return taken

    def note(self, amendment: int, share: Share) -> None:
        """Record the rounds of everything that has states of its own now, for an amendment here."""
        for each in own_states(self._mixture):
            each.taken[amendment] = np.zeros(share.lanes, np.int64)
            each.taken[amendment][share.host :: share.hosts] = self.rounds(each)

    def after(self, spec: StreamSpec) -> Progress:
        """The same place in the stream of the mixture as it is now."""
        if self._progress.lanes is None:
            return self._progress
        assert spec.program is not None
        above = Above.of(spec.program.root)
        lanes: Sequence[State] = [
            above.over(state, _put_together(above.blend, self._mixture, found))
            for state, found in zip(self._progress.lanes, self._states, strict=True)
        ]
        return self._progress._replace(lanes=tuple(lanes))
