"""Which samples make a global batch, told from arithmetic and the index alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from energon_grain.errors import StateError
from energon_grain.sources.source import Source
from energon_grain.stream.index_map import IndexMap
from energon_grain.stream.pass_plan import PassPlan
from energon_grain.stream.progress import Progress, Segment
from energon_grain.stream.share import Share
from energon_grain.stream.spec import StreamSpec

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
