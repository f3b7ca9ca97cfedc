"""What runs in a worker process.

Where the order is arithmetic, the samples of a batch lie beside each other in a chunk as long as nothing is dropped.
Then the worker runs the batch hooks too, and sends batches in place of samples: collating is work that belongs in
workers, and one batch crosses to the main process at a fraction of the price of its samples. It is a guess that costs
little: where it does not hold (something was dropped before), the main process makes the chunk again, which is pure.
"""

from __future__ import annotations

import dataclasses
import os
import pickle
import signal
import sys
import threading
import time
from io import TextIOWrapper
from typing import Any, BinaryIO, cast

import numpy as np

from energon_grain.sources.cache_pool import using_cache
from energon_grain.stream.batches import BatchMaker
from energon_grain.stream.chunk import Chunk, Encoded, MadeBatch
from energon_grain.stream.collection import paused_collection
from energon_grain.stream.spec import StreamSpec
from energon_grain.stream.stage import PureStage
from energon_grain.stream.transport import (
    HEADER,
    packed,
    part_offsets,
    pickled_parts,
    portable_error,
    with_portable_errors,
    write_parts,
)
from energon_grain.stream.worker_config import this_is_worker


class WorkerStage:
    """The pure stage of a worker process.

    Args:
        spec: The compiled dataset.
    """

    def __init__(self, spec: StreamSpec) -> None:
        self._stage = PureStage(spec)
        self._cache_pool = spec.cache_pool
        self._maker: BatchMaker | None = None
        if spec.batch is not None:
            self._maker = BatchMaker(spec.batch, seed=spec.seed, hook_lock=self._stage.hook_lock)

    def answer(self, chunk: Chunk) -> list[memoryview]:
        """The encoded chunk, or the error that it ended with, as parts for `SampleUnpickler`."""
        try:
            encoded = self._stage.run(chunk)
            with paused_collection(), using_cache(self._cache_pool):
                result: Any = self._with_batches(chunk, encoded)
                if result is not encoded:
                    try:
                        return pickled_parts(result, self._stage.sources)
                    except Exception:
                        result = encoded  # a batch that cannot be sent is made in the main process
                return packed(with_portable_errors(result), self._stage.sources)
        except BaseException as error:
            return packed(portable_error(error), self._stage.sources)

    def _with_batches(self, chunk: Chunk, encoded: Encoded) -> Encoded:
        """The chunk with batches in place of samples, where that is possible."""
        numbers, maker = chunk.numbers, self._maker
        if numbers is None or maker is None or encoded.drops:
            return encoded
        outcomes, restore_keys, made = list(encoded.outcomes), list(encoded.restore_keys), False
        for group in chunk.whole_batches():
            item, step = numbers.of(chunk.first + group.start)
            valid = np.ones(len(group), np.bool_) if numbers.pads else None
            places = slice(group.start, group.stop)
            try:
                batch = maker.make(
                    encoded.outcomes[places],
                    encoded.restore_keys[places],
                    item=item,
                    pass_number=numbers.pass_number,
                    step=step,
                    valid=valid,
                )
            except Exception:
                return encoded  # the main process finds out, and decides what becomes of it
            nothing = [None] * (len(group) - 1)
            outcomes[places] = [MadeBatch(batch=batch, samples=len(group)), *nothing]
            restore_keys[places] = [()] * len(group)
            made = True
        return (
            dataclasses.replace(encoded, outcomes=outcomes, restore_keys=restore_keys, made=True) if made else encoded
        )


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
