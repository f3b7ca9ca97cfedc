"""Loaders that forked children let go of: neither waited for nor ended there."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from energon_grain.stream.end_of_life import close_with

SCRIPT = """
import gc, os, sys
from energon_grain import WorkerConfig, get_train_dataset
from energon_grain.stream.run import Stream

path, worker_type = sys.argv[1:]
config = WorkerConfig(rank=0, world_size=1, num_workers=1, worker_type=worker_type)
dataset = get_train_dataset(
    path, batch_size=4, shuffle_buffer_size=None, max_samples_per_sequence=None, worker_config=config
)
stream = Stream.of(dataset)
next(stream)
child = os.fork()
if not child:
    del stream
    gc.collect()
    os._exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
for _ in range(40):
    next(stream)
stream.close()
"""


class Owner:
    pass


def test_it_closes_once() -> None:
    closed: list[str] = []
    owner = Owner()
    end = close_with(owner, lambda: closed.append("called"))
    end()
    del owner
    gc.collect()
    assert closed == ["called"]

    owner = Owner()
    close_with(owner, lambda: closed.append("collected"))
    del owner
    gc.collect()
    assert closed == ["called", "collected"]


@pytest.mark.parametrize("worker_type", ["thread", "process"])
def test_forked_children_leave_workers_alone(text_dataset: Callable[..., Path], worker_type: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, text_dataset(100), worker_type],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
