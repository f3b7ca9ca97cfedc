"""Preparing folders of ArrayRecord files."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from records import encode_example, msgpack_record, write_records, write_shards

from energon_grain.errors import ConfigError, DatasetNotFoundError, DuplicateKeyError, FormatError, ReadError
from energon_grain.formats.array_record import read_records_file
from energon_grain.formats.columnar import open_columnar
from energon_grain.formats.nv_meta import DatasetKind, dataset_kind, read_info
from energon_grain.formats.splits import read_split_config
from energon_grain.prepare import prepare_dataset
from energon_grain.testing import write_tars

SAMPLES = [{"__key__": f"{number:05d}", "txt": b"text %d" % number, "json": b"{}"} for number in range(40)]

ALL = {"train": 1}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_shards(tmp_path / "data", [msgpack_record(sample) for sample in SAMPLES], 10)
    return tmp_path / "data"


def test_everything_is_written(root: Path) -> None:
    report = prepare_dataset(
        root, records="msgpack", split_ratio=(8, 1, 1), sample_type="TextSample", field_map={"text": "txt"}
    )
    assert (report.samples, report.part_names) == (40, ("txt", "json"))
    assert sorted(path.name for path in (root / ".nv-meta").iterdir()) == [
        ".info.json",
        "columnar",
        "dataset.yaml",
        "records.json",
        "split.yaml",
    ]
    assert not list(root.glob("*.idx"))
    assert dataset_kind(root) is DatasetKind.ARRAY_RECORD
    assert read_records_file(root) == "msgpack"
    assert read_info(root).shard_counts == {f"shard_{number:03d}.array_record": 4 for number in range(10)}
    assert len(read_split_config(root).split_parts["train"]) == 8
    index = open_columnar(root)
    assert index.keys(index.key_order) == [sample["__key__"] for sample in SAMPLES]
    assert set(index.part_offset.tolist()) == {0}


def test_numbers_go_through_all_shards(tmp_path: Path) -> None:
    write_shards(tmp_path / "raw", [b"x" * number for number in range(10)], 3)
    for workers in (0, 2):
        prepare_dataset(tmp_path / "raw", records="raw", crude=True, num_workers=workers, force_overwrite=True)
        index = open_columnar(tmp_path / "raw")
        assert [index.key(number) for number in range(10)] == [str(number) for number in range(10)]
    with ThreadPoolExecutor(2) as executor:
        prepare_dataset(tmp_path / "raw", tar_index_only=True, executor=executor)
    assert open_columnar(tmp_path / "raw").content_id == index.content_id
    examples = [encode_example({"n": [number]} | ({"__key__": [b"k"]} if number == 7 else {})) for number in range(10)]
    write_shards(tmp_path / "tf", examples, 3)
    prepare_dataset(tmp_path / "tf", records="tf_example")
    index = open_columnar(tmp_path / "tf")
    assert [index.key(number) for number in range(10)] == [*"0123456", "k", "8", "9"]


def test_what_was_prepared_stays_what_it_is(root: Path) -> None:
    prepare_dataset(root, records="msgpack")
    with pytest.raises(ConfigError, match="already prepared"):
        prepare_dataset(root)
    prepare_dataset(root, force_overwrite=True, split_ratio=ALL)
    assert read_records_file(root) == "msgpack"
    changed = [msgpack_record({**sample, "txt": b"new"}) for sample in SAMPLES[36:]]
    write_records(root / "shard_009.array_record", changed)
    before = open_columnar(root).content_id
    prepare_dataset(root, tar_index_only=True)
    assert open_columnar(root).content_id != before
    assert dataset_kind(root) is DatasetKind.ARRAY_RECORD
    with pytest.raises(ConfigError, match="tar_index_only takes no records"):
        prepare_dataset(root, tar_index_only=True, records="raw")
    (root / ".nv-meta" / "records.json").write_text("damaged")
    prepare_dataset(root, force_overwrite=True, records="raw")
    assert open_columnar(root).part_names == ("record",)


def test_an_interrupted_run_is_of_its_encoding(root: Path) -> None:
    write_records(root / "zzz.array_record", [b"no map"])
    with pytest.raises(FormatError, match=r"zzz\.array_record: record 0: is no msgpack map"):
        prepare_dataset(root, records="msgpack", num_workers=0)
    report = prepare_dataset(root, records="raw", num_workers=0)
    assert (report.shards_reused, report.samples) == (0, 41)


def test_the_index_is_built_where_it_is_missing(root: Path) -> None:
    prepare_dataset(root, records="msgpack")
    before = open_columnar(root).content_id
    for file in (root / ".nv-meta" / "columnar").glob("header.json"):
        file.unlink()
    assert open_columnar(root).content_id == before


def test_the_way_out(tmp_path: Path, root: Path) -> None:
    with pytest.raises(DatasetNotFoundError, match=r"10 \*\.array_record files: add --records msgpack\|tf_example\|"):
        prepare_dataset(root)
    with pytest.raises(DatasetNotFoundError, match=r"prepare .*data --records msgpack\|tf_example\|raw"):
        read_info(root)
    write_tars(tmp_path / "tars", [{"__key__": "a", "txt": "x"}])
    with pytest.raises(DatasetNotFoundError, match=r"no \*\.array_record files"):
        prepare_dataset(tmp_path / "tars", records="raw")


def test_what_cannot_be_prepared(tmp_path: Path) -> None:
    write_shards(tmp_path / "twice", [msgpack_record(SAMPLES[0])] * 2, 2)
    with pytest.raises(DuplicateKeyError, match="00000"):
        prepare_dataset(tmp_path / "twice", records="msgpack", split_ratio=ALL)
    write_records(tmp_path / "empty" / "x.array_record", [])
    with pytest.raises(FormatError, match=r"x\.array_record: holds no sample \(a record\)"):
        prepare_dataset(tmp_path / "empty", records="raw", split_ratio=ALL)
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "x.array_record").write_bytes(b"garbage" * 20000)
    with pytest.raises(ReadError, match=r"x\.array_record: is no ArrayRecord file"):
        prepare_dataset(tmp_path / "bad", records="raw", split_ratio=ALL)
