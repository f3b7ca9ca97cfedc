"""Which samples make a global batch, told from arithmetic and the index alone."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np

from energon_grain.errors import StateError
from energon_grain.sources.source import Source
from energon_grain.stream.pass_plan import PassPlan
from energon_grain.stream.progress import Progress
from energon_grain.stream.share import Share
from energon_grain.stream.spec import StreamSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleRecord:
    """One sample of a global batch.

    Attributes:
        item: Its number in the stream (in its pass, where passes are finite).
        host: Host that delivers it, with the current number of hosts.
        dataset: Folder of the leaf.
        shard: Shard, relative to the dataset.
        key: Key in the dataset.
        start: First byte in the shard, headers included.
        stop: One past its last byte.
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


def which(
    spec: StreamSpec, sources: list[Source], share: Share, plan: PassPlan, progress: Progress, step: int
) -> list[SampleRecord]:
    """The samples of the global batch of a step, in the order of items.

    Steps before the last change of the batch size are found through the history, later ones by going on with the
    present batch size.

    Raises:
        StateError: Samples were dropped before this point, so that the batch depends on data; or the stream has no such
            step.
    """
    if step < 0:
        raise StateError(f"step {step}: steps are counted 0, 1, 2, …")
    if progress.drops.any():
        raise StateError(
            f"which({step}): samples were dropped in this run, so which samples make a batch depends on data that was "
            f"read; ask a stream that was just restored from the nearest state before step {step}"
        )
    pass_number, item, size = _place(spec, share, plan, progress, step)
    length = spec.order.length(pass_number)
    stop = item + size if length is None else min(item + size, length)
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


def _place(spec: StreamSpec, share: Share, plan: PassPlan, progress: Progress, step: int) -> tuple[int, int, int]:
    """(pass, first item, items) of a step."""
    history = progress.history
    number = max(at for at, segment in enumerate(history) if segment[0] <= step)
    start, pass_number, pass_step, item, size = history[number]
    ahead = step - start
    if plan.length is None:
        return 0, item + ahead * size, size
    # A finite stream: walk to the pass of the step. Passes may differ in length, and so in steps.
    while True:
        shape = dataclasses.replace(PassPlan.of(spec, share.hosts, pass_number), global_batch=size)
        left = shape.remaining(pass_step, item)
        assert left is not None
        if ahead < left:
            return pass_number, item + ahead * size, size
        ahead -= left
        pass_number, pass_step, item = pass_number + 1, 0, 0
