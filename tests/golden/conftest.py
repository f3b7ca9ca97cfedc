"""The golden data, written for each module: tests run beside them, and some write there."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from golden import golden_data


@pytest.fixture(scope="module", autouse=True)
def golden_folder(golden_data_folder: Path) -> Iterator[Path]:
    """The current folder, with all data in it."""
    before = Path.cwd()
    os.chdir(golden_data_folder)
    yield golden_data_folder
    os.chdir(before)


@pytest.fixture(scope="module")
def golden_data_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with all data in it."""
    before, folder = Path.cwd(), tmp_path_factory.mktemp("golden")
    os.chdir(folder)
    golden_data.write_all(Path())
    os.chdir(before)
    return folder
