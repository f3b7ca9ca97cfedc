"""What runs inside a worker process. See `energon_grain.stream.processes`."""

from __future__ import annotations

import mmap
import os
import pickle
import signal
import sys
import threading
import time
from io import TextIOWrapper
from typing import Any, BinaryIO, cast

from energon_grain.errors import WorkerError
from energon_grain.stream.chunk import Chunk
from energon_grain.stream.encode import PureStage
from energon_grain.stream.processes import HEADER
from energon_grain.stream.result_transport import SamplePickler, portable_error, with_portable_errors


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
    failed: Any = None
    stage: PureStage | None = None
    try:
        stage = PureStage(pickle.loads(setup["spec"]))
    except BaseException as error:
        failed = portable_error(error)
    while (command := _read(commands)) is not None:
        if stage is None:
            _answer(answers, arena, failed, [])
            continue
        chunk: Chunk = pickle.loads(command)
        try:
            result: Any = with_portable_errors(stage.run(chunk))
        except BaseException as error:
            result = portable_error(error)
        _answer(answers, arena, result, stage.sources)


def _end_with_parent(parent: int) -> None:
    """A parent that was killed cannot end a worker that is busy in a hook; and nothing may stay behind."""
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(1)


def _read(pipe: BinaryIO) -> bytes | None:
    header = pipe.read(HEADER.size)
    return pipe.read(HEADER.unpack(header)[0]) if len(header) == HEADER.size else None


def _answer(pipe: BinaryIO, arena: int, result: Any, sources: list[Any]) -> None:
    pickler = SamplePickler(sources)
    try:
        payload = pickler.payload(result)
    except Exception as error:
        pickler = SamplePickler(sources)
        payload = pickler.payload(
            WorkerError(
                f"what the hooks returned cannot be sent to the main process: {type(error).__name__}: {error}; return "
                f"arrays, texts and instances of classes of a module or of the script, or use worker_type='thread'"
            )
        )
    views = [payload, *(buffer.raw() for buffer in pickler.buffers)]
    sizes = [view.nbytes for view in views]
    total = sum(sizes)
    if os.fstat(arena).st_size < total:
        os.ftruncate(arena, total)
    with mmap.mmap(arena, total) as memory:
        offset = 0
        for view, size in zip(views, sizes, strict=True):
            memory[offset : offset + size] = view
            offset += size
    answer = pickle.dumps(sizes)
    pipe.write(HEADER.pack(len(answer)))
    pipe.write(answer)
    pipe.flush()
