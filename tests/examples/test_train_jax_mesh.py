"""The JAX program on meshes: processes that need the same rows, or different ones, train as one."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from killed_programs import finish, start, start_hosts

from energon_grain.testing import make_classification_dataset

pytestmark = pytest.mark.slow
PROGRAM = str(Path(__file__).parents[2] / "examples" / "programs" / "train_jax_mesh.py")


def losses(output: str) -> dict[int, float]:
    return {int(step): float(loss) for step, loss in re.findall(r"^step (\d+): loss ([\d.]+)", output, re.MULTILINE)}


MESHES = [(4, 2, "4")]  # processes, devices of each, tensor parallelism
if os.environ.get("HYPOTHESIS_PROFILE") == "night":
    MESHES += [(2, 1, "2"), (2, 1, "1"), (4, 2, "8"), (4, 2, "2")]


def test_several_processes_train_as_one(tmp_path: Path) -> None:
    make_classification_dataset(tmp_path / "images", n=300)
    whole = losses(finish(start(tmp_path, [PROGRAM, "images", "1"], {})))
    assert list(whole) == list(range(1, 21))
    assert whole[20] < whole[1]
    for processes, devices, tensor_parallel in MESHES:
        hosts = start_hosts(tmp_path, [PROGRAM, "images", tensor_parallel], processes, devices)
        first, *others = [losses(finish(host)) for host in hosts]
        assert first == pytest.approx(whole, rel=1e-3, abs=2e-4)
        assert others == [{}] * (processes - 1)
