from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from patience import PATIENCE_S

from energon_grain.errors import ConfigError, EnergonGrainError, TarError, WorkerError
from energon_grain.prepare.scan_processes import ScanProcesses
from energon_grain.prepare.scan_task import ScanOutcome, ScanTask, scan_shard
from energon_grain.prepare.scanning import scanning
from energon_grain.testing import write_tars

COUNTS = {"shard_000.tar": 3, "shard_001.tar": 3, "shard_002.tar": 3, "shard_003.tar": 1}


@pytest.fixture
def tasks(tmp_path: Path) -> list[ScanTask]:
    write_tars(tmp_path, [{"__key__": f"{i:03d}", "txt": "x", "cls": i} for i in range(10)], samples_per_shard=3)
    (tmp_path / "scans").mkdir()
    return [ScanTask(root=str(tmp_path), name=name, folder=str(tmp_path / "scans")) for name in COUNTS]


def collect(tasks: list[ScanTask], **how: object) -> dict[str, ScanOutcome | Exception]:
    with scanning(tasks, **how) as results:  # type: ignore[arg-type]
        return {task.name: outcome for task, outcome in results}


def counts(found: dict[str, ScanOutcome | Exception]) -> dict[str, int]:
    return {name: outcome.samples for name, outcome in sorted(found.items()) if isinstance(outcome, ScanOutcome)}


@pytest.mark.parametrize("workers", [None, 0, 1, 2])
def test_any_number_of_workers(tasks: list[ScanTask], workers: int | None) -> None:
    found = collect(tasks, num_workers=workers)
    assert counts(found) == COUNTS
    assert all(isinstance(outcome, ScanOutcome) and outcome.part_names == ("txt", "cls") for outcome in found.values())
    again = collect(tasks, num_workers=workers)
    assert all(isinstance(outcome, ScanOutcome) and outcome.reused for outcome in again.values())


def test_executor(tasks: list[ScanTask]) -> None:
    with ThreadPoolExecutor(2) as pool:
        assert counts(collect(tasks, executor=pool)) == COUNTS


def test_negative_workers(tasks: list[ScanTask]) -> None:
    with pytest.raises(ConfigError, match="num_workers is -1"):
        collect(tasks, num_workers=-1)


def test_errors_do_not_stop_the_others(tasks: list[ScanTask]) -> None:
    tar = Path(tasks[1].root) / tasks[1].name
    tar.write_bytes(b"\x1f\x8b" + tar.read_bytes()[2:])
    found = collect(tasks, num_workers=0)
    error = found.pop(tasks[1].name)
    assert isinstance(error, TarError)
    assert len(counts(found)) == 3
    with ScanProcesses(tasks, 2) as processes:
        in_processes = {task.name: outcome for task, outcome in processes}
    assert type(in_processes[tasks[1].name]) is TarError
    assert str(in_processes[tasks[1].name]) == str(error)


def test_empty_shard(tasks: list[ScanTask]) -> None:
    write_tars(Path(tasks[0].root), [], shards=1)
    with pytest.raises(TarError, match="holds no sample"):
        scan_shard(tasks[0])


def test_missing_shard(tasks: list[ScanTask]) -> None:
    (Path(tasks[2].root) / tasks[2].name).unlink()
    found = collect(tasks, num_workers=0)
    assert isinstance(found[tasks[2].name], FileNotFoundError)
    with ScanProcesses(tasks, 2) as processes:
        errors = [outcome for _, outcome in processes if isinstance(outcome, Exception)]
    assert len(errors) == 1
    assert isinstance(errors[0], EnergonGrainError)


def test_changed_shard_is_scanned_again(tasks: list[ScanTask]) -> None:
    assert not scan_shard(tasks[0]).reused
    assert scan_shard(tasks[0]).reused
    os.utime(Path(tasks[0].location), ns=(1, 1))
    assert not scan_shard(tasks[0]).reused


def children() -> list[int]:
    text = Path(f"/proc/self/task/{os.getpid()}/children").read_text()
    return [int(pid) for pid in text.split()]


def block(task: ScanTask) -> ScanTask:
    """The task, with a pipe that nobody writes to in place of an earlier scan: whoever opens it waits for ever."""
    os.mkfifo(task.scan_path)
    return task


def test_a_child_that_dies_is_an_error(tasks: list[ScanTask]) -> None:
    """The kernel kills a child at work."""
    blocked = block(tasks[1])
    before = set(children())
    with ScanProcesses([blocked], 1) as processes:
        (child,) = set(children()) - before
        threading.Timer(0.5, os.kill, (child, signal.SIGKILL)).start()
        with pytest.raises(WorkerError, match=r"shard_001\.tar.*ended unexpectedly"):
            list(processes)
    assert set(children()) <= before


def test_leaving_early_ends_the_children(tasks: list[ScanTask]) -> None:
    block(tasks[0])
    before = set(children())
    with ScanProcesses(tasks, 2) as processes:
        next(iter(processes))
    assert set(children()) <= before


PROGRAM = """
import sys
from energon_grain.prepare.scan_processes import ScanProcesses, may_fork
from energon_grain.prepare.scan_task import ScanTask
root, folder = sys.argv[1:3]
tasks = [ScanTask(root=root, name=name, folder=folder) for name in sys.argv[3:]]
with ScanProcesses(tasks, 2) as processes:
    print(may_fork(), sorted((task.name, outcome.samples) for task, outcome in processes))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="processes are forked on Linux only")
def test_forked_children(tasks: list[ScanTask]) -> None:
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-W", "error", "-c", PROGRAM, tasks[0].root, tasks[0].folder, *COUNTS]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE_S)
    assert (done.stderr, done.stdout) == ("", f"True {sorted(COUNTS.items())}\n")
