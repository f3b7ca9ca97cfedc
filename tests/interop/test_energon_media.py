"""Metadata of media that Megatron-Energon gathers, we read, and the other way round; and where the two differ."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from energon_peer import energon, needs_energon, run_there
from media_kinds import PICTURES, SOUNDS, VIDEOS
from sqlite_rows import rows

from energon_grain import SystemFileStore, WebdatasetFileStore, open_columns
from energon_grain.prepare import MediaFilterConfig, prepare_dataset, prepare_media
from energon_grain.testing import write_tars

pytestmark = needs_energon
READER = Path(__file__).with_name("read_media_with_energon.py")
BY_EXTENSION = MediaFilterConfig.parse(None, False, True)
TABLE = "SELECT entry_key, metadata_type, metadata_json FROM media_metadata ORDER BY entry_key"
SCHEMA = "SELECT name, sql FROM sqlite_master WHERE name LIKE '%media_%' ORDER BY name"


@pytest.fixture(scope="module")
def media() -> dict[str, bytes]:
    """By name; each name is a key and a part."""
    return {name: make() for name, make in {**PICTURES, **SOUNDS, **VIDEOS}.items()}


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory, media: dict[str, bytes]) -> dict[str, Path]:
    """Folders that we prepared and that Energon prepared, with tars and with plain files."""
    folder = tmp_path_factory.mktemp("media")
    samples: list[dict[str, Any]] = []
    (folder / "plain").mkdir()
    for name, data in media.items():
        key, part = name.split(".")
        samples.append({"__key__": f"{part}_{key}", part: data})
        (folder / "plain" / name).write_bytes(data)
    write_tars(folder / "tars", samples, shards=2)
    found: dict[str, Path] = {}
    for kind in ("tars", "plain"):
        for who in ("ours", "theirs"):
            found[f"{who} {kind}"] = Path(shutil.copytree(folder / kind, folder / f"{who}-{kind}"))
    prepare_dataset(found["ours tars"], split_ratio=(1,), media_filter=BY_EXTENSION)
    prepare_media(found["ours plain"], BY_EXTENSION)
    options = ("--num-workers", "1", "--no-progress", "--media-metadata-by-extension")
    split = ("--non-interactive", "--split-ratio", "1,0,0", "--skip-dataset-yaml")
    energon("prepare", found["theirs tars"], *split, *options)
    energon("prepare-media", found["theirs plain"], *options)
    return found


def table(root: Path) -> dict[str, tuple[str, dict[str, Any]]]:
    return {key: (kind, json.loads(text)) for key, kind, text in rows(root / ".nv-meta/index.sqlite", TABLE)}


@pytest.mark.parametrize("kind", ["tars", "plain"])
def test_the_tables_say_the_same(both: dict[str, Path], kind: str, media: dict[str, bytes]) -> None:
    ours, theirs = table(both[f"ours {kind}"]), table(both[f"theirs {kind}"])
    assert ours.keys() == theirs.keys()
    assert len(ours) == len(media)
    for key, (type_, said) in theirs.items():
        found = ours[key][1]
        assert (ours[key][0], found.keys()) == (type_, said.keys()), key
        if type_ == "image":
            assert found == said, key
            continue
        close = {"audio_duration": 0.06, "audio_num_samples": 2 * 1152, "video_duration": 0.06}
        for field, value in said.items():
            assert found[field] == pytest.approx(value, rel=1e-6, abs=close.get(field, 1e-6)), (key, field)


def test_the_tables_are_built_alike(both: dict[str, Path]) -> None:
    for kind in ("tars", "plain"):
        schemas = [rows(both[f"{who} {kind}"] / ".nv-meta/index.sqlite", SCHEMA) for who in ("ours", "theirs")]
        ours, theirs = ([(name, sql and " ".join(sql.split())) for name, sql in schema] for schema in schemas)
        assert [(name, sql and sql.replace("( ", "(").replace(" )", ")")) for name, sql in theirs] == ours
        filters = [
            rows(both[f"{who} {kind}"] / ".nv-meta/index.sqlite", "SELECT strategy, patterns FROM media_filters")
            for who in ("ours", "theirs")
        ]
        assert filters[0] == filters[1]


@pytest.mark.parametrize("kind", ["tars", "plain"])
def test_either_reads_what_the_other_wrote(both: dict[str, Path], kind: str, tmp_path: Path) -> None:
    ours = table(both[f"ours {kind}"])
    stored = {"tars": "webdataset", "plain": "filesystem"}[kind]
    run_there(READER, stored, both[f"ours {kind}"], tmp_path / "read.json", *ours)
    read = json.loads((tmp_path / "read.json").read_text(encoding="utf-8"))
    assert {key: said for key, (_, said) in read.items()} == {key: said for key, (_, said) in ours.items()}
    theirs = both[f"theirs {kind}"]
    store = WebdatasetFileStore(theirs) if kind == "tars" else SystemFileStore(theirs)
    for key, (_, said) in table(theirs).items():
        assert store.get_media_metadata(key).to_dict() == said


def test_what_energon_gathered_stays_when_we_look_for_more(both: dict[str, Path], tmp_path: Path) -> None:
    root = Path(shutil.copytree(both["theirs tars"], tmp_path / "data"))
    before = table(root)
    prepare_media(root, MediaFilterConfig.parse("*.png", False, False))
    assert table(root).keys() == before.keys()
    columns = open_columns(root)  # of what we looked at
    assert np.isfinite(columns["width"]).sum() == sum(key.endswith(".png") for key in before)
    energon("prepare-media", root, "--num-workers", "1", "--no-progress", "--media-metadata-by-extension")
    assert table(root) == before
