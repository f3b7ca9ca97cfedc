# SPDX-License-Identifier: Apache-2.0
"""Running a compiled dataset: the stream that both backends drive."""

from __future__ import annotations

import dataclasses
import inspect
import logging
import operator
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any, Literal, Protocol, Self

import numpy as np

from energon_grain.errors import (
    ConfigError,
    EmptyDatasetError,
    EnergonGrainError,
    StateError,
    WorkerError,
    public,
    shorten,
)
from energon_grain.samples.registration import register_value
from energon_grain.sources.cache_pool import CachePool
from energon_grain.storage.cancellation import Cancelled, cancelled_by
from energon_grain.stream.background import Background
from energon_grain.stream.batches import BatchStage
from energon_grain.stream.cursor import (
    SHORT_MANIFEST,
    Cursor,
    check_fingerprint,
    check_lanes,
    check_order,
    pack_manifest,
    remember_plans,
    restored,
    to_cursor,
)
from energon_grain.stream.drops import DropBudget
from energon_grain.stream.extensions import AMENDED_BY_STATE, AMENDED_NOW, RESTORE_SAMPLE, WHICH, extension
from energon_grain.stream.memory import approximate_bytes
from energon_grain.stream.observer import Observer, Outlet
from energon_grain.stream.passes import (
    PassPlan,
    Progress,
    Share,
    StepsShare,
    check_last_batch,
    history_holds,
    next_pass,
    pass_steps,
    place_in_pass,
    place_of_step,
)
from energon_grain.stream.run import Run, StepSamples
from energon_grain.stream.spec import StreamSpec, not_a_dataset
from energon_grain.stream.stage import PureStage
from energon_grain.stream.state import LaneStates
from energon_grain.stream.steps import Production, Step
from energon_grain.stream.worker_config import WorkerConfig
from energon_grain.stream.workers import (
    MakePool,
    Shutdown,
    WorkerPool,
    close_on_collect,
    interrupts_held,
    own_pool,
)

_logger = logging.getLogger("energon_grain")
OnChange = Literal["refuse", "amend", "position"]
"""If a saved state belongs to another configuration or to other data."""
Held = Literal["deliver", "drop"]
"""The fate of samples of removed datasets that lanes hold."""


class Runnable(Protocol):
    """A description of data that can be run: a dataset."""

    @property
    def worker_config(self) -> WorkerConfig:
        """The host that it is for."""
        ...

    def compiled(self, hosts: int | None = None, cache_pool: CachePool | None = None) -> StreamSpec:
        """Everything that determines its output."""
        ...


def config_to_run(dataset: Any, given: WorkerConfig | None) -> WorkerConfig:
    """The worker configuration to run a dataset with: `given`, or its own.

    Raises ConfigError if `dataset` is not a dataset but, for example, the path of one.
    """
    if not hasattr(dataset, "compiled"):
        raise ConfigError(f"loader: {not_a_dataset(dataset)}")
    return given or dataset.worker_config


@public
class Stream:
    """One host's stream of batches, with its state.

    `next` delivers the steps of the current pass and then raises StopIteration. `iter` begins the next pass if the
    current one has ended, and otherwise continues it, so a loop that was left by `break` continues where it stopped.
    The stream owns its threads and buffers. `close` ends them, as does leaving a `with` block or losing the last
    reference. Looking ahead (`peek`) does not change the state, which is always that after the last step delivered by
    `next`. Several threads may call `next`; each gets its own steps.

    Args:
        spec: The compiled dataset.
        config: This host, its workers and error policy.
        prefetch_factor: Batches to prefetch per worker.
        make_pool: Makes the workers, instead of those of the configuration.
        finish: Called on each batch when it is made, possibly in another thread.
        share: The steps of the host that this stream makes; default: all.
        workers: Initial number of workers, instead of the configuration's.
        observers: Receive reports, in addition to those of the dataset. Without observers, nothing is timed.

    Attributes:
        outlet: Passes reports to the observers.
        dataset: The dataset that it was compiled from; None: unknown.
        on_change: See `restore`.
        amendments: Changes of the mixture in this run, see `amendments.history.Amendments`; None: no changes.
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
        workers: int | None = None,
        observers: Sequence[Observer] = (),
    ) -> None:
        self.config = config
        self.share = share or Share(config.rank, config.world_size, spec.lanes)
        self.plan = PassPlan.of(spec, config.world_size)
        self._prefetch_factor = max(1, prefetch_factor)
        self._workers = config.most_workers if workers is None else workers
        self.dataset: Runnable | None = None
        self.on_change: OnChange = "refuse"
        self.amendments: Any = None
        self._plain = spec  # without amendments
        self._fingerprint = spec.fingerprint()
        self._manifest: str | None = None
        self._make_pool = make_pool
        self._finish = finish
        self.outlet = Outlet(*observers, *(make() for make in spec.observers))
        self._drops = DropBudget(config.global_error_handler, self.outlet)
        self._take(spec)
        if spec.batch is not None and not spec.endless:
            check_last_batch(spec.batch.last, config.world_size)
        if spec.program is not None:
            self.share.require_whole_lanes(
                "items of this dataset are formed in lanes (filters, batches, groups, packs, generators)"
            )
        agrees = spec.program is not None and not spec.endless and config.world_size > 1
        if agrees and config.any_host is None:
            raise ConfigError(
                f"passes of this dataset end where its data ends (it filters, groups, packs or generates), and "
                f"{config.world_size} hosts must agree on the end: initialise `jax.distributed` or "
                f"`torch.distributed` and use a loader, or pass WorkerConfig(any_host=…), a function that returns "
                f"whether a flag is set on any host; or make the dataset endless (repeat=True)"
            )
        self._any_host = config.any_host if agrees else None
        self._empty_steps = 0
        self._progress = self._beginning()
        self._run = Run(spec=spec, stage=self._stage, config=config, share=self.share)
        self._peeked: deque[Step] = deque()  # read, but not delivered
        self._none_left = False  # whether the pass ends after these
        self._failed_behind: Progress | None = None
        self.turn = threading.RLock()  # one thread at a time takes steps
        self._steps: Iterator[Step] | None = None
        self._unreported: Iterator[Step] | None = None  # the next of these, which need no report
        self._pool: WorkerPool | None = None
        self._shutdown = Shutdown()
        self._starting = threading.RLock()  # for `close` from another thread
        self._counting = threading.RLock()  # a signal handler may read the numbers
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
        num_workers: int | Literal["auto"] | None = None,
        prefetch_factor: int = 2,
        cache_pool: CachePool | None = None,
        make_pool: MakePool | None = None,
        finish: Callable[[Any], Any] | None = None,
    ) -> Self:
        """Compile a dataset and make its stream.

        Args:
            dataset: The dataset.
            worker_config: Overrides that of the dataset.
            num_workers: Overrides that of the configuration.
            prefetch_factor: Batches to prefetch per worker.
            cache_pool: The `cache` argument of hooks; not closed with the stream. Default: it keeps nothing.
            make_pool: As in `Stream`.
            finish: As in `Stream`.
        """
        config = config_to_run(dataset, worker_config)
        if num_workers is not None and num_workers != config.num_workers:
            config = dataclasses.replace(config, num_workers=num_workers)
        spec = dataset.compiled(hosts=config.world_size, cache_pool=cache_pool)
        stream = cls(spec, config, prefetch_factor=prefetch_factor, make_pool=make_pool, finish=finish)
        stream.dataset = dataset
        return stream

    @classmethod
    def of_steps(
        cls, spec: StreamSpec, config: WorkerConfig, *, first: int, readers: int, pass_number: int = 0, **options: Any
    ) -> Self:
        """A stream of every n-th step of one pass, for one of n parallel readers, each of which makes its own steps.

        Args:
            spec: The compiled dataset.
            config: This host.
            first: First step of this reader, in the pass.
            readers: Number of readers: the next step is `first + readers`.
            pass_number: Number of the pass.
            **options: As in `Stream`.

        Raises:
            ConfigError: The samples of a step depend on the data of those before.
        """
        order, size = spec.order, 1 if spec.batch is None else spec.batch.size
        begin = 0 if order.passes is not None else PassPlan.of(spec, config.world_size).steps or 0
        reader = (pass_number * begin + first) % readers
        share = StepsShare(config.rank, config.world_size, spec.lanes, reader, readers, size)
        stream = cls(spec, config, share=share, **options)
        stream._go_to(place_in_pass(spec, share, pass_number, first))
        return stream

    def _take(self, spec: StreamSpec) -> None:
        """Open what a spec needs."""
        self.spec = spec
        lock = threading.RLock()
        self._stage = PureStage(spec, lock)
        self._stage.timed = self.outlet.timed
        self._batches = BatchStage(
            spec.batch, seed=spec.seed, hosts=self.config.world_size, hook_lock=lock, drops=self._drops
        )
        self._lane_states = None if spec.program is None else LaneStates(spec.program.root.state_form)

    def _switch(self, spec: StreamSpec) -> None:
        """Run another spec of the same run from the present place on. Called with the turn."""
        if spec is self.spec:
            return
        self._stop()
        if spec.leaves is self.spec.leaves:  # only the order of samples changes, which workers do not know
            self.spec = self._run.spec = spec
            return
        with self._starting:
            if self._pool is not None:
                self._pool.close()
                self._pool = self._shutdown.pool = None
            self._stage.close()
            self._take(spec)
            self._run.spec, self._run.stage = spec, self._stage

    def _beginning(self) -> Progress:
        return Progress(
            drops=np.zeros(self.share.local_lanes, np.int64), history=((0, 0, 0, 0, self.plan.global_batch),)
        )

    def __iter__(self) -> Iterator[Any]:
        self._require_own_process("continue")
        with self.turn:
            if self._progress.ended and self.share.stride == 1:
                self._go_to(next_pass(self._progress, self.spec, self.plan, self.share.hosts))
        return self

    def __next__(self) -> Any:
        try:
            self._require_own_process("continue")
            with self.turn:
                if self._closed_at:
                    raise ValueError(
                        f"the loader was closed at {self._closed_at}; make a new one and restore the state"
                    )
                if self._progress.ended:
                    raise StopIteration
                step = self._advance()
        except EnergonGrainError as error:
            shorten(error)
            raise
        register_value(step.batch)
        return step.batch

    def peek(self, count: int) -> list[Any]:
        """At most `count` of the batches that `next` will deliver; fewer if the pass ends or reading fails before.

        A failure after the first batch is not raised: reading is tried again when it is the first one.
        """
        self._require_own_process("read ahead")
        with self.turn:
            while len(self._peeked) < count and not (self._behind.ended or self._closed_at):
                if self._peeked and self._behind is self._failed_behind:
                    break
                try:
                    self._peeked.append(self._read())
                except StopIteration:
                    break
                except Exception:
                    if not self._peeked or self._any_host is not None:  # other hosts wait for this step
                        raise
                    self._failed_behind = self._behind
            return [step.batch for step in islice(self._peeked, count)]

    coming = peek
    """The older name."""

    @property
    def place(self) -> Progress:
        """The current place: after the last step that was delivered."""
        return self._progress

    @property
    def awaited(self) -> object:
        """The step that a thread is waiting for, in the form of `next_step`; None: no thread waits."""
        if self.turn.acquire(blocking=False):
            self.turn.release()
            return None
        return self.next_step

    @property
    def next_step(self) -> tuple[int, int, int]:
        """Pass and step after the last delivered one, and the number of steps read since."""
        return self._progress.pass_number, self._progress.step, len(self._peeked)

    @property
    def workers(self) -> int:
        """Number of threads or processes running now, or once they start."""
        return self._workers if self._pool is None else self._pool.workers

    @property
    def _behind(self) -> Progress:
        """The place after the steps that were read."""
        return self._peeked[-1].progress if self._peeked else self._progress

    def _go_to(self, progress: Progress, *, pass_ended: bool = False) -> None:
        """Discard steps that were read ahead, and go to a place. `pass_ended`: because the pass ended."""
        self._stop()
        with self._counting:
            # First: this undoes what a signal handler counted in between.
            self.outlet.jumped(progress.step, pass_ended=pass_ended)
            self._progress = progress
        self._peeked.clear()
        self._empty_steps = 0
        self.plan = PassPlan.of(self.spec, self.share.hosts, progress.pass_number)

    def _count(self, *, skipped: bool = False) -> None:
        """Report all steps delivered so far. Reporting each one would cost more."""
        with self._counting:
            step = self._progress.step
            self.outlet.passed(step, stride=self.share.stride, empty=self._empty_steps, skipped=skipped)

    def _advance(self) -> Step:
        """Deliver the next step. Raises StopIteration if the pass has ended."""
        try:
            step = self._peeked.popleft() if self._peeked else self._read()
        except StopIteration:
            ended = self._progress._replace(ended=True)
            if not history_holds(self.spec, self.share.hosts, ended):  # hooks dropped the last batches
                ended = ended.forgetting(self.plan.global_batch)
            self._go_to(ended, pass_ended=True)
            raise
        skipped = self._progress.skipped
        self._progress = step.progress
        if step.progress.skipped != skipped:
            self._progress = step.progress._replace(skipped=skipped)
        return step

    def _read(self) -> Step:
        """Read the next step. Raises StopIteration if the pass has ended."""
        if self._none_left:
            raise StopIteration
        try:
            with self._starting:
                unreported = self._unreported or self._start()
            with cancelled_by(self._shutdown.cancellation):
                step = next(unreported, None)
                if step is not None:
                    return step
                return self._reported() if self._any_host is None else self._agreed(self._any_host)
        except StopIteration:
            self._none_left = True
            raise
        except BaseException as error:
            if isinstance(error, Cancelled) or (self._closed_at and isinstance(error, Exception)):
                closed_at = self._closed_at or "the end of the program"
                raise ValueError(f"this loader was closed at {closed_at} while its next batch was awaited") from None
            # The next call tries again from the same place.
            self._stop(failed=True)
            raise

    def _reported(self) -> Step:
        """The next step. Its delivery is reported."""
        steps = self._steps
        assert steps is not None
        self.outlet.requested(self.ready)
        step = next(steps)
        unreported = self.outlet.delivered(step.progress.step // self.share.stride, step.samples)
        self._unreported = islice(steps, unreported if self._any_host is None else 0)
        return step

    def _report_next(self) -> None:
        """Report the next step, even if observers skip it. Called with the turn."""
        if self._steps is not None:
            self._unreported = iter(())

    @property
    def ready(self) -> int:
        """Number of finished steps waiting to be taken."""
        return self._steps.waiting if isinstance(self._steps, Background) else 0

    @property
    def _delivered_steps(self) -> int:
        """Number of delivered steps, as observers count them."""
        return (self._behind.step + self._empty_steps) // self.share.stride

    def _agreed(self, any_host: Callable[[bool], bool]) -> Step:
        """The next step, if all hosts have it. Raises StopIteration otherwise: the pass then ends on all of them."""
        agreed = self._behind
        while True:
            try:
                step = self._reported()
            except StopIteration:
                step = None
            except BaseException:
                # The others do not ask again about steps that were empty on all hosts.
                if self._peeked:
                    self._peeked[-1] = self._peeked[-1]._replace(progress=agreed)
                else:
                    self._progress = agreed
                raise
            if not self.plan.pads:  # the pass ends with the first host that has no full batch
                if any_host(step is None) or step is None:
                    raise StopIteration
                return step
            if any_host(step is not None and step.samples > 0):
                assert step is not None
                return step._replace(progress=step.progress.without(self._empty_steps))
            # Padding on every host: either remaining lanes have items further on, or no lanes remain.
            self.outlet.short(self._delivered_steps, 0)
            self._empty_steps += 1
            if not any_host(step is not None and step.more):
                raise StopIteration
            if step is not None:
                agreed = step.progress.without(self._empty_steps)

    def _start(self) -> Iterator[Step]:
        self._shutdown.reset()
        if self._closed_at:
            raise Cancelled
        self._empty_steps = 0
        self.outlet.begin(self, self._behind)
        pool = self._workers_ready()
        in_workers = self._workers > 0 and not self.spec.assembly_seeds_globals
        try:
            with cancelled_by(self._shutdown.cancellation):
                production = self._made_by(pool, in_workers)
            ahead = None
            if in_workers and pool is not None:
                capacity = self._prefetch_factor * pool.workers
                with interrupts_held():
                    budget, cancellation = self.config.prefetch_bytes, self._shutdown.cancellation
                    ahead = Background(production, capacity, budget, _bytes_of_step, cancellation, self.outlet)
                    self._shutdown.add(ahead.stop, ahead.close)
            self._steps = iter(production) if ahead is None else ahead
            self._unreported = iter(())
        except BaseException:
            self._stop()
            raise
        return self._unreported

    def _made_by(self, pool: WorkerPool | None, in_workers: bool) -> Iterable[Step]:
        """The steps from here on, made by workers; None: in `next`."""
        return Production(
            spec=self.spec,
            share=self.share,
            stage=self._stage,
            batches=self._batches,
            drops=self._drops,
            config=self.config,
            pool=pool,
            shutdown=self._shutdown,
            progress=self._behind,
            finish=self._finish,
            outlet=self.outlet,
            in_workers=in_workers,
        )

    def _workers_ready(self) -> WorkerPool | None:
        """The workers, made on first use; None: no workers."""
        if self._pool is None and self._workers:
            spec = self.spec if self.outlet.timed else dataclasses.replace(self.spec, timed=False)
            if self._make_pool is not None:
                self._pool = self._make_pool(spec, self._stage)
            else:
                self._pool = own_pool(spec, self._stage, self.config, self._workers)
            if self._pool is None:
                self._workers = 0
            else:
                self._shutdown.pool = self._pool
                close_on_collect(self, self._shutdown)
        return self._pool

    def _stop(self, *, failed: bool = False) -> None:
        self._steps = self._unreported = None
        self._none_left = False
        self._shutdown.stop()
        failed_step = self._drops.stop()
        self.outlet.end(self._delivered_steps, failed_step if failed else None)
        self._count()

    def _require_own_process(self, what: str) -> None:
        """Raises WorkerError if this is a forked child's copy of a stream that runs in the parent process."""
        if self._shutdown.in_other_process:
            raise WorkerError(
                f"this process was forked while the loader was running, and its threads and workers stayed in the "
                f"parent process, so it cannot {what}: make the loader in the child itself, or make one from the same "
                f"dataset and restore the state of this one (`loader.restore_state_rank(inherited.save_state_rank())`)"
            )

    def start_prefetch(self) -> None:
        """Start reading ahead now, before the first batch is requested. Does nothing without workers."""
        self._require_own_process("read ahead")
        if self._steps is None:  # otherwise another thread may hold the turn for long
            with self.turn, self._starting, suppress(Cancelled):  # closed meanwhile
                if self._workers and self._steps is None and not self._behind.ended and not self._closed_at:
                    self._start()

    def cursor(self, *, with_manifest: bool = False) -> Cursor:
        """The state after the last delivered batch. Cheap enough to call after each batch.

        Args:
            with_manifest: Add the settings that explain a later mismatch, however long; for states that are kept. If
                False, they are added only if they are short, that is with few datasets.
        """
        if self._manifest is None:
            self._manifest = pack_manifest(self.spec.manifest())
        manifest = self._manifest if with_manifest or len(self._manifest) <= SHORT_MANIFEST else None
        progress, held = self._progress, ""
        if with_manifest:
            self._run.save(progress)
        if self._lane_states is not None and progress.lanes is not None:
            held = self._lane_states.text(progress.lanes)
        dropped = int(progress.drops.min())
        plans = self.spec.carries(progress.pass_number, progress.item, dropped, progress.lanes)
        amendments = () if self.amendments is None else self.amendments.texts(self.share, saved=with_manifest)
        return to_cursor(
            progress,
            self.share,
            self._fingerprint,
            held=held,
            plans=plans,
            amendments=amendments,
            manifest=manifest,
        )

    def restore(
        self,
        cursor: Mapping[str, Any],
        *,
        allow_changes: bool = False,
        on_change: OnChange | None = None,
        note: str = "",
        held: Held = "deliver",
    ) -> None:
        """Go to the place of a cursor, saved on any number of hosts with any batch size.

        Args:
            cursor: A result of `cursor`.
            allow_changes: The older spelling of `on_change="position"`.
            on_change: If the configuration or the data differ from those of the cursor: "refuse"; "amend", continue
                every dataset of the mixture where it is, with the present weights; or "position", continue at the same
                position of the changed stream, which repeats and loses samples. Default: the stream's own `on_change`.
            note: Reason of the change, for the list of amendments.
            held: The fate of samples of removed datasets that lanes hold, in packs or groups.

        Raises:
            StateError: The cursor is malformed or cannot be continued.
            FingerprintError: It is of another configuration or other data.
            AmendmentError: The difference cannot be amended.
            HostsError: The number of hosts does not fit its lanes.
            WorkerError: This process was forked while the stream was running.
        """
        self._require_own_process("restore a state")
        on_change = "position" if allow_changes else on_change or self.on_change
        if on_change not in ("refuse", "amend", "position"):
            raise ConfigError(f"on_change={on_change!r}: expected 'refuse', 'amend' or 'position'")
        changed = on_change == "position"
        checked = cursor if changed else check_lanes(cursor, self.share)
        same = checked.get("fingerprint") == self._fingerprint
        if on_change == "refuse":
            check_fingerprint(checked, self._fingerprint, self._plain.manifest())
        if not changed:
            check_order(checked, self._plain)
        if not changed and ("amendments" in checked or not same):
            found = self._amended(AMENDED_BY_STATE, checked, self.share, same=same, note=note, held=held)
        else:
            plan = PassPlan.of(self._plain, self.share.hosts)
            found = restored(cursor, self._plain, self.share, plan, allow_changes=changed)
        with self.turn:
            progress = self._switch_to(found)
            if not changed and self.spec.folds:
                self._stop()  # reading ahead plans, too
                remember_plans(cursor, self.spec)
            self._go_to_amended(found, progress)
            self._run.restored(progress, dict(cursor), changed=changed)

    def amend(self, **change: Any) -> None:
        """Change the mixture from the next step on. See `amendments.live.amended_now`."""
        self._require_own_process("change the mixture")
        with self.turn:
            before = self.cursor() if self.spec.folds else None
            found = self._amended(AMENDED_NOW, self.amendments, self.share, self._progress, running=self.spec, **change)
            progress = self._switch_to(found)
            if before is not None:
                remember_plans(before, self.spec)
            self._go_to_amended(found, progress)
            self._run.save(progress)

    def _switch_to(self, found: Any) -> Progress:
        """Run an amended stream, or the configuration if `found` is a place of it; return the place."""
        plain = isinstance(found, Progress)
        self._switch(self._plain if plain else found.spec)
        self.amendments = None if plain else found.amendments
        return found if plain else found.progress

    def _go_to_amended(self, found: Any, progress: Progress) -> None:
        """Go to the place of a stream that was switched to, and report held samples that were dropped."""
        self._go_to(progress)
        for dropped in () if isinstance(found, Progress) else found.dropped:
            self.outlet.dropped(progress.step - 1, dropped)  # counts of steps to come begin again with them

    def _amended(self, how: str, *arguments: Any, **options: Any) -> Any:
        if self.dataset is None:
            raise StateError(
                "several processes take the steps of this stream in turns (workers of a DataLoader, mp_prefetch), and "
                "none knows the step at which all of them would change the mixture: restore with one process, or use "
                "get_savable_loader, which has its own workers"
            )
        return extension(how)(self.dataset, self._plain, *arguments, any_host=self.config.any_host, **options)

    def seek(self, step: int) -> None:
        """Go to a step, counted over all passes, as if nothing had been dropped before it; arithmetic.

        After the last step of a pass, that pass has ended, and `iter` begins the next one.

        Raises:
            ConfigError: The start of a step depends on data.
            StateError: The step does not exist.
        """
        self._require_own_process("go to a step")
        with self.turn:
            self._go_to(place_of_step(self.spec, self.share, step))

    def skip(self, steps: int) -> None:
        """Skip steps of this pass. They count as delivered, and the cursor records them.

        Skipping is arithmetic, and skipped steps are not read, unless the dataset filters, groups, packs or generates:
        then the steps are made and discarded. Arithmetic skipping drops no samples. So in a stream with dropped
        samples, the batches after a skip differ from those without it.

        Raises:
            ValueError: `steps` is negative.
            StateError: The pass has fewer steps left. Nothing was skipped, unless the number of steps depends on data:
                then the pass has ended, and its remaining steps are recorded as skipped.
        """
        steps = operator.index(steps)
        if steps < 0:
            raise ValueError(f"skip({steps}): expected a number of steps, 0 or more")
        if steps:
            self._require_own_process("skip steps")
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
            before._replace(
                step=before.step + steps,
                pass_step=pass_step,
                item=item,
                ended=self.plan.is_over(pass_step, item),
                skipped=(*before.skipped, (before.step, steps)),
            )
        )

    def _skip_by_making(self, steps: int) -> None:
        self._count()
        before = self._progress
        done = 0
        try:
            while done < steps:
                if self._progress.ended:
                    raise StopIteration
                self._advance()
                self._count(skipped=True)
                done += 1
        except StopIteration:
            raise StateError(
                f"skip({steps}): the pass ended after {done} steps, which are skipped; begin the next pass"
            ) from None
        finally:
            if done:
                skipped = (*before.skipped, (before.step, done))
                self._progress = self._progress._replace(skipped=skipped)

    def restore_sample(self, restore_key: Any) -> Any:
        """Make a sample or batch again from its `__restore_key__`. See `history.replay.restore_sample`."""
        self._require_own_process("restore samples")
        sample = extension(RESTORE_SAMPLE)(self._run, restore_key)
        register_value(sample)
        return sample

    def which(self, step: int) -> StepSamples:
        """The samples of the global batch of a step, past or future.

        They follow from positions if possible. Otherwise the steps before it are read and made again, from the nearest
        known place: the beginning, the restored state, a state saved since, or the current place. The attribute `read`
        shows which. The stream keeps its place. Raises as `history.which.which`.
        """
        return self.ask(WHICH, step)

    def ask(self, question: str, *arguments: Any, **options: Any) -> Any:
        """Ask about the run: its past, its future, or its use of samples. The stream keeps its place.

        Args:
            question: Dotted name of a function (`Run`, place, arguments, dropped=, options), such as WHICH or WHEN of
                `stream.extensions`.
            *arguments: Arguments after the run and its place.
            **options: Keyword arguments, in addition to `dropped`.
        """
        self._require_own_process("make steps again")
        return extension(question)(self._run, self._progress, *arguments, dropped=self._drops.any_dropped, **options)

    def __len__(self) -> int:
        """Steps per host of the current pass, or of the next one if it has ended.

        Of an endless stream: of one pass over the repeated data.
        """
        progress, plan = self._progress, self.plan
        if progress.ended:
            progress = next_pass(progress, self.spec, plan, self.share.hosts)
            plan = PassPlan.of(self.spec, self.share.hosts, progress.pass_number)
        return pass_steps(self.spec, plan, progress)

    def close(self) -> None:
        """End threads and release files. Further `next` calls raise ValueError."""
        self._closed_at = self._closed_at or _caller()
        self._shutdown.cancellation.set()  # the thread with the lock may be reading, or running hooks
        with self._starting:
            self._steps = self._unreported = None
            self._peeked.clear()
            self._shutdown.close()
            self._drops.stop()
            self.outlet.end(self._delivered_steps, None)
            self._stage.close()
            self.outlet.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _caller() -> str:
    """File and line of the call from the program into this library."""
    frame = inspect.currentframe()
    while frame is not None and frame.f_globals.get("__name__", "").startswith("energon_grain"):
        frame = frame.f_back
    return "the end of the program" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"


def _bytes_of_step(step: Step) -> int:
    return approximate_bytes(step.batch)
