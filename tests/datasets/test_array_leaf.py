"""Arrays as leaves: samples, order, state, blends, hosts, workers, and what is refused."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from arrays import numbered, write_array, write_group

from energon_grain import (
    Cooker,
    DefaultTaskEncoder,
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
from energon_grain.errors import ConfigError, DatasetNotFoundError, FieldMapError
from energon_grain.testing import make_crude_dataset, write_tars

ONE = WorkerConfig(rank=0, world_size=1, num_workers=0)
V2 = "__module__: megatron.energon\n__class__: MetadatasetV2\n"
ROWS = 60


@pytest.fixture
def frames(tmp_path: Path) -> Path:
    arrays = {"n": np.arange(ROWS), "image": numbered(ROWS, 3, 2), "jpg": numbered(ROWS, 2, dtype=np.uint8)}
    return write_group(tmp_path / "frames.zarr", "zarr3", **arrays)


def metadataset(folder: Path, train: str) -> Path:
    path = folder / "meta.yaml"
    path.write_text(f"{V2}splits: {{train: {train}}}\n")
    return path


def validated(path: Path, **options: Any) -> list[Any]:
    return list(get_val_dataset(path, worker_config=ONE, batch_size=None, **options))


def trained(path: Path, steps: int, config: WorkerConfig = ONE, **options: Any) -> list[list[int]]:
    given: dict[str, Any] = {"batch_size": 4, "shuffle_buffer_size": 20, "max_samples_per_sequence": 5, **options}
    with Stream.of(get_train_dataset(path, worker_config=config, **given)) as stream:
        return [next(stream)["n"].tolist() for _ in range(steps)]


def test_samples(frames: Path) -> None:
    samples = validated(frames, split_part="whatever")
    assert [int(sample["n"]) for sample in samples] == list(range(ROWS))
    third = samples[3]
    assert (third["__key__"], third["__shard__"], third["__subflavors__"]) == ("3", "frames.zarr", None)
    assert third["image"].tolist() == numbered(ROWS, 3, 2)[3].tolist()
    assert third["jpg"].tolist() == [6, 7]  # a row, whatever its array is called
    (source,) = third["__sources__"]
    assert (source.dataset_path, source.index) == (str(frames), 3)
    assert source.file_names == ("3.image", "3.jpg", "3.n")


def test_subset_parts_and_subflavors(frames: Path, tmp_path: Path) -> None:
    path = metadataset(tmp_path, "{path: frames.zarr, subset: {range: [10, 20]}, subflavors: {kind: frame}}")
    samples = validated(path, split_part="train", part_filter={"n"})
    assert [int(sample["n"]) for sample in samples] == list(range(10, 20))
    assert samples[0]["__key__"] == "10"
    assert samples[0]["__subflavors__"] == {"kind": "frame"}
    assert "image" not in samples[0]


def test_the_order_of_a_tar_dataset(frames: Path, tmp_path: Path) -> None:
    """The same samples under the same name come in the same order from either container."""
    from energon_grain.prepare import prepare_dataset

    (tmp_path / "tars").mkdir()
    write_tars(tmp_path / "tars", ({"__key__": f"{i:03d}", "cls": i} for i in range(ROWS)), shards=3)
    prepare_dataset(tmp_path / "tars", split_ratio={"train": 1}, crude=True, num_workers=0)
    here = trained(metadataset(tmp_path, "{path: frames.zarr, name: same}"), 40)
    dataset = get_train_dataset(
        metadataset(tmp_path, "{path: tars, name: same}"),
        worker_config=ONE,
        batch_size=4,
        shuffle_buffer_size=20,
        max_samples_per_sequence=5,
    )
    with Stream.of(dataset) as stream:
        assert here == [[int(number) for number in next(stream)["cls"]] for _ in range(40)]
    assert sorted(number for batch in here[:15] for number in batch) == list(range(ROWS))


def test_hosts_share_the_batches_of_one(frames: Path) -> None:
    hosts = [trained(frames, 10, WorkerConfig(rank=rank, world_size=3, num_workers=0)) for rank in range(3)]
    alone = trained(frames, 10, batch_size=12)
    assert [sorted(sum(parts, [])) for parts in zip(*hosts, strict=True)] == [sorted(batch) for batch in alone]


@pytest.mark.parametrize("worker_type", ["thread", "process"])
def test_workers(frames: Path, worker_type: Any) -> None:
    """Processes are started by forkserver or spawn, so that it does not matter that rows were read here before."""
    here = trained(frames, 5)
    config = WorkerConfig(rank=0, world_size=1, num_workers=2, worker_type=worker_type)
    dataset = get_train_dataset(
        frames, worker_config=config, batch_size=4, shuffle_buffer_size=20, max_samples_per_sequence=5
    )
    with get_savable_loader(dataset) as loader:
        batches = iter(loader)
        assert [next(batches)["n"].tolist() for _ in range(5)] == here


def test_state_and_which_and_restored_samples(frames: Path, tmp_path: Path) -> None:
    make_crude_dataset(tmp_path / "crude", n=20, shards=2)
    children = "{weight: 3, path: frames.zarr}, {weight: 1, path: crude}, {weight: 1, path: frames.zarr/n}"
    path = metadataset(tmp_path, f"{{blend: [{children}]}}")

    def opened() -> Stream:
        return Stream.of(
            get_train_dataset(
                path,
                worker_config=ONE,
                batch_size=4,
                shuffle_buffer_size=None,
                max_samples_per_sequence=None,
                task_encoder=KeysOnly(),
            )
        )

    with opened() as stream:
        for _ in range(3):
            next(stream)
        state = stream.cursor()
        expected = next(stream)
        records = stream.which(3)
    assert [record.key for record in records] == list(expected["__key__"])
    assert {record.shard for record in records if "crude" not in record.dataset} <= {"frames.zarr", "n"}
    with opened() as stream:
        stream.restore(state)
        again = next(stream)
        assert list(again["__key__"]) == list(expected["__key__"])
        assert list(stream.restore_sample(again["__restore_key__"])["__key__"]) == list(expected["__key__"])


@stateless
def only_keys(sample: Any) -> Any:
    return {name: sample[name] for name in ("__key__", "__restore_key__")}


class KeysOnly(DefaultTaskEncoder):
    cookers = (Cooker(only_keys),)


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
        validated(metadataset(tmp_path, "{path: frames.zarr, dataset_config: d.yaml}"), split_part="train")
    make_crude_dataset(tmp_path / "crude", n=20, shards=2)
    for first, second in (("crude", "frames.zarr"), ("frames.zarr", "crude")):
        with pytest.raises(ConfigError, match="write `array:` for an array"):
            validated(metadataset(tmp_path, f"{{join: [{{path: {first}}}, {{path: {second}}}]}}"), split_part="train")
    with pytest.raises(ConfigError, match="cannot be read by key"):
        validated(frames, task_encoder=Primary())
    with pytest.raises(ConfigError, match="part_filter lets none of its arrays pass: image, jpg, n"):
        validated(frames, part_filter={"txt"})
    write_array(frames / "short", numbered(3))
    with pytest.raises(ConfigError, match="image has 60, jpg has 60, n has 60, short has 3"):
        validated(frames)
    with pytest.raises(DatasetNotFoundError):
        validated(tmp_path / "none.zarr")
