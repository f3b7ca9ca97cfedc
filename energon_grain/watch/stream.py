# SPDX-License-Identifier: Apache-2.0
"""A stream with statistics. If `num_workers` is "auto", they determine the number of workers."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any
from weakref import WeakMethod

from energon_grain.errors import public
from energon_grain.memory_budget.budget import join_budget
from energon_grain.memory_budget.need import require_memory
from energon_grain.mixture_shares import expected_reads
from energon_grain.sources.remote_runs import RemoteSource
from energon_grain.sources.rows import SelectedSource
from energon_grain.storage.cores import usable_cores
from energon_grain.stream import stream
from energon_grain.stream.background import Background
from energon_grain.stream.extensions import BLAME, COST_SHARES, extension
from energon_grain.stream.observer import Observer
from energon_grain.stream.passes import Share
from energon_grain.stream.spec import StreamSpec
from energon_grain.stream.steps import Step
from energon_grain.stream.worker_config import WorkerConfig
from energon_grain.stream.workers import MakePool
from energon_grain.watch.auto_workers import AutoWorkers, Resizable
from energon_grain.watch.loader_stats import LoaderStats, Setup
from energon_grain.watch.statistics import Statistics

_logger = logging.getLogger("energon_grain")
_KNOWN_SECONDS = 0.5
"""Time that each worker must have worked before its use of cores is known."""
_COMPUTES = 0.45
"""Share of the cores that computing hooks keep busy. On two cores, hooks that hold Python's lock use one."""
_WAITS = 0.8
"""Minimum share of its time that a hook waits. On a busy machine, hooks that compute wait for a core."""
_WORTH_IT = 1.5
"""Minimum gain of running hooks side by side that is logged."""


@public
class Stream(stream.Stream):
    """One host's stream of batches, with its state and its numbers.

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
        observers: Receive the reports of the engine, in addition to the statistics.

    Attributes:
        statistics: Counts deliveries, times and drops.
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
        observers: Sequence[Observer] = (),
    ) -> None:
        names = ["/".join(leaf.key) for leaf in spec.leaves]
        sources = [leaf.leaf.source for leaf in spec.leaves]
        setup = Setup(
            host=config.rank,
            hosts=config.world_size,
            worker_type=str(config.worker_type),
            cores=usable_cores(),
            batch_size=1 if spec.batch is None else spec.batch.size,
            in_store=any(
                isinstance(source, SelectedSource | RemoteSource) and source.remote_files for source in sources
            ),
        )
        self.statistics = Statistics(names, setup, partial(expected_reads, spec), extension(COST_SHARES)(spec))
        self._auto: AutoWorkers | None = None
        if config.num_workers == "auto":
            hooks = any(True for _ in spec.stage_hooks())
            self._auto = AutoWorkers(max(1, prefetch_factor), hooks=hooks, pool=config.workers)
        super().__init__(
            spec,
            config,
            prefetch_factor=prefetch_factor,
            make_pool=make_pool,
            finish=finish,
            share=share,
            workers=None if self._auto is None else self._auto.threads,
            observers=(self.statistics, *observers),
        )
        self._may_wait_in_turn = True
        self._waited_s, self._began_s = 0.0, time.perf_counter()
        self._more_than_cores = self._auto is None and self.workers > usable_cores()
        self.statistics.stepped = WeakMethod(self._stepped)

    def _switch(self, spec: StreamSpec) -> None:
        if spec is not self.spec:
            super()._switch(spec)
            names = ["/".join(leaf.key) for leaf in spec.leaves]
            self.statistics.extend(names, partial(expected_reads, spec), extension(COST_SHARES)(spec))

    def stats(self) -> LoaderStats:
        """Deliveries, times, and drops with their reasons. May be called from any thread."""
        if self.turn.acquire(blocking=False):
            self.statistics.waits.few()
            self._report_next()
            self.turn.release()
        self._count()
        found = self.statistics.report(self.ready, self.workers, self._delivered_steps, self.outlet.ready)
        budget = join_budget()
        return found if budget is None else replace(found, memory=budget.use())

    def _start(self) -> Iterator[Step]:
        budget = join_budget()
        if budget is not None:
            require_memory(budget, self.spec, self.workers, in_processes=self.config.worker_type == "process")
        return super()._start()

    def blame(self, losses: Any, **options: Any) -> Any:
        """Rank samples by how much of the run's unusual losses they explain. See `history.blame.blame`."""
        return self.ask(BLAME, losses, **options)

    @property
    def samples(self) -> int:
        """Number of delivered samples."""
        self._count()
        return self.statistics.samples

    def _stepped(self, steps: int, samples: int, waited_s: float) -> None:
        """Handle delivered steps, with their samples and the time waited for them."""
        if self._auto is not None:
            if isinstance(self._pool, Resizable):
                self._auto.runs(self._pool, self._steps if isinstance(self._steps, Background) else None)
                self._auto.took(steps, samples, waited_s)
            else:
                self._auto = None  # hooks may not run in threads, or the pool has one size
        if self._more_than_cores:
            self._warn_if_crowded()
        if self._may_wait_in_turn and self.workers > 1:
            self._waited_s += waited_s
            self._warn_if_waiting_in_turn()

    def _warn_if_waiting_in_turn(self) -> None:
        """Log once that hooks wait one after the other, if the loop waits for them: with the expected gain."""
        name, took_s, cpu_s, others_s = self.statistics.one_at_a_time()
        elapsed_s = time.perf_counter() - self._began_s
        if took_s < 2 * _KNOWN_SECONDS or cpu_s > (1 - _WAITS) * took_s or self._waited_s < elapsed_s / 2:
            return
        # Side by side, the threads share all of the work; the CPU time of this hook is limited by Python's lock.
        gain = took_s / max((took_s + others_s) / self.workers, cpu_s)
        if gain < _WORTH_IT:
            return
        self._may_wait_in_turn = False
        _logger.warning(
            "%s waits for %d%% of its time, and runs in one of %d threads at a time: side by side, they would deliver "
            "about %.1f times as many samples. Set `thread_safe = True` on the task encoder if several threads may run "
            "its hooks; otherwise use worker_type='process'",
            *(name, round(100 * (1 - cpu_s / took_s)), self.workers, gain),
        )

    def _warn_if_crowded(self) -> None:
        """Log once that there are more workers than cores, if hooks compute. Hooks that wait do need more workers."""
        worked_s, cores_s = self.statistics.work_seconds()
        if worked_s < _KNOWN_SECONDS * self._workers:
            return
        self._more_than_cores = False
        busy, cores = self._workers * cores_s / worked_s, usable_cores()
        if busy > _COMPUTES * cores:
            _logger.info(
                "num_workers=%d is more than the %d cores of this process, and the workers keep %.1f cores busy: more "
                "workers than cores help only if hooks wait (for storage or a service)",
                *(self._workers, cores, busy),
            )
