"""Scripts without a main guard that leave their loop and end: nothing on stderr, nothing left behind, at once."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

RunScript = Callable[..., Any]

SCRIPT = """
import sys, time
from energon_grain import Stream, TaskEncoder, WorkerConfig, get_train_dataset

path, worker_type, num_workers, end = sys.argv[1:]

class Encoder(TaskEncoder):
    def encode_sample(self, sample):
        time.sleep(0.002)
        return sample

def dataset():
    return get_train_dataset(
        path, batch_size=4, shuffle_buffer_size=10, max_samples_per_sequence=4, task_encoder=Encoder(),
        worker_config=WorkerConfig(0, 1, int(num_workers), worker_type=worker_type),
    )

if end == "loader":
    from energon_grain import get_loader as make
else:
    make = Stream.of

loader = make(dataset())
for number, batch in enumerate(loader):
    if number == 5:
        break
if end == "deleted":
    del loader
elif end == "cycle":
    class Trainer:
        pass
    trainer = Trainer()
    trainer.self, trainer.loader = trainer, loader
    del trainer, loader
elif end == "direct":
    del loader
    for batch in dataset():
        break
elif end == "exit":
    import os
    sys.exit(3)
print("ended", time.time())
"""


@pytest.mark.parametrize(
    ("worker_type", "num_workers", "end"),
    [
        ("thread", 0, "referenced"),
        ("thread", 0, "direct"),
        ("thread", 1, "deleted"),
        ("thread", 2, "referenced"),
        ("thread", 2, "cycle"),
        ("thread", 1, "exit"),
        ("process", 1, "deleted"),
        ("process", 2, "referenced"),
        ("process", 2, "cycle"),
        ("process", 1, "exit"),
    ],
)
def test_nothing_is_said_and_nothing_stays(
    text_dataset: Callable[..., Path],
    run_script: RunScript,
    tmp_path: Path,
    worker_type: str,
    num_workers: int,
    end: str,
) -> None:
    check(run_script, tmp_path, text_dataset(53), worker_type, num_workers, end)


@pytest.mark.parametrize("worker_type", ["thread", "process"])
def test_the_loader_at_the_end_of_a_script(
    text_dataset: Callable[..., Path], run_script: RunScript, tmp_path: Path, worker_type: str
) -> None:
    check(run_script, tmp_path, text_dataset(53), worker_type, 2, "loader")


def check(run_script: RunScript, folder: Path, path: Path, worker_type: str, num_workers: int, end: str) -> None:
    before = set(os.listdir("/dev/shm")) if Path("/dev/shm").is_dir() else set()
    done = run_script(SCRIPT, path, worker_type, num_workers, end)
    assert done.stderr == ""
    assert done.returncode == (3 if end == "exit" else 0)
    assert not [p for p in psutil.process_iter(["cmdline", "cwd"]) if is_orphan_of(p, folder)]
    if Path("/dev/shm").is_dir():
        assert {name for name in set(os.listdir("/dev/shm")) - before if "energon" in name} == set()


def is_orphan_of(process: psutil.Process, folder: Path) -> bool:
    """Whether it is a worker process of the script that ran in a folder."""
    return process.info["cwd"] == str(folder) and "worker_process" in " ".join(process.info["cmdline"] or [])
