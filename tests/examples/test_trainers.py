"""The programs of `examples/trainers`: two ranks, one killed; resumed on another number of ranks."""

from __future__ import annotations

import importlib.util
import json
import os
import runpy
import signal
import socket
import sys
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from program_server import ProgramServer, serving

from energon_grain.testing import make_classification_dataset

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

    def __call__(self, ranks: int, notes: str, *, checkpoints: str = "checkpoints", kill_in: int = 0) -> Notes:
        """What the ranks trained on together, step by step, until all have ended or one was killed in a step."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        for name in (checkpoints, notes):
            (self.folder / name).mkdir(exist_ok=True)
        environment = {
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "WORLD_SIZE": str(ranks),
            "LOCAL_WORLD_SIZE": str(ranks),
            "TORCHELASTIC_RUN_ID": "test",
            "NOTES": str(self.folder / notes),
            "KILL_IN": str(kill_in),
        }
        program = [TRAINERS / f"{self.program}.py", self.data, "--checkpoints", self.folder / checkpoints]
        status, output = self.server.run(
            Path(__file__), self.folder, *program, "--steps", "14", environment=environment
        )
        assert status == (-signal.SIGKILL if kill_in else 0), output[-6000:]
        return together(self.folder / notes)


Notes = list[tuple[list[int], float]]
"""For each step: sums over the inputs of all samples, sorted, and the norm of the weights before the step."""


def run_ranks(program: str) -> None:
    """Fork the ranks off this process, and end as the last that fails does: without the others."""
    children = list[int]()
    for rank in range(int(os.environ["WORLD_SIZE"])):
        children.append(os.fork())
        if children[-1] == 0:
            os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            sys.argv, sys.path[0] = sys.argv[1:], str(Path(program).parent)
            take_notes(Path(os.environ["NOTES"], f"rank{rank}.jsonl"), int(os.environ["KILL_IN"]))
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


def take_notes(path: Path, kill_in: int) -> None:
    """Note what a linear layer gets in each step, and end without warning in one of them (counted from 1; 0: none)."""
    import torch

    torch.manual_seed(0)
    steps = 0

    def note(module: torch.nn.Module, given: tuple[torch.Tensor, ...]) -> None:
        nonlocal steps
        if isinstance(module, torch.nn.Linear):
            steps += 1
            sums = [zlib.crc32(row.numpy().tobytes()) for row in given[0]]
            with path.open("a") as file:
                print(json.dumps([sums, module.weight.norm().item()]), file=file)
            if steps == kill_in:
                os.kill(os.getpid(), signal.SIGKILL)

    torch.nn.modules.module.register_module_forward_pre_hook(note)


def together(folder: Path) -> Notes:
    ranks = [[json.loads(line) for line in file.read_text().splitlines()] for file in folder.glob("rank*.jsonl")]
    return [(sorted(sum((sums for sums, _ in step), [])), step[0][1]) for step in zip(*ranks, strict=False)]


@pytest.mark.parametrize(("program", "ranks"), [*zip(NEEDS, (3, 3, 1), strict=True)])
def test_a_killed_run_goes_on_with_other_ranks(
    program: str, ranks: int, data: Path, trainers: ProgramServer, tmp_path: Path
) -> None:
    for package in NEEDS[program]:
        if not installed(package):
            pytest.skip(f"{package} is not installed")
    launch = Launch(trainers, program, data, tmp_path)
    whole = launch(1, "whole", checkpoints="whole_checkpoints")
    assert len(whole) == 14
    before = launch(2, "before", kill_in=11)
    assert len(before) in (10, 11)  # the other rank may not have begun the last step
    after = launch(ranks, "after")  # from the checkpoint of step 9
    for part, expected in ((before, whole[: len(before)]), (after, whole[9:])):
        assert [sums for sums, _ in part] == [sums for sums, _ in expected]
        assert [norm for _, norm in part] == pytest.approx([norm for _, norm in expected], rel=1e-4)


if __name__ == "__main__":
    run_ranks(sys.argv[1])
