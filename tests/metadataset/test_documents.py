"""Documents of metadatasets: their frame, both versions of it, and those made in Python."""

from __future__ import annotations

import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from metadatasets import V2, node

from energon_grain.errors import ConfigError, DatasetNotFoundError
from energon_grain.metadataset.blends import BlendEntry, MetadatasetBlend
from energon_grain.metadataset.documents import Metadataset, MetadatasetV2, parse_document, read_document
from energon_grain.metadataset.references import DatasetReference


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
