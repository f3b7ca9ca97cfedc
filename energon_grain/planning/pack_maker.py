# SPDX-License-Identifier: Apache-2.0
"""Makes planned items from their samples, in the process that reads the samples."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any, cast

import numpy as np

from energon_grain.errors import SkipSample
from energon_grain.stream.batches import RestoreKey, with_restore_key
from energon_grain.stream.chunks import Chunk
from energon_grain.stream.clock import Clock
from energon_grain.stream.drops import Dropped, PartialItem, raise_if_fatal, release_frames
from energon_grain.stream.hooks import call_hook
from energon_grain.stream.index_map import PASS_BITS, Items
from energon_grain.stream.spec import ItemSpec


class PackMaker:
    """Makes items of several samples for planned packs."""

    def __init__(self, specs: Sequence[ItemSpec], hook_lock: threading.RLock) -> None:
        self._specs = specs
        self._lock = hook_lock

    def make(
        self, chunk: Chunk, packs: Items, samples: list[Any], restore_keys: list[RestoreKey], clock: Clock
    ) -> tuple[list[Any], list[RestoreKey], int]:
        """Return the items of a chunk, their restore keys, and the number of incomplete ones; `clock` times the hooks.

        Raises FatalSampleError if a hook raised an error that must not be skipped.
        """
        outcomes: list[Any] = []
        keys: list[RestoreKey] = []
        cuts, batch_of = packs.cuts.tolist(), chunk.batches_of(np.arange(len(packs.number)))
        members = list(zip(chunk.draws.leaf.tolist(), chunk.draws.child.tolist(), strict=True))
        parts = list(zip(packs.starts.tolist(), packs.stops.tolist(), strict=True))
        makers = zip(packs.number.tolist(), packs.maker.tolist(), strict=True)
        for place, (number, maker) in enumerate(makers):
            begin, end = cuts[place], cuts[place + 1]
            if maker < 0:
                outcomes.append(samples[begin])
                keys.append(restore_keys[begin])
                continue
            ranges = tuple(parts[begin:end]) if self._specs[maker].takes_ranges else None
            batch = None if batch_of is None else batch_of(place)
            keys.append(("pack", maker, number, tuple(members[begin:end]), ranges))
            outcomes.append(self._item(keys[-1], samples[begin:end], batch, clock))
        drops = sum(type(outcome) in (Dropped, PartialItem) for outcome in outcomes)
        return outcomes, keys, drops

    def _item(self, key: RestoreKey, samples: list[Any], batch: int | None, clock: Clock) -> Any:
        """Return the pack of a restore key, made from its remaining samples."""
        _, maker, number, members, ranges = key
        dropped = tuple(sample for sample in samples if type(sample) is Dropped)
        if dropped:
            kept = [at for at, sample in enumerate(samples) if type(sample) is not Dropped]
            samples = [samples[at] for at in kept]
            ranges = None if ranges is None else [ranges[at] for at in kept]
        units = None if ranges is None else list(ranges)
        outcome = self._made(self._specs[maker], samples, units, number, members[0][0], batch, clock)
        if type(outcome) is not Dropped:
            outcome = with_restore_key(outcome, key)
        return PartialItem(outcome, dropped) if dropped else outcome

    def _made(
        self,
        spec: ItemSpec,
        samples: list[Any],
        ranges: list[tuple[int, int]] | None,
        number: int,
        leaf: int,
        batch: int | None,
        clock: Clock,
    ) -> Any:
        """Return a pack, or the `Dropped` in its place."""
        value: Any = samples
        hook = spec.hooks[0][0]
        try:
            if not samples:
                raise SkipSample("all of its samples were dropped")
            for hook, key in spec.hooks:
                call = hook
                if ranges is not None:
                    call = dataclasses.replace(hook, function=partial(cast("Any", hook.function), ranges=ranges))
                    ranges = None
                lock = clock.timing(hook, nullcontext() if hook.concurrent else self._lock)
                value = call_hook(call, key, [number], value, lock, epoch=number >> PASS_BITS, batch=batch)
        except Exception as error:
            raise_if_fatal(error, hook.name, f"a pack of {len(samples)} samples")
            if skipped := isinstance(error, SkipSample):
                release_frames(error)
            return Dropped(
                leaf=leaf,
                hook=hook.name,
                failure_tolerance=hook.failure_tolerance,
                error=error,
                sample=None if skipped else value,
                what="item",
            )
        return value
