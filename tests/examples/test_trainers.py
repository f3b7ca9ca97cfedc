"""The programs of `examples/trainers`: two ranks, one killed; resumed on another number of ranks."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import runpy
import signal
import socket
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from program_server import ProgramServer, serving

from energon_grain.testing import make_classification_dataset
from energon_grain_torch import get_savable_loader

pytestmark = pytest.mark.slow

REPOSITORY = Path(__file__).parents[2]
TRAINERS = REPOSITORY / "examples" / "trainers"
NEEDS = {
    "train_lightning": ["lightning"],
    "train_huggingface": ["transformers", "accelerate"],
    "train_accelerate": ["accelerate"],
}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_classification_dataset(tmp_path_factory.mktemp("data") / "images", n=100)


@pytest.fixture(scope="module")
def trainers() -> Iterator[ProgramServer]:
    """Runs programs in forks of a process that has the trainers imported."""
    names = [name for name in ("lightning", "transformers:Trainer", "accelerate:Accelerator") if installed(name)]
    environment = {
        "PYTHONWARNINGS": "ignore",
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "ACCELERATE_USE_CPU": "true",
    }
    with serving("energon_grain_torch:get_savable_loader", *names, environment=environment) as made:
        yield made


def installed(name: str) -> bool:
    return importlib.util.find_spec(name.partition(":")[0]) is not None


@dataclass(frozen=True)
class Launch:
    """A program on several ranks, as torchrun runs it."""

    server: ProgramServer
    program: str
    data: Path
    folder: Path

    def __call__(self, ranks: int, *options: str, killed: bool = False) -> None:
        """Run it until all ranks have ended or, where the last is to be killed, until that has."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        checkpoints = self.folder / "checkpoints"
        checkpoints.mkdir(exist_ok=True)
        environment = {
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "WORLD_SIZE": str(ranks),
            "LOCAL_WORLD_SIZE": str(ranks),
            "TORCHELASTIC_RUN_ID": "test",
        }
        program = [TRAINERS / f"{self.program}.py", self.data, "--checkpoints", checkpoints, *options]
        status, output = self.server.run(Path(__file__), self.folder, *program, environment=environment)
        assert status == (-signal.SIGKILL if killed else 0), output[-6000:]


def run_ranks(program: str) -> None:
    """Fork the ranks off this process, and end as the last that fails does: without the others."""
    children = list[int]()
    for rank in range(int(os.environ["WORLD_SIZE"])):
        children.append(os.fork())
        if children[-1] == 0:
            os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            sys.argv, sys.path[0] = sys.argv[1:], str(Path(program).parent)
            runpy.run_path(program, run_name="__main__")
            return
    while children:
        status = os.waitstatus_to_exitcode(os.waitpid(children.pop(), 0)[1])
        if status:
            for other in children:
                os.kill(other, signal.SIGKILL)
                os.waitpid(other, 0)
            if status < 0:
                os.kill(os.getpid(), -status)
            sys.exit(status)


def steps(notes: Path) -> dict[int, list[int]]:
    """What the ranks trained on in each step, together."""
    found: dict[int, list[int]] = {}
    for file in notes.glob("rank*.jsonl"):
        for step, numbers in map(json.loads, file.read_text().splitlines()):
            found.setdefault(step, []).extend(numbers)
    return {step: sorted(numbers) for step, numbers in found.items()}


@pytest.mark.parametrize(("program", "ranks"), [*zip(NEEDS, (3, 3, 1), strict=True)])
def test_a_killed_run_goes_on_with_other_ranks(
    program: str, ranks: int, data: Path, trainers: ProgramServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for package in NEEDS[program]:
        if not installed(package):
            pytest.skip(f"{package} is not installed")
    monkeypatch.syspath_prepend(str(TRAINERS))
    with get_savable_loader(importlib.import_module("task").train_dataset(data, 12)) as loader:
        whole = {step: sorted(next(iter(loader))["number"].tolist()) for step in range(14)}

    launch = Launch(trainers, program, data, tmp_path)
    launch(2, "--notes", "before", "--steps", "14", "--die-at", "10", killed=True)
    before = steps(tmp_path / "before")
    assert {step: before[step] for step in range(10)} == {step: whole[step] for step in range(10)}
    launch(ranks, "--notes", "after", "--steps", "14")
    assert steps(tmp_path / "after") == {step: whole[step] for step in range(9, 14)}


if __name__ == "__main__":
    run_ranks(sys.argv[1])
