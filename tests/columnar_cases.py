"""Small datasets of tars, what a columnar index of them holds, and scans of shards that do not exist."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from energon_grain.formats.columnar import ColumnarIndex
from energon_grain.formats.nv_meta import DatasetInfo, write_info
from energon_grain.formats.scan import ShardScan
from energon_grain.kinds.tar.index import tar_index_path
from energon_grain.kinds.tar.scan import scan_tar

Sample = tuple[str, dict[str, bytes]]


def write_tar(path: Path, samples: Sequence[Sample]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w", format=tarfile.GNU_FORMAT) as tar:
        for key, parts in samples:
            for part, payload in parts.items():
                member = tarfile.TarInfo(f"{key}.{part}")
                member.size = len(payload)
                tar.addfile(member, io.BytesIO(payload))


def write_dataset(root: Path, shards: dict[str, list[Sample]], *, tar_index: bool = True) -> DatasetInfo:
    """Write tars and `.info.json`, as of a dataset that Energon prepared."""
    (root / ".nv-meta").mkdir(parents=True, exist_ok=True)
    for shard, samples in shards.items():
        write_tar(root / shard, samples)
        if tar_index:
            scan_tar(root / shard, hidden="keep").sample_start.tofile(tar_index_path(root / shard))
    info = DatasetInfo(shard_counts={shard: len(samples) for shard, samples in shards.items()})
    write_info(root, info)
    return info


def shards_of(count: int, samples: int) -> dict[str, list[Sample]]:
    return {
        f"parts/s{shard}.tar": [
            (f"{shard:02}/{i:03}", {"txt": b"x" * i, "json": b"{}"} if i % 3 else {"json": b"[]"})
            for i in range(samples)
        ]
        for shard in range(count)
    }


def check_contents(index: ColumnarIndex, shards: dict[str, list[Sample]]) -> None:
    """Every sample of the index has the bytes it should have."""
    flat = [(shard, key, parts) for shard, samples in shards.items() for key, parts in samples]
    assert len(index) == len(flat)
    numbers = np.arange(len(flat))
    assert index.keys(numbers) == [key for _, key, _ in flat]
    owners = index.shard_of(numbers)
    for i, (shard, key, parts) in enumerate(flat):
        assert index.shards[owners[i]] == shard
        assert index.key(i) == key
        data = (index.root / shard).read_bytes()
        rows = range(index.part_start[i], index.part_start[i + 1])
        found = {
            index.part_names[index.part_name[row]]: data[
                index.part_offset[row] : index.part_offset[row] + index.part_size[row]
            ]
            for row in rows
        }
        assert found == parts
        assert index.find(key) == i


def scan_of(
    keys: Sequence[bytes], parts: Sequence[Sequence[str]] | None = None, size_bytes: int = 1 << 20
) -> ShardScan:
    """Make a scan by hand: sample i has the parts parts[i], or `jpg` and `txt`, each of one block."""
    parts = [("jpg", "txt")] * len(keys) if parts is None else parts
    names = list(dict.fromkeys(part for of_sample in parts for part in of_sample))
    counts = [len(of_sample) for of_sample in parts]
    part_start = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    return ShardScan(
        size_bytes=size_bytes,
        sample_start=part_start * 1024,
        part_start=part_start,
        part_names=tuple(names),
        part_name=np.array([names.index(part) for of_sample in parts for part in of_sample], dtype=np.int32),
        part_offset=np.arange(part_start[-1]) * 1024 + 512,
        part_size=np.arange(part_start[-1]) % 500,
        key_start=np.concatenate([[0], np.cumsum([len(key) for key in keys])]).astype(np.int64),
        key_bytes=np.frombuffer(b"".join(keys), np.uint8),
    )
