"""Who encodes chunks, other than the thread that asks for them: the seam where backends bring their own workers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

from energon_grain.stream.chunk import Chunk, Encoded
from energon_grain.stream.chunk_pace import ChunkPace
from energon_grain.stream.spec import StreamSpec
from energon_grain.stream.stage import PureStage
from energon_grain.stream.workers import OrderedWorkers


class ChunkWorkers(Protocol):
    """An iterator over encoded chunks, in order, that workers make ahead of need.

    It may raise StopIteration and later deliver again: then the iterator of chunks did so too.
    """

    def __iter__(self) -> Iterator[Encoded]: ...

    def __next__(self) -> Encoded: ...

    def stop(self) -> None:
        """Wake who waits in `next`, and let no worker take another chunk, without waiting; any thread may call it."""
        ...

    def close(self) -> None:
        """Wait until all of that is so."""
        ...


class WorkerPool(Protocol):
    """Workers, for the life of a stream. They hold nothing that what comes out depends on."""

    @property
    def workers(self) -> int:
        """How many."""
        ...

    def start(self, chunks: Iterator[Chunk], pace: ChunkPace) -> ChunkWorkers:
        """Let them encode these chunks from now on. What was started before is closed by then.

        Args:
            chunks: Asked by one thread at a time. It may raise StopIteration and later deliver again.
            pace: Is told how long each chunk took.
        """
        ...

    def close(self) -> None:
        """End them; once more does no harm."""
        ...


MakePool = Callable[[StreamSpec, PureStage], WorkerPool]


class ThreadPool:
    """Threads of this process.

    Args:
        stage: What they run.
        workers: How many.
        budget_bytes: Bound on the memory of what they made and nobody took yet.
    """

    def __init__(self, stage: PureStage, workers: int, budget_bytes: int) -> None:
        self.workers = workers
        self._stage = stage
        self._budget_bytes = budget_bytes

    def start(self, chunks: Iterator[Chunk], pace: ChunkPace) -> ChunkWorkers:
        """See `WorkerPool.start`."""
        return OrderedWorkers([pace.timed(self._stage.run)] * self.workers, chunks, self._budget_bytes)

    def close(self) -> None:
        """Nothing is left: threads end with what they were started for."""
