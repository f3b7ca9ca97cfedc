"""The data of runs that change."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from amended_runs import Plain, Run, link_data, write_data


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("data")
    write_data(root)
    return root


@pytest.fixture
def run(data: Path, tmp_path: Path) -> Iterator[Run]:
    link_data(data, tmp_path)
    run = Run(tmp_path, Plain, {"a": 3, "b": 1})
    yield run
    run.close()
