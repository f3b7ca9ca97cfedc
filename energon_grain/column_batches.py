# SPDX-License-Identifier: Apache-2.0
"""Batches made from columns, without samples.

If no hook sees the samples of a leaf and batches are made by a default hook, samples would be made from columns only to
be turned into columns again. For texts of 1 KB this is half of the work. Batches are equal to those of samples.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from energon_grain.samples.columns import column_constructor, is_plain
from energon_grain.samples.registration import register_value
from energon_grain.samples.sample import METADATA_FIELDS
from energon_grain.stream.batches import with_restore_key, with_validity
from energon_grain.stream.chunks import BatchNumbers, Chunk, Encoded, MadeBatch
from energon_grain.stream.clock import Clock
from energon_grain.stream.memory import approximate_bytes
from energon_grain.stream.spec import StreamSpec
from energon_grain.stream.stage import Fields
from energon_grain.task_encoder import DefaultTaskEncoder, TaskEncoder
from energon_grain.transforms.batching import PLAIN_TYPES, generic_batch


def column_batches(spec: StreamSpec) -> ColumnBatches | None:
    """The maker of batches of a stream; None if any hook needs to see samples. See `stream.extensions`."""
    batch = spec.batch
    if batch is None or batch.encode or spec.makers or not _batches_by_field(batch.hook.function):
        return None
    if any(leaf.hooks or leaf.cook is not None for leaf in spec.leaves):
        return None
    plain = (leaf.leaf.sample_type for leaf in spec.leaves)
    if not any(sample_type is not None and _is_batched_by_field(sample_type) for sample_type in plain):
        return None
    return ColumnBatches(batch.hook.name)


def _batches_by_field(function: Any) -> bool:
    """Whether a batch hook is a default, which makes a batch of the type of its samples."""
    own = getattr(function, "__func__", function)
    if own is DefaultTaskEncoder.batch:
        return getattr(getattr(function, "__self__", None), "_raw_batch_type", function) is None
    return own is TaskEncoder.batch or own is generic_batch


class ColumnBatches:
    """Makes batches of columns.

    Args:
        hook: Name of the batch hook, for statistics.
    """

    def __init__(self, hook: str) -> None:
        self._hook = hook

    def __call__(self, chunk: Chunk, fields: Callable[[], Fields | None], clock: Clock) -> Encoded | None:
        """The chunk with batches, as if its samples were made and batched; None: they must be.

        Samples are made only where a batch is not completely in the chunk.
        """
        numbers, batches = chunk.numbers, [*chunk.whole_batches()]
        found = fields() if numbers is not None and batches else None
        if numbers is None or found is None or not _is_batched_by_field(found[0]):
            return None
        (sample_type, columns), count = found, len(chunk.draws)
        columns = {**columns, **_defaults(sample_type, columns, count)}
        payload = sum(approximate_bytes(values[0]) for name, values in columns.items() if name[:2] != "__")
        clock.lap("work", "decode", count)
        outcomes: list[Any] = [None] * count
        restore_keys: list[tuple[Any, ...]] = [()] * count
        for group in chunk.groups:
            own = {name: values[group.start : group.stop] for name, values in columns.items()}
            if len(group) != chunk.batch_size:
                outcomes[group.start : group.stop] = column_constructor(sample_type)(len(group), own)
                restore_keys[group.start : group.stop] = own["__restore_key__"]
                continue
            try:
                batch = _batch(sample_type, own, numbers, chunk.first + group.start)
            except Exception:
                return None  # the hook raises the error again, where it is handled
            outcomes[group.start] = MadeBatch(batch=batch, samples=len(group))
        clock.lap("work", self._hook, len(batches) * chunk.batch_size)
        held = max(chunk.size_bytes, payload * count)
        return Encoded(
            outcomes=outcomes, restore_keys=restore_keys, drops=0, size_bytes=held, made=True, work=clock.work()
        )


@lru_cache(maxsize=1024)
def _is_batched_by_field(sample_type: type[Any]) -> bool:
    return is_plain(sample_type) and not hasattr(sample_type, "from_samples")


def _defaults(sample_type: type[Any], given: Mapping[str, list[Any]], count: int) -> dict[str, list[Any]]:
    """Columns of the fields that get their default. A mask belongs to batches, so samples have none."""
    found: dict[str, list[Any]] = {}
    for field in dataclasses.fields(sample_type):
        if field.name in given or field.name == "__valid__":
            continue
        if field.default_factory is dataclasses.MISSING:
            found[field.name] = [field.default] * count
        else:
            found[field.name] = [field.default_factory() for _ in range(count)]
    return found


def _batch(sample_type: type[Any], columns: dict[str, Any], numbers: BatchNumbers, first: int) -> Any:
    """The batch that begins at a local position. Raises what `generic_batch` raises."""
    restore_keys = columns["__restore_key__"]
    for name, values in columns.items():
        if name not in METADATA_FIELDS and type(values[0]) not in PLAIN_TYPES:
            columns[name] = generic_batch(values, where=name)
    batch = sample_type(**columns)
    register_value(batch)
    item, step = numbers.of(first)
    padding = None
    if numbers.pads:
        padding = ()
        batch = with_validity(batch, np.ones(len(restore_keys), np.bool_))
    return with_restore_key(batch, ("batch", numbers.pass_number, step, item, padding, *restore_keys))
