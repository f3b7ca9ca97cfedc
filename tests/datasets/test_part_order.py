"""The parts of a crude sample have the order in which they were written, whatever is read with it."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from parquet_files import features

from energon_grain import DefaultTaskEncoder, WorkerConfig, get_savable_loader, get_val_dataset
from energon_grain.prepare import prepare_dataset

ORDERS = [("py", "cfg", "txt"), ("cfg", "py"), ("txt", "cfg", "py"), ("py",), ("py", "cfg", "py", "txt")]
"""The last one has a part twice, which keeps its first place."""
COUNT = 300


class Raw(DefaultTaskEncoder[Any, Any, Any, Any]):
    decoder = None


def members(number: int) -> tuple[str, ...]:
    """Mostly the first order, so that many chunks have no other one."""
    return ORDERS[number % 5 if number % 50 < 5 else 0]


def written(numbers: Iterable[int] = range(COUNT)) -> dict[str, list[str]]:
    return {f"{number:03d}": list(dict.fromkeys(members(number))) for number in numbers}


def orders(path: Path, **options: Any) -> dict[str, list[str]]:
    data = get_val_dataset(
        str(path),
        worker_config=WorkerConfig(rank=0, world_size=1, num_workers=0),
        split_part="train",
        batch_size=None,
        task_encoder=Raw(),
        **options,
    )
    with get_savable_loader(data) as loader:
        return {sample["__key__"]: [name for name in sample if not name.startswith("__")] for sample in loader}


@pytest.fixture
def tars(tmp_path: Path) -> Path:
    folder = tmp_path / "tars"
    folder.mkdir()
    with tarfile.open(folder / "x.tar", "w") as tar:
        for number in range(COUNT):
            for place, part in enumerate(members(number)):
                info = tarfile.TarInfo(f"{number:03d}.{part}")
                info.size = 1
                tar.addfile(info, io.BytesIO(b"%d" % place))
    return folder


@pytest.mark.parametrize("prepared", [False, True])
def test_the_order_of_the_tar(tars: Path, prepared: bool) -> None:
    if prepared:
        prepare_dataset(tars, split_ratio={"train": 1}, crude=True)
    assert orders(tars) == written()
    for first, stop in [(0, 1), (49, 52), (51, 52), (51, 53), (250, 300)]:
        assert orders(tars, subset=[first, stop]) == written(range(first, stop))
    wanted = orders(tars, part_filter=["txt", "py"])
    assert wanted == {key: [name for name in names if name != "cfg"] for key, names in written().items()}


def test_restored_samples_have_it_too(tars: Path) -> None:
    data = get_val_dataset(
        str(tars),
        worker_config=WorkerConfig(rank=0, world_size=1, num_workers=0),
        split_part="train",
        batch_size=None,
        task_encoder=Raw(),
    )
    with get_savable_loader(data) as loader:
        for _ in range(51):
            next(loader)
        state = loader.get_state()
    with get_savable_loader(data) as loader:
        loader.set_state(state)
        sample = next(loader)
        again = loader.restore_sample(sample["__restore_key__"])
    for each in (sample, again):
        assert [name for name in each if not name.startswith("__")] == written()[sample["__key__"]] == ["cfg", "py"]


def test_the_order_of_the_record(tmp_path: Path) -> None:
    from array_record.python.array_record_module import ArrayRecordWriter

    writer = ArrayRecordWriter(str(tmp_path / "x.array_record"), "group_size:1")
    for number in range(COUNT):
        parts = dict.fromkeys(members(number), b"x")
        writer.write(msgspec.msgpack.encode({"__key__": f"{number:03d}", **parts}))
    writer.close()
    prepare_dataset(tmp_path, records="msgpack", split_ratio={"train": 1}, crude=True)
    assert orders(tmp_path) == written()
    assert orders(tmp_path, subset=[51, 53]) == written(range(51, 53))


def test_lists_of_files_in_tables_follow_one_another(tmp_path: Path) -> None:
    """Half of the samples have no first image, the others have more images."""
    image = {"bytes": b"x", "path": None}
    file = pa.list_(pa.struct([("bytes", pa.binary()), ("path", pa.string())]))
    kind = {"feature": {"_type": "Image"}, "_type": "Sequence"}
    schema = pa.schema([("a", file), ("b", file), ("text", pa.string())], features(a=kind, b=kind))
    rows = {"a": [[None, image], [image] * 3] * COUNT, "b": [[image], [image] * 2] * COUNT, "text": ["x"] * 2 * COUNT}
    pq.write_table(pa.table(rows, schema), tmp_path / "x.parquet")
    found = [*orders(tmp_path / "x.parquet").values()]
    assert found == [["a.1", "b.0", "text"], ["a.0", "a.1", "a.2", "b.0", "b.1", "text"]] * COUNT
    assert [*orders(tmp_path / "x.parquet", subset=[1, 2]).values()] == found[1:2]
