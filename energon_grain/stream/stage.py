# SPDX-License-Identifier: Apache-2.0
"""The pure stage: from a chunk of draws to encoded samples. It can run in any thread or process."""

from __future__ import annotations

import dataclasses
import logging
import threading
import time
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import repeat
from operator import itemgetter
from types import MethodType
from typing import Any, Protocol, TypeAlias, TypeVar, cast

import numpy as np
import numpy.typing as npt

from energon_grain.errors import DecodingError
from energon_grain.samples.columns import column_constructor
from energon_grain.samples.types import CrudeSample
from energon_grain.sources.cache_pool import using_cache
from energon_grain.sources.remote_runs import RemoteSource, side_by_side
from energon_grain.sources.rows import SelectedSource
from energon_grain.sources.source import LazySources, PartValue, RawBatch, ReadInGroups
from energon_grain.storage.byte_stream import ByteStream
from energon_grain.storage.cancellation import cancellable
from energon_grain.stream.chunks import Chunk, Encoded
from energon_grain.stream.clock import Clock
from energon_grain.stream.extensions import COLUMN_BATCHES, ITEM_MAKER, KEEP_FREED_MEMORY, extension
from energon_grain.stream.flow import Flow, Numbers, SampleLoader
from energon_grain.stream.hooks import HookSpec
from energon_grain.stream.index_map import Draws, Items, Sources
from energon_grain.stream.memory import approximate_bytes, paused_collection
from energon_grain.stream.spec import LeafSpec, ResolvedLeaf, StreamSpec

_logger = logging.getLogger("energon_grain")
_Value = TypeVar("_Value")
_OURS = f"{__name__.partition('.')[0]}."
_ENCODED = frozenset({bytes, ByteStream})
Fields: TypeAlias = tuple[type[Any], dict[str, list[Any]]]
"""A sample type, and the values of its fields over many samples."""
ColumnBatches: TypeAlias = Callable[[Chunk, Callable[[], Fields | None], Clock], Encoded | None]
"""See `stream.extensions.COLUMN_BATCHES`."""
own_hook = partial(HookSpec, restore_seeds=False, concurrent=True)


class LeafLoader:
    """Makes samples of leaves that share the same loading code."""

    def __init__(
        self, leaves: Mapping[int, ResolvedLeaf], hook_keys: Mapping[int, int], failure_tolerance: int
    ) -> None:
        self._sources = {number: leaf.source for number, leaf in leaves.items()}
        self._subflavors = {number: leaf.subflavors for number, leaf in leaves.items()}
        self._leaf = leaf = next(iter(leaves.values()))  # any of them: their settings are equal
        self._hook_keys = hook_keys
        self._failure_tolerance = failure_tolerance
        made = None if leaf.field_map is None else leaf.sample_type
        self._construct = None if made is None else column_constructor(made)
        self._load = None
        if leaf.load is not None:
            self._load = own_hook(name="load_sample", function=leaf.load, failure_tolerance=failure_tolerance)

    def load(
        self,
        raw: RawBatch,
        draws: Numbers,
        groups: tuple[range, ...] = (),
        restore_keys: list[tuple[Any, ...]] | None = None,
    ) -> Flow:
        """Decode and construct samples. Samples that cannot be decoded, or lack a required part, are dropped.

        Args:
            raw: The raw samples.
            draws: As in `Flow`.
            groups: Indices that will probably be batched together; see `SampleDecoder.decode_column`.
            restore_keys: One per sample, if they exist already.
        """
        flow = self._flow(raw, draws, restore_keys)
        columns = self._decoded(flow, groups)
        flow.values = self._crude(flow, columns) if self._construct is None else self._typed(flow, columns)
        if self._load is not None:
            flow.apply(self._load)
        return flow

    def fields(self, raw: RawBatch, draws: Numbers, groups: tuple[range, ...]) -> Fields | None:
        """The fields that `load` would put into samples; None: some cannot be decoded, or lack a part."""
        simple = None if self._leaf.field_map is None else self._leaf.field_map.simple
        if simple is None or not all(part in raw.columns and raw.is_complete(part) for part in simple.values()):
            return None
        flow = self._flow(raw, draws, None)
        columns = self._decoded(flow, groups)
        fields = {**self._metadata(flow), **{name: columns[part] for name, part in simple.items()}}
        return None if flow.dropped or self._leaf.sample_type is None else (self._leaf.sample_type, fields)

    def _flow(self, raw: RawBatch, draws: Numbers, restore_keys: list[tuple[Any, ...]] | None) -> Flow:
        leaves, children, _, _ = draws
        return Flow(
            raw=raw,
            restore_keys=restore_keys or list(zip(repeat("sample"), leaves, children, strict=False)),
            draws=draws,
            hook_keys=self._hook_keys,
            values=[],
            places=list(range(len(raw))),
            dropped={},
            sources=lambda place: LazySources(self._sources[leaves[place]], int(raw.indices[place])),
        )

    def _decoded(self, flow: Flow, groups: tuple[range, ...]) -> dict[str, list[Any]]:
        """Every column, decoded. Samples that fail are dropped from the flow; their entries are None."""
        columns: dict[str, list[Any]] = {}
        decoder = self._leaf.decoder
        for part, column in flow.raw.columns.items():
            decode = None if decoder is None else decoder.decoder_for(part)
            types = set(map(type, column))
            values = columns[part] = list(column)
            if decoder is None or decode is None or types.isdisjoint(_ENCODED):
                continue
            with cancellable(values):
                with suppress(Exception):
                    if types == {bytes}:
                        columns[part] = decoder.decode_column(part, cast("list[bytes]", values), groups)
                    else:
                        columns[part] = [decode(data) if type(data) in _ENCODED else data for data in values]
                    continue
                columns[part] = self._decoded_one_by_one(flow, part, decode, values)
        if flow.dropped:
            flow.places = [place for place in flow.places if place not in flow.dropped]
        return columns

    def _decoded_one_by_one(
        self, flow: Flow, part: str, decode: Callable[[Any], Any], column: Sequence[PartValue | None]
    ) -> list[Any]:
        values: list[Any] = []
        for place, data in enumerate(column):
            try:
                values.append(decode(data) if type(data) in _ENCODED else data)
            except Exception as error:
                values.append(None)
                if place not in flow.dropped:
                    self._drop(flow, place, self._placed(flow, place, error) if type(error) is DecodingError else error)
        return values

    def _placed(self, flow: Flow, place: int, error: Exception) -> DecodingError:
        """A data error that includes the location of the sample."""
        source = self._sources[flow.draws[0][place]]
        placed = DecodingError(f"{source.place_of(int(flow.raw.indices[place]))}: {error}")
        placed.__cause__ = error
        return placed

    def _drop(self, flow: Flow, place: int, error: Exception) -> None:
        sample = CrudeSample(
            {"__key__": flow.raw.keys[place], "__shard__": flow.raw.shards[place], **flow.raw[place].parts}
        )
        flow.drop(place, "decode", self._failure_tolerance, error, sample)

    def _metadata(self, flow: Flow) -> dict[str, Any]:
        """The base fields, one value per sample."""
        leaves = flow.draws[0]
        indices: list[int] = flow.raw.indices.tolist()
        return {
            "__key__": flow.raw.keys,
            "__restore_key__": flow.restore_keys,
            "__subflavors__": list(map(dict.copy, _of_each(self._subflavors, leaves))),
            "__sources__": list(map(LazySources, _of_each(self._sources, leaves), indices)),
        }

    def _crude(self, flow: Flow, columns: dict[str, list[Any]]) -> list[Any]:
        raw = flow.raw
        metadata = {**self._metadata(flow), "__shard__": raw.shards}
        if raw.orders is not None:
            samples = _crude_in_orders(metadata, columns, raw.orders)
            return [samples[place] for place in flow.places] if flow.dropped else samples
        samples = _crude_samples({**metadata, **columns})
        for part, column in raw.columns.items():
            if not raw.is_complete(part):
                for sample, data in zip(samples, column, strict=True):
                    if data is None:
                        del sample[part]
        return [samples[place] for place in flow.places] if flow.dropped else samples

    def _typed(self, flow: Flow, columns: dict[str, list[Any]]) -> list[Any]:
        field_map = self._leaf.field_map
        assert field_map is not None
        assert self._construct is not None
        metadata = self._metadata(flow)
        simple = field_map.simple
        raw = flow.raw
        whole = simple is not None and all(part in raw.columns and raw.is_complete(part) for part in simple.values())
        if simple is not None and whole and not flow.dropped:
            fields = {name: columns[part] for name, part in simple.items()}
        else:
            fields = self._fields_one_by_one(flow, columns)
            metadata = {name: [values[place] for place in flow.places] for name, values in metadata.items()}
        return self._construct(len(flow.places), {**metadata, **fields})

    def _fields_one_by_one(self, flow: Flow, columns: dict[str, list[Any]]) -> dict[str, list[Any]]:
        """Evaluate the field map sample by sample: for options, indexing and missing parts."""
        field_map = self._leaf.field_map
        assert field_map is not None
        rows: list[dict[str, Any]] = []
        raw = flow.raw
        for place in flow.places:
            parts = {name: column[place] for name, column in columns.items() if raw.columns[name][place] is not None}
            parts["__key__"], parts["__shard__"] = raw.keys[place], raw.shards[place]
            try:
                rows.append(field_map.evaluate(parts))
            except Exception as error:
                self._drop(flow, place, self._placed(flow, place, error))
        flow.places = [place for place in flow.places if place not in flow.dropped]
        return {name: [row[name] for row in rows] for name in field_map.fields}


def _crude_samples(fields: Mapping[str, Sequence[Any]]) -> list[CrudeSample]:
    return list(map(CrudeSample, map(zip, repeat(tuple(fields)), zip(*fields.values(), strict=True))))


def _crude_in_orders(
    metadata: Mapping[str, list[Any]], columns: Mapping[str, list[Any]], orders: Sequence[tuple[str, ...]]
) -> list[Any]:
    """Crude samples, each with its own parts in its own order. Samples with the same parts are made together."""
    places_of: dict[tuple[str, ...], list[int]] = {}
    for place, order in enumerate(orders):
        places_of.setdefault(order, []).append(place)
    samples: list[Any] = [None] * len(orders)
    for order, places in places_of.items():
        fields = {**metadata, **{part: columns[part] for part in order}}
        pick = itemgetter(*places, places[0])  # with a single index it would not return a tuple
        own = {name: pick(column)[:-1] for name, column in fields.items()}
        for place, sample in zip(places, _crude_samples(own), strict=True):
            samples[place] = sample
    return samples


def _of_each(of_leaf: Mapping[int, _Value], leaves: list[int]) -> Iterable[_Value]:
    """The value of each leaf in a list."""
    if len(of_leaf) == 1:
        return repeat(next(iter(of_leaf.values())), len(leaves))
    return map(of_leaf.__getitem__, leaves)


class Kind:
    """Leaves whose samples are read together and share the same loading code."""

    def __init__(self, leaves: Mapping[int, LeafSpec]) -> None:
        number, spec = next(iter(leaves.items()))
        self.hooks = spec.hooks if spec.cook is None else (spec.cook, *spec.hooks)
        self._source, self._read_together = spec.leaf.source, None
        if spec.leaf.loader is not None:
            self._loader: SampleLoader = spec.leaf.loader(number, spec.hook_key, spec.failure_tolerance)
            return
        resolved = {number: cast("ResolvedLeaf", each.leaf) for number, each in leaves.items()}
        hook_keys = {number: each.hook_key for number, each in leaves.items()}
        self._loader = LeafLoader(resolved, hook_keys, spec.failure_tolerance)
        if len(leaves) > 1:
            sources = [each.source for each in resolved.values()]
            self._read_together = cast("ReadInGroups", sources[0])._group(sources)
            self._numbers = np.array([*leaves], np.int32)

    def read(self, draws: Draws) -> RawBatch:
        """The samples of draws, in their order. Raises ReadError."""
        if self._read_together is None:
            return self._source.read(draws.index)
        return self._read_together.read(np.searchsorted(self._numbers, draws.leaf), draws.index)

    def load(
        self, raw: RawBatch, draws: Draws, groups: tuple[range, ...], batch_of: Callable[[int], int] | None
    ) -> Flow:
        """Decode and construct the result of `read`; `groups` as in `LeafLoader`, `batch_of` as in `Flow`."""
        flow = self._loader.load(raw, _numbers(draws), groups)
        flow.batch_of = batch_of
        # Reads again, too: a hook may have changed values that were not decoded.
        flow.reload = lambda: self.load(self.read(draws), draws, groups, batch_of)
        return flow

    def fields(self, raw: RawBatch, draws: Draws, groups: tuple[range, ...]) -> Fields | None:
        """See `LeafLoader.fields`; None for other loaders."""
        return self._loader.fields(raw, _numbers(draws), groups) if isinstance(self._loader, LeafLoader) else None


def _numbers(draws: Draws) -> Numbers:
    return draws.leaf.tolist(), draws.child.tolist(), draws.index.tolist(), draws.epoch.tolist()


def _loading_key(spec: LeafSpec) -> Hashable:
    """Equal for leaves of the same `Kind`; None: no other leaf is of its kind."""
    source = spec.leaf.source
    if spec.leaf.loader is not None or not isinstance(source, ReadInGroups):
        return None
    read_key = source._read_key()
    if read_key is None:
        return None
    leaf = cast("ResolvedLeaf", spec.leaf)
    fields = None if leaf.field_map is None else tuple(leaf.field_map.fields.items())
    hooks = [(_which(hook.function), dataclasses.replace(hook, function=_nothing)) for hook in spec.hooks]
    if spec.cook is not None:
        hooks.append((_which(spec.cook.function), dataclasses.replace(spec.cook, function=_nothing)))
    samples = leaf.sample_type, fields, _which(leaf.load), id(leaf.decoder)
    return read_key, *samples, spec.cook is None, *hooks, spec.failure_tolerance


def _nothing(value: Any) -> Any:
    """Replaces a function that is compared separately."""
    return value


def _which(function: Any) -> Hashable:
    """Equal for the same function only. Functions that the user declares equal may behave differently."""
    if isinstance(function, MethodType):
        return id(function.__self__), id(function.__func__)
    if isinstance(function, Mapping):  # additional arguments of a cooker
        return tuple((name, _which(value)) for name, value in cast("Mapping[str, Any]", function).items())
    made = getattr(type(function), "__dataclass_params__", None)
    if made is not None and made.frozen and type(function).__module__.startswith(_OURS):
        # Made for each leaf, around values that may be the same.
        return type(function), *(_which(getattr(function, field.name)) for field in dataclasses.fields(function))
    return id(function)


class ItemMaker(Protocol):
    """Makes items of several samples each."""

    def make(
        self, chunk: Chunk, items: Items, samples: list[Any], restore_keys: list[tuple[Any, ...]], clock: Clock
    ) -> tuple[list[Any], list[tuple[Any, ...]], int]:
        """The items of a chunk, their restore keys, and the number of incomplete ones; `clock` measures hooks."""
        ...


class PureStage:
    """Reads and encodes chunks. Thread-safe: several threads may encode different chunks at once.

    Args:
        hook_lock: Held around hooks that must not run at the same time as others, including those of the batch stage.

    Attributes:
        timed: Whether encoded chunks include their measured work.
    """

    def __init__(self, spec: StreamSpec, hook_lock: threading.RLock | None = None) -> None:
        extension(KEEP_FREED_MEMORY)()
        self._spec = spec
        self.timed = spec.timed
        self.hook_lock = hook_lock or threading.RLock()
        self.sources = Sources(leaf.leaf.source for leaf in spec.leaves)
        remote = (source.remote_files for source in self.sources if isinstance(source, SelectedSource | RemoteSource))
        self._remote_files = next(filter(None, remote), ())
        leaves_by_key: dict[Hashable, dict[int, LeafSpec]] = {}
        for number, leaf in enumerate(spec.leaves):
            key = _loading_key(leaf)
            leaves_by_key.setdefault(number if key is None else key, {})[number] = leaf
        self._kinds = [Kind(leaves) for leaves in leaves_by_key.values()]
        self._kind_of = np.zeros(len(spec.leaves), np.int32)
        for kind, leaves in enumerate(leaves_by_key.values()):
            self._kind_of[[*leaves]] = kind
        self._maker: ItemMaker | None = extension(ITEM_MAKER)(spec.makers, self.hook_lock) if spec.makers else None
        self._column_batches: ColumnBatches | None = extension(COLUMN_BATCHES)(spec)
        self._warned: set[str] = set()

    def run(self, chunk: Chunk) -> Encoded:
        """Read and encode one chunk.

        Raises ReadError if bytes could not be read, and FatalSampleError if a hook raised an error of `FATAL`.
        """
        items, draws = chunk.draws.items, chunk.draws.members
        owner = None if items is None else items.owner()
        outcomes, restore_keys, drops = [None] * len(draws), [()] * len(draws), 0
        clock = Clock(runs=self.timed)
        # A chunk makes many objects, and all of them stay: the collector would inspect them again and again.
        with paused_collection(), using_cache(self._spec.cache_pool):
            parts = self._read(draws)
            clock.lap("storage", "read", len(draws))
            hooks_s = 0.0
            for kind, places, own, raw in parts:
                single = len(places) == len(draws)
                if single and self._column_batches is not None and chunk.numbers is not None:
                    encoded = self._column_batches(chunk, partial(kind.fields, raw, own, chunk.groups), clock)
                    if encoded is not None:
                        return encoded
                batch_of = chunk.batches_of(places if owner is None else owner[places])
                flow = kind.load(raw, own, chunk.groups if single and items is None else (), batch_of)
                clock.lap("work", "decode", len(own))
                hooks_s -= time.perf_counter()
                for hook in kind.hooks:
                    flow = self._apply(flow, hook, clock)
                hooks_s += time.perf_counter()
                drops += len(flow.dropped)
                if single:
                    outcomes, restore_keys = flow.outcomes(), flow.restore_keys
                    break
                for place, outcome, key in zip(places.tolist(), flow.outcomes(), flow.restore_keys, strict=True):
                    outcomes[place], restore_keys[place] = outcome, key
            if items is not None and self._maker is not None:
                outcomes, restore_keys, drops = self._maker.make(chunk, items, outcomes, restore_keys, clock)
                clock.spans += clock.hook_spans()
        held = max(chunk.size_bytes, approximate_bytes(outcomes[0]) * len(outcomes) if outcomes else 0)
        return Encoded(
            outcomes=outcomes,
            restore_keys=restore_keys,
            drops=drops,
            size_bytes=held,
            work=clock.work(),
            hooks_s=hooks_s,
        )

    def read(self, draws: Draws) -> None:
        """Read a chunk and discard it, to measure reading alone. Raises ReadError."""
        self._read(draws)

    def _read(self, draws: Draws) -> list[tuple[Kind, npt.NDArray[np.intp], Draws, RawBatch]]:
        """Each drawn kind of leaves, the indices of its draws, these draws, and the bytes."""
        if len(self._kinds) == 1:
            return [(self._kinds[0], np.arange(len(draws)), draws, self._kinds[0].read(draws))]
        parts = [(self._kinds[kind], places, own) for kind, places, own in draws.by(self._kind_of[draws.leaf])]
        found = side_by_side(lambda part: part[0].read(part[2]), parts, self._remote_files)
        return [(*part, raw) for part, raw in zip(parts, found, strict=True)]

    def _apply(self, flow: Flow, hook: HookSpec, clock: Clock) -> Flow:
        """Call a hook on every sample. Returns the samples.

        A hook on lists that raises may have changed any of them. They are then made again and go through all hooks so
        far one by one, so that only the samples that it fails on are dropped.

        Raises FatalSampleError if the hook raised an error of `FATAL`, and ReadError if reading again failed.
        """
        error = self._call(flow, hook, clock)
        hooks = [*flow.applied, hook]
        if error is not None:
            assert flow.reload is not None
            flow = flow.reload()
            clock.lap("storage", "read", len(flow.values))
            for each in hooks:
                self._call(flow, each, clock, one_by_one=True)
            if all(dropped.hook != hook.name for dropped in flow.dropped.values()) and hook.name not in self._warned:
                self._warned.add(hook.name)
                _logger.warning(
                    "%s raised %s (%s) on a list of samples, but on none of them alone; such lists are made again one "
                    "by one, which is slow, and the result for a sample must not depend on the others in its list",
                    *(hook.name, type(error).__name__, error),
                )
        flow.applied = hooks
        return flow

    def _call(self, flow: Flow, hook: HookSpec, clock: Clock, *, one_by_one: bool = False) -> Exception | None:
        """Call a hook and measure its time, without waiting for the lock."""
        samples = len(flow.values)
        if hook.concurrent:
            error = flow.apply(hook, one_by_one=one_by_one)
            clock.lap("work", hook.name, samples)
            return error
        with self.hook_lock:
            clock.start()
            error = flow.apply(hook, one_by_one=one_by_one)
            clock.lap("work", hook.name, samples, "one worker")
        return error

    def close(self) -> None:
        """Release file handles."""
        for source in self.sources:
            source.close()
