"""A small Ray cluster on this machine."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from energon_grain.testing import make_text_dataset

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
ray = pytest.importorskip("ray")
_MIB = 1 << 20


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Ray with four CPUs that nothing is reserved of."""
    path = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    os.environ["PYTHONPATH"] = os.pathsep.join([*path, str(Path(__file__).parent)])  # for the classes of tests
    ray.init(
        num_cpus=4, include_dashboard=False, logging_level="error", log_to_driver=False, object_store_memory=200 * _MIB
    )
    yield ray
    ray.shutdown()


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of 120 texts."""
    path = tmp_path_factory.mktemp("texts") / "texts"
    make_text_dataset(path, n=120, shards=3)
    return path
