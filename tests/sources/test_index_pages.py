"""Random reads over a large index do not make it resident."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from patience import PATIENCE_S

from energon_grain import WebDatasetSource
from energon_grain.formats.columnar import open_columnar
from energon_grain.prepare import prepare_dataset
from energon_grain.sources.indexed import IndexPages
from energon_grain.testing import write_tars

SAMPLES = 400_000


def resident_kb(path: Path) -> int:
    """Resident memory of this process that maps files below `path`."""
    total, counts = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if line.split(" ", 1)[0].endswith(":"):
            total += int(line.split()[1]) if counts and line.startswith("Rss:") else 0
        else:
            counts = str(path) in line
    return total


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index of 400,000 samples, of which two shards exist: 21 MB of columns beside next to no data."""
    from energon_grain.formats.columnar_build import write_columnar
    from energon_grain.formats.columnar_header import columnar_folder
    from energon_grain.formats.nv_meta import DatasetInfo, write_info
    from energon_grain.formats.tar.scan import ShardScan, scan_tar

    root = tmp_path_factory.mktemp("large")
    write_tars(root, [{"__key__": "0", "txt": "0"}], name="real.tar")
    prepare_dataset(root, split_ratio={"train": 1}, crude=True, num_workers=0, sqlite=False)
    count = SAMPLES - 1
    keys = np.char.zfill(np.arange(1, SAMPLES).astype("U8"), 8).astype("S8")
    imagined = ShardScan(
        size_bytes=count * 1024 + 1024,
        sample_start=np.arange(count + 1) * 1024,
        part_start=np.arange(count + 1),
        part_names=("txt",),
        part_name=np.zeros(count, np.int32),
        part_offset=np.arange(count) * 1024 + 512,
        part_size=np.full(count, 10),
        key_start=np.arange(count + 1) * 8,
        key_bytes=keys.view(np.uint8),
    )
    write_columnar(columnar_folder(root), ["real.tar", "imagined.tar"], [scan_tar(root / "real.tar"), imagined])
    write_info(root, DatasetInfo(shard_counts={"real.tar": 1, "imagined.tar": count}))
    return root


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_pages_are_given_back(large: Path) -> None:
    source = WebDatasetSource(large)
    rng = np.random.default_rng(0)
    most = 0
    for _ in range(40):
        source.sizes(rng.integers(0, SAMPLES, 100))
        most = max(most, resident_kb(large))
    assert most < 12_000
    assert source.sizes(np.array([SAMPLES - 1])).tolist() == [1024]


def test_small_indices_are_left_alone(large: Path) -> None:
    index = open_columnar(large)
    pages = IndexPages(index.columns, samples=len(index), rows=index.rows, left_alone_bytes=1 << 30)
    assert index.part_size[SAMPLES // 2] == 10
    for column in index.columns:
        column.sum()
    before = resident_kb(large)
    pages.touch(np.arange(0, SAMPLES, 10))
    assert resident_kb(large) == before
    assert before > 15_000
    pages.release()
    assert resident_kb(large) < 1000
    assert index.part_size[SAMPLES // 2] == 10


def test_runs_of_samples_touch_little(large: Path) -> None:
    """A thousand neighbours count as what they touch, not as a thousand samples."""
    index = open_columnar(large)
    pages = IndexPages(index.columns, samples=len(index), rows=index.rows, left_alone_bytes=0, resident_bytes=2 << 20)
    for start in range(0, 20_000, 1000):
        samples = np.arange(start, start + 1000)
        index.part_size[samples]
        pages.touch(samples)
    assert resident_kb(large) > 0
    pages.touch(np.arange(0, SAMPLES, 100))
    assert resident_kb(large) == 0


FIRST_SAMPLES = """
import os, sys
import numpy as np
from energon_grain.sources.webdataset import WebDatasetSource
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGESIZE") / 1e6
before, files = resident(), len(os.listdir("/proc/self/fd"))
source = WebDatasetSource(sys.argv[1])
source.sizes(np.random.default_rng(0).integers(0, len(source), 5000))
source.read(np.zeros(32, np.int64))
print(resident() - before, len(os.listdir("/proc/self/fd")) - files)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_opening_takes_little_memory(large: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", FIRST_SAMPLES, str(large)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE_S, check=True)
    memory_mb, files = done.stdout.split()
    assert float(memory_mb) < 12
    assert int(files) <= 9
