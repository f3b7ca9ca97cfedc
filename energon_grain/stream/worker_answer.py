"""What a worker process does with a chunk, and the form in which the result leaves it."""

from __future__ import annotations

from typing import Any

from energon_grain.errors import WorkerError
from energon_grain.sources.source import Source
from energon_grain.stream.chunk import Chunk
from energon_grain.stream.encode import PureStage
from energon_grain.stream.result_transport import SamplePickler, portable_error, with_portable_errors


def encoded_or_error(stage: PureStage, chunk: Chunk) -> Any:
    """The encoded chunk, or the error that it ended with, such that either arrives in another process."""
    try:
        return with_portable_errors(stage.run(chunk))
    except BaseException as error:
        return portable_error(error)


def packed(result: Any, sources: list[Source]) -> list[memoryview]:
    """The pickle of a result, and behind it the large buffers that it refers to, as `SampleUnpickler` takes them.

    A result that cannot be pickled becomes an error that says so.
    """
    pickler = SamplePickler(sources)
    try:
        payload = pickler.payload(result)
    except Exception as error:
        pickler = SamplePickler(sources)
        payload = pickler.payload(
            WorkerError(
                f"what the hooks returned cannot be sent to the main process: {type(error).__name__}: {error}; return "
                f"arrays, texts and instances of classes of a module or of the script, or let hooks run in the main "
                f"process (no workers, or worker_type='thread')"
            )
        )
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


def write_parts(memory: Any, parts: list[memoryview]) -> None:
    """Copy parts to their `part_offsets` in a buffer."""
    for offset, part in zip(part_offsets([part.nbytes for part in parts])[0], parts, strict=True):
        memory[offset : offset + part.nbytes] = part
