# SPDX-License-Identifier: Apache-2.0
"""Making a sample or batch again, from its restore key.

A restore key is nested tuples (lists, after a round trip through JSON):

    ("sample", leaf, child position)                          an encoded sample
    ("pack", maker, number, ((leaf, child position), …), …)   a planned pack; last, the range of each, or None
    ("item", pass, lane, reference)                           an item of a lane: a pack, a batch, a generated sample
    ("batch", pass, step, item, padding, key, key, …)         the batch of a step, of the items with these keys
"""

from __future__ import annotations

import reprlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np

from energon_grain.errors import StateError
from energon_grain.sources.cache_pool import using_cache
from energon_grain.stream.assembly import lane_context, rebuild_item
from energon_grain.stream.batches import NO_BATCH, BatchStage
from energon_grain.stream.chunks import Chunk, ChunkPace
from energon_grain.stream.drops import DropBudget, Dropped, PartialItem
from energon_grain.stream.index_map import Draws, IndexMap, Items
from energon_grain.stream.run import Run
from energon_grain.stream.spec import StreamSpec
from energon_grain.stream.stage import PureStage
from energon_grain.stream.state import Codec
from energon_grain.stream.worker_config import ErrorHandler

_PATIENCE = 100_000


def restore_sample(run: Run, restore_key: Any) -> Any:
    """The sample or batch of a restore key, on any host. The stream's statistics do not count it.

    If a hook fails now, `WorkerConfig.restore_error_handler` is called before the error is raised.

    Raises StateError if the key is not of this dataset, or a hook drops or fails on it now, and FatalSampleError if a
    hook raised an error of `FATAL`.
    """
    return SampleRestorer(run.spec, run.stage, run.config.restore_error_handler).restore(restore_key)


class SampleRestorer:
    """Makes samples and batches again that a stream of the same configuration delivered.

    Args:
        on_error: `WorkerConfig.restore_error_handler`, called before the error of a failing hook is raised.
    """

    def __init__(self, spec: StreamSpec, stage: PureStage, on_error: ErrorHandler) -> None:
        self._spec = spec
        self._stage = stage
        self._on_error = on_error
        self._drops = DropBudget(on_error)
        self._drops.begin(first=False)
        self._batches = BatchStage(spec.batch, seed=spec.seed, hosts=1, hook_lock=stage.hook_lock, drops=self._drops)

    def restore(self, restore_key: Any) -> Any:
        """As `restore_sample`."""
        try:
            key = _tuples(restore_key)
            self._check(key)
        except (LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
            raise StateError(
                f"{reprlib.repr(restore_key)} is not a restore key of this dataset ({error}): pass the "
                f"`__restore_key__` of a sample or batch from a loader with the same configuration"
            ) from error
        with using_cache(self._spec.cache_pool):
            return self._restore(key)

    def _check(self, key: Any) -> None:
        """Check a key without running any hook."""
        kind, *rest = key
        checks = {
            "sample": self._check_sample,
            "pack": self._check_pack,
            "item": self._check_item,
            "batch": self._check_batch,
        }
        if kind not in checks:
            raise ValueError(f"its kind is {kind!r}")
        checks[kind](*rest)

    def _check_sample(self, leaf: Any, child: Any) -> None:
        if _number(leaf) >= len(self._spec.leaves):
            raise ValueError(f"leaf {leaf} of {len(self._spec.leaves)}")
        _number(child)

    def _check_pack(self, maker: Any, number: Any, members: Any, ranges: Any) -> None:
        _number(number)
        if _number(maker) >= len(self._spec.makers) or not members or len(ranges or members) != len(members):
            raise ValueError("the pack does not exist")
        for each in members:
            self._check_sample(*each)
        for start, stop in ranges or ():
            if _number(start) > _number(stop):
                raise ValueError(f"a range from {start} to {stop}")

    def _check_item(self, pass_number: Any, lane: Any, reference: Any) -> None:
        _number(pass_number)
        if self._spec.program is None or _number(lane) >= self._spec.lanes:
            raise ValueError("the lane does not exist")
        Codec(self._spec.program.root.reference_form).check(reference)

    def _check_batch(self, pass_number: Any, step: Any, item: Any, padding: Any, *members: Any) -> None:
        if not isinstance(padding, tuple | None):
            raise ValueError(f"its padding is {padding!r}")
        for number in (pass_number, step, item, *(padding or ())):
            _number(number)
        if self._spec.batch is None or not members or max(padding or (0,)) >= len(members):
            raise ValueError("the batch does not exist")
        for member in members:
            self._check(member)

    def _restore(self, key: Any, step: int | None = None) -> Any:
        """The sample or batch of a key. `step`: of the batch that it is made for."""
        kind, *rest = key
        if kind == "sample":
            return self._sample(*rest, step=step)
        if kind == "pack":
            return self._pack(*rest, step=step)
        return self._item(*rest, step=step) if kind == "item" else self._batch(*rest)

    def _sample(self, leaf: int, child: int, *, step: int | None) -> Any:
        return self._made(self._draws(((leaf, child),)), step)

    def _pack(
        self,
        maker: int,
        number: int,
        members: tuple[tuple[int, int], ...],
        ranges: tuple[tuple[int, int], ...] | None,
        *,
        step: int | None,
    ) -> Any:
        starts, stops = np.array(ranges or [(0, 0)] * len(members), np.int64).T
        items = Items(
            cuts=np.array([0, len(members)]),
            number=np.array([number]),
            maker=np.array([maker], np.int32),
            starts=starts,
            stops=stops,
        )
        return self._made(replace(self._draws(members), items=items), step)

    def _draws(self, samples: tuple[tuple[int, int], ...]) -> Draws:
        """The draws of samples of one index map, from the leaf and child position of each."""
        order, numbers = self._order_of(samples[0][0])
        leaves, positions = np.array(samples, np.int64).T
        draws = order.draw_children(np.searchsorted(numbers, leaves).astype(np.int32), positions)
        return replace(draws, leaf=leaves.astype(np.int32))

    def _made(self, draws: Draws, step: int | None) -> Any:
        """Make the only item of draws."""
        chunk = Chunk(number=-1, draws=draws, size_bytes=0, first=step or 0, batch_size=0 if step is None else 1)
        outcome = self._stage.run(chunk).outcomes[0]
        outcome = outcome.value if type(outcome) is PartialItem else outcome
        if type(outcome) is Dropped:
            self._report(outcome)
            raise StateError(
                f"{outcome.where} is dropped by {outcome.hook} ({type(outcome.error).__name__}: "
                f"{outcome.error}); hooks must return the same results each time they see a sample"
            ) from outcome.error
        return outcome

    def _report(self, dropped: Dropped) -> None:
        try:
            self._on_error(dropped.error, dropped.sample, dropped.sources)
        except Exception as error:
            raise StateError(
                f"{dropped.shard}: {dropped.key} is dropped by {dropped.hook} now ({type(dropped.error).__name__}: "
                f"{dropped.error}); hooks must return the same results each time they see a sample"
            ) from error

    def _order_of(self, leaf: int) -> tuple[IndexMap, Sequence[int]]:
        """The index map of a leaf, and the numbers of its leaves."""
        if self._spec.program is None:
            return self._spec.order, range(len(self._spec.leaves))
        feed = next(feed for feed in self._spec.program.feeds if leaf in feed.leaves)
        return feed.order, feed.leaves

    def _item(self, pass_number: int, lane: int, reference: Any, *, step: int | None) -> Any:
        assert self._spec.program is not None
        context = lane_context(
            self._spec.program, self._stage, ChunkPace(first=1), self._drops, self._on_error, _PATIENCE
        )
        context.batch = step
        return rebuild_item(self._spec.program, context, pass_number, lane, reference)

    def _batch(self, pass_number: int, step: int, item: int, padding: tuple[int, ...] | None, *keys: Any) -> Any:
        valid = None
        if padding is not None:
            valid = np.ones(len(keys), np.bool_)
            valid[list(padding)] = False
        samples = [self._restore(key, step) for key in keys]
        batch = self._batches.make(samples, list(keys), item=item, pass_number=pass_number, step=step, valid=valid)
        if batch is NO_BATCH:
            raise StateError(
                "the batch is dropped by its hooks now; hooks must return the same results each time they see a sample"
            )
        return batch


def _number(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 1 << 53:
        raise ValueError(f"{value!r} is not a valid number")
    return value


def _tuples(value: Any) -> Any:
    """Convert lists, as in JSON, to tuples."""
    if isinstance(value, list | tuple):
        return tuple(_tuples(entry) for entry in cast("list[Any]", value))
    return value
