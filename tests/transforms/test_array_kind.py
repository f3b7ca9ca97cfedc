"""A kind of array of somebody else's, in batches and between processes."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from energon_grain import batch_pad_stack, batch_stack, concat_pad, generic_batch
from energon_grain.stream.memory import approximate_bytes
from energon_grain.stream.worker_process import SamplePickler, SampleUnpickler
from energon_grain.transforms import batching as array_kind
from energon_grain.transforms.batching import NUMPY, ArrayKind, kind_of, reducers, register_array_kind


class Framed:
    """An array in a frame."""

    def __init__(self, content: Any) -> None:
        self.content = np.asarray(content)
        self.shape, self.ndim, self.nbytes = self.content.shape, self.content.ndim, self.content.nbytes


class Gilded(Framed):
    pass


def contents(batch: Any) -> list[Any]:
    return [framed.content for framed in batch]


KIND = ArrayKind(
    stack=lambda batch: Framed(NUMPY.stack(contents(batch))),
    pad_stack=lambda batch, shape: Framed(NUMPY.pad_stack(contents(batch), shape)),
    concatenate=lambda batch: Framed(NUMPY.concatenate(contents(batch))),
    concat_pad=lambda batch, shape: Framed(NUMPY.concat_pad(contents(batch), shape)),
    reduce=lambda framed: (Framed, (framed.content,)),
)


@pytest.fixture
def registered() -> Iterator[None]:
    assert kind_of(Framed) is None
    register_array_kind(Framed, KIND)
    yield
    del array_kind._kinds[Framed]
    kind_of.cache_clear()


@pytest.mark.usefixtures("registered")
def test_a_registered_kind_is_batched() -> None:
    one, two = Framed([1, 2]), Gilded([3])
    assert kind_of(Gilded) is kind_of(Framed) is KIND
    assert batch_stack([one, one]).content.tolist() == [[1, 2], [1, 2]]
    assert batch_pad_stack([one, two]).content.tolist() == [[1, 2], [3, 0]]
    assert generic_batch([{"a": one}, {"a": two}])["a"].content.tolist() == [[1, 2], [3, 0]]
    assert concat_pad([one, two]).content.tolist() == [1, 2, 3]
    wide = [Framed([[1, 2]]), Framed([[3], [4]])]
    assert concat_pad(wide).content.tolist() == [[1, 2], [3, 0], [4, 0]]
    with pytest.raises(ValueError, match=r"a: sample 0 has an array \(Framed\), sample 1 has ndarray"):
        batch_stack([one, np.ones(2)], where="a")
    assert approximate_bytes([one, {"two": two}]) == 24


@pytest.mark.usefixtures("registered")
def test_a_registered_kind_is_sent_as_it_says() -> None:
    pickler = SamplePickler([])
    payload = bytes(pickler.payload([Framed(range(3)), complex(1)]))
    assert [buffer.raw().nbytes for buffer in pickler.buffers] == [24]
    framed, number = SampleUnpickler(payload, pickler.buffers, []).load()
    assert framed.content.tolist() == [0, 1, 2]
    assert number == 1
    assert vars(pickle.loads(pickle.dumps(Framed(1)))).keys() == vars(Framed(1)).keys(), "elsewhere nothing changes"


def test_what_is_no_array_is_listed_or_named() -> None:
    framed = Framed(1)
    assert generic_batch([framed]) == [framed]
    for join in (batch_stack, batch_pad_stack, concat_pad):
        with pytest.raises(ValueError, match="a: arrays can be stacked and concatenated, sample 0 has Framed"):
            join([framed], where="a")


def test_numpy_needs_no_table_of_reducers() -> None:
    table = reducers()
    assert table is None or np.ndarray not in table
