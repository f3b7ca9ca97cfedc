# SPDX-License-Identifier: Apache-2.0
"""Samples on their way through the pure stage, hook by hook."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any, Protocol, TypeAlias

from energon_grain.errors import SkipSample
from energon_grain.samplers.hashing import fold
from energon_grain.sources.source import RawBatch
from energon_grain.storage.cancellation import cancellable, raise_if_cancelled
from energon_grain.stream.drops import Dropped, raise_if_fatal, release_frames
from energon_grain.stream.hooks import Draw, HookSpec, current, seeded_globals

_hook_key = lru_cache(maxsize=4096)(fold)
"""64-bit key of the random numbers of a hook on a leaf."""


Numbers: TypeAlias = tuple[list[int], list[int], list[int], list[int]]


@dataclass(slots=True, eq=False)
class Flow:
    """Samples passing through the hooks. All samples are of leaves that share the same loading code.

    Attributes:
        raw: The raw samples; index i of the flow is sample i.
        restore_keys: One per index.
        draws: (leaf, child position, index, epoch) of each index, as four lists.
        hook_keys: 64-bit key of the random numbers of a leaf, by leaf number.
        values: Current values of the samples.
        places: Index of each value; shorter than the chunk once samples were dropped.
        dropped: Drops by index.
        sources: Function from index to the provenance of its sample.
        batch_of: Function from index to the batch of its sample; None: the batch is unknown.
        reload: Makes the samples again, as before the first hook.
        applied: Hooks applied so far.
    """

    raw: RawBatch
    restore_keys: list[tuple[Any, ...]]
    draws: Numbers
    hook_keys: Mapping[int, int]
    values: list[Any]
    places: list[int]
    dropped: dict[int, Dropped]
    sources: Callable[[int], Any]
    batch_of: Callable[[int], int] | None = None
    reload: Callable[[], Flow] | None = None
    applied: list[HookSpec] = dataclasses.field(default_factory=list[HookSpec])

    def apply(self, hook: HookSpec, *, one_by_one: bool = False) -> Exception | None:
        """Call a hook on every value, or on the list of values if it takes lists. Values that fail are dropped.

        Args:
            hook: The hook.
            one_by_one: If the hook takes lists, call it on each value alone.

        Returns:
            The error that the hook raised on a list. It may have changed any of the values, so discard these samples.

        Raises:
            FatalSampleError: The hook raised an error of `FATAL`.
            Cancelled: The samples are no longer needed.
        """
        if hook.lists and len(self.values) > 1 and not one_by_one:
            return self._apply_at_once(hook)
        draw = _FlowDraw(self, hook.name)
        function = seeded_globals(hook.function, draw) if hook.restore_seeds else hook.function
        function = hook.one if hook.lists else function
        results: list[Any] = []
        append = results.append
        failed: set[int] = set()
        value: Any = None
        # One iterator over all attempts: after a failure the loop continues after it, and no call pays for a `try`.
        pending = zip(self.places, self.values, strict=True)
        outer, current.draw = current.draw, (lambda: [draw]) if hook.lists else draw
        try:
            with cancellable(pending):
                while True:
                    try:
                        for draw.place, value in pending:
                            append(function(value))
                        break
                    except Exception as error:
                        self.drop(draw.place, hook.name, hook.failure_tolerance, error, value)
                        failed.add(draw.place)
        finally:
            current.draw = outer
        if failed:
            self.places = [place for place in self.places if place not in failed]
        self.values = results
        return None

    def _apply_at_once(self, hook: HookSpec) -> Exception | None:
        raise_if_cancelled()
        places, values = self.places, self.values
        # Made on first use, and reused on further uses.
        draws = cache(lambda: [_FlowDraw(self, hook.name, place) for place in places])
        outer, current.draw = current.draw, draws
        try:
            entries = hook.many(values)
        except Exception as error:
            first = f"{self.raw.shards[places[0]]}: {self.raw.keys[places[0]]}"
            raise_if_fatal(error, hook.name, f"{len(values)} samples ({first}, …)")
            return error
        finally:
            current.draw = outer
        self.places, self.values = [], []
        for place, entry, value in zip(places, entries, values, strict=True):
            if isinstance(entry, Exception):
                self.drop(place, hook.name, hook.failure_tolerance, entry, value)
            else:
                self.places.append(place)
                self.values.append(entry)
        return None

    def drop(self, place: int, hook: str, failure_tolerance: int, error: Exception, sample: Any) -> None:
        """Record that the sample at index `place` is dropped.

        Raises FatalSampleError if the error is one of `FATAL`.
        """
        key, shard = self.raw.keys[place], self.raw.shards[place]
        raise_if_fatal(error, hook, f"{shard}: {key}")
        if skipped := isinstance(error, SkipSample):
            release_frames(error)
        self.dropped[place] = Dropped(
            leaf=self.draws[0][place],
            hook=hook,
            failure_tolerance=failure_tolerance,
            error=error,
            key=key,
            shard=shard,
            sample=None if skipped else sample,
            sources=self.sources(place),
        )

    def outcomes(self) -> list[Any]:
        """One entry per index: the encoded sample, or `Dropped`."""
        if not self.dropped:
            return self.values
        entries: list[Any] = [None] * len(self.raw)
        for place, value in zip(self.places, self.values, strict=True):
            entries[place] = value
        for place, dropped in self.dropped.items():
            entries[place] = dropped
        return entries


class _FlowDraw(Draw):
    """The draw of a hook that runs over a flow. It looks up the leaf only when a hook uses random numbers."""

    __slots__ = ("_hook", "_hook_keys", "_leaves")

    def __init__(self, flow: Flow, hook: str, place: int = 0) -> None:
        self._leaves, positions, indices, epochs = flow.draws
        super().__init__(0, positions, indices, epochs, flow.batch_of)
        self.place = place
        self._hook_keys, self._hook = flow.hook_keys, hook

    @property
    def seed(self) -> int:
        return fold(_hook_key(self._hook_keys[self._leaves[self.place]], self._hook), self.position)


class SampleLoader(Protocol):
    """Makes samples of leaves that share the same loading code."""

    def load(self, raw: RawBatch, draws: Numbers, groups: tuple[range, ...] = ()) -> Flow:
        """Decode and construct samples. Those that fail are dropped from the flow.

        Args:
            raw: The raw samples.
            draws: As in `Flow`.
            groups: Indices that will probably be batched together; see `SampleDecoder.decode_column`.
        """
        ...
