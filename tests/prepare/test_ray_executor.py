"""On a real cluster of one node with two workers, which ends with its process group."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from conftest import PYTHONPATH, RunScript
from patience import PATIENCE_S

from energon_grain.prepare import prepare_dataset
from energon_grain.testing import write_tars

pytest.importorskip("ray")
pytestmark = pytest.mark.slow

COUNT = 12


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """The address of a cluster with two cores."""
    folder = Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))  # the paths of Ray's sockets must be short
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block", "--num-cpus=2", "--port=0"]
    command += ["--include-dashboard=false", f"--temp-dir={folder}", f"--object-store-memory={100 << 20}"]
    with open(folder / "start.log", "wb") as log:
        head = subprocess.Popen(
            command,
            cwd="/",
            env={**os.environ, "PYTHONPATH": PYTHONPATH, "RAY_USAGE_STATS_ENABLED": "0"},
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        address = folder / "ray_current_cluster"
        end = time.monotonic() + PATIENCE_S
        while not (address.exists() and "runtime started" in (folder / "start.log").read_text()):
            if head.poll() is not None or time.monotonic() > end:
                pytest.fail((folder / "start.log").read_text())
            time.sleep(0.05)
        yield address.read_text()
    finally:
        processes = psutil.Process(head.pid).children(recursive=True)
        os.killpg(head.pid, signal.SIGKILL)
        head.wait()
        for process in psutil.wait_procs(processes, 10)[1]:  # a worker sees by itself that its node is gone
            process.kill()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    samples = [{"__key__": f"{i:04d}", "txt": f"text {i}", "json": {"i": i}} for i in range(10 * COUNT)]
    write_tars(tmp_path / "data", samples, shards=COUNT)
    return tmp_path / "data"


def outputs(root: Path) -> dict[str, bytes]:
    """All files but those that differ from run to run: the random name of the index's generation is taken out."""
    files = {path.relative_to(root).as_posix(): path for path in root.rglob("*") if path.is_file()}
    generation: str = json.loads((root / ".nv-meta/columnar/header.json").read_text())["generation"]
    return {
        name.replace(generation, ""): path.read_bytes().replace(generation.encode(), b"")
        for name, path in files.items()
        if not name.endswith("index.uuid")
    }


def prepared_here(root: Path) -> dict[str, bytes]:
    copy = root.with_name("here")
    shutil.copytree(root, copy, ignore=shutil.ignore_patterns("*.idx", ".nv-meta"))
    prepare_dataset(copy, num_workers=0, split_ratio={"all": 1})
    return outputs(copy)


A_KILLED_WORKER = """
import os, signal, sys, time
from pathlib import Path
from energon_grain.prepare import RayExecutor, prepare_dataset

address, root, mark = sys.argv[1], sys.argv[2], Path(sys.argv[3])

def gated(fn, root, task, *more):
    if task.name == "shard_003.tar" and not mark.exists():
        mark.with_suffix(".new").write_text(str(os.getpid()))
        os.replace(mark.with_suffix(".new"), mark)
        time.sleep(600)
    return fn(root, task, *more)

class Gated(RayExecutor):
    def submit(self, fn, /, *args):
        return super().submit(gated, fn, *args)

def progress(now):
    if now.stage == "scan" and now.shards_done == now.shards_total - 1:
        while not mark.exists():
            time.sleep(0.01)
        os.kill(int(mark.read_text()), signal.SIGKILL)

with Gated(address) as executor:
    report = prepare_dataset(root, split_ratio={"all": 1}, executor=executor, progress=progress)
    print(report.samples, report.shards_reused)
"""


def test_a_killed_worker_changes_nothing(cluster: str, root: Path, tmp_path: Path, run_script: RunScript) -> None:
    """One of two workers is killed at work, after all other shards are done: Ray scans its shard again."""
    done = run_script(A_KILLED_WORKER, cluster, root, tmp_path / "mark")
    *messages, last = done.stdout.splitlines() or [done.stderr]
    assert (last, done.returncode) == (f"{10 * COUNT} 0", 0)
    assert "A worker died" in "".join(messages), "Ray says so"
    assert (tmp_path / "mark").exists()
    assert outputs(root) == prepared_here(root)


A_KILLED_DRIVER = """
import sys, time
from energon_grain.prepare import RayExecutor, prepare_dataset

def progress(now):
    if now.stage == "scan" and now.shards_done == 5:
        print("here", flush=True)
        time.sleep(600)

prepare_dataset(sys.argv[2], split_ratio={"all": 1}, executor=RayExecutor(sys.argv[1]), progress=progress)
"""


def test_a_killed_driver_goes_on_from_the_command_line(cluster: str, root: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": PYTHONPATH}
    command = [sys.executable, "-c", A_KILLED_DRIVER, cluster, str(root)]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) as driver:
        assert driver.stdout is not None
        assert driver.stdout.readline() == b"here\n"
        driver.kill()
    command = [sys.executable, "-m", "energon_grain.cli", "prepare", root.name, "--runner=ray", "--non-interactive"]
    command += [f"--ray-address={cluster}", "--split-ratio=all=1"]
    done = subprocess.run(command, env=environment, cwd=root.parent, capture_output=True, text=True, timeout=PATIENCE_S)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"{10 * COUNT} samples in {COUNT} shards" in done.stdout
    assert "5 shards had been scanned by an interrupted run" in done.stdout
    assert outputs(root) == prepared_here(root)


MEASURED = """
import json, sys
from energon_grain import measure_dataset, open_columns
from energon_grain.prepare import RayExecutor

def number(parts):
    return json.loads(parts["json"])["i"]

with RayExecutor(sys.argv[1]) as executor:
    report = measure_dataset(sys.argv[2], {"i": number, "parts": "builtins:len"}, executor=executor)
columns = open_columns(sys.argv[2])
print(report.samples, columns["i"].tolist() == [*range(report.samples)], set(columns["parts"].tolist()))
"""


def test_functions_of_the_program_measure_on_a_cluster(cluster: str, root: Path, run_script: RunScript) -> None:
    prepare_dataset(root, num_workers=0, split_ratio={"all": 1}, crude=True)
    done = run_script(MEASURED, cluster, root)
    assert done.stdout.splitlines()[-1:] == [f"{10 * COUNT} True {{2}}"], done.stderr


AN_EXECUTOR = """
import os, sys, time
import ray
from energon_grain.errors import TarError
from energon_grain.prepare import RayExecutor

def damaged(path):
    raise TarError(f"{path}: damaged")

def die():
    os._exit(1)

def sleep_until_cancelled(path):
    try:
        open(path + ".begun", "w").close()
        while True:
            time.sleep(0.01)  # a longer one would not be interrupted
    except KeyboardInterrupt:
        open(path, "w").close()
        raise

def wait_for(path):
    while not os.path.exists(path):
        time.sleep(0.01)

with RayExecutor(sys.argv[1], max_retries=1, num_cpus=0.5) as executor:
    assert executor.submit(pow, 2, 3).result() == 8
    assert executor.submit(int, "12", base=3).result() == 5
    assert executor.submit(os.getpid).result() != os.getpid()
    assert list(executor.map(abs, range(-50, 0))) == list(range(50, 0, -1))

    error = executor.submit(damaged, "a.tar").exception()
    assert (type(error), str(error)) == (TarError, "a.tar: damaged")
    assert "in damaged" in str(error.__cause__), "the traceback of the node"
    assert isinstance(executor.submit(die).exception(), ray.exceptions.WorkerCrashedError)

    running = executor.submit(sleep_until_cancelled, sys.argv[2])
    wait_for(sys.argv[2] + ".begun")
    assert running.cancel() and running.cancelled()
    wait_for(sys.argv[2])
    waiting = [executor.submit(time.sleep, 60) for _ in range(20)]
    time.sleep(0.5)  # some of them run by now, and do not notice
    executor.shutdown(cancel_futures=True)
    assert all(future.cancelled() for future in waiting)
    try:
        executor.submit(abs, 1)
    except RuntimeError as refused:
        assert "after shutdown" in str(refused)
    else:
        raise AssertionError("taken after shutdown")
assert not ray.is_initialized()

ray.init(sys.argv[1], log_to_driver=False, logging_level="ERROR")
with RayExecutor("unused") as executor:
    assert executor.submit(abs, -1).result() == 1
assert ray.is_initialized(), "a connection of the program stays"
print("done")
"""


def test_an_executor_like_others(cluster: str, tmp_path: Path, run_script: RunScript) -> None:
    done = run_script(AN_EXECUTOR, cluster, tmp_path / "cancelled")
    assert (done.stdout.splitlines()[-1:], done.returncode) == (["done"], 0), done.stderr


@pytest.mark.parametrize(
    ("hidden", "address", "message"),
    [
        ("ray", "auto", "pip install 'energon-grain[ray]'"),
        ("", "127.0.0.1:1", "`ray start --head`"),
        ("", "nonsense", "`ray start --head`"),
    ],
)
def test_without_a_cluster(hidden: str, address: str, message: str, run_script: RunScript) -> None:
    program = """
import sys
hidden, address = sys.argv[1:]
if hidden:
    sys.modules[hidden] = None
from energon_grain.errors import ConfigError
from energon_grain.prepare import RayExecutor
try:
    RayExecutor(address)
except ConfigError as error:
    print(error)
"""
    done = run_script(program, hidden, address)
    assert message in done.stdout, done.stderr
