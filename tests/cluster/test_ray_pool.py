"""Workers on Ray deliver the stream of threads, whatever is lost."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import pickle
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from energon_grain import (
    ConfigError,
    Stream,
    TaskEncoder,
    WorkerConfig,
    WorkerError,
    get_savable_loader,
    get_train_dataset as train_dataset,
)
from energon_grain.testing import check_pool

pytest.importorskip("ray")
sys.path.insert(0, os.path.dirname(__file__))

from cluster_encoders import Arrays, Gated, Noisy, Packing, Sleepy
from patience import PATIENCE_S

from energon_grain.cluster import RayPool, actor as actors
from energon_grain.cluster.actor import Probe, StageActor
from energon_grain.processes.worker import ResultFile
from energon_grain.stream.clock import Span, Work
from energon_grain.stream.observer import Observer
from energon_grain.testing.hook_check import difference
from energon_grain.watch import auto_workers

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def pool(cluster: Any) -> Iterator[RayPool]:
    del cluster
    with RayPool(2, num_cpus=0.5) as made:
        made.wait(2)
        yield made


def stream(
    path: Path, workers: Any = None, encoder: TaskEncoder | None = None, *, rank: int = 0, world: int = 1, **more: Any
) -> Any:
    dropped: list[str] = []

    def drop(error: Exception, sample: Any, sources: Any = None) -> None:
        del sources
        dropped.append(f"{sample.__key__}: {error}")

    dataset = train_dataset(
        path,
        batch_size=4,
        shuffle_buffer_size=8,
        max_samples_per_sequence=4,
        task_encoder=Noisy() if encoder is None else encoder,
        worker_config=WorkerConfig(rank, world, workers=workers, global_error_handler=drop),
        **more,
    )
    made = Stream.of(dataset)
    made.dropped = dropped
    return made


def require_equal(found: Any, expected: Any, steps: int, each: Callable[[int], None] = lambda _: None) -> None:
    for step in range(steps):
        each(step)
        assert difference(next(found), next(expected), "") is None, step
    assert found.cursor() == expected.cursor()


def wait_for(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.02)


def is_complete(pool: RayPool) -> bool:
    """Whether it has started all its actors, and ended spare ones."""
    return sorted(pool._actors) == list(range(pool.workers)) and pool.stats().ready == pool.workers


@pytest.mark.parametrize("near", ["auto", "never"])
def test_the_stream_is_that_of_one_thread(cluster: Any, texts: Path, near: Any) -> None:
    with RayPool(2, num_cpus=0.5, near=near) as pool, stream(texts, pool) as found, stream(texts) as expected:
        require_equal(found, expected, 20)
        assert found.dropped[: len(expected.dropped)] == expected.dropped  # it has read ahead
        stats = pool.stats()
        assert (stats.workers, stats.near, stats.deaths) == (2, 2 if near == "auto" else 0, 0)
        assert stats.chunks > 0


def test_packs(pool: RayPool, texts: Path) -> None:
    with (
        stream(texts, pool, Packing(), packing_buffer_size=7) as found,
        stream(texts, None, Packing(), packing_buffer_size=7) as expected,
    ):
        require_equal(found, expected, 12)


def test_hosts_and_loaders_share_a_pool(pool: RayPool, texts: Path) -> None:
    found = [stream(texts, pool, rank=rank, world=2) for rank in range(2)]
    expected = [stream(texts, rank=rank, world=2) for rank in range(2)]
    for step in range(10):
        for one, other in zip(found, expected, strict=True):
            assert difference(next(one), next(other), "") is None, step
    for each in (*found, *expected):
        each.close()
    assert pool.stats().ready == 2


DRIVER = """
import hashlib, json, pickle, sys
import ray
from cluster_encoders import Noisy
from energon_grain import Stream, WorkerConfig, get_train_dataset
from energon_grain.cluster import RayPool

address, path = sys.argv[1:]
ray.init(address, logging_level="error", log_to_driver=False)
pool = RayPool(2, num_cpus=0.5, name="shared")
config = WorkerConfig(0, 2, workers=pool, global_error_handler=lambda *_: None)
stream = Stream.of(get_train_dataset(
    path, batch_size=4, shuffle_buffer_size=8, max_samples_per_sequence=4, task_encoder=Noisy(), worker_config=config
))
for command in sys.stdin:
    pool.wait(2)
    found = [hashlib.sha256(pickle.dumps(list(next(stream).values()))).hexdigest() for _ in range(int(command))]
    print(json.dumps([found, sorted(actor.host.pid for actor in pool._actors.values())]), flush=True)
"""


def test_programs_share_actors(cluster: Any, texts: Path, tmp_path: Path) -> None:
    """Another program has started them: it keeps them when this pool is closed, and this one replaces them later."""

    def pids(pool: RayPool) -> list[int]:
        pool.wait(2)
        return sorted(actor.host.pid for actor in pool._actors.values() if actor.host is not None)

    def ask(steps: int) -> list[int]:
        assert driver.stdin is not None
        assert driver.stdout is not None
        driver.stdin.write(f"{steps}\n")
        driver.stdin.flush()
        digests, theirs = json.loads(driver.stdout.readline())
        batches = [list(next(others).values()) for _ in range(steps)]
        assert digests == [hashlib.sha256(pickle.dumps(batch)).hexdigest() for batch in batches]
        return theirs

    def shared() -> RayPool:
        return RayPool(2, num_cpus=0.5, name="shared")

    def on(pool: RayPool | None) -> Any:
        return stream(texts, pool, rank=1, world=2)

    (tmp_path / "driver.py").write_text(DRIVER)
    address = cluster.get_runtime_context().gcs_address
    command = [sys.executable, tmp_path / "driver.py", address, texts]
    with (
        stream(texts, rank=0, world=2) as others,
        subprocess.Popen(command, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as driver,
    ):
        theirs = ask(5)
        with shared() as pool, on(pool) as found, on(None) as expected:
            assert pids(pool) == theirs
            require_equal(found, expected, 10)
        assert ask(10) == theirs
        with shared() as pool, on(pool) as found, on(None) as expected:
            assert pids(pool) == theirs
            require_equal(found, expected, 5)
            assert driver.stdin is not None
            driver.stdin.close()
            assert driver.wait(PATIENCE_S) == 0
            wait_for(lambda: pool.stats().deaths == 2)
            assert not set(pids(pool)) & set(theirs)
            require_equal(found, expected, 20)


def test_clocks_of_other_machines(cluster: Any, texts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock of this process is ahead of those of the actors by an hour: no time is an hour."""
    ours = SimpleNamespace(**{**vars(time), "perf_counter_ns": lambda: time.perf_counter_ns() + int(3600e9)})
    monkeypatch.setattr("energon_grain.cluster.ray_pool.time", ours)
    spans: list[Span] = []

    class Seen(Observer):
        timed = True

        def spans(self, work: Work) -> None:
            spans.extend(work.spans)

    dataset = train_dataset(texts, batch_size=4, shuffle_buffer_size=8, max_samples_per_sequence=4)
    with RayPool(1, num_cpus=0.5, near="never") as pool:
        before_ns = ours.perf_counter_ns()
        with Stream(dataset.compiled(), WorkerConfig(0, 1, workers=pool), observers=[Seen()]) as made:
            next(made)
        after_ns = ours.perf_counter_ns()
    theirs = [span for span in spans if span.place == "workers"]
    assert {"send"} < {span.name for span in theirs}
    for span in theirs:
        assert before_ns < span.begin_ns <= span.begin_ns + span.wall_ns < after_ns, span


def test_killed_actors_cost_no_sample(cluster: Any, texts: Path) -> None:
    with RayPool(2, num_cpus=0.5, near="auto") as pool, stream(texts, pool) as found, stream(texts) as expected:
        killed: list[Any] = []

        def kill(step: int) -> None:
            if step % 15 == 10:
                wait_for(lambda: pool.stats().deaths == len(killed) and is_complete(pool))
                killed.append(pool.handles[step // 15 % 2])
                cluster.kill(killed[-1], no_restart=True)

        require_equal(found, expected, 60, kill)
        wait_for(lambda: pool.stats().deaths == len(killed) == 4)


def test_deaths_are_noticed_without_chunks(cluster: Any) -> None:
    with RayPool(2, num_cpus=0.5) as pool:
        for deaths in (2, 4):
            wait_for(lambda: is_complete(pool))
            before = pool.handles
            for handle in before:
                cluster.kill(handle, no_restart=True)
            wait_for(lambda deaths=deaths: pool.stats().deaths == deaths and is_complete(pool))
            assert not set(before) & set(pool.handles)


def test_too_many_deaths_end_the_iteration_until_asked_again(cluster: Any, texts: Path) -> None:
    with RayPool(1, num_cpus=0.5, deaths=1) as pool, stream(texts, pool) as found, stream(texts) as expected:
        require_equal(found, expected, 1)
        for deaths in (1, 2):
            pool.wait(1)
            cluster.kill(pool.handles[0], no_restart=True)
            wait_for(lambda deaths=deaths: pool.stats().deaths == deaths)
        with pytest.raises(WorkerError, match=r"2 workers were lost within 600 s; the last one: Ray worker \d on node"):
            for _ in range(1000):
                next(found)
        place = found.cursor()
        expected.restore(place)
        require_equal(found, expected, 10)


def test_resized_while_it_runs(cluster: Any, texts: Path) -> None:
    with RayPool(1, num_cpus=0.5) as pool, stream(texts, pool) as found, stream(texts) as expected:
        sizes = {5: 3, 15: 1, 25: 2}
        require_equal(found, expected, 40, lambda step: pool.resize(sizes[step]) if step in sizes else None)
        pool.wait(2)
        assert pool.stats().ready == 2
        with pytest.raises(ConfigError, match="workers=0: expected a positive number"):
            pool.resize(0)


def test_a_late_chunk_goes_to_a_second_actor(cluster: Any, texts: Path, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    with RayPool(2, num_cpus=0.5, hedge_s=0.2) as pool, stream(texts, pool, Gated(gate)) as found:
        pool.wait(2)
        next(found)
        gate.touch()
        found.restore(found.cursor())
        found.start_prefetch()
        until = time.monotonic() + 60
        while not pool.stats().hedged:
            assert time.monotonic() < until
            time.sleep(0.05)
        gate.unlink()
        with stream(texts, None, Gated(gate)) as expected:
            next(expected)
            require_equal(found, expected, 10)


def test_the_number_of_actors_is_chosen(
    cluster: Any, texts: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Hooks that wait are faster with more actors, and one that is no longer used leaves."""
    monkeypatch.setattr(auto_workers, "WINDOW_SECONDS", 0.3)
    monkeypatch.setattr("energon_grain.cluster.ray_pool._UNUSED_SECONDS", 0.5)
    caplog.set_level(logging.INFO, "energon_grain")
    with RayPool(1, max_workers=3, num_cpus=0.2) as pool:

        def loader(workers: Any, number: Any) -> Any:
            config = WorkerConfig(0, 1, number, workers=workers)
            return get_savable_loader(
                train_dataset(
                    texts,
                    batch_size=4,
                    shuffle_buffer_size=8,
                    max_samples_per_sequence=4,
                    task_encoder=Sleepy(),
                    worker_config=config,
                )
            )

        with loader(pool, "auto") as found, loader(None, 8) as expected:
            until = time.monotonic() + PATIENCE_S
            while pool.workers < 2:
                assert time.monotonic() < until
                for _ in range(20):
                    assert next(found)["key"] == next(expected)["key"]
            assert pool.workers <= 3
            [lease] = pool._leases
            lease.resize(1)
            wait_for(lambda: pool.workers == 1)


@pytest.mark.parametrize("near", ["auto", "never"])
def test_an_actor_that_does_not_answer(cluster: Any, texts: Path, near: Any) -> None:
    """Others get its chunks, long before Ray notices. Its late results reach no batch."""
    with (
        RayPool(2, num_cpus=0.5, near=near, hedge_s=1e6) as pool,
        stream(texts, pool) as found,
        stream(texts) as expected,
    ):
        pool.wait(2)
        require_equal(found, expected, 3)
        [first, _] = [actor.host.pid for actor in pool._actors.values() if actor.host is not None]
        os.kill(first, signal.SIGSTOP)
        try:
            require_equal(found, expected, 60)
            wait_for(lambda: pool.stats().hedged >= 1)
        finally:
            os.kill(first, signal.SIGCONT)
        require_equal(found, expected, 60)
        assert pool.stats().deaths == 0


def test_the_kit_of_pools(pool: RayPool) -> None:
    check_pool(lambda spec, stage: pool.lease(spec, stage, 1 << 28), lives_on=True)


def test_a_worker_type(cluster: Any, texts: Path) -> None:
    config = WorkerConfig(0, 1, 2, worker_type="ray")
    dataset = train_dataset(
        texts, batch_size=4, shuffle_buffer_size=8, max_samples_per_sequence=4, worker_config=config
    )
    plain = train_dataset(texts, batch_size=4, shuffle_buffer_size=8, max_samples_per_sequence=4)
    with get_savable_loader(dataset) as found, get_savable_loader(plain) as expected:
        for _ in range(6):
            assert next(found).__key__ == next(expected).__key__


def test_too_few_cpus_are_named(cluster: Any, texts: Path) -> None:
    with (
        RayPool(1, num_cpus=64, start_s=1) as pool,
        stream(texts, pool) as found,
        pytest.raises(WorkerError, match=r"no Ray worker started within 1 s\. 1 workers request 64 CPUs each"),
    ):
        next(found)


def test_a_path_that_an_actor_does_not_have_is_named(pool: RayPool, texts: Path, tmp_path: Path) -> None:
    shutil.copytree(texts, tmp_path / "here")
    with stream(tmp_path / "here", pool) as found:
        shutil.move(tmp_path / "here", tmp_path / "gone")
        with pytest.raises(WorkerError, match=r"on node .* cannot open the dataset: .*here.*exist on every node"):
            next(found)


def test_another_version_is_named(cluster: Any, texts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("energon_grain.cluster.ray_pool.versions", lambda: ("3.99", "9.9"))
    with (
        RayPool(1, num_cpus=0.5) as pool,
        stream(texts, pool) as found,
        pytest.raises(WorkerError, match=r"this process has Python 3\.99 and energon-grain 9\.9: install the same"),
    ):
        next(found)


def test_results_of_near_actors_may_be_changed(cluster: Any, texts: Path) -> None:
    for options in ({}, {"near": "never"}, {"near": "never", "copy": False}):
        with RayPool(1, num_cpus=0.5, **options) as pool, stream(texts, pool, Arrays()) as found:
            assert next(found)["large"].flags.writeable == ("copy" not in options)


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> StageActor:
    """An actor in this process, which is not a worker."""
    monkeypatch.setattr(actors, "set_worker_number", lambda number: None)
    return StageActor(0, [])


def test_a_number_of_a_closed_file_is_no_identity(stage: StageActor) -> None:
    """The number may be another file's by now, which must not be written to."""
    mine, other = (ResultFile(os.memfd_create(name)) for name in ("mine", "other"))
    os.pwrite(other.descriptor, b"untouched", 0)
    probe = Probe.of(mine.descriptor)._replace(path=Probe.of(other.descriptor).path)
    assert stage.run_into("digest", b"no spec", b"", probe) is None
    assert os.pread(other.descriptor, 20, 0) == b"untouched"


def test_an_actor_keeps_few_stages(stage: StageActor, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[bytes] = []
    monkeypatch.setattr(actors, "WorkerStage", opened.append)
    monkeypatch.setattr(actors.pickle, "loads", lambda spec: spec)
    for spec in (b"1", b"2", b"3", b"4", b"5", b"1"):
        assert stage.open(spec.decode(), spec) is None
    assert opened == [b"1", b"2", b"3", b"4", b"5", b"1"]


SCRIPT = """
import sys
import beside
import ray
from energon_grain import Stream, TaskEncoder, WorkerConfig, get_train_dataset
from energon_grain.cluster import RayPool

class Mine:
    __slots__ = ("text",)
    def __init__(self, text):
        self.text = text

class Encoder(TaskEncoder):
    def encode_sample(self, sample):
        return Mine(beside.Theirs(sample.text))
    def batch(self, samples):
        return samples

ray.init(num_cpus=2, include_dashboard=False, logging_level="error", log_to_driver=False)
pool = RayPool(1)
dataset = get_train_dataset(
    sys.argv[1], batch_size=4, shuffle_buffer_size=8, max_samples_per_sequence=4, task_encoder=Encoder(),
    worker_config=WorkerConfig(0, 1, workers=pool),
)
stream = Stream.of(dataset)
assert [(type(each), type(each.text)) for each in next(stream)] == [(Mine, beside.Theirs)] * 4
print(*[actor.host.pid for actor in pool._actors.values()])
"""


def test_classes_of_the_script_and_of_modules_beside_it_and_nothing_is_left(
    texts: Path, tmp_path: Path, run_script: Callable[..., Any]
) -> None:
    (tmp_path / "beside.py").write_text("class Theirs(str): pass\n")
    files = set(os.listdir("/dev/shm"))
    done = run_script(SCRIPT, texts)
    assert done.returncode == 0, done.stderr
    [actor] = map(int, done.stdout.split())
    until = time.monotonic() + 60
    while psutil.pid_exists(actor):
        assert time.monotonic() < until
        time.sleep(0.2)
    assert not {name for name in set(os.listdir("/dev/shm")) - files if "energon" in name}


def test_threads_end_with_the_pool(cluster: Any, texts: Path) -> None:
    before = set(threading.enumerate())
    with RayPool(1, num_cpus=0.5) as pool, stream(texts, pool) as found:
        next(found)
    with RayPool(1, num_cpus=64):
        pass
    wait_for(lambda: not [each for each in threading.enumerate() if each not in before and "-ray" in each.name])
