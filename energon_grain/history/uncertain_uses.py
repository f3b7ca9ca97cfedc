# SPDX-License-Identifier: Apache-2.0
"""Uses of samples whose steps depend on data: hooks drop samples, or lanes filter, group or pack them.

A lane takes the samples of its rounds in order, and each place of a run that is known (its beginning, the restored
state, states saved since, and now) says how many rounds each lane has taken. So a sample was taken between two of them.
Only making the steps between them again says in which step it was delivered.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from energon_grain.errors import StateError
from energon_grain.history.positions import Placed, SampleOrder, in_passes
from energon_grain.history.recompute import Entry, Walk
from energon_grain.history.uses import ReplayCost, Use, Uses
from energon_grain.history.which import Question, inspects_samples, same_place
from energon_grain.samplers.blend import lane_rounds
from energon_grain.stream.index_map import IndexMap
from energon_grain.stream.passes import Progress
from energon_grain.stream.run import Run
from energon_grain.stream.state import Rounds, positions, walk

Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Taken:
    """How far the lanes of a host are in an index map at a place.

    Attributes:
        place: The place.
        passes: (lanes of the host,) the pass of each.
        rounds: (lanes of the host,) rounds that each took in it.
        held: Positions that were taken and not delivered yet.
    """

    place: Progress
    passes: Int64Array
    rounds: Int64Array
    held: frozenset[int]

    def has(self, lane: int, pass_number: int, turn: int) -> bool:
        """Whether one of the host's lanes took a round before the place."""
        return (pass_number, turn) < (int(self.passes[lane]), int(self.rounds[lane]))


def taken_at(run: Run, place: Progress, feed: int) -> Taken:
    """How far the lanes of this host are in an index map: the order, or a numbered feed of lanes."""
    own, spec = run.share, run.spec
    if spec.program is None:
        rounds = lane_rounds(place.item, own.lanes)[own.host :: own.hosts] + place.drops if own.whole_lanes else None
        passes = np.full(own.local_lanes, place.pass_number, np.int64)
        return Taken(place, passes, np.zeros(1, np.int64) if rounds is None else rounds, frozenset())
    passes, rounds = np.zeros(own.local_lanes, np.int64), np.zeros(own.local_lanes, np.int64)
    held: set[int] = set()
    for lane, state in enumerate(place.lanes or ()):
        for form, found in walk(spec.program.root.state_form, state, later=True):
            if form.feed != feed:
                continue
            if isinstance(form, Rounds):
                passes[lane], rounds[lane] = found
            else:
                held.add(found)
    return Taken(place, passes, rounds, frozenset(held))


def _name(use: Use) -> tuple[str, int, int]:
    return use.leaf, use.index, use.position


@dataclass(slots=True, eq=False)
class UncertainUses:
    """Uses of samples, with positions by arithmetic and steps by a replay. Arguments as of `history.when.when`."""

    run: Run
    now: Progress
    dropped: bool
    _references: dict[tuple[int, int], set[tuple[str, int, int]]] = field(
        default_factory=lambda: defaultdict[tuple[int, int], set[tuple[str, int, int]]](set)
    )
    """How restore keys name samples, (leaf, child position) or (feed, position); and leaf, sample, position."""
    _candidates: dict[tuple[str, int, int], Use] = field(default_factory=dict[tuple[str, int, int], Use])
    """Uses that may be past, by leaf, sample, position."""

    def uses(self, leaf: int, index: int) -> list[Use]:
        """The uses of a sample until now, as far as this host knows, and at least the next one."""
        feed, order, stripe, first = self._feed_of(leaf)
        samples = SampleOrder(order, leaf - first, self.run.spec.leaves[leaf].order)
        known = [taken_at(self.run, place, feed) for place in self._known]
        found: list[Use] = []
        done, until = 0, samples.epochs_until(self._reached(order, known[-1], stripe))
        if self.run.share.hosts > 1:  # lanes of other hosts can be ahead
            until += 2 * samples.lap
        name = "/".join(self.run.spec.leaves[leaf].key)
        for _ in range(12):
            placed = samples.items_of(index, np.arange(done, until))
            found += self._placed(placed, order, stripe, known, index)
            names = (placed.child, leaf) if feed < 0 else (placed.item, feed)
            for at, position in zip(names[0].tolist(), placed.position.tolist(), strict=True):
                self._references[names[1], at].add((name, index, position))  # planned packs have several samples
            if not all(use.past for use in found):
                break
            done, until = until, until + samples.lap + (until - done)
        self._candidates.update({(name, index, use.position): use for use in found})
        return found

    def cost(self, uses: Sequence[Use]) -> ReplayCost:
        """The cost of finding the steps of past uses."""
        low = min(use.between[0] for use in uses if use.between)
        high = max(self._last_of(use) for use in uses)
        start = max((place.step for place in self._known if place.step <= low), default=0)
        steps = high + 1 - start
        items = steps * self.now.history[-1][4]
        return ReplayCost(first=start, steps=steps, samples=items if self._reads else 0)

    def replayed(self, uses: Uses) -> Uses:
        """The uses with their steps, found by making steps again; past ones that are in no step are left out.

        Those that this host takes for later ones can be past ones of other hosts, or of a pack that it still holds.
        """
        unknown = [use for use in uses if use.between is not None and use.between[0] < self.now.step]
        wanted, cost = self._wanted(uses), self.cost(unknown)
        made: list[Use] = []
        for step, host, batch in self._steps(cost.first, max(map(self._last_of, unknown))):
            made += self._in(batch, step, host, wanted)
        done = set(map(_name, made)) | {_name(use) for use in unknown if use.past}
        found = Uses([*(use for use in uses if _name(use) not in done), *made])
        order = {key: number for number, key in enumerate(dict.fromkeys(use.key for use in uses))}
        found.sort(key=lambda use: (order[use.key], not use.past, -1 if use.step is None else use.step))
        found.replay, found.replayed, found.since = cost, True, uses.since
        return found

    def _wanted(self, uses: Uses) -> dict[tuple[int, int], list[Use]]:
        """The uses to look for in steps that are made again, by what restore keys call their samples."""
        named = {(use.leaf, use.index): use for use in uses}
        known: dict[tuple[str, int, int], Use] = {}
        for name, use in self._candidates.items():
            one = named.get(name[:2])
            if one is not None:
                known[name] = replace(use, key=one.key, dataset=one.dataset, leaf=one.leaf)
        return {key: [known[name] for name in names if name in known] for key, names in self._references.items()}

    def _last_of(self, use: Use) -> int:
        """The last step that can have delivered a past use."""
        last = self.now.step - 1
        return last if use.between is None or use.between[1] is None else min(use.between[1], last)

    @property
    def _reads(self) -> bool:
        """Whether a replay has to read samples."""
        spec = self.run.spec
        return spec.program is None or self.dropped or bool(self.now.drops.any()) or inspects_samples(spec)

    @property
    def _known(self) -> list[Progress]:
        """The known places of the run, in order, from its beginning or the change of its configuration until now."""
        run = self.run
        begin = Progress(drops=np.zeros(run.share.local_lanes, np.int64), history=self.now.history[:1])
        places = [*run.saved, self.now] if run.since is None else [run.since, *run.saved, self.now]
        places = sorted((each for each in places if each.step <= self.now.step), key=lambda each: each.step)
        return places if run.changed else [begin, *places]

    def _feed_of(self, leaf: int) -> tuple[int, IndexMap, int, int]:
        """The feed of a leaf, its order, the size of its stripes, and the number of its first leaf."""
        if self.run.spec.program is None:
            return -1, self.run.spec.order, 1, 0
        feed = next(feed for feed in self.run.spec.program.feeds if leaf in feed.leaves)
        return feed.index, feed.order, feed.stripe, leaf - feed.leaves.index(leaf)

    def _reached(self, order: IndexMap, taken: Taken, stripe: int) -> int:
        """A position behind all that the lanes of this host took."""
        number = int(taken.passes.max())
        rounds = int(taken.rounds[taken.passes == number].max()) + stripe
        if self.run.spec.program is None and not self.run.share.whole_lanes:
            return order.start(number) + self.now.item
        end, length = rounds * self.run.share.lanes, order.length(number)
        return order.start(number) + (end if length is None else min(end, length))

    def _placed(self, placed: Placed, order: IndexMap, stripe: int, known: list[Taken], index: int) -> list[Use]:
        passes, items = in_passes(order, placed.item)
        block, inside = np.divmod(items, stripe)
        rounds, lanes = block // self.run.share.lanes * stripe + inside, block % self.run.share.lanes
        return [
            self._bounded(placed.use(at, index), known, *place)
            for at, place in enumerate(
                zip(lanes.tolist(), passes.tolist(), rounds.tolist(), placed.item.tolist(), strict=True)
            )
        ]

    def _bounded(self, use: Use, known: list[Taken], lane: int, pass_number: int, turn: int, position: int) -> Use:
        """A use with the steps that can have delivered it."""
        local, hosts = lane // self.run.share.hosts, self.run.share.hosts
        if lane % hosts != self.run.share.host or not self.run.share.whole_lanes:
            # The lane of another host: about as far as those of this host.
            last = known[-1]
            past = (pass_number, turn) < (int(last.passes.max()), int(np.median(last.rounds)))
            return replace(use, past=past, between=(0, None))
        before = 0
        for taken in known:
            if taken.has(local, pass_number, turn):
                if position not in taken.held:
                    return replace(use, past=True, between=(before, max(before, taken.place.step - 1)))
            else:  # what a place holds can have been delivered before in part, if a pack becomes several items
                before = taken.place.step
        return replace(use, past=False, between=(before, None))

    def _steps(self, first: int, last: int) -> Iterator[tuple[int, int, list[Entry]]]:
        """Steps that are made again: number, host, and the entries of the batch of that host."""
        question = Question(self.run, self.now, first, self.dropped)
        start = question.nearest()
        skipped = () if self.run.spec.program is not None else self.now.skipped
        segments, since = question.segments(), self.run.since
        check = since if since is not None and start[0].step < since.step else None
        for places, made in Walk(self.run, segments, dict(skipped), read=self._reads).behind_steps(start):
            step = places[0].step
            for host, batch in enumerate(made or ()):
                yield step - 1, host, batch
            if check is not None and step == check.step and made is not None:
                self._check(places[min(self.run.share.host, len(places) - 1)], check)
                check = None
            if step > last:
                return

    @staticmethod
    def _check(place: Progress, known: Progress) -> None:
        """Check that steps that were made again lead to a known place. Raises StateError."""
        if not same_place(place, known, lanes=False):
            raise StateError(
                f"when: making the steps before step {known.step} again does not lead to the restored state: batches "
                f"were cut differently, or hooks do not return the same results as before; call this on a stream just "
                f"restored from an earlier state, with the settings of then"
            )

    def _in(self, batch: list[Entry], step: int, host: int, wanted: dict[tuple[int, int], list[Use]]) -> Iterator[Use]:
        """The wanted samples in the batch of a host, as past uses in that step."""
        form = () if self.run.spec.program is None else self.run.spec.program.root.reference_form
        for place, (_, _, (kind, *rest)) in enumerate(batch):
            if kind == "sample":
                members: list[Any] = [(rest[0], rest[1])]
            else:
                members = list(rest[2] if kind == "pack" else positions(form, rest[2]))
            for at, (number, position) in enumerate(members):
                for use in wanted.get((number, position), ()):
                    pack = at if len(members) > 1 else use.pack
                    yield replace(
                        use, past=True, exact=True, step=step, host=host, place=place, pack=pack, between=None
                    )
