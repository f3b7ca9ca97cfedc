# SPDX-License-Identifier: Apache-2.0
"""Finding the samples of a step: by arithmetic, by walking through positions, or by making the steps again.

If the order of items is arithmetic, so is the answer. If items are formed in lanes, the run is walked through again
from the nearest known place: its beginning, the restored state, a state saved since, or the current place. Operators
that use positions alone (batches in a lane, repetitions, limits, shuffles, mixtures) then run without reading samples.
Filters, groups, packs and generators need the samples, and so does everything once a sample was dropped.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import repeat

import numpy as np
import numpy.typing as npt

from energon_grain.errors import StateError
from energon_grain.history.recompute import Entry, Walk
from energon_grain.stream.cursor import restored
from energon_grain.stream.index_map import Draws
from energon_grain.stream.lanes import LaneOperator
from energon_grain.stream.passes import POSITIONS, PassPlan, Progress, Segment, Share, place_of, places_of
from energon_grain.stream.run import Run, SampleRecord, StepSamples
from energon_grain.stream.spec import StreamSpec
from energon_grain.stream.state import Form, ListOf, OneOf, Same, WithExtra, positions

_MAX_READ = 1 << 20
_MAX_REPLAYED = 1 << 24
"""Maximum number of items that are made again, or walked through, for one answer: some minutes."""


def which(run: Run, now: Progress, step: int, *, dropped: bool) -> StepSamples:
    """The samples of the global batch of a step, past or future.

    Steps before the last change of the batch size are found through the history, later ones with the current batch
    size. Without reading, a host knows only of drops in its own lanes, until the states of all hosts are merged.

    Args:
        run: The running stream, and what it knows of the past.
        now: Current place of the stream.
        step: Number of the step: 0, 1, 2, …
        dropped: Whether this stream is known to have dropped something.

    Raises:
        StateError: The step does not exist, or is too far from any known place, or the batches before it were cut
            differently than now; or hooks do not return the same results as before.
    """
    if step < 0:
        raise StateError(f"step {step}: steps are counted 0, 1, 2, …")
    return Question(run, now, step, dropped).answer()


def which_of_steps(run: Run, now: Progress, steps: Sequence[int], *, dropped: bool) -> dict[int, StepSamples]:
    """As `which`, for several steps. Where steps have to be made again, all of them are found in one walk."""
    ordered = sorted(set(steps))
    if not ordered or ordered[0] < 0:
        raise StateError(f"steps {ordered[:1]}: expected at least one step; steps are counted 0, 1, 2, …")
    question = Question(run, now, ordered[-1], dropped, earlier=tuple(ordered[:-1]))
    if question.is_arithmetic(ordered[0]):
        return {step: which(run, now, step, dropped=dropped) for step in ordered}
    return question.answers()


def is_arithmetic(run: Run, now: Progress, step: int, *, dropped: bool) -> bool:
    """Whether the samples of a step, and of all later ones, follow from arithmetic."""
    return Question(run, now, step, dropped).is_arithmetic(step)


@dataclass(slots=True, eq=False)
class Question:
    """A request for the samples of a step, and perhaps of earlier ones. The other fields are arguments of `which`."""

    run: Run
    now: Progress
    step: int
    dropped: bool
    earlier: tuple[int, ...] = ()

    @property
    def first(self) -> int:
        """The first step that is asked for."""
        return self.earlier[0] if self.earlier else self.step

    def answer(self) -> StepSamples:
        """The samples of the one step."""
        return self._arithmetic() if self.is_arithmetic(self.step) else self.answers()[self.step]

    def answers(self) -> dict[int, StepSamples]:
        """The samples of all steps, from a walk through the run."""
        spec = self.run.spec
        self._check_hosts()
        if spec.program is not None and _hides(spec.program.root.reference_form):
            raise StateError(
                f"which({self.step}): a stream-to-stream function (IterMapDataset) makes items of this dataset, and "
                f"only the function knows their samples; the `__sources__` of delivered items may show them"
            )
        alone = _balanced(spec) and not self.earlier and self.step >= self.now.history[0][0]
        start = self._at() if alone else self.nearest()
        since = self.run.since
        unknown = since if since is not None and start[0].step < since.step else None
        keys = self._by_positions(start, unknown)
        if keys is not None:
            return self._all_records(keys, read=False)
        return self._all_records(self._by_reading(start, unknown), read=True)

    def _all_records(self, keys: dict[int, list[Entry]], *, read: bool) -> dict[int, StepSamples]:
        """The records of the items of each step."""
        found = {step: self._records(entries) for step, entries in keys.items()}
        for samples in found.values():
            samples.read = read
        return found

    def _check_hosts(self) -> None:
        """Refuse to replay the lanes of other hosts in an amended run. Raises StateError."""
        if self.run.spec.described_by is not None and self.run.share.hosts > 1:
            raise StateError(
                f"which({self.step}): the mixture of this run was amended, and samples were dropped or held, so a host "
                f"knows where amendments begin in its own lanes only; restore the state of all hosts on one host, and "
                f"call this there"
            )

    def is_arithmetic(self, first: int) -> bool:
        """Whether the current place and arithmetic suffice, from a step on."""
        if self.run.spec.program is not None or is_filtered(self.run.spec):
            return False
        if self.now.drops.any() or first < self.now.history[0][0]:
            return False
        return not (_balanced(self.run.spec) and self.dropped)

    def _by_positions(self, start: list[Progress], unknown: Progress | None) -> dict[int, list[Entry]] | None:
        """One entry per item of each step, without reading; None: positions do not suffice."""
        program = self.run.spec.program
        if program is None or self.dropped or self.now.drops.any() or inspects_samples(self.run.spec):
            return None
        if unknown is not None and any(feed.finite for feed in program.feeds):
            return None
        return self._replayed(start, check=unknown, read=False)

    def _by_reading(self, start: list[Progress], unknown: Progress | None) -> dict[int, list[Entry]]:
        """One entry per item of each step, from steps that are made again."""
        # Batch sizes before the history are unknown, but they led to a known place.
        check = unknown if unknown is not None and start[0].step < unknown.history[0][0] else None
        keys = self._replayed(start, check=check, read=True)
        if keys is None:
            raise StateError(
                f"which({self.step}): the batches before step {self.segments()[0][0]} were cut differently than now "
                f"(batch size, limit, last_batch, number of hosts), or hooks do not return the same results as before; "
                f"call this on a stream just restored from a state before step {self.step}, with the settings of then"
            )
        return keys

    def _arithmetic(self) -> StepSamples:
        order, hosts = self.run.spec.order, self.run.share.hosts
        pass_number, item, size = place_of(self.run.spec, hosts, self.now.history, self.step)
        length = order.length(pass_number)
        stop = item + size if length is None else min(item + size, length)
        if order.start(pass_number) + stop > POSITIONS:
            raise StateError(f"which({self.step}): the order has no such position; positions are below 2**62")
        draws, items = order.draw(np.arange(item, stop), pass_number), np.arange(item, stop)
        plan = dataclasses.replace(PassPlan.of(self.run.spec, hosts, pass_number), global_batch=size)
        sources, share = self.run.stage.sources, self.run.share
        work = places_of(self.run.spec, sources, share, pass_number=pass_number, first=item, plan=plan)
        if work is None or size % hosts:  # made with another number of hosts
            of_hosts = items % hosts
        else:
            of_hosts = work.hosts_of(0)[: stop - item]
        places = np.arange(stop - item) if draws.items is None else draws.items.owner()
        return self._located(items[places].tolist(), of_hosts[places].tolist(), draws)

    def _at(self) -> list[Progress]:
        """The place before a step that does not depend on the steps before it, on all hosts."""
        hosts = self.run.share.hosts
        pass_number, item, size = place_of(self.run.spec, hosts, self.now.history, self.step)
        drops = np.zeros(self.run.share.local_lanes, np.int64)
        history = ((self.step, pass_number, 0, item, size),)
        return [Progress(drops=drops, step=self.step, pass_number=pass_number, item=item, history=history)] * hosts

    def _located(self, items: Sequence[int], hosts: Sequence[int], draws: Draws) -> StepSamples:
        found, sources = StepSamples(), self.run.stage.sources
        drawn = zip(items, hosts, draws.leaf.tolist(), draws.index.tolist(), draws.epoch.tolist(), strict=True)
        for item, host, leaf, index, epoch in drawn:
            place, path = sources[leaf].locate(index), sources[leaf].path
            found.append(
                SampleRecord(
                    item=item,
                    host=host,
                    dataset=path,
                    shard=place.shard,
                    key=place.key,
                    start=place.start,
                    stop=place.stop,
                    index=index,
                    epoch=epoch,
                )
            )
        return found

    def _records(self, keys: list[Entry]) -> StepSamples:
        """The records of items, from their restore keys."""
        program = self.run.spec.program
        items, hosts, drawn = self._drawn(keys)
        parts: list[Draws] = []
        owners: list[npt.NDArray[np.int64]] = []
        feeds, places = np.array(drawn, np.int64).reshape(-1, 2).T
        for feed in np.unique(feeds).tolist():
            at = np.flatnonzero(feeds == feed)
            if program is not None:
                draws = program.feeds[feed].draw(places[at])
            else:
                draws = self.run.spec.order.draw_children(np.full(len(at), feed, np.int32), places[at])
            parts.append(draws.members)
            owners.append(at if draws.items is None else at[draws.items.owner()])
        owner = np.concatenate(owners)
        order = np.argsort(owner, kind="stable")
        entries = owner[order].tolist()
        found = [items[entry] for entry in entries], [hosts[entry] for entry in entries]
        return self._located(*found, Draws.joined(parts)[order])

    def _drawn(self, keys: list[Entry]) -> tuple[list[int], list[int], list[tuple[int, int]]]:
        """For each sample its item, host, and (feed, or the leaf if there is no program; position)."""
        items: list[int] = []
        hosts: list[int] = []
        drawn: list[tuple[int, int]] = []
        program = self.run.spec.program
        form = () if program is None else program.root.reference_form
        for item, host, (kind, *rest) in sorted(keys, key=lambda entry: entry[0]):
            if kind == "pack":
                own = rest[2]
            else:
                own = [(rest[0], rest[1])] if kind == "sample" else [*positions(form, rest[2])]
            items += repeat(item, len(own))
            hosts += repeat(host, len(own))
            drawn += own
        return items, hosts, drawn

    def nearest(self) -> list[Progress]:
        """The nearest place before a step that is known on all hosts, for each of them."""
        run = self.run
        since = [] if run.since is None else [run.since]
        places = [*run.saved, self.now, *since] if run.share.hosts == 1 else since
        nearest = max((each for each in places if each.step <= self.first), key=lambda each: each.step, default=None)
        if nearest is None:
            return self._beginning()
        if run.share.hosts == 1:
            return [nearest]
        if run.state is None or run.state["host"] != [0, 1]:  # of a single host
            return self._beginning()
        plan, changed = PassPlan.of(run.spec, run.share.hosts), run.changed
        return [restored(run.state, run.spec, host, plan, allow_changes=changed) for host in self._hosts()]

    def _hosts(self) -> list[Share]:
        share = self.run.share
        return [Share(host, share.hosts, share.lanes) for host in range(share.hosts)]

    def _beginning(self) -> list[Progress]:
        """The beginning of the run, on all hosts. Raises StateError if it was of another configuration."""
        if self.run.changed:
            since = -1 if self.run.since is None else self.run.since.step
            raise StateError(
                f"which({self.step}): the run had another configuration or other data before the state that was "
                f"restored with allow_changes, at step {since}; call this with that configuration and data"
            )
        if self.run.spec.program is not None:
            self.run.share.require_whole_lanes("items of this dataset are formed in lanes")
        history = ((0, 0, 0, 0, self.segments()[0][4]),)
        return [Progress(drops=np.zeros(host.local_lanes, np.int64), history=history) for host in self._hosts()]

    def segments(self) -> list[Segment]:
        """Known batch sizes."""
        known = {
            segment[0]: segment
            for place in (self.run.since, self.now)
            if place is not None
            for segment in place.history
        }
        return [known[step] for step in sorted(known)]

    def _replayed(self, start: list[Progress], *, check: Progress | None, read: bool) -> dict[int, list[Entry]] | None:
        """One entry per item of each step; None: the steps do not lead to the place `check`."""
        segments = self.segments()
        self._require_near(start[0].step, segments, check, read=read)
        walk = Walk(self.run, segments, self._skipped(), read=read)
        share = self.run.share
        wanted, found = {self.step, *self.earlier}, dict[int, list[Entry]]()
        for places, made in walk.behind_steps(start):
            place = places[share.host if len(places) == share.hosts else 0]
            if made is not None and place.step - 1 in wanted:
                found[place.step - 1] = [entry for each in made for entry in each]
            if check is not None:
                if place.step > check.step:
                    return None
                check = None if same_place(place, check, lanes=len(places) == share.hosts) else check
            if self.step in found and check is None:
                return found
        raise AssertionError

    def _require_near(self, begin: int, segments: list[Segment], check: Progress | None, *, read: bool) -> None:
        """Check that an answer takes at most some minutes."""
        until = self.step if check is None else max(self.step, check.step)
        items = (until - begin) * max(segment[4] for segment in segments)
        most = _MAX_READ if read else _MAX_REPLAYED
        if items > most:
            what = "read and made" if read else "walked through"
            raise StateError(
                f"which({self.step}): the samples of a batch of this dataset depend on the steps before it. The "
                f"nearest known place is step {begin}, and {items} items, more than {most}, would have to be {what} "
                f"from there; call this on a stream just restored from the nearest state before the step"
            )

    def _skipped(self) -> dict[int, int]:
        """Number of skipped steps, by the first of them. Raises StateError if this step was skipped."""
        skipped = () if self.run.spec.program is not None or _balanced(self.run.spec) else self.now.skipped
        for step in (*self.earlier, self.step):
            if any(first <= step < first + steps for first, steps in skipped):
                raise StateError(f"which({step}): the step was skipped (`skip`), and none of its samples were read")
        return dict(skipped)


def same_place(place: Progress, other: Progress, *, lanes: bool) -> bool:
    """Whether two places are equal. `lanes`: they are of the same lanes, too."""
    numbers = ("step", "pass_number", "pass_step", "item")
    if any(getattr(place, name) != getattr(other, name) for name in numbers):
        return False
    return not lanes or (np.array_equal(place.drops, other.drops) and place.lanes == other.lanes)


def _balanced(spec: StreamSpec) -> bool:
    """Whether hosts get equal work. Then no step depends on drops or skips before it."""
    return spec.batch is not None and spec.batch.placing is not None


def is_filtered(spec: StreamSpec) -> bool:
    """Whether samples are filtered where they are read."""
    return any(hook.filters for hook in spec.stage_hooks())


def inspects_samples(spec: StreamSpec) -> bool:
    """Whether items depend on the contents of samples."""
    assert spec.program is not None
    return is_filtered(spec) or _inspects_items(spec.program.root)


def _inspects_items(operator: LaneOperator) -> bool:
    return operator.inspects_items or any(map(_inspects_items, operator.children))


def _hides(form: Form) -> bool:
    """Whether references of this form do not name all their samples."""
    match form:
        case Same():
            return True
        case tuple():
            return any(map(_hides, form))
        case OneOf():
            return any(map(_hides, form.forms))
        case ListOf():
            return _hides(form.each)
        case WithExtra():
            return _hides(form.value)
        case _:
            return False
