"""Scripts that leave their loop and end: nothing on stderr, nothing left behind, at once, with workers of all kinds."""

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

pytestmark = pytest.mark.slow

RunScript = Callable[..., Any]

SCRIPT = """
import os, signal, sys, time
import MODULE as modules
from energon_grain import Stream

class Mine:
    def __init__(self, text):
        self.text = text

class Encoder(modules.TaskEncoder):
    def encode_sample(self, sample):
        time.sleep(0.002)
        return Mine(sample.text)

    def batch(self, samples):
        return samples

def dataset(path, worker_type, num_workers):
    return modules.get_train_dataset(
        path, batch_size=4, shuffle_buffer_size=10, max_samples_per_sequence=4, task_encoder=Encoder(),
        worker_config=modules.WorkerConfig(0, 1, int(num_workers), worker_type=worker_type),
    )

def main():
    path, worker_type, num_workers, start, end = sys.argv[1:]
    made = dataset(path, worker_type, num_workers)
    if end == "signal handler":
        signal.signal(signal.SIGTERM, lambda *_: print("to be ended", file=sys.stderr))
    if end == "direct":
        for batch in made:
            break
        return
    if start:
        loader = modules.get_loader(made, multiprocessing_context=start)
    else:
        loader = modules.get_loader(made) if end == "loader" else Stream.of(made)
    for number, batch in enumerate(loader):
        assert len(batch) == 4 and all(type(sample) is Mine for sample in batch)
        if number == 5:
            break
    if end == "cycle":
        class Trainer:
            pass
        trainer = Trainer()
        trainer.self, trainer.loader = trainer, loader
    elif end == "exit":
        sys.exit(3)
    elif end == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    elif end != "deleted":
        global kept
        kept = loader
"""
BARE = SCRIPT + "\nmain()\n"
GUARDED = SCRIPT + '\nif __name__ == "__main__":\n    main()\n'
TORCH = BARE.replace("MODULE", "energon_grain_torch")
GUARDED_TORCH = GUARDED.replace("MODULE", "energon_grain_torch")
EARLY = "import weakref\n\nclass Early:\n    pass\n\nearly = Early()\nweakref.finalize(early, int)\n"
"""Finalizers have been registered before `multiprocessing`, so that its own end of workers comes before ours."""


@pytest.mark.parametrize(
    ("worker_type", "num_workers", "start", "end"),
    [
        ("thread", 0, "", "direct"),
        ("thread", 2, "", "referenced"),
        ("thread", 2, "", "cycle"),
        ("thread", 1, "", "exit"),
        ("thread", 2, "", "loader"),
        ("process", 2, "", "referenced"),
        ("process", 2, "", "cycle"),
        ("process", 1, "", "exit"),
        ("process", 2, "", "loader"),
        ("dataloader", 2, "fork", "referenced"),
        ("dataloader", 2, "fork", "exit"),
        ("dataloader", 2, "fork", "signal handler"),
        ("dataloader", 2, "spawn", "cycle"),
    ],
)
def test_nothing_is_said_and_nothing_stays(
    text_dataset: Callable[..., Path], run_script: RunScript, worker_type: str, num_workers: int, start: str, end: str
) -> None:
    if worker_type == "dataloader":
        pytest.importorskip("torch")
        source = EARLY + (GUARDED_TORCH if start == "spawn" else TORCH)
    else:
        source = BARE.replace("MODULE", "energon_grain")
    before = shared_memory()
    done = run_script(source, text_dataset(53), worker_type, num_workers, start, end)
    assert done.stderr == ""
    assert done.returncode == (3 if end == "exit" else 0)
    assert orphans(done) == []
    assert not {name for name in shared_memory() - before if "torch" in name or "energon" in name}


def test_workers_end_with_a_killed_parent(text_dataset: Callable[..., Path], run_script: RunScript) -> None:
    pytest.importorskip("torch")
    done = run_script(TORCH, text_dataset(53), "dataloader", 2, "fork", "killed")
    assert done.returncode == -signal.SIGKILL
    deadline = time.monotonic() + PATIENCE_S  # a worker looks every five seconds
    while orphans(done):
        assert time.monotonic() < deadline
        time.sleep(0.2)


def shared_memory() -> set[str]:
    return set(os.listdir("/dev/shm")) if Path("/dev/shm").is_dir() else set()


def orphans(done: Any) -> list[psutil.Process]:
    """Processes of a script that has ended: forks of it, and workers in its folder."""
    script = Path(done.args[3])
    return [
        process
        for process in psutil.process_iter(["cmdline", "cwd"])
        if str(script) in (process.info["cmdline"] or [])
        or (process.info["cwd"] == str(script.parent) and "energon_grain" in " ".join(process.info["cmdline"] or []))
    ]


LATE = """
import atexit, threading

def left():  # registered first, so called last; the thread that closes may begin late, and find nothing left to do
    names = {thread.name for thread in threading.enumerate() if thread.name.startswith("energon-grain")}
    print("left:", *names - {"energon-grain-closing"})

atexit.register(left)
"""
NOT_YET_BEGUN = """
from types import SimpleNamespace
from energon_grain.stream import workers
workers._thread = SimpleNamespace(start_new_thread=lambda *_: None)  # as if the system had not come to it
"""


@pytest.mark.parametrize("begun", [True, False])
@pytest.mark.parametrize("worker_type", ["thread", "process"])
def test_a_loader_let_go_of_just_before_the_end_is_waited_for(
    text_dataset: Callable[..., Path], run_script: RunScript, worker_type: str, begun: bool
) -> None:
    script = LATE + SCRIPT.replace("MODULE", "energon_grain") + ("" if begun else NOT_YET_BEGUN) + "\nmain()\n"
    done = run_script(script, text_dataset(53), worker_type, 2, "", "deleted")
    assert (done.returncode, done.stdout, done.stderr) == (0, "left:\n", "")
    assert orphans(done) == []
