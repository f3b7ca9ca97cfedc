"""A few scanning processes of our own, one pipe each.

`concurrent.futures.ProcessPoolExecutor` would import the caller's `__main__` again in every child (a script without a
main guard would prepare its dataset recursively) and would survive the parent's death. Here a child is a plain program
that ends when its input does, and a child that dies is an error that names the shard it was on.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import subprocess
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from typing import IO

import msgspec

from energon_grain import errors
from energon_grain.prepare.scan_task import ScanOutcome, ScanTask
from energon_grain.prepare.scan_worker import ScanReply


def scan_in_processes(tasks: Iterable[ScanTask], processes: int) -> Iterator[tuple[ScanTask, ScanOutcome | Exception]]:
    """Run the tasks in `processes` children and yield each with its outcome, or with the error it met, as they finish.

    Closing the iterator early ends the children.

    Raises:
        WorkerError: A child died.
    """
    waiting = deque(tasks)
    children: list[subprocess.Popen[bytes]] = []
    selector = selectors.DefaultSelector()
    busy: dict[subprocess.Popen[bytes], ScanTask] = {}
    try:
        for _ in range(min(processes, len(waiting))):
            child = _start()
            children.append(child)
            selector.register(_stdout(child), selectors.EVENT_READ, child)
            _send(child, waiting.popleft(), busy)
        while busy:
            for key, _ in selector.select():
                child: subprocess.Popen[bytes] = key.data
                line = _stdout(child).readline()
                task = busy.pop(child)
                if not line.endswith(b"\n"):
                    raise _died(child, task)
                if waiting:
                    _send(child, waiting.popleft(), busy)
                else:
                    selector.unregister(_stdout(child))
                yield task, _read_reply(line)
    finally:
        selector.close()
        for child in children:
            _end(child)


def _start() -> subprocess.Popen[bytes]:
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        "OPENBLAS_NUM_THREADS": "1",
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "-m", "energon_grain.prepare.scan_worker"]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)


def _send(child: subprocess.Popen[bytes], task: ScanTask, busy: dict[subprocess.Popen[bytes], ScanTask]) -> None:
    assert child.stdin is not None
    busy[child] = task
    try:
        child.stdin.write(msgspec.json.encode(task) + b"\n")
        child.stdin.flush()
    except BrokenPipeError:
        raise _died(child, task) from None


def _stdout(child: subprocess.Popen[bytes]) -> IO[bytes]:
    assert child.stdout is not None
    return child.stdout


def _read_reply(line: bytes) -> ScanOutcome | Exception:
    reply = msgspec.json.decode(line, type=ScanReply)
    if reply.outcome is not None:
        return reply.outcome
    assert reply.error is not None
    name, message = reply.error
    error_class = getattr(errors, name, errors.ReadError)
    return error_class(message)


def _died(child: subprocess.Popen[bytes], task: ScanTask) -> errors.WorkerError:
    code = child.wait()
    how = f"signal {-code}" if code < 0 else f"exit code {code}"
    return errors.WorkerError(
        f"{task.tar_path}: the process that scanned it ended by {how} (out of memory?). Run the same command again: "
        f"shards that were finished are not scanned again. --num-workers 0 scans without processes."
    )


def _end(child: subprocess.Popen[bytes]) -> None:
    """Close the child's input; one that is still in the middle of a shard is terminated."""
    assert child.stdin is not None
    with contextlib.suppress(BrokenPipeError):
        child.stdin.close()
    child.terminate()
    child.wait()
    _stdout(child).close()
