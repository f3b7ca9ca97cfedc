# SPDX-License-Identifier: Apache-2.0
"""The steps at which a run used a sample, and will use it next: the order of a run, in the other direction.

The passes over a dataset that a run has begun are known from its place. For each of them, the inverse of the order
gives the one position of the sample, and the history of batch sizes gives its step. Nothing is read except the index of
keys.

If hooks drop samples, or lanes filter, group or pack them, positions are exact all the same, but the step of a position
depends on the data before it: see `history.uncertain_uses`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import numpy.typing as npt

from energon_grain.history.keys import samples_with
from energon_grain.history.positions import SampleOrder, in_passes, repeats_pass
from energon_grain.history.timeline import Timeline
from energon_grain.history.uncertain_uses import UncertainUses
from energon_grain.history.uses import ReplayCost, Use, Uses
from energon_grain.history.which import is_filtered
from energon_grain.stream.passes import PassPlan, Progress, Share, places_of
from energon_grain.stream.places import Places
from energon_grain.stream.run import Run

Int64Array = npt.NDArray[np.int64]
_AHEAD = 1 << 12
"""Laps of a dataset that are searched for the next use of a sample."""


class _Answers(Protocol):
    """Finds the uses of single samples."""

    def uses(self, leaf: int, index: int) -> list[Use]:
        """The uses of a sample until now and at least the next one, without its names."""
        ...

    def cost(self, uses: Sequence[Use]) -> ReplayCost:
        """The cost of finding the steps of past uses."""
        ...

    def replayed(self, uses: Uses) -> Uses:
        """The same uses with their steps."""
        ...


def when(
    run: Run, now: Progress, keys: Sequence[str], *, dataset: str | None = None, replay: bool = False, dropped: bool
) -> Uses:
    """Every use of samples until now, and the next one of each.

    Args:
        run: The running stream, and what it knows of the past.
        now: Current place of the stream.
        keys: Keys of samples.
        dataset: Search only in this dataset; see `history.keys.samples_with`.
        replay: Find steps that are not known by making steps again.
        dropped: Whether this stream is known to have dropped something.

    Raises:
        KeyNotFoundError: There is no such key, or no such dataset.
        StateError: A dataset is drawn with replacement, or its order cannot be inverted; or the replay is impossible,
            as in `which`.
    """
    by_data = run.spec.program is not None or dropped or bool(now.drops.any()) or is_filtered(run.spec)
    answers: _Answers = UncertainUses(run, now, dropped) if by_data else _Arithmetic(run, now)
    found = Uses()
    found.since = run.since.step if run.changed and run.since is not None else 0
    for key in keys:
        for leaf, index in samples_with(run.spec.leaves, key, dataset):
            of = run.spec.leaves[leaf]
            names = {"key": key, "dataset": str(of.leaf.source.path), "leaf": "/".join(of.key)}
            uses = _in_order(answers.uses(leaf, index), found.since)
            found += [replace(use, **names) for use in uses]
    unknown = [use for use in found if use.between is not None and use.between[0] < now.step]
    if unknown:
        found.replay = answers.cost(unknown)
        if replay:
            return answers.replayed(found)
    return found


def _in_order(uses: Sequence[Use], since: int) -> Iterator[Use]:
    """Past uses from a step on, and the first later one, in the order of steps."""
    ordered = sorted(uses, key=lambda use: (-1 if use.step is None else use.step, use.position, use.pack or 0))
    for use in ordered:
        last = use.step if use.between is None else use.between[1]
        if use.past and (last is None or last >= since):
            yield use
    yield from [use for use in ordered if not use.past][:1]


@dataclass(slots=True, eq=False)
class _Arithmetic:
    """Uses in a stream whose order is arithmetic, and which dropped nothing."""

    run: Run
    now: Progress

    def uses(self, leaf: int, index: int) -> list[Use]:
        order = self.run.spec.order
        samples = SampleOrder(order, leaf, self.run.spec.leaves[leaf].order)
        end = order.length(0) if repeats_pass(order) else order.start(self.now.pass_number) + self.now.item
        begun = samples.epochs_until(end or 0)
        found = self._located(samples, index, np.arange(begun))
        ahead = samples.lap
        while not repeats_pass(order) and all(use.past for use in found) and ahead < _AHEAD * samples.lap:
            found += self._located(samples, index, np.arange(begun, begun + ahead))
            begun, ahead = begun + ahead, 2 * ahead
        return found

    def cost(self, uses: Sequence[Use]) -> ReplayCost:
        return UncertainUses(self.run, self.now, False).cost(uses)

    def replayed(self, uses: Uses) -> Uses:
        return UncertainUses(self.run, self.now, False).replayed(uses)

    def _located(self, samples: SampleOrder, index: int, epochs: Int64Array) -> list[Use]:
        """The uses of a sample in some passes over its leaf."""
        order, timeline = self.run.spec.order, Timeline(self.run.spec, self.run.share.hosts, self.now)
        placed = samples.items_of(index, epochs)
        passes, items = in_passes(order, placed.item)
        if repeats_pass(order):  # every pass has the positions of the first one
            every = np.arange(self.now.pass_number + 2)
            placed = placed[np.tile(np.arange(len(items)), len(every))]
            items, passes = np.tile(items, len(every)), np.repeat(every, len(items))
        steps, firsts = timeline.steps_of(passes, items)
        earlier = timeline.is_before(passes, items)
        kept = np.flatnonzero(earlier | ((steps >= 0) & ~timeline.skipped(steps)))
        found: list[Use] = []
        for at in kept.tolist():
            use = replace(placed.use(at, index), past=bool(earlier[at]) or int(steps[at]) < self.now.step)
            if earlier[at]:
                found.append(replace(use, between=(0, timeline.first_step - 1)))
                continue
            first, item = int(firsts[at]), int(items[at])
            host, place = self._place(int(passes[at]), first, item, timeline.size_at(int(passes[at]), item))
            found.append(replace(use, exact=True, step=int(steps[at]), host=host, place=place))
        return found

    def _place(self, pass_number: int, first: int, item: int, size: int) -> tuple[int, int]:
        """The host of an item, and its place in the batch of that host. `first` is the first item of its step."""
        run, hosts = self.run, self.run.share.hosts
        plan = replace(PassPlan.of(run.spec, hosts, pass_number), global_batch=size)
        if run.spec.batch is None or run.spec.batch.placing is None or size % hosts:
            return item % hosts, (item - first) // hosts

        def work(share: Share) -> Places:
            places = places_of(run.spec, run.stage.sources, share, pass_number=pass_number, first=first, plan=plan)
            assert places is not None
            return places

        host = int(work(run.share).hosts_of(0)[item - first])
        share = replace(run.share, host=host)
        own = work(share).items(share.to_global(share.first_at(first) + np.arange(size // hosts)))
        return host, int(np.flatnonzero(own == item)[0])
