"""How many steps a pass has."""

from __future__ import annotations

import numpy as np

from energon_grain.datasets.dataset import SavableDataset
from energon_grain.stream.compile import compile_dataset
from energon_grain.stream.pass_plan import PassPlan
from energon_grain.stream.progress import Progress
from energon_grain.stream.spec import StreamSpec


def pass_steps(spec: StreamSpec, plan: PassPlan, progress: Progress) -> int:
    """Steps per host of the pass that `progress` is in, those already made included."""
    remaining = plan.remaining(progress.pass_step, progress.item)
    if remaining is not None:
        return progress.pass_step + remaining
    if spec.program is None:
        return max(1, spec.order.samples // plan.global_batch)
    items = spec.program.root.items()
    return max(1, items // plan.global_batch if plan.drops_last or spec.endless else -(-items // plan.global_batch))


def steps_per_epoch(dataset: SavableDataset) -> int:
    """Steps per host of a dataset's first pass."""
    spec = compile_dataset(dataset)
    plan = PassPlan.of(spec, dataset.worker_config.world_size)
    return pass_steps(spec, plan, Progress(drops=np.zeros(1, np.int64)))
