"""Metadatasets for tests: single nodes, and files."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from energon_grain import SavableDataset
from energon_grain.formats.yaml_dialect import parse_yaml
from energon_grain.metadataset.documents import load_metadataset, parse_document

Write = Callable[[str, str], Path]
"""The fixture `write` of tests of resolving."""
V2 = {"__module__": "megatron.energon", "__class__": "MetadatasetV2"}
FRAME = "".join(f"{key}: {value}\n" for key, value in V2.items())


def v2(**splits: Any) -> dict[str, Any]:
    """The content of a file of version 2."""
    return {**V2, "splits": splits}


def node(text: str) -> Any:
    """Parse one node of a V2 document."""
    return parse_document(v2(train=parse_yaml(text, where="meta.yaml")), file="meta.yaml").node("train")


def write_v2(folder: Path, name: str = "meta.yaml", /, **splits: Any) -> Path:
    """Write a file of version 2. Each split is a mapping, or YAML on one line."""
    path = folder / name
    texts = {name: each if isinstance(each, str) else json.dumps(each) for name, each in splits.items()}
    path.write_text(f"{FRAME}splits:\n" + "".join(f"  {name}: {text}\n" for name, text in texts.items()))
    return path


def load(file: Path, split_part: str = "train", **options: Any) -> SavableDataset:
    """The tree of a split, whether its data exist or not."""
    return load_metadataset(file, split_part=split_part, require_data=False, **options)
