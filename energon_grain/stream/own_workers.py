"""The workers that a configuration describes: threads, or processes."""

from __future__ import annotations

import logging

from energon_grain.datasets.worker_config import WorkerConfig
from energon_grain.stream.encode import PureStage
from energon_grain.stream.global_seeding import stage_seeds_globals
from energon_grain.stream.processes import ProcessPool
from energon_grain.stream.spec import StreamSpec
from energon_grain.stream.worker_pool import ThreadPool, WorkerPool

_logger = logging.getLogger("energon_grain")


def own_pool(spec: StreamSpec, stage: PureStage, config: WorkerConfig, workers: int) -> WorkerPool | None:
    """So many workers of the configured kind; None: hooks may not run in threads."""
    if config.worker_type == "process":
        return ProcessPool(spec, stage.sources, workers, config.prefetch_bytes)
    if stage_seeds_globals(spec):
        _logger.warning(
            "hooks with restore_seeds=True seed generators of the whole process, so they run inside `next` and not in "
            "threads; let them use self.rng, or use worker processes"
        )
        return None
    return ThreadPool(stage, workers, config.prefetch_bytes)
