"""The engine: one step after the other, from a place in the stream on."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from energon_grain.datasets.worker_config import WorkerConfig
from energon_grain.errors import EmptyDatasetError
from energon_grain.stream.batches import NO_BATCH, BatchStage
from energon_grain.stream.chunk import Chunk, Encoded
from energon_grain.stream.chunk_pace import ChunkPace
from energon_grain.stream.dropped import Dropped
from energon_grain.stream.encode import PureStage
from energon_grain.stream.lanes import LaneAssembly, Taken
from energon_grain.stream.pass_plan import PassPlan
from energon_grain.stream.plan import local_end, plan_chunks
from energon_grain.stream.processes import WorkerProcess
from energon_grain.stream.progress import Progress
from energon_grain.stream.share import Share
from energon_grain.stream.spec import StreamSpec
from energon_grain.stream.statistics import Drops, Statistics
from energon_grain.stream.workers import OrderedWorkers, Run

_PATIENCE_SECONDS = 1.0


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Step:
    """A step, made.

    Attributes:
        batch: What the consumer gets.
        samples: How many it holds, padding not counted.
        drops: What was dropped on the way to it.
        progress: The place behind it.
    """

    batch: Any
    samples: int
    drops: Drops
    progress: Progress


class Production:
    """Makes the steps of one pass, from a place in it on.

    Args:
        spec: The compiled dataset.
        share: This host's part.
        stage: Reads and encodes in this process.
        batches: Makes the batches.
        statistics: Counts drops.
        config: Error handler and memory bound.
        workers: Threads or processes that encode; 0: everything happens in `next`.
    """

    def __init__(
        self,
        *,
        spec: StreamSpec,
        share: Share,
        stage: PureStage,
        batches: BatchStage,
        statistics: Statistics,
        config: WorkerConfig,
        workers: int,
        start: Progress,
    ) -> None:
        self._spec = spec
        self._share = share
        self._stage = stage
        self._batches = batches
        self._statistics = statistics
        self._plan = PassPlan.of(spec, share.hosts, start.pass_number)
        self._progress = start
        statistics.begin()
        self._ordered: OrderedWorkers | None = None
        self._processes: list[WorkerProcess] = []
        first = share.first_at(start.item)
        local_first = first + int(start.drops.min()) * share.local_lanes
        pace = ChunkPace(first=self._plan.batch_size)
        chunks = plan_chunks(
            spec,
            stage.sources,
            share,
            pass_number=start.pass_number,
            first=local_first,
            batch_size=self._plan.batch_size,
            pace=pace,
        )
        if workers:
            runs: list[Run] = [stage.run] * workers
            if config.worker_type == "process":
                self._processes = [WorkerProcess(spec, stage.sources, number) for number in range(workers)]
                runs = [process.run for process in self._processes]
            self._ordered = OrderedWorkers([pace.timed(run) for run in runs], chunks, config.prefetch_bytes)
        encoded: Iterator[Encoded] = map(pace.timed(stage.run), chunks) if self._ordered is None else self._ordered
        self._assembly = LaneAssembly(
            lanes=share.local_lanes,
            drops=start.drops,
            chunks=encoded,
            first=local_first,
            end=local_end(spec, share, start.pass_number),
            on_drop=self._on_drop,
            on_success=statistics.succeeded,
            patience=max(1000, 2 * sum(len(source) for source in stage.sources)),
        )

    def _on_drop(self, dropped: Dropped) -> None:
        self._share.require_whole_lanes(f"a sample was dropped ({dropped.shard}: {dropped.key}, {dropped.hook})")
        self._statistics.drop(dropped)

    def __iter__(self) -> Iterator[Step]:
        while not self._progress.ended:
            step = self._step()
            if step is None:
                return
            yield step
            del step  # or the batch would live until the next one is made

    @property
    def progress(self) -> Progress:
        """The place behind the last step that was made."""
        return self._progress

    def _step(self) -> Step | None:
        """The next step; None at the end of the pass."""
        plan = self._plan
        while True:
            item = self._progress.item
            samples, keys, valid, next_item = self._collect(item)
            if not samples:
                self._progress = dataclasses.replace(self._progress, item=next_item, ended=True)
                return None
            batch = self._batches.make(
                samples,
                keys,
                item=self._spec.order.start(self._progress.pass_number)
                + int(self._share.to_global(np.array(self._share.first_at(item)))),
                pass_number=self._progress.pass_number,
                valid=valid,
            )
            before, made = self._progress, int(batch is not NO_BATCH)
            self._progress = Progress(
                step=before.step + made,
                pass_number=before.pass_number,
                pass_step=before.pass_step + made,
                item=next_item,
                drops=self._assembly.drops,
                ended=plan.over(before.pass_step + made, next_item),
                history=before.history,
            )
            if batch is not NO_BATCH:
                count = len(samples) if valid is None else int(valid.sum())
                return Step(batch, count, self._statistics.made(), self._progress)
            # From here on a step no longer tells the item by itself.
            self._progress = self._progress.forgetting(plan.global_batch)
            if self._progress.ended:
                return None

    def _collect(self, item: int) -> tuple[list[Any], list[tuple[Any, ...]], Any, int]:
        """Samples, restore keys and validity of the batch that begins at global item `item`, and the item behind it."""
        plan = self._plan
        first = self._share.first_at(item)
        taken = self._assembly.take(first, plan.batch_size)
        behind = item + plan.global_batch
        if not taken.missing:
            # Every batch of a padded pass has a mask, so that the last one has the same structure as the others.
            valid = np.ones(plan.batch_size, np.bool_) if plan.pads else None
            return taken.samples, taken.restore_keys, valid, behind
        if plan.keeps:
            # One host: go on behind the gaps that dropped samples left near the end of the pass.
            while taken.missing and not plan.exhausted(behind):
                more = self._assembly.take(behind, len(taken.missing))
                behind += len(taken.missing)
                taken = Taken(taken.samples + more.samples, taken.restore_keys + more.restore_keys, more.missing)
            return taken.samples, taken.restore_keys, None, behind
        return *self._padded(taken, first), behind

    def _padded(self, taken: Taken, first: int) -> tuple[list[Any], list[tuple[Any, ...]], Any]:
        """Fill places that the pass has no item for with samples from its beginning, and mark them as not valid."""
        count = len(taken.samples) + len(taken.missing)
        missing = set(taken.missing)
        items = self._share.to_global(first + np.asarray(taken.missing, np.int64))
        filler = iter(self._fillers(items))
        present = iter(zip(taken.samples, taken.restore_keys, strict=True))
        rows = [next(filler) if place in missing else next(present) for place in range(count)]
        # Only padding is marked: batches of one structure are what last_batch="drop" is chosen for.
        valid = np.array([place not in missing for place in range(count)]) if self._plan.pads else None
        return [row[0] for row in rows], [row[1] for row in rows], valid

    def _fillers(self, items: np.ndarray[Any, np.dtype[np.int64]]) -> list[tuple[Any, tuple[Any, ...]]]:
        """One good sample for each item beyond the pass: of position `item mod length`, or of the next good one."""
        length = self._plan.length
        assert length is not None
        found: list[tuple[Any, tuple[Any, ...]]] = []
        for item in items.tolist():
            for offset in range(length):
                position = np.array([(item + offset) % length])
                draws = self._spec.order.draw(position, self._progress.pass_number)
                encoded = self._stage.run(Chunk(number=-1, draws=draws, size_bytes=0))
                if not encoded.drops:
                    found.append((encoded.outcomes[0], encoded.restore_keys[0]))
                    break
            else:
                raise EmptyDatasetError(
                    f"every one of the {length} samples of the pass was dropped; see the log for why"
                )
        return found

    def close(self) -> None:
        """Stop the workers after the chunk in hand; processes that take long over it are killed."""
        if self._ordered is not None:
            self._ordered.stop()
        deadline = time.monotonic() + _PATIENCE_SECONDS
        for process in self._processes:
            process.interrupt(max(0.0, deadline - time.monotonic()))
        if self._ordered is not None:
            self._ordered.close()
        for process in self._processes:
            process.close()
