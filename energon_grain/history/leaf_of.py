# SPDX-License-Identifier: Apache-2.0
"""The dataset of each sample of a batch, for losses by dataset: a number per row, and the names of the numbers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import fields
from pathlib import PurePosixPath
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from energon_grain.errors import StateError, public
from energon_grain.stream.spec import StreamSpec
from energon_grain.stream.state import Position, positions
from energon_grain.transforms.batching import kind_of

Int32Array = npt.NDArray[np.int32]
SEVERAL = -1
"""In place of a number: an item of samples of several datasets."""
_LABELS = (
    re.compile(r"name/(?P<name>.*)/\d+", re.DOTALL),
    re.compile(r"path/(?P<label>.*?)/[^/]*/[^/]*(?:where .*)?/\d+", re.DOTALL),
    re.compile(r"join/(?P<label>.*?) [^/ ]*/.*", re.DOTALL),
)
"""Forms of the key of a leaf (`identity` of its node, and an occurrence number), joined by slashes."""


@public
def leaf_of(value: Any) -> Int32Array:
    """Return the number of the dataset that each sample comes from, an index into `loader.leaf_names`.

    Numbers are stable over a run: an amendment appends datasets and never renumbers any. For hooks, to make the number
    a part of the batch:

        def batch(self, samples):
            return {"tokens": batch_stack([sample.tokens for sample in samples]), "leaf": leaf_of(samples)}

    Args:
        value: A list of samples, a sample, a batch, or the `__restore_key__` of one of these.

    Returns:
        Int32, one entry per sample: (n,) for a list, (batch,) for a batch, () for a sample. -1 for a planned pack of
        samples of several datasets; in `pack_selected_samples`, `leaf_of(samples)` has one entry per segment.

    Raises:
        StateError: The value has no `__restore_key__`, or it is an item of a filter, group or pack, whose datasets only
            its loader knows: use `loader.leaf_of`, or call this function in `encode_sample` or
            `pack_selected_samples`, where each sample still has its own key.
        TypeError: This is called inside `jax.jit`.
    """
    return _Leaves(None).of(value)


def leaf_in(record: Any) -> Any:
    """The same for a sample or batch, as an array like those in its fields: the attribute `leaf`.

    Raises AttributeError in place of StateError.
    """
    try:
        numbers = leaf_of(record)
    except StateError as error:
        raise AttributeError(f"{type(record).__name__}.leaf: {error}") from None
    for field in fields(record):
        value = getattr(record, field.name, None)
        kind = kind_of(type(value))
        if kind is not None and kind.like is not None:
            return kind.like(numbers, value)
    return numbers


def leaf_of_items(spec: StreamSpec, value: Any) -> Int32Array:
    """The same for everything that the stream of a specification delivers, including items of lanes."""
    return _Leaves(spec).of(value)


class _Leaves:
    """Finds the leaves of restore keys; `spec`: to find those of items of lanes, or None."""

    def __init__(self, spec: StreamSpec | None) -> None:
        self._spec = spec

    def of(self, value: Any) -> Int32Array:
        key = _key_of(value)
        if key and key[0] == "batch":
            key = key[5:]
        if not key or not isinstance(key[0], str):
            keys = list(map(_key_of, key))
            numbers = [each[1] for each in keys if each[0] == "sample"]
            return np.array(numbers if len(numbers) == len(keys) else list(map(self._number, keys)), np.int32)
        return np.array(self._number(key), np.int32)

    def _number(self, key: Sequence[Any]) -> int:
        kind, *rest = key
        if kind == "sample":
            return int(rest[0])
        if kind == "pack":
            return _only(leaf for leaf, _ in rest[2])
        if kind == "batch":
            return _only(map(self._number, rest[4:]))
        if kind != "item":
            raise StateError(f"leaf_of: {kind!r} is no kind of restore key: expected a `__restore_key__` of a loader")
        program = None if self._spec is None else self._spec.program
        if program is None:
            raise StateError(
                "leaf_of: an item of a filter, group or pack; only its loader knows the datasets: use "
                "loader.leaf_of(batch), or leaf_of in encode_sample or pack_selected_samples"
            )
        return _only(self._leaf(place) for place in positions(program.root.reference_form, _tuples(rest[2])))

    def _leaf(self, position: Position) -> int:
        assert self._spec is not None
        assert self._spec.program is not None
        feed = self._spec.program.feeds[position[0]]
        return int(feed.draw(np.array([position[1]])).leaf[0])


def _only(numbers: Iterable[int]) -> int:
    """The number that all are, or `SEVERAL`."""
    found = set(numbers)
    return found.pop() if len(found) == 1 else SEVERAL


def _key_of(value: Any) -> Sequence[Any]:
    """The restore key of a sample or batch; a list, or a key itself, unchanged."""
    if isinstance(value, dict):
        value = cast("dict[str, Any]", value).get("__restore_key__")
    elif type(value) is not tuple and type(value) is not list:
        value = getattr(value, "__restore_key__", None)
    if isinstance(value, list | tuple):
        return cast("Sequence[Any]", value)
    if value is None:
        raise StateError(
            "leaf_of: the value has no `__restore_key__`: call leaf_of(samples) in the hook `batch`, and return the "
            "result as a part of the batch"
        )
    raise TypeError(
        "leaf is not an array of the batch, so a function under jax.jit cannot read it: pass batch.leaf as an "
        "argument, or return leaf_of(samples) as a part of the batch in the hook `batch`"
    )


def _tuples(value: Any) -> Any:
    """Lists, as in JSON, as tuples."""
    return tuple(map(_tuples, cast("Sequence[Any]", value))) if isinstance(value, list | tuple) else value


def leaf_names(spec: StreamSpec) -> list[str]:
    """The name of each leaf: its `name`, or the last part of its path, if no earlier leaf has that; otherwise more.

    An amendment appends leaves, so the names of the others stay.
    """
    names: dict[str, None] = {}
    for leaf in spec.leaves:
        key = leaf.key[1] if leaf.key[0] == "removed" else "/".join(leaf.key)
        names[next(name for name in (*_candidates(key), key) if name not in names)] = None
    return list(names)


def _candidates(key: str) -> tuple[str, ...]:
    """Names for a leaf, from short to long."""
    for form in _LABELS:
        found = form.fullmatch(key)
        if found is None:
            continue
        given = found.groupdict()
        return (given["name"],) if "name" in given else (PurePosixPath(given["label"]).name, given["label"])
    return ()
