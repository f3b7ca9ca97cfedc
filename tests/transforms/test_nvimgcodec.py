"""JPEGs decoded by nvImageCodec: on its CPU backend where there is no GPU."""

from __future__ import annotations

import io
import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from energon_grain import (
    ConfigError,
    DecodingError,
    DefaultTaskEncoder,
    SampleDecoder,
    WorkerConfig,
    get_loader,
    get_train_dataset,
)
from energon_grain.testing import make_captioning_dataset
from energon_grain.transforms import image

MODES = ("rgb8", "rgb", "torchrgb8", "torchrgb", "torch")


def encoded(seed: int, size: tuple[int, int] = (48, 65), form: str = "JPEG", colour: str = "RGB", **save: Any) -> bytes:
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
        encoded(0),
        encoded(1, form="PNG"),
        encoded(2, subsampling=0),
        encoded(3, progressive=True),
        encoded(4, (33, 65)),
        encoded(5, colour="L"),
        encoded(6, colour="CMYK"),
        encoded(7, exif=rotated),
        encoded(8) + b"behind the end",
        encoded(9, form="GIF"),
    ]


def psnr(found: Any, expected: Any) -> float:
    """In dB, of values in 0..1 or 0..255."""
    scale = 255 if found.dtype == np.uint8 else 1
    error = np.mean((np.asarray(found, float) - expected) ** 2)
    return float("inf") if error == 0 else float(10 * np.log10(scale**2 / error))


@pytest.mark.parametrize("mode", ["l8", "pil", "rgba"])
def test_modes_that_are_not_rgb_are_refused(mode: Any) -> None:
    with pytest.raises(ConfigError, match="to arrays in RGB only"):
        SampleDecoder(image_decoder="nvimgcodec", image_decode=mode)


def test_an_unknown_decoder_is_refused() -> None:
    with pytest.raises(ConfigError, match="did you mean 'nvimgcodec'"):
        SampleDecoder(image_decoder="nvimagecodec")  # type: ignore[arg-type]


def test_a_size_is_refused() -> None:
    with pytest.raises(ConfigError, match="whole images only"):
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
            assert psnr(value, expected) > 40
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

    @pytest.mark.parametrize("bad", [encoded(0)[:200], encoded(0)[:-20], b"", b"\xff\xd8\xff", b"no image" * 9])
    def test_broken_images_are_decoding_errors(self, bad: bytes) -> None:
        ours = SampleDecoder(image_decode="rgb8", image_decoder="nvimgcodec")
        with pytest.raises(DecodingError, match="part 'jpg'"):
            ours.decode("a.jpg", bad)

    def test_bounds_hold(self) -> None:
        ours = SampleDecoder(image_decode="rgb8", image_decoder="nvimgcodec", max_pixels=1000)
        with pytest.raises(DecodingError, match="max_pixels=1000"):
            ours.decode("a.jpg", encoded(0))

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
            assert psnr(image_batch, expected) > 40
