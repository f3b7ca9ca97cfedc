# SPDX-License-Identifier: Apache-2.0
"""The engine: makes one step after the other, from a place in the stream."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import InitVar, dataclass, field, replace
from time import perf_counter_ns
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np

from energon_grain.errors import EmptyDatasetError, FatalSampleError
from energon_grain.sources.cache_pool import using_cache
from energon_grain.stream.assembly import LaneAssembly, LaneProgram, Taken, lane_context
from energon_grain.stream.batches import NO_BATCH, BatchStage
from energon_grain.stream.chunks import BatchNumbers, Chunk, ChunkPace, Encoded, MadeBatch, local_end, plan_chunks
from energon_grain.stream.clock import Clock, Span, Work
from energon_grain.stream.drops import DropBudget, Dropped, PartialItem
from energon_grain.stream.feed import LaneChunks
from energon_grain.stream.look_ahead import look_ahead_of
from energon_grain.stream.observer import Outlet
from energon_grain.stream.passes import PassPlan, Progress, Share, places_of
from energon_grain.stream.places import Places
from energon_grain.stream.spec import Program, StreamSpec
from energon_grain.stream.stage import PureStage
from energon_grain.stream.worker_config import WorkerConfig
from energon_grain.stream.workers import Shutdown, WorkerPool, interrupts_held


class Step(NamedTuple):
    """A finished step.

    Attributes:
        samples: Number of samples, without padding.
        more: Whether this host may have samples for a later step.
    """

    batch: Any
    samples: int
    progress: Progress
    more: bool = True


T = TypeVar("T")


class _Timed(Generic[T]):
    """An iterator that reports when each entry was requested and received. It may end and continue later.

    Args:
        each: Called with each entry and these two times; 0 if nothing is timed.
    """

    def __init__(self, entries: Iterator[T], each: Callable[[T, int, int], object], *, timed: bool) -> None:
        self._entries = entries
        self._each = each
        self._timed = timed

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        began_ns = perf_counter_ns() if self._timed else 0
        entry = next(self._entries)
        self._each(entry, began_ns, perf_counter_ns() if self._timed else 0)
        return entry


@dataclass(kw_only=True, eq=False)
class Production:
    """Makes the steps of one pass, from a place in it.

    Attributes:
        pool: Workers that encode; None: everything happens in `next`.
        shutdown: Ends the threads and processes that this starts.
        progress: The place after the last step that was made; initially, where to start.
        finish: Called on each batch when it is made.
        outlet: Receives reports of counts and times.
        in_workers: Whether a background thread makes the steps. Otherwise the program itself waits for chunks.
    """

    spec: StreamSpec
    share: Share
    stage: PureStage
    batches: BatchStage
    drops: DropBudget
    config: WorkerConfig
    pool: InitVar[WorkerPool | None]
    shutdown: Shutdown
    progress: Progress
    finish: Callable[[Any], Any] | None = None
    outlet: Outlet = field(default_factory=Outlet)
    in_workers: bool = False

    def __post_init__(self, pool: WorkerPool | None) -> None:
        start = self.progress
        self._plan = PassPlan.of(self.spec, self.share.hosts, start.pass_number)
        first = not (start.item or start.pass_number)
        self.drops.begin(lambda: self.progress.step, first=first)
        self._pace = ChunkPace(first=self._plan.batch_size, leaves=len(self.spec.leaves))
        in_process = pool is None or pool.shares == "memory"
        self._ahead = look_ahead_of(self.stage.sources, in_process=in_process, outlet=self.outlet)
        if self._ahead:
            self.shutdown.add(self._ahead.close)
        self._chunks_ns = 0  # time spent waiting for chunks
        self._work: Places | None = None
        self._assembly = self._positions(pool) if self.spec.program is None else self._lanes(self.spec.program, pool)

    def _positions(self, pool: WorkerPool | None) -> LaneAssembly:
        """Items of a stream whose order is arithmetic."""
        spec, share, start = self.spec, self.share, self.progress
        origin = share.first_at(start.item)
        self._work = places_of(
            spec, self.stage.sources, share, pass_number=start.pass_number, first=start.item, plan=self._plan
        )
        drops = start.drops if self._work is None else np.zeros_like(start.drops)  # `drops` are of an unbalanced run
        first = origin + int(drops.min()) * share.local_lanes
        numbers = BatchNumbers(
            origin=origin,
            item=start.item,
            global_batch=self._plan.global_batch,
            host=share.host,
            hosts=share.hosts,
            base=spec.first_item(start.pass_number),
            pass_number=spec.counted(start.pass_number),
            pads=self._plan.pads,
        )
        chunks = plan_chunks(
            spec,
            self.stage.sources,
            share,
            pass_number=start.pass_number,
            first=first,
            batch_size=self._plan.batch_size,
            pace=self._pace,
            numbers=lambda: numbers if self._takes_batches() else None,
            origin=origin,
            ahead=self._ahead if self._ahead else None,
            work=self._work,
        )
        sent: deque[Chunk] = deque()

        def with_chunk(encoded: Encoded) -> tuple[Chunk, Encoded]:  # a generator would hold the samples until the next
            return sent.popleft(), encoded

        return LaneAssembly(
            lanes=share.local_lanes,
            drops=drops,
            chunks=map(with_chunk, self._encoded(_recorded(chunks, sent), pool)),
            again=lambda chunk: self.stage.run(replace(chunk, numbers=None)),
            first=first,
            end=local_end(spec, share, start.pass_number) if self._work is None else self._work.end,
            on_drop=self._on_drop,
            on_member_drop=self.drops.drop,
            on_success=self.drops.succeeded,
            patience=spec.patience,
            substitute=None if self._work is None else self._substitute,
        )

    def _takes_batches(self) -> bool:
        """Whether workers may make batches of this pass."""
        if self.share.stride > 1:
            return False
        return isinstance(self._assembly, LaneAssembly) and self._assembly.takes_batches

    def _lanes(self, program: Program, pool: WorkerPool | None) -> LaneProgram:
        """Items of lanes that run a program."""
        start = self.progress
        reader = LaneChunks(self.stage.sources, self._pace, self._ahead)
        reader.encoded = self._encoded(reader, pool)
        context = lane_context(
            program,
            self.stage,
            self._pace,
            self.drops,
            self.config.restore_error_handler,
            self.spec.patience,
        )
        return LaneProgram(
            program=program,
            share=self.share,
            reader=reader,
            context=context,
            pass_number=self.spec.counted(start.pass_number),
            before=start.lanes,
            begins=start.item == 0 and not self.spec.endless,
            batch_size=self._plan.batch_size,
        )

    def _encoded(self, chunks: Iterator[Chunk], pool: WorkerPool | None) -> Iterator[Encoded]:
        """Encoded chunks, from workers or on request."""
        timed = self.outlet.timed
        if self.outlet:
            chunks = _Timed(chunks, self._planned, timed=timed)
        if pool is None:
            return _Timed(map(self._pace.timed(self.stage.run), chunks), self._received, timed=timed)
        with interrupts_held():
            workers = pool.start(chunks, self._pace)
            self.shutdown.add(workers.stop, workers.close)
        return _Timed(workers, self._received, timed=timed)

    def _planned(self, chunk: Chunk, began_ns: int, ended_ns: int) -> None:
        self.outlet.planned(chunk.draws, chunk.size_bytes)
        if self.outlet.timed:
            samples = len(chunk.draws.leaf)
            span = Span("pipeline", "plan", "main", began_ns, ended_ns - began_ns, 0, samples)
            self.outlet.spans(Work([span], of_chunk=False))

    def _received(self, encoded: Encoded, began_ns: int, ended_ns: int) -> None:
        self._chunks_ns += ended_ns - began_ns
        if not self.in_workers:
            self.outlet.waited(began_ns)
        if encoded.work is not None:
            self.outlet.spans(encoded.work)

    def _collect_timed(self, item: int, spans: list[Span]) -> tuple[Any, Any, Any, int]:
        """`_collect`, and its time without waiting for chunks: the hooks of lanes, and the rest."""
        chunks_ns, began_ns = self._chunks_ns, perf_counter_ns()
        context = self._assembly.context if isinstance(self._assembly, LaneProgram) else None
        if context is not None:
            context.clock = Clock()
        found = self._collect(item)
        own_ns = perf_counter_ns() - began_ns - (self._chunks_ns - chunks_ns)
        if context is not None and context.clock is not None:
            spans += [span._replace(begin_ns=began_ns) for span in context.clock.hook_spans("main")]
            own_ns -= sum(span.wall_ns for span in spans)
            context.clock = None
        spans.append(Span("pipeline", "assemble", "main", began_ns, max(0, own_ns), 0, self._plan.batch_size))
        return found

    def _took(self, assembled: list[Span], clock: Clock, samples: int = 0) -> None:
        """Report the times of a step. `clock` has those of its batch hooks, which processed `samples` samples."""
        batched = clock.hook_spans("main", samples)
        chunks_ns, self._chunks_ns = self._chunks_ns, 0
        self.outlet.made(self.progress.step, assembled, batched, chunks_ns)

    def _on_drop(self, dropped: Dropped) -> None:
        if self._work is None:
            self.share.require_whole_lanes(f"a sample was dropped ({dropped.shard}: {dropped.key}, {dropped.hook})")
        self.drops.drop(dropped)

    def __iter__(self) -> Iterator[Step]:
        while not self.progress.ended:
            with using_cache(self.spec.cache_pool):
                step = self._step()
            if step is None:
                return
            yield step
            del step  # otherwise the batch would live until the next one is made

    def _step(self) -> Step | None:
        """The next step; None at the end of the pass."""
        plan, spec = self._plan, self.spec
        while True:
            item = self.progress.item
            step = item // plan.global_batch
            if isinstance(self._assembly, LaneProgram):
                self._assembly.begin_batch(step)
            assembled: list[Span] = []
            clock = Clock() if self.outlet.due else None
            collected = self._collect(item) if clock is None else self._collect_timed(item, assembled)
            samples, keys, valid, next_item = collected
            if isinstance(samples, MadeBatch):
                if clock is not None:
                    self._took(assembled, clock)
                self.progress = self._place_after(next_item, 1)
                return self._delivered(samples.batch, samples.samples)
            if not samples:
                if item == 0 and self._lanes_ended() and self.share.hosts == 1:
                    raise EmptyDatasetError(
                        "a pass ended without a single item: filters, packers or hooks drop everything (or all items "
                        "of the only full batch). loader.stats() lists what was dropped and why"
                    )
                self.progress = self.progress._replace(item=next_item, ended=True)
                return None
            pass_number = self.progress.pass_number
            batch = self.batches.make(
                samples,
                keys,
                item=spec.first_item(pass_number) + self.share.to_global(self.share.first_at(item)),
                pass_number=spec.counted(pass_number),
                step=step,
                valid=valid,
                clock=clock,
            )
            if clock is not None:
                self._took(assembled, clock, len(samples))
            if batch is not NO_BATCH:
                count = len(samples) if valid is None else int(valid.sum())
                if count != plan.batch_size:
                    self.outlet.short(self.progress.step, plan.batch_size - count)
                self.progress = self._place_after(next_item, 1)
                return self._delivered(batch, count)
            self.progress = self._place_after(next_item, 0)
            # From here on, the item does not follow from the number of the step.
            self.progress = self.progress.forgetting(plan.global_batch)
            if self.progress.ended:
                return None

    def _delivered(self, batch: Any, samples: int) -> Step:
        if self.finish is not None:
            clock = Clock(runs=self.outlet.timed)
            batch = self.finish(batch)
            clock.lap("pipeline", "pin", samples, "main")
            self.outlet.report_other(clock)
        return Step(batch, samples, self.progress, not self._lanes_ended())

    def _place_after(self, item: int, made: int) -> Progress:
        """The place after a step that ends before `item`."""
        before, assembly, steps = self.progress, self._assembly, made * self.share.stride
        return Progress(  # faster than `_replace`, once per step
            drops=assembly.drops if isinstance(assembly, LaneAssembly) else before.drops,
            step=before.step + steps,
            pass_number=before.pass_number,
            pass_step=before.pass_step + steps,
            item=item,
            lanes=assembly.states if isinstance(assembly, LaneProgram) else None,
            ended=self._plan.is_over(before.pass_step + steps, item),
            history=before.history,
            skipped=before.skipped,
        )

    def _lanes_ended(self) -> bool:
        return isinstance(self._assembly, LaneProgram) and self._assembly.ended

    def _collect(self, item: int) -> tuple[list[Any] | MadeBatch, list[tuple[Any, ...]], Any, int]:
        """Samples, restore keys and validity of the batch that begins at global item `item`, and the item after it.

        If a worker made the batch, the batch itself instead of samples.
        """
        plan = self._plan
        first = self.share.first_at(item)
        taken = self._assembly.take(first, plan.batch_size)
        after = item + plan.global_batch * self.share.stride
        if taken.made is not None:
            return taken.made, [], None, after
        if not taken.missing:
            # Every batch of a padded pass has a mask, so that the last one has the same structure as the others.
            valid = np.ones(plan.batch_size, np.bool_) if plan.pads else None
            if self._work is not None and valid is not None and plan.length is not None and after > plan.length:
                items = self._work.items(self.share.to_global(np.arange(first, first + plan.batch_size)))
                valid = items < plan.length
            return taken.samples, taken.restore_keys, valid, after
        if isinstance(self._assembly, LaneProgram):
            return self._collect_at_end(self._assembly, taken, after)
        if plan.keeps:
            taken, after = self._continued(taken, after, plan.exhausted)
            return taken.samples, taken.restore_keys, None, after
        items = self.share.to_global(first + np.asarray(taken.missing, np.int64))
        samples, keys, valid = _filled(taken, iter(self._fillers(items)))
        # Only padding is marked: last_batch="drop" promises batches of the same structure.
        return samples, keys, valid if plan.pads else None, after

    def _continued(self, taken: Taken, after: int, ended: Callable[[int], bool]) -> tuple[Taken, int]:
        """One host: replace missing items by items after the gaps of dropped samples, or of lanes that ended."""
        while taken.missing and not ended(after):
            more = self._assembly.take(self.share.first_at(after), len(taken.missing))
            after += len(taken.missing)
            taken = Taken(taken.samples + more.samples, taken.restore_keys + more.restore_keys, more.missing)
        return taken, after

    def _collect_at_end(
        self, lanes: LaneProgram, taken: Taken, after: int
    ) -> tuple[list[Any], list[tuple[Any, ...]], Any, int]:
        """As `_collect`, after lanes have begun to end, each at its own item."""
        plan, one_host = self._plan, self.share.hosts == 1
        if plan.pads:
            while one_host and not taken.samples and not lanes.ended:
                taken, after = lanes.take(after, plan.batch_size), after + plan.batch_size
            if one_host and not taken.samples:
                return [], [], None, after
            return *_filled(taken, (lanes.filler() for _ in taken.missing)), after
        if one_host:
            taken, after = self._continued(taken, after, lambda _: lanes.ended)
        if taken.missing and not plan.keeps:
            return [], [], None, after
        return taken.samples, taken.restore_keys, None, after

    def _fillers(self, items: np.ndarray[Any, np.dtype[np.int64]]) -> list[tuple[Any, tuple[Any, ...]]]:
        """One good sample for each item beyond the pass: of position `item mod length`, or the next good one."""
        length = self._plan.length
        assert length is not None
        found: list[tuple[Any, tuple[Any, ...]]] = []
        for item in items.tolist():
            positions = ((item + offset) % length for offset in range(length))
            sample = self._first_good(positions, item // self.share.hosts)
            if sample is None:
                raise EmptyDatasetError(f"all {length} samples of the pass were dropped; the log shows why")
            found.append(sample)
        return found

    def _substitute(self, local: int, dropped: Dropped) -> tuple[Any, tuple[Any, ...]]:
        """The sample that replaces a dropped one in a balanced step, with its restore key."""
        work, length = self._work, self._plan.length
        assert work is not None
        items = work.items(np.array([self.share.to_global(local)]))
        item = int(items[0])
        if length is not None and item >= length:
            return self._fillers(items)[0]
        self._on_drop(dropped)
        sample = self._first_good(work.substitutes(item).tolist(), local)
        if sample is None:
            raise FatalSampleError(
                f"all {len(work.substitutes(item)) + 1} samples of a global batch were dropped, so balance= has no "
                f"sample to use in their place. loader.stats() lists what was dropped and why; leave such samples out "
                f"by their columns (`where`), or remove balance="
            )
        return sample

    def _first_good(self, positions: Iterable[int], local: int) -> tuple[Any, tuple[Any, ...]] | None:
        """The sample of the first position that is not dropped, for a local place; None: all are dropped."""
        for position in positions:
            draws = self.spec.order.draw(np.array([position]), self.progress.pass_number)
            chunk = Chunk(number=-1, draws=draws, size_bytes=0, first=local, batch_size=self._plan.batch_size)
            encoded = self.stage.run(chunk)
            outcome = encoded.outcomes[0]
            outcome = outcome.value if type(outcome) is PartialItem else outcome
            if type(outcome) is not Dropped:
                return outcome, encoded.restore_keys[0]
        return None


def _filled(
    taken: Taken, fillers: Iterator[tuple[Any, tuple[Any, ...]]]
) -> tuple[list[Any], list[tuple[Any, ...]], np.ndarray[Any, np.dtype[np.bool_]]]:
    """Samples and restore keys of all places of a batch, with missing ones filled, and a mask of the real ones."""
    real = np.ones(len(taken.samples) + len(taken.missing), np.bool_)
    real[taken.missing] = False
    present = iter(zip(taken.samples, taken.restore_keys, strict=True))
    rows = [next(present if there else fillers) for there in real.tolist()]
    return [row[0] for row in rows], [row[1] for row in rows], real


def _recorded(chunks: Iterator[Chunk], sent: deque[Chunk]) -> Iterator[Chunk]:
    """The chunks. Each is appended to `sent` when it is taken."""
    for chunk in chunks:
        sent.append(chunk)
        yield chunk
