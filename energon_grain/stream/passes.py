# SPDX-License-Identifier: Apache-2.0
"""The progress of a stream, the number of steps of a pass, and its end: arithmetic, identical on every host."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from energon_grain.errors import ConfigError, HostsError, StateError
from energon_grain.stream.index_map import IndexMap, Sources
from energon_grain.stream.places import Places
from energon_grain.stream.spec import LastBatch, StreamSpec

Segment = tuple[int, int, int, int, int]
"""(step, pass, pass step, item, G): from this step on, batches of G items follow each other from this item."""
POSITIONS = 1 << 62
"""Number of positions of the order."""
_PASSES_AT_ONCE = 1 << 12
_PASSES_WALKED = 1 << 27
"""Limit on passes that are counted one by one. Takes about a second."""


class Progress(NamedTuple):
    """A place between two steps.

    Attributes:
        drops: (lanes of this host,) samples dropped so far, in this pass or in the endless stream.
        step: Steps delivered since the start of the run.
        pass_number: Pass that the next step belongs to (finite streams: also the pass over the data).
        pass_step: Steps delivered in this pass.
        item: Number of the next item, in the pass of a finite stream or in the endless stream.
        lanes: State of each of this host's lanes, if lanes have a program; None: nothing was made yet.
        ended: Whether the pass has ended, so that the next iteration begins another one.
        history: Where each run of equal steps began. It begins at step 0, or at the last point before which places
            cannot be computed from the number of the step alone.
        skipped: (first step, steps) of each skipped range.
    """

    drops: npt.NDArray[np.int64]
    step: int = 0
    pass_number: int = 0
    pass_step: int = 0
    item: int = 0
    lanes: tuple[Any, ...] | None = None
    ended: bool = False
    history: tuple[Segment, ...] = ()
    skipped: tuple[tuple[int, int], ...] = ()

    def forgetting(self, global_batch: int) -> Progress:
        """The same place, with a history that begins here."""
        segment = (self.step, self.pass_number, self.pass_step, self.item, global_batch)
        return self._replace(history=(segment,))

    def without(self, steps: int) -> Progress:
        """The same place, without counting the last `steps` steps."""
        place = self._replace(step=self.step - steps, pass_step=self.pass_step - steps)
        begin, *_, size = self.history[-1]
        return place.forgetting(size) if begin > place.step else place


@dataclass(frozen=True, slots=True, kw_only=True)
class PassPlan:
    """The shape of a pass.

    Attributes:
        batch_size: Items of one host's step.
        global_batch: G, items of one step of all hosts.
        length: Items of a pass, ignoring drops; None: endless, or known only at its end.
        steps: Maximum number of steps of a pass; None: no limit.
        drops_last: Whether an incomplete global batch at the end is dropped. This is also so if several hosts receive
            single samples, which have no place for a mask.
        keeps: Whether it is delivered short (one host).
        pads: Whether it is padded, with a mask.
    """

    batch_size: int
    global_batch: int
    length: int | None
    steps: int | None
    drops_last: bool
    keeps: bool
    pads: bool

    @classmethod
    def of(cls, spec: StreamSpec, hosts: int, pass_number: int = 0) -> PassPlan:
        """The plan of one pass of a compiled dataset on a number of hosts."""
        length = spec.length(pass_number)
        size = 1 if spec.batch is None else spec.batch.size
        bounds = [bound for bound in (spec.steps, spec.limit) if bound is not None]
        return cls(
            batch_size=size,
            global_batch=size * hosts,
            length=length,
            steps=min(bounds) if bounds else None,
            drops_last=hosts > 1 if spec.batch is None else spec.batch.last == "drop",
            keeps=hosts == 1 and (spec.batch is None or spec.batch.last == "keep"),
            pads=not spec.endless and spec.batch is not None and spec.batch.last == "pad",
        )

    def exhausted(self, item: int) -> bool:
        """Whether a pass has no further step at `item`."""
        if self.length is None:
            return False
        return item + self.global_batch > self.length if self.drops_last else item >= self.length

    def is_over(self, pass_step: int, item: int) -> bool:
        """Whether a pass has ended after `pass_step` steps, with `item` as the next item."""
        return (self.steps is not None and pass_step >= self.steps) or self.exhausted(item)

    def remaining(self, pass_step: int, item: int) -> int | None:
        """Steps of a pass after a place in it, if nothing is dropped; None: endless."""
        left: int | None = None
        if self.length is not None:
            items = max(0, self.length - item)
            left = items // self.global_batch if self.drops_last else -(-items // self.global_batch)
        if self.steps is not None:
            rest = max(0, self.steps - pass_step)
            left = rest if left is None else min(left, rest)
        return left

    def steps_of(self, lengths: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Steps of whole passes of these lengths, if nothing is dropped."""
        steps = lengths // self.global_batch if self.drops_last else -(-lengths // self.global_batch)
        return steps if self.steps is None else np.minimum(steps, self.steps)


def check_last_batch(last_batch: LastBatch, hosts: int) -> None:
    """Check that a mode for the last batch works on this number of hosts. Raises ConfigError if it does not."""
    if last_batch == "keep" and hosts > 1:
        raise ConfigError(
            f"last_batch='keep' with {hosts} hosts: the last batches would have different sizes, and some hosts could "
            f"have none; use 'drop' or 'pad'"
        )


def pass_steps(spec: StreamSpec, plan: PassPlan, progress: Progress) -> int:
    """Steps per host of the pass that `progress` is in, including those already made."""
    remaining = plan.remaining(progress.pass_step, progress.item)
    if remaining is not None:
        return progress.pass_step + remaining
    if spec.program is None:
        return max(1, spec.order.samples // plan.global_batch)
    items = spec.program.root.items()
    return max(1, items // plan.global_batch if plan.drops_last or spec.endless else -(-items // plan.global_batch))


def first_pass_steps(spec: StreamSpec, hosts: int) -> int:
    """Steps per host of the first pass."""
    return pass_steps(spec, PassPlan.of(spec, hosts), Progress(drops=np.zeros(1, np.int64)))


Int64Array = npt.NDArray[np.int64]
_Numbers = TypeVar("_Numbers", int, Int64Array)


@dataclass(frozen=True, slots=True)
class Share:
    """The part of the stream that one host reads.

    Host h of H takes the items q with `q mod H == h`. They are counted m = 0, 1, 2, …: local item m is item `h + H·m`.
    If H divides the number of lanes, these are the items of the lanes `l mod H == h`, and local item m belongs to the
    host's local lane `m mod (L div H)`.
    """

    host: int
    hosts: int
    lanes: int

    def __post_init__(self) -> None:
        if self.hosts < 1 or not 0 <= self.host < self.hosts:
            raise ConfigError(f"host {self.host} of {self.hosts}: the host must be in [0, hosts)")

    @property
    def whole_lanes(self) -> bool:
        """Whether this host's items are those of whole lanes."""
        return self.lanes % self.hosts == 0

    @property
    def possible_hosts(self) -> list[int]:
        """Numbers of hosts with which each host owns whole lanes."""
        return [hosts for hosts in range(1, self.lanes + 1) if self.lanes % hosts == 0]

    @property
    def local_lanes(self) -> int:
        """Number of lanes that this host owns; 1 if hosts do not divide the lanes, and then nothing may be dropped."""
        return self.lanes // self.hosts if self.whole_lanes else 1

    @property
    def stride(self) -> int:
        """Distance between consecutive steps of this share, in steps of the host."""
        return 1

    def first_at(self, item: int) -> int:
        """Number of this host's items before global item `item`: the local number of the first one at or after it."""
        return max(0, -(-(item - self.host) // self.hosts))

    def to_global(self, local: _Numbers) -> _Numbers:
        """Global numbers of local items (or positions)."""
        return local * self.hosts + self.host

    def require_whole_lanes(self, why: str) -> None:
        """Check that this host owns whole lanes. Raises HostsError if the number of hosts does not divide the lanes."""
        if not self.whole_lanes:
            raise HostsError(
                f"{why}, and {self.hosts} hosts do not divide the {self.lanes} lanes of this run: a host must own "
                f"whole lanes, so that it has the next sample of the lane. Run on one of {self.possible_hosts} hosts, "
                f"or start the run with lanes= a multiple of every number of hosts that it should continue on"
            )


@dataclass(frozen=True, slots=True)
class StepsShare(Share):
    """Every W-th step of a host, for parallel readers whose batches are taken in turns.

    Reader w of W makes the steps t of its host with `t mod W == w`. Its own items are counted u = 0, 1, 2, …: item u is
    the host's local item `(u div B · W + w) · B + u mod B`, where B is the batch size. So readers share no samples, and
    if a sample is dropped, later ones of the same reader move up.
    """

    reader: int
    readers: int
    batch_size: int

    @property
    def stride(self) -> int:
        return self.readers

    def first_at(self, item: int) -> int:
        turn, rest = divmod(Share.first_at(self, item), self.batch_size * self.readers)
        return turn * self.batch_size + min(max(rest - self.reader * self.batch_size, 0), self.batch_size)

    def to_global(self, local: _Numbers) -> _Numbers:
        turn = local // self.batch_size
        return Share.to_global(self, local + (turn * (self.readers - 1) + self.reader) * self.batch_size)


def places_of(
    spec: StreamSpec, sources: Sources, share: Share, *, pass_number: int, first: int, plan: PassPlan
) -> Places | None:
    """The places of a host; None: items are assigned by position. The arguments are those of `Placing.places`."""
    if spec.batch is None or spec.batch.placing is None:
        return None
    return spec.batch.placing.places(spec.order, sources, share, pass_number=pass_number, first=first, plan=plan)


def next_pass(before: Progress, spec: StreamSpec, plan: PassPlan, hosts: int) -> Progress:
    """The beginning of the pass after the one that `before` is in."""
    progress = before._replace(pass_number=before.pass_number + 1, pass_step=0, ended=False)
    if not spec.endless:
        lanes = before.lanes if spec.program is not None and spec.program.root.spans_passes else None
        progress = progress._replace(item=0, drops=np.zeros_like(before.drops), lanes=lanes)
        unknown = before.drops.any() or spec.program is not None or spec.order.planned_passes
        if unknown or not history_holds(spec, hosts, before._replace(ended=True)):
            progress = progress.forgetting(plan.global_batch)
    # If passes differ in length, one may have no complete batch.
    return progress._replace(ended=PassPlan.of(spec, hosts, progress.pass_number).is_over(0, progress.item))


def history_holds(spec: StreamSpec, hosts: int, progress: Progress) -> bool:
    """Whether a history leads to the progress, with passes as they are cut now."""
    if progress.drops.any() or spec.program is not None:
        return True  # not used until the next pass begins
    if spec.order.planned_passes and progress.history[-1][1] != progress.pass_number:
        return False  # each pass in between would have to be planned
    pass_number, item, _ = place_of(spec, hosts, progress.history, progress.step, progress.pass_number + 1)
    if spec.order.passes is None:
        return item == progress.item
    behind = (progress.pass_number + 1, 0) if progress.ended else (progress.pass_number, progress.item)
    return (pass_number, item) == behind


def place_in_pass(spec: StreamSpec, share: Share, pass_number: int, pass_step: int) -> Progress:
    """The place before a step of a pass, or after its last step, if nothing is dropped; arithmetic."""
    if pass_number < 0 or pass_step < 0:
        raise StateError(f"step {pass_step} of pass {pass_number}: steps and passes are counted 0, 1, 2, …")
    plan = PassPlan.of(spec, share.hosts, pass_number)
    if spec.order.passes is None:
        before = pass_number * (plan.steps or 0)
        item = (before + pass_step) * plan.global_batch
    else:
        before = _steps_of_passes(spec.order, plan, pass_number)
        item = pass_step * plan.global_batch
    if spec.order.start(pass_number) + item + plan.global_batch > POSITIONS:
        raise StateError(f"step {pass_step} of pass {pass_number}: the order has no such position (they end at 2**62)")
    return Progress(
        step=before + pass_step,
        pass_number=pass_number,
        pass_step=pass_step,
        item=item,
        ended=plan.is_over(pass_step, item),
        drops=np.zeros(share.local_lanes, np.int64),
        history=((0, 0, 0, 0, plan.global_batch),),
    )


def _steps_of_passes(order: IndexMap, plan: PassPlan, count: int) -> int:
    """Steps of the first `count` passes."""
    times, rest = divmod(count, order.period)

    def walked(passes: int) -> int:
        if passes > _PASSES_WALKED:
            raise _too_many_passes(order)
        starts = range(0, passes, _PASSES_AT_ONCE)
        return sum(
            int(plan.steps_of(order.lengths(start, min(_PASSES_AT_ONCE, passes - start))).sum()) for start in starts
        )

    return walked(rest) + (times * walked(order.period) if times else 0)


def _too_many_passes(order: IndexMap) -> StateError:
    return StateError(
        f"passes of this dataset differ in length, and repeat only after {order.period} passes: steps more than "
        f"{_PASSES_WALKED} passes after the last change of the batch size cannot be located"
    )


def place_of_step(spec: StreamSpec, share: Share, step: int) -> Progress:
    """As `place_in_pass`, for a step counted over all passes; at the start of a pass, the end of the previous one."""
    if step < 0:
        raise StateError(f"step {step}: steps are counted 0, 1, 2, …")
    plan = PassPlan.of(spec, share.hosts)
    if spec.order.passes is None:
        pass_number, pass_step = divmod(step, plan.steps) if plan.steps else (0, step)
    else:
        pass_number, item, size = place_of(spec, share.hosts, ((0, 0, 0, 0, plan.global_batch),), step)
        pass_step = item // size
    place = place_in_pass(spec, share, pass_number, pass_step)
    if pass_number and not pass_step:
        pass_step = PassPlan.of(spec, share.hosts, pass_number - 1).remaining(0, 0) or 0
        place = place_in_pass(spec, share, pass_number - 1, pass_step)
    return place


def place_of(
    spec: StreamSpec, hosts: int, history: Sequence[Segment], step: int, until: int | None = None
) -> tuple[int, int, int]:
    """(pass, first item, items) of a step. If it is after the beginning of pass `until`, of that beginning."""
    number = max(at for at, segment in enumerate(history) if segment[0] <= step)
    start, pass_number, pass_step, item, size = history[number]
    ahead = step - start
    if spec.order.passes is None:
        return 0, item + ahead * size, size
    plan = dataclasses.replace(PassPlan.of(spec, hosts, pass_number), global_batch=size)
    left = plan.remaining(pass_step, item)
    assert left is not None
    if ahead < left or (until is not None and pass_number >= until):
        return pass_number, item + ahead * size, size
    pass_number, ahead = _pass_of(spec.order, plan, pass_number + 1, ahead - left, until)
    return pass_number, ahead * size, size


def _pass_of(order: IndexMap, plan: PassPlan, first: int, ahead: int, until: int | None) -> tuple[int, int]:
    """(pass, step in it) of the step that is `ahead` steps after the beginning of pass `first`; see `place_of`."""
    begin, period, steps = first, order.period, 0
    at_once = 1 if order.planned_passes else _PASSES_AT_ONCE
    while until is None or first < until:
        if order.start(first) > POSITIONS:
            return first, 0
        count = at_once if first >= begin + period else min(at_once, begin + period - first)
        count = count if until is None else min(count, until - first)
        ends = np.cumsum(plan.steps_of(order.lengths(first, count)))
        total = int(ends[-1])
        if ahead < total:
            place = int(np.searchsorted(ends, ahead, side="right"))
            return first + place, ahead - int(ends[place - 1] if place else 0)
        first, ahead, steps = first + count, ahead - total, steps + total
        if not steps:
            raise StateError("every pass of this dataset is empty: it has fewer samples than a global batch")
        if first == begin + period:  # from here on, everything repeats
            times = ahead // steps if until is None else min(ahead // steps, (until - first) // period)
            first, ahead = first + times * period, ahead - times * steps
        elif first - begin > _PASSES_WALKED and first < begin + period:
            raise _too_many_passes(order)
    return first, ahead
