"""What a metadataset comes to here is what it comes to in Megatron-Energon: leaves, shares, merged settings, errors.

Needs the Python of an environment with megatron-energon in the variable ENERGON_PEER_PYTHON (`make peers`).
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from patience import PATIENCE_S

from energon_grain import traverse_metadataset
from energon_grain.datasets.leaf import LeafDataset
from energon_grain.errors import ConfigError
from energon_grain.metadataset.documents import load_metadataset
from energon_grain.metadataset.flat import flatten
from energon_grain.testing import make_crude_dataset

PEER = os.environ.get("ENERGON_PEER_PYTHON")
pytestmark = [
    pytest.mark.energon,
    pytest.mark.skipif(PEER is None, reason="ENERGON_PEER_PYTHON is not set: no Megatron-Energon to compare with"),
]
LOADER = Path(__file__).with_name("load_with_energon.py")
V2 = "__module__: megatron.energon\n__class__: MetadatasetV2\n"

FILES = {
    "old.yaml": """
splits:
  train:
    datasets:
      - {path: ./text, weight: 5, subflavor: s, shuffle_over_epochs_multiplier: 3}
      - {path: deep/../text, weight: 0.5, subflavor: s, subflavors: {__subflavor__: own, k: 1}, split_part: val}
""",
    "inner.yaml": V2
    + """
splits:
  train:
    blend:
      - {path: text, weight: 3, subset: {range: [10, 30]}, subflavors: {a: inner, b: inner}}
      - path: crude
        weight: 1
        subset: {range: [10%, 90%]}
        shuffle_over_epochs_multiplier: 2
        aux: {media: crude, files: filesystem://text, more: {fs_path: deep}}
    subset: {range: [20%, 80%]}
  val: {path: text, split_part: train}
""",
    "outer.yaml": V2
    + """
splits:
  train:
    blend:
      - {path: inner.yaml, weight: 0.7, subset: {range: [25%, 75%]}, subflavors: {b: outer}}
      - {path: old.yaml, weight: 0.3, shuffle_over_epochs_multiplier: 2}
      - {path: crude, weight: 1_0, split_part: val, shuffle_over_epochs_multiplier: -1}
    subset: {range: [0%, 50%]}
  val:
    blend_epochized:
      - {path: inner.yaml, split_part: val, repetitions: 0.7, subflavors: {c: on, d: 012}}
      - {path: repeated.yaml, split_part: train, repetitions: 2}
""",
    "repeated.yaml": V2
    + """
splits:
  train:
    blend_epochized:
      - {path: text, repetitions: 1.5, shuffle_over_epochs_multiplier: null}
      - {path: crude}
""",
    "mixed.yaml": V2 + "splits: {train: {blend: [{path: repeated.yaml}]}}",
    "counted.yaml": V2 + "splits: {train: {blend: [{path: text}], subset: {range: [0, 10]}}}",
    "counted_above.yaml": V2 + "splits: {train: {path: inner.yaml, subset: {range: [0, 10]}}}",
    "percent_and_end.yaml": V2 + "splits: {train: {path: text, subset: {range: [50%, end]}}}",
    "percent_and_number.yaml": V2 + "splits: {train: {path: text, subset: {range: [0, 50%]}}}",
    "to_the_end.yaml": V2 + "splits: {train: {path: text, subset: {range: [50, end]}}}",
}
LOADS = [
    *("old.yaml@train", "inner.yaml@train", "inner.yaml@val", "outer.yaml@train", "outer.yaml@val"),
    *("repeated.yaml@train", "to_the_end.yaml@train"),
]
REFUSED = [
    *("mixed.yaml@train", "counted.yaml@train", "counted_above.yaml@train"),
    *("percent_and_end.yaml@train", "percent_and_number.yaml@train"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("metadatasets")
    (root / "deep").mkdir()
    for name in ("text", "crude"):
        make_crude_dataset(root / name, n=55, shards=5)
        split = root / name / ".nv-meta" / "split.yaml"
        info = json.loads((root / name / ".nv-meta" / ".info.json").read_text())
        shards = json.dumps(list(info["shard_counts"]))
        split.write_text(f"split_parts: {{train: {shards}, val: {shards}}}\nexclude: []\n")
    for name, text in FILES.items():
        (root / name).write_text(text)
    return root


@pytest.fixture(scope="module")
def energon(folder: Path) -> dict[str, Any]:
    assert PEER is not None
    target = folder / "energon.json"
    requests = [*LOADS, *REFUSED]
    command = [PEER, str(LOADER), str(target), *(str(folder / request) for request in requests)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return dict(zip(requests, json.loads(target.read_text()), strict=True))


@pytest.mark.parametrize("request_", LOADS)
def test_leaves_are_the_same(folder: Path, energon: dict[str, Any], request_: str) -> None:
    name, split_part = request_.split("@")
    theirs = energon[request_]["loaded"]["leaves"]
    ours = list(flatten(load_metadataset(folder / name, split_part=split_part)))
    assert len(ours) == len(theirs)
    for flat, other in zip(ours, theirs, strict=True):
        leaf = flat.leaf
        assert isinstance(leaf, LeafDataset)
        assert leaf.path == other["path"]
        assert leaf.subflavors == other["subflavors"]
        assert leaf.shuffle_over_epochs_multiplier == other["passes"]
        assert (None if leaf.subset is None else list(leaf.subset.resolve(55))) == other["range"]
        assert {key: aux.path for key, aux in leaf.aux.items()} == other["aux"]
        assert (None if flat.shares is None else float(flat.shares[0][1])) == pytest.approx(other["weight"])
        assert (None if flat.repetitions is None else float(flat.repetitions)) == pytest.approx(other["repetitions"])


@pytest.mark.parametrize("request_", LOADS)
def test_traversal_is_the_same(folder: Path, energon: dict[str, Any], request_: str) -> None:
    name, split_part = request_.split("@")
    ours = [
        [str(each.path), each.split_part, {key: str(aux) for key, aux in each.aux.items()}, each.subflavors]
        for each in traverse_metadataset(folder / name, split_part=split_part)
    ]
    assert ours == energon[request_]["traversed"]


@pytest.mark.parametrize("request_", REFUSED)
def test_both_refuse_the_same(folder: Path, energon: dict[str, Any], request_: str) -> None:
    assert "error" in energon[request_]["loaded"]
    with pytest.raises(ConfigError):
        load_metadataset(folder / request_.split("@")[0], split_part="train")
