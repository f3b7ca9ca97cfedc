"""Packages of others, installed as users do. `docs/how-to/extend.md` shows them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import PYTHONPATH
from patience import PATIENCE_S

HERE = Path(__file__).parent
PACKAGES = [path.parent for path in sorted(HERE.glob("*/pyproject.toml"))]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the installed packages."""
    target = tmp_path_factory.mktemp("site")
    options = ["--no-deps", "--no-index", "--no-build-isolation", "--no-compile"]
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    command = [
        *pip,
        "install",
        *options,
        "--target",
        str(target),
        *map(str, PACKAGES),
    ]
    subprocess.run(command, check=True)
    return target


@pytest.mark.parametrize("program", ["use_sqlite.py", "use_vault.py"])
def test_a_program_that_uses_an_installed_package(
    site: Path, tmp_path: Path, program: str
) -> None:
    """Once, and again in a new process, which continues from the saved state."""
    path = os.pathsep.join([str(site), PYTHONPATH])
    for phase in ("first", "second"):
        subprocess.run(
            [sys.executable, "-W", "error", HERE / program, phase],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": path},
            check=True,
            timeout=PATIENCE_S,
        )
