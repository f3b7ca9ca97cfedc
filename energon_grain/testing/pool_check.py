# SPDX-License-Identifier: Apache-2.0
"""Checks the contract of `WorkerPool`: equal batches, errors at their positions, complete shutdown."""

from __future__ import annotations

import os
import signal
import tempfile
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from energon_grain.errors import SkipSample
from energon_grain.get_datasets import get_train_dataset
from energon_grain.stream.stream import Stream
from energon_grain.stream.worker_config import WorkerConfig
from energon_grain.stream.workers import MakePool
from energon_grain.task_encoder import DefaultTaskEncoder
from energon_grain.testing.datasets import make_text_dataset
from energon_grain.testing.hook_check import difference

_SAMPLES, _BATCH, _STEPS = 61, 4, 12
_DIES_ON = "kill"


def check_pool(make_pool: MakePool) -> None:
    """Check that a pool encodes the same stream as a loader without workers.

    Runs hooks that use random numbers, skip samples and fail, for two passes and from a state in the middle. Compares
    batches, states, and the calls of the error handler. If hooks run in other processes, one of them is killed: the
    batches must stay the same, without an error. After `close`, which is called twice, no thread and no process of the
    pool may remain.

    Args:
        make_pool: Makes the pool of a stream, from its `StreamSpec` and its `PureStage`; called several times.

    Raises:
        AssertionError: The pool breaks the contract; the message says where.
    """
    with tempfile.TemporaryDirectory(prefix="energon-grain-") as folder:
        make_text_dataset(Path(folder, "texts"), n=_SAMPLES, shards=1)
        before = set(threading.enumerate())
        with _Run(folder, None) as plain, _Run(folder, make_pool) as pooled:
            expected = [plain.step() for _ in range(_STEPS)]
            _compare("", expected, [pooled.step() for _ in range(_STEPS)])
            assert pooled.failures == plain.failures, (
                f"the error handler receives {pooled.failures}, expected {plain.failures}"
            )
            pooled.stream.restore(expected[2][1])
            _compare(" after a restored state", expected[3:], [pooled.step() for _ in range(_STEPS - 3)])
        if _workers(folder):
            _check_killed(folder, make_pool, expected)
        left = {thread.name for thread in threading.enumerate() if thread.is_alive()} - {each.name for each in before}
        assert not left, f"closing the stream leaves threads: {sorted(left)}"
        alive = [pid for pid in _workers(folder) if _lives(pid)]
        assert not alive, f"closing the stream leaves processes: {alive}"


def _check_killed(folder: str, make_pool: MakePool, expected: list[Any]) -> None:
    """Kill a process inside a hook: its chunk is encoded again."""
    Path(folder, _DIES_ON).touch()
    with _Run(folder, make_pool) as run:
        found = [run.step() for _ in range(_STEPS)]
    assert not Path(folder, _DIES_ON).exists(), "no process was killed: hooks did not run in other processes"
    _compare(" after a worker was killed", expected, found)


class _Run:
    """A stream, and the calls of its error handler."""

    def __init__(self, folder: str, make_pool: MakePool | None) -> None:
        self.failures: list[tuple[str, str, list[Any]]] = []
        config = WorkerConfig(0, 1, 0 if make_pool is None else 2, global_error_handler=self._note)
        dataset = get_train_dataset(
            Path(folder, "texts"),
            worker_config=config,
            batch_size=_BATCH,
            shuffle_buffer_size=8,
            max_samples_per_sequence=4,
            task_encoder=_Probe(folder),
            repeat=False,
        )
        self.stream: Stream = Stream.of(dataset, make_pool=make_pool)

    def _note(self, error: Exception, sample: Any, sources: Any) -> None:
        places = [(source.shard_name, source.index) for source in sources]
        self.failures.append((f"{type(error).__name__}: {error}", sample.__key__, places))

    def step(self) -> tuple[Any, Any]:
        """Return the next batch, or None at the end of a pass, and the state after it."""
        batch = next(self.stream, None)
        if batch is None:
            iter(self.stream)
        return batch, self.stream.cursor()

    def __enter__(self) -> _Run:
        return self

    def __exit__(self, *_: object) -> None:
        self.stream.close()
        self.stream.close()


class _Probe(DefaultTaskEncoder):
    """Uses random numbers, skips and failures by sample; records the other processes that it runs in."""

    def __init__(self, folder: str) -> None:
        self.folder, self.parent = Path(folder), os.getpid()

    def encode_sample(self, sample: Any) -> Any:
        if os.getpid() != self.parent:
            (self.folder / f"{os.getpid()}.pid").touch()
            with suppress(FileNotFoundError):
                (self.folder / _DIES_ON).unlink()  # succeeds in one process only
                os.kill(os.getpid(), signal.SIGKILL)
        number = int(sample.__key__)
        if number % 11 == 4:
            raise ValueError(f"hook of {number}")
        if self.rng.random() < 0.2:
            raise SkipSample
        large = np.full(20_000, number, np.float32)
        return {"key": sample.__key__, "text": sample.text, "noise": self.rng.standard_normal(3), "large": large}


def _compare(when: str, expected: list[tuple[Any, Any]], found: list[tuple[Any, Any]]) -> None:
    for step, ((batch, cursor), (other, place)) in enumerate(zip(expected, found, strict=True)):
        wrong = difference(other, batch, "")
        assert wrong is None, f"step {step} of {len(expected)}{when} differs: {wrong}"
        assert cursor == place, f"step {step} of {len(expected)}{when} has another state: {place}, expected {cursor}"


def _workers(folder: str) -> list[int]:
    return [int(path.stem) for path in Path(folder).glob("*.pid")]


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
