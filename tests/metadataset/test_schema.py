from __future__ import annotations

import json
from typing import Any

import pytest
from metadatasets import V2

from energon_grain.errors import ConfigError
from energon_grain.formats.yaml_dialect import parse_yaml
from energon_grain.metadataset.documents import json_schema, parse_document

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
    schema = json.loads(json.dumps(json_schema()))
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

    visit(json_schema())
