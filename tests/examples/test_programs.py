"""The complete programs of the training pages: killed as one process, resumed as two, compared with a whole run."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest
from killed_programs import KILLER, finish, start, start_hosts

from energon_grain.testing import make_classification_dataset

pytestmark = pytest.mark.slow

PROGRAMS = Path(__file__).parents[2] / "examples" / "programs"
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--log-dir=logs"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    make_classification_dataset(tmp_path / "images", n=300)
    (tmp_path / "killer.py").write_text(KILLER)
    return tmp_path


def losses(output: str) -> dict[int, float]:
    return {int(step): float(loss) for step, loss in re.findall(r"^step (\d+): loss ([\d.]+),", output, re.MULTILINE)}


def check(whole: str, first: str, second: str) -> None:
    expected = losses(whole)
    assert list(expected) == list(range(5, 101, 5))
    assert expected[100] < expected[5] / 2
    assert losses(first) == {step: expected[step] for step in range(5, 51, 5)}
    resumed = {step: expected[step] for step in range(45, 101, 5)}  # from the checkpoint of step 40
    assert losses(second) == pytest.approx(resumed, rel=1e-3, abs=2e-4)  # sums of floats on two hosts


def test_jax(folder: Path) -> None:
    program = str(PROGRAMS / "train_jax.py")
    whole = finish(start(folder, [program, "images", "whole"], {}))
    killed = start(folder, ["killer.py", program, "images", "saved"], {})
    first = finish(killed, killed=True)
    assert killed.returncode == -signal.SIGKILL
    hosts = start_hosts(folder, [program, "images", "saved"], 2)
    second, other = map(finish, hosts)
    assert losses(other) == {}
    check(whole, first, second)


def test_torch(folder: Path) -> None:
    program = str(PROGRAMS / "train_torch.py")
    one, two = ([*TORCHRUN, f"--nproc-per-node={ranks}"] for ranks in (1, 2))
    whole = finish(start(folder, [*one, program, "images", "whole.pt"], {}))
    killed = start(folder, [*one, "killer.py", program, "images", "saved.pt"], {})
    first = finish(killed, killed=True)
    second = finish(start(folder, [*two, program, "images", "saved.pt"], {}))
    check(whole, first, second)


@pytest.mark.parametrize("program", sorted(PROGRAMS.glob("*.py")), ids=lambda program: program.stem)
def test_programs_are_short(program: Path) -> None:
    lines = program.read_text().splitlines()
    assert len(lines) <= 70
    assert max(map(len, lines)) <= 84
