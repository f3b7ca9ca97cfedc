"""Nodes of metadatasets: what their keys mean. Mistakes in them are in test_error_snapshots.py."""

from __future__ import annotations

import os
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from metadatasets import node

from energon_grain import DatasetLoaderInterface, MetadatasetV2
from energon_grain.datasets.aux_stores import AuxReference
from energon_grain.datasets.joined_leaf import Joiner
from energon_grain.errors import ConfigError
from energon_grain.formats.class_ref import ClassRef
from energon_grain.metadataset.documents import load_metadataset
from energon_grain.metadataset.flat import leaves_of
from energon_grain.metadataset.forms import (
    DatasetReference,
    JoinArrayReference,
    MetadatasetBlend,
    MetadatasetBlendEpochized,
    MetadatasetConcat,
)
from energon_grain.samplers.subset import Subset


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
    assert isinstance(got, DatasetReference)
    assert (got.path, got.split_part, got.shuffle_over_epochs_multiplier) == ("./a", "on", 3)
    assert (got.dataset_config, got.split_config, got.name) == ("other.yaml", "parts.json", "mine")
    assert got.subset == Subset(absolute=(10, None))
    assert got.tags == {"a": 0.5, "b": [1, {"c": 1.5}], "d": None}
    assert type(got.tags["a"]) is float
    assert got.aux == {
        "plain": AuxReference(path="../media"),
        "mapped": AuxReference(path="store"),
        "files": AuxReference(kind="filesystem", path="files"),
        "absolute": AuxReference(kind="filesystem", path="/files"),
        "remote": AuxReference(path="msc://store/set"),
        "remote_files": AuxReference(kind="filesystem", path="msc://store/folder"),
        "mapped_files": AuxReference(kind="filesystem", path="folder"),
    }
    assert str(got.place) == "meta.yaml: $.splits.train"


def test_empty_values_are_as_if_left_out() -> None:
    assert node("{path: a, split_part: , subflavors: , aux: , subset: , name: }") == node("{path: a}")


def test_null_passes_mean_no_shuffling() -> None:
    assert node("{path: a, shuffle_over_epochs_multiplier: null}").shuffle_over_epochs_multiplier is None
    assert node("{path: a, shuffle_over_epochs_multiplier: -1}").shuffle_over_epochs_multiplier == -1


def test_weights_are_the_fractions_that_their_text_means() -> None:
    got = node("blend: [{path: a, weight: 0.1}, {path: b, weight: 1e-3}, {path: c}, {path: d, weight: 1_000.25}]")
    weights = [child.number for child in got.blend]
    assert weights == [Fraction(1, 10), Fraction(1, 1000), None, Fraction(4001, 4)]
    text = "0.333333333333333333333333333333"
    assert node(f"blend: [{{path: a, weight: {text}}}]").blend[0].number == Fraction(text)


def test_repetitions_are_exact() -> None:
    got = node("blend_epochized: [{path: a, repetitions: 0.7}, {path: b, repetitions: 3}, {path: c}]")
    assert [child.number for child in got.blend_epochized] == [Fraction(7, 10), 3, None]


def test_forms_nest_inline() -> None:
    got = node("""
        blend:
          - weight: 2
            concat: [{path: a}, {blend_epochized: [{path: b, repetitions: 2}]}]
          - blend: [{path: c}, {path: d, weight: 3}]
            subset: {range: [0%, 50%]}
    """)
    assert isinstance(got, MetadatasetBlend)
    concat, blend = (child.node for child in got.blend)
    assert isinstance(concat, MetadatasetConcat)
    assert isinstance(concat.concat[1], MetadatasetBlendEpochized)
    assert isinstance(blend, MetadatasetBlend)
    assert blend.subset == Subset.parse(["0%", "50%"])
    assert got.blend[0].number == 2
    assert str(concat.concat[1].place) == "meta.yaml: $.splits.train.blend[0].concat[1]"


def test_a_program_may_put_nodes_that_it_was_given_into_mappings() -> None:
    inner = node("{path: a}")
    document = MetadatasetV2(splits={"train": {"blend": [inner, {"path": "b", "weight": Decimal("0.3")}]}})
    blend = document.node("train")
    assert isinstance(blend, MetadatasetBlend)
    assert blend.blend[0] == (inner, None)
    assert blend.blend[1].number == Fraction(3, 10)


def test_keys_that_are_no_text_are_told_with_their_place() -> None:
    with pytest.raises(ConfigError, match=r"splits\.train\.subflavors: text is expected for each key"):
        MetadatasetV2(splits={"train": {"path": "a", "subflavors": {1: "b"}}})


def test_a_schedule_gives_weights_by_position() -> None:
    got = node("""
        blend: [{path: a}, {path: b}]
        schedule:
          - {from_position: 0, weights: [1, 0]}
          - {from_position: 1_000, weights: [0.5, 0.25]}
    """)
    assert [(step.from_position, tuple(step.weights)) for step in got.schedule] == [
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
    (first, _), (second, image) = got.join
    assert (first, second) == ("text", "images")
    assert image.nonmatch == "none"
    assert got.joiner == Joiner(ref=ClassRef(module="my.module", name="merge"), is_function=True)
    listed = node("""
        join: [{path: a}, {path: b, nonmatch: skip}]
        joiner: {__module__: megatron.energon, __class__: CaptioningSample}
    """)
    assert [member.nonmatch for _, member in listed.join] == ["error", "skip"]
    assert not listed.joiner.is_function


def test_arrays_in_joins() -> None:
    got = node("join: [{path: a}, {array: b.zarr}, {array: c, keys: k.txt, nonmatch: none, field: f}]")
    _, (_, by_row), (_, by_key) = got.join
    assert isinstance(by_row, JoinArrayReference)
    assert (by_row.array, by_row.keys, by_row.nonmatch, by_row.field) == ("b.zarr", None, "error", None)
    assert (by_key.array, by_key.keys, by_key.nonmatch, by_key.field) == ("c", "k.txt", "none", "f")
    assert node("join: [{path: a}, {array: b.zarr, by: row}]").join[1][1].by == "row"


def test_what_has_no_effect_in_a_join_is_let_pass() -> None:
    node("""
        join: [{path: a, shuffle_over_epochs_multiplier: 1, aux: null, subset: }]
        joiner: {__module__: a, __class__: B}
    """)


def test_programs_may_give_paths_numbers_and_functions() -> None:
    def merge(a: Any) -> Any:
        return a

    blend = {"blend": [{"path": Path("a"), "weight": 0.1}, {"path": "b", "weight": Decimal(2), "subset": [0, 5]}]}
    document = MetadatasetV2(splits={"train": blend, "val": {"join": [{"path": "a"}], "joiner": merge}})
    made = document.node("train")
    assert isinstance(made, MetadatasetBlend)
    assert [(child.node.path, child.number) for child in made.blend] == [("a", Fraction(1, 10)), ("b", 2)]
    assert document.node("val").joiner == Joiner(target=merge, is_function=True)  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match=r"MetadatasetV2: \$\.splits\.train: a mapping"):
        MetadatasetV2(splits={"train": 3})


class Own(DatasetLoaderInterface):
    """A program's own way to say what to load."""

    file = None

    def node(self, split_part: str) -> Any:
        return {"blend": [{"path": f"{split_part}-{name}", "weight": weight} for name, weight in (("a", 1), ("b", 3))]}


def test_a_class_of_the_program_gives_nodes_as_mappings() -> None:
    leaves = leaves_of(load_metadataset(Own(), split_part="x", require_data=False))
    assert [leaf.path for leaf in leaves] == [os.path.abspath("x-a"), os.path.abspath("x-b")]
