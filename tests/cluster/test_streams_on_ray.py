"""Streams of all kinds of data and nodes are the same on Ray: byte for byte the recorded ones, or those of threads."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray")
sys.path.insert(0, os.path.dirname(__file__))

from cluster_encoders import Frames
from golden import golden_data, streams
from golden.configurations import CONFIGURATIONS, Bench, quiet
from golden.record import recorded
from object_server import Bucket
from test_ray_pool import require_equal, stream

import energon_grain
from energon_grain.cluster import RayPool
from energon_grain.testing import make_text_dataset, make_vid_qa_dataset

pytestmark = pytest.mark.slow

STREAMS = recorded("streams")
IN_THE_GATE = (
    "leaf, aux stores",
    "leaf, global seeds",
    "leaf, pictures as floats",
    "leaf, pictures with broken ones",
    "pass, padded",
    "hooks, failing and skipping",
    "hooks, packing",
    "node, packs and groups blended",
    "metadataset, blend by cost",
    "metadataset, join",
    "metadataset, blended join",
    "columns, planned packs",
    "columns, equal work",
)
NIGHT = os.environ.get("HYPOTHESIS_PROFILE") == "night"


@dataclass(frozen=True)
class OnRay(Bench):
    """Configurations whose samples are encoded by a pool."""

    pool: Any = None

    @property
    def config(self) -> Any:
        return self.api.WorkerConfig(self.rank, self.hosts, workers=self.pool, global_error_handler=quiet)


@pytest.fixture(scope="module")
def golden_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The current folder, with all golden data in it."""
    before, folder = Path.cwd(), tmp_path_factory.mktemp("golden")
    os.chdir(folder)
    golden_data.write_all(Path())
    yield folder
    os.chdir(before)


@pytest.fixture(scope="module")
def pools(golden_folder: Path, cluster: Any) -> Iterator[dict[str, RayPool]]:
    del golden_folder, cluster
    with RayPool(2, num_cpus=0.5) as near, RayPool(2, num_cpus=0.5, near="never") as far:
        yield {"near": near, "far": far}


@pytest.mark.parametrize("name", CONFIGURATIONS if NIGHT else IN_THE_GATE)
def test_recorded_streams(pools: dict[str, RayPool], name: str) -> None:
    for where, pool in pools.items():
        dataset = CONFIGURATIONS[name].build(OnRay(energon_grain, 0, 1, None, pool))
        with energon_grain.get_savable_loader(dataset) as loader:
            found = streams.record(loader, streams.SEGMENT)
        (expected,) = STREAMS[f"{name}, 1 host"]
        beginning = {**expected, "segments": expected["segments"][:1]}
        assert streams.difference(f"{name}, {where}", beginning, found) is None


def test_videos(pools: dict[str, RayPool], tmp_path: Path) -> None:
    path = make_vid_qa_dataset(tmp_path / "videos", n=24, shards=2)
    for pool in pools.values():
        with stream(path, pool, Frames()) as found, stream(path, None, Frames()) as expected:
            require_equal(found, expected, 8)


def test_an_object_store_is_read_once(cluster: Any, bucket: Bucket, tmp_path: Path) -> None:
    """Far actors do not see the cache of this host, so nothing is prefetched into it."""
    url = bucket.upload(make_text_dataset(tmp_path / "texts", n=64, shards=2, text_bytes=30_000), "texts")
    environment = {**bucket.server.environment, "XDG_CACHE_HOME": str(tmp_path / "cache of actors")}
    options = {"runtime_env": {"env_vars": environment}}
    with (
        RayPool(1, num_cpus=0.5, near="never", options=options) as pool,
        stream(url, pool) as found,
        stream(tmp_path / "texts") as expected,
    ):
        require_equal(found, expected, 14)
        theirs, ours = (cached_bytes(tmp_path / name) for name in ("cache of actors", "cache"))
        assert theirs > 1_500_000
        assert ours < 600_000  # the index


def cached_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
