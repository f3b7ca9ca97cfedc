"""From raw parts to sample objects: decode each column, then make all objects at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import repeat
from typing import Any, cast

from energon_grain.datasets.leaf import ResolvedLeaf
from energon_grain.errors import DecodingError
from energon_grain.samples.columns import column_constructor
from energon_grain.samples.crude import CrudeSample
from energon_grain.sources.provenance import LazySources
from energon_grain.sources.raw import PartValue, RawBatch
from energon_grain.storage.given_up import while_wanted
from energon_grain.stream.flow import Flow
from energon_grain.stream.spec import HookSpec

Decode = Callable[[Any], Any]


class LeafLoader:
    """Makes the samples of one leaf.

    Args:
        number: Of the leaf, for restore keys.
        leaf: Its source and configuration.
        leaf_key: 64-bit key of its random numbers.
        failure_tolerance: Samples in a row that may fail to decode; 0: any number.
    """

    def __init__(self, number: int, leaf: ResolvedLeaf, leaf_key: int, failure_tolerance: int) -> None:
        self._number = number
        self._leaf = leaf
        self._leaf_key = leaf_key
        self._failure_tolerance = failure_tolerance
        self._decoders: dict[str, Decode | None] = {}
        self._construct = None
        if leaf.sample_type is not None and leaf.field_map is not None:
            self._construct = column_constructor(leaf.sample_type)
        self._load = None
        if leaf.load is not None:
            self._load = HookSpec(
                name="load_sample",
                function=leaf.load,
                failure_tolerance=failure_tolerance,
                restore_seeds=False,
                concurrent=True,
            )

    def load(
        self,
        raw: RawBatch,
        draws: tuple[list[int], list[int], list[int]],
        groups: tuple[range, ...] = (),
        restore_keys: list[tuple[Any, ...]] | None = None,
    ) -> Flow:
        """Decode and construct. What does not decode, or lacks a part that its type needs, is dropped.

        Args:
            raw: What was read.
            draws: (child positions, indices, epochs) of each sample.
            groups: Places that will probably be batched together; see `SampleDecoder.decode_column`.
            restore_keys: One a sample, where they have been made.
        """
        flow = Flow(
            leaf=self._number,
            leaf_key=self._leaf_key,
            raw=raw,
            restore_keys=restore_keys or list(zip(repeat("sample"), repeat(self._number), draws[0], strict=False)),
            draws=draws,
            values=[],
            places=list(range(len(raw))),
            dropped={},
            sources=self._sources_of(raw),
        )
        columns = self._decoded(flow, groups)
        flow.values = self._crude(flow, columns) if self._construct is None else self._typed(flow, columns)
        if self._load is not None:
            flow.apply(self._load)
        return flow

    def _sources_of(self, raw: RawBatch) -> Callable[[int], LazySources]:
        return lambda place: LazySources(self._leaf.source, int(raw.indices[place]))

    def _decoder(self, part: str) -> Decode | None:
        if part not in self._decoders:
            decoder = self._leaf.decoder
            self._decoders[part] = None if decoder is None else decoder.decoder_for(part)
        return self._decoders[part]

    def _decoded(self, flow: Flow, groups: tuple[range, ...]) -> dict[str, list[Any]]:
        """Every column, decoded. Samples that fail are dropped from the flow; their entries are None."""
        columns: dict[str, list[Any]] = {}
        for part, column in flow.raw.columns.items():
            decode = self._decoder(part)
            types = set(map(type, column))
            if decode is None or bytes not in types:
                columns[part] = list(column)
                continue
            values = list(column)
            with while_wanted(values):
                with suppress(Exception):
                    if types == {bytes}:
                        columns[part] = self._decoded_whole(part, cast("list[bytes]", values), groups)
                    else:
                        columns[part] = [decode(data) if type(data) is bytes else data for data in values]
                    continue
                columns[part] = self._decoded_one_by_one(flow, part, decode, values)
        if flow.dropped:
            flow.places = [place for place in flow.places if place not in flow.dropped]
        return columns

    def _decoded_whole(self, part: str, column: list[bytes], groups: tuple[range, ...]) -> list[Any]:
        assert self._leaf.decoder is not None
        return self._leaf.decoder.decode_column(part, column, groups)

    def _decoded_one_by_one(
        self, flow: Flow, part: str, decode: Decode, column: Sequence[PartValue | None]
    ) -> list[Any]:
        values: list[Any] = []
        for place, data in enumerate(column):
            try:
                values.append(decode(data) if type(data) is bytes else data)
            except Exception as error:
                values.append(None)
                if place not in flow.dropped:
                    self._drop(flow, place, self._placed(flow, place, error) if type(error) is DecodingError else error)
        return values

    def _placed(self, flow: Flow, place: int, error: Exception) -> DecodingError:
        """An error of the data, with where the sample lies."""
        placed = DecodingError(f"{self._leaf.source.place_of(int(flow.raw.indices[place]))}: {error}")
        placed.__cause__ = error
        return placed

    def _drop(self, flow: Flow, place: int, error: Exception) -> None:
        sample = CrudeSample(
            {"__key__": flow.raw.keys[place], "__shard__": flow.raw.shards[place], **flow.raw[place].parts}
        )
        flow.drop(place, "decode", self._failure_tolerance, error, sample)

    def _metadata(self, flow: Flow) -> dict[str, Any]:
        """The base fields, one value a sample."""
        indices = flow.raw.indices.tolist()
        tags = self._leaf.subflavors
        return {
            "__key__": flow.raw.keys,
            "__restore_key__": flow.restore_keys,
            "__subflavors__": [tags.copy() for _ in indices],
            "__sources__": list(map(LazySources, repeat(self._leaf.source), indices)),
        }

    def _crude(self, flow: Flow, columns: dict[str, list[Any]]) -> list[Any]:
        raw = flow.raw
        fields = {**self._metadata(flow), "__shard__": raw.shards, **columns}
        names = tuple(fields)
        samples = list(map(CrudeSample, map(zip, repeat(names), zip(*fields.values(), strict=True))))
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
        if simple is not None and not flow.dropped and all(_has(flow.raw, part) for part in simple.values()):
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


def _has(raw: RawBatch, part: str) -> bool:
    """Whether every sample has the part."""
    return part in raw.columns and raw.is_complete(part)
