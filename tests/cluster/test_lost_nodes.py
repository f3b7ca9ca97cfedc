"""Nodes of a cluster that go, with the chunks and results that they have. Runs at night."""

from __future__ import annotations

import itertools
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray")
sys.path.insert(0, os.path.dirname(__file__))

import ray
from ray.cluster_utils import Cluster
from test_ray_pool import require_equal, stream

from energon_grain.cluster import RayPool

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.environ.get("HYPOTHESIS_PROFILE") != "night", reason="starts a cluster of three nodes"),
]
STEPS = 120
_STORE = 100 << 20


@pytest.fixture(scope="module")
def nodes() -> Iterator[Any]:
    """A head without CPUs, and two nodes with two each."""
    path = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    os.environ["PYTHONPATH"] = os.pathsep.join([*path, str(Path(__file__).parent)])
    head = {"num_cpus": 0, "include_dashboard": False, "object_store_memory": _STORE}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    cluster.nodes_with_cpus = [cluster.add_node(num_cpus=2, object_store_memory=_STORE) for _ in range(2)]
    ray.init(address=cluster.address, logging_level="error", log_to_driver=False)
    yield cluster
    ray.shutdown()
    cluster.shutdown()


@pytest.mark.parametrize("near", ["auto", "never"])
def test_nodes_and_actors_that_go_cost_no_sample(nodes: Any, texts: Path, near: Any) -> None:
    waits: list[float] = [time.monotonic()]
    with RayPool(3, num_cpus=1, near=near) as pool, stream(texts, pool) as found, stream(texts) as expected:

        def lose(step: int) -> None:
            waits.append(time.monotonic())
            if step % 15 == 10 and pool.handles:
                ray.kill(pool.handles[0], no_restart=True)
            if step == STEPS // 2:
                nodes.remove_node(nodes.nodes_with_cpus.pop(), allow_graceful=False)
                nodes.nodes_with_cpus.append(nodes.add_node(num_cpus=2, object_store_memory=_STORE))

        require_equal(found, expected, STEPS, lose)
        stats = pool.stats()
    assert stats.deaths >= 1
    assert stats.submitted_again >= 1
    longest = max(later - earlier for earlier, later in itertools.pairwise(waits))
    print(f"near={near}: {stats}; longest wait for a batch {longest:.1f} s")
