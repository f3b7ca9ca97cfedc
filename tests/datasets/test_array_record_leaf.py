"""ArrayRecord files as leaves: stream, state and stores of the same samples in tars, and what records alone hold."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli_runs import run
from metadatasets import write_v2
from records import encode_example, msgpack_record, write_records, write_shards

from energon_grain import (
    Cooker,
    DatasetNotFoundError,
    DefaultTaskEncoder,
    EPath,
    Stream,
    WorkerConfig,
    basic_sample_keys,
    cooker,
    get_train_dataset,
    get_val_dataset,
    stateless,
)
from energon_grain.prepare import prepare_dataset
from energon_grain.testing import write_tars

ONE = WorkerConfig(rank=0, world_size=1, num_workers=0)
COUNT = 60
SAMPLES = [{"__key__": f"{number:03d}", "txt": b"text %d" % number} for number in range(COUNT)]


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    """The same samples under the same name in tars and in records."""
    options: dict[str, Any] = {
        "split_ratio": {"train": 5, "val": 1},
        "sample_type": "TextSample",
        "field_map": {"text": "txt"},
        "num_workers": 0,
    }
    tars, records = tmp_path / "tars" / "texts", tmp_path / "records" / "texts"
    write_tars(tars, SAMPLES, shards=6)
    prepare_dataset(tars, **options)
    write_shards(records, [msgpack_record(sample) for sample in SAMPLES], 6)
    prepare_dataset(records, records="msgpack", **options)
    return tars, records


def stream_of(path: Path, **options: Any) -> Stream:
    given = {"batch_size": 4, "shuffle_buffer_size": 20, "max_samples_per_sequence": 5, **options}
    return Stream.of(get_train_dataset(path, worker_config=ONE, **given))


def keys_of(stream: Stream, steps: int) -> list[list[str]]:
    return [list(next(stream).__key__) for _ in range(steps)]


@pytest.mark.parametrize("blocks", [5, None])
def test_a_cursor_goes_on_in_the_other_container(pair: tuple[Path, Path], blocks: int | None) -> None:
    options: dict[str, Any] = {"max_samples_per_sequence": blocks, "shuffle_buffer_size": 20 if blocks else None}
    for one, other in (pair, pair[::-1]):
        with stream_of(one, **options) as stream:
            keys_of(stream, 7)
            state = stream.cursor(with_manifest=True)
            expected = keys_of(stream, 20)
        with stream_of(other, **options) as stream:
            stream.restore(state)
            assert keys_of(stream, 20) == expected


def test_samples(pair: tuple[Path, Path]) -> None:
    (_, records) = pair
    samples = list(get_val_dataset(records, worker_config=ONE, batch_size=None))
    assert [sample.text for sample in samples] == [f"text {number}" for number in range(50, 60)]
    assert samples[0].__key__ == "050"
    (source,) = samples[0].__sources__
    assert (source.dataset_path, source.shard_name) == (EPath(records), "shard_005.array_record")
    assert source.file_names == ("050.txt",)


def asked(command: str, root: Path) -> Any:
    return json.loads(run(command, root, "--json").stdout)


def test_splits_excludes_and_subsets(pair: tuple[Path, Path]) -> None:
    kept: list[list[str]] = []
    for root in pair:
        ending = "tar" if root is pair[0] else "array_record"
        split = root / ".nv-meta" / "split.yaml"
        excludes = f"exclude: [shard_001.{ending}, shard_002.{ending}/021]"
        split.write_text(split.read_text().replace("exclude: []", excludes))
        path = write_v2(root.parent, train="{path: texts, subset: {range: [5, 30]}}")
        samples = get_val_dataset(path, worker_config=ONE, batch_size=None, split_part="train")
        kept.append([sample.__key__ for sample in samples])
        assert asked("lint", root) == []
        assert asked("info", root)["splits"]["train"]["excluded_samples"] == 1
    assert kept[0] == kept[1]
    assert kept[0][:7] == ["005", "006", "007", "008", "009", "020", "022"]


def test_mixed_with_tars_and_told_by_which(pair: tuple[Path, Path], tmp_path: Path) -> None:
    children = "{weight: 2, path: records/texts}, {weight: 1, path: tars/texts}"
    with stream_of(write_v2(tmp_path, train=f"{{blend: [{children}]}}")) as stream:
        keys_of(stream, 3)
        records, batch = stream.which(3), next(stream)
    assert [record.key for record in records] == list(batch.__key__)
    assert {Path(record.shard).suffix for record in records} == {".tar", ".array_record"}


def test_joined_with_tars(pair: tuple[Path, Path], tmp_path: Path) -> None:
    for number, paths in enumerate((("tars", "records"), ("records", "tars"), ("records", "records"))):
        one, other = (f"{{path: {path}/texts, dataset_config: {number}.yaml}}" for path in paths)
        for root in pair:
            (root / ".nv-meta" / f"{number}.yaml").write_text((root / ".nv-meta" / "dataset.yaml").read_text())
        joiner = "joiner: {__module__: megatron.energon, __class__: TextSample}"
        path = write_v2(tmp_path, train=f"{{join: [{one}, {other}], {joiner}}}")
        samples = get_val_dataset(path, worker_config=ONE, batch_size=None, split_part="train")
        assert [sample.__key__ for sample in samples] == [sample["__key__"] for sample in SAMPLES[:50]]


class Cooking(DefaultTaskEncoder):
    decoder = DefaultTaskEncoder.decoder_type(image_decode="rgb8")
    cookers = (Cooker(lambda sample: sample),)


def test_numbers_pass_decoders(tmp_path: Path) -> None:
    """A feature is called as a file may be, and is decoded where it holds bytes and only there."""
    examples = [
        encode_example({"a.json": [number], "b.json": [b'{"x": 1}'], "c.txt": [0.5] if number % 2 else [b"text"]})
        for number in range(8)
    ]
    write_shards(tmp_path, examples, 2)
    prepare_dataset(tmp_path, records="tf_example", split_ratio={"val": 1}, crude=True, num_workers=0)
    samples = list(get_val_dataset(tmp_path, worker_config=ONE, batch_size=None, task_encoder=Cooking()))
    assert [sample["__key__"] for sample in samples] == [*"01234567"]
    assert [sample["a.json"].tolist() for sample in samples] == [[number] for number in range(8)]
    assert samples[0]["b.json"] == {"x": 1}
    assert samples[0]["c.txt"] == "text"
    assert samples[1]["c.txt"].dtype == np.float32
    assert asked("lint", tmp_path) == []


@stateless
@cooker(need_primary=True)
def with_others(sample: dict[str, Any], primary: Any, notes: Any) -> dict[str, Any]:
    return {
        **basic_sample_keys(sample),
        "again": primary.get(".txt", sample),
        "note": notes.get(f"{sample['__key__']}.txt", sample),
    }


class Looking(DefaultTaskEncoder):
    decoder = DefaultTaskEncoder.decoder_type()
    cookers = (Cooker(with_others),)


def test_stores(pair: tuple[Path, Path], tmp_path: Path) -> None:
    crude = tmp_path / "records" / "crude"
    shutil.copytree(pair[1], crude)
    (crude / ".nv-meta" / "dataset.yaml").write_text(
        "__module__: megatron.energon\n__class__: CrudeWebdataset\n", encoding="utf-8"
    )
    path = write_v2(crude.parent, train="{path: crude, aux: {notes: texts}}")
    samples = list(
        get_val_dataset(path, worker_config=ONE, batch_size=None, split_part="train", task_encoder=Looking())
    )
    assert [(sample["again"], sample["note"]) for sample in samples[:2]] == [("text 0", "text 0"), ("text 1", "text 1")]


def test_what_is_wrong_is_told(pair: tuple[Path, Path], tmp_path: Path) -> None:
    (_, records) = pair
    write_records(records / "shard_002.array_record", [msgpack_record(sample) for sample in SAMPLES[:9]])
    finding, _ = asked("lint", records)
    assert finding["what"].startswith("has 9 samples, .info.json says 10")
    write_records(tmp_path / "bare" / "x.array_record", [b"x"])
    with pytest.raises(DatasetNotFoundError, match=r"prepare .*bare --records msgpack\|tf_example\|raw"):
        stream_of(tmp_path / "bare")
    with pytest.raises(DatasetNotFoundError, match=r"prepare .*bare --records msgpack\|tf_example\|raw"):
        stream_of(write_v2(tmp_path, train="{path: bare}"))
