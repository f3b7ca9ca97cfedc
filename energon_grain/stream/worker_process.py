"""What runs inside a worker process. See `energon_grain.stream.processes`."""

from __future__ import annotations

import os
import pickle
import signal
import sys
import threading
import time
from io import TextIOWrapper
from typing import Any, BinaryIO, cast

from energon_grain.datasets.worker_log import this_is_worker
from energon_grain.stream.processes import HEADER
from energon_grain.stream.result_transport import portable_error
from energon_grain.stream.worker_answer import WorkerStage, packed, part_offsets, write_parts


def main() -> None:
    """Serve chunks until the parent closes the pipe."""
    # Whoever interrupts every process: the parent decides what becomes of the workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, args=(os.getppid(),), daemon=True).start()
    arena = int(sys.argv[1])
    commands, answers = sys.stdin.buffer, os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    # Hooks that print must not write into the pipe of answers.
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    cast("TextIOWrapper", sys.stdout).reconfigure(line_buffering=True)
    start = _read(commands)
    if start is None:
        return
    setup: dict[str, Any] = pickle.loads(start)
    sys.path[:] = setup["path"]
    this_is_worker(setup["number"])
    failed: Any = None
    stage: WorkerStage | None = None
    try:
        stage = WorkerStage(pickle.loads(setup["spec"]))
    except BaseException as error:
        failed = portable_error(error)
    while (command := _read(commands)) is not None:
        if stage is None:
            _answer(answers, arena, packed(failed, []))
            continue
        _answer(answers, arena, stage.answer(pickle.loads(command)))


def _end_with_parent(parent: int) -> None:
    """A parent that was killed cannot end a worker that is busy in a hook; and nothing may stay behind."""
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(1)


def _read(pipe: BinaryIO) -> bytes | None:
    header = pipe.read(HEADER.size)
    return pipe.read(HEADER.unpack(header)[0]) if len(header) == HEADER.size else None


def _answer(pipe: BinaryIO, arena: int, parts: list[memoryview]) -> None:
    sizes = [part.nbytes for part in parts]
    _, total = part_offsets(sizes)
    if os.fstat(arena).st_size < total:
        os.ftruncate(arena, total)
    write_parts(arena, parts)
    answer = pickle.dumps(sizes)
    try:
        pipe.write(HEADER.pack(len(answer)))
        pipe.write(answer)
        pipe.flush()
    except BrokenPipeError:  # the parent was closed, or has ended, and wants no more answers
        os._exit(0)
