"""Bad media: a `DecodingError` that says what is wrong, never a crash, a hang, or memory without a bound."""

from __future__ import annotations

import io
import json
import os
import resource
import struct
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

av = pytest.importorskip("av")

from media_files import FILMS, HEIGHT, SOUNDS, WIDTH, encode_sound  # noqa: E402
from patience import PATIENCE_S  # noqa: E402

import energon_grain  # noqa: E402
from energon_grain import AVDecoder, DecodingError, ReadError, SampleDecoder, get_train_dataset  # noqa: E402
from energon_grain.prepare import prepare_dataset  # noqa: E402
from energon_grain.testing import write_tars  # noqa: E402

TESTS = Path(__file__).parents[1]
FASTSTART = replace(FILMS["mp4-faststart-sound"], sound=None)


@pytest.mark.parametrize("part", [0.3, 0.6, 0.8])
@pytest.mark.parametrize(
    "name", ["mp4", "mp4-faststart", "mkv-reordered", "webm-vp8", "avi", "avi-mjpeg", "flac", "wav"]
)
def test_a_file_that_is_cut_short_says_so(name: str, part: float) -> None:
    if name in SOUNDS:
        data = encode_sound(*SOUNDS[name])
    else:
        data = (FASTSTART if name == "mp4-faststart" else FILMS[name]).encode()
    decoder = AVDecoder(io.BytesIO(data[: int(part * len(data)) - 7]))
    with pytest.raises(DecodingError, match=r"truncated|cannot be decoded|no frames|neither video nor audio"):
        decoder.get_frames()


def test_what_lies_before_the_cut_is_given() -> None:
    data = FASTSTART.encode()
    decoder = AVDecoder(io.BytesIO(data[: int(0.9 * len(data))]))
    clips, _ = decoder.get_video_clips([(0, 0.3)])
    assert clips[0].shape == (10, 3, HEIGHT, WIDTH)
    with pytest.raises(DecodingError, match=r"truncated"):
        decoder.get_video_clips([(1.2, 1.4)])


@pytest.mark.parametrize(
    "content", [b"", b"neither", b"\xff\xd8\xff" + bytes(100), b"PK\3\4" + bytes(500), bytes(5000)]
)
def test_a_file_of_another_kind_is_refused(content: bytes) -> None:
    decoder = AVDecoder(io.BytesIO(content))
    for request in (decoder.get_frames, decoder.get_metadata, decoder.get_video, decoder.has_audio_stream):
        with pytest.raises(DecodingError):
            request()
    with pytest.raises(DecodingError, match="part 'mp4'"):
        SampleDecoder(av_decode="torch").decode("a.mp4", content)


def test_a_playlist_names_no_files(tmp_path: Path) -> None:
    (tmp_path / "film.mp4").write_bytes(FILMS["mp4"].encode())
    for text in (
        f"#EXTM3U\n#EXT-X-TARGETDURATION:2\n#EXTINF:2,\n{tmp_path}/film.mp4\n#EXT-X-ENDLIST\n",
        f"ffconcat version 1.0\nfile '{tmp_path}/film.mp4'\n",
    ):
        with pytest.raises(DecodingError):
            AVDecoder(io.BytesIO(text.encode())).get_video()


def test_streams_that_are_not_there_are_named() -> None:
    film, song = AVDecoder(io.BytesIO(FILMS["mp4"].encode())), AVDecoder(io.BytesIO(encode_sound("wav", "pcm_s16le")))
    with pytest.raises(DecodingError, match="the file has no audio stream"):
        film.get_video_with_audio()
    for request in (song.get_video, song.get_video_fps):
        with pytest.raises(DecodingError, match="the file has no video stream"):
            request()


def test_a_film_without_frames_is_refused() -> None:
    file = io.BytesIO()
    with av.open(file, "w", format="avi") as container:
        container.add_stream("mpeg4", rate=30, width=WIDTH, height=HEIGHT, pix_fmt="yuv420p")
        container.start_encoding()
    with pytest.raises(DecodingError):
        AVDecoder(io.BytesIO(file.getvalue())).get_video()


def test_bounds() -> None:
    film = FILMS["mp4"].encode()
    with pytest.raises(DecodingError, match=f"max_pixels={WIDTH * HEIGHT - 1}"):
        AVDecoder(io.BytesIO(film), max_pixels=WIDTH * HEIGHT - 1).get_video_clips([(0, 0)])
    # Sixteen frames fit, seventeen do not; scaled ones count as they are given.
    bounded = AVDecoder(io.BytesIO(film), max_pixels=WIDTH * HEIGHT)
    assert len(bounded.get_video_clips([(0, 15)], "frames")[0][0]) == 16
    assert len(bounded.get_video_clips([(0, 39)], "frames", (16, 12))[0][0]) == 40
    with pytest.raises(DecodingError, match=rf"16 times max_pixels={WIDTH * HEIGHT} in total; take shorter clips"):
        bounded.get_video_clips([(0, 16)], "frames")
    tone = encode_sound("wav", "pcm_s16le", 48000)
    assert AVDecoder(io.BytesIO(tone), max_part_bytes=192_000).get_audio().audio_clips[0].shape == (2, 48000)
    with pytest.raises(DecodingError, match="max_part_bytes=191999"):
        AVDecoder(io.BytesIO(tone), max_part_bytes=191_999).get_audio()
    with pytest.raises(DecodingError, match=r"part 'mp4': .*max_pixels=100"):
        SampleDecoder(av_decode="torch", max_pixels=100).decode("a.mp4", film)


def test_absurd_headers_cost_nothing() -> None:
    vp8 = bytearray(FILMS["webm-vp8"].encode())
    place = vp8.find(b"\x9d\x01\x2a")  # start code of a keyframe; width and height follow
    vp8[place + 3 : place + 7] = struct.pack("<HH", 16383, 16383)
    frames = bytearray(FILMS["avi"].encode())
    struct.pack_into("<I", frames, frames.find(b"avih") + 24, 0x7FFFFFFF)
    struct.pack_into("<I", frames, frames.find(b"strh") + 40, 0x7FFFFFFF)
    samples = bytearray(FILMS["mp4"].encode())
    struct.pack_into(">III", samples, samples.find(b"stsz") + 4, 0, 1, 0x7FFFFFFF)
    struct.pack_into(">III", samples, samples.find(b"stsc") + 12, 1, 0x7FFFFFFF, 1)
    runs = bytearray(FILMS["mp4-fragments"].encode())
    struct.pack_into(">I", runs, runs.find(b"trun") + 8, 0x00FFFFFF)
    most = 4 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for content in (vp8, frames, samples, runs):
        with pytest.raises(DecodingError):
            AVDecoder(io.BytesIO(content)).get_video()
    with pytest.raises(DecodingError, match="announces a run of 16777215 samples in a file of"):
        AVDecoder(io.BytesIO(runs)).get_metadata()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < most


class Failing(io.BytesIO):
    """A file that cannot be read after some reads."""

    def __init__(self, data: bytes, good: int) -> None:
        super().__init__(data)
        self.good = good

    def read(self, size: int | None = -1) -> bytes:
        self.good -= 1
        if self.good < 0:
            raise ReadError("the disk is gone")
        return super().read(size)


@pytest.mark.parametrize("name", ["mp4-reordered", "mkv", "avi", "mpegts", "flv"])
def test_what_cannot_be_read_is_no_bad_medium(name: str) -> None:
    """libav takes a failure for the end of the file; whoever asks must not."""
    data = replace(FILMS[name], frames=200).encode()
    raised = 0
    for good in range(400):
        stream = Failing(data, good)
        try:
            whole = AVDecoder(stream).get_video()
        except ReadError:
            raised += 1
        else:
            assert len(whole.video_clips[0]) == 200
            break
        with pytest.raises(ReadError):
            AVDecoder(Failing(data, good)).get_metadata(get_video_frame_count=False) if good == 0 else stream.read()
    assert raised


def test_a_sample_with_a_bad_video_is_dropped_and_counted(tmp_path: Path) -> None:
    film = FILMS["mp4"].encode()
    dataset = tmp_path / "data"
    films = [film[: len(film) // 8] + b"broken" if i in (2, 5) else film for i in range(8)]
    write_tars(dataset, [{"__key__": str(i), "mp4": film, "txt": str(i)} for i, film in enumerate(films)])
    fields = {"video": "mp4", "context": "txt"}
    prepare_dataset(dataset, split_ratio=[1], sample_type="VidQASample", field_map=fields, num_workers=0)

    class Encoder(energon_grain.DefaultTaskEncoder):
        def encode_sample(self, sample: energon_grain.VidQASample) -> energon_grain.VidQASample:
            sample.video = sample.video.get_video().video_clips[0]
            return sample

    lazy, whole = SampleDecoder(), SampleDecoder(av_decode="torch")
    for encoder, decoder in ((Encoder(), lazy), (energon_grain.DefaultTaskEncoder(), whole)):
        encoder.decoder = decoder
        train = get_train_dataset(
            dataset,
            batch_size=1,
            shuffle_buffer_size=None,
            max_samples_per_sequence=None,
            task_encoder=encoder,
            virtual_epoch_length=24,
        )
        with energon_grain.get_loader(train) as loader:
            keys = {key for batch in loader for key in batch.__key__}
            assert keys == {str(i) for i in range(8) if i not in (2, 5)}
            assert loader.stats()["dropped_total"] >= 2


@pytest.mark.parametrize("kind", ["videos", "sounds", "images", "headers"])
def test_hundreds_of_damaged_files(kind: str) -> None:
    command = [sys.executable, str(TESTS / "media_fuzzing.py"), kind, "1", "500"]
    paths = [str(TESTS), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, env=environment, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout)
    assert found["decoded"] > 50
    assert found["refused"] > 50
    assert found["slow"] == []
