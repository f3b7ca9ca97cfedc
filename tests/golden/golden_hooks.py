"""Hooks of the golden configurations. Each notes the random numbers that it draws: digests tell of them."""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np

from energon_grain import (
    Sample,
    SkipSample,
    TextSample,
    basic_sample_keys,
    cooker,
    current_draw,
    greedy_knapsack,
    stateless,
)


@dataclass
class Noted(Sample):
    """A text with a random number, or several of them made into one."""

    text: str
    draw: Any


@dataclass
class Pair(Sample):
    """A row of the join."""

    text: str
    draw: Any

    @staticmethod
    def from_joined(left: TextSample, right: TextSample) -> Pair:
        return Pair.derive_from(left, text=f"{left.text}+{right.text}", draw=np.float64(0))


def joined_texts(first: TextSample, second: TextSample | None) -> TextSample:
    return TextSample.derive_from(first, text=f"{first.text}+{second.text if second else None}")


def number_of(text: str) -> int:
    return zlib.crc32(text.encode())


def noted(sample: Any, draw: float) -> Noted:
    return Noted.derive_from(sample, text=sample.text, draw=np.float64(draw))


def several(samples: list[Any]) -> Noted:
    """One sample of several; its number tells of its own draw and of theirs."""
    key = ",".join(sample.__key__ for sample in samples)
    text = "|".join(sample.text for sample in samples)
    draw = current_draw().rng.random() + sum(float(getattr(sample, "draw", 0)) for sample in samples)
    return Noted(__key__=key, __restore_key__=(), text=text, draw=np.float64(draw))


def note(sample: Any) -> Noted:
    return noted(sample, current_draw().rng.random())


def keeps_most(sample: Any) -> bool:
    return bool(current_draw().rng.random() < 0.8)


def keeps_some(sample: Any) -> bool:
    return number_of(sample.text) % 4 != 0


def pairs(samples: Iterator[Any]) -> Iterator[Noted]:
    for first in samples:
        second = next(samples, None)
        yield several([first] if second is None else [first, second])


def parts(sample: Any) -> Iterator[Noted]:
    for part in range(number_of(sample.text) % 4):
        yield Noted.derive_from(sample, text=f"{sample.text}/{part}", draw=np.float64(current_draw().rng.random()))


def by_length(sample: Any) -> tuple[int, None]:
    return len(sample.text) // 40, None


def by_length_sized(sample: Any) -> tuple[int, int]:
    kind = len(sample.text) // 40
    return kind, kind + 2


def select_by_size(samples: list[Any]) -> Any:
    return greedy_knapsack(samples, length=lambda sample: len(sample.text) + 1, capacity=140)


def select_and_keep(samples: list[Any]) -> Any:
    return greedy_knapsack(samples, length=lambda sample: len(sample.text) + 1, capacity=200, keep_rest=True)


def select_shuffled(samples: list[Any]) -> list[list[Any]]:
    order = current_draw().rng.permutation(len(samples))
    return [[samples[i] for i in order[start : start + 3]] for start in range(0, len(order), 3)]


def encoders(api: ModuleType) -> dict[str, type[Any]]:
    """Task encoders of one backend, by name."""

    class Plain(api.DefaultTaskEncoder):
        @stateless
        def encode_sample(self, sample: Any) -> Any:
            return noted(sample, self.rng.random())

    class Globals(api.DefaultTaskEncoder):
        @stateless(restore_seeds=True)
        def encode_sample(self, sample: Any) -> Any:
            return noted(sample, random.random() + float(np.random.random()))  # noqa: NPY002

    class Failing(api.DefaultTaskEncoder):
        @stateless(failure_tolerance=0)
        def encode_sample(self, sample: Any) -> Any:
            if number_of(sample.text) % 9 == 0:
                raise SkipSample
            if self.rng.random() < 0.1:
                raise ValueError("at random")
            return noted(sample, self.rng.random())

    class FailingBatches(Failing):
        @stateless(failure_tolerance=0)
        def encode_batch(self, batch: Any) -> Any:
            if self.rng.random() < 0.02:
                raise SkipSample
            return batch

    class Generating(api.DefaultTaskEncoder):
        @stateless
        def encode_sample(self, sample: Any) -> Any:
            yield from parts(sample)

    class Packing(api.DefaultTaskEncoder):
        @stateless
        def preencode_sample(self, sample: Any) -> Any:
            return noted(sample, self.rng.random())

        @stateless
        def postencode_sample(self, sample: Any) -> Any:
            return Noted.derive_from(sample, text=sample.text, draw=np.float64(sample.draw + self.rng.random()))

        def select_samples_to_pack(self, samples: list[Any]) -> Any:
            return select_by_size(samples)

        @stateless
        def pack_selected_samples(self, samples: list[Any]) -> Any:
            return several(samples)

    class Planned(Plain):
        @stateless
        def pack_selected_samples(self, samples: list[Any]) -> Any:
            return several(samples)

    class Keeping(Plain):
        def select_samples_to_pack(self, samples: list[Any]) -> Any:
            return select_and_keep(samples)

        @stateless
        def pack_selected_samples(self, samples: list[Any]) -> Any:
            return several(samples)

    class Grouping(Plain):
        def batch_group_criterion(self, sample: Any) -> Any:
            return by_length(sample)

    class Sized(Plain):
        def batch_group_criterion(self, sample: Any) -> Any:
            return by_length_sized(sample)

    @stateless
    def cook(sample: Any) -> Noted:
        return Noted(**basic_sample_keys(sample), text=f"{sample['txt']} {sample['json']['n']}", draw=np.float64(0))

    @stateless
    def cook_text(sample: Any) -> Noted:
        return Noted(**basic_sample_keys(sample), text=sample["txt"], draw=np.float64(0))

    @stateless
    def cook_line(sample: Any) -> Noted:
        return Noted(**basic_sample_keys(sample), text=sample["json"]["text"], draw=np.float64(0))

    @stateless
    def cook_digit(sample: Any) -> Noted:
        text = f"{sample['label']} {np.asarray(sample['image']).tolist()}"
        return Noted(**basic_sample_keys(sample), text=text, draw=np.float64(0))

    @stateless
    def cook_row(sample: Any) -> Noted:
        parts = [(name, np.asarray(sample[name]).tolist()) for name in sorted(sample) if not name.startswith("__")]
        return Noted(**basic_sample_keys(sample), text=repr(parts), draw=np.float64(0))

    @stateless
    @cooker(need_primary=True)
    def cook_aux(sample: Any, primary: Any, sides: Any, texts: Any) -> Noted:
        number = sample["json"]["n"]
        read = sides.get(sample["json"]["side"], sample), texts.get(f"{number:05d}.txt"), primary.get(".txt", sample)
        return Noted(**basic_sample_keys(sample), text=" ".join(map(str, read)), draw=np.float64(0))

    def cooking(name: str, cook: Any) -> type[Any]:
        members = {"cookers": [api.Cooker(cook)], "encode_sample": Plain.encode_sample}
        return type(name, (api.DefaultTaskEncoder,), members)

    class Pictures(api.DefaultTaskEncoder):
        decoder = api.SampleDecoder(image_decode="rgb8")

    class Floats(api.DefaultTaskEncoder):
        decoder = api.SampleDecoder(image_decode="torchrgb")

    made = (
        Plain,
        Globals,
        Failing,
        FailingBatches,
        Generating,
        Packing,
        Planned,
        Keeping,
        Grouping,
        Sized,
        Pictures,
        Floats,
    )
    cooks = {
        "Cooking": cook,
        "Texts": cook_text,
        "Lines": cook_line,
        "Digits": cook_digit,
        "Rows": cook_row,
        "Aux": cook_aux,
    }
    return {one.__name__: one for one in (*made, Pictures, Floats)} | {
        name: cooking(name, one) for name, one in cooks.items()
    }
