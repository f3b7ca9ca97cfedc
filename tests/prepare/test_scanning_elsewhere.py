from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Generator
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path

import pytest

from energon_grain.errors import ConfigError, DatasetNotFoundError, TarError, WorkerError
from energon_grain.prepare import PrepareProgress, prepare_dataset
from energon_grain.prepare.scan import Result, ScanOutcome, ScanTask, find_stored, scan_remotely, scanning
from energon_grain.testing import write_tars

COUNT = 8


@pytest.fixture
def tasks(tmp_path: Path) -> list[ScanTask]:
    root, folder = tmp_path / "data", tmp_path / "scans"
    samples = [{"__key__": f"{i:03d}", "txt": "x", "cls": i} for i in range(3 * COUNT)]
    names = [path.name for path in write_tars(root, samples, shards=COUNT)]
    folder.mkdir()
    return [ScanTask(root=str(root), name=name, folder=str(folder)) for name in names]


def scan_with(executor: Executor, tasks: list[ScanTask], ahead: int | None = None) -> Generator[Result]:
    with scanning(tasks, num_workers=ahead, executor=executor) as results:
        yield from results


def collect(
    executor: Executor, tasks: list[ScanTask], **how: int
) -> tuple[dict[str, ScanOutcome], dict[str, Exception]]:
    results = {task.name: outcome for task, outcome in scan_with(executor, tasks, **how)}
    assert len(results) == len(tasks)
    good = {name: outcome for name, outcome in results.items() if isinstance(outcome, ScanOutcome)}
    return good, {name: outcome for name, outcome in results.items() if isinstance(outcome, Exception)}


def spawning(workers: int) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn"))


class Here(Executor):
    """Runs a call at once, after `before` had its say; counts the calls."""

    def __init__(self, before: Callable[[str], None]) -> None:
        self.before = before
        self.calls: list[str] = []

    def submit(self, fn: Callable[..., object], /, *args: object, **kwargs: object) -> Future[object]:  # type: ignore[override]
        future: Future[object] = Future()
        self.calls.append(str(args[1]))
        try:
            self.before(self.calls[-1])
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


@pytest.mark.parametrize("pool", [ThreadPoolExecutor, spawning])
def test_pools(tasks: list[ScanTask], pool: Callable[[int], Executor]) -> None:
    with pool(2) as executor:
        good, bad = collect(executor, tasks)
        assert ({name: outcome.samples for name, outcome in good.items()}, bad) == (
            {task.name: 3 for task in tasks},
            {},
        )
        assert all(outcome.part_names == ("txt", "cls") and not outcome.reused for outcome in good.values())
        good, _ = collect(executor, tasks)
        assert all(outcome.reused for outcome in good.values())


def test_workers_need_neither_the_working_folder_nor_a_place_to_write(
    tasks: list[ScanTask], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker's working folder is not ours, and it is told no other path than that of the dataset."""
    with spawning(1) as executor:
        executor.submit(os.chdir, "/").result()
        monkeypatch.chdir(Path(tasks[0].root).parent)
        good, bad = collect(executor, [ScanTask(root="data", name=task.name, folder="scans") for task in tasks])
    assert (len(good), bad) == (COUNT, {})
    assert sorted(Path("scans").iterdir()) == sorted(Path("scans") / task.scan_path.name for task in tasks)


def test_few_are_handed_over_at_a_time(tasks: list[ScanTask]) -> None:
    outstanding: list[int] = []

    class Counting(ThreadPoolExecutor):
        def submit(self, fn: Callable[..., object], /, *args: object, **kwargs: object) -> Future[object]:  # type: ignore[override]
            future = super().submit(fn, *args, **kwargs)
            submitted.append(future)
            outstanding.append(len(submitted) - yielded)
            return future

    submitted: list[Future[object]] = []
    yielded = 0
    with Counting(2) as executor:
        for _ in scan_with(executor, tasks, ahead=3):
            yielded += 1
    assert yielded == COUNT
    assert max(outstanding) <= 3
    with pytest.raises(ConfigError, match="Give 1 or more"):
        next(scan_with(executor, tasks, ahead=0))


def test_faults_of_shards_are_not_tried_again(tasks: list[ScanTask]) -> None:
    Path(tasks[1].location).write_bytes(Path(tasks[1].location).read_bytes()[:700])
    executor = Here(lambda name: Path(tasks[2].location).unlink() if name == tasks[2].name else None)
    good, bad = collect(executor, tasks)
    assert executor.calls == [task.name for task in tasks]
    assert (len(good), set(bad)) == (COUNT - 2, {tasks[1].name, tasks[2].name})
    assert isinstance(bad[tasks[1].name], TarError)
    assert isinstance(bad[tasks[2].name], DatasetNotFoundError)
    assert "under the same path" in str(bad[tasks[2].name])
    _, bad = collect(executor, tasks)
    assert isinstance(bad[tasks[2].name], FileNotFoundError), "it is not on this machine either"


def test_other_errors_are_tried_once_more(tasks: list[ScanTask]) -> None:
    unlucky = {tasks[1].name: 1, tasks[3].name: 2}

    def fail(name: str) -> None:
        if unlucky.get(name, 0):
            unlucky[name] -= 1
            raise MemoryError("node 7 is full\nand more")

    executor = Here(fail)
    good, bad = collect(executor, tasks)
    assert len(executor.calls) == COUNT + 2
    assert (len(good), set(bad)) == (COUNT - 1, {tasks[3].name})
    assert isinstance(bad[tasks[3].name], WorkerError)
    assert "failed 2 times, last with MemoryError: node 7 is full. Shards" in str(bad[tasks[3].name])
    good, _ = collect(executor, tasks)
    assert [name for name, outcome in good.items() if not outcome.reused] == [tasks[3].name]


def test_an_executor_that_always_fails_is_given_up(tasks: list[ScanTask]) -> None:
    def fail(name: str) -> None:
        if name != tasks[0].name:
            raise ModuleNotFoundError("No module named 'energon_grain'")

    executor = Here(fail)
    with pytest.raises(WorkerError, match=r"on 5 shards.*No module named.*finished are kept"):
        list(scan_with(executor, tasks, ahead=1))
    assert len(executor.calls) == 1 + 2 * 5
    assert find_stored(tasks[0]) is not None


def test_what_is_no_scan_is_refused(tasks: list[ScanTask]) -> None:
    class Mixed(Executor):
        def submit(self, fn: Callable[..., object], /, *args: object, **kwargs: object) -> Future[object]:  # type: ignore[override]
            future: Future[object] = Future()
            future.set_result(scan_remotely(tasks[0].root, tasks[0].name)[self.cut :])  # type: ignore[index]
            return future

        cut = 0

    executor = Mixed()
    assert next(scan_with(executor, tasks[:1]))[0] == tasks[0]
    for executor.cut in (0, 1):
        with pytest.raises(WorkerError, match=r"001\.tar: what the worker sent is no scan of this shard"):
            list(scan_with(executor, tasks[1:2]))
        assert find_stored(tasks[1]) is None


def test_an_executor_that_was_shut_down(tasks: list[ScanTask]) -> None:
    executor = ThreadPoolExecutor(1)
    results = scan_with(executor, tasks, ahead=1)
    next(results)
    executor.shutdown()
    with pytest.raises(WorkerError, match=r"shut down \(RuntimeError.*run the same command again"):
        list(results)


def test_leaving_early_cancels_what_waits_and_keeps_what_is_done(tasks: list[ScanTask]) -> None:
    all_in, gate = threading.Event(), threading.Event()

    class Gated(ThreadPoolExecutor):
        def submit(self, fn: Callable[..., object], /, *args: object, **kwargs: object) -> Future[object]:  # type: ignore[override]
            if args[1] == tasks[0].name:
                super().submit(all_in.wait)
            if args[1] == tasks[3].name:
                super().submit(gate.wait)
            if args[1] == tasks[-1].name:
                all_in.set()
            submitted.append(super().submit(fn, *args, **kwargs))
            return submitted[-1]

    submitted: list[Future[object]] = []
    with Gated(1) as executor:
        results = scan_with(executor, tasks)
        next(results)
        submitted[2].result()
        results.close()
        gate.set()
    assert [find_stored(task) is not None for task in tasks] == [True] * 3 + [False] * (COUNT - 3)


@pytest.mark.parametrize("error", [ConnectionError("the head node is gone"), TypeError("cannot pickle")])
def test_an_executor_that_takes_no_more(tasks: list[ScanTask], error: Exception) -> None:
    """Whatever it raises; what it had done by then is kept, although nobody waited for it yet."""

    class Ending(Here):
        def submit(self, fn: Callable[..., object], /, *args: object, **kwargs: object) -> Future[object]:  # type: ignore[override]
            if args[1] == tasks[3].name:
                raise error
            return super().submit(fn, *args, **kwargs)

    with pytest.raises(WorkerError, match=rf"broken or was shut down \({type(error).__name__}: {error}.*same command"):
        list(scan_with(Ending(lambda name: None), tasks))
    assert [find_stored(task) is not None for task in tasks] == [True] * 3 + [False] * (COUNT - 3)


def test_a_pool_that_breaks_keeps_what_is_finished(tasks: list[ScanTask]) -> None:
    """The kernel kills the process of a pool before its last shard; the next run has that one left."""
    root = Path(tasks[0].root)

    class Busy(ProcessPoolExecutor):
        def submit(self, fn: Callable[..., object], /, *args: object, **kwargs: object) -> Future[object]:  # type: ignore[override]
            if args[1] == tasks[-1].name:
                super().submit(time.sleep, 600)
            return super().submit(fn, *args, **kwargs)

    def kill(now: PrepareProgress) -> None:
        if now.shards_done == COUNT - 1:
            (worker,) = executor._processes
            os.kill(worker, signal.SIGKILL)

    with (
        Busy(1, mp_context=multiprocessing.get_context("spawn")) as executor,
        pytest.raises(WorkerError, match=r"broken.*BrokenProcessPool.*starts with them"),
    ):
        prepare_dataset(root, split_ratio={"all": 1}, executor=executor, progress=kill)
    report = prepare_dataset(root, num_workers=0, split_ratio={"all": 1})
    assert (report.shards_reused, report.samples) == (COUNT - 1, 3 * COUNT)
