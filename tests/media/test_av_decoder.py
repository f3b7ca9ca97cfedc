"""Clips of video and audio: the frames and samples of the whole file, decoded, wherever a clip begins and ends."""

from __future__ import annotations

import io
import json
import math
import os
import pickle
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

av = pytest.importorskip("av")

from media_files import FILMS, HEIGHT, SOUNDS, WIDTH, Film, encode_sound, numbers, sound  # noqa: E402
from patience import PATIENCE_S  # noqa: E402

from energon_grain import (  # noqa: E402
    AVDecoder,
    AVWebdatasetDecoder,
    ConfigError,
    DecodingError,
    SampleDecoder,
    get_clips_uniform,
    get_single_frames_uniform,
)

PEER = os.environ.get("ENERGON_PEER_PYTHON")
TIMELESS = "mkv-negative"  # PyAV's Matroska has no times before 0: the first frames of that file have none


@pytest.fixture(scope="session")
def films() -> dict[str, bytes]:
    return {name: film.encode() for name, film in FILMS.items()}


def decoded(data: bytes) -> np.ndarray:
    """All frames, (F, 3, H, W), as PyAV gives them one after the other."""
    with av.open(io.BytesIO(data)) as container:
        return np.stack([frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]).transpose(0, 3, 1, 2)


@pytest.mark.parametrize("name", FILMS)
def test_every_frame_is_found_by_its_number_and_by_its_time(name: str, films: dict[str, bytes]) -> None:
    film, whole, decoder = FILMS[name], decoded(films[name]), AVDecoder(io.BytesIO(films[name]))
    shown = numbers(whole)
    assert shown == [
        number for number in range(film.frames) if not film.times or film.times[number] >= 0 or name == TIMELESS
    ]

    data = decoder.get_video()
    assert np.array_equal(data.video_clips[0], whole)
    ((beginning, end),) = data.video_timestamps
    places = range(len(whole))
    clips, times = decoder.get_video_clips([(place, place) for place in places], "frames")
    assert [numbers(clip) for clip in clips] == [[number] for number in shown]
    starts = [start for start, _ in times]
    assert (starts[0], times[-1][1]) == (beginning, end)
    if name != TIMELESS:
        expected = [float(film.starts[number] - film.starts[shown[0]]) for number in shown]
        assert np.array(starts) - beginning == pytest.approx(expected, abs=0.0011)

    middles = [(start + following) / 2 for start, following in zip(starts, [*starts[1:], end], strict=True)]
    for moments in (starts, middles):
        clips, again = decoder.get_video_clips([(moment, moment) for moment in moments])
        assert [numbers(clip) for clip in clips] == [[number] for number in shown]
        assert again == times
    # One by one, each is sought for; forwards and backwards.
    for place in (0, 9, 10, 11, 25, len(whole) - 1, 19):
        for clips, _ in (
            decoder.get_video_clips([(place, place)], "frames"),
            decoder.get_video_clips([(middles[place], middles[place])]),
        ):
            assert len(clips) == 1
            assert np.array_equal(clips[0], whole[place : place + 1])


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize(
    "name", ["mp4-reordered", "mkv-uneven", "webm-vp9", "avi-reordered", "mp4-uneven", "mov-mjpeg"]
)
def test_clips_have_both_their_ends_in_any_order(name: str, threads: int, films: dict[str, bytes]) -> None:
    whole, decoder = decoded(films[name]), AVDecoder(io.BytesIO(films[name]), threads=threads)
    generator = np.random.default_rng(1)
    ranges = [tuple(sorted(generator.integers(0, len(whole), 2).tolist())) for _ in range(12)]
    clips, times = decoder.get_video_clips([*ranges, (38, 1e9), (len(whole), 1e9), (7.9, math.inf)], "frames")
    assert len(clips) == len(times) == 14
    for clip, (first, last) in zip(clips, [*ranges, (38, 39), (7, 39)], strict=True):
        assert np.array_equal(clip, whole[first : last + 1])
    # By the times that they say they have, the same clips, or one frame more: that which begins at the end.
    inside = [(start, end - 0.002) for start, end in times]
    assert [clip.shape for clip in decoder.get_video_clips(inside)[0]] == [clip.shape for clip in clips]
    assert decoder.get_video_clips([(times[-1][1] + 1, math.inf)]) == ([], [])


def test_a_rate_of_23_976_has_frame_k_at_k_divided_by_the_rate() -> None:
    for format in ("matroska", "mp4"):
        film = Film(format, "mpeg4", frames=200, rate=FILMS["mp4-ntsc"].rate * 4 / 5, group=50)
        decoder = AVDecoder(io.BytesIO(film.encode()))
        moments = [float(start) for start in film.starts]
        clips, _ = decoder.get_video_clips([(moment, moment) for moment in moments], video_out_frame_size=None)
        assert [numbers(clip)[0] for clip in clips] == list(range(200))


def test_frames_are_scaled_and_spread(films: dict[str, bytes]) -> None:
    decoder = AVDecoder(io.BytesIO(films["mp4-reordered"]))
    frames, starts = get_single_frames_uniform(decoder, 8, video_out_frame_size=(32, 24), return_timestamps=True)
    assert (frames.shape, frames.dtype) == ((8, 3, 24, 32), np.uint8)
    assert starts == pytest.approx([round(k * 39 / 7) / 30 for k in range(8)])
    assert numbers(get_single_frames_uniform(decoder, 40)) == list(range(40))
    data = get_clips_uniform(AVDecoder(io.BytesIO(films["mp4"])), 0.5, 3, request_video=True)
    assert [numbers(clip)[0] for clip in data.video_clips] == [0, 12, 25]
    with pytest.raises(ConfigError, match="request_video=True"):
        get_clips_uniform(decoder, 0.5, 3)


def test_frames_for_reference_alone_are_not_counted(films: dict[str, bytes]) -> None:
    data = films["webm-vp8"]
    with av.open(io.BytesIO(data)) as container:
        packets = [bytes(packet) for packet in container.demux(video=0)]
    hidden = data.replace(packets[5], bytes([packets[5][0] & ~0x10]) + packets[5][1:])
    decoder = AVDecoder(io.BytesIO(hidden))
    assert decoder.get_video_duration(get_frame_count=True)[1] == 39
    clips, _ = decoder.get_video_clips([(4, 4), (5, 5), (38, 38)], "frames")
    assert [numbers(clip) for clip in clips] == [[4], [6], [39]]


METADATA = {
    # Name: duration and frames of the video.
    "mp4-reordered": (40 / 30, 40),
    "mp4-late": (40 / 30, 40),
    "mkv-reordered": (1.334, 40),
    "mkv-uneven": (3.433, 40),
    "webm-vp8": (1.666, 40),
    "avi": (40 / 30, 40),
    "mpegts": (40 / 30, 40),
}


@pytest.mark.parametrize("name", METADATA)
def test_what_is_known_of_a_video(name: str, films: dict[str, bytes]) -> None:
    decoder, (duration, count) = AVDecoder(io.BytesIO(films[name])), METADATA[name]
    metadata = decoder.get_metadata()
    assert metadata.video_duration == pytest.approx(duration, abs=0.001)
    assert (metadata.video_num_frames, metadata.video_width, metadata.video_height) == (count, WIDTH, HEIGHT)
    assert metadata.audio_sample_rate is metadata.audio_duration is None
    assert decoder.get_video_duration() == (metadata.video_duration, decoder.get_video_duration()[1])
    assert decoder.get_video_fps() == metadata.video_fps
    assert (decoder.has_video_stream(), decoder.has_audio_stream()) == (True, False)
    assert decoder.get_audio_duration() is None


class Counting(io.BytesIO):
    """A file that knows how much of it has been read."""

    read_bytes = 0

    def read(self, size: int | None = -1) -> bytes:
        data = super().read(size)
        self.read_bytes += len(data)
        return data


@pytest.mark.parametrize(("format", "codec"), [("mp4", "libx264"), ("matroska", "libx264"), ("avi", "mjpeg")])
def test_a_clip_reads_what_it_needs(format: str, codec: str) -> None:
    """Of a film of some megabytes, a clip in the middle is some buffers; its duration and size are the header."""
    sound = None if format == "avi" else "pcm_s16le" if format == "matroska" else "aac"
    film = Film(format, codec, {"qp": "0"} if codec == "libx264" else {}, frames=600, group=20, sound=sound)
    data = film.encode()
    for call, most in (
        (lambda decoder: decoder.get_metadata(get_video_frame_count=format != "matroska"), 0.25),
        (lambda decoder: decoder.get_video_clips([(10.0, 10.2)]), 0.3),
        (lambda decoder: get_clips_uniform(decoder, 0.1, 2, request_video=True), 0.4),
        *([(lambda decoder: decoder.get_audio_clips([(10.0, 10.2)]), 0.4)] if sound else []),
    ):
        stream = Counting(data)
        call(AVDecoder(stream))
        assert stream.read_bytes < most * len(data) + 200_000


@pytest.mark.parametrize("name", ["mp4-reordered", "mkv-reordered"])
def test_pictures_before_a_clip_that_no_other_needs_are_not_decoded(name: str) -> None:
    film = replace(FILMS[name], group=40, reordered=3)
    data = bytearray(film.encode())
    whole = decoded(bytes(data))
    with av.open(io.BytesIO(data)) as container:
        packets = [(packet.pts * packet.time_base, bytes(packet)) for packet in container.demux(video=0) if packet.size]
    begin = min(time for time, _ in packets)
    needless = [content for time, content in packets if content[4] == 0x01 and time < begin + 20 / film.rate]
    assert len(needless) > 5  # slices of H.264 that nothing refers to
    for content in needless:
        place = data.index(content)
        data[place + 5 : place + len(content)] = bytes(len(content) - 5)
    decoder = AVDecoder(io.BytesIO(data))
    for first in (22, 27, 38):
        (clip,), _ = decoder.get_video_clips([(float(begin + first / film.rate), math.inf)])
        assert np.array_equal(clip, whole[first:])
    with pytest.raises(DecodingError):
        decoder.get_video()


@pytest.mark.parametrize("name", SOUNDS)
def test_audio_is_cut_to_the_sample(name: str) -> None:
    decoder = AVDecoder(io.BytesIO(encode_sound(*SOUNDS[name])))
    whole = decoder.get_audio()
    samples, ((beginning, _),) = whole.audio_clips[0], whole.audio_timestamps
    offset = round(beginning * 48000)
    if name in ("wav", "flac"):
        assert np.array_equal(samples, sound(144000))
    ranges = [(0.5, 1.0), (2.0, 2.0001), (1.25, 1.75), (2.75, 2.875), (0.1, 2.9), (2.3, 2.32)]
    for asked in (ranges, *([each] for each in ranges)):
        clips, times = decoder.get_audio_clips(asked)
        assert times == asked
        for clip, (start, end) in zip(clips, asked, strict=True):
            first = round(start * 48000) - offset
            assert clip.shape == (2, round((end - start) * 48000))
            if name in ("mka", "webm"):  # their clocks tick in milliseconds
                errors = [
                    np.abs(clip - samples[:, at : at + clip.shape[1]]).max() for at in range(first - 48, first + 49)
                ]
                assert min(errors) < 1e-4
            else:
                assert np.abs(clip - samples[:, first : first + clip.shape[1]]).max() < 1e-4  # AAC adds noise
    (clip,), _ = decoder.get_audio_clips([(48000, 48100)], "samples")
    assert np.array_equal(clip, decoder.get_audio_clips([(1.0, 1.0 + 100 / 48000)])[0][0])
    assert decoder.get_audio_clips([(5, 6)]) == ([], [])
    assert decoder.get_audio_samples_per_second() == 48000
    assert decoder.get_metadata(get_audio_num_samples=True).audio_num_samples == samples.shape[1]
    assert decoder.get_audio_duration() == pytest.approx(3, abs=0.15)


@pytest.mark.parametrize("rate", [16000, 44100, 96000])
def test_audio_is_resampled_without_seams(rate: int) -> None:
    decoder = AVDecoder(io.BytesIO(encode_sound("flac", "flac")))
    clips, times = decoder.get_audio_clips([(0.0, 1.0), (1.0, 2.0), (0.5, 1.5)], audio_sample_rate=rate)
    assert times == [(0.0, 1.0), (1.0, 2.0), (0.5, 1.5)]
    assert [clip.shape for clip in clips] == [(2, rate)] * 3
    time = np.arange(rate) / rate
    for clip, start in zip(clips, (0.0, 1.0, 0.5), strict=True):
        steady = np.sin(2 * np.pi * 997 * (time + start)) * 10000
        edge = 40 if start == 0 else 0  # before the first sample there is nothing
        assert np.abs(clip[1] - steady)[edge:].max() < 60
    (whole,) = decoder.get_audio(audio_sample_rate=rate).audio_clips
    assert abs(whole.shape[1] - 3 * rate) <= 1
    assert np.abs(whole[:, rate : 2 * rate].astype(int) - clips[1]).max() < 60


def test_sound_of_a_film(films: dict[str, bytes]) -> None:
    for name in ("mp4-faststart-sound", "mkv-sound", "webm-vp9"):
        decoder = AVDecoder(io.BytesIO(films[name]))
        data = decoder.get_video_with_audio()
        assert (data.video_clips[0].shape, data.audio_clips[0].shape[0]) == ((40, 3, HEIGHT, WIDTH), 2)
        clips = decoder.get_clips([(0.5, 0.6)], [(0.5, 0.6), (0.7, 0.9)], audio_sample_rate=8000)
        assert [clip.shape for clip in clips.audio_clips] == [(2, 800), (2, 1600)]
        assert decoder.get_frames().audio_clips == []
        assert len(decoder.get_frames(video_decode_audio=True).audio_clips) == 1
        assert len(get_clips_uniform(decoder, 0.2, 4, request_video=True, request_audio=True).audio_clips) == 4


def test_decoders_travel(films: dict[str, bytes]) -> None:
    decoder = AVDecoder(io.BytesIO(films["mp4"]), max_pixels=10_000)
    decoder.get_metadata()
    other = pickle.loads(pickle.dumps(decoder))
    assert np.array_equal(other.get_video().video_clips[0], decoder.get_video().video_clips[0])


def test_parts_decode_as_the_options_say(films: dict[str, bytes]) -> None:
    assert isinstance(SampleDecoder().decode("a.mp4", films["mp4"]), AVDecoder)
    decoder = SampleDecoder(av_decode="torch", video_decode_audio=True)
    data = decoder.decode("a.mp4", films["mp4-faststart-sound"])
    assert (numbers(data.video_clips[0]), len(data.audio_clips)) == (list(range(40)), 1)
    assert decoder.decode("a.mkv", films["mkv"]).audio_clips == []  # a silent film
    assert decoder.decode("a.flac", encode_sound("flac", "flac", 4800)).audio_clips[0].shape == (2, 4800)
    with SampleDecoder(av_decode="pyav").decode("a.mp4", films["mp4"]) as container:
        assert container.streams.video[0].width == WIDTH
    handler = AVWebdatasetDecoder(video_decode_audio=False, av_decode="torch")
    assert handler("left.MP4", films["mp4"]).video_clips[0].shape == (40, 3, HEIGHT, WIDTH)
    assert handler("left.txt", b"text") is None


def test_impossible_arguments_are_named(films: dict[str, bytes]) -> None:
    decoder = AVDecoder(io.BytesIO(films["mp4"]))
    with pytest.raises(ConfigError, match=r"video_clip_ranges: the range \(2, 1\) must start before it ends"):
        decoder.get_video_clips([(2, 1)])
    with pytest.raises(ConfigError, match=r"video_clip_ranges=\(1, 2\): expected a list of \(start, end\)"):
        decoder.get_video_clips((1, 2))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="audio_clip_ranges"):
        decoder.get_clips(audio_clip_ranges=[(math.nan, 1)])
    with pytest.raises(ConfigError, match="video_unit='minutes' is not one of seconds, frames"):
        decoder.get_video_clips([(0, 1)], "minutes")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="video_out_frame_size"):
        decoder.get_video_clips([(0, 1)], video_out_frame_size=(0, 4))
    with pytest.raises(ConfigError, match="audio_sample_rate=0"):
        decoder.get_audio(audio_sample_rate=0)
    with pytest.raises(ConfigError, match="binary"):
        AVDecoder(io.StringIO("text"))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"binary file, such as open\(path, 'rb'\).*got a value of type str"):
        AVDecoder("film.mp4")  # type: ignore[arg-type]


ENERGON = """
import hashlib, io, json, sys, warnings
from pathlib import Path
from megatron.energon.av import AVDecoder, get_single_frames_uniform
warnings.simplefilter("ignore")

def digest(clips):
    return [[list(clip.shape), hashlib.sha256(clip.contiguous().numpy().tobytes()).hexdigest()] for clip in clips]

asked = json.loads(sys.argv[2])
found = {}
for path in sorted(Path(sys.argv[1]).iterdir()):
    decoder = AVDecoder(io.BytesIO(path.read_bytes()))
    data = decoder.get_frames()
    whole = [digest(data.video_clips), data.video_timestamps, digest(data.audio_clips), data.audio_timestamps]
    clips = [
        [digest(clips), times]
        for each in asked if data.video_clips
        for clips, times in [decoder.get_video_clips([each])]
    ]
    metadata = {k: v and round(v, 6) for k, v in decoder.get_metadata(get_audio_num_samples=True).to_dict().items()}
    frames = digest([get_single_frames_uniform(decoder, 7, video_out_frame_size=(32, 24))]) if data.video_clips else []
    found[path.name] = [whole, clips, metadata, frames]
print(json.dumps(found))
"""


@pytest.mark.skipif(PEER is None, reason="ENERGON_PEER_PYTHON is not set: no Megatron-Energon to compare with")
def test_energon_gives_the_same(films: dict[str, bytes], tmp_path: Path) -> None:
    """Where it is exact: a constant rate, times of their own, and no moment in the gaps of rounded durations."""
    same = (
        "mp4",
        "mp4-reordered",
        "mp4-ntsc",
        "mkv",
        "mkv-reordered",
        "mkv-sound",
        "webm-vp8",
        "webm-vp9",
        "avi",
        "avi-mjpeg",
    )
    for name in same:
        (tmp_path / name).write_bytes(films[name])
    for name in ("wav", "flac"):
        (tmp_path / f"sound-{name}").write_bytes(encode_sound(*SOUNDS[name]))
    asked = [[0.0, 0.2], [0.42, 0.42], [0.71, 1.1], [1.23, 9.0], [50.0, 60.0]]
    command = [str(PEER), "-c", ENERGON, str(tmp_path), json.dumps(asked)]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert answer.returncode == 0, answer.stderr
    theirs = json.loads(answer.stdout)

    torch = pytest.importorskip("torch")
    energon_grain_torch = pytest.importorskip("energon_grain_torch")
    program: dict[str, object] = {}
    text = ENERGON.partition("asked = ")[0].replace("megatron.energon.av", "energon_grain_torch")
    exec(text, program)
    digest = program["digest"]
    for path in sorted(tmp_path.iterdir()):
        decoder = energon_grain_torch.AVDecoder(io.BytesIO(path.read_bytes()))
        data = decoder.get_frames()
        assert all(isinstance(clip, torch.Tensor) for clip in [*data.video_clips, *data.audio_clips])
        whole, clips, metadata, frames = theirs[path.name]
        found = [digest(data.video_clips), data.video_timestamps, digest(data.audio_clips), data.audio_timestamps]
        assert json.loads(json.dumps(found)) == whole, path.name
        for each, expected in zip(asked, clips, strict=bool(data.video_clips)):
            mine, times = decoder.get_video_clips([each])
            assert json.loads(json.dumps([digest(mine), times])) == expected, (path.name, each)
        mine = decoder.get_metadata(get_audio_num_samples=True).to_dict()
        if path.name == "mkv-reordered":  # theirs is over when the last frame in the file is, which is not shown last
            assert mine.pop("video_duration") - metadata.pop("video_duration") == pytest.approx(0.033)
        if path.name in ("mkv-sound", "webm-vp9"):  # theirs have lost a frame of samples by seeking to the beginning
            assert 0 < mine.pop("audio_num_samples") - metadata.pop("audio_num_samples") <= 1024
        assert {name: value and round(value, 6) for name, value in mine.items()} == metadata, path.name
        # Theirs skips frames in mp4 with open groups, and takes the frame before or after it in some others.
        if path.name in ("mp4", "mp4-reordered", "avi", "avi-mjpeg"):
            mine = energon_grain_torch.get_single_frames_uniform(decoder, 7, video_out_frame_size=(32, 24))
            assert digest([mine]) == frames, path.name
