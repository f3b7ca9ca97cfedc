"""Indices of videos that have none: what libav finds with them, and that nothing in a file can hurt."""

from __future__ import annotations

import io
import os
import random
import sys
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pytest
from media_kinds import picture, saved

from energon_grain import AVDecoder, DecodeFileStore, IndexFileError, RefusedError, SampleDecoder, WebdatasetFileStore
from energon_grain.conversion import convert_dataset
from energon_grain.formats.local_files import LocalFiles
from energon_grain.media.container import MP4_OPTIONS, byte_ranges
from energon_grain.media.seek_index import missing_index
from energon_grain.prepare import MediaFilterConfig, index_videos, prepare_dataset, prepare_media
from energon_grain.storage.byte_stream import ByteStream
from energon_grain.testing import write_tars

av = pytest.importorskip("av")

FPS, GROUP, FRAMES = 5, 10, 200
SIZE = 64
_FRAGMENTS = "frag_keyframe+empty_moov"
LACKING: dict[str, tuple[str, dict[str, str]]] = {
    "plain-offsets.mp4": ("mp4", {"movflags": f"{_FRAGMENTS}+skip_trailer"}),
    "moof-offsets.mp4": ("mp4", {"movflags": f"{_FRAGMENTS}+default_base_moof+skip_trailer"}),
    "own-mfra.mov": ("mov", {"movflags": _FRAGMENTS}),
    "live.mkv": ("matroska", {"live": "1"}),
    "live.webm": ("webm", {"live": "1"}),
}
INDEXED: dict[str, tuple[str, dict[str, str]]] = {
    "usual.mp4": ("mp4", {}),
    "faststart.mov": ("mov", {"movflags": "faststart"}),
    "sidx.mp4": ("mp4", {"movflags": f"{_FRAGMENTS}+default_base_moof+global_sidx"}),
    "usual.mkv": ("matroska", {}),
    "usual.webm": ("webm", {}),
    "usual.avi": ("avi", {}),
}


def encoded(kind: str, options: dict[str, str], path: Path) -> bytes:
    """Noise with the number of the frame in it; sound, where the container takes the codec."""
    codec = "libvpx" if kind == "webm" else "mpeg4"
    with av.open(path, "w", format=kind, options=options) as out:
        video = out.add_stream(codec, rate=FPS)
        video.width = video.height = SIZE
        video.pix_fmt, video.codec_context.gop_size, video.bit_rate = "yuv420p", GROUP, 1_500_000
        video.codec_context.options = {"deadline": "realtime", "cpu-used": "8"} if kind == "webm" else {}
        noise = np.random.default_rng(0).integers(0, 256, (SIZE, SIZE, 3), np.uint8)
        for number in range(FRAMES):
            frame = av.VideoFrame.from_ndarray(np.roll(noise, number * 7, 0) // 2 + np.uint8(number // 2), "rgb24")
            frame.pts, frame.time_base = number, Fraction(1, FPS)
            out.mux(video.encode(frame))
        out.mux(video.encode())
    return path.read_bytes()


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("made")
    return {name: encoded(*how, folder / name) for name, how in (LACKING | INDEXED).items()}


def frames(file: BinaryIO, start_s: float, stop_s: float, **options: Any) -> list[tuple[float, bytes]]:
    """Times and pictures of a clip, found by seeking."""
    with av.open(file, **options) as container:
        video = container.streams.video[0]
        container.seek(int(start_s / video.time_base), stream=video)
        found: list[tuple[float, bytes]] = []
        for frame in container.decode(video):
            if frame.time >= stop_s:
                break
            if frame.time >= start_s:
                found.append((round(frame.time, 3), frame.to_ndarray(format="gray").tobytes()))
    return found


def with_index(data: bytes) -> bytes:
    found = missing_index(io.BytesIO(data))
    assert found is not None
    place, index = found
    return data[:place] + index + data[place:]


@pytest.mark.parametrize("name", LACKING)
def test_clips_are_found_by_the_index_that_was_missing(name: str, files: dict[str, bytes]) -> None:
    data = with_index(files[name])
    options = MP4_OPTIONS if name.endswith(("mp4", "mov")) else {}
    for start_s in (0.0, 1.5, 19.5, 37.5):
        with av.open(io.BytesIO(files[name])) as container:  # from the beginning, without seeking
            whole = [
                (round(frame.time, 3), frame.to_ndarray(format="gray").tobytes()) for frame in container.decode(video=0)
            ]
        expected = [(time, picture) for time, picture in whole if start_s <= time < start_s + 2]
        assert frames(io.BytesIO(data), start_s, start_s + 2, options=options) == expected
        assert len(expected) in (10, 11)


@pytest.mark.parametrize("name", INDEXED)
def test_containers_with_an_index_lack_none(name: str, files: dict[str, bytes]) -> None:
    assert missing_index(io.BytesIO(files[name])) is None


@pytest.mark.parametrize("data", [b"", b"text", b"\x1a\x45\xdf\xa3", b"\0\0\0\x08ftyp", bytes(100), os.urandom(1000)])
def test_other_files_lack_none(data: bytes) -> None:
    assert missing_index(io.BytesIO(data)) is None


@pytest.mark.parametrize("name", LACKING)
def test_no_damage_can_hurt(name: str, files: dict[str, bytes]) -> None:
    good = files[name]
    chance = random.Random(name)
    for _ in range(150):
        data = bytearray(good[: chance.choice([len(good), chance.randrange(len(good))])])
        for _ in range(chance.choice([1, 3, 30]) if data else 0):
            start = chance.choice([0, 0, chance.randrange(len(data))])
            data[min(start + chance.randrange(600), len(data) - 1)] = chance.choice([0, 255, chance.randrange(256)])
        found = missing_index(io.BytesIO(data))
        assert found is None or (0 <= found[0] <= len(data) and len(found[1]) < len(data) + 100_000)


class Reads:
    """A store that notes what is read."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.bytes = 0
        self.spans: list[int] = []
        read = LocalFiles.read_spans

        def noting(store: LocalFiles, paths: Any, file: Any, start: Any, stop: Any) -> list[bytes]:
            self.bytes += int((stop - start).sum())
            self.spans.append(len(start))
            return read(store, paths, file, start, stop)

        monkeypatch.setattr(LocalFiles, "read_spans", noting)


def videos(root: Path) -> DecodeFileStore:
    return DecodeFileStore(WebdatasetFileStore(root), decoder=SampleDecoder(lazy_bytes=1))


@pytest.fixture
def folder(tmp_path: Path, files: dict[str, bytes]) -> Path:
    samples = [{"__key__": name.replace(".", "-"), name.rpartition(".")[2]: data} for name, data in files.items()]
    write_tars(tmp_path / "videos", samples, shards=3)
    prepare_dataset(tmp_path / "videos", split_ratio={"train": 1}, crude=True, num_workers=0)
    return tmp_path / "videos"


def part_of(name: str) -> str:
    return f"{name.replace('.', '-')}.{name.rpartition('.')[2]}"


def test_a_dataset_keeps_the_indices_of_its_videos(
    folder: Path, files: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert index_videos(folder) == len(LACKING)
    store = videos(folder)
    reads = Reads(monkeypatch)
    for name, data in files.items():
        expected = with_index(data) if name in LACKING else data
        stream = store.get(part_of(name)).stream
        assert stream.size == len(expected)
        assert stream.read() == expected
        reads.bytes = 0
        (clip,), _ = store.get(part_of(name)).get_video_clips([(30.0, 31.0)])
        assert np.array_equal(clip, AVDecoder(io.BytesIO(data)).get_video_clips([(30.0, 31.0)])[0][0])
        assert reads.bytes < 0.45 * len(data)


def damage_rows(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[70] ^= 1
    path.write_bytes(data)


def damage_an_index(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(
    "damage", [damage_rows, damage_an_index, lambda path: path.write_bytes(b""), lambda path: os.truncate(path, 90)]
)
def test_a_damaged_table_is_an_error_that_says_so(folder: Path, damage: Callable[[Path], None]) -> None:
    index_videos(folder)
    damage(folder / ".nv-meta" / "seek_table.bin")
    store = videos(folder)
    with pytest.raises(IndexFileError, match=r"seek_table\.bin.*index_videos"):
        for name in LACKING:
            store.get(part_of(name))
    assert index_videos(folder) == len(LACKING)
    assert videos(folder).get("live-mkv.mkv").stream.size


def test_making_it_again_and_preparing_media_give_the_same(folder: Path) -> None:
    index_videos(folder)
    table = folder / ".nv-meta" / "seek_table.bin"
    before = table.read_bytes()
    index_videos(folder)
    assert table.read_bytes() == before
    table.unlink()
    prepare_media(folder, MediaFilterConfig.parse(None, False, True), num_workers=0)
    assert table.read_bytes() == before


def test_who_looks_at_pictures_alone_needs_no_libav(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    live = encoded(*LACKING["live.mkv"], tmp_path / "live.mkv")
    write_tars(tmp_path / "both", [{"__key__": "a", "mkv": live, "jpg": saved(picture(), "JPEG")}])
    monkeypatch.setitem(sys.modules, "av", None)
    pictures = MediaFilterConfig.parse("*.jpg", False, False)
    said: dict[str, Any] = {"split_ratio": {"train": 1}, "crude": True, "num_workers": 0}
    report = prepare_dataset(tmp_path / "both", **said, media_filter=pictures)
    assert report.media is not None
    assert report.media.found == 1


def test_a_table_of_other_tars_is_not_used(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    index_videos(folder)
    tar = sorted(folder.glob("*.tar"))[0]
    write_tars(folder, [{"__key__": "new", "txt": "x"}], name=tar.name)
    prepare_dataset(folder, split_ratio={"train": 1}, crude=True, num_workers=0, force_overwrite=True)
    assert videos(folder).get("live-mkv.mkv").stream.read(4) == b"\x1a\x45\xdf\xa3"
    assert "seek_table.bin: belongs to other tars, so it is not used" in caplog.text


def test_records_that_are_read_whole_get_no_index(folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("array_record")
    convert_dataset(folder, tmp_path / "records", to="array-record", num_workers=0)
    with pytest.raises(RefusedError, match="records of ArrayRecord files are always read whole"):
        index_videos(tmp_path / "records")


def test_a_bucket_is_not_written_to(bucket: Any, folder: Path) -> None:
    with pytest.raises(RefusedError, match="index its videos before the upload"):
        index_videos(bucket.upload(folder))


def test_in_a_bucket_the_table_comes_with_the_small_files(bucket: Any, folder: Path, files: dict[str, bytes]) -> None:
    index_videos(folder)
    store = DecodeFileStore(WebdatasetFileStore(bucket.upload(folder)), decoder=SampleDecoder(lazy_bytes=1))
    assert store.get("live-mkv.mkv").stream.read() == with_index(files["live.mkv"])


@pytest.mark.parametrize("name", [*INDEXED, *LACKING])
def test_what_a_clip_takes_is_known_before_it_is_read(
    name: str, files: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = files[name] if name in INDEXED else with_index(files[name])
    (tmp_path / name).write_bytes(data)
    stream = ByteStream(LocalFiles(indexed_by=""), str(tmp_path / name), 0, len(data))
    options = MP4_OPTIONS if name in LACKING and not name.startswith("live") else {}
    with av.open(stream, options=options) as container:
        video = container.streams.video[0]
        tick = float(video.time_base)
        container.seek(int(15.5 / tick), stream=video)
        ranges = byte_ranges(video.index_entries, [(int(15.5 / tick), int(16.5 / tick))], 0)
        if name in LACKING and not name.startswith("live"):
            return  # of an mp4 in fragments libav knows only those that it has read
        stream.prefetch(ranges)
        reads = Reads(monkeypatch)
        for frame in container.decode(video):
            if frame.time >= 16.5:
                break
        assert reads.bytes <= 32 << 10
    (begin, end) = ranges[0]
    assert 0 < end - begin < 0.3 * len(data)


@pytest.mark.parametrize("name", ["usual.mp4", "faststart.mov", "usual.avi"])
def test_clips_of_one_call_are_read_together(
    name: str, files: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / name).write_bytes(files[name])
    stream: Any = ByteStream(LocalFiles(indexed_by=""), str(tmp_path / name), 0, len(files[name]))
    reads = Reads(monkeypatch)
    clips = [(5.0, 5.5), (21.0, 21.5), (35.0, 35.5)]
    found, _ = AVDecoder(stream).get_video_clips(clips)
    assert 3 in reads.spans
    expected, _ = AVDecoder(io.BytesIO(files[name])).get_video_clips(clips)
    assert [np.array_equal(*pair) for pair in zip(found, expected, strict=True)] == [True] * 3
    by_number, _ = AVDecoder(stream).get_video_clips([(25, 27), (105, 107), (175, 177)], video_unit="frames")
    assert reads.spans.count(3) == 2
    assert [np.array_equal(clip, other[:3]) for clip, other in zip(by_number, expected, strict=True)] == [True] * 3

    AVDecoder(stream).get_video()
    reads.bytes = 0
    stream.seek(0)
    assert stream.read() == files[name]
    assert reads.bytes > 0.8 * len(files[name])  # a decoder that is kept holds nothing of what was read together
