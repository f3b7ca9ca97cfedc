"""Arrays as leaves and as columns of joins, here and in object stores: order, state, hosts, and what is refused."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from arrays import numbered, write_array, write_group
from metadatasets import write_v2
from object_server import Bucket

from energon_grain import (
    ConfigError,
    Cooker,
    DatasetNotFoundError,
    DefaultTaskEncoder,
    EPath,
    FieldMapError,
    Sample,
    StandardWebdatasetFactory,
    Stream,
    WorkerConfig,
    basic_sample_keys,
    cooker,
    get_savable_loader,
    get_train_dataset,
    get_val_dataset,
    stateless,
)
from energon_grain.testing import make_crude_dataset

ONE = WorkerConfig(rank=0, world_size=1, num_workers=0)
ROWS = 60


@pytest.fixture
def frames(tmp_path: Path) -> Path:
    arrays = {"n": np.arange(ROWS), "image": numbered(ROWS, 3, 2), "jpg": numbered(ROWS, 2, dtype=np.uint8)}
    return write_group(tmp_path / "frames.zarr", "zarr3", **arrays)


def validated(path: Path, **options: Any) -> list[Any]:
    return list(get_val_dataset(path, worker_config=ONE, batch_size=None, **options))


def test_samples(frames: Path) -> None:
    samples = validated(frames, split_part="whatever")
    assert [int(sample["n"]) for sample in samples] == list(range(ROWS))
    third = samples[3]
    assert (third["__key__"], third["__shard__"], third["__subflavors__"]) == ("3", "frames.zarr", {})
    assert third["image"].tolist() == numbered(ROWS, 3, 2)[3].tolist()
    assert third["jpg"].tolist() == [6, 7]  # a row, whatever its array is called
    (source,) = third["__sources__"]
    assert (source.dataset_path, source.index) == (EPath(frames), 3)
    assert source.file_names == ("3.image", "3.jpg", "3.n")


def test_subset_parts_and_subflavors(frames: Path, tmp_path: Path) -> None:
    path = write_v2(tmp_path, train="{path: frames.zarr, subset: {range: [10, 20]}, subflavors: {kind: frame}}")
    samples = validated(path, split_part="train", part_filter={"n"})
    assert [int(sample["n"]) for sample in samples] == list(range(10, 20))
    assert samples[0]["__key__"] == "10"
    assert samples[0]["__subflavors__"] == {"kind": "frame"}
    assert "image" not in samples[0]


@dataclass(kw_only=True)
class Frame(Sample):
    """What a cooker makes of a row."""

    pixels: Any
    number: int


@stateless
def cook_frame(sample: Any) -> Frame:
    return Frame(**basic_sample_keys(sample), pixels=sample["image"], number=int(sample["n"]))


class Frames(DefaultTaskEncoder):
    cookers = (Cooker(cook_frame),)


def test_cooked(frames: Path) -> None:
    samples = validated(frames, task_encoder=Frames())
    assert [sample.number for sample in samples] == list(range(ROWS))
    assert samples[5].pixels.tolist() == numbered(ROWS, 3, 2)[5].tolist()


def test_typed_by_a_factory(frames: Path) -> None:
    def factory(**field_map: str) -> Any:
        return StandardWebdatasetFactory(
            frames,
            sample_type=Frame,
            field_map=field_map,
            split_part="train",
            training=False,
            worker_config=ONE,
        )

    samples = list(Stream.of(factory(pixels="image", number="n").build()))
    assert [int(sample.number) for sample in samples] == list(range(ROWS))
    assert samples[5].pixels.tolist() == numbered(ROWS, 3, 2)[5].tolist()
    with pytest.raises(FieldMapError, match="no sample has a part 'imag'"):
        list(Stream.of(factory(pixels="imag", number="n").build()))


@stateless
@cooker(need_primary=True)
def cook_with_primary(sample: Any, primary: Any) -> Any:
    return sample


class Primary(DefaultTaskEncoder):
    cookers = (Cooker(cook_with_primary),)


def test_what_is_refused(frames: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"an array has no split_config"):
        validated(frames, split_config="other.yaml")
    with pytest.raises(ConfigError, match="an array has no `dataset_config`"):
        validated(write_v2(tmp_path, train="{path: frames.zarr, dataset_config: d.yaml}"), split_part="train")
    make_crude_dataset(tmp_path / "crude", n=20, shards=2)
    for first, second in (("crude", "frames.zarr"), ("frames.zarr", "crude")):
        path = write_v2(tmp_path, train={"join": [{"path": first}, {"path": second}]})
        with pytest.raises(ConfigError, match="is an array, which is joined by `array:` in place of `path:`"):
            validated(path, split_part="train")
    with pytest.raises(ConfigError, match="cannot be read by key"):
        validated(frames, task_encoder=Primary())
    with pytest.raises(ConfigError, match="part_filter excludes all arrays; select some of image, jpg, n"):
        validated(frames, part_filter={"txt"})
    write_array(frames / "short", numbered(3))
    with pytest.raises(ConfigError, match="image has 60, jpg has 60, n has 60, short has 3"):
        validated(frames)
    with pytest.raises(DatasetNotFoundError):
        validated(tmp_path / "none.zarr")


def dataset(path: Any, **options: Any) -> Any:
    config = WorkerConfig(rank=0, world_size=1, **options)
    return get_train_dataset(
        path, worker_config=config, batch_size=4, shuffle_buffer_size=20, max_samples_per_sequence=5
    )


def trained(path: Any, steps: int = 10) -> list[list[int]]:
    with Stream.of(dataset(path, num_workers=0)) as stream:
        return [next(stream)["n"].tolist() for _ in range(steps)]


@pytest.fixture
def remote_frames(tmp_path: Path) -> Path:
    return write_group(tmp_path / "frames.zarr", "zarr3", n=np.arange(ROWS), image=numbered(ROWS, 3, 2))


def test_the_batches_of_a_local_one(remote_frames: Path, tmp_path: Path, bucket: Bucket) -> None:
    url = bucket.upload(remote_frames, "frames.zarr")
    assert trained(url) == trained(remote_frames)
    text = "{{path: {}, name: same, subset: {{range: [10, 50]}}}}"
    here = trained(write_v2(tmp_path, train=text.format("frames.zarr")))
    assert trained(write_v2(tmp_path, train=text.format(url))) == here
    with pytest.raises(DatasetNotFoundError):
        trained(f"{bucket.url}/none.zarr")


@pytest.mark.parametrize("worker_type", ["thread", "process"])
def test_workers(remote_frames: Path, bucket: Bucket, worker_type: Any) -> None:
    url = bucket.upload(remote_frames, "frames.zarr")
    with get_savable_loader(dataset(url, num_workers=2, worker_type=worker_type)) as loader:
        batches = iter(loader)
        assert [next(batches)["n"].tolist() for _ in range(5)] == trained(remote_frames, 5)


def test_columns_of_joins(tmp_path: Path, bucket: Bucket) -> None:
    make_crude_dataset(tmp_path / "crude", n=20, shards=2)
    keys = [sample["__key__"] for sample in samples(tmp_path / "crude")]
    vectors = bucket.upload(write_array(tmp_path / "vectors", numbered(20, 2), chunk=(7, 2)), "vectors.zarr")
    scores = bucket.upload(write_array(tmp_path / "scores", numbered(3)), "scores.zarr")
    bucket.put("scored.txt", "".join(f"{keys[number]}\n" for number in (5, 0, 7)).encode())
    text = "{{join: [{{path: crude}}, {{array: {}}}, {{array: {}, keys: {}, nonmatch: none}}]}}"
    path = write_v2(tmp_path, train=text.format(vectors, scores, f"{bucket.url}/scored.txt"))
    rows = samples(path)
    assert [row["vectors"].tolist() for row in rows] == numbered(len(rows), 2).tolist()
    found = {row["__key__"]: float(row["scores"]) for row in rows if row.get("scores") is not None}
    assert found == {keys[5]: 0.0, keys[0]: 1.0, keys[7]: 2.0}
    path = write_v2(tmp_path, train=text.format(vectors, scores, f"{bucket.url}/none.txt"))
    with pytest.raises(DatasetNotFoundError, match="one key per line: no such file"):
        samples(path)


def samples(path: Path) -> list[Any]:
    config = WorkerConfig(rank=0, world_size=1, num_workers=0)
    return list(get_val_dataset(path, split_part="train", worker_config=config, batch_size=None))
