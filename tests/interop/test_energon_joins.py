"""Joins prepared by either side load in the other."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from energon_peer import energon, needs_energon, run_there

from energon_grain import prepare_metadataset
from energon_grain.formats.splits import SplitConfig, write_split_config
from energon_grain.kinds.joins.build import energon_name_of
from energon_grain.kinds.joins.index import cache_folder, index_file_name
from energon_grain.kinds.joins.opening import open_join
from energon_grain.metadataset.documents import find_joins
from energon_grain.prepare import prepare_dataset
from energon_grain.prepare.columnar_build import open_columnar
from energon_grain.testing import write_tars

pytestmark = needs_energon
READER = Path(__file__).with_name("read_joins_with_energon.py")


def make_dataset(root: Path, keys: list[str], exclude: str) -> None:
    write_tars(root / "parts", [{"__key__": key, "txt": f"{root.name} {key}"} for key in keys], shards=4)
    prepare_dataset(root, split_ratio={"train": 1}, sample_type="TextSample", field_map={"text": "txt"}, num_workers=0)
    shards = tuple(f"parts/shard_{number:03d}.tar" for number in (2, 0, 1, 3))
    write_split_config(root / ".nv-meta" / "split.yaml", SplitConfig(split_parts={"train": shards}, exclude=(exclude,)))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two datasets with common keys in different orders, and excludes on both sides; `joined.py` has the joiner."""
    keys = [f"{number:03d}" for number in range(40)]
    make_dataset(tmp_path / "one", keys, "parts/shard_001.tar")
    make_dataset(tmp_path / "two", [keys[i] for i in np.random.default_rng(1).permutation(40)], "parts/shard_000.tar/x")
    (tmp_path / "joined.yaml").write_text(
        "__module__: megatron.energon\n__class__: MetadatasetV2\nsplits:\n  train:\n    join:\n"
        "    - {path: one}\n    - {path: two, nonmatch: skip}\n"
        "    joiner: {__module__: my_joiner, __function__: caption}\n"
    )
    (tmp_path / "my_joiner.py").write_text(
        "from megatron.energon import CaptioningSample\n"
        "def caption(one, two):\n"
        "    return CaptioningSample.derive_from(one, image=one.text, caption=two.text)\n"
    )
    return tmp_path


def read_there(folder: Path) -> list[list[str]]:
    target = folder / "rows.json"
    run_there(READER, target, folder / "joined.yaml", "train", PYTHONPATH=str(folder))
    return json.loads(target.read_text())


def expected(folder: Path) -> list[list[str]]:
    index = open_join(find_joins(folder / "joined.yaml")[0], joined_on_use=0)
    one, two = (open_columnar(folder / name) for name in ("one", "two"))
    pairs = [(one.key(first), two.key(second)) for first, second in index.rows.tolist()]
    assert all(first == second for first, second in pairs)
    return [[key, f"one {key}", f"two {key}"] for key, _ in pairs]


def test_energon_loads_our_index(folder: Path) -> None:
    report = prepare_metadataset(folder / "joined.yaml")
    assert report.notes == ()
    assert report.joins[0].rows == 30
    assert read_there(folder) == expected(folder)


def test_we_load_energons_index_and_live_beside_it(folder: Path) -> None:
    metadataset, cache = folder / "joined.yaml", cache_folder(folder / "joined.yaml")
    prepare = ("prepare", "--non-interactive", "--no-progress", metadataset)
    energon(*prepare)
    (file,) = cache.iterdir()
    (join,) = find_joins(metadataset)
    assert energon_name_of(join.inputs()) == file.name
    there, before = read_there(folder), file.read_bytes()
    here = expected(folder)  # however large, as Energon prepared it
    assert sorted(there) == sorted(here)
    report = prepare_metadataset(metadataset)
    assert not report.joins[0].built
    assert file.read_bytes() == before
    # Energon's bytes are ours, where it keeps the order inside of shards.
    ours = (cache / index_file_name(report.joins[0].name)).read_bytes()
    rows, others = (np.frombuffer(data[16:], np.int64).reshape(-1, 6) for data in (ours, before))
    assert ours[:16] == before[:16]
    assert sorted(rows.tolist()) == sorted(others.tolist())
    assert expected(folder) == here
    energon(*prepare)  # removes what it did not write, and must not stumble over our folder
    assert file.exists()
    assert expected(folder) == here
