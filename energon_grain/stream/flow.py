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
"""64-bit key of a hook's random numbers on a leaf."""


Numbers: TypeAlias = tuple[list[int], list[int], list[int], list[int]]


@dataclass(slots=True, eq=False)
class Flow:
    """Samples of leaves whose samples are made alike, hook by hook.

    Attributes:
        raw: What was read; place i of the flow is sample i of it.
        restore_keys: One a place.
        draws: (leaf, child position, index, epoch) of each place, as four lists.
        hook_keys: 64-bit key of a leaf's random numbers, by its number.
        values: What the samples have become so far.
        places: Place of each value; shorter than the chunk once samples were dropped.
        dropped: What was dropped, by place.
        sources: Provenance of the sample at a place.
        batch_of: Number of the batch that the sample at a place belongs to; None: nobody can tell.
        anew: Makes the samples again, as they were before the first hook.
        applied: Hooks that they went through.
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
        """Call a hook on every value, or one that takes lists on the list of them; those that it fails on are dropped.

        Args:
            hook: What to call.
            one_by_one: Give each value to it alone, if it takes lists.

        Returns:
            What it raised on a list; nobody knows then which values it has changed, and these samples are of no use.

        Raises:
            FatalSampleError: The hook raised what no policy may skip.
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
        # One iterator over all attempts: after a failure the loop goes on behind it, and no call pays for a `try`.
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
        # Made when they are asked for, and the same ones when they are asked for again.
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
        """Record that the sample at `place` is dropped.

        Raises FatalSampleError if the error is one that no policy may skip.
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
        """One entry a place: the encoded sample, or the `Dropped` in its stead."""
        if not self.dropped:
            return self.values
        entries: list[Any] = [None] * len(self.raw)
        for place, value in zip(self.places, self.values, strict=True):
            entries[place] = value
        for place, dropped in self.dropped.items():
            entries[place] = dropped
        return entries


class _FlowDraw(Draw):
    """The draw of a hook that runs over a flow. Which leaf it is of matters only where somebody asks for numbers."""

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
    """Makes the samples of leaves that are made alike."""

    def load(self, raw: RawBatch, draws: Numbers, groups: tuple[range, ...] = ()) -> Flow:
        """Decode and construct; samples that fail are dropped from the flow.

        Args:
            raw: What was read.
            draws: As in `Flow`.
            groups: Places that will probably be batched together; see `SampleDecoder.decode_column`.
        """
        ...
