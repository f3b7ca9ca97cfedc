from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from energon_grain.errors import DatasetNotFoundError, SplitError
from energon_grain.prepare import prepare_dataset
from energon_grain.prepare.summary import PartSummary, SplitSummary, summarize_dataset
from energon_grain.testing import make_captioning_dataset, make_crude_dataset, write_tars


def test_sizes(tmp_path: Path) -> None:
    sizes = [0, 1, 2, 3, 4, 5, 7, 8, 9, 1000, 1023, 1024, 70_000]
    write_tars(tmp_path, [{"__key__": f"{i:03d}", "txt": "x" * size} for i, size in enumerate(sizes)])
    prepare_dataset(tmp_path, num_workers=0, split_ratio=[1], sqlite=False)
    bins = summarize_dataset(tmp_path).sizes
    assert sum(size.samples for size in bins) == len(sizes)
    for size in bins:
        assert size.samples == sum(size.from_bytes <= number < size.below_bytes for number in sizes)
    assert bins[0].samples
    assert bins[-1].samples
    assert [size.below_bytes for size in bins[:-1]] == [size.from_bytes for size in bins[1:]]


def test_everything(tmp_path: Path) -> None:
    samples = [{"__key__": str(i), "txt": "x" * i} | ({"cls": 1} if i % 2 else {}) for i in range(10)]
    write_tars(tmp_path, samples, shards=5)
    prepare_dataset(
        tmp_path, num_workers=0, split_ratio=(3, 2), sample_type="TextSample", field_map={"text": "txt"}, sqlite=False
    )
    split = tmp_path / ".nv-meta/split.yaml"
    split.write_text(split.read_text().replace("exclude: []", "exclude: [shard_000.tar, shard_001.tar/2]"))
    summary = summarize_dataset(tmp_path)
    assert (summary.shards, summary.samples, summary.payload_bytes) == (5, 10, 50)
    assert summary.shard_bytes == sum(path.stat().st_size for path in tmp_path.glob("*.tar"))
    sizes = [(size.from_bytes, size.below_bytes, size.samples) for size in summary.parts["txt"].sizes]
    assert sizes == [(0, 1, 1), (1, 2, 1), (2, 4, 2), (4, 8, 4), (8, 16, 2)]
    (one_byte,) = summary.parts["cls"].sizes
    assert summary.parts == {
        "txt": PartSummary(
            count=10, total_bytes=45, smallest_bytes=0, largest_bytes=9, sizes=summary.parts["txt"].sizes
        ),
        "cls": PartSummary(count=5, total_bytes=5, smallest_bytes=1, largest_bytes=1, sizes=(one_byte,)),
    }
    assert summary.splits == {
        "train": SplitSummary(shards=2, samples=4, excluded_samples=1),
        "val": SplitSummary(shards=2, samples=4, excluded_samples=0),
    }
    assert (summary.kind, summary.sample_type) == ("standard", "megatron.energon.TextSample")
    assert (summary.field_map, summary.has_sqlite, summary.uuid) == ({"text": "txt"}, False, None)
    assert sum(size.samples for size in summary.sizes) == 10


def test_datasets_of_every_kind(tmp_path: Path) -> None:
    assert summarize_dataset(make_crude_dataset(tmp_path / "crude", n=8, shards=2)).kind == "crude"
    root = make_captioning_dataset(tmp_path / "captions", n=8, shards=2)
    assert summarize_dataset(root).kind == "standard"
    config = root / ".nv-meta/dataset.yaml"
    config.write_text("__module__: my.data\n__class__: MyFactory\nanything: 1\n")
    custom = summarize_dataset(root)
    assert (custom.kind, custom.sample_type) == ("custom", "my.data.MyFactory")
    config.write_text("sample_typ: 1\n")
    assert (summarize_dataset(root).sample_type or "").startswith("unknown: ")
    config.unlink()
    (root / ".nv-meta/split.yaml").unlink()
    bare = summarize_dataset(root)
    assert (bare.kind, bare.splits) == ("none", {})
    with pytest.raises(SplitError):
        summarize_dataset(root, split_config="other.yaml")


def test_not_prepared(tmp_path: Path) -> None:
    with pytest.raises(DatasetNotFoundError, match="energon-grain prepare"):
        summarize_dataset(tmp_path)


def test_memory_does_not_grow_with_the_samples(made_up: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    root = made_up("large", 200_000)
    whole = summarize_dataset(root)
    monkeypatch.setattr("energon_grain.prepare.summary._BLOCK_SAMPLES", 10_000)
    tracemalloc.start()
    try:
        blocks = summarize_dataset(root)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert blocks == whole
    assert whole.samples == sum(each.samples for each in whole.sizes) == 200_000
    assert whole.payload_bytes == sum(part.total_bytes for part in whole.parts.values())
    assert peak_bytes < 2_500_000
