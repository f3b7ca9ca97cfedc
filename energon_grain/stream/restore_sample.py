"""Making a sample or batch again from its restore key.

A restore key is nested tuples (lists, once it went through JSON):

    ("sample", leaf, child position)                          an encoded sample
    ("item", pass, lane, reference)                           what a lane made: a pack, a batch, a generated sample
    ("batch", pass, step, item, padding, key, key, …)         the batch of a step, of the items with those keys
"""

from __future__ import annotations

from typing import Any, cast

import numpy as np

from energon_grain.datasets.worker_config import ErrorHandler
from energon_grain.errors import StateError
from energon_grain.stream.batches import NO_BATCH, BatchStage
from energon_grain.stream.chunk import Chunk
from energon_grain.stream.chunk_pace import ChunkPace
from energon_grain.stream.draws import Draws
from energon_grain.stream.dropped import Dropped
from energon_grain.stream.encode import PureStage
from energon_grain.stream.index_map import IndexMap
from energon_grain.stream.operators.program import rebuild_item
from energon_grain.stream.operators.surroundings import surroundings
from energon_grain.stream.spec import StreamSpec
from energon_grain.stream.statistics import Statistics


class SampleRestorer:
    """Rebuilds what a stream of the same configuration delivered, on any host.

    Args:
        spec: The compiled dataset.
        stage: Reads and encodes.
        batches: Makes batches.
        statistics: Counts what is dropped on the way.
        on_error: `WorkerConfig.restore_error_handler`, called before a sample that fails now is refused.
    """

    def __init__(
        self,
        spec: StreamSpec,
        stage: PureStage,
        batches: BatchStage,
        statistics: Statistics,
        on_error: ErrorHandler,
    ) -> None:
        self._spec = spec
        self._on_error = on_error
        self._stage = stage
        self._batches = batches
        self._statistics = statistics

    def restore(self, restore_key: Any) -> Any:
        """The sample or batch of a restore key.

        Raises:
            StateError: It is not a restore key of this dataset, or the sample is dropped now.
        """
        key = _tuples(restore_key)
        try:
            return self._restore(key)
        except (IndexError, TypeError, ValueError) as error:
            raise StateError(
                f"{restore_key!r} is not a restore key of this dataset: pass the `__restore_key__` of a sample or "
                f"batch that a loader with the same configuration delivered"
            ) from error

    def _restore(self, key: Any) -> Any:
        kind, *rest = key
        if kind == "sample":
            return self._sample(*rest)
        if kind == "item":
            return self._item(*rest)
        if kind == "batch":
            return self._batch(*rest)
        raise ValueError(f"unknown kind {kind!r}")

    def _sample(self, leaf: int, child: int) -> Any:
        order, first = self._order_of(leaf)
        positions = np.array([child], np.int64)
        index, epoch = order.table.draw(np.array([leaf - first], np.int32), positions)
        draws = Draws(leaf=np.array([leaf], np.int32), child=positions, index=index, epoch=epoch)
        outcome = self._stage.run(Chunk(number=-1, draws=draws, size_bytes=0)).outcomes[0]
        if type(outcome) is Dropped:
            self._on_error(outcome.error, outcome.sample, outcome.sources)
            raise StateError(
                f"{outcome.shard}: {outcome.key} is dropped by {outcome.hook} ({type(outcome.error).__name__}: "
                f"{outcome.error}); hooks must do the same whenever they see a sample"
            ) from outcome.error
        return outcome

    def _order_of(self, leaf: int) -> tuple[IndexMap, int]:
        """The index map that a leaf belongs to, and the number of its first leaf."""
        if not 0 <= leaf < len(self._spec.leaves):
            raise IndexError(f"leaf {leaf} of {len(self._spec.leaves)}")
        if self._spec.program is None:
            return self._spec.order, 0
        feeds = self._spec.program.feeds
        feed = max((feed for feed in feeds if feed.first_leaf <= leaf), key=lambda feed: feed.first_leaf)
        return feed.order, feed.first_leaf

    def _item(self, pass_number: int, lane: int, reference: Any) -> Any:
        program = self._spec.program
        if program is None or not 0 <= lane < self._spec.lanes:
            raise ValueError("no such lane")
        around = surroundings(program, self._stage, ChunkPace(first=1), self._statistics, 1000)
        return rebuild_item(program, around, pass_number, lane, reference)

    def _batch(self, pass_number: int, step: int, item: int, padding: tuple[int, ...] | None, *keys: Any) -> Any:
        valid = None
        if padding is not None:
            valid = np.ones(len(keys), np.bool_)
            valid[list(padding)] = False
        samples = [self._restore(key) for key in keys]
        batch = self._batches.make(samples, list(keys), item=item, pass_number=pass_number, step=step, valid=valid)
        if batch is NO_BATCH:
            raise StateError("the batch is dropped by its hooks now; hooks must do the same whenever they see a sample")
        return batch


def _tuples(value: Any) -> Any:
    """Lists, as JSON has them, as the tuples that they were."""
    if isinstance(value, list | tuple):
        return tuple(_tuples(entry) for entry in cast("list[Any]", value))
    return value
