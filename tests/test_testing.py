"""Every dataset of `energon_grain.testing` loads as what it says, is the same each time, and breaks where asked."""

from __future__ import annotations

import hashlib
import io
import struct
import tarfile
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

import energon_grain
from energon_grain import ConfigError, Cooker, DefaultTaskEncoder, WorkerConfig, get_val_dataset, stateless, testing
from energon_grain.testing import write_tars

SAMPLE_TYPES = {
    "captioning": "CaptioningSample",
    "classification": "ImageClassificationSample",
    "image": "ImageSample",
    "interleaved": "InterleavedSample",
    "multi_choice_vqa": "MultiChoiceVQASample",
    "ocr": "OCRSample",
    "similarity_interleaved": "SimilarityInterleavedSample",
    "text": "TextSample",
    "vid_qa": "VidQASample",
    "vqa": "VQASample",
    "vqa_ocr": "VQAOCRSample",
}
KINDS = (*SAMPLE_TYPES, "crude", "blob")
LEFT_OUT = {"OCRSample": {"chars_boxes", "chars_text"}, "SimilarityInterleavedSample": {"audio", "video"}}


def maker(kind: str) -> Callable[..., Path]:
    return getattr(testing, f"make_{kind}_dataset")


@stateless
def keep(crude: dict[str, Any]) -> dict[str, Any]:
    return crude


class CrudeEncoder(DefaultTaskEncoder):
    cookers = [Cooker(keep)]  # noqa: RUF012 (Energon's way)


class InterleavedEncoder(DefaultTaskEncoder):
    cookers = [Cooker(testing.cook_interleaved)]  # noqa: RUF012 (Energon's way)


def load(root: Path, split_part: str, encoder: DefaultTaskEncoder | None = None, **options: Any) -> list[Any]:
    if encoder is not None:
        options["task_encoder"] = encoder
    return list(get_val_dataset(root, split_part=split_part, batch_size=None, **options))


def test_every_sample_type_has_its_maker() -> None:
    public = (getattr(energon_grain, name) for name in energon_grain.__all__)
    types = {cls.__name__ for cls in public if isinstance(cls, type) and issubclass(cls, energon_grain.Sample)}
    types.discard("Sample")
    assert types == set(SAMPLE_TYPES.values())
    assert {name for name in testing.__all__ if name.startswith("make_")} == {f"make_{kind}_dataset" for kind in KINDS}


@pytest.mark.parametrize("kind", SAMPLE_TYPES)
def test_samples_are_of_the_type_with_every_field(tmp_path: Path, kind: str) -> None:
    root = maker(kind)(tmp_path / "data", n=12, shards=3)
    encoder = InterleavedEncoder() if kind == "interleaved" else None
    found = load(root, "train", encoder) + load(root, "val", encoder)
    assert [sample.__key__ for sample in found] == [f"{i:06d}" for i in range(12)]
    for sample in found:
        name = type(sample).__name__
        assert name == SAMPLE_TYPES[kind]
        empty = {field.name for field in fields(sample) if getattr(sample, field.name) is None} - {
            "__subflavors__",
            "__valid__",
        }
        assert empty == LEFT_OUT.get(name, set())


@pytest.mark.parametrize("kind", KINDS)
def test_bytes_are_the_same_each_time_and_differ_by_seed(tmp_path: Path, kind: str) -> None:
    def digest(name: str, **options: Any) -> dict[str, str]:
        root = maker(kind)(tmp_path / name, n=6, shards=2, **options)
        files = (path for path in sorted(root.rglob("*")) if path.is_file() and "columnar" not in path.parts)
        return {
            str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in files
            if path.name != "index.uuid"
        }

    first = digest("a")
    assert digest("b") == first
    assert digest("a") == first  # written again in the same place
    other = digest("c", seed=1)
    assert other["shard_000.tar"] != first["shard_000.tar"]
    assert ".nv-meta/index.sqlite" in first
    assert "shard_001.tar.idx" in first


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "blob"])
def test_broken_samples_fail_and_only_they(tmp_path: Path, kind: str) -> None:
    root = maker(kind)(tmp_path / "data", n=9, shards=3, broken={1, 4, 7})
    failed: list[str] = []

    def note(error: BaseException, sample: Any, sources: Any) -> None:
        failed.append(str(error))

    config = WorkerConfig(rank=0, world_size=1, num_workers=0, global_error_handler=note)
    encoder = {"interleaved": InterleavedEncoder(), "crude": CrudeEncoder()}.get(kind)
    keys = [
        sample["__key__"] if kind == "crude" else sample.__key__
        for part in ("train", "val")
        for sample in load(root, part, encoder, worker_config=config)
    ]
    assert keys == [f"{i:06d}" for i in (0, 2, 3, 5, 6, 8)]
    assert len(failed) == 3


def test_blobs(tmp_path: Path) -> None:
    root = testing.make_blob_dataset(tmp_path / "data", n=5, shards=1, sample_bytes=777)
    assert [len(sample["bin"]) for sample in load(root, "val", CrudeEncoder())] == [777] * 5
    with pytest.raises(ConfigError, match="stay bytes"):
        testing.make_blob_dataset(tmp_path / "other", broken={1})


def test_splits(tmp_path: Path) -> None:
    def keys(root: Path) -> list[list[str]]:
        return [[sample.__key__ for sample in load(root, part)] for part in ("train", "val")]

    every = [f"{i:06d}" for i in range(5)]
    assert keys(testing.make_text_dataset(tmp_path / "three", n=5, shards=3)) == [every[:3], every[3:]]
    assert keys(testing.make_text_dataset(tmp_path / "one", n=5, shards=1)) == [every, every]


def test_unprepared_and_of_a_size(tmp_path: Path) -> None:
    root = testing.make_captioning_dataset(tmp_path / "captions", n=4, shards=2, prepared=False)
    assert sorted(path.name for path in root.glob("[!.]*")) == ["shard_000.tar", "shard_001.tar"]
    assert not (root / ".nv-meta").exists()
    root = testing.make_text_dataset(tmp_path / "text", n=4, shards=1, text_bytes=1000)
    assert all(1000 <= len(sample.text.encode()) < 1200 for sample in load(root, "val"))
    root = testing.make_image_dataset(tmp_path / "image", n=4, shards=1, image_size=(5, 7))
    assert all(sample.image.shape == (3, 5, 7) for sample in load(root, "val"))


def test_classes_are_told_by_colour(tmp_path: Path) -> None:
    root = testing.make_classification_dataset(tmp_path / "data", n=40, shards=1)
    found = load(root, "val")
    assert [sample.label for sample in found] == [i % 10 for i in range(40)]
    means = np.array([sample.image.mean(axis=(1, 2)) for sample in found])
    centres = np.array([means[i::10].mean(axis=0) for i in range(10)])
    nearest = np.linalg.norm(means[:, None] / means.max(1)[:, None, None] - centres / centres.max(1)[:, None], axis=2)
    assert (nearest.argmin(axis=1) == np.arange(40) % 10).mean() > 0.8


@pytest.mark.parametrize("options", [{}, {"n": 3, "shards": 4}, {"shards": 0}, {"n": 0}, {"n": 4, "broken": {4}}])
def test_impossible_options_and_somebody_elses_files_are_refused(tmp_path: Path, options: dict[str, Any]) -> None:
    if not options:
        (tmp_path / "precious.tar").touch()
    with pytest.raises(ConfigError, match=".+" if options else "new or empty folder"):
        testing.make_text_dataset(tmp_path, **options)
    assert (tmp_path / "precious.tar").exists() == (not options)


def test_avi_is_a_tree_of_chunks_with_an_index(tmp_path: Path) -> None:
    root = testing.make_vid_qa_dataset(tmp_path / "data", n=1, shards=1)
    (data,) = (content for name, content in members(root / "shard_000.tar").items() if name.endswith(".avi"))
    assert data[:4] == b"RIFF"
    assert data[8:12] == b"AVI "
    assert struct.unpack("<I", data[4:8]) == (len(data) - 8,)
    movie = data.index(b"movi")
    index = data.index(b"idx1") + 8
    pictures = struct.unpack_from("<I", data, index - 4)[0] // 16
    assert pictures > 1
    for number in range(pictures):
        name, _, offset, size = struct.unpack_from("<4sIII", data, index + 16 * number)
        start = movie + offset
        assert name == data[start : start + 4] == b"00dc"
        assert data[start + 8 : start + 10] == b"\xff\xd8"
        assert data[start + 6 + size : start + 8 + size] == b"\xff\xd9"


def members(path: Path) -> dict[str, bytes]:
    with tarfile.open(path) as tar:
        return {member.name: tar.extractfile(member).read() for member in tar}  # type: ignore[union-attr]


def keys_of(path: Path) -> list[str]:
    return [name.rpartition(".")[0] for name in members(path)]


def test_values_become_files(tmp_path: Path) -> None:
    sample: dict[str, Any] = {
        "__key__": "a/b",
        "bin": b"\0\1",
        "txt": "größe",
        "cls": 7,
        "json": {"a": [1, "é"]},
        "npy": np.arange(3),
    }
    (path,) = write_tars(tmp_path, [sample])
    found = members(path)
    assert found["a/b.bin"] == b"\0\1"
    assert found["a/b.txt"].decode() == "größe"
    assert found["a/b.cls"] == b"7"
    assert found["a/b.json"].decode() == '{"a": [1, "é"]}'
    np.testing.assert_array_equal(np.load(io.BytesIO(found["a/b.npy"])), np.arange(3))


@given(count=st.integers(0, 20), shards=st.integers(1, 6))
def test_shards_are_even_runs(tmp_path_factory: pytest.TempPathFactory, count: int, shards: int) -> None:
    root = tmp_path_factory.mktemp("tars")
    paths = write_tars(root, ({"__key__": f"{i:02}", "cls": i} for i in range(count)), shards=shards)
    keys = [keys_of(path) for path in paths]
    assert sum(keys, []) == [f"{i:02}" for i in range(count)]
    assert len(paths) == shards
    assert max(map(len, keys)) - min(map(len, keys)) <= 1
    paths = write_tars(root, ({"__key__": str(i), "cls": i} for i in range(7)), samples_per_shard=3, name="p/{}/x.tar")
    assert [str(path.relative_to(root)) for path in paths] == ["p/0/x.tar", "p/1/x.tar", "p/2/x.tar"]
    assert [len(keys_of(path)) for path in paths] == [3, 3, 1]


@pytest.mark.parametrize("tar_format", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_formats(tmp_path: Path, tar_format: int) -> None:
    key = "deep/" * 15 + "x" * 90 if tar_format != tarfile.USTAR_FORMAT else "x"
    (path,) = write_tars(tmp_path, [{"__key__": key, "txt": "1"}], tar_format=tar_format)
    assert keys_of(path) == [key]


@pytest.mark.parametrize(
    ("samples", "options", "said"),
    [
        ([], {"shards": 1, "samples_per_shard": 1}, "shards and samples_per_shard are both set: use only one of them"),
        ([], {"shards": 0}, "at least 1"),
        ([{"txt": "1"}], {}, "no `__key__`"),
    ],
)
def test_impossible_requests_are_refused(tmp_path: Path, samples: Any, options: dict[str, int], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        write_tars(tmp_path, samples, **options)
