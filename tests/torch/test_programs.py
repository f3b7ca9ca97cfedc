"""Programs in the manner of the original's pages, with its import changed; nearly all run with the original too.

What they read is in `program_data.py`.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from program_data import make_data
from program_server import ProgramServer, serving

pytestmark = pytest.mark.slow

pytest.importorskip("torch")

HERE = Path(__file__).parent
PROGRAMS = {program.stem: program for program in sorted((HERE / "programs").glob("[!_]*.py"))}
ENERGON_PROGRAMS = {program.stem: program for program in sorted((HERE / "energon_programs").glob("*.py"))}
PEER = os.environ.get("ENERGON_PEER_PYTHON")
NEEDS = {"trainers_lightning": "lightning"}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("data")
    make_data(root)
    return root


@pytest.fixture(scope="module")
def ours() -> Iterator[ProgramServer]:
    with serving("energon_grain_torch") as server:
        yield server


@pytest.fixture(scope="module")
def ours_as_energon() -> Iterator[ProgramServer]:
    with serving("megatron.energon", start=("-m", "energon_grain_torch.as_megatron_energon")) as server:
        yield server


@pytest.fixture(scope="module")
def energon() -> Iterator[ProgramServer]:
    with serving("megatron.energon", python=str(PEER)) as server:
        yield server


def check_runs(server: ProgramServer, program: Path, data: Path, folder: Path, library: str) -> None:
    """Run a program, with the library's name in the place of ours, in a folder with copies of the data."""
    shutil.copytree(data, folder, dirs_exist_ok=True)
    for file in (program, *program.parent.glob("_*.py")):
        (folder / file.name).write_text(file.read_text().replace("energon_grain_torch", library))
    status, output = server.run(folder / program.name, folder)
    assert status == 0, f"{program.name} ended with {status}:\n{output[-6000:]}"


@pytest.mark.parametrize("name", PROGRAMS)
def test_program_runs(name: str, ours: ProgramServer, data: Path, tmp_path: Path) -> None:
    if name in NEEDS and importlib.util.find_spec(NEEDS[name]) is None:
        pytest.skip(f"{NEEDS[name]} is not installed")
    check_runs(ours, PROGRAMS[name], data, tmp_path, "energon_grain_torch")


@pytest.mark.parametrize("name", ENERGON_PROGRAMS)
def test_energons_program_runs(name: str, ours_as_energon: ProgramServer, data: Path, tmp_path: Path) -> None:
    """Written for Megatron-Energon, and not changed."""
    check_runs(ours_as_energon, ENERGON_PROGRAMS[name], data, tmp_path, "megatron.energon")


@pytest.mark.energon
@pytest.mark.skipif(PEER is None, reason="ENERGON_PEER_PYTHON is not set: no Megatron-Energon to compare with")
@pytest.mark.parametrize("name", [name for name in PROGRAMS if name not in {*NEEDS, "beyond_energon"}])
def test_program_is_energons(name: str, energon: ProgramServer, data: Path, tmp_path: Path) -> None:
    check_runs(energon, PROGRAMS[name], data, tmp_path, "megatron.energon")
