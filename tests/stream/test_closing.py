"""Closing, and losing, a loader whatever is under way: prompt, without a word, and with nothing left behind."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count, takewhile
from pathlib import Path
from typing import Any

import pytest
from patience import PATIENCE_S
from stream_hosts import MakeDataset, config, train_on

from energon_grain import (
    BatchDataset,
    FatalSampleError,
    IterMapDataset,
    MapDataset,
    SampleDecoder,
    Stream,
    TaskEncoder,
    get_train_dataset,
)
from energon_grain.stream.background import Background
from energon_grain.watch.watchdog_dataset import WatchdogDataset

pytestmark = pytest.mark.slow

RunScript = Callable[..., Any]


class Hook:
    """Counts its calls; each but the first ones waits for the test's leave."""

    def __init__(self, free: int = 0) -> None:
        self.free = free
        self.calls = 0
        self.entered = threading.Event()
        self.go = threading.Event()

    def __call__(self, value: Any) -> Any:
        self.calls += 1
        if self.calls > self.free:
            self.entered.set()
            assert self.go.wait(PATIENCE_S)
        return value


class Encoder(TaskEncoder):
    """Whose sample hook is a `Hook`."""

    def __init__(self, hook: Hook) -> None:
        self.hook = hook

    def encode_sample(self, sample: Any) -> Any:
        return self.hook(sample)


class Decoder(SampleDecoder):
    """Which decodes by a `Hook`."""

    def __init__(self, hook: Hook) -> None:
        super().__init__()
        self.hook = hook

    def decoder_for(self, part: str) -> Any:
        return self.hook


class Decoding(TaskEncoder):
    def __init__(self, hook: Hook) -> None:
        self.decoder = Decoder(hook)


def each(hook: Hook) -> Callable[[Iterator[Any]], Iterator[Any]]:
    def function(samples: Iterator[Any]) -> Iterator[Any]:
        return (hook(sample) for sample in samples)

    return function


def dataset(path: Path, where: str, hook: Hook, **options: Any) -> Any:
    """Batches of 480, a hook on each sample."""
    given: dict[str, Any] = {"shuffle_buffer_size": None, "max_samples_per_sequence": None, **options}
    if where == "sample hook":
        return get_train_dataset(path, batch_size=480, task_encoder=Encoder(hook), **given)
    if where == "decoder":
        return get_train_dataset(path, batch_size=480, task_encoder=Decoding(hook), **given)
    leaf = get_train_dataset(path, batch_size=None, **given)
    if where == "map in lanes":
        return BatchDataset(MapDataset(IterMapDataset(leaf, iter), hook), 480, list)
    if where == "iter map":
        return BatchDataset(IterMapDataset(leaf, each(hook)), 480, list)
    assert where == "sample hook below lanes"
    return BatchDataset(IterMapDataset(MapDataset(leaf, hook), iter), 480, list)


@pytest.mark.parametrize("num_workers", [0, 1, 2])
@pytest.mark.parametrize("where", ["sample hook", "decoder", "map in lanes", "iter map", "sample hook below lanes"])
def test_it_waits_for_the_hook_in_hand_alone(text_dataset: MakeDataset, where: str, num_workers: int) -> None:
    hook = Hook()
    told: list[Exception] = []
    workers = config(num_workers=num_workers, global_error_handler=lambda error, *_: told.append(error))
    stream = Stream.of(dataset(text_dataset(1000), where, hook, worker_config=workers))
    failed: list[BaseException] = []

    def consume() -> None:
        try:
            next(stream)
        except BaseException as error:
            failed.append(error)

    consumer = threading.Thread(target=consume)
    consumer.start()
    assert hook.entered.wait(PATIENCE_S)
    closing = threading.Thread(target=stream.close)
    closing.start()
    if num_workers == 0:
        closing.join(PATIENCE_S)
    else:
        consumer.join(PATIENCE_S)  # although the hook still runs
    calls = hook.calls
    hook.go.set()
    consumer.join(PATIENCE_S)
    closing.join(PATIENCE_S)
    assert not consumer.is_alive()
    assert not closing.is_alive()
    assert hook.calls - calls <= 1  # which another worker may have begun meanwhile
    assert [type(error) for error in failed] == [ValueError]
    assert "closed" in str(failed[0])
    assert told == []


def test_the_inputs_of_a_function_from_stream_to_stream(text_dataset: MakeDataset) -> None:
    """Closing comes while the function waits for an input that is still encoded."""
    hook = Hook(free=9)
    told: list[Any] = []

    class Concurrent(Encoder):
        thread_safe = True

    def careful(samples: Iterator[Any]) -> Iterator[Any]:
        while True:
            try:
                yield next(samples)
            except StopIteration:
                return
            except Exception as error:  # a user's, that handles whatever comes
                told.append(error)

    leaf = train_on(
        text_dataset(1000),
        batch_size=None,
        lanes=1,
        task_encoder=Concurrent(hook),
        worker_config=config(num_workers=1, global_error_handler=lambda error, *_: told.append(error)),
    )
    stream = Stream.of(BatchDataset(IterMapDataset(leaf, careful), 4, list))
    stream.start_prefetch()
    assert hook.entered.wait(PATIENCE_S)
    time.sleep(0.1)  # the function waits by now; where it does not, the test shows less
    closing = threading.Thread(target=stream.close, daemon=True)
    closing.start()
    time.sleep(0.1)
    hook.go.set()
    closing.join(PATIENCE_S)
    assert not closing.is_alive()
    assert told == []


class FailsBelow(TaskEncoder):
    def __init__(self, error: Exception) -> None:
        self.error = error

    def encode_sample(self, sample: Any) -> Any:
        if sample.__key__ == "000030":
            raise self.error
        return sample


def swallowing(samples: Iterator[Any]) -> Iterator[Any]:
    while True:
        try:
            yield next(samples)
        except StopIteration:
            return
        except Exception:
            continue


def wrapping(samples: Iterator[Any]) -> Iterator[Any]:
    try:
        yield from samples
    except Exception as error:
        raise KeyError("the function's own") from error


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("function", [iter, swallowing, wrapping])
@pytest.mark.parametrize("fatal", [True, False])
def test_what_fails_below_such_a_function_is_not_its_failure(
    text_dataset: MakeDataset, function: Any, fatal: bool, num_workers: int
) -> None:
    told: list[Exception] = []

    def handler(error: Exception, sample: Any, sources: Any = None) -> None:
        told.append(error)
        raise error

    leaf = train_on(
        text_dataset(100),
        batch_size=None,
        lanes=1,
        repeat=False,
        task_encoder=FailsBelow(FatalSampleError("it ends here") if fatal else ValueError("it ends here")),
        worker_config=config(num_workers=num_workers, global_error_handler=handler),
    )
    with (
        Stream.of(BatchDataset(IterMapDataset(leaf, function), 4, list)) as stream,
        pytest.raises(FatalSampleError if fatal else ValueError, match="it ends here"),
    ):
        for _ in stream:
            pass
    assert len(told) == (0 if fatal else 1)
    assert stream.stats()["dropped_total"] == len(told)


class Collecting(TaskEncoder):
    """Collects in a thread of the loader's own."""

    def __init__(self) -> None:
        self.entered, self.go, self.collected = threading.Event(), threading.Event(), threading.Event()

    def batch(self, samples: list[Any]) -> Any:
        self.entered.set()
        assert self.go.wait(PATIENCE_S)
        gc.collect()
        self.collected.set()
        return samples


class Trainer:
    loader: Any = None
    me: Any = None


def test_a_collection_in_a_thread_of_the_loader(text_dataset: MakeDataset) -> None:
    encoder = Collecting()
    trainer = Trainer()
    trainer.me = trainer
    trainer.loader = Stream.of(
        train_on(text_dataset(100), batch_size=4, task_encoder=encoder, worker_config=config(num_workers=2))
    )
    trainer.loader.start_prefetch()
    assert encoder.entered.wait(PATIENCE_S)
    gc.disable()  # only that thread shall find it
    try:
        del trainer
        encoder.go.set()
        assert encoder.collected.wait(PATIENCE_S)
        wait_until(lambda: not [t for t in threading.enumerate() if t.name.startswith("energon-grain")])
    finally:
        gc.enable()


def wait_until(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.02)


FORKED = """
import gc, multiprocessing, os, sys
import {module} as modules
from energon_grain import WorkerError

path, kind, workers = sys.argv[1:]
loader = modules.get_savable_loader(modules.get_train_dataset(
    path, batch_size=4, shuffle_buffer_size=None, max_samples_per_sequence=None,
    worker_config=modules.WorkerConfig(0, 1, int(workers), worker_type=kind),
))
key = next(loader).__restore_key__

def child(inherited):
    for use in (
        lambda: next(inherited),
        lambda: inherited.restore_state_rank(inherited.save_state_rank()),
        lambda: inherited.restore_sample(key),
        lambda: inherited.skip(1),
        lambda: inherited.start_prefetch(),
    ):
        try:
            use()
        except WorkerError as error:
            assert "make the loader in the child itself" in str(error)
        else:
            os._exit(8)
    own = modules.get_savable_loader(modules.get_train_dataset(
        path, batch_size=4, shuffle_buffer_size=None, max_samples_per_sequence=None,
        worker_config=modules.WorkerConfig(0, 1, 0),
    ))
    own.restore_state_rank(inherited.save_state_rank())
    next(own)
    inherited.close()
    os._exit(7)

forked = os.fork()
if not forked:
    child(loader)
assert os.waitstatus_to_exitcode(os.waitpid(forked, 0)[1]) == 7
process = multiprocessing.get_context("fork").Process(target=child, args=(loader,))
process.start()
process.join()
assert process.exitcode == 7
forgetful = os.fork()
if not forgetful:
    del loader
    gc.collect()
    os._exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(forgetful, 0)[1]) == 7
for _ in range(40):
    next(loader)
loader.close()
"""


@pytest.mark.parametrize(
    ("module", "kind", "workers"),
    [("energon_grain", "thread", 2), ("energon_grain", "process", 1), ("energon_grain_torch", "dataloader", 1)],
)
def test_a_forked_child_is_told_what_to_do_and_leaves_workers_alone(
    text_dataset: MakeDataset, run_script: RunScript, module: str, kind: str, workers: int
) -> None:
    if module == "energon_grain_torch":
        pytest.importorskip("torch")
    # JAX, once imported, warns of every fork.
    done = run_script(FORKED.format(module=module), text_dataset(100), kind, workers)
    assert (done.returncode, done.stderr) == (0, "")


WITHOUT_WORKERS = """
import os, sys
from energon_grain import Stream, WorkerConfig, get_train_dataset

stream = Stream.of(get_train_dataset(
    sys.argv[1], batch_size=4, shuffle_buffer_size=None, max_samples_per_sequence=None,
    worker_config=WorkerConfig(0, 1, 0),
))
next(stream)
child = os.fork()
if not child:
    stream.restore(stream.cursor())
    next(stream)
    os._exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
"""


def test_a_forked_child_goes_on_without_workers(text_dataset: MakeDataset, run_script: RunScript) -> None:
    done = run_script(WITHOUT_WORKERS, text_dataset(100))
    assert (done.returncode, done.stderr) == (0, "")


HANDLER = """
import signal, sys, time
from energon_grain import Stream, WorkerConfig, get_train_dataset

path, kind, workers = sys.argv[1:]
stream = Stream.of(get_train_dataset(
    path, batch_size=4, shuffle_buffer_size=None, max_samples_per_sequence=None,
    worker_config=WorkerConfig(0, 1, int(workers), worker_type=kind),
))
calls = 0
do = stream.stats

def handler(*_):
    global calls
    calls += 1
    do()
    if calls < 550:
        signal.setitimer(signal.ITIMER_REAL, 0.001)

signal.signal(signal.SIGALRM, handler)
handler()
while calls < 500:
    next(stream)
do = stream.close
stream.close()
while calls < 550:
    time.sleep(0.001)
"""


@pytest.mark.parametrize(("kind", "workers"), [("thread", 0), ("thread", 2), ("process", 1)])
def test_a_signal_handler_may_ask_and_close_whatever_it_interrupts(
    text_dataset: MakeDataset, run_script: RunScript, kind: str, workers: int
) -> None:
    done = run_script(HANDLER, text_dataset(100), kind, workers)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("what", ["next", "close"])
def test_a_signal_handler_may_close_in_the_middle_of(text_dataset: MakeDataset, what: str) -> None:
    """Python calls handlers when a function begins, and behind calls of C: here at each of these places in turn."""
    batches = train_on(text_dataset(100), batch_size=4, worker_config=config(num_workers=2))
    dataset = WatchdogDataset(batches, timeout_seconds=PATIENCE_S)
    files = {Stream.__next__.__code__.co_filename, Background.__next__.__code__.co_filename}
    if what == "close":
        files = {threading.__file__}

    def closed_at(place: int) -> bool:
        """Whether two steps, or closing, have so many places."""
        with Stream.of(dataset) as stream:
            next(stream)
            while stream.stats().queued < 4:  # then the thread that makes them waits
                time.sleep(0.001)

            def handler(frame: Any, event: str, _: Any) -> None:
                nonlocal place
                if event in ("call", "c_return") and frame.f_code.co_filename in files:
                    place -= 1
                    if place == 0:
                        stream.close()

            sys.setprofile(handler)
            with suppress(ValueError):  # which says that it was closed
                if what == "close":
                    stream.close()
                else:
                    next(stream)
                    next(stream)
            sys.setprofile(None)
        return place <= 0

    places: list[int] = []
    thread = threading.Thread(target=lambda: places.extend(takewhile(closed_at, count(1))), daemon=True)
    thread.start()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    assert len(places) > 20


SLOW_HANDLER = """
import signal, sys, threading, time
from energon_grain import Stream, TaskEncoder, WorkerConfig, get_train_dataset

entered, go = threading.Event(), threading.Event()

class Encoder(TaskEncoder):
    def encode_sample(self, sample):
        entered.set()
        go.wait()
        return sample

stream = Stream.of(get_train_dataset(
    sys.argv[1], batch_size=4, shuffle_buffer_size=None, max_samples_per_sequence=None, task_encoder=Encoder(),
    worker_config=WorkerConfig(0, 1, 1),
))
stream.start_prefetch()
entered.wait()

def handler(*_):
    go.set()
    stream.close()
    time.sleep(0.3)

signal.signal(signal.SIGALRM, handler)
signal.setitimer(signal.ITIMER_REAL, 0.3)
stream.close()
"""


def test_a_slow_signal_handler_may_take_the_last_notice(text_dataset: MakeDataset, run_script: RunScript) -> None:
    done = run_script(SLOW_HANDLER, text_dataset(100))
    assert (done.returncode, done.stderr) == (0, "")


LOST_AT_THE_END = """
import atexit, sys
from energon_grain import Stream, WorkerConfig, get_train_dataset

stream = [Stream.of(get_train_dataset(
    sys.argv[1], batch_size=4, shuffle_buffer_size=None, max_samples_per_sequence=None,
    worker_config=WorkerConfig(0, 1, 2),
))]
next(stream[0])
atexit.register(stream.clear)
"""


def test_one_that_is_lost_while_the_program_ends_says_nothing(text_dataset: MakeDataset, run_script: RunScript) -> None:
    """Since Python 3.12 no thread begins any more by then, and none is needed."""
    done = run_script(LOST_AT_THE_END, text_dataset(100))
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(("kind", "cycles"), [("thread", 20), ("process", 10), ("grain", 10), ("dataloader", 10)])
def test_nothing_is_left_behind(kind: str, cycles: int) -> None:
    if kind == "dataloader":
        pytest.importorskip("torch")
    program = Path(__file__).parents[1] / "open_and_close.py"
    done = subprocess.run(
        [sys.executable, program, kind, str(cycles)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
