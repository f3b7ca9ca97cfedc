"""The header of the columnar index: what the id of the content follows, and headers that are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from columnar_cases import shards_of, write_dataset

from energon_grain.errors import IndexFileError
from energon_grain.formats.columnar import open_columnar
from energon_grain.formats.columnar_header import COLUMN_TYPES, HEADER_NAME, Column, ColumnarHeader, columnar_folder


def test_content_id_follows_the_content_and_not_the_place(tmp_path: Path) -> None:
    shards = shards_of(2, 5)
    ids: list[str] = []
    for name in ("one", "two"):
        write_dataset(tmp_path / name, shards)
        ids.append(open_columnar(tmp_path / name).content_id)
    shards["parts/s1.tar"][2][1]["json"] = b"{ }"
    write_dataset(tmp_path / "three", shards)
    assert ids[0] == ids[1] != open_columnar(tmp_path / "three").content_id
    assert len(bytes.fromhex(ids[0])) == 16


def test_content_id_has_no_part_in_how_shards_are_kept() -> None:
    columns = {name: Column(3, name) for name in COLUMN_TYPES}

    def content_id(**changes: Any) -> str:
        header: dict[str, Any] = {
            "generation": "g0",
            "shards": [("a.tar", 10240, 2), ("b.tar", 5120, 1)],
            "part_names": ["txt"],
            "columns": columns,
        }
        return ColumnarHeader(**header | changes).content_id

    same = [
        content_id(),
        content_id(shards=[("a.array_record", 65536, 2), ("b.array_record", 65536, 1)]),
        content_id(generation="g1"),
        *(
            content_id(columns=columns | {name: Column(3, "other")})
            for name in ("sample_start", "part_offset", "key_order")
        ),
    ]
    others = [
        content_id(shards=[("a.tar", 10240, 1), ("b.tar", 5120, 2)]),
        content_id(part_names=["json"]),
        *(
            content_id(columns=columns | {name: Column(3, "other")})
            for name in ("key_start", "key_bytes", "part_start", "part_name", "part_size")
        ),
    ]
    assert len(set(same)) == 1
    assert len({same[0], *others}) == 1 + len(others)


def test_headers_with_a_stored_content_id_are_read(tmp_path: Path) -> None:
    write_dataset(tmp_path, shards_of(2, 5))
    own = open_columnar(tmp_path).content_id
    header = columnar_folder(tmp_path) / HEADER_NAME
    header.write_bytes(header.read_bytes().replace(b'"generation"', b'"content_id":"00","generation"'))
    assert open_columnar(tmp_path).content_id == own


def test_a_newer_index_is_refused(tmp_path: Path) -> None:
    write_dataset(tmp_path, shards_of(1, 2))
    open_columnar(tmp_path)
    header = columnar_folder(tmp_path) / "header.json"
    header.write_text(json.dumps({"version": 99, "something": "else"}))
    with pytest.raises(IndexFileError, match="version 99"):
        open_columnar(tmp_path)


def test_header_cannot_point_outside(tmp_path: Path) -> None:
    write_dataset(tmp_path, shards_of(1, 2))
    open_columnar(tmp_path)
    header = columnar_folder(tmp_path) / "header.json"
    header.write_text(json.dumps(json.loads(header.read_text()) | {"generation": "../../elsewhere"}))
    with pytest.raises(IndexFileError, match="generation"):
        open_columnar(tmp_path)
