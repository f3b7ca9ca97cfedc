from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from patience import PATIENCE_S

from energon_grain import errors
from energon_grain.errors import ConfigError, TarError, WorkerError
from energon_grain.prepare import prepare_dataset
from energon_grain.prepare.executors import Processes
from energon_grain.prepare.scan import ScanOutcome, ScanTask, scanning
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
    (Path(tasks[2].root) / tasks[2].name).unlink()
    found = collect(tasks, num_workers=0)
    assert isinstance(found[tasks[1].name], TarError)
    assert isinstance(found[tasks[2].name], FileNotFoundError)
    assert len(counts(found)) == 2


def test_changed_shard_is_scanned_again(tasks: list[ScanTask]) -> None:
    def reused() -> object:
        return [getattr(outcome, "reused", outcome) for outcome in collect(tasks[:1]).values()]

    assert (reused(), reused()) == ([False], [True])
    os.utime(Path(tasks[0].location), ns=(1, 1))
    assert reused() == [False]


def test_an_empty_shard(tasks: list[ScanTask]) -> None:
    write_tars(Path(tasks[0].root), [], shards=1)
    with pytest.raises(TarError, match="holds no sample"):
        prepare_dataset(tasks[0].root, num_workers=0)


def big_dataset(root: Path) -> Path:
    """Four shards of few bytes, which look as if processes were worth it: zeros at the end take no place on a disk."""
    for tar in write_tars(root, [{"__key__": f"{i:03d}", "txt": "x"} for i in range(8)], shards=4):
        os.truncate(tar, 40 << 20)
    return root


# A script as a user may write it, without a main guard. What it is asked to do meanwhile is its second argument.
SCRIPT = """
import os, signal, sys, threading
from pathlib import Path
from energon_grain.prepare import prepare_dataset
print("script")
mode = sys.argv[2]
if mode != "alone":  # a thread: so processes are not forked
    threading.Thread(target=threading.Event().wait, daemon=True).start()
def children():
    return Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
seen = set()
def tell(now):
    seen.update(children())
    if mode == "interrupted" and now.shards_done:
        signal.raise_signal(signal.SIGINT)
try:
    print(prepare_dataset(sys.argv[1], num_workers=2, split_ratio=[1], progress=tell).samples)
except KeyboardInterrupt:
    print("interrupted")
print(len(seen), len(children()))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
@pytest.mark.parametrize("mode", ["alone", "threads", "interrupted"])
def test_scripts_need_no_main_guard_and_leave_no_processes(tmp_path: Path, mode: str) -> None:
    """Forked, or as programs; nothing of the script runs twice."""
    (tmp_path / "script.py").write_text(SCRIPT)
    data = big_dataset(tmp_path / "data")
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}

    def run(mode: str) -> list[str]:
        command = [sys.executable, "-W", "error", str(tmp_path / "script.py"), str(data), mode]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE_S)
        assert (done.stderr, done.returncode) == ("", 0)
        return done.stdout.splitlines()

    assert run(mode) == ["script", "interrupted" if mode == "interrupted" else "8", "2 0"]
    if mode == "interrupted":
        assert run("alone")[1] == "8", "the same command goes on"


def children() -> set[int]:
    return {int(pid) for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()}


def test_errors_travel_as_themselves() -> None:
    with Processes(2) as executor:
        assert list(executor.map(abs, range(-3, 0))) == [3, 2, 1]
        with pytest.raises(FileNotFoundError) as caught:
            executor.submit(os.stat, "/nothing/here").result()
        assert caught.value.filename == "/nothing/here"
        with pytest.raises(ZeroDivisionError, match="division"):
            executor.submit(divmod, 1, 0).result()


@pytest.mark.parametrize(
    "error", [cls for cls in vars(errors).values() if isinstance(cls, type) and issubclass(cls, Exception)]
)
def test_every_error_of_ours_can_travel(error: type[Exception]) -> None:
    returned = pickle.loads(pickle.dumps(error("what, where, the rule, the way out")))
    assert (type(returned), str(returned)) == (error, "what, where, the rule, the way out")


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_a_child_that_dies_fails_its_call_alone() -> None:
    """The kernel kills a child at work, and another while it waits."""
    before = children()
    with Processes(2) as executor:
        first = children() - before
        sleeping = executor.submit(time.sleep, 600)
        assert executor.submit(abs, -1).result() == 1
        victims = {executor.submit(os.getpid).result() for _ in range(3)}
        assert len(victims) == 1
        (busy,) = first - victims
        os.kill(busy, signal.SIGKILL)
        with pytest.raises(WorkerError, match=r"ended unexpectedly \(out of memory"):
            sleeping.result()
        os.kill(victims.pop(), signal.SIGKILL)
        results = [executor.submit(abs, -1) for _ in range(8)]
        failed = [future for future in results if future.exception() is not None]
        assert len(failed) <= 1
        assert len(children() - before) <= 2
    assert children() <= before


# Found by every interpreter that starts: whoever opens the shard dies, but for the process that prepares.
DEADLY = """
import os, signal, sys
def look(event, arguments):
    if event == "open" and arguments[0] == os.environ["DEADLY"] and os.environ["PREPARING"] != str(os.getpid()):
        os.kill(os.getpid(), signal.SIGKILL)
sys.addaudithook(look)
"""
PREPARE = """
import os, sys
os.environ["PREPARING"] = str(os.getpid())
from energon_grain.prepare import prepare_dataset
try:
    prepare_dataset(sys.argv[1], num_workers=2, split_ratio=[1])
except RuntimeError as error:
    print(type(error).__name__, error)
os.environ["DEADLY"] = ""
print(prepare_dataset(sys.argv[1], num_workers=0, split_ratio=[1]).shards_reused)
"""


def test_a_shard_whose_worker_dies_is_tried_again_and_then_named(tmp_path: Path) -> None:
    data = big_dataset(tmp_path / "data")
    (tmp_path / "sitecustomize.py").write_text(DEADLY)
    deadly = str(sorted(data.glob("*.tar"))[1])
    path = os.pathsep.join([str(tmp_path), *sys.path])
    environment = {**os.environ, "PYTHONPATH": path, "DEADLY": deadly, "PREPARING": ""}
    command = [sys.executable, "-c", PREPARE, str(data)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.stderr == ""
    failed, reused = done.stdout.splitlines()
    assert failed.startswith(f"WorkerError {deadly}: its scan failed 2 times, last with WorkerError: the worker proc")
    assert failed.endswith("run the same command again, and it starts with them.")
    assert reused == "3"
