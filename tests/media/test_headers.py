"""What headers say of media, against what decoding the whole files says, and the text that an index keeps of it."""

from __future__ import annotations

import io
import json
import os
import random
import struct
import subprocess
import tracemalloc
import wave
from typing import Any

import av
import pytest
from media_fuzzing import mutated
from media_kinds import PICTURES, film, picture, saved, voice
from PIL import Image

from energon_grain import (
    AVMetadata,
    ImageMetadata,
    MediaMetadataBase,
    deserialize_media_metadata,
    serialize_media_metadata,
)
from energon_grain.errors import ConfigError, DecodingError, FormatError
from energon_grain.media.headers import HEADER_BYTES, MAX_HEADER_BYTES, read_header
from energon_grain.prepare import MediaFilterConfig

BY_HEADER = MediaFilterConfig.parse(None, True, False)
BY_EXTENSION = MediaFilterConfig.parse(None, False, True)


class Reads:
    """A file in memory, and which of its bytes were asked for."""

    def __init__(self, data: bytes) -> None:
        self.data, self.asked_bytes = data, 0

    def __call__(self, at: int, count: int) -> bytes:
        assert 0 < count <= len(self.data) - at
        self.asked_bytes += count
        return self.data[at : at + count]


def look(data: bytes, name: str, by: MediaFilterConfig = BY_HEADER) -> Any:
    return read_header(data[:HEADER_BYTES], len(data), Reads(data), name, by)


@pytest.mark.parametrize("name", PICTURES)
def test_pictures_are_what_decoding_them_says(name: str) -> None:
    data = PICTURES[name]()
    with Image.open(io.BytesIO(data)) as image:
        image.load()
        expected = ImageMetadata(width=image.width, height=image.height, format=str(image.format), mode=image.mode)
    for by in (BY_HEADER, BY_EXTENSION, MediaFilterConfig.parse("*.JPG,*.*", False, False)):
        assert by.may_take(name)
        assert look(data, name, by) == expected


def test_of_most_pictures_the_first_bytes_are_enough() -> None:
    data = saved(picture(size=(900, 700)), "JPEG", quality=95)
    reads = Reads(data)
    assert len(data) > 10 * HEADER_BYTES
    assert read_header(data[:HEADER_BYTES], len(data), reads, "a.jpg", BY_EXTENSION).width == 900
    assert reads.asked_bytes == 0


@pytest.mark.parametrize(
    ("form", "codec", "sound"),
    [
        ("mp4", "mpeg4", "aac"),
        ("mov", "mpeg4", None),
        ("matroska", "mpeg4", "aac"),
        ("webm", "libvpx", None),
        ("avi", "mpeg4", None),
    ],
)
def test_videos_are_described(form: str, codec: str, sound: str | None) -> None:
    found = look(film(form, codec, sound=sound), "a.bin")
    assert isinstance(found, AVMetadata)
    assert (found.video_width, found.video_height, found.video_num_frames, found.video_fps) == (64, 48, 20, 25.0)
    assert found.video_duration == pytest.approx(0.8, abs=1e-3)
    assert found.audio_sample_rate == (None if sound is None else 48000)
    if sound is not None:
        assert found.audio_channels == 2
        assert found.audio_duration == pytest.approx(0.8, abs=0.1)


@pytest.mark.parametrize(
    ("name", "form", "codec", "rate", "exact"),
    [
        ("a.wav", "wav", "pcm_s16le", 16000, True),
        ("b.wav", "wav", "pcm_f32le", 8000, True),
        ("a.flac", "flac", "flac", 44100, True),
        ("a.mp3", "mp3", "libmp3lame", 44100, False),
        ("a.ogg", "ogg", "libopus", 48000, False),
        ("a.m4a", "ipod", "aac", 44100, False),
        ("a.aac", "adts", "aac", 44100, False),
    ],
)
def test_sounds_are_described(name: str, form: str, codec: str, rate: int, exact: bool) -> None:
    data = voice(form, codec, rate)
    with av.open(io.BytesIO(data)) as container:
        decoded = sum(frame.samples for frame in container.decode(audio=0))
    for by in (BY_HEADER, BY_EXTENSION):
        found = look(data, name, by)
        assert (found.audio_sample_rate, found.audio_channels) == (rate, 2)
        assert found.video_width is None
        # What a codec adds at the ends is no more than two of its frames.
        assert abs(found.audio_num_samples - decoded) <= (0 if exact else 2 * 1152)
        assert found.audio_duration == pytest.approx(found.audio_num_samples / rate, abs=1e-4)


def test_a_wav_file_needs_no_package_and_may_be_cut_short() -> None:
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as file:
        file.setnchannels(2)
        file.setsampwidth(2)
        file.setframerate(8000)
        file.writeframes(bytes(4 * 1000))
    data = buffer.getvalue()
    expected = AVMetadata(audio_duration=0.125, audio_channels=2, audio_sample_rate=8000, audio_num_samples=1000)
    assert look(data, "a.wav") == expected
    assert look(data[:-400], "a.wav").audio_num_samples == 900


def test_what_is_no_medium_is_passed_over() -> None:
    assert look(b"a text", "a.txt") is None
    assert look(b"", "a.json") is None
    assert not BY_EXTENSION.may_take("a.txt")
    assert not MediaFilterConfig.parse("*.png, b/*", False, False).may_take("c/a.jpg")


def test_the_first_bytes_decide_unless_the_ending_is_asked_for() -> None:
    data = saved(picture(), "PNG")
    assert look(data, "a.txt").format == "PNG"
    assert look(data, "a.jpg", BY_EXTENSION).format == "PNG"
    with pytest.raises(DecodingError, match="no readable header of a medium"):
        look(data[:40] + b"?", "a.mp4", BY_EXTENSION)
    with pytest.raises(DecodingError, match="no readable header of an image"):
        look(film("mp4", "mpeg4", 2), "a.jpg", BY_EXTENSION)


def test_filters_are_checked() -> None:
    for given in [(None, False, False), ("*.jpg", True, False), (None, True, True)]:
        with pytest.raises(ConfigError, match="exactly one"):
            MediaFilterConfig.parse(*given)
    with pytest.raises(ConfigError, match="got none"):
        MediaFilterConfig.parse(",", False, False)
    with pytest.raises(ConfigError, match="expected a MediaFilterConfig"):
        MediaFilterConfig.of("*.jpg")


def test_a_failure_to_read_is_no_fault_of_the_file() -> None:
    data = PICTURES["exif.jpg"]()

    def fail(at: int, count: int) -> bytes:
        raise OSError("the disk is gone")

    with pytest.raises(OSError, match="the disk is gone"):
        read_header(data[:HEADER_BYTES], len(data), fail, "a.jpg", BY_HEADER)


def test_damaged_headers_are_named_and_take_no_more_than_a_bound() -> None:
    """Whatever the bytes are, the answer is metadata or a DecodingError, from little memory."""
    dice = random.Random(7)
    files = [(name, make()) for name, make in PICTURES.items() if "large" not in name]
    files += [("a.wav", voice("wav", "pcm_s16le", 8000)), ("a.flac", voice("flac", "flac", 16000))]
    files += [("a.mp4", film("mp4", "mpeg4", 5)), ("a.mkv", film("matroska", "mpeg4", 5))]
    failed = 0
    tracemalloc.start()
    try:
        for round in range(10):
            for name, data in files:
                if name.endswith(("mp4", "mkv", "flac")) and round > 2:
                    continue
                try:
                    found = look(mutated(data, dice), name, dice.choice((BY_HEADER, BY_EXTENSION)))
                except DecodingError as error:
                    failed += str(error).startswith("has no readable header")
                else:
                    assert found is None or found.to_dict()
        assert tracemalloc.get_traced_memory()[1] < MAX_HEADER_BYTES
    finally:
        tracemalloc.stop()
    assert failed > 20


def test_a_frame_beyond_all_bounds_is_a_damaged_header() -> None:
    """Pillow looks at the first frame of a GIF when it opens it, and refuses some in a way of its own."""
    data = bytearray(PICTURES["a.gif"]())
    struct.pack_into("<HH", data, data.index(b"\x2c\0\0\0\0") + 5, 60_000, 60_000)
    with pytest.raises(DecodingError, match="3600000000 pixels"):
        look(bytes(data), "a.gif")


def test_a_header_without_end_is_given_up() -> None:
    """Segments that a JPEG may skip, as many as its file has."""
    segment = b"\xff\xe0\xff\xff" + bytes(0xFFFD)
    size_bytes = 1 << 40

    def read_at(at: int, count: int) -> bytes:
        start = (at - 2) % len(segment)
        return (segment * (count // len(segment) + 2))[start : start + count]

    head = (b"\xff\xd8" + segment)[:HEADER_BYTES]
    with pytest.raises(DecodingError, match="not found within 64 MiB"):
        read_header(head, size_bytes, read_at, "a.jpg", BY_HEADER)


KNOWN = (
    AVMetadata(),
    AVMetadata(video_duration=10.5, video_num_frames=252, video_fps=24000 / 1001, video_width=1920, video_height=1080),
    AVMetadata(audio_duration=3.0, audio_channels=2, audio_sample_rate=48000, audio_num_samples=144000),
    ImageMetadata(width=32, height=16, format="JPEG", mode="RGB"),
)


@pytest.mark.parametrize("metadata", KNOWN)
def test_metadata_come_back_from_their_text(metadata: MediaMetadataBase) -> None:
    kind, text = serialize_media_metadata(metadata)
    assert text == json.dumps(json.loads(text), separators=(",", ":"))
    assert "null" not in text
    assert deserialize_media_metadata(kind, text) == deserialize_media_metadata(kind.value, text) == metadata


def test_the_text_is_the_one_of_the_format() -> None:
    assert serialize_media_metadata(KNOWN[-1]) == ("image", '{"width":32,"height":16,"format":"JPEG","mode":"RGB"}')


def test_what_a_later_version_adds_is_left_out() -> None:
    assert deserialize_media_metadata("av", '{"video_fps":24,"video_codec":"h264"}') == AVMetadata(video_fps=24.0)
    assert deserialize_media_metadata("av", "") == AVMetadata()


@pytest.mark.parametrize(
    ("kind", "text", "says"),
    [
        ("film", "{}", "has type 'film'; expected one of 'av', 'image'"),
        ("av", '{"video_fps":', "is damaged: .* '{\"video_fps\":'"),
        ("av", "[1]", "is damaged: Expected `object`, got `array`"),
        ("av", '{"video_fps":"fast"}', r"does not fit AVMetadata: Expected `float \| null`, got `str`"),
        ("image", '{"width":1}', "does not fit ImageMetadata: Object missing required field `height`"),
    ],
)
def test_damaged_metadata_are_named(kind: str, text: str, says: str) -> None:
    with pytest.raises(FormatError, match=says):
        deserialize_media_metadata(kind, text)


@pytest.mark.skipif("ENERGON_PEER_PYTHON" not in os.environ, reason="needs the real Megatron-Energon")
def test_energon_writes_the_same_text() -> None:
    fields = [each.to_dict() for each in KNOWN]
    program = (
        "import json, sys\nfrom megatron.energon.media import AVMetadata, ImageMetadata, serialize_media_metadata\n"
        "for each in json.load(sys.stdin):\n"
        "    kind = ImageMetadata if 'width' in each else AVMetadata\n"
        "    print(serialize_media_metadata(kind(**each))[1])\n"
    )
    command = [os.environ["ENERGON_PEER_PYTHON"], "-c", program]
    answer = subprocess.run(command, input=json.dumps(fields), capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.splitlines() == [serialize_media_metadata(each)[1] for each in KNOWN]
