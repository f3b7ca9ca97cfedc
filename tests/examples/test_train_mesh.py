"""The program on a mesh: begun on one mesh, continued on another, compared with a whole run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from killed_programs import finish, start

from energon_grain.testing import make_classification_dataset

pytestmark = pytest.mark.slow
PROGRAM = str(Path(__file__).parents[2] / "examples" / "programs" / "train_mesh.py")


def losses(folder: Path, ranks: int, checkpoint: str, tensor_parallel: int, steps: int) -> dict[int, float]:
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--log-dir=logs", f"--nproc-per-node={ranks}"]
    arguments = ["images", checkpoint, str(tensor_parallel), str(steps)]
    output = finish(start(folder, [*torchrun, PROGRAM, *arguments], {}))
    return {int(step): float(loss) for step, loss in re.findall(r"^step (\d+): loss ([\d.]+)", output, re.MULTILINE)}


def test_a_run_continues_on_another_mesh(tmp_path: Path) -> None:
    make_classification_dataset(tmp_path / "images", n=300)
    whole = losses(tmp_path, 1, "whole", 1, 20)
    assert list(whole) == list(range(1, 21))
    assert whole[20] < whole[1]
    first = losses(tmp_path, 4, "saved", 2, 10)
    second = losses(tmp_path, 2, "saved", 1, 15)
    third = losses(tmp_path, 2, "saved", 2, 20)
    assert [*first, *second, *third] == list(range(1, 21))
    assert first | second | third == pytest.approx(whole, rel=1e-3, abs=2e-4)
