"""Images: what each mode makes of them, sizes and groups of them, by Pillow and by nvImageCodec."""

from __future__ import annotations

import io
import pickle
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given, settings, settings as hypothesis_settings, strategies as st
from PIL import Image
from stream_hosts import config

import energon_grain
import energon_grain_torch
from energon_grain import (
    Cooker,
    DefaultTaskEncoder,
    ImageSample,
    SampleDecoder,
    Stream,
    WorkerConfig,
    basic_sample_keys,
    batch_pad_stack,
    get_loader,
    get_train_dataset,
)
from energon_grain.errors import ConfigError, DecodingError
from energon_grain.prepare import prepare_dataset
from energon_grain.testing import make_captioning_dataset, write_tars
from energon_grain.transforms import image
from energon_grain.transforms.image import IMAGE_MODES, ImageFilter, image_codec


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


FILTERS = get_args(ImageFilter)


def photograph(height: int, width: int, seed: int = 0) -> Image.Image:
    """A picture whose frequencies are as strong as those of photographs usually are."""
    rng = np.random.default_rng(seed)
    frequencies = np.hypot(np.fft.fftfreq(height)[:, None], np.fft.fftfreq(width)[None])
    frequencies[0, 0] = 1
    planes = np.fft.ifft2(np.fft.fft2(rng.standard_normal((3, height, width))) / frequencies**1.2).real
    planes[1:] = 0.3 * planes[1:] + planes[0]
    planes = (planes - planes.mean()) / planes.std()
    return Image.fromarray(np.clip(128 + 50 * planes.transpose(1, 2, 0), 0, 255).astype(np.uint8))


def file_of(image: Image.Image, format: str = "JPEG", **options: Any) -> bytes:
    stream = io.BytesIO()
    image.save(stream, format, **options)
    return stream.getvalue()


def resized(data: bytes, size: tuple[int, int], filter: str = "bicubic", colour: str = "RGB") -> np.ndarray:
    """The whole picture, made (height, width) by Pillow."""
    image = Image.open(io.BytesIO(data)).convert(colour)
    return np.asarray(image.resize(size[::-1], Image.Resampling[filter.upper()]))


def decode(data: bytes, mode: Any = "rgb8", **options: Any) -> Any:
    return SampleDecoder(image_decode=mode, **options).decode("image.jpg", data)


def psnr(one: np.ndarray, other: np.ndarray) -> float:
    return float(10 * np.log10(255**2 / np.mean((one.astype(float) - other) ** 2)))


SIZED_FILES = {
    "jpeg": file_of(photograph(65, 90)),
    "jpeg-progressive": file_of(photograph(65, 90), progressive=True, subsampling=0),
    "jpeg-grey": file_of(photograph(65, 90).convert("L")),
    "jpeg-cmyk": file_of(photograph(65, 90).convert("CMYK")),
    "png": file_of(photograph(65, 90), "PNG"),
    "png-palette": file_of(photograph(65, 90).quantize(16), "PNG"),
    "webp": file_of(photograph(65, 90), "WEBP", lossless=True),
}
ALPHA = photograph(65, 90)
ALPHA.putalpha(Image.linear_gradient("L").resize((90, 65)))
SIZED_FILES["png-alpha"] = file_of(ALPHA, "PNG")


@pytest.mark.parametrize("mode", IMAGE_MODES)
@pytest.mark.parametrize("name", SIZED_FILES)
def test_every_mode_of_every_kind_of_file_at_a_size(name: str, mode: str) -> None:
    """What is not reduced is what Pillow makes of the whole; a reduced one differs a little; modes differ in form."""
    colour = "RGBA" if "rgba" in mode else "L" if mode.rstrip("8").endswith("l") and mode != "pil" else "RGB"
    for size, whole in (((40, 50), True), ((70, 100), True), ((9, 21), False)):
        image = decode(SIZED_FILES[name], mode, image_size=size)
        if mode.startswith("pil"):
            assert image.mode == colour
        pixels = np.asarray(image)
        if mode.startswith("torch") and colour != "L":
            pixels = pixels.transpose(1, 2, 0)
        assert pixels.shape[:2] == size
        if not mode.startswith("pil"):
            assert image.flags.c_contiguous
            assert image.flags.writeable
        if pixels.dtype == np.float32:
            pixels = pixels * np.float32(255)
        expected = resized(SIZED_FILES[name], size, colour=colour)
        if whole or not name.startswith("jpeg") or name == "jpeg-cmyk":
            np.testing.assert_allclose(pixels, expected, atol=1e-4)
        else:
            assert psnr(pixels, expected) > 30


@pytest.mark.parametrize("filter", FILTERS)
def test_filters(filter: Any) -> None:
    for name in ("jpeg", "png"):
        image = decode(SIZED_FILES[name], image_size=(50, 60), image_filter=filter)
        assert np.array_equal(image, resized(SIZED_FILES[name], (50, 60), filter))
    reduced = decode(SIZED_FILES["jpeg"], image_size=(10, 12), image_filter=filter)
    expected = resized(SIZED_FILES["jpeg"], (10, 12), filter)
    assert np.array_equal(reduced, expected) == (filter == "nearest")


@pytest.mark.parametrize(
    ("height", "width", "size", "expected"),
    [
        (30, 60, 20, (20, 40)),
        (60, 30, 20, (40, 20)),
        (30, 61, 20, (20, 41)),
        (31, 31, 7, (7, 7)),
        (10, 25, 40, (40, 100)),
        (10, 25, (40, 41), (40, 41)),
        (1, 9, 1, (1, 9)),
        (30, 60, [5, 6], (5, 6)),
        (30, 60, np.int64(3), (3, 6)),
    ],
)
def test_sizes(height: int, width: int, size: Any, expected: tuple[int, int]) -> None:
    for form in ("JPEG", "PNG"):
        assert decode(file_of(photograph(height, width), form), image_size=size).shape == (*expected, 3)


@settings(max_examples=60)
@given(
    height=st.integers(1, 150),
    width=st.integers(1, 150),
    size=st.tuples(st.integers(1, 80), st.integers(1, 80)),
    subsampling=st.sampled_from([0, 2]),
    grey=st.booleans(),
)
def test_a_reduced_picture_lies_where_the_whole_one_does(
    height: int, width: int, size: tuple[int, int], subsampling: int, grey: bool
) -> None:
    """A slope from edge to edge shows the smallest shift, also where eighths of a side are no whole pixels."""
    down, right = np.mgrid[: 200 : height * 1j, : 200 : width * 1j]
    slope = Image.fromarray(np.stack([down, right, (down + right) / 2], -1).astype(np.uint8))
    data = file_of(slope.convert("L"), quality=98) if grey else file_of(slope, quality=98, subsampling=subsampling)
    expected = resized(data, size, "bilinear").astype(int)
    steep = 400 / min(height, width, 400)  # colours of 4:2:0 are known at every other pixel alone
    assert np.abs(decode(data, image_size=size, image_filter="bilinear") - expected).max() <= 6 + steep


def test_the_difference_from_resizing_the_whole() -> None:
    """The bound that the documentation states of photographs."""
    data = file_of(photograph(512, 500), quality=90)
    whole = resized(data, (128, 125))
    assert 36 < psnr(decode(data, image_size=(128, 125)), whole) < 60
    for fraction in (2, 3, 5, 8):
        size = (512 // fraction, 500 // fraction)
        for filter in ("bilinear", "bicubic", "lanczos"):
            assert psnr(decode(data, image_size=size, image_filter=filter), resized(data, size, filter)) > 31


def test_orientation_is_left_as_the_pixels_are() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # turned by a quarter
    turned = file_of(photograph(40, 80), exif=exif)
    assert np.array_equal(decode(turned, image_size=10), decode(file_of(photograph(40, 80)), image_size=10))
    assert decode(turned, image_size=10).shape == (10, 20, 3)


def test_images_of_a_group_are_rows_of_one_array() -> None:
    decoder = SampleDecoder(image_decode="rgb8", image_size=(128, 96))
    column = [file_of(photograph(280 + seed, 200 + 9 * seed, seed)) for seed in range(5)]
    column.append(file_of(photograph(64, 64), "PNG"))
    images = decoder.decode_column("jpg", column, [range(4), range(4, 6)])
    assert np.shares_memory(batch_pad_stack(images[:4]), images[2])
    for found, data in zip(images, column, strict=True):
        assert np.array_equal(found, decoder.decode("a.jpg", data))


def test_a_size_that_grows_beyond_all_bounds_is_an_error() -> None:
    """A line of pixels would become a plane of as many squared."""
    for form in ("JPEG", "PNG"):
        line = file_of(Image.new("RGB", (30_000, 1)), form)
        with pytest.raises(DecodingError, match=r"30000 x 1 pixels would be resized to 6000000 x 200, .*max_pixels"):
            decode(line, image_size=200)
        assert decode(line, image_size=(2, 200)).shape == (2, 200, 3)
    with pytest.raises(DecodingError, match=r"declares a picture of 50 x 40 pixels"):
        decode(file_of(photograph(40, 50)), image_size=4, max_pixels=1999)


@pytest.mark.parametrize(
    "data", [b"\xff\xd8\xff" + bytes(50), SIZED_FILES["jpeg"][:300], SIZED_FILES["png"][:80], b"none"]
)
def test_damaged_images_are_decoding_errors(data: bytes) -> None:
    with pytest.raises(DecodingError, match=r"part 'jpg': "):
        decode(data, image_size=8)


@pytest.mark.parametrize("size", [0, -3, True, 2.5, "256", (8,), (8, 0), (8, 8, 8), [8, 8.0]])
def test_sizes_that_are_none(size: Any) -> None:
    with pytest.raises(ConfigError, match=r"image_size=.*expected the pixels of the shorter side, or"):
        SampleDecoder(image_size=size)


def test_filters_that_are_none() -> None:
    with pytest.raises(ConfigError, match=r"image_filter='cubic': expected one of nearest, .*did you mean 'bicubic'"):
        SampleDecoder(image_size=8, image_filter="cubic")  # type: ignore[arg-type]


def test_decoders_with_a_size_are_values() -> None:
    decoder = SampleDecoder(image_size=[3, 4], image_filter="box")  # type: ignore[arg-type]
    assert pickle.loads(pickle.dumps(decoder)) == decoder == SampleDecoder(**decoder.config())
    assert hash(decoder) == hash(SampleDecoder(image_size=(3, 4), image_filter="box"))
    assert decoder != SampleDecoder(image_size=(3, 4))
    assert decoder.config()["image_size"] == (3, 4)


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pictures of several shapes, as crude samples."""
    root = tmp_path_factory.mktemp("pictures") / "pictures"
    samples = [{"__key__": f"{n:03d}", "jpg": file_of(photograph(60 + n, 90 - n, n))} for n in range(24)]
    write_tars(root, samples, shards=2)
    prepare_dataset(root, split_ratio={"train": 1}, crude=True)
    return root


def cook(sample: Any) -> ImageSample:
    return ImageSample(**basic_sample_keys(sample), image=sample["jpg"])


class Sized(energon_grain.TaskEncoder):
    decoder = SampleDecoder(image_decode="rgb8", image_size=(16, 20))
    cookers = (Cooker(cook),)


class SizedTensors(energon_grain_torch.TaskEncoder):
    decoder = energon_grain_torch.SampleDecoder(image_decode="torchrgb", image_size=(16, 20))
    cookers = (Cooker(cook),)


OPTIONS: dict[str, Any] = {"batch_size": 6, "shuffle_buffer_size": None, "max_samples_per_sequence": None}


@pytest.mark.parametrize(("workers", "kind"), [(2, "thread"), (1, "process")])
def test_workers_change_nothing(pictures: Path, workers: int, kind: str) -> None:
    def batches(worker_config: Any) -> list[np.ndarray]:
        dataset = energon_grain.get_train_dataset(
            pictures, task_encoder=Sized(), worker_config=worker_config, repeat=False, **OPTIONS
        )
        with Stream.of(dataset) as stream:
            return [batch.image for batch in stream]

    expected = batches(config())
    assert [batch.shape for batch in expected] == [(6, 16, 20, 3)] * 4
    found = batches(config(num_workers=workers, worker_type=kind))
    assert all(np.array_equal(one, other) for one, other in zip(found, expected, strict=True))


def test_tensors(pictures: Path) -> None:
    decoders: list[Callable[[str, bytes], Any]] = [
        energon_grain_torch.SampleDecoder(image_size=8).decode,
        SampleDecoder(image_size=8).decode,
    ]
    tensor, array = (decode("a.jpg", SIZED_FILES["jpeg"]) for decode in decoders)
    assert np.array_equal(tensor.numpy(), array)
    dataset = energon_grain_torch.get_train_dataset(
        pictures,
        task_encoder=SizedTensors(),
        worker_config=energon_grain_torch.WorkerConfig(rank=0, world_size=1, num_workers=0),
        **OPTIONS,
    )
    batch = next(iter(energon_grain_torch.get_loader(dataset)))
    assert tuple(batch.image.shape) == (6, 3, 16, 20)


ARRAY_MODES = ("l8", "rgb8", "rgba8", "l", "rgb", "rgba", "torchl8", "torchrgb8", "torchrgba8", "torchrgb", "torchl")


def row_file(seed: int, size: tuple[int, int], form: str, colour: str = "RGB") -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 256, (*size, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).convert(colour).save(file, form)
    return file.getvalue()


@hypothesis_settings(max_examples=40)
@given(
    mode=st.sampled_from(ARRAY_MODES),
    kinds=st.lists(
        st.tuples(
            st.sampled_from([(8, 8), (8, 9), (16, 8)]), st.sampled_from(["JPEG", "PNG"]), st.sampled_from(["RGB", "L"])
        ),
        min_size=1,
        max_size=7,
    ),
    cuts=st.sets(st.integers(1, 6)),
)
def test_rows_equal_single_images(mode: str, kinds: list[tuple[tuple[int, int], str, str]], cuts: set[int]) -> None:
    column = [row_file(seed, *kind) for seed, kind in enumerate(kinds)]
    bounds = [0, *sorted(cut for cut in cuts if cut < len(column)), len(column)]
    groups = [range(begin, end) for begin, end in pairwise(bounds)]
    decoder = SampleDecoder(image_decode=mode)  # type: ignore[arg-type]
    images = decoder.decode_column("jpg", column, groups)
    codec = decoder.decoder_for("jpg")
    assert codec is not None
    for found, data in zip(images, column, strict=True):
        expected = codec(data)
        assert found.dtype == expected.dtype
        assert np.array_equal(found, expected)


def test_a_whole_group_is_stacked_without_copying() -> None:
    column = [row_file(seed, (128, 96), "JPEG") for seed in range(6)]
    images = SampleDecoder(image_decode="rgb8").decode_column("jpg", column, [range(4), range(4, 6)])
    stacked = batch_pad_stack(images[:4])
    assert np.shares_memory(stacked, images[2])
    assert np.array_equal(stacked, np.stack(images[:4]))
    for part in (images[1:4], images[3:5], images[:3], [images[1], images[0], *images[2:4]], images[:4] * 2):
        copied = batch_pad_stack(part)
        assert not np.shares_memory(copied, images[0])
        assert np.array_equal(copied, np.stack(part))


def test_views_that_only_look_like_rows_are_copied() -> None:
    base = np.arange(4 * 64 * 64, dtype=np.float32).reshape(4, 64, 64)
    flipped = [row[::-1] for row in base]
    assert np.array_equal(batch_pad_stack(flipped), np.stack(flipped))
    base.flags.writeable = False
    rows = list(base)
    assert batch_pad_stack(rows).flags.writeable


MODES = ("rgb8", "rgb", "torchrgb8", "torchrgb", "torch")


def smooth(seed: int, size: tuple[int, int] = (48, 65), form: str = "JPEG", colour: str = "RGB", **save: Any) -> bytes:
    """A smooth picture."""
    coarse = np.random.default_rng(seed).integers(0, 256, (5, 7, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(coarse).resize((size[1], size[0])).convert(colour).save(file, form, **save)
    return file.getvalue()


def column() -> list[bytes]:
    """Images of many kinds."""
    rotated = Image.Exif()
    rotated[0x112] = 6
    return [
        smooth(0),
        smooth(1, form="PNG"),
        smooth(2, subsampling=0),
        smooth(3, progressive=True),
        smooth(4, (33, 65)),
        smooth(5, colour="L"),
        smooth(6, colour="CMYK"),
        smooth(7, exif=rotated),
        smooth(8) + b"behind the end",
        smooth(9, form="GIF"),
    ]


def psnr_of(found: Any, expected: Any) -> float:
    """In dB, of values in 0..1 or 0..255."""
    scale = 255 if found.dtype == np.uint8 else 1
    error = np.mean((np.asarray(found, float) - expected) ** 2)
    return float("inf") if error == 0 else float(10 * np.log10(scale**2 / error))


@pytest.mark.parametrize("mode", ["l8", "pil", "rgba"])
def test_modes_that_are_not_rgb_are_refused(mode: Any) -> None:
    with pytest.raises(ConfigError, match="only to RGB arrays"):
        SampleDecoder(image_decoder="nvimgcodec", image_decode=mode)


def test_an_unknown_decoder_is_refused() -> None:
    with pytest.raises(ConfigError, match="did you mean 'nvimgcodec'"):
        SampleDecoder(image_decoder="nvimagecodec")  # type: ignore[arg-type]


def test_a_size_is_refused() -> None:
    with pytest.raises(ConfigError, match="only whole images"):
        SampleDecoder(image_decoder="nvimgcodec", image_size=32)


class TestInstalled:
    @pytest.fixture(autouse=True)
    def installed(self) -> None:
        pytest.importorskip("nvidia.nvimgcodec", exc_type=ModuleNotFoundError)

    @pytest.mark.parametrize("mode", MODES)
    @pytest.mark.parametrize("groups", [(), (range(4), range(4, 10)), tuple(range(i, i + 1) for i in range(10))])
    def test_images_are_those_of_pillow(self, mode: Any, groups: tuple[range, ...]) -> None:
        ours = SampleDecoder(image_decode=mode, image_decoder="nvimgcodec")
        images = ours.decode_column("jpg", column(), groups)
        codec = SampleDecoder(image_decode=mode).decoder_for("jpg")
        alone = ours.decoder_for("jpg")
        assert codec
        assert alone
        for value, data in zip(images, column(), strict=True):
            expected = codec(data)
            assert (value.dtype, value.shape) == (expected.dtype, expected.shape)
            assert psnr_of(value, expected) > 40
            assert np.array_equal(value, alone(data))

    def test_nvimgcodec_decodes_what_is_a_jpeg_in_a_usual_colour(self) -> None:
        decoded = [pixels is not None for pixels in image.NvImageCodec("rgb8", None)(column())]
        assert decoded == [True, False, True, True, True, True, False, True, False, False]

    def test_a_column_of_many_pixels_is_decoded_in_batches(self, monkeypatch: pytest.MonkeyPatch) -> None:
        ours = SampleDecoder(image_decode="rgb8", image_decoder="nvimgcodec")
        expected = ours.decode_column("jpg", column(), [range(10)])
        monkeypatch.setattr(image, "_PIXELS_AT_ONCE", 5000)
        found = ours.decode_column("jpg", column(), [range(10)])
        assert all(map(np.array_equal, found, expected))

    @pytest.mark.parametrize("bad", [smooth(0)[:200], smooth(0)[:-20], b"", b"\xff\xd8\xff", b"no image" * 9])
    def test_broken_images_are_decoding_errors(self, bad: bytes) -> None:
        ours = SampleDecoder(image_decode="rgb8", image_decoder="nvimgcodec")
        with pytest.raises(DecodingError, match="part 'jpg'"):
            ours.decode("a.jpg", bad)

    def test_bounds_hold(self) -> None:
        ours = SampleDecoder(image_decode="rgb8", image_decoder="nvimgcodec", max_pixels=1000)
        with pytest.raises(DecodingError, match="max_pixels=1000"):
            ours.decode("a.jpg", smooth(0))

    def test_it_is_pickled_and_used_by_several_threads(self) -> None:
        ours = pickle.loads(pickle.dumps(SampleDecoder(image_decode="rgb8", image_decoder="nvimgcodec")))
        assert ours == SampleDecoder(image_decode="rgb8", image_decoder="nvimgcodec")
        assert ours != SampleDecoder(image_decode="rgb8")
        expected = ours.decode_column("jpg", column())
        with ThreadPoolExecutor(4) as threads:
            for found in threads.map(lambda _: ours.decode_column("jpg", column()), range(16)):
                assert all(map(np.array_equal, found, expected))

    def test_a_loader_gives_the_batches_of_pillow(self, tmp_path: Path) -> None:
        make_captioning_dataset(tmp_path, n=24)

        def images(decoder: SampleDecoder) -> list[Any]:
            encoder = DefaultTaskEncoder()
            encoder.decoder = decoder
            dataset = get_train_dataset(
                tmp_path,
                batch_size=4,
                shuffle_buffer_size=None,
                max_samples_per_sequence=None,
                task_encoder=encoder,
                worker_config=WorkerConfig(rank=0, world_size=1, num_workers=2),
            )
            with get_loader(dataset) as loader:
                return [next(loader).image for _ in range(4)]

        found = images(SampleDecoder(image_decode="rgb8", image_decoder="nvimgcodec"))
        for image_batch, expected in zip(found, images(SampleDecoder(image_decode="rgb8")), strict=True):
            assert image_batch.shape == expected.shape
            assert psnr_of(image_batch, expected) > 40
