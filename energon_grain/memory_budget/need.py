# SPDX-License-Identifier: Apache-2.0
"""The memory that a loader needs at least, estimated before it reads its first sample."""

from __future__ import annotations

from contextlib import suppress

import numpy as np

from energon_grain.errors import EnergonGrainError
from energon_grain.memory_budget.budget import MemoryBudget
from energon_grain.stream.spec import StreamSpec
from energon_grain.words import format_bytes

_INTERPRETER_BYTES = 40 << 20
"""PSS of a worker process with numpy and this package, before it reads a sample."""
_COPIES = 7
"""Copies of a batch at a time, if one is made while the next begins: of these, as samples and as a batch; a third that
waits; and the two that the program has while it takes one."""
_LEAVES, _SAMPLES = 8, 64
"""Number of leaves, and of samples of each, whose sizes are taken from the index."""


def batch_bytes(spec: StreamSpec) -> int:
    """Bytes to read for one batch of a host on average, from the index; 0 if unknown."""
    means: list[float] = []
    for leaf in spec.leaves[:: max(1, len(spec.leaves) // _LEAVES)]:
        source = leaf.leaf.source
        with suppress(EnergonGrainError, OSError):
            if len(source):
                places = np.linspace(0, len(source) - 1, min(_SAMPLES, len(source))).astype(np.int64)
                means.append(float(source.sizes(places).mean()))
    size = 1 if spec.batch is None else spec.batch.size
    return int(size * sum(means) / max(1, len(means)))


def require_memory(budget: MemoryBudget, spec: StreamSpec, workers: int, *, in_processes: bool) -> None:
    """Check that the minimum fits: the processes, and one batch in the making. Raises ConfigError."""
    batch = batch_bytes(spec)
    processes = workers if in_processes else 0
    detail = f"a batch has {format_bytes(batch)}, of which up to {_COPIES} exist at once"
    if processes:
        detail += f"; each of {processes} worker processes takes {format_bytes(_INTERPRETER_BYTES)}"
    budget.require(_COPIES * batch + processes * _INTERPRETER_BYTES, detail)
