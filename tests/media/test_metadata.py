"""What is known of media, and the text that an index keeps of it."""

from __future__ import annotations

import json
import os
import subprocess

import pytest

from energon_grain import (
    AVMetadata,
    ImageMetadata,
    MediaMetadataBase,
    deserialize_media_metadata,
    serialize_media_metadata,
)
from energon_grain.errors import FormatError

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
        ("film", "{}", "is of type 'film'; known are 'av', 'image'"),
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
