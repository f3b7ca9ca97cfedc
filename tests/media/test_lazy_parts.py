"""Large video and audio parts are not read with their samples, but when they are asked for, and then by the range."""

from __future__ import annotations

import io
import json
import os
import pickle
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal

import pytest
from hypothesis import given, settings, strategies as st
from metadatasets import write_v2
from object_server import Bucket, Fault

from energon_grain import (
    ConfigError,
    Cooker,
    DecodeFileStore,
    DefaultTaskEncoder,
    FatalSampleError,
    ObjectFileStore,
    ReadError,
    Sample,
    SampleDecoder,
    StaleIndexError,
    StorageSettings,
    Stream,
    SystemFileStore,
    WebdatasetFileStore,
    WorkerConfig,
    basic_sample_keys,
    get_savable_loader,
    get_train_dataset,
    get_val_dataset,
    stateless,
    use_storage,
)
from energon_grain.conversion import convert_dataset
from energon_grain.formats import local_files as local
from energon_grain.formats.local_files import LocalFiles
from energon_grain.prepare import prepare_dataset
from energon_grain.storage.byte_stream import ByteStream
from energon_grain.testing import write_tars

LARGE, SMALL = 300_000, 1_000
N = 12


def content(number: int) -> bytes:
    """Every third one is small."""
    return random.Random(number).randbytes(SMALL if number % 3 == 0 else LARGE)


def prepared(root: Path, numbers: range = range(N), *, name: str = "mp4") -> Path:
    samples = [{"__key__": f"{i:03d}", name: content(i), "json": {"n": i}} for i in numbers]
    write_tars(root, samples, shards=2)
    prepare_dataset(root, split_ratio={"train": 1}, crude=True, num_workers=0)
    return root


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepared(tmp_path_factory.mktemp("lazy") / "videos")


@dataclass
class Clip(Sample):
    """Some bytes of a video."""

    n: int
    kind: str
    clip: bytes


def start_of(number: int) -> int:
    return number * 100


@stateless
def cut(sample: Any) -> Clip:
    stream = next(value for name, value in sample.items() if name.endswith("mp4")).stream
    stream.seek(start_of(sample["json"]["n"]))
    return Clip(**basic_sample_keys(sample), n=sample["json"]["n"], kind=type(stream).__name__, clip=stream.read(50))


class Cutting(DefaultTaskEncoder):
    """Takes 50 bytes of each video."""

    cookers = (Cooker(cut),)
    decoder = SampleDecoder(lazy_bytes=100_000)


class Whole(Cutting):
    """The same of parts that are read with their samples."""

    decoder = SampleDecoder(lazy_bytes=None)


def clips(path: Any, encoder: DefaultTaskEncoder | None = None, num_workers: int = 0, **options: Any) -> list[Clip]:
    config = WorkerConfig(0, 1, num_workers, **options)
    dataset = get_val_dataset(
        path, split_part="train", batch_size=None, worker_config=config, task_encoder=encoder or Cutting()
    )
    with Stream.of(dataset) as stream:
        return list(stream)


def check(found: list[Clip]) -> None:
    for clip in found:
        assert clip.clip == content(clip.n)[start_of(clip.n) : start_of(clip.n) + 50]
        assert clip.kind == ("BytesIO" if clip.n % 3 == 0 else "ByteStream")


@pytest.fixture
def read_bytes(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """How much of files was read."""
    sizes: list[int] = []
    pread = os.pread

    def counting(descriptor: int, size: int, offset: int) -> bytes:
        sizes.append(size)
        return pread(descriptor, size, offset)

    monkeypatch.setattr(local.os, "pread", counting)
    return lambda: sum(sizes)


def test_only_what_is_asked_for_is_read(folder: Path, read_bytes: Callable[[], int]) -> None:
    check(clips(folder))
    lazily = read_bytes()
    assert lazily < 500_000
    assert [clip.clip for clip in clips(folder, Whole())] == [clip.clip for clip in clips(folder)]
    assert read_bytes() - lazily > 8 * LARGE


@pytest.mark.parametrize("container", ["ArrayRecord", "Parquet"])
def test_in_other_containers_parts_are_read_whole(folder: Path, tmp_path: Path, container: str) -> None:
    found = clips(folder)
    if container == "ArrayRecord":
        convert_dataset(folder, tmp_path / "other", to="array-record", num_workers=0)
    else:
        pyarrow = pytest.importorskip("pyarrow")
        rows = {
            "mp4": [content(clip.n) for clip in found],
            "json": [json.dumps({"n": clip.n}).encode() for clip in found],
        }
        pytest.importorskip("pyarrow.parquet").write_table(pyarrow.table(rows), tmp_path / "other.parquet")
    other = clips(tmp_path / ("other" if container == "ArrayRecord" else "other.parquet"))
    assert {clip.kind for clip in other} == {"BytesIO"}
    assert [clip.clip for clip in other] == [clip.clip for clip in found]


@pytest.mark.parametrize(("num_workers", "worker_type"), [(2, "thread"), (1, "process")])
def test_workers_read_them_too(folder: Path, num_workers: int, worker_type: Literal["thread", "process"]) -> None:
    found = clips(folder, num_workers=num_workers, worker_type=worker_type)
    assert len(found) == N
    check(found)


class Passing(DefaultTaskEncoder):
    """Hands decoders on as they are."""

    decoder = SampleDecoder(lazy_bytes=100_000)


def test_streams_come_out_of_worker_processes(folder: Path) -> None:
    found = clips(folder, Passing(), num_workers=1, worker_type="process")
    for sample in found:
        number = sample["json"]["n"]  # type: ignore[index]
        assert sample["mp4"].stream.read() == content(number)  # type: ignore[index]


@pytest.mark.parametrize("encoder", [Cutting(), Whole()])
def test_order_state_and_restored_samples_do_not_depend_on_it(folder: Path, encoder: DefaultTaskEncoder) -> None:
    def loader() -> Any:
        config = WorkerConfig(0, 1, 0)
        dataset = get_train_dataset(
            folder, worker_config=config, batch_size=2, shuffle_buffer_size=4, max_samples_per_sequence=4,
            task_encoder=encoder,
        )  # fmt: skip
        return get_savable_loader(dataset)

    def texts(batch: Any) -> list[tuple[int, bytes]]:
        return list(zip(list(batch.n), list(batch.clip), strict=True))

    running = loader()
    batches = iter(running)
    for _ in range(3):
        next(batches)
    state = running.save_state_rank()
    following = [next(batches) for _ in range(4)]
    again = loader()
    again.restore_state_rank(state)
    repeated = [next(each) for each in [iter(again)] for _ in range(4)]
    assert list(map(texts, repeated)) == list(map(texts, following))
    assert texts(again.restore_sample(following[2].__restore_key__)) == texts(following[2])


def test_joins_and_blends(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        prepared(tmp_path / name, range(N) if name != "b" else range(0, N, 2))
    join = {"join": {"a": {"path": "a"}, "b": {"path": "b", "nonmatch": "skip"}}}
    write_v2(tmp_path, "join.yaml", train=join)
    found = clips(tmp_path / "join.yaml")
    assert [clip.n for clip in found] == list(range(0, N, 2))
    check(found)
    write_v2(tmp_path, "blend.yaml", train={"concat": [{"path": name} for name in ("a", "b", "c")]})
    found = clips(tmp_path / "blend.yaml")
    assert len(found) == 2 * N + N // 2
    check(found)


@stateless
def cut_of_store(sample: Any, media: Any) -> Clip:
    n = sample["json"]["n"]
    stream = media.get(f"{n:03d}.mp4", sample).stream
    stream.seek(start_of(n))
    return Clip(**basic_sample_keys(sample), n=n, kind=type(stream).__name__, clip=stream.read(50))


class CuttingOfStore(Cutting):
    """Takes 50 bytes of each video in another store."""

    cookers = (Cooker(cut_of_store),)


@pytest.mark.parametrize("kind", ["path", "fs_path"])
@pytest.mark.parametrize("remote", [False, True])
def test_stores_of_cookers(
    tmp_path: Path, bucket: Bucket, kind: str, remote: bool, read_bytes: Callable[[], int]
) -> None:
    media = tmp_path / "data" / "media"
    if kind == "path":
        prepared(media)
    else:
        media.mkdir(parents=True)
        for number in range(N):
            (media / f"{number:03d}.mp4").write_bytes(content(number))
    lines = "".join(json.dumps({"n": number}) + "\n" for number in range(N))
    (tmp_path / "data" / "main.jsonl").write_text(lines)
    write_v2(tmp_path / "data", "meta.yaml", train={"path": "main.jsonl", "aux": {"media": {kind: "media"}}})
    where = f"{bucket.upload(tmp_path / 'data')}/meta.yaml" if remote else tmp_path / "data" / "meta.yaml"
    before = read_bytes()
    found = clips(where, CuttingOfStore())
    assert [clip.n for clip in found] == list(range(N))
    check(found)
    if not remote:
        assert read_bytes() - before < 500_000
    with pytest.raises(FatalSampleError, match="failed"):
        clips(where, MissingOfStore())


@stateless
def cut_of_nothing(sample: Any, media: Any) -> Any:
    media.get("nothing.mp4", sample)


class MissingOfStore(Cutting):
    """Asks for what is not there."""

    cookers = (Cooker(cut_of_nothing),)


def test_in_a_bucket_only_pages_of_the_clips_are_fetched(bucket: Bucket, tmp_path: Path) -> None:
    samples = [{"__key__": f"{i}", "mp4": random.Random(i).randbytes(3 << 20), "json": {"n": i}} for i in range(4)]
    write_tars(tmp_path / "large", samples, shards=1)
    prepare_dataset(tmp_path / "large", split_ratio={"train": 1}, crude=True, num_workers=0)
    url = bucket.upload(tmp_path / "large")
    bucket.server.reset()
    found = clips(url)
    assert [clip.clip for clip in found] == [
        random.Random(i).randbytes(3 << 20)[start_of(i) : start_of(i) + 50] for i in range(4)
    ]
    fetched = sum(request.sent_bytes for request in bucket.server.requests(".tar"))
    assert fetched < 4 << 20  # of twelve
    bucket.server.reset()
    assert [clip.clip for clip in clips(url)] == [clip.clip for clip in found]
    assert sum(request.sent_bytes for request in bucket.server.requests(".tar")) < 10_000  # ends of tars


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_store_that_fails_ends_the_run_and_drops_nothing(bucket: Bucket, folder: Path, num_workers: int) -> None:
    use_storage(StorageSettings(attempts=2, first_pause_s=0.0, cache_bytes=0, ahead_bytes=0))
    url = bucket.upload(folder)

    bucket.server.inject(Fault("status", times=None, match="bytes=1"))
    with pytest.raises((ReadError, FatalSampleError), match=r"ReadError|HTTP error|503"):
        clips(url, Cutting(), num_workers=num_workers)


def test_files_that_change_are_noticed(tmp_path: Path) -> None:
    root = prepared(tmp_path / "videos")
    sample = next(sample for sample in clips(root, Passing()) if sample["json"]["n"] == 1)  # type: ignore[index]
    stream = sample["mp4"].stream  # type: ignore[index]
    copied = pickle.dumps(stream)
    assert stream.read(10) == pickle.loads(copied).read(10) == content(1)[:10]
    for tar in root.glob("*.tar"):
        os.utime(tar, (1, 1))
    for each in (stream, pickle.loads(copied)):
        each.seek(200_000)
        with pytest.raises(StaleIndexError, match="was changed while it was read"):
            each.read(10)


def test_files_of_a_folder_that_change_are_noticed(tmp_path: Path) -> None:
    (tmp_path / "a.mp4").write_bytes(content(1))
    store = DecodeFileStore(SystemFileStore(tmp_path), decoder=SampleDecoder(lazy_bytes=1))
    stream = store.get("a.mp4").stream
    (tmp_path / "a.mp4").write_bytes(content(2))
    with pytest.raises(ReadError, match="was changed while it was read; stop other processes from writing to it"):
        stream.read(10)


def test_stores_that_read_in_their_own_way_give_bytes(folder: Path, tmp_path: Path, bucket: Bucket) -> None:
    (tmp_path / "001.mp4").write_bytes(content(1))
    for kind, place in (
        (SystemFileStore, tmp_path),
        (ObjectFileStore, bucket.upload(tmp_path)),
        (WebdatasetFileStore, folder),
    ):

        class Reversing:
            def read(self, keys: Any) -> Any:
                return [(data[::-1], source) for data, source in super().read(keys)]  # type: ignore[misc]

        mixed: Any = type("Mixed", (Reversing, kind), {})
        for decoder in (SampleDecoder(lazy_bytes=1), SampleDecoder(lazy_bytes=None)):
            assert DecodeFileStore(mixed(place), decoder=decoder).get("001.mp4").stream.read() == content(1)[::-1]
        first, second = DecodeFileStore(kind(place), decoder=SampleDecoder(lazy_bytes=1)).read(["001.mp4"] * 2)
        first[0].stream.seek(10)
        assert second[0].stream.read(10) == content(1)[:10]


def test_which_parts_are_lazy() -> None:
    decoder = SampleDecoder()
    assert decoder.lazy_from("mp4") == decoder.lazy_from("left.MKV") == 4 << 20
    assert [decoder.lazy_from(part) for part in ("jpg", "mp4.gz", "json", "")] == [None] * 4
    for options in ({"lazy_bytes": None}, {"guess_content": True}):
        assert SampleDecoder(**options).lazy_from("mp4") is None  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="lazy_bytes=0: expected at least 1, or None"):
        SampleDecoder(lazy_bytes=0)

    class Own(SampleDecoder):
        def decoder_for(self, part: str) -> Any:
            return len

    assert Own().lazy_from("mp4") is None


def test_raw_parts_stay_bytes(folder: Path) -> None:
    class Raw(DefaultTaskEncoder):
        decoder = None

    assert {type(sample["mp4"]) for sample in clips(folder, Raw())} == {bytes}  # type: ignore[index]
    assert WebdatasetFileStore(folder)["001.mp4"][0] == content(1)


@settings(max_examples=50)
@given(data=st.data())
def test_a_stream_reads_as_a_file_does(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    size = 400_000
    path = tmp_path_factory.getbasetemp() / "stream.bin"
    if not path.exists():
        path.write_bytes(random.Random(0).randbytes(size + 2000))
    start = data.draw(st.integers(0, 2000))
    place, more = data.draw(st.integers(0, size - 50_000)), bytes(data.draw(st.sampled_from([0, 5, 50_000])))
    read = ByteStream(LocalFiles(indexed_by=""), str(path), start, size - len(more), inserted=(place, more))
    stream: BinaryIO = read  # type: ignore[assignment]
    whole = path.read_bytes()[start : start + size - len(more)]
    file = io.BytesIO(whole[:place] + more + whole[place:])
    offsets = st.integers(0, size + 10)
    for _ in range(data.draw(st.integers(1, 30))):
        match data.draw(st.sampled_from(["read", "seek", "prefetch", "copy", "into"])):
            case "read":
                count = data.draw(st.sampled_from([0, 1, 100, 32768, 100_000, -1]))
                assert stream.read(count) == file.read(count)
            case "into":
                into, expected = bytearray(5000), bytearray(5000)
                assert stream.readinto(into) == file.readinto(expected)  # type: ignore[attr-defined]
                assert into == expected
            case "seek":
                whence = data.draw(st.integers(0, 2))
                offset = data.draw(offsets) - (size if whence == 2 else 0)
                assert stream.seek(offset, whence) == file.seek(offset, whence)
            case "prefetch":
                stream.prefetch(data.draw(st.lists(st.tuples(offsets, offsets), max_size=4)))  # type: ignore[attr-defined]
            case _:
                stream = pickle.loads(pickle.dumps(stream))
        assert stream.tell() == file.tell()
