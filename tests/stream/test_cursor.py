"""The state: what it holds and refuses; the codec of lanes' states, in which neighbours cost little."""

from __future__ import annotations

import base64
import dataclasses
import json
import os
import shutil
import zlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st
from metadatasets import write_v2
from stream_hosts import MakeDataset, config, global_batch, open_hosts, open_stream

from energon_grain import BlendDataset, FingerprintError, StateError, Stream, get_train_dataset, merge_cursors
from energon_grain.stream.state import (
    Codec,
    Deferred,
    ListOf,
    Number,
    OneOf,
    Place,
    Same,
    WithExtra,
    pack_integers,
    positions,
    unpack_integers,
)
from energon_grain.testing import make_text_dataset


def test_a_changed_configuration_is_named(text_dataset: MakeDataset) -> None:
    path = text_dataset(53)
    [stream] = open_hosts(path, 1, 5)
    next(stream)
    cursor = stream.cursor(with_manifest=True)
    [other] = open_hosts(path, 1, 5, seed=1, max_samples_per_sequence=2)
    for state in (cursor, stream.cursor()):
        with pytest.raises(
            FingerprintError, match=r"(?s)seed: saved 0, now 1.*block: saved None, now 2.*allow_changes"
        ):
            other.restore(state)
    other.restore(cursor, allow_changes=True)
    assert other.cursor()["item"] == 5
    [larger] = open_hosts(text_dataset(97), 1, 5)
    with pytest.raises(FingerprintError, match="samples: saved 53, now 97"):
        larger.restore(cursor)
    [lanes] = open_hosts(path, 1, 5, lanes=12)
    with pytest.raises(StateError, match="saved with lanes=24, but this run has lanes=12"):
        lanes.restore(cursor)


def test_a_moved_dataset_keeps_its_order(text_dataset: MakeDataset, tmp_path: Path) -> None:
    path = text_dataset(53)
    moved = tmp_path / "elsewhere" / path.name
    shutil.copytree(path, moved)
    (moved / ".nv-meta" / "index.uuid").write_text("11111111-2222-4333-8444-555555555555")
    [here], [there] = open_hosts(path, 1, 5), open_hosts(moved, 1, 5)
    next(here)
    there.restore(here.cursor(with_manifest=True))
    assert global_batch([here]) == global_batch([there])


def test_the_cursor_is_small_json(text_dataset: MakeDataset) -> None:
    [stream] = open_hosts(text_dataset(53, broken={1, 2, 3}), 1, 5)
    for _ in range(200):
        next(stream)
    text = json.dumps(stream.cursor())
    assert json.loads(text) == stream.cursor()
    assert len(text) < 1024
    assert stream.cursor()["drops"]


@pytest.mark.parametrize("datasets", [1, 4, 12])
def test_a_cursor_names_what_differs_as_long_as_it_is_small(tmp_path: Path, datasets: int) -> None:
    paths = [make_text_dataset(tmp_path / f"d{i}", n=5 + i, shards=1) for i in range(datasets)]
    blend = {"blend": [{"path": os.fspath(path), "weight": 1} for path in paths]}
    [stream] = open_hosts(write_v2(tmp_path, train=blend), 1, 5)
    make_text_dataset(paths[0], n=50, shards=1)
    [other] = open_hosts(write_v2(tmp_path, train=blend), 1, 5)
    cursor = stream.cursor()
    assert len(json.dumps(cursor)) < 1024
    named = r"samples: saved 5, now 50\n" if datasets < 9 else r"fingerprint: saved \w+, now \w+ "
    with pytest.raises(FingerprintError, match=named):
        other.restore(cursor)


def test_one_hosts_state_with_drops_is_not_for_other_hosts(text_dataset: MakeDataset) -> None:
    path = text_dataset(53, broken=set(range(20)))
    streams = open_hosts(path, 2, 4)
    for _ in range(10):
        global_batch(streams)
    [single] = open_hosts(path, 1, 8)
    with pytest.raises(StateError, match="records the dropped samples of its own lanes only"):
        single.restore(streams[0].cursor())
    with pytest.raises(StateError, match="the states of all hosts are needed"):
        merge_cursors([streams[0].cursor()])
    single.restore(merge_cursors([stream.cursor() for stream in streams]))
    assert global_batch([single]) == global_batch(streams)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 99}, "version 99"),
        ({"item": -1}, "'item' is -1"),
        ({"host": [3, 2]}, "'host' is"),
        ({"history": [[1]]}, "'history' is"),
        ({"drops": "!!", "check": None}, "'drops' is damaged"),
        ({"ended": "no"}, "'ended' is"),
        ({"step": 7}, "'check' is"),
        ({"stop": 7}, "'stop'"),
        ({"check": 7}, "'check' is 7"),
    ],
)
def test_a_malformed_state_is_refused(text_dataset: MakeDataset, change: dict[str, Any], message: str) -> None:
    [stream] = open_hosts(text_dataset(24), 1, 5)
    with pytest.raises(StateError, match=message):
        stream.restore({name: value for name, value in (stream.cursor() | change).items() if value is not None})


def test_swapping_the_parts_of_a_blend_changes_the_fingerprint(text_dataset: MakeDataset) -> None:
    part: Any = get_train_dataset(
        text_dataset(24), batch_size=None, shuffle_buffer_size=None, max_samples_per_sequence=None, repeat=False
    )
    one, other = (dataclasses.replace(part.dataset, name=name) for name in ("one", "other"))

    def fingerprint(*children: Any) -> str:
        blend = BlendDataset(*children)
        return Stream.of(blend, worker_config=config()).cursor()["fingerprint"]

    assert fingerprint(one, other) != fingerprint(other, one)


def test_every_state_has_the_same_keys(text_dataset: MakeDataset) -> None:
    stream = open_stream(text_dataset(53, broken={1, 2, 3}))
    fresh = stream.cursor()
    for _ in range(20):
        next(stream)
    assert fresh["drops"] == ""
    assert stream.cursor()["drops"]
    assert fresh.keys() == stream.cursor().keys() == merge_cursors([stream.cursor()]).keys()
    old = {name: value for name, value in fresh.items() if name not in ("drops", "held", "skipped", "check")}
    stream.restore(old)
    stream.restore(merge_cursors([old]))
    assert stream.cursor() == fresh
    with pytest.raises(StateError, match="'drops' is 5"):
        stream.restore({**fresh, "drops": 5})


def test_a_manifest_of_many_datasets_is_short_and_still_names_what_differs(tmp_path: Path) -> None:
    paths = [make_text_dataset(tmp_path / f"d{i}", n=5 + i, shards=1) for i in range(40)]
    blend = {"blend": [{"path": os.fspath(path), "weight": 1} for path in paths]}
    [stream], [other] = (open_hosts(write_v2(tmp_path, train=blend), 1, 5, seed=seed) for seed in (0, 1))
    state = json.loads(json.dumps(stream.cursor(with_manifest=True)))
    plain = json.dumps(stream.spec.manifest())
    assert len(state["manifest"]) < len(plain) / 2
    small = stream.cursor()
    assert len(json.dumps(small)) < 1024
    with pytest.raises(
        FingerprintError, match=r"saved \w+, now \w+ \(states of save_state_rank also list the settings"
    ):
        other.restore(small)
    with pytest.raises(FingerprintError, match="  seed: saved 0, now 1\n"):
        other.restore(state)
    del state["check"]
    older = state | {"manifest": stream.spec.manifest()}
    with pytest.raises(FingerprintError, match="  seed: saved 0, now 1\n"):
        other.restore(older)
    stream.restore(older)
    for damaged in ("?", "", state["manifest"][:-8], base64.b64encode(zlib.compress(b"[" * 9)).decode()):
        with pytest.raises(StateError, match="the state's 'manifest' is damaged"):
            other.restore(state | {"manifest": damaged})


_LEAVES = st.one_of(st.builds(Number), st.builds(Number, st.integers(1, 9)), st.builds(Place, st.integers(0, 2)))
FORMS = st.recursive(
    _LEAVES,
    lambda forms: st.one_of(
        st.lists(forms, min_size=1, max_size=3).map(tuple),
        st.builds(ListOf, forms),
        st.lists(forms, min_size=1, max_size=3).map(lambda several: OneOf(tuple(several))),
        st.builds(Deferred, forms),
        st.builds(WithExtra, forms, st.builds(ListOf, forms)),
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
        case ListOf(each=each):
            return st.lists(values_of(each), max_size=4).map(tuple)
        case OneOf(forms=forms):
            return st.one_of(*(st.tuples(st.just(n), values_of(each)) for n, each in enumerate(forms)))
        case Same() | Deferred():
            return values_of(form.form)
        case _:
            return st.tuples(st.integers(0, 2**61), values_of(form.value), values_of(form.rare))


@st.composite
def cases(draw: st.DrawFn) -> tuple[Any, Any]:
    form = draw(FORMS)
    if draw(st.booleans()):
        form = ListOf(Same(7, form))
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
    form = ListOf(OneOf((Place(1), Place(2))))
    held = tuple((feed, 10**12 * feed + place) for place in range(100) for feed in (0, 1))
    assert max(Codec(form).encode(held)[5:]) == 2
    assert Codec(ListOf(Place(0))).encode((5, 3, 3)) == [3, 10, 3, 0]
    again = ListOf((Number(), Same(1, (Number(), Place(0)))))
    assert Codec(again).encode(((0, (7, 5)), (1, (7, 5)), (2, (8, 5)))) == [3, 0, 1, 7, 10, 1, 0, 2, 1, 8, 0]


def test_samples_that_a_value_is_made_of() -> None:
    form = (Place(0), ListOf(OneOf((Place(1), Number()))), Same(3, Place(2)), WithExtra(Place(4), ListOf(Number())))
    assert [*positions(form, (5, ((0, 6), (1, 7)), 8, (1, 9, ())))] == [(0, 5), (1, 6), (4, 9)]


@pytest.mark.parametrize(
    "value", [5, (), (1, (2,), 3), (1, ("2",)), (1.0, ()), (1, (-1,)), (-1, ()), (3, ()), (True, ()), (1, [2]), None]
)
def test_what_has_another_form_is_refused(value: Any) -> None:
    with pytest.raises((ValueError, TypeError, LookupError, StateError)):
        Codec((Number(3), ListOf(Place(0)))).check(value)


@pytest.mark.parametrize("position", [-1, -5, 2**62])
def test_positions_that_no_stream_has_are_refused_wherever_they_stand(position: int) -> None:
    """Those of `Same` too, which are read later."""
    form = (Place(0), Same(1, (Number(), ListOf(WithExtra(Place(0), ListOf(Number()))))))
    value = (7, (0, ((0, 3, ()), (0, position, ()))))
    with pytest.raises(StateError, match="damaged"):
        Codec(form).decode(Codec(form).encode(value))
    with pytest.raises(StateError, match="damaged"):
        Codec(form).check(value)


def test_merged_hosts_remember_what_each_of_them_does(text_dataset: MakeDataset) -> None:
    """A host that met a drop begins its history again with the next pass, and with it the merged state."""
    streams = open_hosts(text_dataset(53, broken={7}), 2, 3, repeat=False)
    for stream in streams:
        list(stream)
        next(iter(stream))
    first, second = (stream.cursor() for stream in streams)
    shorter, longer = sorted([first["history"], second["history"]], reverse=True)
    assert shorter != longer
    for cursors in ([first, second], [second, first]):
        assert merge_cursors(cursors)["history"] == shorter
