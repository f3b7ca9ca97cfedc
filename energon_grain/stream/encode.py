"""The pure stage: from a chunk of draws to encoded samples. It may run in any thread or process."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from functools import lru_cache
from typing import Any, cast

from energon_grain.datasets.cache_pool import using_cache
from energon_grain.sources.raw import RawBatch
from energon_grain.sources.source import Source
from energon_grain.storage.freed_memory import keep_freed_memory
from energon_grain.stream.chunk import Chunk, Encoded
from energon_grain.stream.collection import paused_collection
from energon_grain.stream.draws import Draws
from energon_grain.stream.flow import Flow
from energon_grain.stream.load_join import loader_of
from energon_grain.stream.spec import HookSpec, StreamSpec
from energon_grain.transforms.array_kind import kind_of


class PureStage:
    """Reads and encodes chunks. Thread-safe: several threads may encode different chunks at once.

    Args:
        spec: The compiled dataset.
        hook_lock: Held while hooks run that must not overlap in time, those of the batch stage among them.
    """

    def __init__(self, spec: StreamSpec, hook_lock: threading.RLock | None = None) -> None:
        keep_freed_memory()
        self._spec = spec
        self.hook_lock = hook_lock or threading.RLock()
        self.sources: list[Source] = [leaf.leaf.source for leaf in spec.leaves]
        self._loaders = [
            loader_of(number, leaf.leaf, leaf.hook_key, leaf.failure_tolerance)
            for number, leaf in enumerate(spec.leaves)
        ]

    def run(self, chunk: Chunk) -> Encoded:
        """Read and encode one chunk.

        Raises:
            ReadError: Bytes could not be read.
            FatalSampleError: A hook raised what no policy may skip.
        """
        # A chunk makes many objects, all of which stay: the collector would look them over again and again.
        with paused_collection(), using_cache(self._spec.cache_pool):
            return self._run(chunk)

    def _run(self, chunk: Chunk) -> Encoded:
        draws = chunk.draws
        if len(self._loaders) == 1:
            flow = self._encode(0, draws, chunk.groups, chunk.batch_of)
            outcomes, restore_keys, drops = flow.outcomes(), flow.restore_keys, len(flow.dropped)
        else:
            outcomes, restore_keys, drops = [None] * len(draws), [()] * len(draws), 0
            for leaf, places in draws.by_leaf():
                flow = self._encode(leaf, draws[places], (), chunk.batches_of(places))
                drops += len(flow.dropped)
                for place, outcome, key in zip(places.tolist(), flow.outcomes(), flow.restore_keys, strict=True):
                    outcomes[place] = outcome
                    restore_keys[place] = key
        held = max(chunk.size_bytes, approximate_bytes(outcomes[0]) * len(outcomes) if outcomes else 0)
        return Encoded(outcomes=outcomes, restore_keys=restore_keys, drops=drops, size_bytes=held)

    def _encode(
        self, leaf: int, draws: Draws, groups: tuple[range, ...], batch_of: Callable[[int], int] | None
    ) -> Flow:
        flow = self.load(leaf, self.read(leaf, draws), draws, groups, batch_of)
        for hook in self.hooks(leaf):
            self.apply(flow, hook)
        return flow

    def read(self, leaf: int, draws: Draws) -> RawBatch:
        """The first step of `run`: the bytes of draws that are all of one leaf. Raises ReadError."""
        return self.sources[leaf].read(draws.index)

    def load(
        self,
        leaf: int,
        raw: RawBatch,
        draws: Draws,
        groups: tuple[range, ...] = (),
        batch_of: Callable[[int], int] | None = None,
    ) -> Flow:
        """The second step: samples, decoded and constructed.

        Args:
            leaf: Number of the leaf.
            raw: What `read` gave.
            draws: Of that.
            groups: As in `Chunk`.
            batch_of: As in `Chunk`.
        """
        numbers = draws.child.tolist(), draws.index.tolist(), draws.epoch.tolist()
        flow = self._loaders[leaf].load(raw, numbers, groups)
        flow.batch_of = batch_of
        return flow

    def hooks(self, leaf: int) -> tuple[HookSpec, ...]:
        """What the third step applies to the samples of a leaf, in order."""
        spec = self._spec.leaves[leaf]
        return spec.hooks if spec.cook is None else (spec.cook, *spec.hooks)

    def apply(self, flow: Flow, hook: HookSpec) -> None:
        """The third step, once for each hook: call it on every sample.

        Raises:
            FatalSampleError: The hook raised what no policy may skip.
        """
        with nullcontext() if hook.concurrent else self.hook_lock:
            flow.apply(hook)

    def close(self) -> None:
        """Release file handles."""
        for source in self.sources:
            source.close()


def approximate_bytes(value: Any) -> int:
    """Memory that a sample's arrays, bytes and texts take, roughly; other objects count as nothing."""
    if kind_of(type(value)) is not None:
        try:
            return value.nbytes
        except RuntimeError:  # torch's sparse tensors do not tell
            return 0
    if isinstance(value, (bytes, bytearray, memoryview, str)):
        return len(value)
    if isinstance(value, Mapping):
        return sum(approximate_bytes(entry) for entry in cast("Mapping[Any, Any]", value).values())
    if isinstance(value, (list, tuple)):
        entries = cast("list[Any]", value)
        return sum(approximate_bytes(entry) for entry in entries)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return sum(approximate_bytes(getattr(value, name)) for name in _data_fields(type(value)))
    return 0


@lru_cache(maxsize=1024)
def _data_fields(cls: type[Any]) -> tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(cls) if field.name[:2] != "__")
