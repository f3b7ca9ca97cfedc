from __future__ import annotations

import io
import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from PIL import Image

from energon_grain import SampleDecoder
from energon_grain.errors import DecodingError
from energon_grain.transforms.image import IMAGE_MODES, image_codec


def picture(width: int, height: int, mode: str = "RGB", seed: int = 0) -> Image.Image:
    """A smooth picture with noise, so that every step of JPEG decoding matters."""
    rng = np.random.default_rng(seed)
    small = Image.fromarray(rng.integers(0, 256, (3, 3, 4), np.uint8), "RGBA" if mode == "RGBA" else None)
    smooth = np.asarray(small.resize((width, height), Image.Resampling.BICUBIC)).astype(int)
    noisy = (smooth + rng.integers(-20, 20, smooth.shape)).clip(0, 255).astype(np.uint8)
    return Image.fromarray(noisy).convert(mode)


def encoded(image: Image.Image, format: str, **options: Any) -> bytes:
    stream = io.BytesIO()
    image.save(stream, format, **options)
    return stream.getvalue()


def expected(data: bytes, mode: str) -> Any:
    """What the mode's name says, by Pillow and plain numpy."""
    colour = "RGBA" if "rgba" in mode else "L" if mode.rstrip("8").endswith("l") and mode != "pil" else "RGB"
    image = Image.open(io.BytesIO(data)).convert(colour)
    if mode.startswith("pil"):
        return image
    pixels = np.array(image)
    if mode.startswith("torch") and pixels.ndim == 3:
        pixels = pixels.transpose(2, 0, 1)
    return pixels if mode.endswith("8") else pixels.astype(np.float32) / 255.0


def check(data: bytes, mode: str) -> None:
    decoded = image_codec(mode)(data)
    wanted = expected(data, mode)
    if isinstance(wanted, Image.Image):
        assert isinstance(decoded, Image.Image)
        assert decoded.mode == wanted.mode
        decoded, wanted = np.array(decoded), np.array(wanted)
    assert decoded.dtype == wanted.dtype
    assert np.array_equal(decoded, wanted)
    assert decoded.flags.c_contiguous
    assert decoded.flags.writeable


FILES = {
    "jpeg": encoded(picture(37, 21), "JPEG"),
    "jpeg-progressive-420": encoded(picture(64, 40), "JPEG", progressive=True, subsampling=2),
    "jpeg-grey": encoded(picture(20, 30, "L"), "JPEG"),
    "jpeg-cmyk": encoded(picture(20, 30, "CMYK"), "JPEG"),
    "jpeg-1x1": encoded(picture(1, 1), "JPEG"),
    "png": encoded(picture(17, 9), "PNG"),
    "png-rgba": encoded(picture(17, 9, "RGBA"), "PNG"),
    "png-grey": encoded(picture(17, 9, "L"), "PNG"),
    "png-grey-alpha": encoded(picture(17, 9, "LA"), "PNG"),
    "png-palette": encoded(picture(17, 9).quantize(16), "PNG"),
    "png-bits": encoded(picture(17, 9, "1"), "PNG"),
    "bmp": encoded(picture(17, 9), "BMP"),
    "gif": encoded(picture(17, 9).quantize(16), "GIF"),
    "webp": encoded(picture(17, 9), "WEBP"),
    "tiff": encoded(picture(17, 9), "TIFF"),
}


@pytest.mark.parametrize("mode", IMAGE_MODES)
@pytest.mark.parametrize("name", FILES)
def test_every_mode_of_every_kind_of_file(name: str, mode: str):
    check(FILES[name], mode)


@settings(max_examples=60)
@given(
    width=st.integers(1, 70),
    height=st.integers(1, 70),
    colour=st.sampled_from(["RGB", "L"]),
    quality=st.integers(1, 100),
    subsampling=st.sampled_from([0, 1, 2]),
    progressive=st.booleans(),
    optimize=st.booleans(),
    mode=st.sampled_from(["rgb8", "l8", "rgba8", "torchrgb", "torchrgba8"]),
    seed=st.integers(0, 3),
)
def test_jpegs_decode_as_with_pillow(
    width: int,
    height: int,
    colour: str,
    quality: int,
    subsampling: int,
    progressive: bool,
    optimize: bool,
    mode: str,
    seed: int,
):
    options = {"quality": quality, "progressive": progressive, "optimize": optimize}
    if colour == "RGB":
        options["subsampling"] = subsampling
    check(encoded(picture(width, height, colour, seed), "JPEG", **options), mode)


def test_all_bytes_are_divided_exactly():
    ramp = Image.fromarray(np.arange(256, dtype=np.uint8).reshape(16, 16))
    decoded = image_codec("l")(encoded(ramp, "PNG"))
    assert decoded.reshape(-1).tolist() == [float(np.float32(x) / np.float32(255)) for x in range(256)]


@pytest.mark.parametrize("mode", ["rgb8", "torchrgb", "l", "pil"])
@pytest.mark.parametrize("name", ["jpeg", "png"])
def test_views_decode_like_bytes(name: str, mode: str):
    data = FILES[name]
    view = memoryview(b"xx" + data + b"yy")[2:-2]
    assert np.array_equal(np.array(image_codec(mode)(view)), np.array(image_codec(mode)(data)))


@pytest.mark.parametrize("mode", ["rgb8", "torchrgb", "pil"])
@pytest.mark.parametrize(
    "data",
    [b"", b"no image", FILES["jpeg"][:200], FILES["png"][:60], b"\xff\xd8\xff" + bytes(50), FILES["jpeg"][:3]],
)
def test_damaged_images_are_decoding_errors_naming_the_part(data: bytes, mode: Any):
    with pytest.raises(DecodingError, match=r"part 'left\.jpg': "):
        SampleDecoder(image_decode=mode).decode("a.left.jpg", data)


def test_damaged_jpegs_that_pillow_takes_decode_as_pillow_does():
    data = bytearray(FILES["jpeg-progressive-420"])
    data[0:2] = b"\xff\xd8\xff\xfe\x00\x04ab"  # a comment inserted after the start is legal
    check(bytes(data), "rgb8")


def test_decoding_leaves_the_interpreter_free():
    data = encoded(picture(1600, 1600), "JPEG")
    decode = image_codec("torchrgb")
    done = threading.Event()
    thread = threading.Thread(target=lambda: (decode(data), done.set()))
    thread.start()
    turns = 0
    while not done.wait(0.0005):
        turns += 1
    thread.join()
    # Held throughout, the GIL would let this thread run a handful of times.
    assert turns > 20
