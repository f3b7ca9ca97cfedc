from __future__ import annotations

import sys
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from energon_grain.errors import ConfigError, DatasetNotFoundError
from energon_grain.formats.class_ref import ClassRef
from energon_grain.formats.yaml_dialect import parse_yaml
from energon_grain.metadataset.blends import (
    BlendEntry,
    MetadatasetBlend,
    MetadatasetBlendEpochized,
    MetadatasetConcat,
)
from energon_grain.metadataset.documents import Metadataset, MetadatasetV2, parse_document, read_document
from energon_grain.metadataset.joins import JoinArrayReference, Joiner, MetadatasetJoin
from energon_grain.metadataset.references import AuxReference, DatasetReference
from energon_grain.metadataset.subset import Subset

V2 = {"__module__": "megatron.energon", "__class__": "MetadatasetV2"}


def node(text: str) -> Any:
    """Parse one node of a V2 document."""
    content = {**V2, "splits": {"train": parse_yaml(text, where="meta.yaml")}}
    return parse_document(content, file="meta.yaml").node("train")


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


def test_reading_imports_nothing(tmp_path: Path) -> None:
    (tmp_path / "trap.py").write_text("raise SystemExit")
    sys.path.insert(0, str(tmp_path))
    try:
        node("{join: [{path: a}], joiner: {__module__: trap, __class__: Trap}}")
        with pytest.raises(ConfigError, match="no metadataset"):
            parse_document({"__module__": "trap", "__class__": "Trap", "splits": {}})
    finally:
        sys.path.remove(str(tmp_path))
    assert "trap" not in sys.modules


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


def test_what_has_no_effect_in_a_join_is_let_pass() -> None:
    node("""
        join: [{path: a, shuffle_over_epochs_multiplier: 1, aux: null, subset: }]
        joiner: {__module__: a, __class__: B}
    """)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ({}, "$: the key `splits` is missing"),
        ([], "$: a mapping with `splits`"),
        (None, "$: a mapping with `splits`"),
        ({"splits": {}}, "$.splits: there is no split"),
        ({"split": {}}, "$.split: there is no such key. Did you mean `splits`?"),
        ({"splits": {"train": {"path": "a"}}}, "`__class__: MetadatasetV2` at its top"),
        ({"splits": {"train": {"datasets": []}}}, "$.splits.train.datasets: a list of at least one"),
        (
            {"splits": {"train": {"datasets": [{"path": "a", "aux": {}}]}}},
            "$.splits.train.datasets[0].aux: there is no",
        ),
        ({"splits": {"train": {"dataset": []}}}, "Did you mean `datasets`?"),
        ({**V2, "__class__": "MetadatasetV3", "splits": {}}, "Did you mean 'MetadatasetV2'?"),
        ({**V2, "__module__": "mine", "splits": {}}, "$.__class__: mine.MetadatasetV2 is no metadataset"),
        ({**V2, "__module__": 3, "splits": {}}, "$.__module__: text"),
        ({**V2, "__function__": "f", "splits": {}}, "$.__function__: there is no such key"),
        ({**V2, "splits": {"train": None}}, "$.splits.train: a mapping with one of"),
        ({**V2, "splits": {3: {"path": "a"}}}, "$.splits: the key 3 must be text"),
        ({**V2, "splits": {"my split": {"pth": "a"}}}, "$.splits['my split'].pth: "),
    ],
)
def test_mistakes_in_the_frame_are_told(content: Any, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_document(content, file="meta.yaml")
    assert str(caught.value).startswith("meta.yaml: ")
    assert says in str(caught.value)


def test_old_documents_become_blends() -> None:
    content = {
        "splits": {
            "train": {
                "datasets": [
                    {"path": "a", "weight": 5, "subflavor": "old"},
                    {"path": "b", "subflavor": "old", "subflavors": {"k": 1}},
                    {"path": "c", "subflavor": "old", "subflavors": {"__subflavor__": "new"}},
                ]
            }
        }
    }
    document = parse_document(content, file="meta.yaml")
    assert isinstance(document, Metadataset)
    blend = document.node("train")
    assert isinstance(blend, MetadatasetBlend)
    assert [entry.weight for entry in blend.blend] == [5, 1, 1]
    nodes = [entry.node for entry in blend.blend]
    assert [one.subflavors for one in nodes if isinstance(one, DatasetReference)] == [
        {"__subflavor__": "old"},
        {"__subflavor__": "old", "k": 1},
        {"__subflavor__": "new"},
    ]
    assert str(nodes[1].place) == "meta.yaml: $.splits.train.datasets[1]"


def test_a_missing_split_is_told_with_what_there_is() -> None:
    document = parse_document({**V2, "splits": {"train": {"path": "a"}}}, file="meta.yaml")
    with pytest.raises(ConfigError, match=r"meta\.yaml: \$\.splits: there is no split 'trian'. Did you mean 'train'"):
        document.node("trian")
    with pytest.raises(ConfigError, match="it has 'train'"):
        document.node("x")


def test_extension_keys_hold_anchors(tmp_path: Path) -> None:
    file = tmp_path / "meta.yaml"
    file.write_text("""
__module__: megatron.energon
__class__: MetadatasetV2
x-web: &web {subflavors: {source: web}}
splits:
  train: {path: a, <<: *web}
""")
    reference = read_document(file).node("train")
    assert isinstance(reference, DatasetReference)
    assert reference.subflavors == {"source": "web"}


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(DatasetNotFoundError, match=r"nothing\.yaml"):
        read_document(tmp_path / "nothing.yaml")
    with pytest.raises(ConfigError, match="can be read"):
        read_document(tmp_path)


def test_python_builds_the_same_nodes_with_the_same_checks() -> None:
    from_file = node("""
        blend:
          - {path: a, weight: 0.1}
          - {path: b, weight: 2, subset: {range: [0%, 50%]}}
    """)
    in_python = MetadatasetBlend(
        blend=[
            BlendEntry(node=DatasetReference(path="a"), weight=0.1),
            (DatasetReference(path=Path("b"), subset=["0%", "50%"]), Decimal(2)),
        ]  # type: ignore[arg-type]
    )
    assert in_python == from_file
    assert MetadatasetBlend(blend=[{"path": "a", "weight": 0.1}, from_file.blend[1]]) == from_file  # type: ignore[arg-type]
    document = MetadatasetV2(path="/sets/meta.yaml", splits={"train": in_python})
    assert document.node("train") is in_python
    assert Metadataset(splits={"train": {"datasets": [{"path": "a"}]}}).node("train") == MetadatasetBlend(  # type: ignore[dict-item]
        blend=[(DatasetReference(path="a"), 1)]  # type: ignore[arg-type]
    )
    scheduled = MetadatasetBlend(blend=[DatasetReference(path="a")], schedule=[(0, [1]), (10, [2])])  # type: ignore[arg-type]
    assert scheduled.schedule is not None
    assert scheduled.schedule[1].from_position == 10


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: DatasetReference(path=3), r"DatasetReference: \$\.path: text"),  # type: ignore[arg-type]
        (lambda: DatasetReference(path="a", shuffle_over_epochs_multiplier=0), "at least 1"),
        (lambda: BlendEntry(node=DatasetReference(path="a"), weight=-1), r"BlendEntry: \$\.weight: weight -1"),  # type: ignore[arg-type]
        (lambda: MetadatasetBlend(blend=[(DatasetReference(path="a"), 0)]), "above 0"),  # type: ignore[list-item]
        (lambda: MetadatasetBlend(blend=[{"path": "a", "wieght": 1}]), r"\$\.blend\[0\]\.wieght"),  # type: ignore[list-item]
        (lambda: MetadatasetBlend(blend=[(1, 2, 3)]), "a pair"),  # type: ignore[list-item]
        (lambda: MetadatasetV2(splits={"train": 3}), r"MetadatasetV2: \$\.splits\.train: a mapping"),  # type: ignore[dict-item]
    ],
)
def test_python_mistakes_are_told_too(make: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        make()


def test_a_joiner_can_be_passed_itself() -> None:
    def merge(a: Any) -> Any:
        return a

    join = MetadatasetJoin(join=[{"path": "a"}], joiner=merge)  # type: ignore[arg-type]
    assert join.joiner == Joiner(target=merge, is_function=True)
