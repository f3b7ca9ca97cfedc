"""Worker processes: what they survive, and what is said when they do not.

On `Stream`, not on a loader: workers import this module, and importing Grain takes seconds.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from patience import PATIENCE_S

from energon_grain import Batch, Stream, TaskEncoder, WorkerConfig, WorkerError, get_train_dataset
from energon_grain.processes.worker import ResultFiles, write_parts
from energon_grain.stream.transport import Deaths, Lost

Train = Callable[..., Any]
RunScript = Callable[..., Any]

MAIN = """
import dataclasses, os, sys, time
import numpy as np
from energon_grain import Stream, TaskEncoder, WorkerConfig, get_train_dataset

@dataclasses.dataclass(slots=True)
class Mine:
    key: str
    array: np.ndarray

class Odd(Exception):
    def __init__(self, one, two):
        super().__init__(f"{one} and {two}")

OFFSET = 3

class Inner:
    def __init__(self, value):
        self.value = value

class Encoder(TaskEncoder):
    def encode_sample(self, sample):
        print("printed by a hook")
        os.write(1, b"written by a library\\n")
        if sample.__key__ == "000007":
            raise Odd(1, 2)
        if sample.__key__ == "000008":
            raise Odd(1, 2) from ValueError(sys)
        return Mine(sample.__key__, np.arange(OFFSET)), Inner(sample.text)

    def batch(self, samples):
        return samples

errors = []

def handler(error, sample, sources):
    errors.append((type(error).__name__, str(error), sample.__key__, [source.index for source in sources]))
    assert not in_process or "in encode_sample" in error.__notes__[0]

def batches(num_workers):
    errors.clear()
    config = WorkerConfig(0, 1, num_workers, worker_type="process", global_error_handler=handler)
    with Stream.of(get_train_dataset(
        sys.argv[1], batch_size=4, shuffle_buffer_size=10, max_samples_per_sequence=4, task_encoder=Encoder(),
        worker_config=config,
    )) as stream:
        found = []
        for _ in range(20):
            found.append([(mine.key, mine.array.tolist(), inner.value) for mine, inner in next(stream)])
        return found, stream.stats()["dropped"], list(errors)

in_process = True
with_workers = batches(1)
in_process = False
without = batches(0)
assert with_workers == without, (with_workers[1:], without[1:])
assert without[2] == [("Odd", "1 and 2", key, [int(key)]) for _, _, key, _ in without[2]] and len(without[2]) >= 2
"""


def test_hooks_and_types_of_a_script_without_main_guard(
    text_dataset: Callable[..., Path], run_script: RunScript
) -> None:
    done = run_script(MAIN, text_dataset(53))
    assert done.returncode == 0, done.stderr
    assert set(done.stderr.splitlines()) == {"printed by a hook", "written by a library"}


class Slow(TaskEncoder):
    """Hooks that run for a long time when a file says so: in all processes, or in that whose number it holds."""

    def __init__(self, flag: Path) -> None:
        self.flag = flag

    def encode_sample(self, sample: Any) -> Any:
        while self.flag.exists() and self.flag.read_text() in ("", str(os.getpid())):
            time.sleep(0.01)
        return sample


def children() -> list[psutil.Process]:
    return [p for p in psutil.Process().children() if "serve_interpreter" in " ".join(p.cmdline())]


def test_a_killed_worker_is_named_at_once_and_replaced(
    train: Train, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    flag = tmp_path / "slow"
    reference = Stream.of(train())
    loader = Stream.of(train(num_workers=2, worker_type="process", task_encoder=Slow(flag)))
    for _ in range(3):
        assert next(loader).__key__ == next(reference).__key__
    [first, *_] = children()
    flag.write_text(str(first.pid))
    first.kill()
    deaths: list[str] = []
    while not deaths:
        assert next(loader).__key__ == next(reference).__key__
        deaths = [message for message in caplog.messages if "was killed by signal 9" in message]
    [death] = deaths
    assert f"(pid {first.pid}) was killed by signal 9" in death
    for _ in range(20):
        assert next(loader).__key__ == next(reference).__key__
    assert "out of memory" in death
    assert first.pid not in [process.pid for process in children()]
    assert len(children()) == 2
    loader.close()
    assert children() == []


def test_workers_live_through_restores_and_passes(train: Train) -> None:
    with Stream.of(train(num_workers=2, worker_type="process", repeat=False)) as loader:
        next(loader)
        state, workers = loader.cursor(), children()
        for _ in range(2):
            list(loader)
        loader.restore(state)
        next(loader)
        assert children() == workers


def test_closing_does_not_wait_for_a_slow_hook(train: Train, tmp_path: Path) -> None:
    flag = tmp_path / "slow"
    flag.touch()
    loader = Stream.of(train(num_workers=2, worker_type="process", task_encoder=Slow(flag)))
    failed: list[BaseException] = []

    def consume() -> None:
        try:
            next(loader)
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=consume)
    thread.start()
    while len(children()) < 2:
        time.sleep(0.02)
    time.sleep(0.5)
    loader.close()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    assert children() == []
    assert [type(error) for error in failed] == [ValueError]


class Deadly(TaskEncoder):
    """Ends its process on one sample, always or as often as a file has lines."""

    def __init__(self, parent: int, left: Path | None = None) -> None:
        self.parent, self.left = parent, left

    def encode_sample(self, sample: Any) -> Any:
        if int(sample.__key__) == 30 and os.getpid() != self.parent:
            if self.left is None:
                os._exit(7)
            lines = self.left.read_text().splitlines()
            if lines:
                self.left.write_text("\n".join(lines[1:]))
                os._exit(7)
        return sample


def test_a_sample_that_always_kills_its_worker_is_an_error(train: Train) -> None:
    loader = Stream.of(train(num_workers=2, worker_type="process", task_encoder=Deadly(os.getpid())))
    with pytest.raises(WorkerError, match=r"had the same chunk, which probably causes it.*exit code 7.*continue from"):
        list(islice(loader, 40))
    loader.close()


def test_a_chunk_survives_some_deaths(train: Train, tmp_path: Path) -> None:
    left = tmp_path / "left"
    left.write_text("1\n2\n3")
    reference, encoder = Stream.of(train()), Deadly(os.getpid(), left)
    with Stream.of(train(num_workers=1, worker_type="process", task_encoder=encoder)) as loader:
        for batch, expected in islice(zip(loader, reference, strict=True), 30):
            assert batch.__key__ == expected.__key__
    assert left.read_text() == ""


def test_too_many_deaths_are_an_error() -> None:
    deaths = Deaths(most=2, seconds=60)
    for number in (1, 1, 2, 2, 1):  # each is counted once
        deaths.count(Lost(f"worker {number} is gone", worker=number))
    with pytest.raises(WorkerError, match="3 workers were lost within 60 s; the last one: worker 3 is gone"):
        deaths.count(Lost("worker 3 is gone", worker=3))


class Unpicklable(TaskEncoder):
    def encode_sample(self, sample: Any) -> Any:
        return {"key": sample.__key__, "lock": threading.Lock()}


def test_results_that_cannot_be_sent_are_told(train: Train) -> None:
    loader = Stream.of(train(num_workers=1, worker_type="process", task_encoder=Unpicklable()))
    with pytest.raises(WorkerError, match=r"the return value of hooks cannot be sent .*lock.*worker_type='thread'"):
        next(loader)
    loader.close()


class HoldsALock(TaskEncoder):
    def __init__(self) -> None:
        self.lock = threading.Lock()

    def encode_sample(self, sample: Any) -> Any:
        return sample


def test_hooks_that_cannot_be_sent_are_told(train: Train) -> None:
    loader = Stream.of(train(num_workers=1, worker_type="process", task_encoder=HoldsALock()))
    with pytest.raises(WorkerError, match=r"cannot be sent to worker processes: .*lock.*inside the hook"):
        next(loader)
    loader.close()


class Arrays(TaskEncoder):
    def encode_sample(self, sample: Any) -> Any:
        number = int(sample.__key__)
        return {
            "large": np.full((number % 5) * 10_000, number, np.float32),
            "strided": np.arange(20)[::2],
            "fortran": np.asfortranarray(np.eye(3)),
            "objects": np.array([None, "x"], object),
            "text": sample.text,
        }

    def batch(self, samples: list[Any]) -> Any:
        return samples


def test_arrays_arrive_whole_and_writable(train: Train) -> None:
    files = files_of_results()
    plain = Stream.of(train(task_encoder=Arrays()))
    loader = Stream.of(train(task_encoder=Arrays(), num_workers=1, worker_type="process"))
    for _ in range(15):
        batch = next(loader)
        np.testing.assert_equal(batch, next(plain))
        for sample in batch:
            sample["large"] += 1
            sample["fortran"][0] = 5
    loader.close()
    plain.close()
    del batch, sample, loader  # large arrays lie where the worker wrote them
    gc.collect()
    assert files_of_results() <= files
    assert not [name for name in os.listdir("/dev/shm") if "energon" in name]


def files_of_results() -> int:
    """The number of files in memory, of worker processes, that this process has open."""
    found = 0
    for descriptor in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # the one that lists the folder
            found += "energon-grain" in os.readlink(f"/proc/self/fd/{descriptor}")
    return found


class Annotating(TaskEncoder):
    """Sets attributes that are no fields."""

    def encode_sample(self, sample: Any) -> Any:
        sample.letters = np.frombuffer(sample.text.encode(), np.uint8)
        return sample

    def batch(self, samples: list[Any]) -> Any:
        batch: Any = Batch(__key__=[sample.__key__ for sample in samples], __restore_key__=())
        batch.samples, batch.letters = samples, [sample.letters for sample in samples]
        return batch


def test_attributes_that_are_no_fields_arrive(train: Train) -> None:
    with Stream.of(train(task_encoder=Annotating(), num_workers=1, worker_type="process")) as loader:
        for _ in range(3):
            batch = next(loader)
            assert batch.__restore_key__[0] == "batch"
            for sample, letters in zip(batch.samples, batch.letters, strict=True):
                assert bytes(sample.letters) == bytes(letters) == sample.text.encode()
                assert vars(sample).keys() == {"letters"}


class Pictures(TaskEncoder):
    def encode_sample(self, sample: Any) -> Any:
        number = int(sample.__key__)
        return {"picture": np.full((700, 700), number, np.uint8), "small": np.full(3, number)}


def test_no_batch_that_somebody_holds_is_written_to(train: Train) -> None:
    """Whole batches, single rows, and more of them than lie where workers wrote them."""
    random = np.random.default_rng(0)
    held: list[tuple[Any, Any]] = []
    with (
        Stream.of(train(task_encoder=Pictures(), num_workers=1, worker_type="process")) as loader,
        Stream.of(train(task_encoder=Pictures())) as plain,
    ):
        pairs = zip(loader, plain, strict=True)
        used = [given["picture"].__array_interface__["data"][0] for given, _ in islice(pairs, 120)]
        assert len(set(used)) < 80, "memory is used again"
        for given, expected in islice(pairs, 120):
            pick = random.choice(PICKS)
            held.append((pick(given), pick(expected)))
            del given
            while len(held) > random.integers(16):
                held.pop(random.integers(len(held)))
            for mine, expected in held:
                assert np.array_equal(mine, expected)
    for mine, expected in held:
        assert np.array_equal(mine, expected)


PICKS: list[Callable[[Any], Any]] = [
    lambda batch: batch["picture"],
    lambda batch: batch["picture"][1],
    lambda batch: batch["picture"][:, ::100, 3],
    lambda batch: batch["small"],
]


def test_a_large_result_does_not_leave_its_file_large() -> None:
    """Else every file would become as large as the largest result; and one that shrank is written and read as ever."""
    files, used = ResultFiles(most=4), set[int]()
    for number, size in enumerate([1_000, 10_000_000, 20_000, 5_000_000, 6_000_000, 300]):
        file = files.take()
        used.add(file.descriptor)
        sent = [memoryview(b"head"), memoryview(bytes([number]) * size)]
        write_parts(file.descriptor, sent)
        came = files.parts(file, [part.nbytes for part in sent])
        assert came == sent
        assert os.fstat(file.descriptor).st_blocks * 512 <= 5 * size + 8192
        del came
    assert len(used) == 1


FORK = """
import os, sys
import numpy as np
from energon_grain import Stream, TaskEncoder, WorkerConfig, get_train_dataset

class Encoder(TaskEncoder):
    def encode_sample(self, sample):
        return {"picture": np.full((100, 100), int(sample.__key__))}

config = WorkerConfig(0, 1, 1, worker_type="process")
with Stream.of(get_train_dataset(
    sys.argv[1], batch_size=4, shuffle_buffer_size=10, max_samples_per_sequence=4, task_encoder=Encoder(),
    worker_config=config,
)) as stream:
    batch = next(stream)
    expected = batch["picture"].copy()
    read, write = os.pipe()
    child = os.fork()
    if not child:
        os.read(read, 1)
        os._exit(0 if np.array_equal(batch["picture"], expected) else 3)
    for _ in range(30):
        batch = next(stream)
    os.write(write, b"x")
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""


def test_nor_one_that_a_forked_child_holds(text_dataset: Callable[..., Path], run_script: RunScript) -> None:
    done = run_script(FORK, text_dataset(53))
    assert done.returncode == 0, done.stderr


ORPHAN = """
import sys, time
from energon_grain import Stream, TaskEncoder, WorkerConfig, get_train_dataset

class Encoder(TaskEncoder):
    def encode_sample(self, sample):
        print("busy", flush=True)
        time.sleep(60)

dataset = get_train_dataset(
    sys.argv[1], batch_size=4, shuffle_buffer_size=10, max_samples_per_sequence=4, task_encoder=Encoder(),
    worker_config=WorkerConfig(0, 1, 1, worker_type="process"),
)
next(Stream.of(dataset))
"""


def test_a_busy_worker_ends_with_a_killed_parent(text_dataset: Callable[..., Path]) -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, "-c", ORPHAN, str(text_dataset(53))]
    with subprocess.Popen(command, stderr=subprocess.PIPE, env=environment) as parent:
        assert parent.stderr is not None
        assert parent.stderr.readline() == b"busy\n"
        [worker] = psutil.Process(parent.pid).children()
        parent.kill()
        psutil.wait_procs([worker], timeout=PATIENCE_S)
        assert not worker.is_running() or worker.status() == psutil.STATUS_ZOMBIE


FILES = """
import os, resource, sys
from energon_grain import Stream, TaskEncoder, WorkerConfig, WorkerError, get_train_dataset

def no_more_files():
    import resource
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))

class Encoder(TaskEncoder):
    def encode_sample(self, sample):
        if os.environ["WHERE"] == "worker":
            no_more_files()
        return sample

config = WorkerConfig(0, 1, 1, worker_type="process")
dataset = get_train_dataset(
    sys.argv[1], batch_size=4, shuffle_buffer_size=10, max_samples_per_sequence=4, task_encoder=Encoder(),
    worker_config=config,
)
before = resource.getrlimit(resource.RLIMIT_NOFILE)
with Stream.of(dataset) as stream:
    try:
        next(stream)
        if os.environ["WHERE"] == "parent":
            no_more_files()
        while True:
            next(stream)
    except WorkerError as error:
        print(error)
    resource.setrlimit(resource.RLIMIT_NOFILE, before)
    if os.environ["WHERE"] == "parent":
        next(stream)
"""


@pytest.mark.parametrize(
    ("where", "said", "on_stderr"),
    [
        ("worker", "ended with exit code 1", "reached its limit of open files"),
        ("parent", "reached its limit of open files", ""),
    ],
)
def test_what_may_open_no_more_files_says_so(
    text_dataset: Callable[..., Path], run_script: RunScript, where: str, said: str, on_stderr: str
) -> None:
    done = run_script(FILES, text_dataset(53), env={"WHERE": where})
    assert done.returncode == 0, done.stderr
    assert said in done.stdout
    assert on_stderr in done.stderr


SIGNALLED = """
import sys
from energon_grain import Stream, WorkerConfig, get_train_dataset

stream = Stream.of(get_train_dataset(
    sys.argv[1], batch_size=4, shuffle_buffer_size=10, max_samples_per_sequence=4,
    worker_config=WorkerConfig(0, 1, 2, worker_type="process"),
))
next(stream)
print("begun", flush=True)
while True:
    next(stream)
"""


@pytest.mark.parametrize("ended_by", [signal.SIGTERM, signal.SIGINT])
def test_all_processes_end_soon_after_a_signal(text_dataset: Callable[..., Path], ended_by: signal.Signals) -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, "-c", SIGNALLED, str(text_dataset(53))]
    took_s = PATIENCE_S
    for _ in range(3):  # a busy machine may take its time once
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment) as parent:
            assert parent.stdout is not None
            assert parent.stdout.readline() == b"begun\n"
            workers = psutil.Process(parent.pid).children()
            assert len(workers) == 2
            began_s = time.monotonic()
            parent.send_signal(ended_by)
            parent.wait(PATIENCE_S)
            while any(each.is_running() and each.status() != psutil.STATUS_ZOMBIE for each in workers):
                assert time.monotonic() - began_s < PATIENCE_S
                time.sleep(0.01)
            took_s = min(took_s, time.monotonic() - began_s)
        if took_s < 1:
            break
    assert took_s < 5, "expected about 0.1 s on an idle machine"


def test_workers_that_are_stopped_or_killed_again_and_again(text_dataset: Callable[..., Path]) -> None:
    """One that is stopped is waited for; of killed ones each that was needed is an error, and no batch is lost."""

    def stream_of(workers: int) -> Stream[Any]:
        config = WorkerConfig(0, 1, workers, worker_type="process") if workers else WorkerConfig(0, 1, 0)
        dataset = get_train_dataset(
            text_dataset(53), batch_size=4, shuffle_buffer_size=10, max_samples_per_sequence=4, worker_config=config
        )
        return Stream.of(dataset)

    with stream_of(0) as stream:
        right = [next(stream).__key__ for _ in range(40)]
    before = {child.pid for child in psutil.Process().children()}
    found: list[Any] = []
    stopped: list[threading.Timer] = []
    with stream_of(2) as stream:
        for number in range(40):
            while len(found) == number:
                with contextlib.suppress(WorkerError):
                    found.append(next(stream).__key__)
            workers = [child for child in psutil.Process().children() if child.pid not in before]
            if number == 3 and workers:
                workers[0].suspend()
                resumed = threading.Timer(1.0, workers[0].resume)
                resumed.start()
                stopped.append(resumed)
            elif number % 8 == 7 and workers:
                for resumed in stopped:
                    resumed.join()
                workers[number % len(workers)].kill()
    assert found == right
