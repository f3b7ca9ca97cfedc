"""Files that change while a loader has them open: no sample comes under the key of another one."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from records import msgpack_record, write_records

from energon_grain import StaleIndexError, WorkerConfig, get_savable_loader, get_train_dataset
from energon_grain.prepare import prepare_dataset
from energon_grain.storage import local
from energon_grain.testing import write_tars

N = 120


def numbers(shuffled: bool) -> list[int]:
    """Which sample stands at each place: of equal length all, so that files differ in their order only."""
    order = list(range(N))
    if shuffled:
        random.Random(1).shuffle(order)
    return order


def write_tar_shards(root: Path, *, shuffled: bool = False) -> Path:
    order = numbers(shuffled)
    for shard in range(3):
        part = order[shard * 40 : shard * 40 + 40]
        write_tars(root, [{"__key__": f"k{i:03}", "txt": f"text {i:03}"} for i in part], name=f"s-{shard}.tar")
    return root


def write_lines(root: Path, *, shuffled: bool = False) -> Path:
    path = root / "lines.jsonl"
    lines = [json.dumps({"place": f"{place:03}", "text": f"text {i:03}"}) for place, i in enumerate(numbers(shuffled))]
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def write_record_shards(root: Path, *, shuffled: bool = False) -> Path:
    order = numbers(shuffled)
    for shard in range(3):
        part = order[shard * 40 : shard * 40 + 40]
        records = [msgpack_record({"__key__": f"k{i:03}", "txt": b"text %03d" % i}) for i in part]
        new = write_records(root / "new" / "file", records)
        with open(root / f"s-{shard}.array_record", "wb") as file:
            file.write(new.read_bytes())  # in place: the writer itself makes a new file
    return root


Write = Callable[..., Path]
KINDS = pytest.mark.parametrize("write", [write_tar_shards, write_lines, write_record_shards])


def opened(path: Path, *, prepared: bool = False) -> Any:
    if path.is_dir() and not prepared:
        typed: dict[str, Any] = {"sample_type": "TextSample", "field_map": {"text": "txt"}}
        records = "msgpack" if list(path.glob("*.array_record")) else None
        prepare_dataset(path, split_ratio={"train": 1}, num_workers=0, records=records, **typed)
    config = WorkerConfig(0, 1, 0)
    dataset = get_train_dataset(
        path, worker_config=config, batch_size=4, shuffle_buffer_size=10, max_samples_per_sequence=10
    )
    return get_savable_loader(dataset)


def pairs(loader: Iterator[Any], steps: int) -> list[tuple[str, str]]:
    return [
        (key, str(text)) for batch in (next(loader) for _ in range(steps)) for key, text in zip(*of(batch), strict=True)
    ]


def of(batch: Any) -> tuple[list[str], list[str]]:
    if hasattr(batch, "text"):
        return batch.__key__, [text[-3:] for text in batch.text]
    return batch["__key__"], [text[-3:] for text in batch["json"]["text"]]


@KINDS
def test_files_that_are_written_again_in_place(tmp_path: Path, write: Write) -> None:
    """Of the same sizes, in another order: what comes before the error is as it was, and every pair is right."""
    loader = opened(write(tmp_path))
    right = {key: text for key, text in pairs(loader, 30) if text}
    assert len(right) == N
    path = write(tmp_path, shuffled=True)
    seen: list[tuple[str, str]] = []
    with pytest.raises(StaleIndexError, match=rf"was changed while it was read.*`energon-grain prepare {path}"):
        for _ in range(3000):
            seen += pairs(loader, 1)
    assert all(right[key] == text for key, text in seen)


@KINDS
def test_a_time_of_modification_that_was_set_back(tmp_path: Path, write: Write) -> None:
    loader = opened(write(tmp_path))
    pairs(loader, 30)
    before = {path: path.stat() for path in tmp_path.iterdir() if path.is_file()}
    write(tmp_path, shuffled=True)
    for path, status in before.items():
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    if write is write_record_shards:  # records have their keys, and these are compared
        match = "has the key"
    else:
        match = "was changed while it was read"
    with pytest.raises(StaleIndexError, match=match):
        pairs(loader, 3000)


@KINDS
def test_modes_and_links_may_change(tmp_path: Path, write: Write) -> None:
    loader = opened(write(tmp_path))
    right = dict(pairs(loader, 30))
    (tmp_path / "links").mkdir()
    for path in list(tmp_path.iterdir()):
        if path.is_file():
            path.chmod(0o400)
            os.link(path, tmp_path / "links" / path.name)
    assert dict(pairs(loader, 300)) == right


def test_shards_that_were_replaced_by_a_rename_are_read_on(tmp_path: Path) -> None:
    loader = opened(write_tar_shards(tmp_path))
    right = dict(pairs(loader, 30))
    new = tmp_path / "new"
    new.mkdir()
    for path in write_tar_shards(new, shuffled=True).glob("*.tar"):
        os.replace(path, tmp_path / path.name)
    assert dict(pairs(loader, 300)) == right


def test_shards_that_were_replaced_and_must_be_opened_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """More shards than stay open."""
    monkeypatch.setattr(local, "_shared_room", local._Room(40))
    samples = [{"__key__": f"k{i:03}", "txt": f"text {i:03}"} for i in range(100)]
    for number, sample in enumerate(samples):
        write_tars(tmp_path, [sample], name=f"s-{number:03}.tar")
    loader = opened(tmp_path)
    pairs(loader, 25)
    for number, sample in enumerate(samples):
        write_tars(tmp_path / "new", [{**sample, "txt": "other 00"}], name="new.tar")
        os.replace(tmp_path / "new" / "new.tar", tmp_path / f"s-{number:03}.tar")
    with pytest.raises(StaleIndexError, match="was changed while it was read"):
        pairs(loader, 3000)


def test_shards_that_were_written_again_before_they_were_opened(tmp_path: Path) -> None:
    """All but the first sample stand in another order, so that size, end and first header are as they were."""
    opened(write_tar_shards(tmp_path))
    order = [*range(40)]
    random.Random(1).shuffle(rest := order[1:])
    samples = [{"__key__": f"k{i:03}", "txt": f"text {i:03}"} for i in [0, *rest]]
    write_tars(tmp_path, samples, name="s-0.tar")
    later = (tmp_path / ".nv-meta" / ".info.json").stat().st_mtime + 1
    os.utime(tmp_path / "s-0.tar", (later, later))
    loader = opened(tmp_path, prepared=True)
    with pytest.raises(StaleIndexError, match=r"s-0\.tar was indexed with k\d+\.txt of 8 bytes"):
        pairs(loader, 30)
