"""The codec of lanes' states: every value of a form comes back, neighbours cost little, and nothing else is taken."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, strategies as st

from energon_grain import StateError
from energon_grain.stream.state import (
    Codec,
    Many,
    Marked,
    Number,
    OneOf,
    Place,
    Same,
    pack_integers,
    positions,
    unpack_integers,
)

_LEAVES = st.one_of(st.builds(Number), st.builds(Number, st.integers(1, 9)), st.builds(Place, st.integers(0, 2)))
FORMS = st.recursive(
    _LEAVES,
    lambda forms: st.one_of(
        st.lists(forms, min_size=1, max_size=3).map(tuple),
        st.builds(Many, forms),
        st.lists(forms, min_size=1, max_size=3).map(lambda several: OneOf(tuple(several))),
        st.builds(Marked, forms, st.builds(Many, forms)),
    ),
    max_leaves=6,
)


def values_of(form: Any) -> st.SearchStrategy[Any]:
    match form:
        case Place():
            return st.integers(0, 2**61)
        case Number(end=end):
            return st.integers(0, min(end - 1, 2**61))
        case tuple():
            return st.tuples(*map(values_of, form))
        case Many(each=each):
            return st.lists(values_of(each), max_size=4).map(tuple)
        case OneOf(forms=forms):
            return st.one_of(*(st.tuples(st.just(n), values_of(each)) for n, each in enumerate(forms)))
        case Same():
            return values_of(form.form)
        case _:
            return st.tuples(st.integers(0, 2**61), values_of(form.value), values_of(form.rare))


@st.composite
def cases(draw: st.DrawFn) -> tuple[Any, Any]:
    form = draw(FORMS)
    if draw(st.booleans()):
        form = Many(Same(7, form))
    return form, draw(values_of(form))


@given(cases(), st.data())
def test_what_is_written_is_read(case: tuple[Any, Any], data: st.DataObject) -> None:
    form, value = case
    integers = Codec(form).encode(value)
    assert all(number >= 0 for number in integers)
    assert unpack_integers(pack_integers(integers)) == integers
    assert Codec(form).decode(integers) == value
    Codec(form).check(value)
    with pytest.raises(StateError, match="too long"):
        Codec(form).decode([*integers, 0])
    if integers:
        with pytest.raises(StateError, match=r"ends too early|belongs to another graph"):
            Codec(form).decode(integers[: data.draw(st.integers(0, len(integers) - 1))])


def test_neighbours_cost_little() -> None:
    """Differences are taken within each feed by itself."""
    form = Many(OneOf((Place(1), Place(2))))
    held = tuple((feed, 10**12 * feed + place) for place in range(100) for feed in (0, 1))
    assert max(Codec(form).encode(held)[5:]) == 2
    assert Codec(Many(Place(0))).encode((5, 3, 3)) == [3, 10, 3, 0]
    again = Many((Number(), Same(1, (Number(), Place(0)))))
    assert Codec(again).encode(((0, (7, 5)), (1, (7, 5)), (2, (8, 5)))) == [3, 0, 1, 7, 10, 1, 0, 2, 1, 8, 0]


def test_samples_that_a_value_is_made_of() -> None:
    form = (Place(0), Many(OneOf((Place(1), Number()))), Same(3, Place(2)), Marked(Place(4), Many(Number())))
    assert [*positions(form, (5, ((0, 6), (1, 7)), 8, (1, 9, ())))] == [(0, 5), (1, 6), (4, 9)]


@pytest.mark.parametrize(
    "value", [5, (), (1, (2,), 3), (1, ("2",)), (1.0, ()), (1, (-1,)), (-1, ()), (3, ()), (True, ()), (1, [2]), None]
)
def test_what_has_another_form_is_refused(value: Any) -> None:
    with pytest.raises((ValueError, TypeError, LookupError, StateError)):
        Codec((Number(3), Many(Place(0)))).check(value)


@pytest.mark.parametrize("position", [-1, -5, 2**62])
def test_positions_that_no_stream_has_are_refused_wherever_they_stand(position: int) -> None:
    """Those of `Same` too, which are read later."""
    form = (Place(0), Same(1, (Number(), Many(Marked(Place(0), Many(Number()))))))
    value = (7, (0, ((0, 3, ()), (0, position, ()))))
    with pytest.raises(StateError, match="damaged"):
        Codec(form).decode(Codec(form).encode(value))
    with pytest.raises(StateError, match="damaged"):
        Codec(form).check(value)
