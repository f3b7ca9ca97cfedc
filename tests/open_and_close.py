"""Opens loaders and ends them in every way, and tells what stays behind: `python open_and_close.py KIND CYCLES`.

KIND is thread, process, grain (a Grain pipeline above a loader) or dataloader. Prints what is left when all cycles are
over: nothing, if all is well.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import random
import re
import signal
import sys
import tempfile
import threading
import time
from multiprocessing.heap import BufferWrapper
from pathlib import Path
from typing import Any

import psutil
from patience import PATIENCE_S

import energon_grain
from energon_grain.testing import make_text_dataset

# `multiprocessing` keeps files of shared memory whose blocks are all free, as many as were in use at once.
KEPT_BY_PYTHON = re.compile(r"/dev/shm/pym-")
WAYS = ["close", "with", "drop", "cycle", "handler", "handler cycle", "fatal", "interrupt", "interrupt cycle", "twice"]


class Plain(energon_grain.DefaultTaskEncoder):
    """Its batches come back with some work for the garbage collector."""

    def batch(self, samples: list[Any]) -> Any:
        return {"keys": [sample.__key__ for sample in samples], "cycles": [Cycle() for _ in range(300)]}


class Cycle:
    def __init__(self) -> None:
        self.me = self


class Failing(Plain):
    def encode_sample(self, sample: Any) -> Any:
        if int(sample.__key__) % 10 == 0:
            raise RuntimeError("this sample fails")
        return sample


class Fatal(Plain):
    def encode_sample(self, sample: Any) -> Any:
        if int(sample.__key__) % 30 == 0:
            raise energon_grain.FatalSampleError("this sample ends the iteration")
        return sample


def again(error: Exception, sample: Any, sources: Any = None) -> None:
    raise error


def open_loader(kind: str, path: Path, way: str) -> Any:
    encoder = Failing() if "handler" in way else Fatal() if way == "fatal" else Plain()
    modules: Any = energon_grain
    if kind == "dataloader":
        import energon_grain_torch

        modules = energon_grain_torch
    options: dict[str, Any] = {"global_error_handler": again} if "handler" in way else {}
    dataset = modules.get_train_dataset(
        path,
        # Starting an interpreter takes long, and one that is left behind would be seen as well as two.
        worker_config=modules.WorkerConfig(
            0, 1, 1 if kind == "process" else 2, worker_type="thread" if kind == "grain" else kind, **options
        ),
        batch_size=4,
        shuffle_buffer_size=10,
        max_samples_per_sequence=10,
        task_encoder=encoder,
    )
    if kind == "grain":
        from energon_grain.loader import BatchIterDataset

        return iter(BatchIterDataset(dataset).map(len))
    return modules.get_savable_loader(dataset)


def cycle(kind: str, path: Path, way: str) -> None:
    """Open a loader, take some batches, and end it in one way."""
    loader = open_loader(kind, path, way)
    holder: Any = Cycle() if "cycle" in way else None
    if holder is not None:
        holder.loader = loader
    interrupt = None
    if "interrupt" in way:
        interrupt = threading.Timer(random.uniform(0.0, 0.2), os.kill, (os.getpid(), signal.SIGINT))
    try:
        if interrupt is not None:
            interrupt.start()
        steps = 200 if interrupt is not None or way in ("handler", "handler cycle", "fatal") else random.randrange(8)
        for _ in range(steps):
            next(loader)
            if interrupt is not None and random.random() < 0.1:
                restore_here(loader)
        if interrupt is not None:  # Python drops one that comes while a finalizer runs; then none is waited for
            interrupt.join()
            time.sleep(1)
    except (RuntimeError, KeyboardInterrupt):
        if interrupt is not None:
            interrupt.join()
    if way == "with" and hasattr(loader, "__enter__"):
        with loader:
            next(loader)
    elif way == "twice":
        other = threading.Thread(target=loader.close)
        other.start()
        loader.close()
        other.join()
    elif way in ("close", "with"):
        loader.close()


def restore_here(loader: Any) -> None:
    """Begin anew at the present place."""
    if hasattr(loader, "set_state"):
        loader.set_state(loader.get_state())
    else:
        loader.restore_state_rank(loader.save_state_rank())


class Belongings:
    """What this process has."""

    def __init__(self) -> None:
        me = psutil.Process()
        self.children = {f"process {child.pid}" for child in me.children(recursive=True) if is_worker(child)}
        self.threads = {f"thread {thread.name}" for thread in threading.enumerate()}
        self.files = len([file for file in files_of(me.pid) if not KEPT_BY_PYTHON.match(file)])
        self.arenas = {f"shared block {block}" for block in blocks_in_arenas()}
        self.folders = {f"folder {name}" for name in os.listdir(tempfile.gettempdir())}
        self.memory = (
            {f"shared memory {name}" for name in os.listdir("/dev/shm")} if Path("/dev/shm").is_dir() else set()
        )

    def since(self, before: Belongings) -> list[str]:
        new = [
            *(self.children - before.children),
            *(self.threads - before.threads),
            *(self.folders - before.folders),
            *(self.arenas - before.arenas),
            *(name for name in self.memory - before.memory if "torch" in name or "energon" in name),
        ]
        return new + ([f"{self.files - before.files} files"] if self.files > before.files else [])


def files_of(pid: int) -> list[str]:
    """What the open descriptors of a process stand for."""
    found: list[str] = []
    for descriptor in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(FileNotFoundError):  # the one that lists the folder
            found.append(os.readlink(f"/proc/{pid}/fd/{descriptor}"))
    return found


def blocks_in_arenas() -> list[str]:
    """Blocks of the shared memory behind `multiprocessing.Value` that are in use."""
    heap: Any = BufferWrapper._heap  # pyright: ignore[reportAttributeAccessIssue]
    return [f"{id(arena)}:{start}" for arena, blocks in heap._allocated_blocks.items() for start, _ in blocks]


def is_worker(child: psutil.Process) -> bool:
    """Whether it is none of the processes that Python keeps for `multiprocessing`."""
    try:
        return not any("resource_tracker" in part or "forkserver" in part for part in child.cmdline())
    except psutil.Error:
        return True  # it ends just now, or is a zombie


def main(kind: str, cycles: int) -> None:
    """Run the cycles."""
    logging.disable(logging.CRITICAL)
    home = tempfile.mkdtemp()
    temporary = Path(home, "tmp")
    temporary.mkdir()
    tempfile.tempdir = str(temporary)
    os.environ["TMPDIR"] = str(temporary)
    path = Path(home, "set")
    make_text_dataset(path, n=100, shards=4)
    for way in ("close", "handler", "interrupt"):  # what the first of a kind brings stays for good: modules, executors
        cycle(kind, path, way)
    gc.collect()
    time.sleep(2)
    before = Belongings()
    random.seed(0)
    for number in range(cycles):
        cycle(kind, path, WAYS[number % len(WAYS)])
    until = time.monotonic() + PATIENCE_S / 2  # the caller waits for as long as PATIENCE_S for the answer
    while True:
        gc.collect()
        left = Belongings().since(before)
        if not left or time.monotonic() > until:
            break
        time.sleep(0.2)
    print("\n".join(left), end="")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
