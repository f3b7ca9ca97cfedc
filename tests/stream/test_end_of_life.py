"""Loaders that forked children let go of: neither waited for nor ended there."""

from __future__ import annotations

import gc
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from patience import PATIENCE_S

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


def test_what_is_collected_is_closed_in_another_thread() -> None:
    closed: queue.Queue[int] = queue.Queue()
    owner = Owner()
    close_with(owner, lambda: closed.put(threading.get_ident()))
    del owner
    gc.collect()
    assert closed.get(timeout=PATIENCE_S) != threading.get_ident()
    assert closed.empty()


@pytest.mark.parametrize("worker_type", ["thread", "process"])
def test_forked_children_leave_workers_alone(text_dataset: Callable[..., Path], worker_type: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, text_dataset(100), worker_type],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
