"""Parts that announce, or unpack to, more than a machine holds: they do not decode, and that is all."""

from __future__ import annotations

import gzip
import io
import struct
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from energon_grain import (
    ConfigError,
    Cooker,
    DecodingError,
    DefaultTaskEncoder,
    SampleDecoder,
    WorkerConfig,
    get_loader,
    get_val_dataset,
)
from energon_grain.prepare import prepare_dataset
from energon_grain.testing import write_tars

MiB = 1 << 20


def npy(shape: str, version: int, descr: str = "|u1", data: bytes = b"abc") -> bytes:
    header = f"{{'descr': {descr!r}, 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY" + bytes([version, 0]) + struct.pack("<H" if version == 1 else "<I", len(header)) + header + data


def npz(**members: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(f"{name}.npy", data)
    return file.getvalue()


def saved(array: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def png(width: int, height: int) -> bytes:
    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    size = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", size) + chunk(b"IDAT", zlib.compress(bytes(100))) + chunk(b"IEND", b"")


def jpeg(size: tuple[int, int], *, announced: tuple[int, int] | None = None, scans: int = 0, **options: Any) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", size).save(file, "JPEG", **options)
    data = file.getvalue()
    if announced:
        frame = data.index(b"\xff\xc0") + 5
        data = data[:frame] + struct.pack(">HH", announced[1], announced[0]) + data[frame + 4 :]
    last = data.rindex(b"\xff\xc4", 0, data.rindex(b"\xff\xda"))  # with its table
    return data[:-2] + data[last:-2] * scans + data[-2:]


@pytest.mark.parametrize("version", [1, 2, 3])
@pytest.mark.parametrize("shape", [f"({1 << 36},)", f"({1 << 40}, {1 << 40})", "(-1,)", "(-1, -3)"])
@pytest.mark.parametrize("pack", [lambda data: ("npy", data), lambda data: ("npz", npz(a=data))])
def test_arrays_hold_what_they_announce(version: int, shape: str, pack: Callable[[bytes], tuple[str, bytes]]) -> None:
    part, data = pack(npy(shape, version))
    with pytest.raises(DecodingError, match=rf"part '{part}': ValueError: .*(declare|above)"):
        SampleDecoder().decoder_for(part)(data)  # type: ignore[misc]


def test_arrays_of_version_3() -> None:
    data = npy("(3,)", 3)
    assert SampleDecoder().decode("x.npy", data).tolist() == list(b"abc")
    with pytest.warns(UserWarning, match="format 3"):
        data = saved(np.array([(1, 2.5)], [("größe ∞", "<i4"), ("b", "<f8")]))
    assert SampleDecoder().decode("x.npy", data).dtype.names == ("größe ∞", "b")
    for damaged in (npy("3", 3), npy("(3,), 'x': 1", 3), npy("(True,)", 3), npy("(3,)" + " " * 20_000, 3)):
        with pytest.raises(DecodingError):
            SampleDecoder().decode("x.npy", damaged)


def test_archives_unpack_to_no_more_than_allowed() -> None:
    large = npz(a=saved(np.zeros(MiB, np.uint8)), b=saved(np.zeros(MiB, np.uint8)))
    assert len(large) < 10_000
    decoded = SampleDecoder(max_part_bytes=3 * MiB).decode("x.npz", large)
    assert {name: len(array) for name, array in decoded.items()} == {"a": MiB, "b": MiB}
    with pytest.raises(DecodingError, match=r"'npz': ValueError: unpacks to 2097408 bytes, .*max_part_bytes=1572864\)"):
        SampleDecoder(max_part_bytes=3 * MiB // 2).decode("x.npz", large)
    announces = large.replace(struct.pack("<I", MiB + 128), struct.pack("<I", 0xFFFFFFF0))
    with pytest.raises(DecodingError, match="unpacks to"):
        SampleDecoder().decode("x.npz", announces)


def test_archives_packed_by_other_methods_do_not_decode() -> None:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_BZIP2) as archive:
        archive.writestr("a.npy", saved(np.arange(3)))
    with pytest.raises(DecodingError, match="a compression method other than deflate"):
        SampleDecoder().decode("x.npz", file.getvalue())


def test_gzip_unpacks_to_no_more_than_allowed() -> None:
    packed = gzip.compress(bytes(MiB))
    assert SampleDecoder(max_part_bytes=MiB).decode("x.bin.gz", packed) == bytes(MiB)
    for most, data in ((MiB - 1, packed), (2 * MiB - 1, packed + packed)):
        with pytest.raises(DecodingError, match=rf"'txt\.gz': ValueError: unpacks to more .*max_part_bytes={most}\)"):
            SampleDecoder(max_part_bytes=most).decode("x.txt.gz", data)


def test_gzip_members_and_padding_are_read_as_by_python() -> None:
    decode = SampleDecoder().decoder_for("gz")
    assert decode is not None
    many = b"".join(gzip.compress(bytes([number % 256]) * number) for number in range(2000))
    rng = np.random.default_rng(0)
    noise = gzip.compress(rng.integers(0, 256, 3 * MiB, np.uint8).tobytes())  # more than is unpacked at once
    for data in (
        b"",
        many,
        noise,
        noise + many,
        gzip.compress(b""),
        gzip.compress(b"a") + bytes(5) + gzip.compress(b"b"),
    ):
        assert decode(data) == gzip.decompress(data)
        assert decode(memoryview(data)) == gzip.decompress(data)
    for damaged in (many[:-1], many + b"x", b"x", noise[: 2 * MiB]):
        with pytest.raises(DecodingError, match="part 'gz'"):
            decode(damaged)


@pytest.mark.parametrize("mode", ["rgb8", "torchrgb", "l", "pil"])
@pytest.mark.parametrize(
    ("part", "data"),
    [("png", png(13_000, 13_000)), ("jpg", jpeg((64, 64), announced=(13_300, 13_300))), ("png", png(1 << 30, 1 << 30))],
)
def test_pictures_have_no_more_pixels_than_allowed(mode: Any, part: str, data: bytes) -> None:
    with pytest.raises(DecodingError, match=rf"part '{part}'"):
        SampleDecoder(image_decode=mode).decode(f"x.{part}", data)


@pytest.mark.parametrize("mode", ["rgb8", "torchrgb", "l", "pil"])
@pytest.mark.parametrize(("format", "part"), [("PNG", "png"), ("JPEG", "jpg"), ("WEBP", "webp"), ("TIFF", "tif")])
def test_the_bound_on_pixels_is_exact(mode: Any, format: str, part: str) -> None:
    file = io.BytesIO()
    Image.new("RGB", (30, 20)).save(file, format)
    SampleDecoder(image_decode=mode, max_pixels=600).decode(f"x.{part}", file.getvalue())
    with pytest.raises(DecodingError, match=rf"'{part}': ValueError: .* 30 x 20 pixels, .*max_pixels=599\)"):
        SampleDecoder(image_decode=mode, max_pixels=599).decode(f"x.{part}", file.getvalue())


@pytest.mark.parametrize("mode", ["rgb8", "torchrgb", "l", "pil"])
def test_scans_of_a_jpeg_count_as_pixels(mode: Any) -> None:
    decoder = SampleDecoder(image_decode=mode, max_pixels=100 * 100)
    decoder.decode("x.jpg", jpeg((100, 100)))
    decoder.decode("x.jpg", jpeg((100, 100), progressive=True))
    with pytest.raises(DecodingError, match="a JPEG of 100 x 100 pixels and 310 scans"):
        decoder.decode("x.jpg", jpeg((100, 100), progressive=True, scans=300))
    for options in ({}, {"comment": b"\xff\xda" * 50}, {"exif": b"Exif\0\0" + b"\xff\xda" * 50}):
        decoder.decode("x.jpg", jpeg((100, 100), **options))


@pytest.mark.parametrize("option", ["max_part_bytes", "max_pixels"])
def test_bounds_are_checked(option: str) -> None:
    for value in (0, -1, 1.5, "1"):
        with pytest.raises(ConfigError, match=rf"{option}="):
            SampleDecoder(**{option: value})  # type: ignore[arg-type]
    decoder = SampleDecoder(**{option: None})  # type: ignore[arg-type]
    assert decoder.config()[option] is None
    assert decoder.decode("x.txt.gz", gzip.compress(b"a")) == "a"
    assert decoder.decode("x.jpg", jpeg((4, 4))).shape == (3, 4, 4)


class Cooks(DefaultTaskEncoder):
    decoder = SampleDecoder(image_decode="rgb8")
    cookers = [Cooker(lambda sample: sample)]  # noqa: RUF012

    def encode_sample(self, sample: Any) -> Any:
        return sample["__key__"]

    def batch(self, samples: Any) -> Any:
        return samples


def test_one_such_sample_is_dropped_and_the_others_come(tmp_path: Path) -> None:
    whole = [
        {"npy": saved(np.arange(3))},
        {"npy": npy(f"({1 << 40},)", 3)},
        {"npz": npz(a=npy(f"({1 << 36},)", 1))},
        {"jpg": jpeg((8, 8), announced=(60_000, 60_000))},
        {"png": png(60_000, 60_000)},
        {"txt.gz": gzip.compress(b"text")},
    ]
    write_tars(tmp_path / "data", [{"__key__": str(number), **parts} for number, parts in enumerate(whole)])
    prepare_dataset(tmp_path / "data", split_ratio=[1], crude=True, num_workers=0)
    failures: list[Exception] = []
    config = WorkerConfig(0, 1, 0, global_error_handler=lambda error, sample, sources: failures.append(error))
    dataset = get_val_dataset(
        tmp_path / "data",
        split_part="train",
        batch_size=2,
        worker_config=config,
        task_encoder=Cooks(),
    )
    loader = get_loader(dataset)
    assert len([key for batch in loader for key in batch]) == 2
    assert [type(error) for error in failures] == [DecodingError] * 4
    assert loader.stats()["dropped_total"] == 4
