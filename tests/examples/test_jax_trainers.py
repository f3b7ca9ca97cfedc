"""The JAX files of `examples/trainers` in their trainers: killed on two devices, resumed on another number of them."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from patience import PATIENCE_S

from energon_grain.testing import make_text_dataset

pytestmark = pytest.mark.slow

REPOSITORY = Path(__file__).parents[2]
TRAINERS = REPOSITORY / "examples" / "trainers"
PROGRAMS = Path(__file__).parent / "programs"


@pytest.mark.parametrize(("package", "devices"), [("axlearn", 3), ("levanter", 2), ("maxtext", 1)])
def test_a_killed_run_goes_on_with_other_devices(package: str, devices: int, tmp_path: Path) -> None:
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    data = make_text_dataset(tmp_path / "texts", n=300)

    command = [sys.executable, "-W", "ignore", PROGRAMS / f"train_{package}.py", data, "--steps", "14"]
    paths = [str(REPOSITORY), str(REPOSITORY / "adapters"), str(TRAINERS), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), "OMP_NUM_THREADS": "1"}

    def notes(name: str, *options: str, devices: int, folder: str = "checkpoints") -> list[list[int]]:
        """What a run trained on, step by step."""
        (tmp_path / folder).mkdir(exist_ok=True)
        done = subprocess.run(
            [*command, "--checkpoints", tmp_path / folder, "--notes", tmp_path / name, *options],
            env={**environment, "JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": str(devices)},
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        assert done.returncode == (-9 if options else 0), done.stderr[-6000:]
        lines = (tmp_path / name / "rank0.jsonl").read_text().splitlines()
        return [sorted(numbers) for _, numbers in map(json.loads, lines)]

    whole = notes("whole", devices=1, folder="others")
    assert len(whole) == 14
    before = notes("before", "--die-at", "10", devices=2)
    assert before == whole[: len(before)]
    assert len(before) in (10, 11)  # axlearn counts its steps from 1
    after = notes("after", devices=devices)
    assert 4 <= len(after) < 14
    assert after == whole[-len(after) :]
