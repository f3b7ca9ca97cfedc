"""A loader with workers, in a forked child that lets go of it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from patience import PATIENCE_S

pytest.importorskip("torch")

SCRIPT = """
import gc, os, sys
from energon_grain_torch import WorkerConfig, get_loader, get_train_dataset

path, forget = sys.argv[1:]
config = WorkerConfig(rank=0, world_size=1, num_workers=2)
dataset = get_train_dataset(
    path, batch_size=4, shuffle_buffer_size=None, max_samples_per_sequence=None, worker_config=config
)
loader = get_loader(dataset)
next(loader)
child = os.fork()
if not child:
    if forget == "close":
        loader.close()
    del loader
    gc.collect()
    os._exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
for _ in range(100):
    next(loader)
loader.close()
"""


@pytest.mark.parametrize("forget", ["collect", "close"])
def test_it_is_silent_and_the_workers_go_on(text_dataset: Callable[..., Path], forget: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, text_dataset(100), forget],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
