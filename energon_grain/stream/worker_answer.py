"""What a worker process does with a chunk, and the form in which the result leaves it.

Where the order is arithmetic, the samples of a batch lie beside each other in a chunk as long as nothing is dropped.
Then the worker runs the batch hooks too, and sends batches in place of samples: collating is work that belongs in
workers, and one batch crosses to the main process at a fraction of the price of its samples. It is a guess that costs
little: where it does not hold (something was dropped before), the main process makes the chunk again, which is pure.
"""

from __future__ import annotations

import dataclasses
import os
from typing import Any

import numpy as np

from energon_grain.datasets.cache_pool import using_cache
from energon_grain.errors import WorkerError
from energon_grain.sources.source import Source
from energon_grain.stream.batches import BatchMaker
from energon_grain.stream.chunk import Chunk, Encoded, MadeBatch
from energon_grain.stream.collection import paused_collection
from energon_grain.stream.result_transport import SamplePickler, portable_error, with_portable_errors
from energon_grain.stream.spec import StreamSpec
from energon_grain.stream.stage import PureStage


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
                        return _parts(result, self._stage.sources)
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


def packed(result: Any, sources: list[Source]) -> list[memoryview]:
    """The pickle of a result, and behind it the large buffers that it refers to, as `SampleUnpickler` takes them.

    A result that cannot be pickled becomes an error that says so.
    """
    try:
        return _parts(result, sources)
    except Exception as error:
        return _parts(
            WorkerError(
                f"what the hooks returned cannot be sent to the main process: {type(error).__name__}: {error}; return "
                f"arrays, texts and instances of classes of a module or of the script, or let hooks run in the main "
                f"process (no workers, or worker_type='thread')"
            ),
            sources,
        )


def _parts(result: Any, sources: list[Source]) -> list[memoryview]:
    pickler = SamplePickler(sources)
    payload = pickler.payload(result)
    return [payload, *(buffer.raw() for buffer in pickler.buffers)]


_ALIGNMENT = 64


def part_offsets(sizes: list[int]) -> tuple[list[int], int]:
    """Where parts of these sizes lie in one piece of memory, aligned for any array in them; and how large it is."""
    offsets: list[int] = []
    end = 0
    for size in sizes:
        offsets.append(end)
        end += -(-size // _ALIGNMENT) * _ALIGNMENT
    return offsets, end


def write_parts(file: int, parts: list[memoryview]) -> None:
    """Write parts to their `part_offsets` in a file in memory.

    Not by a mapping: the kernel fills new pages with what is written, where a mapping clears them first, page by page.
    """
    for offset, part in zip(part_offsets([part.nbytes for part in parts])[0], parts, strict=True):
        done = 0
        while done < part.nbytes:
            done += os.pwrite(file, part[done:], offset + done)
