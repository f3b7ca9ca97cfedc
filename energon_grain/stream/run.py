# SPDX-License-Identifier: Apache-2.0
"""What a stream knows of its own run, for those who ask which samples made a step."""

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
        item: Its number in the stream (in its pass, where passes are finite). Where lanes make items of samples: of
            the item that this one was given for. A hook that makes several items of several samples had all of them.
        host: Host that delivers it, with the current number of hosts.
        dataset: Folder of the leaf.
        shard: Shard, relative to the dataset.
        key: Key in the dataset.
        start: First byte in the shard, headers included; in ArrayRecord files and arrays as if records or rows were
            written one behind the other, uncompressed.
        stop: One past its last byte, counted in the same way.
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
class Run:
    """What a stream runs, and the places that it knows.

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
