"""Decoding of parts: the decoder, texts and numbers, arrays, and a kind of array of somebody else's."""

from __future__ import annotations

import copy
import gzip
import io
import json
import math
import pickle
import struct
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from hypothesis.extra import numpy as hnp
from PIL import Image

from energon_grain import AVDecoder, SampleDecoder, batch_pad_stack, batch_stack, concat_pad, generic_batch
from energon_grain.errors import ConfigError, DecodingError, UntrustedCodeError
from energon_grain.processes.worker import SamplePickler, SampleUnpickler
from energon_grain.stream.memory import approximate_bytes
from energon_grain.transforms import batching as array_kind
from energon_grain.transforms.batching import NUMPY, ArrayKind, kind_of, reducers, register_array_kind
from energon_grain.transforms.decode import decode_npy, decode_npz, decode_tenbin, integer_codec, json_codec, text_codec


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
    with pytest.raises(ConfigError, match=r"image_decode='torchrbg': expected one of .*; did you mean 'torchrgb'\?"):
        SampleDecoder(image_decode="torchrbg")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="av_decode='x': expected one of"):
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


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


def same(a: Any, b: Any) -> bool:
    """Equal, and of equal types at every depth."""
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, float):
        return math.copysign(1, a) == math.copysign(1, b) and (a == b or (a != a and b != b))
    return a == b


@given(JSON, st.booleans(), st.sampled_from([None, 1]))
def test_json_decodes_as_in_the_standard_library(value: Any, ascii_only: bool, indent: int | None):
    data = json.dumps(value, ensure_ascii=ascii_only, indent=indent).encode("utf-8", "surrogatepass")
    try:
        wanted = json.loads(data)
    except ValueError:
        with pytest.raises(DecodingError):
            json_codec("json")(data)
        return
    assert same(json_codec("json")(data), wanted)


@given(
    st.one_of(
        st.from_regex(r"-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d{1,3})?", fullmatch=True),
        st.text("0123456789.eE+-", max_size=8),
    )
)
def test_numbers_decode_as_in_the_standard_library(text: str):
    try:
        wanted = json.loads(text)
    except ValueError:
        with pytest.raises(DecodingError):
            json_codec("json")(text.encode())
        return
    assert same(json_codec("json")(text.encode()), wanted)


@pytest.mark.parametrize(
    "data",
    [
        b"NaN",
        b"[Infinity, -Infinity]",
        b'"\\ud800"',
        b"123456789012345678901234567890",
        b"\xef\xbb\xbf1",
        '{"a":1}'.encode("utf-16"),
    ],
)
def test_json_beyond_the_standard_decodes_as_in_the_standard_library(data: bytes):
    try:
        wanted = json.loads(data)
    except ValueError:
        with pytest.raises(DecodingError):
            json_codec("json")(data)
        return
    assert same(json_codec("json")(data), wanted)


def test_views_decode_like_bytes():
    assert json_codec("json")(memoryview(b'{"a": [1]}')) == {"a": [1]}
    assert json_codec("json")(memoryview(b"NaN")) != 0
    assert text_codec("txt")(memoryview("ä".encode())) == "ä"
    assert integer_codec("cls")(memoryview(b"12")) == 12


@pytest.mark.parametrize(("data", "value"), [(b"3", 3), (b" -7\n", -7), (b"1_000", 1000), (b"+5", 5)])
def test_integers(data: bytes, value: int):
    assert integer_codec("cls")(data) == value


@pytest.mark.parametrize(
    ("codec", "data"),
    [
        (text_codec, b"\xff\xfe"),
        (integer_codec, b""),
        (integer_codec, b"1.0"),
        (json_codec, b""),
        (json_codec, b"{"),
        (json_codec, b"\xff"),
        (json_codec, b"[" * 100_000),
    ],
)
def test_errors_name_the_part(codec: Any, data: bytes):
    with pytest.raises(DecodingError, match=r"part 'a\.part': "):
        codec("a.part")(data)


TYPES = hnp.scalar_dtypes() | hnp.array_dtypes(max_size=3, allow_subarrays=True) | hnp.unicode_string_dtypes()


def npy(array: np.ndarray[Any, Any], version: tuple[int, int] | None = None) -> bytes:
    stream = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that old versions of numpy cannot read versions 2 and 3
        np.lib.format.write_array(stream, array, version=version)
    return stream.getvalue()


@settings(max_examples=50)
@given(st.data(), TYPES, hnp.array_shapes(min_dims=0, min_side=0, max_side=4), st.booleans())
def test_npy_decodes_as_numpy_does(data: st.DataObject, dtype: np.dtype[Any], shape: tuple[int, ...], fortran: bool):
    array = data.draw(hnp.arrays(dtype, shape))
    file = npy(np.asfortranarray(array) if fortran else array)
    wanted = np.lib.format.read_array(io.BytesIO(file))
    for buffer in (file, memoryview(b"x" + file + b"more")[1:], bytearray(file)):
        decoded = decode_npy(buffer)
        assert decoded.dtype == wanted.dtype
        assert decoded.shape == wanted.shape
        assert decoded.tobytes() == wanted.tobytes()
        assert decoded.flags.writeable
        assert decoded.flags.f_contiguous == wanted.flags.f_contiguous


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_npy_versions(version: tuple[int, int]):
    array = np.arange(6).reshape(2, 3)
    assert decode_npy(npy(array, version)).tolist() == array.tolist()


@pytest.mark.parametrize(
    "damage", [lambda d: d[:-1], lambda d: b"", lambda d: d[:9], lambda d: b"x" + d, lambda d: d[:40]]
)
def test_damaged_npy(damage: Any):
    with pytest.raises((ValueError, SyntaxError)):
        decode_npy(damage(npy(np.arange(6))))


def test_python_objects_need_permission():
    file = io.BytesIO()
    np.save(file, np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(ValueError, match="allow_pickle"):
        decode_npy(file.getvalue())
    assert decode_npy(file.getvalue(), allow_pickle=True)[0] == {}
    archive = io.BytesIO()
    np.savez(archive, a=np.array([{}], dtype=object))
    with pytest.raises(ValueError, match="allow_pickle"):
        decode_npz(archive.getvalue())


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_npz(save: Any):
    stream = io.BytesIO()
    save(stream, a=np.arange(3), b=np.ones((2, 2)))
    decoded = decode_npz(memoryview(stream.getvalue()))
    assert {name: array.tolist() for name, array in decoded.items()} == {"a": [0, 1, 2], "b": [[1, 1], [1, 1]]}


def chunk(content: bytes) -> bytes:
    return b"~TenBin~" + struct.pack("<q", len(content)) + content + bytes(-len(content) % 64)


def tenbin(*arrays: np.ndarray[Any, Any]) -> bytes:
    parts: list[bytes] = []
    for array in arrays:
        header = array.dtype.str[1:].encode().ljust(8, b"\0") + bytes(8)
        parts += [chunk(header + struct.pack(f"<{1 + array.ndim}q", array.ndim, *array.shape)), chunk(array.tobytes())]
    return b"".join(parts)


def test_tenbin():
    decoded = decode_tenbin(tenbin(np.arange(6, dtype=np.float32).reshape(2, 3), np.array(7, np.uint8)))
    assert [array.tolist() for array in decoded] == [[[0, 1, 2], [3, 4, 5]], 7]
    assert decoded[0].dtype == np.float32
    assert decode_tenbin(b"") == []


@given(st.data())
def test_damaged_tenbin_never_decodes_to_something_else(data: st.DataObject):
    file = bytearray(tenbin(np.arange(6, dtype=np.int16)))
    position = data.draw(st.integers(0, 79 + 23))
    file[position] ^= 1 << data.draw(st.integers(0, 7))
    try:
        decoded = decode_tenbin(bytes(file))
    except ValueError:
        return
    assert len(decoded) == 1  # the label, padding or data changed, or the type became one of the same size


class Framed:
    """An array in a frame."""

    def __init__(self, content: Any) -> None:
        self.content = np.asarray(content)
        self.shape, self.ndim, self.nbytes = self.content.shape, self.content.ndim, self.content.nbytes


class Gilded(Framed):
    pass


def contents(batch: Any) -> list[Any]:
    return [framed.content for framed in batch]


KIND = ArrayKind(
    stack=lambda batch: Framed(NUMPY.stack(contents(batch))),
    pad_stack=lambda batch, shape: Framed(NUMPY.pad_stack(contents(batch), shape)),
    concatenate=lambda batch: Framed(NUMPY.concatenate(contents(batch))),
    concat_pad=lambda batch, shape: Framed(NUMPY.concat_pad(contents(batch), shape)),
    reduce=lambda framed: (Framed, (framed.content,)),
)


@pytest.fixture
def registered() -> Iterator[None]:
    assert kind_of(Framed) is None
    register_array_kind(Framed, KIND)
    yield
    del array_kind._kinds[Framed]
    kind_of.cache_clear()


@pytest.mark.usefixtures("registered")
def test_a_registered_kind_is_batched() -> None:
    one, two = Framed([1, 2]), Gilded([3])
    assert kind_of(Gilded) is kind_of(Framed) is KIND
    assert batch_stack([one, one]).content.tolist() == [[1, 2], [1, 2]]
    assert batch_pad_stack([one, two]).content.tolist() == [[1, 2], [3, 0]]
    assert generic_batch([{"a": one}, {"a": two}])["a"].content.tolist() == [[1, 2], [3, 0]]
    assert concat_pad([one, two]).content.tolist() == [1, 2, 3]
    wide = [Framed([[1, 2]]), Framed([[3], [4]])]
    assert concat_pad(wide).content.tolist() == [[1, 2], [3, 0], [4, 0]]
    with pytest.raises(ValueError, match=r"a: sample 0 has an array \(Framed\), sample 1 has ndarray"):
        batch_stack([one, np.ones(2)], where="a")
    assert approximate_bytes([one, {"two": two}]) == 24


@pytest.mark.usefixtures("registered")
def test_a_registered_kind_is_sent_as_it_says() -> None:
    pickler = SamplePickler([])
    payload = bytes(pickler.payload([Framed(range(3)), complex(1)]))
    assert [buffer.raw().nbytes for buffer in pickler.buffers] == [24]
    framed, number = SampleUnpickler(payload, pickler.buffers, []).load()
    assert framed.content.tolist() == [0, 1, 2]
    assert number == 1
    assert vars(pickle.loads(pickle.dumps(Framed(1)))).keys() == vars(Framed(1)).keys(), "elsewhere nothing changes"


def test_what_is_no_array_is_listed_or_named() -> None:
    framed = Framed(1)
    assert generic_batch([framed]) == [framed]
    for join in (batch_stack, batch_pad_stack, concat_pad):
        with pytest.raises(ValueError, match="a: expected arrays to stack, sample 0 has Framed"):
            join([framed], where="a")


def test_numpy_needs_no_table_of_reducers() -> None:
    table = reducers()
    assert table is None or np.ndarray not in table
