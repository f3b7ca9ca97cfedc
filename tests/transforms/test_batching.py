from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, strategies as st
from hypothesis.extra import numpy as hnp

from energon_grain import (
    Batch,
    CrudeSample,
    EPath,
    SourceInfo,
    TextSample,
    batch_list,
    batch_pad_stack,
    batch_stack,
    concat_pad,
    edataclass,
    generic_batch,
    generic_concat,
    homogeneous_concat_mix,
)
from energon_grain.errors import ConfigError
from energon_grain.transforms.batching import batch_samples


class Named(NamedTuple):
    a: Any
    b: Any


@dataclass
class Inner:
    x: Any
    note: str = ""


@dataclass
class Outer:
    inner: Inner
    values: dict[str, Any]
    derived: int = field(init=False, default=7)


@edataclass
class TextBatch(Batch):
    text: list[str]


def text(i: int, **base: Any) -> TextSample:
    return TextSample(__key__=str(i), __restore_key__=(i,), text=f"t{i}", **base)


def test_numbers_and_strings_stay_lists():
    assert generic_batch([1, 2]) == [1, 2]
    assert generic_batch(["a", "b"]) == ["a", "b"]
    assert generic_batch([(1, 2), (3,)]) == [(1, 2), (3,)]
    assert generic_batch([[np.ones(1)], [np.ones(1)]]) == [[np.ones(1)], [np.ones(1)]]
    assert batch_list([1, 2]) == [1, 2]


def test_structures_are_entered():
    batch = generic_batch([Outer(Inner(np.full(i, i), f"n{i}"), {"y": np.array(i), "z": i}) for i in (1, 2)])
    assert isinstance(batch, Outer)
    assert batch.inner.x.tolist() == [[1, 0], [2, 2]]
    assert batch.inner.note == ["n1", "n2"]
    assert batch.values["y"].tolist() == [1, 2]
    assert batch.values["z"] == [1, 2]
    named = generic_batch([Named(np.ones(2), 1), Named(np.zeros(2), 2)])
    assert isinstance(named, Named)
    assert named.a.tolist() == [[1, 1], [0, 0]]
    assert named.b == [1, 2]


def test_samples_become_a_batch_of_their_type_with_metadata_in_lists():
    batch = generic_batch([text(1, __subflavors__={"a": 1}), text(2)])
    assert batch == TextSample(
        __key__=["1", "2"],  # type: ignore[arg-type]
        __restore_key__=[(1,), (2,)],  # type: ignore[arg-type]
        __subflavors__=[{"a": 1}, None],  # type: ignore[arg-type]
        __sources__=[None, None],  # type: ignore[arg-type]
        text=["t1", "t2"],  # type: ignore[arg-type]
    )
    assert batch_samples([text(1), text(2)]) == generic_batch([text(1), text(2)])


def test_masks_of_batches_are_concatenated_and_samples_have_none():
    first, second = generic_batch([text(1)]), generic_batch([text(2), text(3)])
    assert first.__valid__ is None
    assert TextBatch.from_samples([text(1)]).__valid__ is None
    first.__valid__, second.__valid__ = np.array([True]), np.array([True, False])
    assert generic_concat([first, second]).__valid__.tolist() == [True, True, False]


def test_crude_samples_become_a_crude_batch():
    batch = generic_batch([CrudeSample(__key__="a", x=np.ones(1)), CrudeSample(__key__="b", x=np.ones(2))])
    assert isinstance(batch, CrudeSample)
    assert batch["__key__"] == ["a", "b"]
    assert batch["x"].tolist() == [[1, 0], [1, 1]]
    assert type(generic_batch([{"x": 1}])) is dict


def test_batch_samples_makes_other_types_and_takes_actions():
    samples = [text(1), text(2)]
    assert batch_samples(samples, dict)["text"] == ["t1", "t2"]
    assert batch_samples(samples, TextBatch) == TextBatch.from_samples(samples)
    joined = batch_samples(samples, dict, actions={"text": "".join})
    assert joined["text"] == "t1t2"
    with pytest.raises(TypeError, match="not int"):
        batch_samples([1, 2])


def test_from_samples_of_a_sample_type_is_called():
    @dataclass
    class Special:
        x: int

        @staticmethod
        def from_samples(samples: list[Special]) -> int:
            return sum(sample.x for sample in samples)

    assert generic_batch([Special(1), Special(2)]) == 3
    assert generic_batch([{"s": Special(1)}, {"s": Special(2)}]) == {"s": 3}


def test_errors_name_the_field():
    with pytest.raises(ValueError, match=r"inner\.x: .*one number of dimensions.*\(1,\), \(1, 1\)"):
        generic_batch([Outer(Inner(np.ones(1)), {}), Outer(Inner(np.ones((1, 1))), {})])
    with pytest.raises(ValueError, match=r"image: sample 0 has an array \(ndarray\), sample 1 has NoneType"):
        generic_batch([{"image": np.ones(1)}, {"image": None}])
    with pytest.raises(ValueError, match="same fields: KeyError"):
        generic_batch([{"image": np.ones(1)}, {"picture": np.ones(1)}])
    with pytest.raises(ValueError, match=r"arrays of one shape can be stacked, these are \(1,\), \(2,\)"):
        batch_stack([np.ones(1), np.ones(2)])
    with pytest.raises(ValueError, match="without dimensions"):
        concat_pad([np.array(1), np.array(2)])


@pytest.mark.parametrize("first", [0, 1])
def test_crude_samples_beside_typed_ones_are_named(first: int) -> None:
    source = SourceInfo(dataset_path=EPath("/data/recs"), index=1, shard_name="a.tar", file_names=("b.txt",))
    samples = [
        CrudeSample(__key__="b", __restore_key__=None, __subflavors__=None, __sources__=(source,), txt="b"),
        TextSample(__key__="a", __restore_key__=None, __subflavors__=None, __sources__=(), text="a"),
    ]
    with pytest.raises(
        ConfigError, match=r"fields: those of /data/recs are crude, others TextSample; give .* a cooker"
    ):
        batch_samples([samples[first], samples[1 - first]])


def test_first_array_gives_the_type():
    first, second = np.array([1], np.int32), np.array([2.7], np.float64)
    for join in (batch_pad_stack, batch_stack, concat_pad):
        joined = join([first, second])
        assert joined.dtype == np.int32
        assert joined.reshape(-1).tolist() == [1, 2]
    assert batch_stack([np.array(1, np.int16), np.array(2.0)]).dtype == np.int16


@st.composite
def arrays(draw: st.DrawFn, min_dims: int = 0) -> list[np.ndarray[Any, Any]]:
    ndim = draw(st.integers(min_dims, 3))
    dtype = draw(st.sampled_from([np.uint8, np.float32, np.int64]))
    shape = st.tuples(*[st.integers(0, 4)] * ndim)
    return draw(
        st.lists(shape.flatmap(lambda s: hnp.arrays(dtype, s, elements=st.integers(1, 9))), min_size=1, max_size=5)
    )


@given(arrays())
def test_pad_stack_puts_each_array_in_the_corner(batch: list[np.ndarray[Any, Any]]):
    stacked = batch_pad_stack(batch)
    assert stacked.dtype == batch[0].dtype
    assert stacked.shape == (len(batch), *(max(sizes) for sizes in zip(*(a.shape for a in batch), strict=True)))
    for row, array in zip(stacked, batch, strict=True):
        assert np.array_equal(row[tuple(map(slice, array.shape))], array)
    assert (stacked != 0).sum() == sum(array.size for array in batch)


@given(arrays(min_dims=1))
def test_concat_pad_puts_arrays_one_after_the_other(batch: list[np.ndarray[Any, Any]]):
    joined = concat_pad(batch)
    assert len(joined) == sum(map(len, batch))
    start = 0
    for array in batch:
        block = joined[start : start + len(array)]
        assert np.array_equal(block[(slice(None), *map(slice, array.shape[1:]))], array)
        start += len(array)
    assert (joined != 0).sum() == sum(array.size for array in batch)


def test_generic_concat_and_mix():
    one = {"x": np.ones((2, 1)), "k": ["a", "b"]}
    two = {"x": np.ones((1, 2)), "k": ["c"]}
    joined = generic_concat([one, two])
    assert joined["x"].tolist() == [[1, 0], [1, 0], [1, 1]]
    assert joined["k"] == [["a", "b"], ["c"]]
    assert homogeneous_concat_mix([one, two])["x"].shape == (3, 2)
    with pytest.raises(TypeError, match="these are Inner, dict"):
        homogeneous_concat_mix([one, Inner(1)])


def test_results_own_their_memory():
    source = np.ones((2, 2))
    single = batch_pad_stack([source])
    single[:] = 5
    assert source[0, 0] == 1


def test_numpy_scalars_are_stacked() -> None:
    batch = generic_batch([{"label": np.int32(3), "number": 4}, {"label": np.int32(5), "number": 6}])
    assert batch["label"].dtype == np.int32
    assert batch["label"].tolist() == [3, 5]
    assert batch["number"] == [4, 6]
