"""Running a compiled dataset: what both backends drive."""

from __future__ import annotations

import dataclasses
import inspect
import logging
import operator
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from itertools import islice
from typing import Any, Protocol

import numpy as np

from energon_grain.datasets.cache_pool import CachePool
from energon_grain.datasets.worker_config import WorkerConfig
from energon_grain.errors import ConfigError, EmptyDatasetError, StateError, WorkerError
from energon_grain.samples.registration import register_value
from energon_grain.storage.given_up import GivenUp, Over, wanted_until
from energon_grain.stream.batches import BatchStage
from energon_grain.stream.cursor import Cursor, check_fingerprint, check_lanes, from_cursor, pack_manifest, to_cursor
from energon_grain.stream.end_of_life import UnderWay, close_with, interrupts_held
from energon_grain.stream.passes import PassPlan, Progress, check_last_batch, pass_steps
from energon_grain.stream.production import Production, Step
from energon_grain.stream.replay import (
    POSITIONS,
    SampleRecord,
    SampleRestorer,
    history_holds,
    place_in_pass,
    place_of_step,
    which,
)
from energon_grain.stream.share import Share, StepsShare
from energon_grain.stream.spec import StreamSpec
from energon_grain.stream.stage import PureStage, approximate_bytes
from energon_grain.stream.state import encode_lanes, pack_integers
from energon_grain.stream.statistics import Statistics
from energon_grain.stream.workers import BoundedBuffer, MakePool, ProcessPool, ThreadPool, WorkerPool

_logger = logging.getLogger("energon_grain")


class Runnable(Protocol):
    """A description that can be run: a dataset."""

    @property
    def worker_config(self) -> WorkerConfig:
        """The host that it is for."""
        ...

    def compiled(self, hosts: int | None = None, cache_pool: CachePool | None = None) -> StreamSpec:
        """Everything that decides what comes out of it."""
        ...


def config_to_run(dataset: Any, given: WorkerConfig | None) -> WorkerConfig:
    """The worker configuration that a dataset is run with: `given`, or its own.

    Raises:
        ConfigError: It is something else, the path of a dataset for instance.
    """
    if not hasattr(dataset, "compiled"):
        raise ConfigError(
            f"loader: a dataset is meant, not a {type(dataset).__name__}; pass what get_train_dataset or another "
            f"dataset class gave"
        )
    return given or dataset.worker_config


def own_pool(spec: StreamSpec, stage: PureStage, config: WorkerConfig, workers: int) -> WorkerPool | None:
    """So many workers of the configured kind; None: hooks may not run in threads."""
    if config.worker_type == "process":
        return ProcessPool(spec, stage.sources, workers, config.prefetch_bytes)
    if spec.stage_seeds_globals:
        _logger.warning(
            "hooks with restore_seeds=True seed generators of the whole process, so they run inside `next` and not in "
            "threads; let them use self.rng, or use worker processes"
        )
        return None
    return ThreadPool(stage, workers, config.prefetch_bytes)


def next_pass(before: Progress, spec: StreamSpec, plan: PassPlan, hosts: int) -> Progress:
    """The beginning of the pass behind the one that `before` is in.

    Args:
        before: A place in it.
        spec: The compiled dataset.
        plan: Of that pass.
        hosts: Number of hosts.
    """
    progress = dataclasses.replace(before, pass_number=before.pass_number + 1, pass_step=0, ended=False)
    if not spec.endless:
        lanes = before.lanes if spec.program is not None and spec.program.root.outlives_passes else None
        progress = dataclasses.replace(progress, item=0, drops=np.zeros_like(before.drops), lanes=lanes)
        if before.drops.any() or spec.program is not None:
            progress = progress.forgetting(plan.global_batch)
    # Of passes that differ in length, one may have no complete batch.
    return dataclasses.replace(progress, ended=PassPlan.of(spec, hosts, progress.pass_number).over(0, progress.item))


def restored(
    cursor: Mapping[str, Any], spec: StreamSpec, share: Share, now: PassPlan, *, allow_changes: bool
) -> Progress:
    """The place of a cursor, in a stream that may be cut otherwise than when it was saved.

    Args:
        cursor: What `Stream.cursor` returned.
        spec: The compiled dataset.
        share: This host's part.
        now: A plan of the stream as it is cut now.
        allow_changes: Whether it may be of other data, in which there may be no such place.

    Raises:
        StateError: The cursor is malformed or cannot be continued here.
        HostsError: The number of hosts does not fit its lanes.
    """
    progress = from_cursor(cursor, share, spec.program)
    if spec.program is not None and progress.lanes is None and progress.item:
        raise StateError(
            f"the state is of item {progress.item} of a dataset that does not filter, group or pack ('held' is empty), "
            f"which this one does: where its lanes stand is not known there, so it cannot go on, not even with "
            f"allow_changes"
        )
    plan = PassPlan.of(spec, share.hosts, progress.pass_number)
    if spec.program is None:
        _check_place(progress, spec)
        if not allow_changes:
            _check_reach(progress, spec, plan.length)
    if progress.history[-1][4] != now.global_batch:
        segment = (progress.step, progress.pass_number, progress.pass_step, progress.item, now.global_batch)
        kept = tuple(old for old in progress.history if old[0] < progress.step)
        progress = dataclasses.replace(progress, history=(*kept, segment))
    if not progress.ended and plan.over(progress.pass_step, progress.item):
        progress = dataclasses.replace(progress, ended=True)
    if not history_holds(spec, share.hosts, progress):
        # Passes before this one were cut in another way (limit, last_batch) than they would be now.
        progress = progress.forgetting(now.global_batch)
    return progress


def _check_place(progress: Progress, spec: StreamSpec) -> None:
    """Refuse what no stream says."""
    if progress.history[0][0] > progress.step:
        raise StateError(f"the state's 'history' begins at step {progress.history[0][0]}, behind its {progress.step}")
    if spec.order.start(progress.pass_number) + progress.item >= POSITIONS:
        raise StateError(f"the state's 'pass' is {progress.pass_number}: the order has no positions that far on")


def _check_reach(progress: Progress, spec: StreamSpec, length: int | None) -> None:
    """Refuse what no stream of this data says."""
    if length is not None and progress.item >= length and not progress.ended:
        raise StateError(f"the state's 'item' is {progress.item} in a pass that is not over, but passes have {length}")
    if progress.drops.max() > spec.patience * (progress.item // spec.lanes + 2):
        raise StateError(
            f"the state's 'drops' are up to {progress.drops.max()} in one lane before item {progress.item}: more "
            f"than any stream of this data drops"
        )


class Stream:
    """One host's stream of batches, with its state.

    Iterating: `next` delivers the steps of the current pass and then raises StopIteration. `iter` begins the next pass
    if the current one is over and goes on with it otherwise, so a loop that was left by `break` continues where it
    stopped. The stream owns every thread and buffer; `close` (or leaving a `with` block, or losing the last reference)
    ends them. Whoever looks ahead (`coming`) leaves the state where it is: it is always that behind the last step that
    `next` delivered. Several threads may call `next`; each gets steps of its own.

    Args:
        spec: The compiled dataset.
        config: This host, its workers and error policy.
        prefetch_factor: Batches that are made ahead for each worker.
        make_pool: Makes the workers, in place of those that the configuration describes.
        finish: Called on each batch when it is made, maybe in another thread.
        share: Which steps of the host are made here; default: all.
    """

    def __init__(
        self,
        spec: StreamSpec,
        config: WorkerConfig,
        *,
        prefetch_factor: int = 2,
        make_pool: MakePool | None = None,
        finish: Callable[[Any], Any] | None = None,
        share: Share | None = None,
    ) -> None:
        self.spec = spec
        self.config = config
        self.share = share or Share(config.rank, config.world_size, spec.lanes)
        self.plan = PassPlan.of(spec, config.world_size)
        self._prefetch_factor = max(1, prefetch_factor)
        self._workers = min(config.num_workers, os.cpu_count() or 1)
        self._fingerprint = spec.fingerprint()
        self._manifest: str | None = None
        lock = threading.RLock()
        self._stage = PureStage(spec, lock)
        self._make_pool = make_pool
        self._finish = finish
        self._statistics = Statistics(["/".join(leaf.key) for leaf in spec.leaves], config.global_error_handler)
        self._batches = BatchStage(
            spec.batch, seed=spec.seed, hosts=config.world_size, hook_lock=lock, statistics=self._statistics
        )
        if spec.batch is not None and not spec.endless:
            check_last_batch(spec.batch.last, config.world_size)
        if spec.program is not None:
            self.share.require_whole_lanes(
                "items of this dataset are formed in lanes (filters, batches, groups, packs, generators)"
            )
        agrees = spec.program is not None and not spec.endless and config.world_size > 1
        if agrees and config.any_host is None:
            raise ConfigError(
                f"passes of this dataset end where its data does (it filters, groups, packs or generates), and "
                f"{config.world_size} hosts must agree on when: initialise `jax.distributed` or `torch.distributed` "
                f"and use a loader, or pass WorkerConfig(any_host=…), a function that tells every host whether a flag "
                f"is set on any; or make it endless (repeat=True)"
            )
        self._any_host = config.any_host if agrees else None
        self._written: tuple[Any, str] = (None, "")
        self._empty_steps = 0
        self._progress = self._beginning()
        self._coming: deque[Step] = deque()  # read, but not delivered
        self._none_left = False  # behind those that are coming
        self._failed_behind: Progress | None = None
        self.turn = threading.RLock()  # one thread at a time takes steps
        self._steps: Iterator[Step] | None = None
        self._pool: WorkerPool | None = None
        self._under_way = UnderWay()
        self._end: weakref.finalize[Any, Any] | None = None
        self._starting = threading.RLock()  # for `close`, from another thread
        self._closed_at = ""  # file and line
        if self.plan.remaining(0, 0) == 0:
            raise EmptyDatasetError(
                f"a pass of {self.plan.length} samples has no complete batch of {self.plan.global_batch} "
                f"({config.world_size} hosts): use a smaller batch, or last_batch='pad' or 'keep'"
            )

    @classmethod
    def of(
        cls,
        dataset: Runnable,
        *,
        worker_config: WorkerConfig | None = None,
        num_workers: int | None = None,
        prefetch_factor: int = 2,
        cache_pool: CachePool | None = None,
        make_pool: MakePool | None = None,
        finish: Callable[[Any], Any] | None = None,
    ) -> Stream:
        """Compile a dataset and make its stream.

        Args:
            dataset: What to run.
            worker_config: In place of the dataset's own.
            num_workers: In place of the configuration's.
            prefetch_factor: Batches that are made ahead for each worker.
            cache_pool: What hooks get as `cache`; not closed with the stream. Default: it keeps nothing.
            make_pool: As in `Stream`.
            finish: As in `Stream`.
        """
        config = config_to_run(dataset, worker_config)
        if num_workers is not None and num_workers != config.num_workers:
            config = dataclasses.replace(config, num_workers=num_workers)
        spec = dataset.compiled(hosts=config.world_size, cache_pool=cache_pool)
        return cls(spec, config, prefetch_factor=prefetch_factor, make_pool=make_pool, finish=finish)

    @classmethod
    def of_steps(
        cls, spec: StreamSpec, config: WorkerConfig, *, first: int, readers: int, pass_number: int = 0, **options: Any
    ) -> Stream:
        """Every so manieth step of one pass, for so many readers beside each other, each of which makes its own.

        Args:
            spec: The compiled dataset.
            config: This host.
            first: Step of the pass that this reader begins with.
            readers: How many there are: the next one is `first + readers`.
            pass_number: Which pass.
            **options: As in `Stream`.

        Raises:
            ConfigError: What a step is made of depends on the data of those before.
        """
        order, size = spec.order, 1 if spec.batch is None else spec.batch.size
        begin = 0 if order.passes is not None else PassPlan.of(spec, config.world_size).steps or 0
        reader = (pass_number * begin + first) % readers
        share = StepsShare(config.rank, config.world_size, spec.lanes, reader, readers, size)
        stream = cls(spec, config, share=share, **options)
        stream._go_to(place_in_pass(spec, share, pass_number, first))
        return stream

    def _beginning(self) -> Progress:
        return Progress(
            drops=np.zeros(self.share.local_lanes, np.int64), history=((0, 0, 0, 0, self.plan.global_batch),)
        )

    def __iter__(self) -> Iterator[Any]:
        self._require_here("go on")
        with self.turn:
            if self._progress.ended and self.share.stride == 1:
                self._go_to(next_pass(self._progress, self.spec, self.plan, self.share.hosts))
        return self

    def __next__(self) -> Any:
        self._require_here("go on")
        with self.turn:
            if self._closed_at:
                raise ValueError(
                    f"this loader was closed at {self._closed_at}; make a new one, and restore the state to go on"
                )
            if self._progress.ended:
                raise StopIteration
            step = self._advance()
        self._statistics.delivered(step.samples, step.drops)
        register_value(step.batch)
        return step.batch

    def coming(self, count: int) -> list[Any]:
        """The batches that `next` will deliver, at most `count`: fewer where the pass ends or reading fails before.

        What fails behind the first of them is tried again, and raised, when it is the first.
        """
        self._require_here("read ahead")
        with self.turn:
            while len(self._coming) < count and not (self._behind.ended or self._closed_at):
                if self._coming and self._behind is self._failed_behind:
                    break
                try:
                    self._coming.append(self._read())
                except StopIteration:
                    break
                except Exception:
                    if not self._coming or self._any_host is not None:  # which other hosts wait for
                        raise
                    self._failed_behind = self._behind
            return [step.batch for step in islice(self._coming, count)]

    @property
    def _behind(self) -> Progress:
        """The place behind what was read."""
        return self._coming[-1].progress if self._coming else self._progress

    def _go_to(self, progress: Progress) -> None:
        """Forget what was read ahead, and be at a place."""
        self._stop()
        self._coming.clear()
        self._progress = progress
        self.plan = PassPlan.of(self.spec, self.share.hosts, progress.pass_number)

    def _advance(self) -> Step:
        """The next step, behind which the stream now is.

        Raises:
            StopIteration: The pass is over.
        """
        try:
            step = self._coming.popleft() if self._coming else self._read()
        except StopIteration:
            self._statistics.settle()
            self._go_to(dataclasses.replace(self._progress, ended=True))
            raise
        skipped = self._progress.skipped
        self._progress = step.progress
        if step.progress.skipped != skipped:
            self._progress = dataclasses.replace(step.progress, skipped=skipped)
        return step

    def _read(self) -> Step:
        """The step behind those that were read.

        Raises:
            StopIteration: The pass is over.
        """
        if self._none_left:
            raise StopIteration
        try:
            with self._starting:
                steps = self._steps or self._start()
            with wanted_until(self._under_way.over):
                return next(steps) if self._any_host is None else self._agreed(steps, self._any_host)
        except StopIteration:
            self._none_left = True
            raise
        except BaseException as error:
            if isinstance(error, GivenUp) or (self._closed_at and isinstance(error, Exception)):
                raise ValueError(
                    f"this loader was closed at {self._closed_at} while its next batch was waited for"
                ) from None
            # What failed is tried again by the next call, from the same place on.
            self._stop()
            self._statistics.failed()
            raise

    def _agreed(self, steps: Iterator[Step], any_host: Callable[[bool], bool]) -> Step:
        """The next step, if all hosts have it.

        Raises:
            StopIteration: They do not: the pass is over on all of them.
        """
        agreed = self._behind
        while True:
            try:
                step = next(steps, None)
            except BaseException:
                # The others do not ask again about steps that all found empty.
                if self._coming:
                    self._coming[-1] = dataclasses.replace(self._coming[-1], progress=agreed)
                else:
                    self._progress = agreed
                raise
            if not self.plan.pads:  # the pass ends with the first host that has no full batch
                if any_host(step is None) or step is None:
                    raise StopIteration
                return step
            if any_host(step is not None and step.samples > 0):
                assert step is not None
                return dataclasses.replace(step, progress=step.progress.without(self._empty_steps))
            # Padding on every host: lanes that are left have items further on, or there are none.
            self._empty_steps += 1
            if not any_host(step is not None and step.more):
                raise StopIteration
            if step is not None:
                agreed = step.progress.without(self._empty_steps)

    def _start(self) -> Iterator[Step]:
        self._under_way.begin()
        if self._closed_at:
            raise GivenUp
        self._empty_steps = 0
        pool = self._workers_ready()
        try:
            with wanted_until(self._under_way.over):
                production = Production(
                    spec=self.spec,
                    share=self.share,
                    stage=self._stage,
                    batches=self._batches,
                    statistics=self._statistics,
                    config=self.config,
                    pool=pool,
                    under_way=self._under_way,
                    start=self._behind,
                    finish=self._finish,
                )
            if pool is not None and not self.spec.assembly_seeds_globals:
                capacity = self._prefetch_factor * pool.workers
                self._steps = _Ahead(production, capacity, self.config.prefetch_bytes, self._under_way)
            else:
                self._steps = iter(production)
        except BaseException:
            self._stop()
            raise
        return self._steps

    def _workers_ready(self) -> WorkerPool | None:
        """The workers, made when they are first needed; None: there are none."""
        if self._pool is None and self._workers:
            if self._make_pool is not None:
                self._pool = self._make_pool(self.spec, self._stage)
            else:
                self._pool = own_pool(self.spec, self._stage, self.config, self._workers)
            if self._pool is None:
                self._workers = 0
            else:
                self._under_way.pool = self._pool
                self._end = close_with(self, self._under_way.close)
        return self._pool

    def _stop(self) -> None:
        self._steps, self._none_left = None, False
        self._under_way.stop()

    def _require_here(self, what: str) -> None:
        """Check that this is no forked child's copy of a stream that runs elsewhere.

        Raises:
            WorkerError: It is.
        """
        if self._under_way.elsewhere:
            raise WorkerError(
                f"this process was forked while the loader was at work, whose threads and workers stayed in the parent "
                f"process, so it cannot {what} here: make the loader in the child itself, or one from the same dataset "
                f"that restores the state of this one (`loader.restore_state_rank(inherited.save_state_rank())`)"
            )

    def start_prefetch(self) -> None:
        """Begin to read ahead now, not when the first batch is asked for. Without workers there is nothing to begin."""
        self._require_here("read ahead")
        if self._workers and self._steps is None and not self._behind.ended and not self._closed_at:
            with self._starting, suppress(GivenUp):  # closed meanwhile
                self._start()

    def cursor(self, *, with_manifest: bool = False) -> Cursor:
        """The state behind the last delivered batch. Cheap enough to ask for after each.

        Args:
            with_manifest: Add what lets a later mismatch be explained; for states that are kept.
        """
        if with_manifest and self._manifest is None:
            self._manifest = pack_manifest(self.spec.manifest())
        manifest = self._manifest if with_manifest else None
        return to_cursor(self._progress, self.share, self._fingerprint, held=self._held(), manifest=manifest)

    def _held(self) -> str:
        """The states of lanes as a text, made once a step."""
        lanes, program = self._progress.lanes, self.spec.program
        if lanes is None or program is None:
            return ""
        if self._written[0] is not lanes:
            self._written = lanes, pack_integers(encode_lanes(program.root.state_form, lanes))
        return self._written[1]

    def restore(self, cursor: Mapping[str, Any], *, allow_changes: bool = False) -> None:
        """Go to the place of a cursor, saved on any number of hosts with any batch size.

        Args:
            cursor: What `cursor` returned.
            allow_changes: Go on at its position although the configuration or the data changed.

        Raises:
            StateError: The cursor is malformed or cannot be continued here.
            FingerprintError: It belongs to another configuration or other data.
            HostsError: The number of hosts does not fit its lanes.
            WorkerError: This process was forked while the stream was at work.
        """
        self._require_here("restore a state")
        if not allow_changes:
            check_fingerprint(check_lanes(cursor, self.share), self._fingerprint, self.spec.manifest())
        progress = restored(cursor, self.spec, self.share, self.plan, allow_changes=allow_changes)
        with self.turn:
            self._go_to(progress)

    @property
    def step(self) -> int:
        """Steps of the host behind which the next one lies, over all passes."""
        return self._progress.step

    def seek(self, step: int) -> None:
        """Go to a step, counted over all passes, as if nothing had been dropped on the way to it; arithmetic.

        Behind the last step of a pass that pass is over, and `iter` begins the next one.

        Raises:
            ConfigError: Where a step begins depends on data.
        """
        self._require_here("go to a step")
        with self.turn:
            self._go_to(place_of_step(self.spec, self.share, step))

    def skip(self, steps: int) -> None:
        """Jump over steps of this pass, which count as delivered; the cursor records it.

        It is arithmetic, and what is jumped over is not read, unless the dataset filters, groups, packs or generates:
        then the steps are made and left out. Samples that would have been dropped on the way are not, so behind a skip
        the batches of a stream with dropped samples are not those that they would have been without it.

        Raises:
            ValueError: `steps` is negative.
            StateError: The pass has fewer steps left. Nothing was skipped, unless only the data could tell: then the
                pass is over, and what it had is recorded as skipped.
        """
        steps = operator.index(steps)
        if steps < 0:
            raise ValueError(f"skip({steps}): a number of steps, 0 or more, is meant")
        if steps:
            self._require_here("skip steps")
            with self.turn:
                self._skip(steps)

    def _skip(self, steps: int) -> None:
        before = self._progress
        left = 0 if before.ended else self.plan.remaining(before.pass_step, before.item)
        if left is not None and steps > left:
            raise StateError(f"skip({steps}): this pass has {left} steps left; skip less, or begin the next pass")
        if self.spec.program is not None:
            self._skip_by_making(steps)
            return
        pass_step, item = before.pass_step + steps, before.item + steps * self.plan.global_batch
        self._go_to(
            dataclasses.replace(
                before,
                step=before.step + steps,
                pass_step=pass_step,
                item=item,
                ended=self.plan.over(pass_step, item),
                skipped=(*before.skipped, (before.step, steps)),
            )
        )

    def _skip_by_making(self, steps: int) -> None:
        before = self._progress
        done = 0
        try:
            while done < steps:
                if self._progress.ended:
                    raise StopIteration
                self._advance()
                done += 1
        except StopIteration:
            raise StateError(
                f"skip({steps}): the pass ended after {done} steps, which are skipped; begin the next pass"
            ) from None
        finally:
            if done:
                skipped = (*before.skipped, (before.step, done))
                self._progress = dataclasses.replace(self._progress, skipped=skipped)

    def restore_sample(self, restore_key: Any) -> Any:
        """A sample or batch again, from its `__restore_key__`. See `stream.replay.SampleRestorer`."""
        self._require_here("restore samples")
        sample = SampleRestorer(self.spec, self._stage, self.config.restore_error_handler).restore(restore_key)
        register_value(sample)
        return sample

    def which(self, step: int) -> list[SampleRecord]:
        """The samples of the global batch of a step, past or future, without reading data. See `replay.which`."""
        return which(self.spec, self._stage.sources, self.share, self._progress, step)

    def stats(self) -> dict[str, Any]:
        """JSON-native counts of what was delivered and of what was dropped and why."""
        return self._statistics.report()

    def __len__(self) -> int:
        """Steps per host of the current pass, or of the next one where it is over.

        Where the stream is endless: of one pass over what is repeated.
        """
        progress, plan = self._progress, self.plan
        if progress.ended:
            progress = next_pass(progress, self.spec, plan, self.share.hosts)
            plan = PassPlan.of(self.spec, self.share.hosts, progress.pass_number)
        return pass_steps(self.spec, plan, progress)

    def close(self) -> None:
        """End threads and release files. Further `next` calls raise ValueError."""
        self._closed_at = self._closed_at or _caller()
        self._under_way.over.set()  # whoever holds the lock reads, or runs hooks
        with self._starting:
            self._steps = None
            self._coming.clear()
            self._under_way.close()
            if self._end is not None:
                self._end.detach()
            self._stage.close()

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _caller() -> str:
    """File and line from where the program called this library."""
    frame = inspect.currentframe()
    while frame is not None and frame.f_globals.get("__name__", "").startswith("energon_grain"):
        frame = frame.f_back
    return "the end of the program" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"


class _Ahead:
    """An iterator over the steps of a production that runs in the background.

    Args:
        production: What makes the steps.
        capacity: Batches that wait for the consumer at most.
        budget_bytes: Bound on their memory, estimated from the first one; a single batch may always wait.
        under_way: Ends the thread.
    """

    def __init__(self, production: Production, capacity: int, budget_bytes: int, under_way: UnderWay) -> None:
        self._buffer: BoundedBuffer[Step | BaseException | None] = BoundedBuffer(capacity)
        self._thread = threading.Thread(
            target=_produce,
            args=(production, self._buffer, budget_bytes, under_way.over),
            name="energon-grain-batches",
            daemon=True,
        )
        with interrupts_held():
            self._thread.start()
            under_way.add(self._buffer.close, self._wait)

    def _wait(self) -> None:
        if self._thread is not threading.current_thread():
            self._thread.join()

    def __iter__(self) -> Iterator[Step]:
        return self

    def __next__(self) -> Step:
        entry = self._buffer.get()
        if entry is None:
            raise StopIteration
        if isinstance(entry, BaseException):
            try:
                raise entry
            finally:
                del entry  # the traceback refers to this frame
        return entry


def _produce(
    production: Production, buffer: BoundedBuffer[Step | BaseException | None], budget_bytes: int, over: Over
) -> None:
    measured = False
    try:
        with wanted_until(over):
            for step in production:
                if not measured:
                    buffer.narrow(budget_bytes // max(1, approximate_bytes(step.batch)))
                    measured = True
                buffer.put(step)
                del step  # or the batch would live until the next one is made
        buffer.put(None)
    except GivenUp:
        return
    except BaseException as error:
        try:
            buffer.put(error)
        except GivenUp:
            return
