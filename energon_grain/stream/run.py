# SPDX-License-Identifier: Apache-2.0
"""The record of a run, used to find out which samples were in a step."""

from __future__ import annotations

from dataclasses import dataclass, field

from energon_grain.stream.cursor import Cursor
from energon_grain.stream.passes import Progress, Share
from energon_grain.stream.spec import StreamSpec
from energon_grain.stream.stage import PureStage
from energon_grain.stream.worker_config import WorkerConfig

_SAVED = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleRecord:
    """One sample of a global batch.

    Attributes:
        item: Number of the item in the stream (in its pass, if passes are finite) that this sample was used for. If a
            hook makes several items from several samples, each item used all of them.
        host: Host that delivers it, with the current number of hosts.
        dataset: Folder of the leaf.
        shard: Shard, relative to the dataset.
        key: Key in the dataset.
        start: Offset of its first byte in the shard, including headers; in ArrayRecord files and arrays, as if records
            or rows were stored one after the other, uncompressed.
        stop: One past its last byte, counted in the same way.
        index: Index in the leaf, after split part, subset and `where` are applied.
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
        read: Whether samples were read and hooks called to find them. Otherwise they follow from positions alone, which
            is exact if hooks drop nothing on the way.
    """

    read: bool = False


@dataclass(slots=True, kw_only=True, eq=False)
class Run:
    """A running stream, and the places that it knows.

    Attributes:
        since: Where it was restored; None: it started at the beginning.
        state: State that it was restored from.
        changed: Whether the state is of another configuration or of other data.
        saved: Places where it was saved since.
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
        """Record that the stream was restored from a state."""
        self.since, self.state, self.changed = progress, state, changed
        self.saved.clear()

    def save(self, progress: Progress) -> None:
        """Record that a state of this place was saved."""
        if len(self.saved) == _SAVED:
            del self.saved[::2]
        self.saved.append(progress)
