"""The golden data, written once a process; tests run beside them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from golden import golden_data


@pytest.fixture(scope="module", autouse=True)
def golden_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The current folder, with all data in it."""
    before = Path.cwd()
    folder = tmp_path_factory.mktemp("golden")
    os.chdir(folder)
    golden_data.write_all(Path())
    yield folder
    os.chdir(before)
