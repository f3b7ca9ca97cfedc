"""Scripts that leave their loop and end, with DataLoader workers: nothing on stderr, nothing left behind, at once."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from patience import PATIENCE_S

RunScript = Callable[..., Any]

SCRIPT = """
import os, signal, sys, time
from energon_grain_torch import TaskEncoder, WorkerConfig, get_loader, get_train_dataset

class Mine:
    def __init__(self, text):
        self.text = text

class Encoder(TaskEncoder):
    def encode_sample(self, sample):
        time.sleep(0.002)
        return Mine(sample.text)

    def batch(self, samples):
        return samples

def main():
    path, start, end = sys.argv[1:]
    loader = get_loader(get_train_dataset(
        path, batch_size=4, shuffle_buffer_size=10, max_samples_per_sequence=4, task_encoder=Encoder(),
        worker_config=WorkerConfig(0, 1, num_workers=2),
    ), multiprocessing_context=start)
    for number, batch in enumerate(loader):
        assert len(batch) == 4 and all(type(sample) is Mine for sample in batch)
        if number == 5:
            break
    print("ended", time.time(), flush=True)
    if end == "cycle":
        class Trainer:
            pass
        trainer = Trainer()
        trainer.self, trainer.loader = trainer, loader
    elif end == "exit":
        sys.exit(3)
    elif end == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    elif end == "referenced":
        global kept
        kept = loader
"""
BARE = SCRIPT + "\nmain()\n"
GUARDED = SCRIPT + '\nif __name__ == "__main__":\n    main()\n'


@pytest.mark.parametrize(
    ("source", "start", "end"),
    [
        (BARE, "fork", "referenced"),
        (BARE, "fork", "exit"),
        (GUARDED, "spawn", "cycle"),
    ],
    ids=["fork-referenced", "fork-exit", "spawn-cycle"],
)
def test_nothing_is_said_and_nothing_stays(
    text_dataset: Callable[..., Path], run_script: RunScript, source: str, start: str, end: str
) -> None:
    before = set(os.listdir("/dev/shm"))
    done = run_script(source, text_dataset(53), start, end)
    assert done.stderr == ""
    assert done.returncode == (3 if end == "exit" else 0)
    assert orphans(done) == []
    assert {name for name in set(os.listdir("/dev/shm")) - before if "torch" in name or "energon" in name} == set()


def test_workers_end_with_a_killed_parent(text_dataset: Callable[..., Path], run_script: RunScript) -> None:
    done = run_script(BARE, text_dataset(53), "fork", "killed")
    assert done.returncode == -signal.SIGKILL
    deadline = time.monotonic() + PATIENCE_S  # a worker looks every five seconds
    while orphans(done):
        assert time.monotonic() < deadline
        time.sleep(0.2)


def orphans(done: Any) -> list[psutil.Process]:
    """Processes of a script that has ended."""
    script = str(done.args[3])
    return [process for process in psutil.process_iter(["cmdline"]) if script in (process.info["cmdline"] or [])]
