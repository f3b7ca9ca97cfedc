"""Hooks of all kinds, for random dataset graphs, and what they make."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from energon_grain import (
    Cooker,
    Sample,
    SampleDecoder,
    SkipSample,
    TaskEncoder,
    TextSample,
    basic_sample_keys,
    current_draw,
    stateless,
)


@dataclass(kw_only=True)
class Piece(Sample):
    """What hooks make: of one sample or of several, with the random numbers that they drew."""

    numbers: tuple[float, ...] = ()
    members: tuple[Any, ...] = ()


def tell(value: Any) -> Any:
    """Everything that decides whether two samples, packs or batches are the same."""
    if isinstance(value, Piece):
        valid = [True] * len(value.members) if value.__valid__ is None else value.__valid__.tolist()
        members = tuple((tell(member), real) for member, real in zip(value.members, valid, strict=True))
        return value.__key__, value.numbers, members
    return value.__key__, value.text


def items_of(batch: Any, batched: bool) -> list[Any]:
    """What a step delivers, padding left out."""
    if not batched:
        return [tell(batch)]
    return [member for member, real in tell(batch)[2] if real]


def keys_of(value: Any, batched: bool = False) -> list[str]:
    """Keys of all samples that a value is made of; `batched`: but of padding."""
    if not isinstance(value, Piece) or not value.members:
        return [value.__key__]
    valid = [True] * len(value.members) if not batched or value.__valid__ is None else value.__valid__.tolist()
    return [key for member, real in zip(value.members, valid, strict=True) if real for key in keys_of(member)]


def number_of(value: Any) -> int:
    """A number of the content alone."""
    return zlib.crc32(repr(tell(value)).encode())


def noted(value: Any, *numbers: float) -> Piece:
    """The value with further numbers."""
    old = value if isinstance(value, Piece) else None
    return Piece(
        __key__=value.__key__,
        __restore_key__=value.__restore_key__,
        numbers=(*(old.numbers if old else ()), *numbers),
        members=old.members if old else (),
    )


def together(values: list[Any]) -> Piece:
    """One piece of several."""
    numbers = (float(current_draw().rng.random()),)
    return Piece(__key__=values[0].__key__, __restore_key__=("made",), numbers=numbers, members=tuple(values))


def draws_number(value: Any) -> Any:
    return noted(value, float(current_draw().rng.random()), current_draw().position)


@stateless(restore_seeds=True)
def uses_globals(value: Any) -> Any:
    return noted(value, random.random(), float(np.random.random()))  # noqa: NPY002


def fails_at_random(value: Any) -> Any:
    if current_draw().rng.random() < 0.15:
        raise ValueError("at random")
    return noted(value, 1)


def skips_some(value: Any) -> Any:
    if number_of(value) % 6 == 0:
        raise SkipSample
    return value


@stateless
def cook_text(sample: Any) -> TextSample:
    """What tars without a `dataset.yaml` hold."""
    return TextSample(**basic_sample_keys(sample), text=sample["txt"])


class Encoder(TaskEncoder):
    """Hooks as methods."""

    __default_failure_tolerance__ = 0
    decoder = SampleDecoder()
    cookers = (Cooker(cook_text),)

    def with_rng(self, value: Any) -> Any:
        return noted(value, float(self.rng.random()))


ENCODER = Encoder()
MAPS: dict[str, Callable[[Any], Any]] = {
    "number": draws_number,
    "globals": uses_globals,
    "fails": fails_at_random,
    "skips": skips_some,
    "method": ENCODER.with_rng,
}


def keeps_some(value: Any) -> bool:
    return number_of(value) % 4 != 0


def keeps_at_random(value: Any) -> bool:
    return bool(current_draw().rng.random() < 0.8)


FILTERS: dict[str, Callable[[Any], bool]] = {"content": keeps_some, "random": keeps_at_random}


def several(value: Any) -> Iterator[Any]:
    for _ in range(number_of(value) % 4):
        yield noted(value, float(current_draw().rng.random()))


def breaks_off(value: Any) -> Iterator[Any]:
    yield noted(value, float(current_draw().rng.random()))
    if number_of(value) % 3 == 0:
        raise ValueError("broke off")
    yield noted(value, float(current_draw().rng.random()))


@stateless(restore_seeds=True)
def several_with_globals(value: Any) -> Iterator[Any]:
    yield noted(value, random.random())
    yield noted(value, random.random(), float(np.random.random()))  # noqa: NPY002


GENERATORS: dict[str, Callable[[Any], Iterator[Any]]] = {
    "several": several,
    "breaks off": breaks_off,
    "globals": several_with_globals,
}


def pairs(values: Iterator[Any]) -> Iterator[Any]:
    waiting: list[Any] = []
    for value in values:
        waiting.append(value)
        if len(waiting) == 2:
            yield together(waiting)
            waiting = []
    if waiting:
        yield together(waiting)


def running_sum(values: Iterator[Any]) -> Iterator[Any]:
    total = 0.0
    for value in values:
        total += float(current_draw().rng.random())
        yield noted(value, total)
        if number_of(value) % 5 == 0:
            raise ValueError("gave up")


def last_two(values: Iterator[Any]) -> Iterator[Any]:
    yield from list(values)[-2:]


ITERATIONS: dict[str, Callable[[Iterator[Any]], Iterator[Any]]] = {"pairs": pairs, "sum": running_sum, "last": last_two}


def together_or_not(values: list[Any]) -> Any:
    if current_draw().rng.random() < 0.15:
        raise SkipSample
    return together(values)


def in_halves(values: list[Any]) -> Iterator[Any]:
    half = len(values) // 2
    if half:
        yield together(values[:half])
    yield together(values[half:])


MAKERS: dict[str, Callable[[list[Any]], Any]] = {"all": together, "or not": together_or_not, "halves": in_halves}


def parity(value: Any) -> tuple[int, None]:
    return number_of(value) % 2, None


def sized(value: Any) -> tuple[int, int]:
    if current_draw().rng.random() < 0.1:
        raise SkipSample
    kind = number_of(value) % 3
    return kind, kind + 1


def select_pairs(values: list[Any]) -> list[list[Any]]:
    ordered = sorted(values, key=number_of)
    return [ordered[i : i + 2] for i in range(0, len(ordered), 2)]


def select_some(values: list[Any]) -> list[list[Any]]:
    rng = current_draw().rng
    if rng.random() < 0.1:
        raise ValueError("no selection")
    places = rng.permutation(len(values))
    groups: list[list[Any]] = [[], [], []]
    for at, place in enumerate(places.tolist()):
        if at % 7 != 6:
            groups[int(rng.integers(3))].append(values[place])
    return groups


SELECTORS: dict[str, Callable[[list[Any]], list[list[Any]]]] = {"pairs": select_pairs, "some": select_some}


def batch_skipped_or_not(batch: Any) -> Any:
    if number_of(batch) % 4 == 0:
        raise SkipSample
    return batch


def valid_kept(batch: Any) -> Any:
    return replace(batch, numbers=(*batch.numbers, float(current_draw().rng.random())))


BATCH_HOOKS: dict[str, Callable[[Any], Any]] = {"number": valid_kept, "skips": batch_skipped_or_not}
