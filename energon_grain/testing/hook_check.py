# SPDX-License-Identifier: Apache-2.0
"""Checks that the hooks of a task encoder process each sample independently of others."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from energon_grain.datasets.dataset import SavableDataset
from energon_grain.stream.chunks import Chunk
from energon_grain.stream.drops import Dropped
from energon_grain.stream.index_map import Draws
from energon_grain.stream.spec import StreamSpec
from energon_grain.stream.stage import PureStage
from energon_grain.transforms.batching import kind_of


def check_hooks(dataset: SavableDataset, *, samples: int = 64) -> None:
    """Check that hooks process each sample independently: encode samples together and one by one, and compare.

    Covers decoding, cooking, `encode_sample` and the similar hooks, filters, and functions of `MapDataset` below packs,
    groups and batches. Finds hooks that pad to the longest sample of a list, count their calls, or use random numbers
    other than the sample's. Values that compare by identity count as equal.

    Args:
        dataset: Result of `get_train_dataset`.
        samples: Number of samples, from the beginning of the stream; of each part of a mixture that packs or groups.

    Raises:
        AssertionError: A sample differs, or all samples are dropped, so nothing was checked.
    """
    spec = dataset.compiled()
    batch_size = 0 if spec.program is not None or spec.batch is None else spec.batch.size

    def encode(draws: Draws, first: int) -> list[Any]:
        chunk = Chunk(number=0, draws=draws, size_bytes=0, first=first, batch_size=batch_size)
        return stage.run(chunk).outcomes

    dropped: Dropped | None = None
    checked = 0
    with closing(PureStage(spec)) as stage:
        for draws in _draws(spec, samples):
            for place, together in enumerate(encode(draws, 0)):
                one = draws[place : place + 1]
                (alone,) = encode(one, place)
                differs = difference(together, alone, "")
                if differs is not None:
                    leaf, index = spec.leaves[int(one.leaf[0])], int(one.index[0])
                    raise AssertionError(
                        f"sample {index} of {'/'.join(leaf.key)} differs between a call with {len(draws)} samples and "
                        f"a call with one: {differs}. Hooks must depend only on their sample and its own random numbers"
                    )
                if isinstance(together, Dropped):
                    dropped = together
                else:
                    checked += 1
    if not checked:
        reason = "there are no samples" if dropped is None else f"{dropped.hook} dropped all: {dropped.error!r}"
        raise AssertionError(f"nothing was checked: {reason}")


def _draws(spec: StreamSpec, samples: int) -> Iterator[Draws]:
    """Yield the first samples, for each feed if lanes have a program."""
    if spec.program is None:
        length = spec.length(0)
        yield spec.order.draw(np.arange(samples if length is None else min(samples, length)), 0)
        return
    for feed in spec.program.feeds:
        length = feed.order.length(0)
        yield feed.draw(np.arange(samples if length is None else min(samples, length)))


def difference(one: Any, other: Any, place: str) -> str | None:
    """Return the first difference between two values; None if they are equal."""
    if type(one) is not type(other):
        return f"{place or 'it'} is a {type(one).__name__}, expected a {type(other).__name__}"
    if isinstance(one, Dropped):
        same = (one.hook, type(one.error)) == (other.hook, type(other.error))
        return None if same else f"it is dropped with {one.error!r}, expected {other.error!r}"
    if kind_of(type(one)) is not None:
        return _array_difference(np.asarray(one), np.asarray(other), place or "it")
    parts = _parts(one), _parts(other)
    if parts[0] is not None and parts[1] is not None:
        if parts[0].keys() != parts[1].keys():
            return f"{place or 'it'} has {[*parts[0]]}, expected {[*parts[1]]}"
        found = (difference(value, parts[1][name], f"{place}{name}") for name, value in parts[0].items())
        return next((each for each in found if each is not None), None)
    if hasattr(one, "tobytes"):  # a Pillow image
        one, other = one.tobytes(), other.tobytes()
    incomparable = type(one).__eq__ is object.__eq__
    return None if incomparable or one == other or one != one else f"{place or 'it'} is {one!r}, expected {other!r}"


def _array_difference(one: npt.NDArray[Any], other: npt.NDArray[Any], place: str) -> str | None:
    if (one.dtype, one.shape) != (other.dtype, other.shape):
        return f"{place} is {one.dtype} {one.shape}, expected {other.dtype} {other.shape}"
    same = np.array_equal(one, other, equal_nan=one.dtype.kind in "fc")
    return None if same else f"{place} has other numbers"


def _parts(value: Any) -> dict[str, Any] | None:
    """Return the parts of a value by their notation; None if it has no parts."""
    if dataclasses.is_dataclass(value):
        names = [field.name for field in dataclasses.fields(value) if field.name != "__sources__"]
        return {f".{name}": getattr(value, name) for name in names}
    if isinstance(value, Mapping):
        entries = cast("Mapping[Any, Any]", value).items()
        return {f"[{name!r}]": entry for name, entry in entries if name != "__sources__"}
    if isinstance(value, list | tuple):
        return {f"[{number}]": entry for number, entry in enumerate(cast("list[Any]", value))}
    return None
