from __future__ import annotations

import copy
import gzip
import io
import json
import pickle
from typing import Any

import numpy as np
import pytest
from PIL import Image

from energon_grain import AVDecoder, SampleDecoder
from energon_grain.errors import ConfigError, DecodingError, UntrustedCodeError


def gzipped(data: bytes) -> bytes:
    """Without the time, so that names of tests are the same in all processes that collect them."""
    return gzip.compress(data, mtime=0)


def png() -> bytes:
    stream = io.BytesIO()
    Image.new("RGB", (2, 3), (255, 0, 51)).save(stream, "PNG")
    return stream.getvalue()


@pytest.mark.parametrize(
    ("part", "data", "value"),
    [
        ("txt", b"text", "text"),
        ("text", b"text", "text"),
        ("transcript", b"text", "text"),
        ("cls", b"7", 7),
        ("cls2", b"7", 7),
        ("index", b"7", 7),
        ("inx", b"7", 7),
        ("id", b"7", 7),
        ("json", b'{"a": 1}', {"a": 1}),
        ("jsn", b"[1]", [1]),
        ("d.json", b"[1]", [1]),
        ("a.b.txt", b"text", "text"),
        ("txt.gz", gzipped(b"text"), "text"),
        ("gz", gzipped(b"text"), b"text"),
        ("bin.gz", gzipped(b"text"), b"text"),
        ("txt.gz.gz", gzipped(gzipped(b"text")), gzipped(b"text")),
        ("bin", b"text", b"text"),
        ("TXT", b"text", b"text"),
        ("txt.", b"text", b"text"),
        ("txtx", b"text", b"text"),
        ("", b"text", b"text"),
        ("__key__", b"text", b"text"),
    ],
)
def test_the_end_of_the_name_says_what_a_part_is(part: str, data: bytes, value: Any):
    decoder = SampleDecoder()
    assert decoder({part: data}) == {part: value}
    if not part.startswith("__"):
        codec = decoder.decoder_for(part)
        assert (data if codec is None else codec(data)) == value


@pytest.mark.parametrize("part", ["png", "PNG", "left.png", "jpg", "png.gz"])
def test_images_in_any_case(part: str):
    data = gzipped(png()) if part.endswith("gz") else png()
    image = SampleDecoder().decode(f"dir.x/key.{part}", data)
    assert image.dtype == np.float32
    assert image.shape == (3, 3, 2)
    assert image[:, 0, 0].tolist() == [1.0, 0.0, float(np.float32(51) / np.float32(255))]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("a.txt", "x"),
        ("d/e.f/a.txt", "x"),
        ("a.b.txt", "x"),
        ("a", b"x"),
        ("d.txt/a", b"x"),
        (".txt", b"x"),
        ("a.", b"x"),
    ],
)
def test_decode_takes_whole_file_names(name: str, value: Any):
    assert SampleDecoder().decode(name, b"x") == value


def test_msgpack_and_cbor():
    msgpack = pytest.importorskip("msgpack")
    cbor2 = pytest.importorskip("cbor2")
    value = {"a": [1, 2.5, "x", b"y", None]}
    decoder = SampleDecoder()
    assert decoder.decode("a.mp", msgpack.packb(value)) == value
    assert decoder.decode("a.msg", memoryview(msgpack.packb(value))) == value
    assert decoder.decode("a.cbor", cbor2.dumps(value)) == value
    with pytest.raises(DecodingError, match="part 'mp'"):
        decoder.decode("a.mp", b"\xc1")
    with pytest.raises(DecodingError, match="part 'cbor'"):
        decoder.decode("a.cbor", b"\xff")


@pytest.mark.parametrize("part", ["pkl", "pickle", "pyd", "pth", "a.pkl", "pkl.gz"])
def test_pickles_are_refused_with_the_option_that_allows_them(part: str):
    with pytest.raises(UntrustedCodeError, match=rf"part '{part.removesuffix('.gz')}'.*allow_pickle=True"):
        SampleDecoder().decoder_for(part)


def test_pickles_decode_where_allowed():
    decoder = SampleDecoder(allow_pickle=True)
    assert decoder.decode("a.pkl", pickle.dumps({"a": 1})) == {"a": 1}
    with pytest.raises(DecodingError, match="part 'pkl': "):
        decoder.decode("a.pkl", b"nonsense")


def test_the_environment_allows_pickles_unless_the_program_says_no(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("ENERGON_GRAIN_ALLOW_PICKLE", "1")
    allowed = SampleDecoder()
    with pytest.raises(UntrustedCodeError, match="part 'pkl'"):
        SampleDecoder(allow_pickle=False).decoder_for("pkl")
    monkeypatch.delenv("ENERGON_GRAIN_ALLOW_PICKLE")
    for decoder in (allowed, pickle.loads(pickle.dumps(allowed))):
        assert decoder.decode("k.pkl", pickle.dumps([1])) == [1]
    with pytest.raises(UntrustedCodeError, match="part 'pkl'"):
        SampleDecoder().decoder_for("pkl")


def test_arrays_do_not_unpickle():
    stream = io.BytesIO()
    np.save(stream, np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(DecodingError, match=r"part 'npy': .*allow_pickle"):
        SampleDecoder().decode("a.npy", stream.getvalue())


@pytest.mark.parametrize(
    ("part", "data"),
    [("npy", b"x"), ("npz", b"x"), ("ten", b"x"), ("tb", b"x"), ("txt.gz", b"x"), ("txt.gz", gzipped(b"\xff"))],
)
def test_damage_is_a_decoding_error_naming_the_part(part: str, data: bytes):
    with pytest.raises(DecodingError, match=f"part '{part}|part '{part.removesuffix('.gz')}"):
        SampleDecoder().decode(f"a.{part}", data)


def test_guess_content_looks_at_the_bytes_of_media_only():
    decoder = SampleDecoder(guess_content=True, image_decode="rgb8")
    assert decoder.decode("a.bin", png()).shape == (3, 2, 3)
    assert decoder.decode("a", png()).shape == (3, 2, 3)
    assert decoder.decode("a.txt", b"text") == "text"
    assert decoder.decode("a.mp4", png()).shape == (3, 2, 3)
    assert decoder.decode("a.unknown", b"text") == b"text"
    assert isinstance(decoder.decode("a.jpg", b"\0\0\0\x20ftypisom"), AVDecoder)
    with pytest.raises(UntrustedCodeError):
        decoder.decode("a.pkl", b"text")


def test_media_are_held_until_asked_for():
    video = SampleDecoder().decode("a.MP4", b"bytes")
    assert isinstance(video, AVDecoder)
    assert video.stream.read() == b"bytes"
    assert pickle.loads(pickle.dumps(video)).stream.getvalue() == b"bytes"


def test_options_are_checked():
    with pytest.raises(ConfigError, match=r"image_decode='torchrbg' is not one of .*; did you mean 'torchrgb'\?"):
        SampleDecoder(image_decode="torchrbg")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="av_decode='x' is not one of"):
        SampleDecoder(av_decode="x")  # type: ignore[arg-type]


def test_decoders_copy_pickle_and_compare_by_their_options():
    decoder = SampleDecoder(image_decode="rgb8")
    decoder.decoder_for("txt")
    for other in (pickle.loads(pickle.dumps(decoder)), copy.deepcopy(decoder)):
        assert other == decoder
        assert hash(other) == hash(decoder)
        assert other.decode("a.png", png()).shape == (3, 2, 3)
    assert decoder != SampleDecoder()
    assert json.loads(json.dumps(decoder.config()))["image_decode"] == "rgb8"
    assert repr(decoder).startswith("SampleDecoder(image_decode='rgb8', ")


def test_codecs_are_resolved_once_a_name():
    decoder = SampleDecoder()
    assert decoder.decoder_for("json") is decoder.decoder_for("json")
    assert decoder.decoder_for("bin") is None
