"""Which samples made a step: by arithmetic, by going through positions again, or by making the steps again.

Where the order of items is arithmetic, so is the answer. Where items are formed in lanes, the run is gone through again
from the nearest place that is known: its beginning, the state that was restored, a state that was saved since, or where
it is now. Operators that look at positions alone (batches in a lane, repetitions, limits, shuffles, mixtures) then run
on samples that nobody reads; filters, groups, packs and generators need the samples, and so does everything once
something was dropped.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from energon_grain.errors import StateError
from energon_grain.stream.batches import NO_BATCH, BatchStage
from energon_grain.stream.chunks import Chunk, Encoded
from energon_grain.stream.cursor import Cursor, restored
from energon_grain.stream.drops import DropBudget
from energon_grain.stream.equal_work import EqualWork
from energon_grain.stream.hooks import HookSpec
from energon_grain.stream.index_map import Draws, Sources
from energon_grain.stream.lanes import LaneOperator
from energon_grain.stream.passes import POSITIONS, PassPlan, Progress, Segment, Share, next_pass, place_of
from energon_grain.stream.spec import Program, StreamSpec
from energon_grain.stream.stage import PureStage
from energon_grain.stream.state import Form, Many, Marked, OneOf, Same, positions
from energon_grain.stream.steps import Production, Step
from energon_grain.stream.worker_config import WorkerConfig
from energon_grain.stream.workers import UnderWay

_MOST_READ = 1 << 20
_MOST_REPLAYED = 1 << 24
"""Items that are made again, or gone through, for one answer: some minutes."""
_SAVED = 64
_EMPTY_PASSES = 1000
_UNREAD = object()
"""Stands for the value of a sample that is not read."""
_Key = tuple[Any, ...]
_Entry = tuple[int, int, _Key]
"""(item, its host, restore key)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleRecord:
    """One sample of a global batch.

    Attributes:
        item: Its number in the stream (in its pass, where passes are finite). Where lanes make items of samples: of
            the item that this one was given for. A hook that makes several items of several samples had all of them.
        host: Host that delivers it, with the current number of hosts.
        dataset: Folder of the leaf.
        shard: Shard, relative to the dataset.
        key: Key in the dataset.
        start: First byte in the shard, headers included; in ArrayRecord files and arrays as if records or rows lay one
            behind the other, uncompressed.
        stop: One past its last byte, likewise.
        index: Index in the leaf: among the samples that split part, subset and `where` leave.
        epoch: Pass over the leaf.
    """

    item: int
    host: int
    dataset: str
    shard: str
    key: str
    start: int
    stop: int
    index: int
    epoch: int


class StepSamples(list[SampleRecord]):
    """The samples of a global batch, in the order of items.

    Attributes:
        read: Whether samples were read and hooks called to know them; else they follow from positions alone, and hold
            as long as hooks drop nothing on the way.
    """

    read: bool = False


@dataclass(slots=True, kw_only=True, eq=False)
class History:
    """What a stream knows of its run, and where from.

    Attributes:
        since: Where it was restored; None: it began at the beginning.
        state: What it was restored from.
        changed: Whether that was of another configuration, or of other data.
        saved: Places behind which it was saved since.
    """

    spec: StreamSpec
    stage: PureStage
    config: WorkerConfig
    share: Share
    since: Progress | None = None
    state: Cursor | None = None
    changed: bool = False
    saved: list[Progress] = field(default_factory=list[Progress])

    def restored(self, progress: Progress, state: Cursor, *, changed: bool) -> None:
        """The stream went to the place of a state."""
        self.since, self.state, self.changed = progress, state, changed
        self.saved.clear()

    def save(self, progress: Progress) -> None:
        """A state of this place was saved."""
        if len(self.saved) == _SAVED:
            del self.saved[::2]
        self.saved.append(progress)

    def which(self, now: Progress, step: int, *, dropped: bool) -> StepSamples:
        """The samples of the global batch of a step, past or future.

        Steps before the last change of the batch size are found through the history, later ones by going on with the
        present batch size. Without reading, a host knows of drops in its own lanes only, until states of all hosts are
        merged.

        Args:
            now: Where the stream is.
            step: Counted 0, 1, 2, …
            dropped: Whether this stream is known to have dropped something.

        Raises:
            StateError: There is no such step, or it is too far from any place that is known, or the batches before it
                were cut in another way than now; or hooks do not do again what they did.
        """
        if step < 0:
            raise StateError(f"step {step}: steps are counted 0, 1, 2, …")
        spec = self.spec
        arithmetic = spec.program is None and not _filtered(spec)
        balanced = _balanced(spec)
        if arithmetic and not now.drops.any() and step >= now.history[0][0] and not (balanced and dropped):
            return self._arithmetic(now, step)
        if spec.program is not None and _hides(spec.program.root.reference_form):
            raise StateError(
                f"which({step}): a function from stream to stream (IterMapDataset) makes items of this dataset, and "
                f"only it knows of which samples; the `__sources__` of what is delivered may tell"
            )
        start = self._nearest(now, step) if not balanced or step < now.history[0][0] else self._at(now, step)
        unknown = self.since if self.since is not None and start[0].step < self.since.step else None
        by_positions = spec.program is not None and not dropped and not now.drops.any() and not _looks(spec)
        if by_positions and (unknown is None or not any(feed.finite for feed in spec.program.feeds)):  # type: ignore[union-attr]
            keys = self._replayed(now, step, start, check=unknown, read=False)
            if keys is not None:
                return self._records(keys)
        # Batch sizes before the history are not known, but they led to a place that is.
        check = unknown if unknown is not None and start[0].step < unknown.history[0][0] else None
        keys = self._replayed(now, step, start, check=check, read=True)
        if keys is None:
            raise StateError(
                f"which({step}): the batches before step {self._segments(now)[0][0]} were cut in another way than now "
                f"(batch size, limit, last_batch, number of hosts), or hooks do not do again what they did; ask a "
                f"stream that was just restored from a state before step {step}, with the settings of then"
            )
        found = self._records(keys)
        found.read = True
        return found

    def _arithmetic(self, now: Progress, step: int) -> StepSamples:
        order, hosts = self.spec.order, self.share.hosts
        pass_number, item, size = place_of(self.spec, hosts, now.history, step)
        length = order.length(pass_number)
        stop = item + size if length is None else min(item + size, length)
        if order.start(pass_number) + stop > POSITIONS:
            raise StateError(f"which({step}): the order has no positions that far on: they are below 2**62")
        draws, items = order.draw(np.arange(item, stop), pass_number), np.arange(item, stop)
        plan = dataclasses.replace(PassPlan.of(self.spec, hosts, pass_number), global_batch=size)
        sources, share = self.stage.sources, self.share
        work = EqualWork.of(self.spec, sources, share, pass_number=pass_number, first=item, plan=plan)
        if work is None or size % hosts:  # made when there were others
            of_hosts = items % hosts
        else:
            of_hosts = work.hosts_of(0)[: stop - item]
        places = np.arange(stop - item) if draws.packs is None else draws.packs.owner()
        return self._located(items[places].tolist(), of_hosts[places].tolist(), draws)

    def _at(self, now: Progress, step: int) -> list[Progress]:
        """The place before a step that does not depend on what lies before it, on all hosts."""
        hosts = self.share.hosts
        pass_number, item, size = place_of(self.spec, hosts, now.history, step)
        drops = np.zeros(self.share.local_lanes, np.int64)
        history = ((step, pass_number, 0, item, size),)
        return [Progress(drops=drops, step=step, pass_number=pass_number, item=item, history=history)] * hosts

    def _located(self, items: Sequence[int], hosts: Sequence[int], draws: Draws) -> StepSamples:
        found, sources = StepSamples(), self.stage.sources
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

    def _records(self, keys: list[_Entry]) -> StepSamples:
        """Of items, from their restore keys."""
        items: list[int] = []
        hosts: list[int] = []
        drawn: list[tuple[int, int]] = []  # feed, or the leaf where there is no program; and position
        program = self.spec.program
        form = () if program is None else program.root.reference_form
        for item, host, (kind, *rest) in sorted(keys, key=lambda entry: entry[0]):
            if kind == "pack":
                own = rest[2]
            else:
                own = [(rest[0], rest[1])] if kind == "sample" else [*positions(form, rest[2])]
            items += repeat(item, len(own))
            hosts += repeat(host, len(own))
            drawn += own
        parts: list[Draws] = []
        owners: list[npt.NDArray[np.int64]] = []
        feeds, places = np.array(drawn, np.int64).reshape(-1, 2).T
        for feed in np.unique(feeds).tolist():
            at = np.flatnonzero(feeds == feed)
            if program is not None:
                draws = program.feeds[feed].draw(places[at])
            else:
                draws = self.spec.order.draw_children(np.full(len(at), feed, np.int32), places[at])
            parts.append(draws.members)
            owners.append(at if draws.packs is None else at[draws.packs.owner()])
        owner = np.concatenate(owners)
        order = np.argsort(owner, kind="stable")
        entries = owner[order].tolist()
        found = [items[entry] for entry in entries], [hosts[entry] for entry in entries]
        return self._located(*found, Draws.joined(parts)[order])

    def _nearest(self, now: Progress, step: int) -> list[Progress]:
        """The nearest place before a step that is known of all hosts, on each of them."""
        share, spec = self.share, self.spec
        places: list[Progress] = [*self.saved, now]
        if self.since is not None:
            places.append(self.since)
        before = [place for place in places if place.step <= step and (share.hosts == 1 or place is self.since)]
        nearest = max(before, key=lambda place: place.step, default=None)
        if nearest is not None and share.hosts == 1:
            return [nearest]
        hosts = [Share(host, share.hosts, share.lanes) for host in range(share.hosts)]
        if nearest is not None and self.state is not None and self.state["host"] == [0, 1]:
            plan = PassPlan.of(spec, share.hosts)
            return [restored(self.state, spec, host, plan, allow_changes=self.changed) for host in hosts]
        if self.changed:
            raise StateError(
                f"which({step}): the run had another configuration or other data before the state that was restored "
                f"with allow_changes, at step {-1 if self.since is None else self.since.step}; ask with those"
            )
        if spec.program is not None:
            share.require_whole_lanes("items of this dataset are formed in lanes")
        size = self._segments(now)[0][4]
        return [Progress(drops=np.zeros(host.local_lanes, np.int64), history=((0, 0, 0, 0, size),)) for host in hosts]

    def _segments(self, now: Progress) -> list[Segment]:
        """What is known of batch sizes."""
        known = {segment[0]: segment for place in (self.since, now) if place is not None for segment in place.history}
        return [known[step] for step in sorted(known)]

    def _replayed(
        self, now: Progress, step: int, start: list[Progress], *, check: Progress | None, read: bool
    ) -> list[_Entry] | None:
        """An entry for each item of the step; None: the way to it does not lead to the place `check`."""
        segments = self._segments(now)
        until = step if check is None else max(step, check.step)
        items = (until - start[0].step) * max(segment[4] for segment in segments)
        most = _MOST_READ if read else _MOST_REPLAYED
        if items > most:
            what = "read and made" if read else "gone through"
            raise StateError(
                f"which({step}): which samples make a batch of this dataset depends on what lies before it. The "
                f"nearest place that is known is step {start[0].step}, and {items} items, more than {most}, would have "
                f"to be {what} from there; ask a stream that was just restored from the nearest state before the step"
            )
        skipped = () if self.spec.program is not None or _balanced(self.spec) else now.skipped
        if any(first <= step < first + steps for first, steps in skipped):
            raise StateError(f"which({step}): the step was jumped over (`skip`), and nothing of it was read")
        found: list[_Entry] | None = None
        checked = check is None
        for places, made in self._walk(start, segments, dict(skipped), read=read):
            place = places[self.share.host if len(places) == self.share.hosts else 0]
            if made is not None and place.step == step + 1:
                found = [entry for each in made for entry in each]
            if check is not None and not checked:
                if place.step > check.step:
                    return None
                checked = _same(place, check, lanes=len(places) == self.share.hosts)
            if found is not None and checked:
                return found
        raise AssertionError

    def _walk(
        self, places: list[Progress], segments: list[Segment], skipped: dict[int, int], *, read: bool
    ) -> Iterator[tuple[list[Progress], list[list[_Entry]] | None]]:
        """The places of all hosts behind each step from some on, with what made it, and where passes begin."""
        empty = 0
        yield places, None
        while True:
            step = places[0].step
            size = [segment for segment in segments if segment[0] <= step or segment is segments[0]][-1][4]
            spec, hosts = self._cut_to(size)
            if hosts != len(places):
                raise StateError(
                    f"batches of {size} items were made before a change of the batch size, which cannot be made again "
                    f"on {self.share.hosts} hosts; ask on one"
                )
            plan = PassPlan.of(spec, hosts, places[0].pass_number)
            if places[0].ended or plan.over(places[0].pass_step, places[0].item):
                places = [next_pass(place, spec, plan, hosts) for place in places]
                empty += 1
                if empty > _EMPTY_PASSES:
                    raise StateError(f"{_EMPTY_PASSES} passes in a row have no step")
                yield places, None
                continue
            if jump := skipped.pop(step, 0):
                behind = {"step": step + jump, "pass_step": places[0].pass_step + jump}
                places = [place._replace(item=place.item + jump * size, **behind) for place in places]
                yield places, None
                continue
            stop = min((at for at in (*(segment[0] for segment in segments), *skipped) if at > step), default=math.inf)
            ended = True
            for made in self._steps(spec, plan, places, read=read):
                empty = 0
                places = [each.progress for each in made]
                yield places, [each.batch for each in made]
                if places[0].step >= stop:
                    ended = False
                    break
            if ended:
                places = [place._replace(ended=True) for place in places]

    def _cut_to(self, global_batch: int) -> tuple[StreamSpec, int]:
        """The dataset with batches of this size in all, and on how many hosts."""
        batch, hosts = self.spec.batch, self.share.hosts
        if batch is None:
            return self.spec, hosts
        size, rest = divmod(global_batch, hosts)
        if rest:
            return self.spec, 0
        return self.spec if size == batch.size else dataclasses.replace(
            self.spec, batch=dataclasses.replace(batch, size=size)
        ), hosts

    def _steps(self, spec: StreamSpec, plan: PassPlan, places: list[Progress], *, read: bool) -> Iterator[list[Step]]:
        """The steps of a pass, made again on all hosts; in place of a batch each has an entry an item."""
        hosts = len(places)
        if not read:
            assert spec.program is not None
            program = Program(root=_without_hooks(spec.program.root), feeds=spec.program.feeds)
            spec = dataclasses.replace(spec, program=program)
        stage = _Stage(self.stage, read=read)
        under_way = UnderWay()
        under_way.begin()
        try:
            productions = [
                iter(
                    Production(
                        spec=spec,
                        share=Share(host, hosts, self.share.lanes),
                        stage=cast("PureStage", stage),
                        batches=cast("BatchStage", _Batches(spec, stage, drops, host, hosts, place, read=read)),
                        drops=drops,
                        config=self.config,
                        pool=None,
                        under_way=under_way,
                        progress=place,
                    )
                )
                for host, place in enumerate(places)
                for drops in [DropBudget(_no_handler)]
            ]
            empty = 0
            agrees = spec.program is not None and not spec.endless and hosts > 1
            while True:
                made = [next(production, None) for production in productions]
                there = [step for step in made if step is not None]
                if agrees and plan.pads and not any(step.samples for step in there):
                    if not any(step.more for step in there):
                        return
                    empty += 1
                elif len(there) < hosts:
                    return
                else:
                    yield [step._replace(progress=step.progress.without(empty)) for step in there]
        finally:
            under_way.close()


class _Stage:
    """The pure stage; where nothing is to be read, one that gives positions their places without samples."""

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
    """In place of sources of which nothing is read."""

    def sizes(self, draws: Draws) -> np.ndarray[Any, np.dtype[np.int64]]:
        return np.zeros(len(draws), np.int64)


class _Batches:
    """Notes what batches are made of; where samples are read it makes them, as a hook on them may drop one."""

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
        self._work = EqualWork.of(
            spec,
            stage.sources,
            Share(host, hosts, spec.lanes),
            pass_number=place.pass_number,
            first=place.item,
            plan=plan,
        )
        self._lanes, self._host, self._hosts = spec.lanes, host, hosts

    def make(self, samples: list[Any], restore_keys: list[_Key], *, item: int, valid: Any, **numbers: Any) -> Any:
        """An entry for each item of a batch, or `NO_BATCH`."""
        if self._stage is not None:
            made = self._stage.make(samples, restore_keys, item=item, valid=valid, **numbers)
            if made is NO_BATCH:
                return NO_BATCH
        at = item - self._first
        places = np.arange(at, at + len(restore_keys) * self._hosts, self._hosts)
        items: list[int] = (places if self._work is None else self._work.items(places)).tolist()
        found: list[_Entry] = []
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


def _same(place: Progress, other: Progress, *, lanes: bool) -> bool:
    """Whether two places are one; `lanes`: they are of the same lanes, too."""
    numbers = ("step", "pass_number", "pass_step", "item")
    if any(getattr(place, name) != getattr(other, name) for name in numbers):
        return False
    return not lanes or (np.array_equal(place.drops, other.drops) and place.lanes == other.lanes)


def _no_handler(error: Exception, sample: Any, sources: Any = None) -> None:
    """What is dropped again was told when it was dropped first."""


def _balanced(spec: StreamSpec) -> bool:
    """Whether hosts get equal work: then no step depends on what was dropped, or jumped over, before it."""
    return spec.batch is not None and spec.batch.balance is not None


def _filtered(spec: StreamSpec) -> bool:
    """Whether samples are filtered where they are read."""
    return any(hook.filters for hook in spec.stage_hooks())


def _looks(spec: StreamSpec) -> bool:
    """Whether items depend on what is in samples."""
    assert spec.program is not None
    return _filtered(spec) or _operator_looks(spec.program.root)


def _operator_looks(operator: LaneOperator) -> bool:
    return operator.looks or any(map(_operator_looks, operator.children))


def _hides(form: Form) -> bool:
    """Whether references of this form do not tell all samples that they are made of."""
    match form:
        case Same():
            return True
        case tuple():
            return any(map(_hides, form))
        case OneOf():
            return any(map(_hides, form.forms))
        case Many():
            return _hides(form.each)
        case Marked():
            return _hides(form.value)
        case _:
            return False


def _without_hooks(value: Any) -> Any:
    """An operator with all below it, whose hooks hand on what they are given."""
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
