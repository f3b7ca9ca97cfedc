"""Programs in the manner of the original's pages, with its import changed; nearly all run with the original too.

What they read is in `program_data.py`.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from program_data import make_data

pytestmark = pytest.mark.slow

pytest.importorskip("torch")

HERE = Path(__file__).parent
PROGRAMS = {program.stem: program for program in sorted((HERE / "programs").glob("[!_]*.py"))}
ENERGON_PROGRAMS = {program.stem: program for program in sorted((HERE / "energon_programs").glob("*.py"))}
PEER = os.environ.get("ENERGON_PEER_PYTHON")
NEEDS = {"trainers_lightning": "lightning"}


@contextmanager
def serving(python: str, library: str, *start: str) -> Iterator[subprocess.Popen[str]]:
    """A process that runs programs with a library. See `program_server`."""
    paths = [str(HERE.parents[1]), str(HERE.parents[1] / "adapters")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    command = [python, *start, str(HERE / "program_server.py"), library]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment) as server:
        yield server
        assert server.stdin
        server.stdin.close()


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("data")
    make_data(root)
    return root


@pytest.fixture(scope="module")
def ours() -> Iterator[subprocess.Popen[str]]:
    with serving(sys.executable, "energon_grain_torch") as server:
        yield server


@pytest.fixture(scope="module")
def ours_as_energon() -> Iterator[subprocess.Popen[str]]:
    with serving(sys.executable, "megatron.energon", "-m", "energon_grain_torch.as_megatron_energon") as server:
        yield server


@pytest.fixture(scope="module")
def energon() -> Iterator[subprocess.Popen[str]]:
    with serving(str(PEER), "megatron.energon") as server:
        yield server


def check_runs(server: subprocess.Popen[str], program: Path, data: Path, folder: Path) -> None:
    """Run a program in a folder with copies of the data."""
    shutil.copytree(data, folder, dirs_exist_ok=True)
    assert server.stdin
    assert server.stdout
    print(json.dumps([str(program), str(folder)]), file=server.stdin, flush=True)
    status, output = json.loads(server.stdout.readline())
    assert status == 0, f"{program.name} ended with {status}:\n{output[-6000:]}"


@pytest.mark.parametrize("name", PROGRAMS)
def test_program_runs(name: str, ours: subprocess.Popen[str], data: Path, tmp_path: Path) -> None:
    if name in NEEDS and importlib.util.find_spec(NEEDS[name]) is None:
        pytest.skip(f"{NEEDS[name]} is not installed")
    check_runs(ours, PROGRAMS[name], data, tmp_path)


@pytest.mark.parametrize("name", ENERGON_PROGRAMS)
def test_energons_program_runs(name: str, ours_as_energon: subprocess.Popen[str], data: Path, tmp_path: Path) -> None:
    """Written for Megatron-Energon, and not changed."""
    check_runs(ours_as_energon, ENERGON_PROGRAMS[name], data, tmp_path)


@pytest.mark.energon
@pytest.mark.skipif(PEER is None, reason="ENERGON_PEER_PYTHON is not set: no Megatron-Energon to compare with")
@pytest.mark.parametrize("name", [name for name in PROGRAMS if name not in {*NEEDS, "beyond_energon"}])
def test_program_is_energons(name: str, energon: subprocess.Popen[str], data: Path, tmp_path: Path) -> None:
    check_runs(energon, PROGRAMS[name], data, tmp_path)
