"""Documents of metadatasets: their frame, their nodes and their schema. Mistakes are in test_error_snapshots.py."""

from __future__ import annotations

import json
import os
import sys
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from cli_runs import run
from metadatasets import V2, node

from energon_grain import DatasetLoaderInterface, MetadatasetV2
from energon_grain.cooking.aux_stores import AuxReference
from energon_grain.errors import ConfigError, DatasetNotFoundError
from energon_grain.formats.yaml_dialect import parse_yaml
from energon_grain.kinds.joins.leaf import Joiner
from energon_grain.metadataset.documents import load_metadataset, parse_document, read_document
from energon_grain.metadataset.flat import leaves_of
from energon_grain.metadataset.forms import (
    DatasetReference,
    MetadatasetBlend,
)
from energon_grain.samplers.subset import Subset


def test_reading_imports_nothing(tmp_path: Path) -> None:
    (tmp_path / "trap.py").write_text("raise SystemExit")
    sys.path.insert(0, str(tmp_path))
    try:
        node("{join: [{path: a}], joiner: {__module__: trap, __class__: Trap}}")
        with pytest.raises(ConfigError, match="is not a metadataset class"):
            parse_document({"__module__": "trap", "__class__": "Trap", "splits": {}})
    finally:
        sys.path.remove(str(tmp_path))
    assert "trap" not in sys.modules


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
    with pytest.raises(ConfigError, match="cannot be read"):
        read_document(tmp_path)


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


def test_keys_that_are_no_text_are_told_with_their_place() -> None:
    with pytest.raises(ConfigError, match=r"splits\.train\.subflavors: expected text for each key"):
        MetadatasetV2(splits={"train": {"path": "a", "subflavors": {1: "b"}}})


def test_what_has_no_effect_in_a_join_is_let_pass() -> None:
    node("""
        join: [{path: a, shuffle_over_epochs_multiplier: 1, aux: null, subset: }]
        joiner: {__module__: a, __class__: B}
    """)


def test_programs_may_give_paths_numbers_and_functions() -> None:
    def merge(a: Any) -> Any:
        return a

    given = node("{path: c}")
    blend = {
        "blend": [
            {"path": Path("a"), "weight": 0.1},
            {"path": "b", "weight": Decimal("0.3"), "subset": [0, 5]},
            given,
        ]
    }
    document = MetadatasetV2(splits={"train": blend, "val": {"join": [{"path": "a"}], "joiner": merge}})
    made = document.node("train")
    assert isinstance(made, MetadatasetBlend)
    numbers = [(child.node.path, child.number) for child in made.blend[:2]]
    assert numbers == [("a", Fraction(1, 10)), ("b", Fraction(3, 10))]
    assert made.blend[2] == (given, None)
    assert document.node("val").joiner == Joiner(target=merge, is_function=True)  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match=r"MetadatasetV2: \$\.splits\.train: expected a mapping"):
        MetadatasetV2(splits={"train": 3})


class Own(DatasetLoaderInterface):
    """A program's own way to say what to load."""

    file = None

    def node(self, split_part: str) -> Any:
        return {"blend": [{"path": f"{split_part}-{name}", "weight": weight} for name, weight in (("a", 1), ("b", 3))]}


def test_a_class_of_the_program_gives_nodes_as_mappings() -> None:
    leaves = leaves_of(load_metadataset(Own(), split_part="x", require_data=False))
    assert [leaf.path for leaf in leaves] == [os.path.abspath("x-a"), os.path.abspath("x-b")]


jsonschema = pytest.importorskip("jsonschema")

JOINER = {"__module__": "megatron.energon", "__class__": "CaptioningSample"}


def v2(node: Any) -> dict[str, Any]:
    return {**V2, "splits": {"train": node}}


VALID = [
    v2({"path": "a"}),
    v2({"path": "a", "split_part": None, "shuffle_over_epochs_multiplier": None, "subflavors": {"a": [1]}}),
    v2({"path": "a", "subflavor": "s", "subflavors": {"k": 1}}),
    v2({"join": [{"path": "a", "subflavor": "s"}], "subflavor": "t"}),
    v2({"path": "a", "subset": {"range": [10, "end"]}, "name": "n", "shuffle_over_epochs_multiplier": -1}),
    v2({"path": "a", "subset": {"range": ["2.5%", "50%"]}}),
    v2({"path": "a", "subset": [0, 5]}),
    v2({"path": "a", "aux": {"x": "filesystem://y", "z": {"fs_path": "y"}, "w": {"path": "y"}}}),
    v2({"blend": [{"path": "a", "weight": 0.5}, {"path": "b"}]}),
    v2({"blend": [{"path": "a"}], "schedule": [{"from_position": 0, "weights": [1]}]}),
    v2({"blend_epochized": [{"path": "a", "repetitions": 0.7}, {"concat": [{"path": "b"}], "repetitions": 2}]}),
    v2({"blend": [{"blend": [{"path": "a", "weight": 1}], "weight": 2, "subset": {"range": ["0%", "50%"]}}]}),
    v2({"join": [{"path": "a"}, {"path": "b", "nonmatch": "skip"}], "joiner": JOINER}),
    v2({"join": [{"path": "a"}, {"array": "b"}, {"array": "c", "by": "key", "keys": "k", "field": "f"}]}),
    v2({"join": [{"path": "a"}], "split_config": "s.yaml", "dataset_config": "d.yaml"}),
    v2({"blend": [{"join": {"x": {"path": "a"}}, "joiner": {"__module__": "m", "__function__": "f"}, "weight": 3}]}),
    {**v2({"path": "a"}), "x-shared": {"anything": 1}},
    {"splits": {"train": {"datasets": [{"path": "a", "weight": 5, "subflavor": "s"}, {"path": "b"}]}}},
    {"__module__": "megatron.energon", "__class__": "Metadataset", "splits": {"train": {"datasets": [{"path": "a"}]}}},
]

INVALID = [
    {},
    {"splits": {}},
    v2({}),
    v2({"pth": "a"}),
    v2({"path": 3}),
    v2({"path": ""}),
    v2({"path": None}),
    v2({"path": "a", "weight": 1}),
    v2({"path": "a", "subset": {"range": [0, "50%"]}}),
    v2({"path": "a", "subset": {"range": ["50%", "end"]}}),
    v2({"path": "a", "subset": {"range": [0]}}),
    v2({"path": "a", "shuffle_over_epochs_multiplier": 0}),
    v2({"path": "a", "aux": {"x": 1}}),
    v2({"path": "a", "aux": {"x": {"path": "a", "fs_path": "b"}}}),
    v2({"blend": []}),
    v2({"blend": [{"path": "a", "weight": 0}]}),
    v2({"blend": [{"path": "a", "weight": "1"}]}),
    v2({"blend": [{"path": "a", "weight": None}]}),
    v2({"blend": [{"path": "a", "wieght": 1}]}),
    v2({"blend": [{"path": "a", "repetitions": 1}]}),
    v2({"blend": [{"path": "a"}], "concat": [{"path": "b"}]}),
    v2({"blend": [{"path": "a"}], "subflavors": {}}),
    v2({"blend_epochized": [{"path": "a", "weight": 1}]}),
    v2({"concat": [{"path": "a", "weight": 1}]}),
    v2({"join": [{"path": "a"}], "joiner": 3}),
    v2({"join": [{"path": "a"}, {"array": "b", "path": "b"}]}),
    v2({"join": [{"path": "a"}, {"array": "b", "by": "column"}]}),
    v2({"join": [{"path": "a"}, {"array": "b", "subflavors": {}}]}),
    v2({"array": "b"}),
    v2({"join": [{"path": "a", "nonmatch": "drop"}], "joiner": JOINER}),
    v2({"join": [{"path": "a"}], "joiner": {"__module__": "m"}}),
    v2({"blend": [{"path": "a"}], "schedule": [{"from_position": -1, "weights": [1]}]}),
    {**V2, "splits": {"train": {"datasets": [{"path": "a"}]}}},
    {**v2({"path": "a"}), "other": 1},
    {"splits": {"train": {"path": "a"}}},
    {"splits": {"train": {"datasets": []}}},
    {"splits": {"train": {"datasets": [{"path": "a", "aux": {}}]}}},
    {"__module__": "m", "__class__": "Other", "splits": {"train": {"datasets": [{"path": "a"}]}}},
]


@pytest.fixture(scope="module")
def validator() -> Any:
    schema = json.loads(run("schema").output)
    jsonschema.Draft7Validator.check_schema(schema)
    return jsonschema.Draft7Validator(schema)


@pytest.mark.parametrize("content", VALID)
def test_schema_and_reader_accept(validator: Any, content: Any) -> None:
    validator.validate(content)
    parse_document(content)
    parse_document(parse_yaml(json.dumps(content), where="meta.yaml"))


@pytest.mark.parametrize("content", INVALID)
def test_schema_and_reader_refuse(validator: Any, content: Any) -> None:
    assert not validator.is_valid(content)
    with pytest.raises(ConfigError):
        parse_document(content)


def test_every_key_is_described() -> None:
    def visit(schema: Any) -> None:
        if isinstance(schema, dict):
            for name, value in schema.get("properties", {}).items():
                if not name.startswith("__") and name != "range":
                    assert len(value["description"]) > 10, name
            for value in schema.values():
                visit(value)
        elif isinstance(schema, list):
            for value in schema:
                visit(value)

    visit(json.loads(run("schema").output))
