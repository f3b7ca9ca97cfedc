"""Damaged and stale indices, and files that change while they are open: right samples, or an error that says which."""

from __future__ import annotations

import json
import os
import pickle
import random
import subprocess
import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli_runs import run
from columnar_cases import scan_of
from metadatasets import write_v2
from msgspec import convert
from object_server import Bucket
from patience import PATIENCE_S
from records import msgpack_record, write_records

from energon_grain import WebDatasetSource, WorkerConfig, get_savable_loader, get_train_dataset, get_val_dataset
from energon_grain.errors import IndexFileError, MissingObjectError, ReadError, StaleIndexError
from energon_grain.formats import local_files as local
from energon_grain.formats.columnar_header import (
    COLUMN_TYPES,
    HEADER_NAME,
    ColumnarHeader,
    ColumnWriter,
    columnar_folder,
    header_digest,
)
from energon_grain.formats.index_pages import IndexPages
from energon_grain.formats.nv_meta import DatasetInfo, read_info, write_info
from energon_grain.prepare import prepare_dataset
from energon_grain.prepare.columnar_build import open_columnar, write_columnar
from energon_grain.testing import make_blob_dataset, make_text_dataset, write_tars

TEXTS = ("--sample-type", "TextSample", "--field-map", '{"text": "txt"}')


def read(root: Path | str, *split_parts: str) -> list[Any]:
    """Keys and texts of all samples of these split parts, or of `train`."""
    datasets = [get_val_dataset(root, split_part=part, batch_size=None) for part in split_parts or ("train",)]
    return [(sample.__key__, sample.text) for dataset in datasets for sample in dataset]


@contextmanager
def flipped(path: Path, at: int, bits: int) -> Generator[None]:
    """A byte of a file has other bits, for as long as the block runs."""

    def flip() -> None:
        with open(path, "r+b") as file:
            byte = os.pread(file.fileno(), 1, at)[0]
            os.pwrite(file.fileno(), bytes([byte ^ bits]), at)

    flip()
    try:
        yield
    finally:
        flip()


def check_flips(path: Path, flips: int, seed: int, read: Callable[[], list[Any]], right: list[Any]) -> int:
    """Damage single bytes. Returns how often that was told."""
    random = np.random.default_rng(seed)
    told = 0
    for at in random.integers(0, path.stat().st_size, flips).tolist():
        with flipped(path, at, int(random.integers(1, 256))):
            try:
                found, error = read(), ""
            except IndexFileError as raised:
                found, error = right, str(raised)
            assert found == right, f"{path.name} @ {at}: other samples than were written"
            assert not error or (str(path).removesuffix(".idx") in error and "prepare" in error), (
                f"{path.name} @ {at}: {error}"
            )
            told += bool(error)
    assert read() == right
    return told


@pytest.fixture(scope="module", params=[40, 1500])
def dataset(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Any]]:
    """A dataset, and what is read of it: columns of a single block, and of several."""
    root = make_text_dataset(tmp_path_factory.mktemp("dataset"), n=request.param, shards=3, text_bytes=20)
    return root, read(root, "train", "val")


@pytest.mark.parametrize("column", COLUMN_TYPES)
def test_flipped_bytes_in_columns(dataset: tuple[Path, list[Any]], column: str) -> None:
    root, right = dataset
    (path,) = root.glob(f".nv-meta/columnar/g*/{column}.npy")
    told = check_flips(path, 5, len(right), lambda: read(root, "train", "val"), right)
    assert told == 5 or column == "key_order"  # which is not looked at when samples are read


def test_flipped_bytes_in_the_order_of_keys(dataset: tuple[Path, list[Any]]) -> None:
    root, right = dataset
    (path,) = root.glob(".nv-meta/columnar/g*/key_order.npy")
    keys = [key for key, _ in right]  # of all shards, in their order

    def found() -> list[int | None]:
        index = open_columnar(root)
        return [index.find(key) for key in keys]

    assert check_flips(path, 4, 0, found, list(range(len(keys)))) == 4


def test_flipped_bytes_in_the_header(dataset: tuple[Path, list[Any]]) -> None:
    root, right = dataset
    header = root / ".nv-meta" / "columnar" / "header.json"
    assert check_flips(header, 12, 0, lambda: read(root, "train", "val"), right) >= 10


@pytest.mark.parametrize(
    ("column", "value"),
    [("part_size", 1 << 40), ("part_size", 3), ("part_offset", 9 * 512), ("part_start", 1 << 34), ("key_start", 18)],
)
def test_other_numbers_in_a_file_that_is_whole(dataset: tuple[Path, list[Any]], column: str, value: int) -> None:
    root, _ = dataset
    (path,) = root.glob(f".nv-meta/columnar/g*/{column}.npy")
    before = path.read_bytes()
    try:
        with open(path, "r+b") as file:
            os.pwrite(file.fileno(), value.to_bytes(8, "little"), 128 + 8 * 5)
        with pytest.raises(IndexFileError, match=rf"{path}: .*`energon-grain prepare {root} --force-overwrite`"):
            read(root)
    finally:
        path.write_bytes(before)


@pytest.mark.parametrize(
    ("column", "place", "value"),
    [
        ("part_offset", 1, -512),
        ("part_offset", 1, 1 << 62),
        ("part_size", 1, 1 << 40),
        ("part_size", 1, -1),
        ("part_start", 1, 1 << 40),
        ("part_start", 1, -1),
        ("part_name", 1, 9),
        ("key_start", 1, 1 << 34),
        ("sample_start", 1, 1 << 40),
        ("key_order", 0, 99),
    ],
)
def test_numbers_that_point_nowhere_with_right_checksums(tmp_path: Path, column: str, place: int, value: int) -> None:
    (tmp_path / ".nv-meta").mkdir()
    write_info(tmp_path, DatasetInfo(shard_counts={"a.tar": 3}))
    write_columnar(columnar_folder(tmp_path), ["a.tar"], [scan_of([b"a", b"b", b"c"])])
    (path,) = tmp_path.glob(f".nv-meta/columnar/g*/{column}.npy")
    numbers = np.load(path)
    numbers[place] = value
    np.save(path, numbers)
    seal(tmp_path)
    with pytest.raises(IndexFileError, match=rf"{path}: .*--force-overwrite"):
        open_columnar(tmp_path).find("a")


def seal(root: Path) -> None:
    """Make the sums of an index right for the numbers that its columns have now."""
    path = columnar_folder(root) / "header.json"
    header = json.loads(path.read_bytes())
    for name, column in header["columns"].items():
        file = columnar_folder(root) / header["generation"] / f"{name}.npy"
        numbers = np.load(file)
        file.unlink()
        writer = ColumnWriter(file, numbers.dtype)
        writer.append(numbers)
        writer.close()
        column["checksum"] = writer.checksum
    header["header_checksum"] = header_digest(convert(header, ColumnarHeader), generation="")
    path.write_text(json.dumps(header))


def test_what_a_read_meets_first_is_compared_at_once(tmp_path: Path) -> None:
    """And not block by block, of which there are some thousand here: shuffled orders meet them all over the index."""
    count, calls = 40_000, list[str]()  # a call for each block would be 37,000
    keys = np.char.zfill(np.arange(count).astype("U8"), 8).astype("S8")
    (tmp_path / ".nv-meta").mkdir()
    write_info(tmp_path, DatasetInfo(shard_counts={"a.tar": count}))
    write_columnar(columnar_folder(tmp_path), ["a.tar"], [scan_of(keys.tolist(), size_bytes=1 << 30)])
    index = open_columnar(tmp_path)
    sys.setprofile(lambda _, event, __: calls.append(event) if event in ("call", "c_call") else None)
    try:
        index.check(np.random.default_rng(0).permutation(count)[:4096])
    finally:
        sys.setprofile(None)
    assert len(calls) < 6000


def test_an_index_in_use_is_shared_while_its_files_are_the_same(tmp_path: Path) -> None:
    root = make_text_dataset(tmp_path, n=1500, shards=2, text_bytes=20)
    index = open_columnar(root)
    assert open_columnar(root) is index
    (path,) = root.glob(".nv-meta/columnar/g*/part_size.npy")
    with flipped(path, 200, 1):
        os.utime(path, ns=(0, 0))
        with pytest.raises(IndexFileError, match=r"part_size\.npy"):
            open_columnar(root).check()
    assert open_columnar(root).keys(np.arange(3)) == index.keys(np.arange(3))


def test_lint_and_the_command_that_mends(tmp_path: Path) -> None:
    root = make_text_dataset(tmp_path, n=1500, shards=1, text_bytes=20)
    right = read(root)
    (path,) = root.glob(".nv-meta/columnar/g*/part_offset.npy")
    with open(path, "r+b") as file:
        os.pwrite(file.fileno(), b"\xff", path.stat().st_size - 100)
    found = run("lint", root)
    assert found.exit_code
    assert "part_offset.npy" in found.output.replace("\n", "")
    mended = run("prepare", root, "--force-overwrite", "--non-interactive", "--split-ratio", "1", *TEXTS)
    assert mended.exit_code == 0, mended.output
    assert read(root) == right


@pytest.fixture(scope="module")
def join(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Any]]:
    root = tmp_path_factory.mktemp("join")
    for name, seed in (("one", 0), ("two", 1)):
        make_text_dataset(root / name, n=1200, shards=2, text_bytes=20, seed=seed)
    path = write_v2(root, train={"join": [{"path": "one"}, {"path": "two"}]})
    assert run("prepare", path).exit_code == 0
    return path, read(path)


def test_flipped_bytes_in_a_join(join: tuple[Path, list[Any]]) -> None:
    path, right = join
    (rows,) = path.parent.glob("*.cache/.join_*/rows.npy")
    assert check_flips(rows, 12, 0, lambda: read(path), right) == 12
    assert check_flips(rows.with_name("header.json"), 12, 0, lambda: read(path), right) == 12


def test_preparing_again_mends_a_join(join: tuple[Path, list[Any]]) -> None:
    path, right = join
    (rows,) = path.parent.glob("*.cache/.join_*/rows.npy")
    with open(rows, "r+b") as file:
        os.pwrite(file.fileno(), b"\xff" * 3, 9000)
    with pytest.raises(IndexFileError, match=rf"{rows}: .*`energon-grain prepare`"):
        read(path)
    assert run("prepare", path).exit_code == 0
    assert read(path) == right


@pytest.mark.parametrize("samples", [40, 12_000])
@pytest.mark.parametrize("whole", [True, False])
def test_a_damaged_copy_of_an_index_is_fetched_again(
    bucket: Bucket, tmp_path: Path, samples: int, *, whole: bool
) -> None:
    """Zeros after a power cut, in whole files or behind their beginning, in files that are read and that are mapped."""
    root = make_text_dataset(tmp_path / "here", n=samples, shards=1, text_bytes=1)
    url = bucket.upload(root, "set")
    right = list(read_some(url))
    for column in ("key_bytes", "part_offset", "key_start"):
        (path,) = (tmp_path / "cache").rglob(f"{column}.npy")
        with open(path, "r+b") as file:
            start = 0 if whole else 200
            os.pwrite(file.fileno(), bytes(path.stat().st_size - start), start)
    bucket.server.reset()
    assert list(read_some(url)) == right
    assert {name.rpartition("/")[2] for name in (request.path for request in bucket.server.requests())} >= {
        "key_bytes.npy",
        "part_offset.npy",
        "key_start.npy",
    }
    (path,) = (tmp_path / "cache").rglob("key_bytes.npy")
    (good,) = root.rglob("key_bytes.npy")
    assert path.read_bytes() == good.read_bytes()


def test_a_mirror_of_zeros_is_made_again(bucket: Bucket, tmp_path: Path) -> None:
    url = bucket.upload(make_text_dataset(tmp_path / "here", n=40, shards=1), "set")
    right = read(url)
    mirrored = [path for path in (tmp_path / "cache").rglob(".nv-meta/**/*") if path.is_file()]
    assert {"header.json", ".info.json", "dataset.yaml", "key_order.npy"} <= {path.name for path in mirrored}
    for path in mirrored:
        path.write_bytes(bytes(path.stat().st_size))
    assert read(url) == right


def test_a_zeroed_copy_of_an_index_of_lines_is_made_again(bucket: Bucket, tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "x.jsonl").write_text('{"a": 1}\n{"a": 2}\n')
    assert run("prepare", tmp_path / "here" / "x.jsonl").exit_code == 0
    url = bucket.upload(tmp_path / "here", "set") + "/x.jsonl"

    def lines() -> list[Any]:
        return [sample["json"] for sample in get_val_dataset(url, split_part="train", batch_size=None)]

    right = lines()
    (copy,) = (tmp_path / "cache").rglob("*.idx")
    copy.write_bytes(bytes(copy.stat().st_size))
    assert lines() == right == [{"a": 1}, {"a": 2}]


def read_some(url: str) -> Iterator[Any]:
    dataset = get_val_dataset(url, split_part="train", batch_size=None)
    for number, sample in enumerate(dataset):
        if number == 30:
            return
        yield sample.__key__, sample.text


def test_what_is_damaged_in_the_store_too_is_an_error(bucket: Bucket, tmp_path: Path) -> None:
    root = make_text_dataset(tmp_path / "here", n=40, shards=1)
    (path,) = root.rglob("key_bytes.npy")
    with open(path, "r+b") as file:
        os.pwrite(file.fileno(), b"\xff", 140)
    url = bucket.upload(root, "set")
    with pytest.raises(IndexFileError, match=rf"{url}/.nv-meta/.*key_bytes\.npy: .*`energon-grain prepare {url} "):
        read(url)


def test_a_damaged_copy_of_a_join_is_fetched_again(
    bucket: Bucket, join: tuple[Path, list[Any]], tmp_path: Path
) -> None:
    path, right = join
    url = bucket.upload(path.parent, "sets") + "/" + path.name
    assert read(url) == right
    for name in ("rows.npy", "header.json"):
        for start in (0, 150):
            (copy,) = (tmp_path / "cache").rglob(f".join_*/{name}")
            copy.write_bytes(copy.read_bytes()[:start].ljust(copy.stat().st_size, b"\0"))
            assert read(url) == right


def test_flipped_bytes_in_the_index_of_lines(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    path.write_text("".join(json.dumps({"number": i, "text": "x" * (i % 50)}) + "\n" for i in range(400)))

    def lines() -> list[Any]:
        dataset = get_val_dataset(path, split_part="train", batch_size=None)
        return [(sample["__key__"], sample["json"]) for sample in dataset]

    right = lines()
    assert len(right) == 400
    index = tmp_path / "lines.jsonl.idx"
    assert check_flips(index, 40, 0, lines, right) == 40
    index.write_bytes(index.read_bytes()[:80] + b"\1" + index.read_bytes()[81:])
    assert run("prepare", path).exit_code == 0
    assert lines() == right


SAMPLES = 400_000


def resident_kb(path: Path) -> int:
    """Resident memory of this process that maps files below `path`."""
    total, counts = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if line.split(" ", 1)[0].endswith(":"):
            total += int(line.split()[1]) if counts and line.startswith("Rss:") else 0
        else:
            counts = str(path) in line
    return total


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index of 400,000 samples, of which two shards exist: 21 MB of columns beside next to no data."""
    from energon_grain.formats.columnar_header import columnar_folder
    from energon_grain.formats.nv_meta import DatasetInfo, write_info
    from energon_grain.formats.scan import ShardScan
    from energon_grain.kinds.tar.scan import scan_tar
    from energon_grain.prepare.columnar_build import write_columnar

    root = tmp_path_factory.mktemp("large")
    write_tars(root, [{"__key__": "0", "txt": "0"}], name="real.tar")
    prepare_dataset(root, split_ratio={"train": 1}, crude=True, num_workers=0, sqlite=False)
    count = SAMPLES - 1
    keys = np.char.zfill(np.arange(1, SAMPLES).astype("U8"), 8).astype("S8")
    imagined = ShardScan(
        size_bytes=count * 1024 + 1024,
        sample_start=np.arange(count + 1) * 1024,
        part_start=np.arange(count + 1),
        part_names=("txt",),
        part_name=np.zeros(count, np.int32),
        part_offset=np.arange(count) * 1024 + 512,
        part_size=np.full(count, 10),
        key_start=np.arange(count + 1) * 8,
        key_bytes=keys.view(np.uint8),
    )
    write_columnar(columnar_folder(root), ["real.tar", "imagined.tar"], [scan_tar(root / "real.tar"), imagined])
    write_info(root, DatasetInfo(shard_counts={"real.tar": 1, "imagined.tar": count}))
    return root


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_pages_are_given_back(large: Path) -> None:
    source = WebDatasetSource(large)
    rng = np.random.default_rng(0)
    most = 0
    for _ in range(40):
        source.sizes(rng.integers(0, SAMPLES, 100))
        most = max(most, resident_kb(large))
    assert most < 12_000
    assert source.sizes(np.array([SAMPLES - 1])).tolist() == [1024]


def test_small_indices_are_left_alone(large: Path) -> None:
    index = open_columnar(large)
    pages = IndexPages(index.columns, samples=len(index), rows=index.rows, always_resident_bytes=1 << 30)
    assert index.part_size[SAMPLES // 2] == 10
    for column in index.columns:
        column.sum()
    before = resident_kb(large)
    pages.touch(np.arange(0, SAMPLES, 10))
    assert resident_kb(large) == before
    assert before > 15_000
    pages.release()
    assert resident_kb(large) < 1000
    assert index.part_size[SAMPLES // 2] == 10


def test_runs_of_samples_touch_little(large: Path) -> None:
    """A thousand neighbours count as what they touch, not as a thousand samples."""
    index = open_columnar(large)
    pages = IndexPages(
        index.columns, samples=len(index), rows=index.rows, always_resident_bytes=0, resident_bytes=2 << 20
    )
    for start in range(0, 20_000, 1000):
        samples = np.arange(start, start + 1000)
        index.part_size[samples]
        pages.touch(samples)
    assert resident_kb(large) > 0
    pages.touch(np.arange(0, SAMPLES, 100))
    assert resident_kb(large) == 0


FIRST_SAMPLES = """
import os, sys
import numpy as np
from energon_grain.kinds.tar.source import WebDatasetSource
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGESIZE") / 1e6
before, files = resident(), len(os.listdir("/proc/self/fd"))
source = WebDatasetSource(sys.argv[1])
source.sizes(np.random.default_rng(0).integers(0, len(source), 5000))
source.read(np.zeros(32, np.int64))
print(resident() - before, len(os.listdir("/proc/self/fd")) - files)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_opening_takes_little_memory(large: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", FIRST_SAMPLES, str(large)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE_S, check=True)
    memory_mb, files = done.stdout.split()
    assert float(memory_mb) < 12
    assert int(files) <= 9


@pytest.fixture
def changing(tmp_path: Path) -> Path:
    """12 blobs of 40 kB in 3 shards: none small enough to be read with its neighbours."""
    return make_blob_dataset(tmp_path / "blobs", n=12, shards=3, sample_bytes=40_000)


def read_all(source: WebDatasetSource) -> list[bytes]:
    return [raw.parts["bin"] for raw in source.read(np.arange(len(source)))]


def longer(shard: Path) -> None:
    with open(shard, "ab") as file:
        file.write(bytes(512))


def overwritten_end(shard: Path) -> None:
    """Same size, but data where the archive ended: somebody appended a sample over the padding."""
    with open(shard, "r+b") as file:
        file.seek(4 * (512 + 40_448))
        assert file.read(512) == bytes(512)
        file.seek(-512, os.SEEK_CUR)
        file.write(b"more.bin".ljust(512, b"\0"))


def shorter(shard: Path) -> None:
    os.truncate(shard, shard.stat().st_size // 2)


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (longer, r"was indexed .* but has \d+ bytes"),
        (shorter, "ends at byte"),
        (overwritten_end, "was indexed .* has data at its end marker @ 163840"),
    ],
)
def test_a_changed_shard(changing: Path, change: Callable[[Path], None], found: str) -> None:
    shard = changing / "shard_001.tar"
    change(shard)
    source = WebDatasetSource(changing)
    assert len(source.read(np.arange(4))) == 4, "other shards are none of its business"
    for _ in range(2):
        with pytest.raises(StaleIndexError, match=rf"shard_001\.tar:? {found}.*`energon-grain prepare "):
            source.read(np.array([5]))


def test_the_command_mends_it(changing: Path) -> None:
    write_tars(changing, [{"__key__": f"new{i}", "bin": b"new"} for i in range(4)], name="shard_001.tar")
    with pytest.raises(StaleIndexError, match=rf"`energon-grain prepare {changing} --tar-index-only`"):
        read_all(WebDatasetSource(changing))
    prepare_dataset(changing, tar_index_only=True, num_workers=0)
    assert read_all(WebDatasetSource(changing))[4:8] == [b"new"] * 4


def test_a_missing_shard(changing: Path) -> None:
    (changing / "shard_002.tar").unlink()
    with pytest.raises(ReadError, match=r"cannot open .*shard_002\.tar: No such file.*restore it, or exclude it by"):
        read_all(WebDatasetSource(changing))


def test_a_missing_shard_in_a_store(changing: Path, bucket: Bucket) -> None:
    url = bucket.upload(changing, "set")
    bucket.delete("set/shard_002.tar")
    advice = rf"restore it, or exclude it by `energon-grain prepare {url} --force-overwrite`$"
    with pytest.raises(MissingObjectError, match=rf"{url}/shard_002\.tar: no such object; .*{advice}"):
        read_all(WebDatasetSource(url))


def test_a_copy_of_a_source_has_its_samples_or_is_an_error(changing: Path) -> None:
    """A worker process that starts late must not read what was prepared since, under the cursor of what was before."""
    source = WebDatasetSource(changing, start=2)
    pickled = pickle.dumps(source)
    assert read_all(pickle.loads(pickled)) == read_all(source)
    make_blob_dataset(changing, n=12, shards=3, sample_bytes=40_001)
    with pytest.raises(StaleIndexError, match=rf"{changing}: was prepared again .*after the parent process opened it"):
        pickle.loads(pickled)


def test_a_shard_that_shrinks_while_it_is_read(changing: Path) -> None:
    source = WebDatasetSource(changing)
    read_all(source)
    os.truncate(changing / "shard_000.tar", 50_000)
    with pytest.raises(StaleIndexError, match=r"shard_000\.tar: was changed while it was read"):
        source.read(np.array([0]))
    with pytest.raises(ReadError, match=r"shard_000\.tar ends at byte 50000, but bytes \d+ to \d+ were requested"):
        source.read(np.array([1]))


@pytest.mark.parametrize("damage", [b"", b"{", b"\xff\xfe", b'{"version": 1, "generation": "\xff"}', b"[]", b"null"])
def test_a_damaged_header(changing: Path, damage: bytes) -> None:
    path = columnar_folder(changing) / HEADER_NAME
    path.write_bytes(damage)
    with pytest.raises(IndexFileError, match=rf"^{path}: .*--force-overwrite"):
        WebDatasetSource(changing)


@pytest.mark.parametrize("name", [".info.json", "header.json"])
def test_no_byte_of_a_json_file_can_break_more_than_that(changing: Path, name: str) -> None:
    """Whatever single byte is damaged: either the samples as before, or one of our errors."""
    path = columnar_folder(changing) / name if name == HEADER_NAME else changing / ".nv-meta" / name
    good, expected = path.read_bytes(), read_all(WebDatasetSource(changing))
    rng = np.random.default_rng(0)
    refused = 0
    for at in range(0, len(good), 3):
        bad = bytearray(good)
        bad[at] = rng.choice([0x00, 0x22, 0x30, 0x39, 0x5C, 0x7B, 0x80, 0xFF])
        path.write_bytes(bad)
        try:
            assert read_all(WebDatasetSource(changing)) == expected
        except (IndexFileError, ReadError):
            refused += 1
        path.write_bytes(good)
    assert refused


def test_part_names_and_keys_that_are_not_utf8(tmp_path: Path) -> None:
    write_tars(tmp_path, [{"__key__": os.fsdecode(b"k\xff"), os.fsdecode(b"t\xfct"): b"payload"}], name="shärd.tar")
    for _ in range(2):
        source = WebDatasetSource(prepare(tmp_path))
        (raw,) = source.read(np.array([0]))
        assert (os.fsencode(raw.key), raw.shard) == (b"k\xff", "shärd.tar")
        assert {os.fsencode(name): data for name, data in raw.parts.items()} == {b"t\xfct": b"payload"}
        assert read_info(tmp_path).shard_counts == {"shärd.tar": 1}


def prepare(root: Path) -> Path:
    prepare_dataset(root, split_ratio={"train": 1}, crude=True, num_workers=0, sqlite=False, force_overwrite=True)
    return root


N = 120


def numbers(shuffled: bool) -> list[int]:
    """Which sample stands at each place: of equal length all, so that files differ in their order only."""
    order = list(range(N))
    if shuffled:
        random.Random(1).shuffle(order)
    return order


def write_tar_shards(root: Path, *, shuffled: bool = False) -> Path:
    order = numbers(shuffled)
    for shard in range(3):
        part = order[shard * 40 : shard * 40 + 40]
        write_tars(root, [{"__key__": f"k{i:03}", "txt": f"text {i:03}"} for i in part], name=f"s-{shard}.tar")
    return root


def write_lines(root: Path, *, shuffled: bool = False) -> Path:
    path = root / "lines.jsonl"
    lines = [json.dumps({"place": f"{place:03}", "text": f"text {i:03}"}) for place, i in enumerate(numbers(shuffled))]
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def write_record_shards(root: Path, *, shuffled: bool = False) -> Path:
    order = numbers(shuffled)
    for shard in range(3):
        part = order[shard * 40 : shard * 40 + 40]
        records = [msgpack_record({"__key__": f"k{i:03}", "txt": b"text %03d" % i}) for i in part]
        new = write_records(root / "new" / "file", records)
        with open(root / f"s-{shard}.array_record", "wb") as file:
            file.write(new.read_bytes())  # in place: the writer itself makes a new file
    return root


Write = Callable[..., Path]
KINDS = pytest.mark.parametrize("write", [write_tar_shards, write_lines, write_record_shards])


def opened(path: Path, *, prepared: bool = False) -> Any:
    if path.is_dir() and not prepared:
        typed: dict[str, Any] = {"sample_type": "TextSample", "field_map": {"text": "txt"}}
        records = "msgpack" if list(path.glob("*.array_record")) else None
        prepare_dataset(path, split_ratio={"train": 1}, num_workers=0, records=records, **typed)
    config = WorkerConfig(0, 1, 0)
    dataset = get_train_dataset(
        path, worker_config=config, batch_size=4, shuffle_buffer_size=10, max_samples_per_sequence=10
    )
    return get_savable_loader(dataset)


def pairs(loader: Iterator[Any], steps: int) -> list[tuple[str, str]]:
    return [
        (key, str(text)) for batch in (next(loader) for _ in range(steps)) for key, text in zip(*of(batch), strict=True)
    ]


def of(batch: Any) -> tuple[list[str], list[str]]:
    if hasattr(batch, "text"):
        return batch.__key__, [text[-3:] for text in batch.text]
    return batch["__key__"], [text[-3:] for text in batch["json"]["text"]]


@KINDS
def test_files_that_are_written_again_in_place(tmp_path: Path, write: Write) -> None:
    """Of the same sizes, in another order: what comes before the error is as it was, and every pair is right."""
    loader = opened(write(tmp_path))
    right = {key: text for key, text in pairs(loader, 30) if text}
    assert len(right) == N
    path = write(tmp_path, shuffled=True)
    seen: list[tuple[str, str]] = []
    with pytest.raises(StaleIndexError, match=rf"was changed while it was read.*`energon-grain prepare {path}"):
        for _ in range(3000):
            seen += pairs(loader, 1)
    assert all(right[key] == text for key, text in seen)


@KINDS
def test_a_time_of_modification_that_was_set_back(tmp_path: Path, write: Write) -> None:
    loader = opened(write(tmp_path))
    pairs(loader, 30)
    before = {path: path.stat() for path in tmp_path.iterdir() if path.is_file()}
    write(tmp_path, shuffled=True)
    for path, status in before.items():
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    if write is write_record_shards:  # records have their keys, and these are compared
        match = "has the key"
    else:
        match = "was changed while it was read"
    with pytest.raises(StaleIndexError, match=match):
        pairs(loader, 3000)


@KINDS
def test_modes_and_links_may_change(tmp_path: Path, write: Write) -> None:
    loader = opened(write(tmp_path))
    right = dict(pairs(loader, 30))
    (tmp_path / "links").mkdir()
    for path in list(tmp_path.iterdir()):
        if path.is_file():
            path.chmod(0o400)
            os.link(path, tmp_path / "links" / path.name)
    assert dict(pairs(loader, 300)) == right


def test_shards_that_were_replaced_by_a_rename_are_read_on(tmp_path: Path) -> None:
    loader = opened(write_tar_shards(tmp_path))
    right = dict(pairs(loader, 30))
    new = tmp_path / "new"
    new.mkdir()
    for path in write_tar_shards(new, shuffled=True).glob("*.tar"):
        os.replace(path, tmp_path / path.name)
    assert dict(pairs(loader, 300)) == right


def test_shards_that_were_replaced_and_must_be_opened_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """More shards than stay open."""
    monkeypatch.setattr(local, "_shared_limit", local._OpenFileLimit(40))
    samples = [{"__key__": f"k{i:03}", "txt": f"text {i:03}"} for i in range(100)]
    for number, sample in enumerate(samples):
        write_tars(tmp_path, [sample], name=f"s-{number:03}.tar")
    loader = opened(tmp_path)
    pairs(loader, 25)
    for number, sample in enumerate(samples):
        write_tars(tmp_path / "new", [{**sample, "txt": "other 00"}], name="new.tar")
        os.replace(tmp_path / "new" / "new.tar", tmp_path / f"s-{number:03}.tar")
    with pytest.raises(StaleIndexError, match="was changed while it was read"):
        pairs(loader, 3000)


def test_shards_that_were_written_again_before_they_were_opened(tmp_path: Path) -> None:
    """All but the first sample stand in another order, so that size, end and first header are as they were."""
    opened(write_tar_shards(tmp_path))
    order = [*range(40)]
    random.Random(1).shuffle(rest := order[1:])
    samples = [{"__key__": f"k{i:03}", "txt": f"text {i:03}"} for i in [0, *rest]]
    write_tars(tmp_path, samples, name="s-0.tar")
    later = (tmp_path / ".nv-meta" / ".info.json").stat().st_mtime + 1
    os.utime(tmp_path / "s-0.tar", (later, later))
    loader = opened(tmp_path, prepared=True)
    with pytest.raises(StaleIndexError, match=r"s-0\.tar: was indexed with k\d+\.txt of 8 bytes"):
        pairs(loader, 30)
