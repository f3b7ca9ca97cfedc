"""A program that reads with a memory budget. Prints its batches, and the memory of its processes, as JSON.

The memory is measured from outside: `main` starts the program and samples the PSS of its process tree.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from memory_checks import environment
from tree_memory import most_bytes

from energon_grain import TaskEncoder, WorkerConfig, get_savable_loader, get_train_dataset
from energon_grain.errors import ConfigError
from energon_grain.memory_budget.settings import ENVIRONMENT

PAUSE_S, LONGEST_S = 1.0, 60.0
"""Time for the look-ahead to fill, with a budget, and at most without."""
FULL, PREFETCH_FACTOR = 12, 6
"""Batches of a full queue of two workers."""


class Large(TaskEncoder):
    """Makes samples that are much larger than what is read."""

    decoder = None

    def encode_sample(self, sample: Any) -> Any:
        size = int(os.environ.get("SAMPLE_BYTES", "1000000"))
        return {"key": sample.__key__, "data": np.full(size, len(sample.__key__), np.uint8)}


def read(path: str, workers: int, worker_type: Any, steps: int, memory: str | None) -> dict[str, Any]:
    dataset = get_train_dataset(
        path,
        worker_config=WorkerConfig(rank=0, world_size=1, num_workers=workers, worker_type=worker_type),
        batch_size=32,
        shuffle_buffer_size=100,
        max_samples_per_sequence=10,
        task_encoder=Large(),
    )
    digest = hashlib.blake2b()
    options: dict[str, Any] = {} if memory is None else {"memory": memory}
    try:
        with get_savable_loader(dataset, prefetch_factor=PREFETCH_FACTOR, **options) as loader:
            for step in range(steps):
                digest.update("".join(next(loader)["key"]).encode())
                if step == 0:
                    limited = memory is not None or ENVIRONMENT in os.environ
                    until = time.monotonic() + (PAUSE_S if limited else LONGEST_S)
                    while loader.stats().queued < FULL and time.monotonic() < until:
                        time.sleep(0.05)
            used = loader.stats().memory
    except ConfigError as error:
        return {"error": str(error)}
    return {
        "digest": digest.hexdigest(),
        "minimum": used and used.minimum_bytes,
        "budget": used and used.budget_bytes,
        "processes": used and used.processes,
        "held": used and {each.name: each.held_bytes for each in used.holders},
        "used": used and used.used_bytes,
    }


ENTER = ("sh", "-c", 'echo $$ > "$0" && exec "$@"')
"""Runs the command that follows the file `cgroup.procs` of a cgroup in it."""


def run(path: Path, *arguments: object, group: Path | None = None, **variables: str) -> tuple[dict[str, Any], int]:
    """The output of the program, and the largest PSS of its process tree in bytes.

    Args:
        path: The dataset.
        *arguments: Further arguments of the program.
        group: The cgroup to run it in.
        **variables: Are added to its environment.
    """
    program = [sys.executable, __file__, str(path), *map(str, arguments)]
    if group is not None:
        program = [*ENTER, str(group / "cgroup.procs"), *program]
    with subprocess.Popen(program, stdout=subprocess.PIPE, text=True, env=environment(**variables)) as started:
        most = most_bytes(started)
        assert started.stdout is not None
        text = started.stdout.read()
    assert started.returncode == 0, started.returncode
    return json.loads(text), most


if __name__ == "__main__":
    folder, workers, worker_type, steps, memory = sys.argv[1:]
    found = read(folder, int(workers), worker_type, int(steps), None if memory == "none" else memory)
    print(json.dumps(found))
