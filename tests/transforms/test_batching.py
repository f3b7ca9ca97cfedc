"""Batches of samples, and packing by first fit, best fit and knapsack, against slow readings of the same rules."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import combinations
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from hypothesis.extra import numpy as hnp

from energon_grain import (
    Batch,
    CrudeSample,
    EPath,
    Packs,
    SourceInfo,
    TextSample,
    batch_list,
    batch_pad_stack,
    batch_stack,
    best_fit,
    best_fit_decreasing,
    concat_pad,
    edataclass,
    first_fit_decreasing,
    generic_batch,
    generic_concat,
    greedy_knapsack,
    homogeneous_concat_mix,
    packing_efficiency,
)
from energon_grain.errors import ConfigError
from energon_grain.planning.packers import best_fit_indices, first_fit_decreasing_indices, greedy_knapsack_indices
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
    with pytest.raises(TypeError, match="cannot batch int"):
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
    with pytest.raises(ValueError, match=r"inner\.x: .*different numbers of dimensions: \(1,\), \(1, 1\)"):
        generic_batch([Outer(Inner(np.ones(1)), {}), Outer(Inner(np.ones((1, 1))), {})])
    with pytest.raises(ValueError, match=r"image: sample 0 has an array \(ndarray\), sample 1 has NoneType"):
        generic_batch([{"image": np.ones(1)}, {"image": None}])
    with pytest.raises(ValueError, match="same fields: KeyError"):
        generic_batch([{"image": np.ones(1)}, {"picture": np.ones(1)}])
    with pytest.raises(ValueError, match=r"cannot stack arrays of different shapes \(1,\), \(2,\)"):
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
        ConfigError, match=r"fields: samples of /data/recs are crude, others TextSample; give .* a cooker"
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
    with pytest.raises(TypeError, match="expected batches of one type, got Inner, dict"):
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


Packer = Callable[..., list[list[Any]]]
PACKERS: dict[str, Packer] = {
    "greedy_knapsack": greedy_knapsack,
    "first_fit_decreasing": first_fit_decreasing,
    "best_fit_decreasing": best_fit_decreasing,
    "best_fit": best_fit,
}
INDICES: dict[str, Packer] = {
    "greedy_knapsack": greedy_knapsack_indices,
    "first_fit_decreasing": first_fit_decreasing_indices,
    "best_fit_decreasing": best_fit_indices,
    "best_fit": partial(best_fit_indices, decreasing=False),
}
every_packer = pytest.mark.parametrize("pack", PACKERS.values(), ids=PACKERS)
every_primitive = pytest.mark.parametrize("indices", INDICES.values(), ids=INDICES)


def array(lengths: list[int]) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.array(lengths, np.int64)


@st.composite
def problems(draw: st.DrawFn, most: int = 40) -> tuple[list[int], int]:
    capacity = draw(st.integers(1, 60))
    return draw(st.lists(st.integers(0, capacity), max_size=most)), capacity


@every_primitive
@given(problem=problems(), max_samples=st.none() | st.integers(1, 5), first_leads=st.booleans())
def test_every_sample_once_and_no_pack_too_full(
    indices: Packer, problem: tuple[list[int], int], max_samples: int | None, first_leads: bool
):
    lengths, capacity = problem
    packs = indices(array(lengths), capacity, max_samples, first_leads=first_leads)
    assert sorted(index for pack in packs for index in pack) == list(range(len(lengths)))
    assert all(0 < len(pack) <= (max_samples or len(lengths)) for pack in packs)
    assert all(sum(lengths[index] for index in pack) <= capacity for pack in packs)
    assert packs == sorted(map(sorted, packs)), "in the order of the samples"


def most_plain(lengths: list[int], capacity: int, max_samples: int | None, rule: str) -> list[list[int]]:
    """First fit and best fit as the textbook says it: look at every pack for every sample."""
    order = range(len(lengths)) if rule == "best_fit" else sorted(range(len(lengths)), key=lambda i: -lengths[i])
    packs: list[list[int]] = []
    for index in order:
        room = [capacity - sum(lengths[i] for i in pack) for pack in packs]
        fits = [
            at
            for at, pack in enumerate(packs)
            if room[at] >= lengths[index] and (max_samples is None or len(pack) < max_samples)
        ]
        if not fits:
            packs.append([index])
        elif rule == "first_fit_decreasing":
            packs[fits[0]].append(index)
        else:
            packs[min(fits, key=lambda at: room[at])].append(index)
    return sorted(map(sorted, packs))


@pytest.mark.parametrize("rule", ["first_fit_decreasing", "best_fit_decreasing", "best_fit"])
@given(problem=problems(), max_samples=st.none() | st.integers(1, 5))
def test_the_packs_are_those_of_the_textbook(rule: str, problem: tuple[list[int], int], max_samples: int | None):
    lengths, capacity = problem
    assert INDICES[rule](array(lengths), capacity, max_samples) == most_plain(lengths, capacity, max_samples, rule)


def fewest_packs(lengths: list[int], capacity: int) -> int:
    """The optimum, by trying everything: the samples one by one into every pack."""
    order = sorted(lengths, reverse=True)
    best = len(order)

    def place(at: int, rooms: tuple[int, ...]) -> None:
        nonlocal best
        if len(rooms) >= best:
            return
        if at == len(order):
            best = len(rooms)
            return
        for room in {room for room in rooms if room >= order[at]}:
            pack = rooms.index(room)
            place(at + 1, (*rooms[:pack], room - order[at], *rooms[pack + 1 :]))
        place(at + 1, (*rooms, capacity - order[at]))

    place(0, ())
    return best


@pytest.mark.parametrize("rule", ["first_fit_decreasing", "best_fit_decreasing"])
@given(problem=problems(most=9))
def test_the_bound_of_the_decreasing_rules_holds(rule: str, problem: tuple[list[int], int]):
    lengths, capacity = problem
    packs = INDICES[rule](array(lengths), capacity)
    assert 9 * len(packs) <= 11 * fewest_packs(lengths, capacity) + 6


@settings(max_examples=200)
@given(problem=problems(most=10))
def test_greedy_knapsack_fills_the_pack_of_the_longest_as_full_as_can_be(problem: tuple[list[int], int]):
    lengths, capacity = problem
    packs = greedy_knapsack_indices(array(lengths), capacity)
    left = set(range(len(lengths)))
    while left:
        longest = max(left, key=lambda index: (lengths[index], -index))
        (pack,) = (pack for pack in packs if longest in pack)
        others = [lengths[index] for index in left if index != longest]
        sums = {sum(some) for size in range(len(others) + 1) for some in combinations(others, size)}
        best = max(total for total in sums if total + lengths[longest] <= capacity)
        assert sum(lengths[index] for index in pack) == best + lengths[longest]
        left -= set(pack)


def test_greedy_knapsack_is_exact_where_taking_the_longest_is_not():
    lengths = array([50, 40, 30, 20, 30])  # 50 + 30 + 20 fills a pack, 50 + 40 does not
    assert greedy_knapsack_indices(lengths, 100) == [[0, 2, 3], [1, 4]]
    assert first_fit_decreasing_indices(lengths, 100) == [[0, 1], [2, 3, 4]]


def test_greedy_knapsack_keeps_to_the_number_of_samples():
    assert greedy_knapsack_indices(array([50, 40, 30, 20, 30]), 100, 2) == [[0, 1], [2, 4], [3]]


@every_primitive
def test_large_buffers(indices: Packer):
    lengths = np.random.default_rng(0).lognormal(5, 1, 3000).astype(np.int64).clip(1, 1024)
    packs = indices(lengths, 1024, None)
    assert sorted(index for pack in packs for index in pack) == list(range(3000))
    assert all(lengths[pack].sum() <= 1024 for pack in packs)
    assert packing_efficiency(packs, length=lengths.__getitem__, capacity=1024) > 0.98
    assert indices(lengths, 1024, None) == packs


@every_packer
def test_packs_hold_the_samples_by_a_function_or_by_numbers(pack: Packer):
    words = ["aaaa", "bbb", "cc", "d"]
    expected = [["aaaa", "d"], ["bbb", "cc"]]
    assert pack(words, length=len, capacity=5) == expected
    assert pack(words, length=[4, 3, 2, 1], capacity=5) == expected
    assert pack(words, length=np.array([4, 3, 2, 1], np.uint16), capacity=5) == expected
    assert pack([], length=len, capacity=5) == []


@every_packer
def test_samples_longer_than_a_pack(pack: Packer):
    words = ["bb", "aaaaaaaa", "c", "dddd"]
    with pytest.raises(ConfigError, match=r'sample 1 of 4 has 8 tokens, but a pack holds 5.*oversize="drop".*"alone"'):
        pack(words, length=len, capacity=5)
    kept = [["bb", "c"], ["dddd"]] if pack is best_fit else [["bb"], ["c", "dddd"]]
    assert pack(words, length=len, capacity=5, oversize="drop") == kept
    assert pack(words, length=len, capacity=5, oversize="alone") == [kept[0], ["aaaaaaaa"], kept[1]]
    with pytest.raises(ConfigError, match='oversize=\'cut\': expected "error", "alone" or "drop"'):
        pack(words, length=len, capacity=5, oversize="cut")


def test_the_message_names_the_sample():
    samples = [SimpleNamespace(__key__="000017", tokens=range(9))]
    with pytest.raises(ConfigError, match=r"sample 0 of 1 \(key '000017'\) has 9 tokens"):
        greedy_knapsack(samples, length=lambda sample: len(sample.tokens), capacity=8)


@every_packer
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"length": [1], "capacity": 5}, r"shape \(1,\) for 2 samples"),
        ({"length": [1.0, 2.0], "capacity": 5}, "of type float"),
        ({"length": [1, -2], "capacity": 5}, "sample 1 has the length -2"),
        ({"length": [1, 2], "capacity": 0, "oversize": "drop"}, "capacity=0: expected at least 1"),
        ({"length": [1, 2], "capacity": 5, "max_samples": 0}, "max_samples=0: expected at least 1"),
    ],
)
def test_impossible_arguments(pack: Packer, arguments: dict[str, Any], message: str):
    with pytest.raises(ConfigError, match=message):
        pack(["a", "b"], **arguments)


@every_primitive
def test_primitives_refuse_lengths_out_of_range(indices: Packer):
    with pytest.raises(ConfigError, match="between 1 and 6: expected 0 to 5 tokens"):
        indices(array([1, 6]), 5)


def test_efficiency():
    assert packing_efficiency([["aaa", "b"], ["cc"]], length=len, capacity=4) == 6 / 8
    assert packing_efficiency([["aaaaaaaa"]], length=len, capacity=4) == 1.0
    assert packing_efficiency([], length=len, capacity=4) == 1.0


def stream_of_packs(pack: Packer, lengths: list[int], capacity: int, buffer_size: int) -> tuple[list[list[int]], int]:
    """Packs from a buffer that is filled up with what comes; and how often one sample was put back at most."""
    coming, buffer, packs = list(range(len(lengths)))[::-1], list[int](), list[list[int]]()
    returns = [0] * len(lengths)
    while coming or buffer:
        while coming and len(buffer) < buffer_size:
            buffer.append(coming.pop())
        packed = pack(buffer, length=lengths.__getitem__, capacity=capacity, keep_rest=True)
        assert isinstance(packed, Packs)
        assert sorted(sum(packed, packed.rest)) == sorted(buffer)
        assert packed[0][0] == buffer[0], "the first sample leaves"
        assert sum(lengths[index] for index in packed.rest) <= capacity
        packs += packed
        if not coming and packed.rest:
            packs.append(packed.rest)
            break
        buffer = packed.rest
        for index in buffer:
            returns[index] += 1
    return packs, max(returns, default=0)


@every_packer
@given(problem=problems(), buffer_size=st.integers(1, 9))
def test_what_is_kept_leaves_in_the_end(pack: Packer, problem: tuple[list[int], int], buffer_size: int):
    lengths, capacity = problem
    packs, returns = stream_of_packs(pack, lengths, capacity, buffer_size)
    assert sorted(sum(packs, [])) == list(range(len(lengths)))
    assert all(sum(lengths[index] for index in group) <= capacity for group in packs)
    assert returns < buffer_size


@every_packer
def test_the_emptiest_pack_is_kept(pack: Packer):
    packed = pack(["aaaa", "bbbb", "ccc"], length=len, capacity=4, keep_rest=True)
    assert packed == [["aaaa"], ["bbbb"]]
    assert packed.rest == ["ccc"]
    packed = pack(["ccc", "aaaa"], length=len, capacity=4, keep_rest=True)
    assert (packed, packed.rest) == ([["ccc"]], ["aaaa"]), "never the first sample"
    packed = pack(["a", "b"], length=len, capacity=4, keep_rest=True)
    assert (packed, packed.rest) == ([["a", "b"]], []), "never the only pack"


def test_keeping_the_rest_fills_packs_of_short_samples():
    lengths = np.random.default_rng(0).integers(150, 190, 4000).tolist()
    packs, _ = stream_of_packs(greedy_knapsack, lengths, 4096, 100)
    kept = packing_efficiency(packs, length=lengths.__getitem__, capacity=4096)
    alone = [
        group
        for start in range(0, 4000, 100)
        for group in greedy_knapsack_indices(array(lengths[start : start + 100]), 4096)
    ]
    assert packing_efficiency(alone, length=lengths.__getitem__, capacity=4096) < 0.84
    assert kept > 0.99
