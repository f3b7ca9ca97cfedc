# SPDX-License-Identifier: Apache-2.0
"""Computing steps of a run again, with samples or by positions alone, to find their samples."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from itertools import repeat
from typing import Any, cast

import numpy as np

from energon_grain.errors import StateError
from energon_grain.stream.batches import NO_BATCH, BatchStage
from energon_grain.stream.chunks import Chunk, Encoded
from energon_grain.stream.drops import DropBudget
from energon_grain.stream.hooks import HookSpec
from energon_grain.stream.index_map import Draws, Sources
from energon_grain.stream.lanes import LaneOperator
from energon_grain.stream.passes import PassPlan, Progress, Segment, Share, next_pass, places_of
from energon_grain.stream.run import Run
from energon_grain.stream.spec import Program, StreamSpec
from energon_grain.stream.stage import PureStage
from energon_grain.stream.steps import Production, Step
from energon_grain.stream.workers import Shutdown

_EMPTY_PASSES = 1000
_UNREAD = object()
"""Replaces the value of a sample that is not read."""
_Key = tuple[Any, ...]
Entry = tuple[int, int, _Key]
"""(item, its host, restore key)."""


class Walk:
    """Walks through a run again, on all hosts.

    Args:
        run: The running stream.
        segments: Known batch sizes.
        skipped: Number of skipped steps, by the first of them.
        read: Whether to read samples and call hooks. Otherwise positions must suffice.
    """

    def __init__(self, run: Run, segments: list[Segment], skipped: dict[int, int], *, read: bool) -> None:
        self._run = run
        self._segments = segments
        self._skipped = skipped
        self._read = read

    def behind_steps(self, places: list[Progress]) -> Iterator[tuple[list[Progress], list[list[Entry]] | None]]:
        """The places of all hosts after each step from `places` on, with its entries; also where passes begin."""
        empty = 0
        yield places, None
        while True:
            spec, plan, size = self._cut(places)
            step = places[0].step
            if places[0].ended or plan.is_over(places[0].pass_step, places[0].item):
                places = [next_pass(place, spec, plan, len(places)) for place in places]
                empty += 1
                if empty > _EMPTY_PASSES:
                    raise StateError(f"{_EMPTY_PASSES} passes in a row have no step")
                yield places, None
            elif jump := self._skipped.pop(step, 0):
                behind = {"step": step + jump, "pass_step": places[0].pass_step + jump}
                places = [place._replace(item=place.item + jump * size, **behind) for place in places]
                yield places, None
            else:
                stop = self._next_change(step)
                for made in self._steps(spec, plan, places):
                    empty = 0
                    places = [each.progress for each in made]
                    yield places, [each.batch for each in made]
                    if places[0].step >= stop:
                        break
                else:
                    places = [place._replace(ended=True) for place in places]

    def _next_change(self, step: int) -> float:
        """The first later step where the batch size changes, or where a skipped range begins."""
        changes = [*(segment[0] for segment in self._segments), *self._skipped]
        return min((change for change in changes if change > step), default=math.inf)

    def _cut(self, places: list[Progress]) -> tuple[StreamSpec, PassPlan, int]:
        """The dataset with the batch size at a place, the plan of the pass, and the global batch size."""
        step, hosts = places[0].step, len(places)
        size = [segment for segment in self._segments if segment[0] <= step or segment is self._segments[0]][-1][4]
        spec, share = self._run.spec, self._run.share
        own, rest = divmod(size, share.hosts)
        if hosts != (share.hosts if spec.batch is None or not rest else 0):
            raise StateError(
                f"batches of {size} items were made before a change of the batch size, which cannot be made again "
                f"on {share.hosts} hosts; call this on one host"
            )
        if spec.batch is not None and own != spec.batch.size:
            spec = dataclasses.replace(spec, batch=dataclasses.replace(spec.batch, size=own))
        return spec, PassPlan.of(spec, hosts, places[0].pass_number), size

    def _steps(self, spec: StreamSpec, plan: PassPlan, places: list[Progress]) -> Iterator[list[Step]]:
        """The steps of a pass, made again on all hosts. Instead of a batch, each has one entry per item."""
        agrees = spec.program is not None and not spec.endless and len(places) > 1 and plan.pads
        if not self._read:
            assert spec.program is not None
            program = Program(root=_without_hooks(spec.program.root), feeds=spec.program.feeds)
            spec = dataclasses.replace(spec, program=program)
        shutdown = Shutdown()
        shutdown.reset()
        try:
            yield from _together([iter(each) for each in self._productions(spec, places, shutdown)], agrees=agrees)
        finally:
            shutdown.close()

    def _productions(self, spec: StreamSpec, places: list[Progress], shutdown: Shutdown) -> list[Production]:
        """The producers of the steps of each host."""
        hosts = len(places)
        stage = _Stage(self._run.stage, read=self._read)
        productions: list[Production] = []
        for host, place in enumerate(places):
            drops = DropBudget(_no_handler)
            batches = _Batches(spec, stage, drops, host, hosts, place, read=self._read)
            productions.append(
                Production(
                    spec=spec,
                    share=Share(host, hosts, self._run.share.lanes),
                    stage=cast("PureStage", stage),
                    batches=cast("BatchStage", batches),
                    drops=drops,
                    config=self._run.config,
                    pool=None,
                    shutdown=shutdown,
                    progress=place,
                )
            )
        return productions


def _together(hosts: list[Iterator[Step]], *, agrees: bool) -> Iterator[list[Step]]:
    """The steps that all hosts have. `agrees`: skip steps that are empty on all of them, as `Stream` does."""
    empty = 0
    while True:
        made = [next(steps, None) for steps in hosts]
        there = [step for step in made if step is not None]
        if agrees and not any(step.samples for step in there):
            if not any(step.more for step in there):
                return
            empty += 1
        elif len(there) < len(hosts):
            return
        else:
            yield [step._replace(progress=step.progress.without(empty)) for step in there]


class _Stage:
    """The pure stage, or without reading, a stage that returns positions instead of samples."""

    def __init__(self, stage: PureStage, *, read: bool) -> None:
        self._stage = stage if read else None
        self.hook_lock = stage.hook_lock
        self.sources = stage.sources if read else _NoSources()

    def run(self, chunk: Chunk) -> Encoded:
        if self._stage is not None:
            return self._stage.run(dataclasses.replace(chunk, numbers=None))
        draws = chunk.draws
        keys: list[_Key] = list(zip(repeat("sample"), draws.leaf.tolist(), draws.child.tolist(), strict=False))
        return Encoded(outcomes=[_UNREAD] * len(draws), restore_keys=keys, drops=0, size_bytes=0)


class _NoSources(Sources):
    """Replaces sources that are not read."""

    def sizes(self, draws: Draws) -> np.ndarray[Any, np.dtype[np.int64]]:
        return np.zeros(len(draws), np.int64)


class _Batches:
    """Records the samples of batches. If samples are read, it also makes the batches, because a hook may drop one."""

    def __init__(
        self,
        spec: StreamSpec,
        stage: _Stage,
        drops: DropBudget,
        host: int,
        hosts: int,
        place: Progress,
        *,
        read: bool,
    ) -> None:
        self._stage = (
            BatchStage(spec.batch, seed=spec.seed, hosts=hosts, hook_lock=stage.hook_lock, drops=drops)
            if read
            else None
        )
        self._first = spec.first_item(place.pass_number)
        plan = PassPlan.of(spec, hosts, place.pass_number)
        self._work = places_of(
            spec,
            stage.sources,
            Share(host, hosts, spec.lanes),
            pass_number=place.pass_number,
            first=place.item,
            plan=plan,
        )
        self._lanes, self._host, self._hosts = spec.lanes, host, hosts

    def make(self, samples: list[Any], restore_keys: list[_Key], *, item: int, valid: Any, **numbers: Any) -> Any:
        """One entry for each item of a batch, or `NO_BATCH`."""
        if self._stage is not None:
            made = self._stage.make(samples, restore_keys, item=item, valid=valid, **numbers)
            if made is NO_BATCH:
                return NO_BATCH
        at = item - self._first
        places = np.arange(at, at + len(restore_keys) * self._hosts, self._hosts)
        items: list[int] = (places if self._work is None else self._work.items(places)).tolist()
        found: list[Entry] = []
        for place, key in enumerate(restore_keys):
            if valid is not None and not valid[place]:
                continue
            if key[0] == "item":  # lanes that ended are passed over
                at += (key[2] - at) % self._lanes
                found.append((at, self._host, key))
                at += 1
            else:
                found.append((items[place], self._host, key))
        return found


def _no_handler(error: Exception, sample: Any, sources: Any = None) -> None:
    """Does nothing: drops were reported the first time."""


def _without_hooks(value: Any) -> Any:
    """An operator and all operators below it, with hooks that return their argument."""
    if isinstance(value, HookSpec):
        return dataclasses.replace(value, function=_handed_on, restore_seeds=False, concurrent=True)
    if isinstance(value, tuple):
        return tuple(map(_without_hooks, cast("tuple[Any, ...]", value)))
    if not isinstance(value, LaneOperator) or not dataclasses.is_dataclass(value):
        return value
    parts = {each.name: getattr(value, each.name) for each in dataclasses.fields(value)}
    operators = (LaneOperator, HookSpec, tuple)
    return dataclasses.replace(
        value, **{name: _without_hooks(part) for name, part in parts.items() if isinstance(part, operators)}
    )


def _handed_on(value: Any) -> Any:
    return value
