"""The decoder of the adapter: the core's values, as tensors where Energon has tensors."""

from __future__ import annotations

import io
import pickle
import shutil
import warnings
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings as hypothesis_settings, strategies as st
from PIL import Image

import energon_grain
import energon_grain_torch
from energon_grain import ConfigError, DecodingError, Stream, UntrustedCodeError
from energon_grain.testing import make_captioning_dataset
from energon_grain.testing.datasets import encode_tensors
from energon_grain.transforms.image import IMAGE_MODES
from energon_grain_torch import (
    AugmentTaskEncoder,
    CrudeSample,
    DefaultTaskEncoder,
    SampleDecoder,
    TaskEncoder,
    batch_pad_stack,
    get_train_dataset,
)


def encoded(seed: int, size: tuple[int, int], form: str = "JPEG", colour: str = "RGB") -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 256, (*size, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).convert(colour).save(file, form)
    return file.getvalue()


def saved(value: Any) -> bytes:
    file = io.BytesIO()
    torch.save(value, file)
    return file.getvalue()


def same(tensor: Any, array: Any) -> bool:
    assert isinstance(tensor, torch.Tensor)
    theirs = tensor.numpy()
    return theirs.dtype == array.dtype and theirs.shape == array.shape and theirs.tobytes() == array.tobytes()


@hypothesis_settings(max_examples=30)
@given(
    mode=st.sampled_from([mode for mode in IMAGE_MODES if mode.startswith("torch")]),
    kinds=st.lists(
        st.tuples(
            st.sampled_from([(8, 8), (8, 9), (80, 90)]), st.sampled_from(["JPEG", "PNG"]), st.sampled_from(["RGB", "L"])
        ),
        min_size=1,
        max_size=5,
    ),
    cut=st.integers(0, 5),
)
def test_torch_modes_give_the_cores_pixels_as_tensors(mode: Any, kinds: list[Any], cut: int) -> None:
    column = [encoded(seed, *kind) for seed, kind in enumerate(kinds)]
    expected = energon_grain.SampleDecoder(image_decode=mode).decode_column("jpg", column)
    ours = SampleDecoder(image_decode=mode)
    groups = [range(min(cut, len(column))), range(min(cut, len(column)), len(column))]
    rows = ours.decode_column("jpg", column, [group for group in groups if group])
    for row, data, array in zip(rows, column, expected, strict=True):
        assert same(row, array)
        assert same(ours.decode("key.jpg", data), array)


@pytest.mark.parametrize("mode", [mode for mode in IMAGE_MODES if not mode.startswith("torch")])
def test_other_modes_are_the_cores(mode: Any) -> None:
    data = encoded(0, (8, 9))
    theirs = energon_grain.SampleDecoder(image_decode=mode).decode("key.jpg", data)
    ours = SampleDecoder(image_decode=mode).decode_column("jpg", [data], [range(1)])[0]
    assert type(ours) is type(theirs)
    assert np.array_equal(np.asarray(ours), np.asarray(theirs))


@pytest.mark.parametrize("mode", ["torchrgb", "torchrgb8", "torchl"])
def test_a_decoded_batch_is_stacked_without_copying(mode: Any) -> None:
    column = [encoded(seed, (160, 128)) for seed in range(4)]
    images = SampleDecoder(image_decode=mode).decode_column("jpg", column, [range(4)])
    stacked = batch_pad_stack(images)
    assert stacked.data_ptr() == images[0].data_ptr()
    assert torch.equal(stacked, torch.stack(images))


def test_guessed_contents_are_tensors_too() -> None:
    assert isinstance(SampleDecoder(guess_content=True).decode("a.bin", encoded(0, (4, 4))), torch.Tensor)


def test_numpy_files_stay_numpy() -> None:
    array = np.arange(6.0).reshape(2, 3)
    npy, npz = io.BytesIO(), io.BytesIO()
    np.save(npy, array)
    np.savez(npz, a=array)
    decoder = SampleDecoder()
    for value in (
        decoder.decode("a.npy", npy.getvalue()),
        decoder.decode("a.npz", npz.getvalue())["a"],
        decoder.decode("a.ten", encode_tensors([array]))[0],
    ):
        assert type(value) is np.ndarray
        assert np.array_equal(value, array)


def test_torch_files_without_code() -> None:
    value = {"a": torch.arange(3), "b": [1, "x"]}
    got = SampleDecoder().decode("k.pth", saved(value))
    assert torch.equal(got["a"], value["a"])
    assert got["b"] == value["b"]
    code = saved(CrudeSample(a=1))
    with pytest.raises(DecodingError, match=r"part 'pth': .*more than tensors.*SampleDecoder\(allow_pickle=True\)"):
        SampleDecoder().decode("k.pth", code)
    assert SampleDecoder(allow_pickle=True).decode("k.pth", code) == {"a": 1}
    with pytest.raises(DecodingError, match="part 'pth'"):
        SampleDecoder().decode("k.pth", b"damaged")
    with pytest.raises(UntrustedCodeError):
        SampleDecoder().decode("k.pkl", b"")


@pytest.mark.parametrize("allow_pickle", [False, True])
def test_torch_files_unpack_to_no_more_than_allowed(allow_pickle: bool) -> None:
    packed = io.BytesIO()
    with (
        zipfile.ZipFile(io.BytesIO(saved(torch.zeros(1 << 18)))) as source,
        zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as target,
    ):
        for member in source.infolist():
            target.writestr(member.filename, source.read(member))
    assert len(packed.getvalue()) < 1 << 14
    decoder = SampleDecoder(allow_pickle=allow_pickle, max_part_bytes=1 << 19)
    with pytest.raises(DecodingError, match=r"part 'pth': ValueError: unpacks to .*max_part_bytes=524288\)"):
        decoder.decode("k.pth", packed.getvalue())
    assert decoder.decode("k.pth", saved(torch.zeros(1 << 10))).shape == (1 << 10,)


@pytest.mark.parametrize("mode", ["torchrgb", "rgb8", "pil"])
def test_images_have_no_more_pixels_than_allowed(mode: Any) -> None:
    SampleDecoder(image_decode=mode, max_pixels=16).decode("a.jpg", encoded(0, (4, 4)))
    with pytest.raises(DecodingError, match=r"part 'jpg': .* 4 x 4 pixels .*max_pixels=15\)"):
        SampleDecoder(image_decode=mode, max_pixels=15).decode("a.jpg", encoded(0, (4, 4)))


def test_equality_pickle_and_config_are_the_cores() -> None:
    decoder = SampleDecoder(image_decode="torchrgb8", guess_content=True)
    copy = pickle.loads(pickle.dumps(decoder))
    assert (type(copy), copy, hash(copy)) == (SampleDecoder, decoder, hash(decoder))
    assert decoder != SampleDecoder()
    core = energon_grain.SampleDecoder(image_decode="torchrgb8", guess_content=True)
    assert decoder.config() == core.config()
    assert decoder != core
    with pytest.raises(ConfigError, match="did you mean 'torchrgb'"):
        SampleDecoder(image_decode="torchrbg")  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def captions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_captioning_dataset(tmp_path_factory.mktemp("captions") / "data", n=8, shards=1)


def first_batch(path: Path, task_encoder: Any = None, **options: Any) -> Any:
    dataset = get_train_dataset(
        path,
        batch_size=4,
        shuffle_buffer_size=None,
        max_samples_per_sequence=None,
        task_encoder=task_encoder,
        **options,
    )
    with Stream.of(dataset) as stream:
        return next(stream)


def test_samples_and_batches_hold_tensors_by_default(captions: Path) -> None:
    class Encoder(TaskEncoder):
        def encode_sample(self, sample: Any) -> Any:
            sample.image = sample.image - 0.5
            return sample

    theirs = energon_grain.get_train_dataset(
        captions, batch_size=4, shuffle_buffer_size=None, max_samples_per_sequence=None
    )
    with Stream.of(theirs) as stream:
        expected = next(stream)
    batch = first_batch(captions)
    assert batch.__key__ == expected.__key__
    assert same(batch.image, expected.image)
    encoder = Encoder()
    assert same(first_batch(captions, encoder).image, expected.image - np.float32(0.5))
    around = AugmentTaskEncoder(encoder)
    assert isinstance(around, TaskEncoder)
    assert isinstance(DefaultTaskEncoder(), TaskEncoder)
    assert around.decoder == SampleDecoder()
    assert same(first_batch(captions, around).image, expected.image - np.float32(0.5))


def test_a_decoder_in_the_datasets_configuration_gives_tensors(captions: Path, tmp_path: Path) -> None:
    data = shutil.copytree(captions, tmp_path / "data")
    file = data / ".nv-meta" / "dataset.yaml"
    declared = "decoder:\n  __module__: megatron.energon\n  __class__: SampleDecoder\n  image_decode: torchrgb8\n"
    file.write_text(file.read_text() + declared)
    for encoder in (None, AugmentTaskEncoder(DefaultTaskEncoder())):
        assert first_batch(data, encoder).image.dtype == torch.uint8


def test_deprecated_arguments_give_the_adapters_decoder(captions: Path) -> None:
    encoder = DefaultTaskEncoder()
    with warnings.catch_warnings(record=True):
        warnings.simplefilter("always")
        batch = first_batch(captions, encoder, image_decode="torchrgb8")
    assert batch.image.dtype == torch.uint8
    assert encoder.decoder == SampleDecoder(image_decode="torchrgb8")


def test_names_of_the_adapter_are_its_own() -> None:
    assert energon_grain_torch.SampleDecoder is SampleDecoder
