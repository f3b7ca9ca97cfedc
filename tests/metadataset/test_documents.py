"""Documents of metadatasets: their frame, in both versions of it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from metadatasets import V2, node

from energon_grain import Metadataset
from energon_grain.errors import ConfigError, DatasetNotFoundError
from energon_grain.metadataset.documents import parse_document, read_document
from energon_grain.metadataset.forms import DatasetReference, MetadatasetBlend


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
    assert [child.number for child in blend.blend] == [5, None, None]
    nodes = [child.node for child in blend.blend]
    assert [one.tags for one in nodes if isinstance(one, DatasetReference)] == [
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
