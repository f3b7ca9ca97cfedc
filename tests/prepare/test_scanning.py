"""Scanning on executors of our own and of others: what fails is told, what is done is kept."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from full_disk import size_limit
from hypothesis import given, settings, strategies as st
from patience import PATIENCE_S

from energon_grain import errors
from energon_grain.errors import ConfigError, DatasetNotFoundError, TarError, WorkerError
from energon_grain.formats.scan import ShardScan
from energon_grain.kinds.tar.scan import scan_tar
from energon_grain.prepare import PrepareProgress, PrepareReport, prepare_dataset
from energon_grain.prepare.executors import Processes
from energon_grain.prepare.scan import ScanLog, ShardTask, decode_scan, describe_scan, encode_scan, scan_shard
from energon_grain.testing import write_tars

COUNT = 8
NAMES = [f"shard_{number:03d}.tar" for number in range(COUNT)]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Eight shards of three samples."""
    samples = [{"__key__": f"{i:03d}", "txt": "x", "cls": i} for i in range(3 * COUNT)]
    write_tars(tmp_path / "data", samples, shards=COUNT)
    return tmp_path / "data"


def prepare(root: Path | str, executor: Executor | None = None, **how: Any) -> PrepareReport:
    return prepare_dataset(root, split_ratio=[1], sqlite=False, executor=executor, **how)


def reused(root: Path) -> int:
    """How many shards the next run need not scan."""
    return prepare(root, num_workers=0, force_overwrite=True).shards_reused


def spawning(workers: int) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn"))


class Here(Executor):
    """Runs a call at once, after `before` had its say; counts the calls."""

    def __init__(self, before: Callable[[str], None] = lambda _: None) -> None:
        self.before = before
        self.calls: list[str] = []

    def submit(self, fn: Callable[..., object], /, *args: Any, **kwargs: Any) -> Future[object]:  # type: ignore[override]
        future: Future[object] = Future()
        self.calls.append(args[1].name)
        try:
            self.before(self.calls[-1])
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


@pytest.mark.parametrize("pool", [ThreadPoolExecutor, spawning])
def test_pools(root: Path, pool: Callable[[int], Executor]) -> None:
    with pool(2) as executor:
        report = prepare(root, executor)
    assert (report.shard_counts, report.part_names, report.shards_reused) == (
        dict.fromkeys(NAMES, 3),
        ("txt", "cls"),
        0,
    )


def test_workers_need_neither_the_working_folder_nor_a_place_to_write(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker's working folder is not ours, and it is told no other path than that of the dataset."""
    with spawning(1) as executor:
        executor.submit(os.chdir, "/").result()
        monkeypatch.chdir(root.parent)
        assert prepare("data", executor).samples == 3 * COUNT


def test_few_are_handed_over_at_a_time(root: Path) -> None:
    outstanding: list[int] = []
    submitted = done = 0

    class Counting(ThreadPoolExecutor):
        def submit(self, fn: Callable[..., object], /, *args: Any, **kwargs: Any) -> Future[object]:  # type: ignore[override]
            nonlocal submitted
            submitted += 1
            outstanding.append(submitted - done)
            return super().submit(fn, *args, **kwargs)

    def count(now: PrepareProgress) -> None:
        nonlocal done
        done = now.shards_done

    with Counting(2) as executor:
        prepare(root, executor, num_workers=3, progress=count)
        assert done == COUNT
        assert max(outstanding) <= 3
        with pytest.raises(ConfigError, match="Pass 1 or more"):
            prepare(root, executor, num_workers=0, force_overwrite=True)
    with pytest.raises(ConfigError, match="num_workers is -1"):
        prepare(root, num_workers=-1, force_overwrite=True)


def test_faults_of_shards_are_told_together_and_not_tried_again(root: Path) -> None:
    (root / NAMES[1]).write_bytes((root / NAMES[1]).read_bytes()[:700])
    executor = Here(lambda name: (root / NAMES[2]).unlink() if name == NAMES[2] else None)
    with pytest.raises(TarError, match=r"(?s)2 of 8 shards.*shard_001.*shard_002\.tar: .*dataset under the same"):
        prepare(root, executor)
    assert executor.calls == NAMES
    with pytest.raises(DatasetNotFoundError, match="listed as a shard"):
        prepare(root, shards=NAMES)
    write_tars(root, [{"__key__": "new", "txt": "x"}], name=NAMES[1])
    os.utime(root / NAMES[3], ns=(1, 1))
    assert reused(root) == COUNT - 3


def test_an_empty_shard(root: Path) -> None:
    write_tars(root, [], name=NAMES[0])
    with pytest.raises(TarError, match="holds no sample"):
        prepare(root, num_workers=0)


def test_other_errors_are_tried_once_more(root: Path) -> None:
    unlucky = {NAMES[1]: 1, NAMES[3]: 2}

    def fail(name: str) -> None:
        if unlucky.get(name, 0):
            unlucky[name] -= 1
            raise MemoryError("node 7 is full\nand more")

    executor = Here(fail)
    said = r"shard_003.*failed 2 times, last with MemoryError: node 7 is full\. Finished work is kept"
    with pytest.raises(WorkerError, match=said):
        prepare(root, executor)
    assert len(executor.calls) == COUNT + 2
    assert prepare(root, executor).shards_reused == COUNT - 1
    assert executor.calls[-1] == NAMES[3]


def test_an_executor_that_always_fails_is_given_up(root: Path) -> None:
    def fail(name: str) -> None:
        if name != NAMES[0]:
            raise ModuleNotFoundError("No module named 'energon_grain'")

    executor = Here(fail)
    with pytest.raises(WorkerError, match=r"on 5 tasks.*No module named.*Finished work is kept"):
        prepare(root, executor, num_workers=1)
    assert len(executor.calls) == 1 + 2 * 5
    assert reused(root) == 1


@pytest.mark.parametrize("cut", [0, 1])
def test_what_is_no_scan_is_refused(root: Path, cut: int) -> None:
    class Mixed(Executor):
        def submit(self, fn: Callable[..., object], /, *args: Any, **kwargs: Any) -> Future[object]:  # type: ignore[override]
            future: Future[object] = Future()
            future.set_result(scan_shard(str(root), ShardTask(name=NAMES[0]))[cut:])  # type: ignore[index]
            return future

    with pytest.raises(WorkerError, match=rf"{NAMES[1 - cut]}: the worker did not return a scan of this shard"):
        prepare(root, Mixed())
    assert reused(root) == 1 - cut


def test_leaving_early_cancels_what_waits_and_keeps_what_is_done(root: Path) -> None:
    all_in, gate = threading.Event(), threading.Event()

    class Gated(ThreadPoolExecutor):
        def submit(self, fn: Callable[..., object], /, *args: Any, **kwargs: Any) -> Future[object]:  # type: ignore[override]
            if args[1].name == NAMES[0]:
                super().submit(all_in.wait)
            if args[1].name == NAMES[3]:
                super().submit(gate.wait)
            if args[1].name == NAMES[-1]:
                all_in.set()
            submitted.append(super().submit(fn, *args, **kwargs))
            return submitted[-1]

    def leave(now: PrepareProgress) -> None:
        if now.shards_done == 1:
            submitted[2].result()
            raise KeyboardInterrupt

    submitted: list[Future[object]] = []
    with Gated(1) as executor:
        with pytest.raises(KeyboardInterrupt):
            prepare(root, executor, progress=leave)
        gate.set()
    assert reused(root) == 3


@pytest.mark.parametrize(
    "error", [ConnectionError("the head node is gone"), TypeError("cannot pickle"), RuntimeError("after shutdown")]
)
def test_an_executor_that_takes_no_more(root: Path, error: Exception) -> None:
    """Whatever it raises; what it had done by then is kept, although nobody waited for it yet."""

    class Ending(Here):
        def submit(self, fn: Callable[..., object], /, *args: Any, **kwargs: Any) -> Future[object]:  # type: ignore[override]
            if args[1].name == NAMES[3]:
                raise error
            return super().submit(fn, *args, **kwargs)

    with pytest.raises(WorkerError, match=rf"broken or was shut down \({type(error).__name__}: {error}.*same command"):
        prepare(root, Ending())
    assert reused(root) == 3


def test_a_pool_that_breaks_keeps_what_is_finished(root: Path) -> None:
    """The kernel kills the process of a pool before its last shard; the next run has that one left."""

    class Busy(ProcessPoolExecutor):
        def submit(self, fn: Callable[..., object], /, *args: Any, **kwargs: Any) -> Future[object]:  # type: ignore[override]
            if args[1].name == NAMES[-1]:
                super().submit(time.sleep, 600)
            return super().submit(fn, *args, **kwargs)

    def kill(now: PrepareProgress) -> None:
        if now.shards_done == COUNT - 1:
            (worker,) = executor._processes
            os.kill(worker, signal.SIGKILL)

    with (
        Busy(1, mp_context=multiprocessing.get_context("spawn")) as executor,
        pytest.raises(WorkerError, match=r"broken.*BrokenProcessPool.*Finished work is kept"),
    ):
        prepare(root, executor, progress=kill)
    assert reused(root) == COUNT - 1


COLUMNS = ("sample_start", "part_start", "part_name", "part_offset", "part_size", "key_start", "key_bytes")


def same(one: ShardScan, other: ShardScan) -> bool:
    arrays = [(getattr(one, name), getattr(other, name)) for name in COLUMNS]
    right = all(np.array_equal(here, there) and here.dtype == there.dtype for here, there in arrays)
    return right and (one.part_names, one.size_bytes) == (other.part_names, other.size_bytes)


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    """The records of three shards, the last with a name that is not UTF-8."""
    root = tmp_path_factory.mktemp("records")
    write_tars(root, [{"__key__": f"k{i}", "txt": "x" * i, "json": i} for i in range(9)], shards=3)
    found = [scan_shard(str(root), ShardTask(name=f"shard_{number:03d}.tar")) for number in range(3)]
    first, second, third = (record for record in found if isinstance(record, bytes))
    assert same(decode_scan(first), scan_tar(root / "shard_000.tar"))
    scan = decode_scan(third)
    names = ("é", b"\xff\xfe".decode("utf-8", "surrogateescape"))
    odd = ShardScan(size_bytes=scan.size_bytes, part_names=names, **{name: getattr(scan, name) for name in COLUMNS})
    third = encode_scan(describe_scan(third), odd)
    assert same(decode_scan(third), odd)
    return [first, second, third]


def test_a_full_disk(records: list[bytes], tmp_path: Path) -> None:
    log = ScanLog(tmp_path / "log")
    log.add(records[0])
    with pytest.raises(OSError, match=r"'.*/log'$"), size_limit(len(records[0]) + 10):
        log.add(records[1])
    log.add(records[2])
    assert [same(log.scan(describe_scan(each).task), decode_scan(each)) for each in (records[0], records[2])] == [
        True
    ] * 2
    log.close()
    assert (tmp_path / "log").read_bytes() == records[0] + records[2]


@settings(max_examples=150)
@given(data=st.data())
def test_damage_is_noticed(data: st.DataObject, records: list[bytes], tmp_path_factory: pytest.TempPathFactory) -> None:
    """Of a log that was cut off or changed anywhere, what comes before is found again, and what is added to it."""
    content, path = bytearray(b"".join(records)), tmp_path_factory.mktemp("log") / "log"
    place = data.draw(st.integers(0, len(content) - 1))
    if data.draw(st.booleans()):
        del content[place:]
    else:
        content[place] ^= data.draw(st.integers(1, 255))
    path.write_bytes(content)
    log = ScanLog(path)
    whole = sum(place >= sum(map(len, records[: number + 1])) for number in range(3))
    assert path.read_bytes() == b"".join(records[:whole])
    for record in records[whole:]:
        log.add(record)
    assert all(same(log.scan(describe_scan(record).task), decode_scan(record)) for record in records)
    log.close()


def big_dataset(root: Path) -> Path:
    """Four shards of few bytes, which look as if processes were worth it: zeros at the end take no place on a disk."""
    for tar in write_tars(root, [{"__key__": f"{i:03d}", "txt": "x"} for i in range(8)], shards=4):
        os.truncate(tar, 40 << 20)
    return root


# A script as a user may write it, without a main guard. What it is asked to do meanwhile is its second argument.
SCRIPT = """
import os, signal, sys, threading
from pathlib import Path
from energon_grain.prepare import MediaFilterConfig, prepare_dataset
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
media = MediaFilterConfig.parse(None, False, True)  # to look for media takes processes
try:
    print(prepare_dataset(sys.argv[1], num_workers=2, split_ratio=[1], media_filter=media, progress=tell).samples)
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
from energon_grain.prepare import MediaFilterConfig, prepare_dataset
media = MediaFilterConfig.parse(None, False, True)  # to look for media takes processes
try:
    prepare_dataset(sys.argv[1], num_workers=2, split_ratio=[1], media_filter=media)
except RuntimeError as error:
    print(type(error).__name__, error)
os.environ["DEADLY"] = ""
print(prepare_dataset(sys.argv[1], num_workers=0, split_ratio=[1], media_filter=media).shards_reused)
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
    assert failed.endswith("run the same command again to continue from there.")
    assert reused == "3"
