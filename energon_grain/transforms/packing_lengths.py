"""The lengths that packers work on: read from samples, checked, and put in order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

import numpy as np
import numpy.typing as npt

from energon_grain.errors import ConfigError

T = TypeVar("T")


def read_lengths(
    samples: Sequence[T], length: Callable[[T], int] | Sequence[int] | npt.NDArray[np.integer[Any]]
) -> npt.NDArray[np.int64]:  # (n,)
    """The length of every sample, from a function of a sample or from numbers in the order of the samples.

    Raises:
        ConfigError: There are more or fewer lengths than samples, or one is negative or no integer.
    """
    given = list(map(length, samples)) if callable(length) else length
    lengths = np.asarray(given)
    if lengths.shape != (len(samples),):
        raise ConfigError(
            f"packing: `length` has the shape {lengths.shape} for {len(samples):,} samples. It is one integer a sample,"
            " or a function that gives it, such as `lambda sample: len(sample.tokens)`"
        )
    if not lengths.size:
        return np.zeros(0, np.int64)
    if lengths.dtype.kind not in "iu":
        kind = type(cast("Sequence[object]", given)[0]).__name__
        raise ConfigError(f"packing: lengths are whole numbers of tokens, these are of type {kind} ({lengths.dtype})")
    if lengths.min() < 0:
        at = int(lengths.argmin())
        raise ConfigError(
            f"packing: sample {at}{named(samples[at])} has the length {lengths[at]}; no length is negative"
        )
    return lengths.astype(np.int64, copy=False)


def named(sample: object) -> str:
    """The key of a sample as a message gives it; empty where it has none."""
    key = cast("object", getattr(sample, "__key__", None))
    return "" if key is None else f" (key {key!r})"


def check_lengths(lengths: npt.NDArray[np.int64], capacity: int, max_samples: int | None) -> None:
    """What every packer demands of its arguments.

    Raises:
        ConfigError: `capacity` or `max_samples` is less than 1, or a length is negative or over the capacity.
    """
    if capacity < 1:
        raise ConfigError(f"packing: capacity is {capacity}; a pack holds at least 1 token")
    if max_samples is not None and max_samples < 1:
        raise ConfigError(f"packing: max_samples is {max_samples}; a pack holds at least 1 sample")
    if lengths.size and not 0 <= lengths.min() <= lengths.max() <= capacity:
        raise ConfigError(
            f"packing: lengths lie between {lengths.min()} and {lengths.max():,}, a pack holds 0 to {capacity:,} tokens"
        )


def ascending(lengths: npt.NDArray[np.int64]) -> tuple[list[int], list[int]]:
    """Indices by ascending length, and the lengths in that order; of equal ones the first comes *last*.

    So taking from the end takes the longest, and of equally long ones the one that came first:
    `[5, 3, 5]` gives `([1, 2, 0], [3, 5, 5])`.
    """
    order = np.argsort(-lengths, kind="stable")[::-1]
    return order.tolist(), lengths[order].tolist()


def in_order_of_arrival(packs: list[list[int]]) -> list[list[int]]:
    """Indices ascending inside each pack, packs by their first index: neither tells of lengths any more."""
    return sorted(map(sorted, packs))
