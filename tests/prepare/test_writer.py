"""Datasets that are written: what `prepare` would make of the tars, appended to, killed, on full disks."""

from __future__ import annotations

import gzip
import io
import os
import re
import shutil
import signal
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
from full_disk import size_limit
from PIL import Image

from energon_grain import (
    DatasetWriter,
    DefaultTaskEncoder,
    PackingPlan,
    SkipSample,
    WorkerConfig,
    get_savable_loader,
    get_train_dataset,
    measure_dataset,
    write_dataset,
)
from energon_grain.conversion import convert_dataset
from energon_grain.errors import (
    ConfigError,
    DatasetNotFoundError,
    DecodingError,
    DuplicateKeyError,
    EmptyDatasetError,
    FingerprintError,
    FormatError,
    RefusedError,
    SplitError,
    WorkerError,
)
from energon_grain.kinds.tar.writer import read_tar
from energon_grain.prepare import PrepareReport, prepare_dataset
from energon_grain.prepare.containers import open_prepared
from energon_grain.prepare.encode import encode_part
from energon_grain.prepare.lint import lint_dataset
from energon_grain.prepare.listing import find_shards
from energon_grain.testing import write_tars
from energon_grain.transforms.decode import SampleDecoder


def sample(i: int) -> dict[str, Any]:
    parts = {"txt": "x" * (7 * i % 600), "json": {"i": i, "ключ": [1.5, None]}, "npy": np.arange(i % 5), "cls": i}
    return {"__key__": f"a/{i:05d}", **dict(list(parts.items())[: 1 + i % 4])}


def files(root: Path) -> dict[str, bytes]:
    """What lies there, without what is random in names, and ids."""
    paths = [path for path in root.rglob("*") if path.is_file() and path.name != "index.uuid"]
    hide = re.compile(r"g[0-9a-f]{16}")
    found = {hide.sub("g", path.relative_to(root).as_posix()): path.read_bytes() for path in paths}
    header = ".nv-meta/columnar/header.json"
    return {**found, header: hide.sub("g", found[header].decode()).encode()}


def keys(root: Path) -> list[str]:
    source = open_prepared(root)
    return source.read(np.arange(len(source))).keys


@pytest.mark.parametrize("container", ["tar", "array-record"])
def test_the_index_is_what_prepare_would_make(tmp_path: Path, container: Any) -> None:
    options: dict[str, Any] = {"split_ratio": {"train": 3, "val": 1}, "subflavors": {"from": "here"}}
    with DatasetWriter(tmp_path / "new", shard_samples=20, name="s/x", container=container, **options) as write:
        for i in range(95):
            write(sample(i))
    assert write.report is not None
    assert list(write.report.shard_counts.values()) == [20, 20, 20, 20, 15]
    shutil.copytree(tmp_path / "new", tmp_path / "again")
    for left in (tmp_path / "again").rglob("*.idx"):
        left.unlink()
    shutil.rmtree(tmp_path / "again" / ".nv-meta")
    records: Any = "msgpack" if container == "array-record" else None
    prepare_dataset(tmp_path / "again", crude=True, records=records, num_workers=0, digest=False, **options)
    assert files(tmp_path / "new") == files(tmp_path / "again")
    assert lint_dataset(tmp_path / "new").findings == ()
    raw = open_prepared(tmp_path / "new").read(np.array([7]))[0]
    assert raw.parts == {part: encode_part(part, value) for part, value in sample(7).items() if part != "__key__"}


def test_shards_end_where_they_are_large_enough(tmp_path: Path) -> None:
    with DatasetWriter(tmp_path / "new", shard_bytes=10_000, sqlite=False) as write:
        for i in range(30):
            write({"__key__": str(i), "bin": bytes(2000)})
    assert write.report is not None
    assert list(write.report.shard_counts.values()) == [4] * 7 + [2]
    assert not (tmp_path / "new/.nv-meta/index.sqlite").exists()


def test_a_dataset_that_was_written_is_trained_on(tmp_path: Path) -> None:
    image = Image.effect_noise((8, 8), 50)
    with DatasetWriter(
        tmp_path / "new", sample_type="CaptioningSample", field_map={"image": "png", "caption": "txt"}
    ) as write:
        for i in range(8):
            write({"__key__": str(i), "png": image, "txt": f"number {i}"})
    dataset = get_train_dataset(tmp_path / "new", batch_size=4, shuffle_buffer_size=None, max_samples_per_sequence=None)
    batch = next(iter(dataset))
    assert batch.image.shape == (4, 3, 8, 8)


class Keys(DefaultTaskEncoder):
    """Batches are keys."""

    def pack_selected_samples(self, samples: list[Any]) -> Any:
        return {**samples[0], "__key__": "+".join(sample["__key__"] for sample in samples)}


def batches(root: Path, state: Any = None, steps: int = 4, **options: Any) -> tuple[list[list[str]], Any]:
    dataset = get_train_dataset(
        root,
        batch_size=5,
        shuffle_buffer_size=None,
        max_samples_per_sequence=None,
        worker_config=WorkerConfig(rank=0, world_size=1, num_workers=0),
        task_encoder=Keys(),
        **options,
    )
    loader = get_savable_loader(dataset)
    if state is not None:
        loader.restore_state_rank(state)
    found = [list(batch["__key__"]) for _, batch in zip(range(steps), loader, strict=False)]
    return found, loader.save_state_rank()


def test_appending_indexes_new_shards_alone(tmp_path: Path) -> None:
    """The index is that of all shards, but old ones are not opened; what was is still to be had, for states too."""
    root, whole = tmp_path / "grown", tmp_path / "whole"
    with DatasetWriter(root, shard_samples=10, split_ratio={"train": 3, "val": 1}) as write:
        write_all(write, 0, 40)
    before, state = batches(root)
    opened: list[str] = []

    def look(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and str(arguments[0]).endswith(".tar") and str(root) in str(arguments[0]):
            opened.append(Path(arguments[0]).name)

    sys.addaudithook(look)
    with DatasetWriter(root, shard_samples=10, append=True) as write:
        write_all(write, 40, 55)
    assert opened == []
    opened = list[str]()  # the hook stays, and looks at another list
    assert write.report is not None
    assert write.report.split_parts == {
        "train": ("shard-000000.tar", "shard-000001.tar", "shard-000002.tar", "shard-000004.tar", "shard-000005.tar"),
        "val": ("shard-000003.tar",),
    }
    with DatasetWriter(whole, shard_samples=10) as write:
        write_all(write, 0, 55)
    ours, theirs = files(root), files(whole)
    others = {".nv-meta/columnar/header.json", ".nv-meta/split.yaml", ".nv-meta/split-first-4-shards.yaml"}
    assert {name: ours[name] for name in ours.keys() - others} == {
        name: theirs[name] for name in theirs.keys() - others
    }
    assert lint_dataset(root).findings == ()

    after, rest = batches(root, steps=8)
    with pytest.raises(FingerprintError, match=r"saved 30, now 45[\s\S]*appended.*'split-first-N-shards.yaml'"):
        batches(root, state)
    kept, _ = batches(root, state, split_config="split-first-4-shards.yaml")
    assert before + kept == batches(root, steps=8, split_config="split-first-4-shards.yaml")[0]
    assert after != before + kept
    # Once more, by `prepare` and with files that lie there already.
    with DatasetWriter(tmp_path / "more", name="more") as write:
        write_all(write, 55, 60)
    shutil.copyfile(tmp_path / "more/more-000000.tar", root / "a-more.tar")
    report = prepare_dataset(root, append=True, split_ratio={"val": 1}, num_workers=0)
    assert list(report.shard_counts)[-1] == "a-more.tar"
    assert report.split_parts["val"] == ("shard-000003.tar", "a-more.tar")
    assert batches(root, state, split_config="split-first-4-shards.yaml")[0] == kept
    assert batches(root, rest, split_config="split-first-6-shards.yaml")[0]
    with pytest.raises(DatasetNotFoundError, match="no new shards"):
        prepare_dataset(root, append=True)
    # All indices anew, of the same samples: nothing changes for states.
    prepare_dataset(root, tar_index_only=True, num_workers=0)
    assert batches(root, state, split_config="split-first-4-shards.yaml")[0] == kept


@pytest.mark.parametrize("function", [False, True])
@pytest.mark.parametrize("indexed", [False, True])
def test_appended_shards_come_behind_all_names_that_are_there(tmp_path: Path, indexed: bool, function: bool) -> None:
    """Shards that are not numbered from 0 on are not taken for new ones, and files that nobody indexed stay."""
    root = tmp_path / "tars"
    with DatasetWriter(root, shard_samples=10) as write:
        write_all(write, 0, 30)
    if indexed:
        (root / "shard-000002.tar").rename(root / "shard-000003.tar")
        prepare_dataset(root, split_ratio={"train": 1}, crude=True, num_workers=0, force_overwrite=True)
    else:
        write_tars(root, [{"__key__": "foreign", "txt": ""}], name="shard-000003.tar")
    bytes_before = (root / "shard-000003.tar").read_bytes()
    if function:
        write_dataset(range(100, 120), a_line, root, shard_items=10, append=True, num_workers=0)
    else:
        with DatasetWriter(root, shard_samples=10, append=True) as write:
            assert write.samples_done == 0
            write_all(write, 100, 120)
    assert (root / "shard-000003.tar").read_bytes() == bytes_before
    assert keys(root) == [f"{i:05d}" for i in (*range(30), *range(100, 120))]


@pytest.mark.parametrize(
    "options",
    [{"where": "bytes.txt > 1"}, {"where": "length > 1"}, {"packing": PackingPlan("length", capacity=30)}],
    ids=["sizes", "where", "packing"],
)
def test_states_that_go_by_columns_outlive_appending(tmp_path: Path, options: dict[str, Any]) -> None:
    """With the split file of that time, and measured again, columns of the old samples are what they were."""
    root = tmp_path / "tars"

    def measure() -> None:
        measure_dataset(root, {"length": lambda parts: len(parts["txt"])}, num_workers=0)

    write_dataset(range(60), a_line, root, shard_items=10, num_workers=0)
    measure()
    before, state = batches(root, **options)
    rest, _ = batches(root, state, **options)
    write_dataset(range(100, 120), a_line, root, shard_items=10, append=True, num_workers=0)
    measure()
    old = {**options, "split_config": "split-first-6-shards.yaml"}
    assert batches(root, state, **old)[0] == rest
    assert batches(root, steps=8, **old)[0] == before + rest
    with pytest.raises(FingerprintError):
        batches(root, state, **options)
    measure_dataset(root, {"length": lambda parts: 3 + len(parts["txt"])}, num_workers=0)
    if "bytes.txt" not in str(options):
        with pytest.raises(FingerprintError, match="columns"):
            batches(root, state, **old)


def a_line(i: int) -> dict[str, Any]:
    return {"__key__": f"{i:05d}", "txt": f"{i}"}


def write_all(write: DatasetWriter, start: int, stop: int) -> None:
    for i in range(start, stop):
        write({"__key__": f"{i:05d}", "txt": f"{i}"})


def test_what_cannot_be_appended(tmp_path: Path) -> None:
    root = tmp_path / "tars"
    with pytest.raises(DatasetNotFoundError):
        DatasetWriter(root, append=True)
    write_dataset(range(3), sample, root, num_workers=0)
    with pytest.raises(ConfigError, match="its shards are tars"):
        DatasetWriter(root, append=True, container="array-record")
    with pytest.raises(ConfigError, match="remove crude"):
        DatasetWriter(root, append=True, crude=True)
    with pytest.raises(RefusedError, match=r"is not empty.*append=True adds shards to it"):
        DatasetWriter(root)
    with pytest.raises(ConfigError, match="append keeps shards"):
        prepare_dataset(root, append=True, force_overwrite=True)
    with pytest.raises(DuplicateKeyError) as caught, DatasetWriter(root, append=True) as write:
        write(sample(2))
    assert "use resume=False to remove them" in caught.value.__notes__[0]
    assert keys(root) == ["a/00000", "a/00001", "a/00002"], "as it was"
    with DatasetWriter(root, append=True, resume=False) as write:
        write(sample(3))
    assert keys(root) == ["a/00000", "a/00001", "a/00002", "a/00003"]


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        ({"txt": ""}, "no '__key__' that is a string"),
        ({"__key__": 5, "txt": ""}, "no '__key__' that is a string"),
        ({"__key__": "", "txt": ""}, "is empty"),
        ({"__key__": "../../etc/passwd", "txt": ""}, "has a folder"),
        ({"__key__": "a/./b", "txt": ""}, "has a folder"),
        ({"__key__": "/etc/passwd", "txt": ""}, "is absolute"),
        ({"__key__": "a//b", "txt": ""}, "empty folder"),
        ({"__key__": "a/", "txt": ""}, "empty folder"),
        ({"__key__": "a\0b", "txt": ""}, "control character"),
        ({"__key__": "a\nb", "txt": ""}, "control character"),
        ({"__key__": "a\\b", "txt": ""}, "backslash"),
        ({"__key__": "a\udcff", "txt": ""}, "surrogate"),
        ({"__key__": "v1.5", "txt": ""}, "has a dot after its last slash"),
        ({"__key__": "__meta__/a", "txt": ""}, "reserved folder"),
        ({"__key__": "k" * 5000, "txt": ""}, "5004 bytes, at most 1000"),
        ({"__key__": "ключ" * 124, "txt" * 3: ""}, "1002 bytes, at most 1000"),
        ({"__key__": "a"}, "has no part"),
        ({"__key__": "a", "txt": None}, "has no part"),
        ({"__key__": "a", "x/y": b""}, "without slashes"),
        ({"__key__": "a", "": b""}, "needs a name"),
        ({"__key__": "a", "x\0": b""}, "control characters"),
        ({"__key__": "a", "__url__": b""}, "does not begin with '__'"),
        ({"__key__": "a", 3: b""}, "needs a name"),
        (
            {"__key__": "a", "cls": 1.5},
            "part 'cls': cannot encode a value of type float; this extension accepts an integer",
        ),
        ({"__key__": "a", "jpg": "text"}, "this extension accepts a Pillow image"),
        ({"__key__": "a", "jpg": np.zeros((4, 4, 3))}, "expected a uint8 image"),
        ({"__key__": "a", "json": {1, 2}}, "JSON has no set"),
        ({"__key__": "a", "json": float("nan")}, "not JSON compliant|JSON"),
        ({"__key__": "a", "npy": np.array([object()])}, "cannot encode this ndarray"),
        ({"__key__": "a", "pkl": {}}, "this extension accepts the bytes of a file"),
        ({"__key__": "a", "meta": {"a": 1}}, "call the part meta.json"),
        ({"__key__": "ok", "txt": "again"}, "already has a sample with this key"),
    ],
)
def test_samples_that_break_the_rules_are_refused_one_by_one(tmp_path: Path, bad: Any, said: str) -> None:
    with DatasetWriter(tmp_path / "new", name="s") as write:
        write({"__key__": "ok", "txt": "a", "__restore_key__": ("left", "out"), "json": None})
        with pytest.raises((FormatError, ConfigError), match=said):
            write(bad)
        write({"__key__": "l" * 990, "txt": "b"})
    assert keys(tmp_path / "new") == ["ok", "l" * 990]
    assert lint_dataset(tmp_path / "new").findings == ()


def test_what_is_encoded_is_decoded(tmp_path: Path) -> None:
    values = {
        "txt": "schön",
        "cls": np.int64(7),
        "json": {"a": [1, None, 0.5], "b": "ключ"},
        "npy": np.arange(6).reshape(2, 3),
        "npz": {"a": np.arange(3), "b": np.eye(2)},
        "mp": {"a": b"bytes"},
        "png": np.arange(48, dtype=np.uint8).reshape(4, 4, 3),
        "ext": "text under another name",
    }
    decoder = SampleDecoder(image_decode="rgb8")
    found = {part: decoder.decode(f"x.{part}", encode_part(part, value)) for part, value in values.items()}
    np.testing.assert_equal(found, {**values, "cls": 7, "ext": values["ext"].encode()})  # type: ignore[union-attr]
    assert encode_part("json", {"n": np.arange(2), "x": np.float32(0.5)}) == b'{"n": [0, 1], "x": 0.5}'
    assert encode_part("txt", 5) == b"5"
    assert encode_part("jpg", memoryview(b"as it is")) == b"as it is"
    image = Image.open(io.BytesIO(encode_part("seg.jpeg", Image.new("RGB", (3, 2), (200, 10, 10)))))
    assert (image.format, image.size) == ("JPEG", (3, 2))


def test_parts_written_by_several(tmp_path: Path) -> None:
    root = tmp_path / "new"

    def run(part: int) -> None:
        with DatasetWriter(root, part=part, parts=3, shard_samples=4) as write:
            for i in range(part, 30, 3):
                write(sample(i))
        assert write.report is None

    run(1)
    with pytest.raises(RefusedError, match="its parts 0, 2 were never started"):
        prepare_dataset(root, split_ratio=[1], crude=True)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(run, [2, 0]))
    report = prepare_dataset(root, split_ratio=[1], crude=True)
    assert report.shards_reused == len(report.shard_counts) == 9
    assert keys(root) == [f"a/{i:05d}" for part in range(3) for i in range(part, 30, 3)]
    assert not (root / ".nv-meta/.writing").exists()
    with pytest.raises(ConfigError, match="pass these to prepare_dataset"):
        DatasetWriter(root, part=0, parts=2, crude=True)


def test_two_writers_of_one_part(tmp_path: Path) -> None:
    first = DatasetWriter(tmp_path / "new")
    with pytest.raises(RefusedError, match="another process is writing this dataset"):
        DatasetWriter(tmp_path / "new", resume=True)
    first.abandon()
    with pytest.raises(RefusedError, match="was closed"):
        first.write(sample(0))
    with pytest.raises(RefusedError, match="a write into this folder is not finished"):
        prepare_dataset(tmp_path / "new")


def test_going_on_and_beginning_anew(tmp_path: Path) -> None:
    root = tmp_path / "new"

    def run(stop: int | None = None, **options: Any) -> int:
        with DatasetWriter(root, shard_samples=10, **options) as write:
            done = write.samples_done
            for i in range(done, 35):
                if i == stop:
                    raise KeyboardInterrupt
                write(sample(i))
        return done

    with pytest.raises(KeyboardInterrupt):
        run(27)
    assert sorted(path.name for path in root.glob("*")) == [".nv-meta", "shard-000000.tar", "shard-000001.tar"]
    with pytest.raises(RefusedError, match="resume=True continues"):
        run()
    with pytest.raises(KeyboardInterrupt):
        run(15, resume=False)
    assert not (root / "shard-000001.tar").exists()
    with pytest.raises(RefusedError, match="name differ"):
        run(resume=True, name="other")
    assert run(resume=True) == 10
    assert keys(root) == [f"a/{i:05d}" for i in range(35)]


def test_the_end_can_be_mended(tmp_path: Path) -> None:
    """What is wrong with the dataset as a whole shows at the end: the shards stay for another call."""
    root = tmp_path / "new"
    with pytest.raises(SplitError), DatasetWriter(root, split_ratio=[8, 1, 1]) as write:
        write(sample(0))
    assert prepare_dataset(root, split_ratio=[1], crude=True).shards_reused == 1
    with pytest.raises(EmptyDatasetError), DatasetWriter(tmp_path / "none"):
        pass
    with DatasetWriter(tmp_path / "none") as write:
        write(sample(0))
    with pytest.raises(ConfigError, match="at least one part"), DatasetWriter(tmp_path / "x", split_ratio=[0]):
        pass
    assert not (tmp_path / "x").exists()


def test_arguments(tmp_path: Path) -> None:
    for options, said in (
        ({"shard_bytes": 0}, "must be at least 1"),
        ({"part": 2, "parts": 2}, "part must be from 0 to parts - 1"),
        ({"name": "../x"}, "relative path"),
        ({"compression": "zstd"}, "only records can be compressed"),
        ({"container": "zip"}, "'tar' or 'array-record'"),
        ({"sample_type": "CaptioningSample"}, "needs a field map"),
    ):
        with pytest.raises(ConfigError, match=said):
            DatasetWriter(tmp_path / "x", **options)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="write to a local folder, and upload it"):
        DatasetWriter("s3://bucket/x")
    assert not (tmp_path / "x").exists()


def make(i: int) -> Any:
    if i == 13:
        raise SkipSample
    if i == 17:
        return None
    return [sample(2 * i), sample(2 * i + 1)]


def test_items_in_any_number_of_processes(tmp_path: Path) -> None:
    def others(i: int) -> Iterator[dict[str, Any]]:  # of this function: goes to processes by value
        yield from make(i) or ()

    one = write_dataset(range(40), make, tmp_path / "one", shard_items=6, num_workers=0)
    two = write_dataset(iter(range(40)), others, tmp_path / "two", shard_items=6, num_workers=2)
    assert one.shard_counts == two.shard_counts
    assert one.samples == 76
    assert files(tmp_path / "one") == files(tmp_path / "two")
    with ThreadPoolExecutor(2) as pool:
        write_dataset(list(range(40)), make, tmp_path / "three", shard_items=6, executor=pool)
    assert files(tmp_path / "one") == files(tmp_path / "three")


def test_items_that_fail(tmp_path: Path) -> None:
    def fails(i: int) -> dict[str, Any]:
        if i == 25 and not (tmp_path / "mended").exists():
            raise ZeroDivisionError("of no use")
        return sample(i)

    with pytest.raises(ZeroDivisionError, match="of no use") as caught:
        write_dataset(range(40), fails, tmp_path / "new", shard_items=10, num_workers=0)
    assert caught.value.__notes__ == ["raised for item 25"]
    (tmp_path / "mended").touch()
    with pytest.raises(RefusedError, match="shard_items differ"):
        write_dataset(range(40), fails, tmp_path / "new", shard_items=20, num_workers=0)
    report = write_dataset(range(40), fails, tmp_path / "new", shard_items=10, num_workers=2)
    assert (report.samples, report.shards_reused) == (40, 2)
    with pytest.raises(FormatError, match=r"items 0 to 2: sample 'a': shard-000000\.tar already has"):
        write_dataset(range(3), lambda _: {"__key__": "a", "txt": ""}, tmp_path / "x", num_workers=0)
    with pytest.raises(EmptyDatasetError):
        write_dataset(range(3), lambda _: None, tmp_path / "y", num_workers=0)


def test_another_function_does_not_go_on_with_what_the_first_one_wrote(tmp_path: Path) -> None:
    def made(text: str, *, bound: bool = False) -> Any:
        def fn(i: int) -> dict[str, Any]:
            if i == 25 and text != "mended":
                raise ZeroDivisionError("of no use")
            return {"__key__": f"{i:05d}", "txt": text}

        return partial(of_two, text) if bound else fn

    def of_two(text: str, i: int) -> dict[str, Any]:
        return made(text)(i)

    def write(root: Path, fn: Any, **more: Any) -> PrepareReport:
        return write_dataset(range(40), fn, root, shard_items=10, num_workers=0, append=root.name == "old", **more)

    write_dataset(range(100, 110), a_line, tmp_path / "old", num_workers=0)
    for root in (tmp_path / "new", tmp_path / "old", tmp_path / "bound"):
        bound = root.name == "bound"
        with pytest.raises(ZeroDivisionError):
            write(root, made("first", bound=bound))
        with pytest.raises(RefusedError, match=r"\(fn differ\).*resume=True keeps what the old function wrote"):
            write(root, made("mended", bound=bound))
        with pytest.raises(ZeroDivisionError):  # the same one, made anew
            write(root, made("first", bound=bound))
        assert write(root, made("mended", bound=bound), resume=True).shards_reused == 2
        written = [texts(tar) for tar in sorted(root.glob("*.tar"))[-4:]]
        assert written == [{"first"}, {"first"}, {"mended"}, {"mended"}]


def texts(tar: Path) -> set[str]:
    return {str(parts["txt"], "utf-8") for _, parts in read_tar(tar)}


def test_shards_with_more_than_six_digits_come_last(tmp_path: Path) -> None:
    """What is there says which number is the first one of an append."""
    root = tmp_path / "tars"
    write_dataset(range(2), a_line, root, num_workers=0)
    write_tars(root, [{"__key__": "foreign", "txt": ""}], name="shard-999997.tar")
    written = write_dataset(range(10, 16), a_line, root, shard_items=2, append=True, num_workers=0)
    names = [f"shard-{number}.tar" for number in ("000000", "999998", "999999", "1000000")]
    assert list(written.shard_counts) == names
    assert keys(root)[-6:] == [f"{i:05d}" for i in range(10, 16)]
    assert find_shards(root) == (names[0], "shard-999997.tar", *names[1:])


def test_a_worker_that_dies(tmp_path: Path) -> None:
    def dies(i: int) -> dict[str, Any]:
        if i == 7:
            os.kill(os.getpid(), signal.SIGKILL)
        return sample(i)

    with pytest.raises(WorkerError, match=r"shard-000001\.tar: its writing failed 2 times"):
        write_dataset(range(10), dies, tmp_path / "new", shard_items=5, num_workers=2)


def test_a_full_disk(tmp_path: Path) -> None:
    root = tmp_path / "new"
    write = DatasetWriter(root, shard_bytes=200_000)
    with size_limit(300_000), pytest.raises(OSError, match=r"shard-000001\.tar: cannot be written"):
        for i in range(10):
            write({"__key__": str(i), "bin": bytes(210_000 if i == 0 else 2000 if i < 5 else 1_500_000)})
    with pytest.raises(RefusedError, match="has failed"):
        write(sample(0))
    assert sorted(path.name for path in root.iterdir()) == [".nv-meta", "shard-000000.tar"]
    with DatasetWriter(root, shard_bytes=200_000, resume=True) as write:
        assert write.samples_done == 1
        write({"__key__": "last", "bin": b""})
    assert keys(root) == ["0", "last"]


@pytest.mark.parametrize("ending", ["", ".gz", ".zst"])
def test_lines_become_a_dataset(tmp_path: Path, ending: str) -> None:
    lines = b"".join(b'{"i": %d}\n' % i + b"\n" * (i % 7 == 0) for i in range(50))
    path = tmp_path / f"x.jsonl{ending}"
    if ending == ".gz":
        path.write_bytes(gzip.compress(lines[:300]) + gzip.compress(lines[300:]))
    elif ending == ".zst":
        path.write_bytes(b"".join(bytes(pyarrow.compress(each, "zstd")) for each in (lines[:300], lines[300:])))
    else:
        path.write_bytes(lines)
    report = convert_dataset(path, tmp_path / "new", shard_samples=20)
    assert list(report.shard_counts.values()) == [20, 20, 10]
    assert keys(tmp_path / "new") == [str(i) for i in range(50)]
    assert open_prepared(tmp_path / "new").read(np.array([49]))[0].parts == {"json": b'{"i": 49}'}
    if ending:
        path.write_bytes(path.read_bytes()[:-20])
        with pytest.raises(DecodingError, match=r"x\.jsonl\S+: cannot be decompressed"):
            convert_dataset(path, tmp_path / "damaged")
    path = tmp_path / "odd.jsonl"
    path.write_text('{"a": 1}\n[1]\n')
    with pytest.raises(DecodingError, match="line 2 contains no JSON object"):
        convert_dataset(path, tmp_path / "odd")
