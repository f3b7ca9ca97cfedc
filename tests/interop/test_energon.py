"""What we prepare loads in Megatron-Energon, and what it prepares loads here: samples, order and decoded values."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from beside_data import shard_counts
from energon_peer import energon, needs_energon, run_there
from sqlite_rows import rows

from energon_grain import Cooker, DatasetWriter, DefaultTaskEncoder, WorkerConfig, get_val_dataset, stateless, testing
from energon_grain.errors import ConfigError

pytestmark = needs_energon
READER = Path(__file__).with_name("read_with_energon.py")
TYPED = ("captioning", "classification", "image", "multi_choice_vqa", "ocr", "similarity_interleaved", "text")
KINDS = (*TYPED, "vid_qa", "vqa", "vqa_ocr", "crude", "blob", "interleaved")
FIELD_MAPS = {"captioning": {"image": "jpg", "caption": "txt"}, "text": {"text": "txt"}}


def read_there(folder: Path, requests: Sequence[tuple[Path, str]]) -> list[list[dict[str, Any]]]:
    """Read split parts of datasets with Energon, all in one process."""
    target = folder / "energon.json"
    run_there(READER, target, *(word for request in requests for word in request))
    return json.loads(target.read_text(encoding="utf-8"))


@stateless
def keep(crude: dict[str, Any]) -> dict[str, Any]:
    return crude


class RawBytes(DefaultTaskEncoder):
    decoder = None
    cookers = [Cooker(keep)]  # noqa: RUF012 (Energon's way)


def fail(error: BaseException, *_: Any) -> None:
    raise error


def describe(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return {"dtype": str(value.dtype), "shape": list(value.shape), "mean": float(value.mean(dtype=np.float64))}
    if isinstance(value, bytes | memoryview):
        return hashlib.sha256(value).hexdigest()
    if isinstance(value, list | tuple):
        return [describe(item) for item in value]
    if isinstance(value, Mapping):
        return {str(name): describe(item) for name, item in value.items()}
    return value if value is None or isinstance(value, str | int | float) else type(value).__name__


def read_here(root: Path, split_part: str) -> list[dict[str, Any]]:
    crude = "CrudeWebdataset" in (root / ".nv-meta" / "dataset.yaml").read_text()
    dataset = get_val_dataset(
        root,
        split_part=split_part,
        batch_size=None,
        worker_config=WorkerConfig(rank=0, world_size=1, num_workers=0, global_error_handler=fail),
        task_encoder=RawBytes() if crude else DefaultTaskEncoder(),
    )
    found: list[dict[str, Any]] = []
    for sample in dataset:
        content = (
            dict(sample)
            if isinstance(sample, Mapping)
            else {field.name: getattr(sample, field.name) for field in dataclasses.fields(sample)}
        )
        values = {name: describe(value) for name, value in content.items() if not name.startswith("__")}
        found.append({"type": type(sample).__name__, "key": content["__key__"], "content": values})
    return found


def check_equal(here: Any, there: Any, where: str) -> None:
    """Compare descriptions; means of decoded images may differ by a thousandth (two JPEG decoders)."""
    if isinstance(here, dict):
        assert isinstance(there, dict), where
        assert here.keys() == there.keys(), where
        for name, value in here.items():
            check_equal(value, there[name], f"{where}.{name}")
    elif isinstance(here, list):
        assert isinstance(there, list), where
        assert len(here) == len(there), where
        for number, (ours, theirs) in enumerate(zip(here, there, strict=True)):
            check_equal(ours, theirs, f"{where}[{number}]")
    elif isinstance(here, float):
        assert here == pytest.approx(there, rel=1e-3, abs=1e-3), where
    else:
        assert here == there, where


def test_what_we_prepare_loads_in_energon(tmp_path: Path) -> None:
    roots = [
        getattr(testing, f"make_{kind}_dataset")(tmp_path / kind, n=12, shards=3)
        for kind in KINDS
        if kind != "vid_qa"  # Energon needs PyAV already to open one
    ]
    requests = [(root, part) for root in roots for part in ("train", "val")]
    for (root, part), there in zip(requests, read_there(tmp_path, requests), strict=True):
        assert len(there) == (8 if part == "train" else 4)
        check_equal(read_here(root, part), there, f"{root.name}/{part}")


def test_what_we_write_and_append_loads_in_energon(tmp_path: Path) -> None:
    root = tmp_path / "written"
    typed: dict[str, Any] = {"sample_type": "TextSample", "field_map": {"text": "txt"}, "subflavors": {"a": 1}}
    with DatasetWriter(root, shard_samples=5, name="folder/x", **typed) as write:
        for i in range(12):
            write({"__key__": f"{'long' * 40}/{i:03d}" if i % 2 else f"{i:03d}", "txt": f"text {i}", "json": {"i": i}})
    with DatasetWriter(
        root, append=True, name="folder/x", split_ratio={"train": 1, "val": 1}, shard_samples=2
    ) as write:
        for i in range(4):
            write({"__key__": f"new {i}", "txt": f"text {i}"})
    requests = [(root, part) for part in ("train", "val")]
    for (_, part), there in zip(requests, read_there(tmp_path, requests), strict=True):
        assert len(there) == (14 if part == "train" else 2)
        check_equal(read_here(root, part), there, part)
    energon("lint", "--split-parts", "train,val", root)


def test_energons_own_tools_accept_what_we_prepare(tmp_path: Path) -> None:
    root = testing.make_captioning_dataset(tmp_path / "captioning", n=12, shards=3)
    energon("lint", "--split-parts", "train,val", root)
    told = energon("info", root)
    assert "CaptioningSample" in told
    assert "12" in told


@pytest.mark.parametrize("kind", FIELD_MAPS)
def test_what_energon_prepares_loads_here(tmp_path: Path, kind: str) -> None:
    root = getattr(testing, f"make_{kind}_dataset")(tmp_path / kind, n=12, shards=4, prepared=False)
    sample_type = {"captioning": "CaptioningSample", "text": "TextSample"}[kind]
    energon(
        "prepare", "--non-interactive", "--no-progress", "--num-workers", "2", "--split-ratio", "2,1,1",
        "--sample-type", sample_type, "--field-map", json.dumps(FIELD_MAPS[kind]), root,
    )  # fmt: skip
    requests = [(root, part) for part in ("train", "val", "test")]
    for (_, part), there in zip(requests, read_there(tmp_path, requests), strict=True):
        assert len(there) == (6 if part == "train" else 3)
        check_equal(read_here(root, part), there, part)
    assert rows(root / ".nv-meta" / "index.sqlite", "SELECT COUNT(*) FROM samples") == [(12,)]


def test_energon_prepares_again_what_we_prepared_and_back(tmp_path: Path) -> None:
    root = testing.make_text_dataset(tmp_path / "text", n=8, shards=2)
    before = read_here(root, "train")
    testing.write_tars(root, [{"__key__": "new", "txt": "new"}], name="shard_{:03d}9.tar")
    energon(
        "prepare", "--non-interactive", "--no-progress", "--num-workers", "1", "--split-ratio", "1,0,0",
        "--force-overwrite", "--sample-type", "TextSample", "--field-map", '{"text": "txt"}', root,
    )  # fmt: skip
    assert len(shard_counts(root)) == 3
    again = read_here(root, "train")
    assert [sample["key"] for sample in again] == sorted(f"{i:06d}" for i in range(4)) + ["new"] + [
        f"{i:06d}" for i in range(4, 8)
    ]
    assert again[:4] == before
    with pytest.raises(ConfigError, match="already prepared"):
        _prepare_again(root, force_overwrite=False)
    _prepare_again(root, force_overwrite=True)
    assert read_there(tmp_path, [(root, "train")])[0] == read_here(root, "train") == again


def _prepare_again(root: Path, *, force_overwrite: bool) -> None:
    from energon_grain.prepare import prepare_dataset

    prepare_dataset(root, split_ratio={"train": 1}, force_overwrite=force_overwrite, num_workers=0)


def test_energon_joins_by_our_index(tmp_path: Path) -> None:
    """The join index is made from our `index.sqlite` and `index.uuid`."""
    testing.make_text_dataset(tmp_path / "text", n=9, shards=3)
    testing.make_image_dataset(tmp_path / "image", n=9, shards=2)
    joined = tmp_path / "joined.yaml"
    joined.write_text(
        "__module__: megatron.energon\n__class__: MetadatasetV2\nsplits:\n  train:\n    join:\n"
        "    - {path: text, split_part: val}\n    - {path: image, split_part: val}\n"
        "    joiner: {__module__: megatron.energon, __class__: CaptioningSample}\n"
    )
    energon("prepare", "--non-interactive", "--no-progress", joined)
    (index,) = (tmp_path / "joined.yaml.cache").iterdir()
    data = index.read_bytes()
    assert data[:8] == b"JIDX0001"
    joined_rows = np.frombuffer(data[16:], np.int64).reshape(-1, 2, 3)
    text = tmp_path / "text" / ".nv-meta" / "index.sqlite"
    places = rows(text, "SELECT byte_offset, byte_size FROM samples WHERE sample_key IN ('000006', '000007', '000008')")
    for (_, offset, size), (_, _, image_size) in joined_rows:
        assert (offset, size) in places
        assert image_size > 0
    assert len(joined_rows) == 3
