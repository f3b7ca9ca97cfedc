"""`.info.json`, `index.uuid` and `index.sqlite`; what lies at a path; what Megatron-Energon itself prepared."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from arrays import write_group
from cli_runs import run
from columnar_cases import scan_of
from full_disk import size_limit
from hypothesis import given, settings, strategies as st
from object_server import Bucket, Fault
from patience import PATIENCE_S
from sqlite_rows import rows
from web_server import running_web_server

from energon_grain import StorageSettings, Stream, get_train_dataset, use_storage
from energon_grain.errors import DatasetNotFoundError, DuplicateKeyError, IndexFileError
from energon_grain.formats.class_ref import ClassRef
from energon_grain.formats.columnar import ColumnarIndex
from energon_grain.formats.data_folder import naming, open_folder
from energon_grain.formats.dataset_config import read_dataset_config
from energon_grain.formats.nv_meta import (
    DatasetInfo,
    encode_info,
    not_prepared,
    read_info,
    read_uuid,
    write_info,
    write_uuid,
)
from energon_grain.formats.splits import encode_split_config, read_split_config, select_shards
from energon_grain.formats.sqlite_index import write_sqlite_index
from energon_grain.kinds.tar.index import read_tar_index, tar_index_path
from energon_grain.kinds.tar.scan import scan_tar
from energon_grain.prepare.columnar_build import open_columnar
from energon_grain.sources.kinds import kind_at
from energon_grain.storage.location import leads_out
from energon_grain.testing import make_text_dataset


@pytest.fixture
def meta(tmp_path: Path) -> Path:
    folder = tmp_path / ".nv-meta"
    folder.mkdir()
    return folder


@given(counts=st.dictionaries(st.text().filter(lambda name: not leads_out(name)), st.integers(0, 1 << 40), max_size=5))
def test_round_trip_keeps_order(tmp_path_factory: pytest.TempPathFactory, counts: dict[str, int]) -> None:
    root = tmp_path_factory.mktemp("info")
    (root / ".nv-meta").mkdir()
    write_info(root, DatasetInfo(shard_counts=counts, energon_version="7.4.0"))
    info = read_info(root)
    assert list(info.shard_counts.items()) == list(counts.items())
    assert info.energon_version == "7.4.0"


def test_written_text_is_energons(tmp_path: Path, meta: Path) -> None:
    write_info(tmp_path, DatasetInfo(shard_counts={"parts/b.tar": 3, "a.tar": 2}, energon_version="7.4.0"))
    text = '{\n  "energon_version": "7.4.0",\n  "shard_counts": {\n    "parts/b.tar": 3,\n    "a.tar": 2\n  }\n}'
    assert (meta / ".info.json").read_text() == text
    write_info(tmp_path, DatasetInfo(shard_counts={"a.tar": 2}))
    assert json.loads((meta / ".info.json").read_text()) == {"shard_counts": {"a.tar": 2}}
    assert not (meta / ".info.yaml").exists()


def test_yaml_of_older_releases_is_read_and_kept_in_step(tmp_path: Path, meta: Path) -> None:
    (meta / ".info.yaml").write_text("shard_counts:\n  b.tar: 7\n  a.tar: 2\n")
    info = read_info(tmp_path)
    assert list(info.shard_counts.items()) == [("b.tar", 7), ("a.tar", 2)]
    assert info.energon_version is None
    write_info(tmp_path, DatasetInfo(shard_counts={"a.tar": 5}))
    assert yaml.safe_load((meta / ".info.yaml").read_text()) == {"shard_counts": {"a.tar": 5}}
    assert read_info(tmp_path).shard_counts == {"a.tar": 5}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", ".info.json"),
        ("[]", "object"),
        ('{"energon_version": "7"}', "shard_counts"),
        ('{"shard_counts": {"a.tar": "5"}}', "$.shard_counts"),
        ('{"shard_counts": {"a.tar": -5}}', "-5"),
        ('{"shard_counts": {}, "extra": 1}', "extra"),
    ],
)
def test_damaged_info_is_refused(tmp_path: Path, meta: Path, content: str, said: str) -> None:
    (meta / ".info.json").write_text(content)
    with pytest.raises(IndexFileError) as caught:
        read_info(tmp_path)
    assert said in str(caught.value)
    assert "energon-grain prepare" in str(caught.value)


def test_unprepared_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(DatasetNotFoundError, match="energon-grain prepare"):
        read_info(tmp_path)
    with pytest.raises(DatasetNotFoundError, match="no such file or folder"):
        read_info(tmp_path / "missing")
    (tmp_path / "file").touch()
    with pytest.raises(DatasetNotFoundError, match="is a file"):
        read_info(tmp_path / "file")


def test_uuid(tmp_path: Path, meta: Path) -> None:
    assert read_uuid(tmp_path) is None
    written = write_uuid(tmp_path)
    assert len((meta / "index.uuid").read_bytes()) == 36
    assert read_uuid(tmp_path) == written
    assert write_uuid(tmp_path) != written
    assert write_uuid(tmp_path, written) == written == read_uuid(tmp_path)


def test_kinds(tmp_path: Path, meta: Path) -> None:
    for name in ("x.jsonl", "m.yaml", "m.yml"):
        (tmp_path / name).touch()

    def kind(name: str = "") -> str:
        return kind_at(str(tmp_path / name)).name

    assert kind("x.jsonl") == "jsonl"
    assert kind("m.yaml") == "metadataset"
    assert kind("m.yml") == kind("missing") == kind() == "invalid"
    assert kind("x.tar") == "bare tars"
    (meta / "index.sqlite").touch()
    assert kind() == "filesystem"
    (meta / ".info.yaml").touch()
    assert kind() == "webdataset"
    (meta / "records.json").touch()
    assert kind() == "array_record"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Shards that were never prepared, a file, an array."""
    make_text_dataset(tmp_path / "data" / "bare", n=4, shards=1)
    shutil.rmtree(tmp_path / "data" / "bare" / ".nv-meta")
    (tmp_path / "data" / "records").mkdir()
    (tmp_path / "data" / "records" / "x.array_record").write_bytes(b"x")
    (tmp_path / "data" / "file.tar").write_bytes(b"x")
    (tmp_path / "data" / "mixture.yaml").write_bytes(b"x")
    write_group(tmp_path / "data" / "rows", a=np.zeros((3, 2)))
    return tmp_path / "data"


SAID = {
    "bare": "not a prepared dataset (no .nv-meta/.info.json); run `energon-grain prepare {at}`",
    "records": "not a prepared dataset (no .nv-meta/.info.json); run `energon-grain prepare {at} --records msgpack|tf_"
    "example|raw`",
    "file.tar": "is a file; a WebDataset is a prepared folder with tar files: pass that folder",
    "mixture.yaml": "is a metadataset, which get_train_dataset and similar functions take; pass one of its datasets",
    "rows": "is an array, which needs no preparation: it has no shards, indices or splits",
}


@pytest.mark.parametrize("name", SAID)
def test_a_url_is_told_from_a_path_by_nothing_else(folder: Path, bucket: Bucket, name: str) -> None:
    url = bucket.upload(folder, "sets")
    for at in (f"{folder}/{name}", f"{url}/{name}"):
        assert not_prepared(at) == f"{at}: {SAID[name].format(at=at)}"
    opened = open_folder(f"{url}/{name}")
    with pytest.raises(DatasetNotFoundError) as caught, naming(opened), naming(opened):
        read_info(opened.local)
    assert str(caught.value) == not_prepared(opened.location)


def test_nothing(folder: Path, bucket: Bucket) -> None:
    url = bucket.upload(folder, "sets")
    near = f"Did you mean {folder}/bare?"
    assert not_prepared(f"{folder}/bear") == f"{folder}/bear: no such file or folder. {near}"
    (folder / "bare" / ".nv-meta").mkdir()
    assert not_prepared(f"{folder}/bare/.nv-meta").endswith(
        f"belongs to the dataset in {folder}/bare; pass that folder"
    )
    for name in ("bear", "bar", "bear.zarr"):
        assert not_prepared(f"{url}/{name}") == f"{url}/{name}: there is nothing below that URL; check it"


def test_a_list_that_takes_too_long_is_done_without(folder: Path, bucket: Bucket) -> None:
    url = bucket.upload(folder, "sets")
    bucket.server.inject(Fault("status", times=None, match="list-type"))
    assert not_prepared(f"{url}/bare").endswith(f"run `energon-grain prepare {url}/bare`")
    assert len(bucket.server.requests("list-type")) == 1


def test_of_a_web_server_prepare_is_not_advised(folder: Path, tmp_path: Path) -> None:
    use_storage(StorageSettings(cache_dir=str(tmp_path / "cache")))
    with running_web_server(folder) as server:
        said = not_prepared(f"{server.url}/bare")
        assert said == (
            f"{server.url}/bare: no .nv-meta/.info.json is served there: check the URL, or prepare the folder on its "
            "own machine"
        )


@pytest.mark.parametrize(("ending", "command"), [("gz", "gzip -dk"), ("zst", "zstd -d")])
def test_compressed_lines(tmp_path: Path, bucket: Bucket, ending: str, command: str) -> None:
    file = tmp_path / f"my lines.jsonl.{ending}"
    file.write_bytes(b"\x1f\x8b")
    url = bucket.upload(tmp_path, "lines") + f"/{file.name}"
    usual: dict[str, Any] = {"batch_size": 1, "shuffle_buffer_size": None, "max_samples_per_sequence": None}
    unpack = f"unpack it with `{command} 'NAME'` into a .jsonl file"
    for at, name, copied in ((file, str(file), ""), (url, file.name, "copy it to this machine, and ")):
        said = re.escape(copied + unpack.replace("NAME", name))
        with pytest.raises(DatasetNotFoundError, match=f"is compressed as a whole, .* cannot be read; {said}"):
            Stream.of(get_train_dataset(at, **usual))
    for command_line in ("prepare", "info"):
        done = run(command_line, file)
        assert "unpack it with" in str(done.exception)


SAMPLES = st.lists(
    st.tuples(st.one_of(st.text(max_size=4).map(lambda text: text.encode("utf-8", "ignore")), st.binary(max_size=3))),
    unique=True,
    max_size=60,
).map(lambda rows: [row[0].replace(b"\0", b"0") for row in rows])


@settings(max_examples=30)
@given(keys=SAMPLES, cut=st.integers(0, 60))
def test_round_trip(tmp_path_factory: pytest.TempPathFactory, keys: list[bytes], cut: int) -> None:
    keys = list(dict.fromkeys(keys))
    path = tmp_path_factory.mktemp("sqlite") / "index.sqlite"
    shards = [keys[:cut], keys[cut:]]
    write_sqlite_index(path, ((5 + number, scan_of(shard)) for number, shard in enumerate(shards)))
    expected = [
        (5 + number, key.decode("utf-8", "surrogateescape"), i, i * 2048, 2048)
        for number, shard in enumerate(shards)
        for i, key in enumerate(shard)
    ]
    assert rows(path, "SELECT * FROM samples") == expected
    texts = rows(path, "SELECT * FROM sample_parts WHERE part_name = 'txt'")
    assert texts == [(shard, i, "txt", i * 2048 + 1536, (2 * i + 1) % 500) for shard, _, i, *_ in expected]
    assert rows(path, "SELECT COUNT(*) FROM sample_parts WHERE part_name = 'jpg'") == [(len(keys),)]


def test_schema_and_row_order(tmp_path: Path) -> None:
    path = tmp_path / "index.sqlite"
    write_sqlite_index(path, [(1, scan_of([b"b", b"a"])), (0, scan_of([b"c"]))])
    database = sqlite3.connect(path)
    try:
        assert [row[0] for row in database.execute("SELECT sample_key FROM samples ORDER BY rowid")] == ["b", "a", "c"]
        columns = [row[1:4] for row in database.execute("PRAGMA table_info(samples)")]
        assert columns == [
            ("tar_file_id", "INTEGER", 1),
            ("sample_key", "TEXT", 1),
            ("sample_index", "INTEGER", 1),
            ("byte_offset", "INTEGER", 0),
            ("byte_size", "INTEGER", 0),
        ]
        indices = {row[0] for row in database.execute("SELECT name FROM sqlite_master WHERE type = 'index'")}
        assert indices == {
            "sqlite_autoindex_samples_1",
            "idx_samples_by_tar_and_idx",
            "idx_sample_parts_seq",
            "idx_sample_parts_full",
        }
        assert database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert database.execute("PRAGMA user_version").fetchone() == (0,)
    finally:
        database.close()


def test_written_bytes_do_not_depend_on_the_run(tmp_path: Path) -> None:
    scans = [(number, scan_of([b"%d-%d" % (number, i) for i in range(100)])) for number in range(3)]
    for name in ("a", "b"):
        write_sqlite_index(tmp_path / name, scans)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_duplicates_are_refused_and_the_old_file_stays(tmp_path: Path) -> None:
    path = tmp_path / "index.sqlite"
    write_sqlite_index(path, [(0, scan_of([b"a"]))])
    before = path.read_bytes()
    shards = ["s0.tar", "s1.tar", "s2.tar"]
    scans = [(0, scan_of([b"a", b"b"])), (1, scan_of([b"c", b"a"])), (2, scan_of([b"b"]))]
    with pytest.raises(DuplicateKeyError) as caught:
        write_sqlite_index(path, scans, shard_name=shards.__getitem__)
    assert "'a' in s0.tar and in s1.tar; 'b' in s0.tar and in s2.tar" in str(caught.value)
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["index.sqlite"]


def test_errors_of_the_system_are_os_errors(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        write_sqlite_index(tmp_path / "nothing" / "index.sqlite", [])
    with (
        pytest.raises(OSError, match=r"cannot be written: .*check the free space of the disk: '.*index\.sqlite'"),
        size_limit(20_000),
    ):
        write_sqlite_index(tmp_path / "index.sqlite", [])
    assert list(tmp_path.iterdir()) == []


def test_duplicates_that_are_not_text(tmp_path: Path) -> None:
    scans = [(3, scan_of([b"\xff", b"b", b"b"])), (4, scan_of([b"a", b"\xff", b"b"]))]
    with pytest.raises(DuplicateKeyError) as caught:
        write_sqlite_index(tmp_path / "index.sqlite", scans)
    assert "3 samples share a key with another sample" in str(caught.value)
    assert "'b' in tar file 3 twice" in str(caught.value)
    assert r"'\\xff' in tar file 3 and in tar file 4" in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_memory_does_not_grow_with_the_samples(tmp_path: Path) -> None:
    program = """
import resource, sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from columnar_cases import scan_of
from sqlite_rows import rows
from energon_grain.formats.sqlite_index import write_sqlite_index

def scans(shards):
    for shard in range(shards):
        yield shard, scan_of([b"%d/%018d" % (shard, i) for i in range(1000)])

def peak_bytes():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)

write_sqlite_index(Path(sys.argv[1]), scans(20), cache_bytes=1 << 20)
before = peak_bytes()
write_sqlite_index(Path(sys.argv[1]), scans(200), cache_bytes=1 << 20)
assert peak_bytes() - before < 4 << 20, peak_bytes() - before
"""
    command = [sys.executable, "-c", program, str(tmp_path / "index.sqlite"), str(Path(__file__).parents[1])]
    subprocess.run(command, check=True, timeout=PATIENCE_S)


def test_a_repeated_part_is_there_twice(tmp_path: Path) -> None:
    scan = scan_of([b"a"], [("x", "y")])
    scan.part_name[1] = 0
    write_sqlite_index(tmp_path / "i", [(0, scan)])
    found = rows(tmp_path / "i", "SELECT part_name, content_byte_offset FROM sample_parts ORDER BY 2")
    assert [name for name, _ in found] == ["x", "x"]
    assert found[1][1] == 1536


FIXTURES = Path(__file__).parents[1] / "fixtures" / "energon"
NAMES = ("captioning", "excludes", "long_names")


@pytest.fixture(params=NAMES)
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    copy = tmp_path / request.param
    shutil.copytree(FIXTURES / request.param, copy)
    return copy


def samples_of(index: ColumnarIndex, split_part: str) -> list[dict[str, Any]]:
    """Read a split part from the formats alone, in the form of `samples.json`."""
    selected = select_shards(read_split_config(index.root), split_part, read_info(index.root))
    excluded = set(selected.excluded_samples)
    found: list[dict[str, Any]] = []
    restore_index = 0
    for shard in selected.shards:
        data = (index.root / shard).read_bytes()
        number = index.shards.index(shard)
        for sample in range(index.shard_first[number], index.shard_first[number + 1]):
            rows = range(index.part_start[sample], index.part_start[sample + 1])
            payloads = {
                index.part_names[index.part_name[row]]: data[
                    index.part_offset[row] : index.part_offset[row] + index.part_size[row]
                ]
                for row in rows
            }
            if (shard, index.key(sample)) not in excluded:
                found.append(
                    {
                        "key": index.key(sample),
                        "shard": shard,
                        "restore_index": restore_index,
                        "parts": {name: hashlib.sha256(data).hexdigest() for name, data in payloads.items()},
                    }
                )
            restore_index += 1
    return found


def test_samples_are_what_energon_reads(root: Path) -> None:
    expected = json.loads((root / "samples.json").read_text(encoding="utf-8"))
    index = open_columnar(root)
    for split_part, samples in expected.items():
        assert samples_of(index, split_part) == samples


def test_tar_indices_are_the_same_bytes(root: Path) -> None:
    for shard in read_info(root).shard_counts:
        path = tar_index_path(root / shard)
        before = path.read_bytes()
        scan = scan_tar(root / shard, hidden="keep")
        np.testing.assert_array_equal(read_tar_index(path), scan.sample_start)
        assert scan.sample_start.astype("<i8").tobytes() == before


def test_info_and_splits_are_written_alike(root: Path) -> None:
    meta = root / ".nv-meta"
    assert kind_at(str(root)).name == "webdataset"
    info = read_info(root)
    assert info.energon_version == "7.4.1"
    assert encode_info(info) == (meta / ".info.json").read_text()
    if root.name != "excludes":  # that one was edited by hand
        assert encode_split_config(read_split_config(root)) == (meta / "split.yaml").read_text()
    uuid = read_uuid(root)
    assert uuid is not None
    assert len(uuid) == 36


def test_sqlite_has_the_same_schema_and_rows(root: Path, tmp_path: Path) -> None:
    info = read_info(root)
    scans = [scan_tar(root / shard, hidden="keep") for shard in info.shard_counts]
    ours = tmp_path / "ours.sqlite"
    write_sqlite_index(ours, enumerate(scans))
    theirs = root / ".nv-meta" / "index.sqlite"
    assert _tables(ours) == _tables(theirs)


def _tables(path: Path) -> dict[str, Any]:
    database = sqlite3.connect(path)
    try:
        found: dict[str, Any] = {
            table: sorted(database.execute(f"SELECT * FROM {table}")) for table in ("samples", "sample_parts")
        }
        schema = database.execute(
            "SELECT type, name, sql FROM sqlite_master WHERE tbl_name IN ('samples', 'sample_parts')"
        )
        found["schema"] = sorted(
            (kind, name, "".join((sql or "").replace("IF NOT EXISTS", "").split())) for kind, name, sql in schema
        )
        return found
    finally:
        database.close()


def test_dataset_configurations() -> None:
    config = read_dataset_config(FIXTURES / "captioning")
    assert config.sample_type == ClassRef(module="megatron.energon", name="CaptioningSample")
    assert config.field_map == {"image": "jpg", "caption": "txt"}
    assert read_dataset_config(FIXTURES / "excludes").kind == "crude"
