"""Nodes of metadatasets: what their keys mean, and that mistakes are told with their place."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
from metadatasets import node

from energon_grain.errors import ConfigError
from energon_grain.formats.class_ref import ClassRef
from energon_grain.metadataset.blends import MetadatasetBlend, MetadatasetBlendEpochized, MetadatasetConcat
from energon_grain.metadataset.joins import JoinArrayReference, Joiner, MetadatasetJoin
from energon_grain.metadataset.references import AuxReference, DatasetReference
from energon_grain.metadataset.subset import Subset


def test_a_reference_has_every_key_of_the_format() -> None:
    got = node("""
        path: ./a
        split_part: on
        subflavors: {a: 0.5, b: [1, {c: 1.5}], d: null}
        shuffle_over_epochs_multiplier: 3
        dataset_config: other.yaml
        split_config: parts.json
        subset: {range: [10, end]}
        name: mine
        aux:
          plain: ../media
          mapped: {path: store}
          files: filesystem://files
          absolute: filesystem:///files
          remote: msc://store/set
          remote_files: filesystem+msc://store/folder
          mapped_files: {fs_path: folder}
    """)
    assert got == DatasetReference(
        path="./a",
        split_part="on",
        subflavors={"a": 0.5, "b": [1, {"c": 1.5}], "d": None},
        shuffle_over_epochs_multiplier=3,
        dataset_config="other.yaml",
        split_config="parts.json",
        subset=Subset(absolute=(10, None)),
        name="mine",
        aux={
            "plain": AuxReference(path="../media"),
            "mapped": AuxReference(path="store"),
            "files": AuxReference(kind="filesystem", path="files"),
            "absolute": AuxReference(kind="filesystem", path="/files"),
            "remote": AuxReference(path="msc://store/set"),
            "remote_files": AuxReference(kind="filesystem", path="msc://store/folder"),
            "mapped_files": AuxReference(kind="filesystem", path="folder"),
        },
    )
    assert type(got.subflavors["a"]) is float
    assert str(got.place) == "meta.yaml: $.splits.train"


def test_empty_values_are_as_if_left_out() -> None:
    assert node("{path: a, split_part: , subflavors: , aux: , subset: , name: }") == DatasetReference(path="a")


def test_null_passes_mean_no_shuffling() -> None:
    assert node("{path: a, shuffle_over_epochs_multiplier: null}").shuffle_over_epochs_multiplier is None
    assert node("{path: a, shuffle_over_epochs_multiplier: -1}").shuffle_over_epochs_multiplier == -1


def test_weights_are_the_fractions_that_their_text_means() -> None:
    got = node("blend: [{path: a, weight: 0.1}, {path: b, weight: 1e-3}, {path: c}, {path: d, weight: 1_000.25}]")
    weights = [entry.weight for entry in got.blend]
    assert weights == [Fraction(1, 10), Fraction(1, 1000), None, Fraction(4001, 4)]
    text = "0.333333333333333333333333333333"
    assert node(f"blend: [{{path: a, weight: {text}}}]").blend[0].weight == Fraction(text)


def test_repetitions_are_exact() -> None:
    got = node("blend_epochized: [{path: a, repetitions: 0.7}, {path: b, repetitions: 3}, {path: c}]")
    assert [entry.repetitions for entry in got.blend_epochized] == [Fraction(7, 10), 3, 1]


def test_forms_nest_inline() -> None:
    got = node("""
        blend:
          - weight: 2
            concat: [{path: a}, {blend_epochized: [{path: b, repetitions: 2}]}]
          - blend: [{path: c}, {path: d, weight: 3}]
            subset: {range: [0%, 50%]}
    """)
    assert isinstance(got, MetadatasetBlend)
    concat, blend = (entry.node for entry in got.blend)
    assert isinstance(concat, MetadatasetConcat)
    assert isinstance(concat.concat[1], MetadatasetBlendEpochized)
    assert isinstance(blend, MetadatasetBlend)
    assert blend.subset == Subset.parse(["0%", "50%"])
    assert got.blend[0].weight == 2
    assert str(concat.concat[1].place) == "meta.yaml: $.splits.train.blend[0].concat[1]"


def test_a_schedule_gives_weights_by_position() -> None:
    got = node("""
        blend: [{path: a}, {path: b}]
        schedule:
          - {from_position: 0, weights: [1, 0]}
          - {from_position: 1_000, weights: [0.5, 0.25]}
    """)
    assert [(step.from_position, step.weights) for step in got.schedule] == [
        (0, (1, 0)),
        (1000, (Fraction(1, 2), Fraction(1, 4))),
    ]


def test_joins_are_read_in_full() -> None:
    got = node("""
        join:
          text: {path: a, split_part: x}
          images: {path: b, nonmatch: none, subflavors: {k: 1}, split_config: s.yaml}
        joiner: {__module__: my.module, __function__: merge}
        split_part: y
        shuffle_over_epochs_multiplier: 2
        subset: {range: [0, 10]}
    """)
    assert isinstance(got, MetadatasetJoin)
    assert isinstance(got.join, dict)
    assert list(got.join) == ["text", "images"]
    assert got.join["images"].nonmatch == "none"
    assert got.joiner == Joiner(ref=ClassRef(module="my.module", name="merge"), is_function=True)
    listed = node("""
        join: [{path: a}, {path: b, nonmatch: skip}]
        joiner: {__module__: megatron.energon, __class__: CaptioningSample}
    """)
    assert [member.nonmatch for member in listed.join] == ["error", "skip"]
    assert not listed.joiner.is_function


def test_arrays_in_joins() -> None:
    got = node("join: [{path: a}, {array: b.zarr}, {array: c, keys: k.txt, nonmatch: none, field: f}]")
    _, by_row, by_key = got.join
    assert by_row == JoinArrayReference(array="b.zarr")
    assert by_key == JoinArrayReference(array="c", keys="k.txt", nonmatch="none", field="f")
    assert node("join: [{path: a}, {array: b.zarr, by: row}]").join[1].by == "row"
    assert MetadatasetJoin(join=[{"path": "a"}, by_key]).join[1] is by_key


def test_what_has_no_effect_in_a_join_is_let_pass() -> None:
    node("""
        join: [{path: a, shuffle_over_epochs_multiplier: 1, aux: null, subset: }]
        joiner: {__module__: a, __class__: B}
    """)


def test_a_joiner_can_be_passed_itself() -> None:
    def merge(a: Any) -> Any:
        return a

    join = MetadatasetJoin(join=[{"path": "a"}], joiner=merge)  # type: ignore[arg-type]
    assert join.joiner == Joiner(target=merge, is_function=True)


BAD_NODES = [
    ("{pth: a}", "pth", "Did you mean `path`?"),
    ("{path: a, splt_part: x}", "splt_part", "Did you mean `split_part`?"),
    ("{path: a, weight: 1}", "weight", "no such key"),
    ("{path: 12}", "path", "text in quotes is expected here, not the number 12"),
    ("{path: ''}", "path", "empty"),
    ("{path: }", "path", "not nothing"),
    ("{path: a, subflavors: [x]}", "subflavors", "a mapping"),
    ("{path: a, subset: {range: [0, 50%]}}", "subset", "both bounds"),
    ("{path: a, shuffle_over_epochs_multiplier: 0}", "shuffle_over_epochs_multiplier", "at least 1"),
    ("{path: a, shuffle_over_epochs_multiplier: 1.5}", "shuffle_over_epochs_multiplier", "whole number"),
    ("{path: a, shuffle_over_epochs_multiplier: yes}", "shuffle_over_epochs_multiplier", "truth value true"),
    ("{path: a, aux: {x: 3}}", "aux.x", "a path"),
    ("{path: a, aux: {x: {fs_pth: b}}}", "aux.x.fs_pth", "no such key"),
    ("{path: a, aux: {x: a+msc://b}}", "aux.x", "not known"),
    ("{path: a, aux: {x: 'filesystem://'}}", "aux.x", "no folder"),
    ("{blend: [{path: a, wieght: 1}]}", "blend[0].wieght", "Did you mean `weight`?"),
    ("{blend: [{path: a}, {path: b, weight: '1'}]}", "blend[1].weight", "a number (weight)"),
    ("{blend: [{path: a, weight: 0}]}", "blend[0].weight", "above 0"),
    ("{blend: [{path: a, weight: -0.5}]}", "blend[0].weight", "negative"),
    ("{blend: [{path: a, weight: }]}", "blend[0].weight", "a number (weight)"),
    ("{blend: [{path: a, weight: true}]}", "blend[0].weight", "truth value"),
    ("{blend: [{path: a, weight: 1e999}]}", "blend[0].weight", "usable"),
    ("{blend: [{path: a, weight: 1e-999999999}]}", "blend[0].weight", "usable"),
    ("{blend: [{path: a, repetitions: 1}]}", "blend[0].repetitions", "no such key"),
    ("{blend_epochized: [{path: a, repetitions: 0}]}", "blend_epochized[0].repetitions", "above 0"),
    ("{blend_epochized: [{path: a, weight: 1}]}", "blend_epochized[0].weight", "no such key"),
    ("{blend: []}", "blend", "empty"),
    ("{blend: }", "blend", "a list"),
    ("{blend: [a]}", "blend[0]", "a mapping with one of"),
    ("{blend: [{path: a}], concat: [{path: a}]}", "", "has `blend` and `concat`"),
    ("{blend: [{path: a}], subflavors: {}}", "subflavors", "no such key"),
    ("{subset: {range: [0, 1]}}", "", "needs one of"),
    ("[]", "", "a mapping with one of"),
    ("{blend: [{path: a}], schedule: []}", "schedule", "a list of steps"),
    ("{blend: [{path: a}], schedule: [{from_position: 0, weight: [1]}]}", "schedule[0].weight", "`weights`"),
    (
        "{blend: [{path: a}], schedule: [{from_position: 1, weights: [1]}]}",
        "schedule[0].from_position",
        "at position 0",
    ),
    ("{blend: [{path: a}], schedule: [{from_position: 0, weights: [1, 2]}]}", "schedule[0].weights", "2 weights"),
    ("{blend: [{path: a}], schedule: [{from_position: 0, weights: [0]}]}", "schedule[0].weights", "above 0"),
    (
        "{blend: [{path: a}], schedule: [{from_position: 0, weights: [1]}, {from_position: 0, weights: [1]}]}",
        "schedule[1].from_position",
        "above 0",
    ),
    ("{blend: [{path: a}, {path: b}], schedule: [{from_position: 0, weights: [1, 0]}]}", "schedule", "never be drawn"),
    ("{blend: [{path: a, weight: 2}], schedule: [{from_position: 0, weights: [1]}]}", "blend[0].weight", "schedule"),
    ("{join: [{path: a}], joiners: {}}", "joiners", "joiner"),
    ("{join: [{array: a}]}", "join[0]", "put the array behind it"),
    ("{join: {x: {array: a}, y: {path: b}}}", "join.x", "put the array behind it"),
    ("{join: [{path: a}, {array: b, path: b}]}", "join[1].path", "no such key"),
    ("{join: [{path: a}, {array: b, split_part: x}]}", "join[1].split_part", "no such key"),
    ("{join: [{path: a}, {array: b, by: key}]}", "join[1].by", "needs `keys`"),
    ("{join: [{path: a}, {array: b, by: row, keys: k}]}", "join[1].keys", "keys have no meaning"),
    ("{join: [{path: a}, {array: b, by: column}]}", "join[1].by", "one of row, key"),
    ("{array: b}", "array", "no such key"),
    ("{join: [], joiner: {__module__: a, __class__: B}}", "join", "no dataset"),
    ("{join: [{path: a}], joiner: B}", "joiner", "__module__"),
    ("{join: [{path: a}], joiner: {__class__: B}}", "joiner", "__module__"),
    ("{join: [{path: a}], joiner: {__module__: a, __class__: B, __function__: c}}", "joiner", "either"),
    ("{join: [{path: a}], joiner: {__module__: a, __class__: 3}}", "joiner.__class__", "text"),
    ("{join: [{path: a, nonmatch: skip}], joiner: {__module__: a, __class__: B}}", "join[0].nonmatch", "primary"),
    ("{join: [{path: a, nonmatch: drop}], joiner: {__module__: a, __class__: B}}", "join[0].nonmatch", "one of"),
    (
        "{join: [{path: a, subset: {range: [0, 1]}}], joiner: {__module__: a, __class__: B}}",
        "join[0].subset",
        "at the join",
    ),
    ("{join: {x: {path: a, aux: {k: v}}}, joiner: {__module__: a, __class__: B}}", "join.x.aux", "no meaning"),
    (
        "{join: [{path: a, shuffle_over_epochs_multiplier: }], joiner: {__module__: a, __class__: B}}",
        "join[0].shuffle_over_epochs_multiplier",
        "at the join",
    ),
]


@pytest.mark.parametrize(("text", "where", "says"), BAD_NODES)
def test_mistakes_are_told_with_their_place(text: str, where: str, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        node(text)
    place = f"meta.yaml: $.splits.train{'.' if where else ''}{where}: "
    assert str(caught.value).startswith(place), caught.value
    assert says in str(caught.value)
