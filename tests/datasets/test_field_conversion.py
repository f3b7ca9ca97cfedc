"""Conversion by field name, by itself and as `DefaultTaskEncoder` does it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from energon_grain import (
    ConfigError,
    DefaultTaskEncoder,
    FatalSampleError,
    TextSample,
    WorkerConfig,
    get_val_dataset,
    reraise_exception,
)

MakeDataset = Callable[..., Path]


@dataclass
class Point:
    x: int
    y: int = 2


class Pair(NamedTuple):
    x: int
    y: int


class Dictionary(dict[str, Any]):
    pass


def convert(value: Any, target: type[Any]) -> Any:
    return DefaultTaskEncoder(encoded_sample_type=target).encode_sample(value)


VALUES = [Point(1, 2), Pair(1, 2), {"x": 1, "y": 2}]


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("target", [Point, Pair, dict, Dictionary])
def test_between_all_kinds(value: Any, target: type[Any]) -> None:
    converted = convert(value, target)
    assert type(converted) is target or converted is value
    assert convert(converted, dict) == {"x": 1, "y": 2}


def test_what_is_one_already_stays() -> None:
    point = Point(1)
    assert convert(point, Point) is point


@pytest.mark.parametrize("value", [5, "text", (1, 2), [1], None, Point])
def test_what_has_no_fields(value: Any) -> None:
    with pytest.raises(ConfigError, match=r"cannot convert a \w+ by field name"):
        convert(value, dict)


@pytest.mark.parametrize("value", [{"x": 1, "z": 3}, {"y": 1}, {}])
def test_fields_that_do_not_fit(value: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match=r"fields \[.*\] of dict do not fit Point.*override the hook"):
        convert(value, Point)


@dataclass
class Encoded(TextSample):
    extra: int = 7


def first(path: Path, encoder: DefaultTaskEncoder) -> Any:
    return next(iter(get_val_dataset(path, split_part="train", batch_size=3, task_encoder=encoder)))


def test_default_task_encoder_keeps_types(text_dataset: MakeDataset) -> None:
    batch = first(text_dataset(12), DefaultTaskEncoder())
    assert type(batch) is TextSample
    assert batch.__key__ == ["000000", "000001", "000002"]
    assert len(batch.text) == 3


def test_default_task_encoder_converts(text_dataset: MakeDataset) -> None:
    path = text_dataset(12)
    texts = first(path, DefaultTaskEncoder()).text
    encoded = first(path, DefaultTaskEncoder(encoded_sample_type=Encoded))
    assert type(encoded) is Encoded
    assert encoded.text == texts
    assert encoded.extra == [7, 7, 7]
    as_dict = first(path, DefaultTaskEncoder(encoded_sample_type=dict))
    assert as_dict["text"] == texts
    raw = first(path, DefaultTaskEncoder(raw_batch_type=dict))
    assert type(raw) is dict
    assert raw["text"] == texts
    both = first(path, DefaultTaskEncoder(raw_batch_type=dict, batch_type=Dictionary))
    assert type(both) is Dictionary
    assert both["text"] == texts
    typed = first(path, DefaultTaskEncoder(batch_type=Encoded))
    assert type(typed) is Encoded
    assert typed.extra == 7


@dataclass
class Plain:
    __key__: Any
    __restore_key__: Any
    __subflavors__: Any
    __sources__: Any
    text: Any


@pytest.mark.parametrize("option", ["encoded_sample_type", "raw_batch_type", "batch_type"])
def test_types_of_the_user_alone(text_dataset: MakeDataset, option: str) -> None:
    """They need no place for the validity mask while there is none."""
    batch = first(text_dataset(12), DefaultTaskEncoder(**{option: Plain}))
    assert type(batch) is Plain
    assert len(batch.text) == 3


def test_wrong_types(text_dataset: MakeDataset) -> None:
    dataset = get_val_dataset(
        text_dataset(12),
        split_part="train",
        batch_size=3,
        task_encoder=DefaultTaskEncoder(encoded_sample_type=Point),
        worker_config=WorkerConfig(0, 1, global_error_handler=reraise_exception),
    )
    with pytest.raises(FatalSampleError, match="do not fit Point"):
        next(iter(dataset))


def test_hooks_in_a_row(text_dataset: MakeDataset) -> None:
    class Encoder(DefaultTaskEncoder):
        def __init__(self) -> None:
            super().__init__(batch_type=dict)

        def encode_sample(self, sample: TextSample) -> dict[str, Any]:
            return {"length": np.array(len(sample.text))}

    batch = first(text_dataset(12), Encoder())
    assert type(batch) is dict
    assert batch["length"].shape == (3,)
