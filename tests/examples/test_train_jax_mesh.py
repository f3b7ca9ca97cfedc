"""The JAX program on meshes: two processes that need the same rows, or different ones, train as one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from killed_programs import finish, start, start_hosts

from energon_grain.testing import make_classification_dataset

pytestmark = pytest.mark.slow
PROGRAM = str(Path(__file__).parents[2] / "examples" / "programs" / "train_jax_mesh.py")


def losses(output: str) -> dict[int, float]:
    return {int(step): float(loss) for step, loss in re.findall(r"^step (\d+): loss ([\d.]+)", output, re.MULTILINE)}


def test_two_processes_train_as_one(tmp_path: Path) -> None:
    make_classification_dataset(tmp_path / "images", n=300)
    whole = losses(finish(start(tmp_path, [PROGRAM, "images", "1"], {})))
    assert list(whole) == list(range(1, 21))
    assert whole[20] < whole[1]
    for tensor_parallel in ("2", "1"):
        hosts = start_hosts(tmp_path, [PROGRAM, "images", tensor_parallel], 2)
        first, second = map(finish, hosts)
        assert losses(first) == pytest.approx(whole, rel=1e-3, abs=2e-4)
        assert losses(second) == {}
