"""What a step was made of, and making it again: which samples it has, and any of them from its restore key.

A restore key is nested tuples (lists, once it went through JSON):

    ("sample", leaf, child position)                          an encoded sample
    ("item", pass, lane, reference)                           what a lane made: a pack, a batch, a generated sample
    ("batch", pass, step, item, padding, key, key, …)         the batch of a step, of the items with those keys
"""

from __future__ import annotations

import dataclasses
import reprlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from energon_grain.datasets.cache_pool import using_cache
from energon_grain.datasets.worker_config import ErrorHandler
from energon_grain.errors import StateError
from energon_grain.sources.source import Source
from energon_grain.stream.assembly import rebuild_item, surroundings
from energon_grain.stream.batches import NO_BATCH, BatchStage
from energon_grain.stream.chunk import Chunk
from energon_grain.stream.chunk_pace import ChunkPace
from energon_grain.stream.draws import Draws
from energon_grain.stream.dropped import Dropped
from energon_grain.stream.index_map import IndexMap
from energon_grain.stream.passes import PassPlan, Progress, Segment
from energon_grain.stream.share import Share
from energon_grain.stream.spec import StreamSpec
from energon_grain.stream.stage import PureStage
from energon_grain.stream.state import check
from energon_grain.stream.statistics import Statistics

POSITIONS = 1 << 62
"""The order has so many positions."""
_PASSES_AT_ONCE = 1 << 12


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleRecord:
    """One sample of a global batch.

    Attributes:
        item: Its number in the stream (in its pass, where passes are finite).
        host: Host that delivers it, with the current number of hosts.
        dataset: Folder of the leaf.
        shard: Shard, relative to the dataset.
        key: Key in the dataset.
        start: First byte in the shard, headers included; in ArrayRecord files and arrays as if records or rows lay one
            behind the other, uncompressed.
        stop: One past its last byte, likewise.
        index: Index in the leaf.
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


def which(spec: StreamSpec, sources: list[Source], share: Share, progress: Progress, step: int) -> list[SampleRecord]:
    """The samples of the global batch of a step, in the order of items.

    Steps before the last change of the batch size are found through the history, later ones by going on with the
    present batch size. A host knows of drops in its own lanes only, until states of all hosts are merged.

    Raises:
        StateError: Samples or batches were dropped before this point, so that the batch depends on data; or passes
            before it were cut in another way than now; or there is no such step.
    """
    if spec.program is not None:
        raise StateError(
            f"which({step}): items of this dataset are formed in lanes (filters, batches, groups, packs, generators), "
            f"so which samples make a batch depends on what is in them. A stream that was restored from the nearest "
            f"state before the step tells, by the `__restore_key__` and `__sources__` of what it delivers"
        )
    if step < 0:
        raise StateError(f"step {step}: steps are counted 0, 1, 2, …")
    first = progress.history[0][0]
    if progress.drops.any() or step < first:
        since = f" before step {first}" if step < first else ""
        raise StateError(
            f"which({step}): samples or batches were dropped in this run{since} (or limit or last_batch changed), so "
            f"which samples make a batch depends on more than its number; ask a stream that was just restored from "
            f"the nearest state before step {step}"
        )
    pass_number, item, size = _place(spec, share.hosts, progress.history, step)
    length = spec.order.length(pass_number)
    stop = item + size if length is None else min(item + size, length)
    if spec.order.start(pass_number) + stop > POSITIONS:
        raise StateError(f"which({step}): the order has no positions that far on: they are below 2**62")
    draws = spec.order.draw(np.arange(item, stop), pass_number)
    records: list[SampleRecord] = []
    for number, leaf, index, epoch in zip(
        range(item, stop), draws.leaf.tolist(), draws.index.tolist(), draws.epoch.tolist(), strict=True
    ):
        place = sources[leaf].locate(index)
        records.append(
            SampleRecord(
                item=number,
                host=number % share.hosts,
                dataset=sources[leaf].path,
                shard=place.shard,
                key=place.key,
                start=place.start,
                stop=place.stop,
                index=index,
                epoch=epoch,
            )
        )
    return records


def history_holds(spec: StreamSpec, hosts: int, progress: Progress) -> bool:
    """Whether a history leads to where the progress is, with passes as they are cut now."""
    if progress.drops.any() or spec.program is not None:
        return True  # nobody asks, until the next pass begins
    pass_number, item, _ = _place(spec, hosts, progress.history, progress.step, progress.pass_number + 1)
    if spec.order.passes is None:
        return item == progress.item
    behind = (progress.pass_number + 1, 0) if progress.ended else (progress.pass_number, progress.item)
    return (pass_number, item) == behind


def place_in_pass(spec: StreamSpec, share: Share, pass_number: int, pass_step: int) -> Progress:
    """The place before a step of a pass, or behind its last one, if nothing is dropped; arithmetic."""
    plan = PassPlan.of(spec, share.hosts, pass_number)
    if spec.order.passes is None:
        before = pass_number * (plan.steps or 0)
        item = (before + pass_step) * plan.global_batch
    else:
        before = int(plan.steps_of(spec.order.lengths(0, pass_number)).sum())
        item = pass_step * plan.global_batch
    return Progress(
        step=before + pass_step,
        pass_number=pass_number,
        pass_step=pass_step,
        item=item,
        ended=plan.over(pass_step, item),
        drops=np.zeros(share.local_lanes, np.int64),
        history=((0, 0, 0, 0, plan.global_batch),),
    )


def place_of_step(spec: StreamSpec, share: Share, step: int) -> Progress:
    """The same of a step counted over all passes: behind the end of a pass, where the next one begins with it."""
    plan = PassPlan.of(spec, share.hosts)
    if spec.order.passes is None:
        pass_number, pass_step = divmod(step, plan.steps) if plan.steps else (0, step)
    else:
        pass_number, item, size = _place(spec, share.hosts, ((0, 0, 0, 0, plan.global_batch),), step)
        pass_step = item // size
    if pass_number and not pass_step:
        pass_number -= 1
        pass_step = PassPlan.of(spec, share.hosts, pass_number).remaining(0, 0) or 0
    return place_in_pass(spec, share, pass_number, pass_step)


def _place(
    spec: StreamSpec, hosts: int, history: Sequence[Segment], step: int, until: int | None = None
) -> tuple[int, int, int]:
    """(pass, first item, items) of a step; of the beginning of pass `until`, where the step lies behind that."""
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
    """(pass, step in it) of the step that lies `ahead` steps behind the beginning of pass `first`; see `_place`."""
    period = order.period
    if period <= _PASSES_AT_ONCE and (steps := int(plan.steps_of(order.lengths(first, period)).sum())):
        times = ahead // steps
        if until is not None:
            times = min(times, max(0, until - first) // period)
        first, ahead = first + times * period, ahead - times * steps
    while until is None or first < until:
        count = _PASSES_AT_ONCE if until is None else min(_PASSES_AT_ONCE, until - first)
        ends = np.cumsum(plan.steps_of(order.lengths(first, count)))
        total = int(ends[-1])
        if ahead < total:
            place = int(np.searchsorted(ends, ahead, side="right"))
            return first + place, ahead - int(ends[place - 1] if place else 0)
        if not total:
            raise StateError("no pass of this dataset has a step: a global batch takes more samples than there are")
        first, ahead = first + count, ahead - total
    return first, ahead


_PATIENCE = 100_000


class SampleRestorer:
    """Rebuilds what a stream of the same configuration delivered, on any host; the stream's statistics do not count it.

    Args:
        spec: The compiled dataset.
        stage: Reads and encodes.
        on_error: `WorkerConfig.restore_error_handler`, called before something that fails now is refused.
    """

    def __init__(self, spec: StreamSpec, stage: PureStage, on_error: ErrorHandler) -> None:
        self._spec = spec
        self._stage = stage
        self._on_error = on_error
        self._statistics = Statistics(["/".join(leaf.key) for leaf in spec.leaves], on_error)
        self._statistics.begin(first=False)
        self._batches = BatchStage(
            spec.batch, seed=spec.seed, hosts=1, hook_lock=stage.hook_lock, statistics=self._statistics
        )

    def restore(self, restore_key: Any) -> Any:
        """The sample or batch of a restore key.

        Raises:
            StateError: It is not a restore key of this dataset, or a hook drops or fails on it now.
            FatalSampleError: A hook failed as no policy may skip.
        """
        try:
            key = _tuples(restore_key)
            self._check(key)
        except (LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
            raise StateError(
                f"{reprlib.repr(restore_key)} is not a restore key of this dataset ({error}): pass the "
                f"`__restore_key__` of a sample or batch that a loader with the same configuration delivered"
            ) from error
        with using_cache(self._spec.cache_pool):
            return self._restore(key)

    def _check(self, key: Any) -> None:
        """Check a key without running any hook."""
        kind, *rest = key
        if kind == "sample":
            leaf, child = rest
            if _number(leaf) >= len(self._spec.leaves):
                raise ValueError(f"leaf {leaf} of {len(self._spec.leaves)}")
            _number(child)
        elif kind == "item":
            pass_number, lane, reference = rest
            _number(pass_number)
            if self._spec.program is None or _number(lane) >= self._spec.lanes:
                raise ValueError("there is no such lane")
            check(self._spec.program.root.reference_form, reference)
        elif kind == "batch":
            pass_number, step, item, padding, *members = rest
            if padding is not None and not isinstance(padding, tuple):
                raise ValueError(f"its padding is {padding!r}")
            for number in (pass_number, step, item, *(padding or ())):
                _number(number)
            if self._spec.batch is None or not members or any(place >= len(members) for place in padding or ()):
                raise ValueError("there is no such batch")
            for member in members:
                self._check(member)
        else:
            raise ValueError(f"its kind is {kind!r}")

    def _restore(self, key: Any, step: int | None = None) -> Any:
        """What a key names; `step`: of the batch that it is made for."""
        kind, *rest = key
        if kind == "sample":
            return self._sample(*rest, step=step)
        return self._item(*rest, step=step) if kind == "item" else self._batch(*rest)

    def _sample(self, leaf: int, child: int, *, step: int | None) -> Any:
        order, first = self._order_of(leaf)
        positions = np.array([child], np.int64)
        index, epoch = order.table.draw(np.array([leaf - first], np.int32), positions)
        draws = Draws(leaf=np.array([leaf], np.int32), child=positions, index=index, epoch=epoch)
        chunk = Chunk(number=-1, draws=draws, size_bytes=0, first=step or 0, batch_size=0 if step is None else 1)
        outcome = self._stage.run(chunk).outcomes[0]
        if type(outcome) is Dropped:
            self._tell(outcome)
            raise StateError(
                f"{outcome.shard}: {outcome.key} is dropped by {outcome.hook} ({type(outcome.error).__name__}: "
                f"{outcome.error}); hooks must do the same whenever they see a sample"
            ) from outcome.error
        return outcome

    def _tell(self, dropped: Dropped) -> None:
        try:
            self._on_error(dropped.error, dropped.sample, dropped.sources)
        except Exception as error:
            raise StateError(
                f"{dropped.shard}: {dropped.key} is dropped by {dropped.hook} now ({type(dropped.error).__name__}: "
                f"{dropped.error}); hooks must do the same whenever they see a sample"
            ) from error

    def _order_of(self, leaf: int) -> tuple[IndexMap, int]:
        """The index map that a leaf belongs to, and the number of its first leaf."""
        if self._spec.program is None:
            return self._spec.order, 0
        feeds = self._spec.program.feeds
        feed = max((feed for feed in feeds if feed.first_leaf <= leaf), key=lambda feed: feed.first_leaf)
        return feed.order, feed.first_leaf

    def _item(self, pass_number: int, lane: int, reference: Any, *, step: int | None) -> Any:
        assert self._spec.program is not None
        around = surroundings(
            self._spec.program, self._stage, ChunkPace(first=1), self._statistics, self._on_error, _PATIENCE
        )
        around.batch = step
        return rebuild_item(self._spec.program, around, pass_number, lane, reference)

    def _batch(self, pass_number: int, step: int, item: int, padding: tuple[int, ...] | None, *keys: Any) -> Any:
        valid = None
        if padding is not None:
            valid = np.ones(len(keys), np.bool_)
            valid[list(padding)] = False
        samples = [self._restore(key, step) for key in keys]
        batch = self._batches.make(samples, list(keys), item=item, pass_number=pass_number, step=step, valid=valid)
        if batch is NO_BATCH:
            raise StateError("the batch is dropped by its hooks now; hooks must do the same whenever they see a sample")
        return batch


def _number(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 1 << 53:
        raise ValueError(f"{value!r} is not a number that can be in it")
    return value


def _tuples(value: Any) -> Any:
    """Lists, as JSON has them, as the tuples that they were."""
    if isinstance(value, list | tuple):
        return tuple(_tuples(entry) for entry in cast("list[Any]", value))
    return value
