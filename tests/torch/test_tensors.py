"""Tensors: what samples and batches of them become, between processes too, and what decoders make them of."""

from __future__ import annotations

import io
import os
import pickle
import shutil
import subprocess
import sys
import warnings
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings as hypothesis_settings, strategies as st
from hypothesis.extra import numpy as arrays_of
from patience import PATIENCE_S
from PIL import Image

import energon_grain
import energon_grain_torch
from energon_grain import ConfigError, DecodingError, Stream, UntrustedCodeError
from energon_grain.processes.worker import SamplePickler, SampleUnpickler
from energon_grain.stream.memory import approximate_bytes
from energon_grain.testing import make_captioning_dataset
from energon_grain.testing.datasets import encode_tensors
from energon_grain.transforms.image import IMAGE_MODES
from energon_grain_torch import (
    AugmentTaskEncoder,
    Batch,
    CrudeSample,
    DefaultTaskEncoder,
    Sample,
    SampleDecoder,
    TaskEncoder,
    WorkerConfig,
    batch_pad_stack,
    batch_stack,
    concat_pad,
    edataclass,
    generic_batch,
    generic_concat,
    get_train_dataset,
    homogeneous_concat_mix,
)

TYPES = ["uint8", "int16", "int32", "int64", "float16", "float32", "float64", "bool", "complex64"]


@st.composite
def batches(draw: st.DrawFn, *, ndim: tuple[int, int] = (0, 3), equal: bool | None = None) -> list[Any]:
    """Arrays of one number of dimensions, of one shape or of several, now and then of several types."""
    dimensions = draw(st.integers(*ndim))
    shapes = st.lists(st.integers(0, 4), min_size=dimensions, max_size=dimensions).map(tuple)
    if equal or (equal is None and draw(st.booleans())):
        shapes = st.just(draw(shapes))
    # Not between complex and real, nor from what the type cannot hold: there numpy and torch go different ways.
    types = draw(st.sampled_from([[name] for name in TYPES] + [["int16", "uint8", "bool"], ["float64", "float32"]]))
    elements = st.integers(0, 100)
    return [
        draw(arrays_of.arrays(types[min(place, len(types) - 1)], draw(shapes), elements=elements.map(bool))
             if types[min(place, len(types) - 1)] == "bool"
             else arrays_of.arrays(types[min(place, len(types) - 1)], draw(shapes), elements=elements))
        for place in range(draw(st.integers(1, 5)))
    ]  # fmt: skip


def tensors(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return torch.from_numpy(value.copy())
    if isinstance(value, dict):
        return {key: tensors(entry) for key, entry in value.items()}
    return [tensors(entry) for entry in value] if type(value) is list else value


def same(tensor: torch.Tensor, array: Any) -> bool:
    theirs = tensor.numpy()
    return theirs.dtype == array.dtype and theirs.shape == array.shape and theirs.tobytes() == array.tobytes()


@given(batch=batches(equal=True))
def test_stack_as_numpy(batch: list[Any]) -> None:
    assert same(batch_stack(tensors(batch)), batch_stack(batch))


@given(batch=batches())
def test_pad_stack_as_numpy(batch: list[Any]) -> None:
    assert same(batch_pad_stack(tensors(batch)), batch_pad_stack(batch))
    assert same(generic_batch(tensors(batch)), generic_batch(batch))


@given(batch=batches(ndim=(1, 3)))
def test_concat_pad_as_numpy(batch: list[Any]) -> None:
    assert same(concat_pad(tensors(batch)), concat_pad(batch))


def test_the_type_is_the_first_ones_without_a_detour() -> None:
    big = 2**53 + 1
    batch = [torch.tensor([1]), torch.tensor([1.5]), torch.tensor([big])]
    for join in (batch_stack, batch_pad_stack, concat_pad):
        assert join(batch).flatten().tolist() == [1, 1, big]  # type: ignore[operator]
    halves = [torch.ones(2, dtype=torch.bfloat16), torch.ones(3, dtype=torch.float16)]
    assert batch_pad_stack(halves).dtype == torch.bfloat16


class Pair(NamedTuple):
    left: Any
    right: Any


@dataclass
class Inner:
    tensor: Any
    text: str


def test_containers_are_entered() -> None:
    samples = [{"a": torch.full((i,), i), "n": i, "p": Pair(torch.tensor(i), [i]), "d": Inner(torch.ones(i), str(i))}
               for i in (1, 2)]  # fmt: skip
    for batch in (generic_batch(samples), TaskEncoder().batch(samples)):
        assert batch["a"].tolist() == [[1, 0], [2, 2]]
        assert batch["n"] == [1, 2]
        assert batch["p"].left.tolist() == [1, 2]
        assert batch["p"].right == [[1], [2]]
        assert batch["d"] == Inner(batch["d"].tensor, ["1", "2"])  # type: ignore[arg-type]
    joined = homogeneous_concat_mix([generic_batch(samples), generic_batch(samples[:1])])
    assert joined["a"].tolist() == [[1, 0], [2, 2], [1, 0]]
    assert joined["p"].left.tolist() == [1, 2, 1]
    assert generic_concat([CrudeSample(a=torch.ones(1, 2)), CrudeSample(a=torch.ones(2, 1))])["a"].shape == (3, 2)


@edataclass
class Tokens(Sample):
    tokens: Any
    weight: Any


@edataclass
class TokenBatch(Batch):
    tokens: Any
    weight: Any


def test_from_samples_stacks_tensors() -> None:
    samples = [
        Tokens(__key__=str(i), __restore_key__=(), tokens=torch.arange(i), weight=np.float32(i)) for i in (1, 2, 3)
    ]
    batch = TokenBatch.from_samples(samples)
    assert batch.tokens.tolist() == [[0, 0, 0], [0, 1, 0], [0, 1, 2]]
    assert batch.weight.tolist() == [1, 2, 3]


def test_gradients_go_through() -> None:
    parameter = torch.ones(2, 2, requires_grad=True)
    for rows in ([parameter[0] * 2, parameter[1]], [parameter[0, :1], parameter[1]]):
        parameter.grad = None
        batch_pad_stack(rows).sum().backward()
        assert parameter.grad is not None
        assert parameter.grad.sum() == sum(row.numel() * (2 if row.grad_fn.name()[:3] == "Mul" else 1) for row in rows)  # type: ignore[union-attr]


def test_all_rows_of_a_tensor_are_not_copied() -> None:
    base = torch.arange(4 * 64 * 64.0).reshape(4, 64, 64).clone()
    rows = list(base)
    assert batch_pad_stack(rows) is base
    for part in (rows[1:], rows[::-1], rows * 2, [row.T for row in rows], [row.clone() for row in rows]):
        copied = batch_pad_stack(part)
        assert torch.equal(copied, torch.stack(part))
        assert copied.data_ptr() != base.data_ptr()
    odd = [*rows[:3], rows[3].detach().requires_grad_()]
    assert batch_stack(odd).requires_grad
    spread = torch.zeros(4, 64, 128)[:, :, ::2]
    assert batch_stack(list(spread)).is_contiguous()


def test_messages_say_what_does_not_fit() -> None:
    two = [torch.ones(2), np.ones(2)]
    with pytest.raises(ValueError, match=r"^a: sample 0 has an array \(Tensor\), sample 1 has ndarray$"):
        generic_batch([{"a": entry} for entry in two])
    with pytest.raises(ValueError, match="cannot pad arrays of different numbers of dimensions"):
        batch_pad_stack([torch.ones(2), torch.ones(2, 2)])
    with pytest.raises(ValueError, match="cannot stack arrays of different shapes"):
        batch_stack([torch.ones(2), torch.ones(3)])
    with pytest.raises(ValueError, match="without dimensions cannot be concatenated"):
        concat_pad([torch.tensor(1)])
    assert batch_stack(two[::-1]).tolist() == [[1, 1], [1, 1]]  # type: ignore[type-var]  # numpy takes tensors


def test_without_the_adapter_the_message_names_it() -> None:
    program = """
import torch
from energon_grain import batch_stack, generic_batch
for what in (lambda: generic_batch([{"a": torch.ones(1)}]), lambda: batch_stack([torch.ones(1)])):
    try:
        what()
    except ValueError as error:
        print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=PATIENCE_S
    )
    first, second = done.stdout.splitlines()
    assert first.startswith("a: torch's Tensor needs the PyTorch backend: import TaskEncoder")
    assert second.startswith("torch's Tensor needs the PyTorch backend")


def sent(value: Any) -> tuple[Any, int]:
    """The value after a way between processes, and the bytes that went beside its pickle."""
    pickler = SamplePickler([])
    payload = bytes(pickler.payload(value))
    buffers = [bytearray(buffer.raw()) for buffer in pickler.buffers]
    return SampleUnpickler(payload, buffers, []).load(), sum(map(len, buffers))


ALL_TYPES = [
    torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float32,
    torch.float64, torch.bool, torch.complex64, torch.complex128, torch.float8_e4m3fn, torch.uint16,
]  # fmt: skip


@pytest.mark.parametrize("dtype", ALL_TYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (0, 3), (5,), (2, 3, 4)], ids=str)
def test_tensors_arrive_in_another_process(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    tensor = torch.randint(0, 2, shape).to(dtype)
    got, size = sent({"tensor": tensor, "again": tensor})
    assert got["tensor"] is got["again"]
    assert size == tensor.nbytes
    received = got["tensor"]
    assert (received.dtype, received.shape, received.requires_grad) == (dtype, shape, False)
    assert torch.equal(received.reshape(-1).view(torch.uint8), tensor.reshape(-1).view(torch.uint8))
    received.zero_()


@hypothesis_settings(max_examples=50)
@given(shape=st.lists(st.integers(1, 4), min_size=1, max_size=4), data=st.data())
def test_views_send_their_own_elements(shape: list[int], data: st.DataObject) -> None:
    tensor = torch.arange(float(np.prod(shape))).reshape(shape)
    tensor = tensor.permute(data.draw(st.permutations(range(len(shape)))))
    tensor = tensor[tuple(slice(data.draw(st.integers(0, size)), None) for size in tensor.shape)]
    got, size = sent(tensor)
    assert torch.equal(got, tensor)
    assert size == tensor.nbytes


def test_rows_of_a_tensor_are_sent_once_each() -> None:
    base = torch.rand(8, 1000)
    got, size = sent(list(base[:4]))
    assert torch.equal(torch.stack(got), base[:4])
    assert size == base[:4].nbytes


def test_unusual_tensors() -> None:
    assert sent(torch.ones(2, requires_grad=True))[0].requires_grad
    assert type(sent(torch.nn.Parameter(torch.ones(2)))[0]) is torch.nn.Parameter
    assert sent(torch.tensor([1j]).conj())[0].tolist() == [-1j]
    assert sent(torch.eye(3).to_sparse())[0].to_dense().tolist() == torch.eye(3).tolist()
    assert sent(torch.ones(1).expand(3))[1] == 12
    with pytest.raises(pickle.PicklingError, match=r"shape \(2,\) was computed with gradients.*tensor\.detach\(\)"):
        sent(torch.ones(2, requires_grad=True) * 2)


def test_their_size_counts() -> None:
    assert approximate_bytes({"a": torch.ones(3, 4), "b": [torch.ones(2, dtype=torch.bfloat16)]}) == 52
    assert approximate_bytes([torch.eye(3).to_sparse(), torch.ones(3)]) == 12


class Encoder(DefaultTaskEncoder):
    def encode_sample(self, sample: Any) -> Any:
        values = torch.tensor(list(sample.text.encode()))
        return {
            "__key__": sample.__key__,
            "tokens": values,
            "half": values.to(torch.bfloat16)[::2],
            "noise": torch.from_numpy(self.rng.random(2)),
            "process": os.getpid(),
        }


def delivered(dataset: Path, **workers: Any) -> list[Any]:
    train = get_train_dataset(
        dataset,
        batch_size=4,
        shuffle_buffer_size=None,
        max_samples_per_sequence=None,
        task_encoder=Encoder(),
        worker_config=WorkerConfig(0, 1, **workers),
    )
    with Stream.of(train) as stream:
        return [next(stream) for _ in range(6)]


def test_worker_processes_of_the_core_hand_over_tensors(text_dataset: Callable[..., Path]) -> None:
    dataset = text_dataset(53)
    here = delivered(dataset, num_workers=0)
    there = delivered(dataset, num_workers=1, worker_type="process")
    for ours, theirs in zip(here, there, strict=True):
        assert ours["__key__"] == theirs["__key__"]
        assert {*theirs["process"]}.isdisjoint({os.getpid()})
        for name in ("tokens", "half", "noise"):
            assert ours[name].dtype == theirs[name].dtype
            assert torch.equal(ours[name], theirs[name])
            theirs[name].zero_()


def encoded(seed: int, size: tuple[int, int], form: str = "JPEG", colour: str = "RGB") -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 256, (*size, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).convert(colour).save(file, form)
    return file.getvalue()


def saved(value: Any) -> bytes:
    file = io.BytesIO()
    torch.save(value, file)
    return file.getvalue()


def same_values(tensor: Any, array: Any) -> bool:
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
        assert same_values(row, array)
        assert same_values(ours.decode("key.jpg", data), array)


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
    with pytest.raises(DecodingError, match=r"part 'jpg': .* 4 x 4 pixels, .*max_pixels=15\)"):
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
    assert same_values(batch.image, expected.image)
    encoder = Encoder()
    assert same_values(first_batch(captions, encoder).image, expected.image - np.float32(0.5))
    around = AugmentTaskEncoder(encoder)
    assert isinstance(around, TaskEncoder)
    assert isinstance(DefaultTaskEncoder(), TaskEncoder)
    assert around.decoder == SampleDecoder()
    assert same_values(first_batch(captions, around).image, expected.image - np.float32(0.5))


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
