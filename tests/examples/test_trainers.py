"""The programs of `examples/trainers`: two ranks, one killed; resumed on another number of ranks."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from patience import PATIENCE_S

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


def launch(program: str, ranks: int, data: Path, folder: Path, *options: str, killed: bool = False) -> None:
    """Run a program as torchrun does, and kill what is left when a rank has ended."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    paths = os.pathsep.join([str(REPOSITORY), str(REPOSITORY / "adapters")])
    environment = {
        **os.environ,
        "PYTHONPATH": paths,
        "PYTHONWARNINGS": "ignore",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "TORCHELASTIC_RUN_ID": "test",
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "ACCELERATE_USE_CPU": "true",
    }
    command = [sys.executable, str(TRAINERS / f"{program}.py"), str(data), "--checkpoints", str(folder / "checkpoints")]
    (folder / "checkpoints").mkdir(exist_ok=True)
    outputs = [folder / f"output{rank}.txt" for rank in range(ranks)]
    processes: list[subprocess.Popen[bytes]] = []
    for rank, output in enumerate(outputs):
        own = {**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)}
        with output.open("w") as file:
            processes.append(subprocess.Popen([*command, *options], env=own, stdout=file, stderr=file, cwd=folder))
    try:
        if killed:
            processes[-1].wait(PATIENCE_S)
        else:
            for process, output in zip(processes, outputs, strict=True):
                assert process.wait(PATIENCE_S) == 0, output.read_text()[-6000:]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    if killed:
        assert processes[-1].returncode == -9, outputs[-1].read_text()[-6000:]


def steps(notes: Path) -> dict[int, list[int]]:
    """What the ranks trained on in each step, together."""
    found: dict[int, list[int]] = {}
    for file in notes.glob("rank*.jsonl"):
        for step, numbers in map(json.loads, file.read_text().splitlines()):
            found.setdefault(step, []).extend(numbers)
    return {step: sorted(numbers) for step, numbers in found.items()}


@pytest.mark.parametrize(("program", "ranks"), [*zip(NEEDS, (3, 3, 1), strict=True)])
def test_a_killed_run_goes_on_with_other_ranks(
    program: str, ranks: int, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for package in NEEDS[program]:
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    monkeypatch.syspath_prepend(str(TRAINERS))
    with get_savable_loader(importlib.import_module("task").train_dataset(data, 12)) as loader:
        whole = {step: sorted(next(iter(loader))["number"].tolist()) for step in range(14)}

    launch(program, 2, data, tmp_path, "--notes", "before", "--steps", "14", "--die-at", "10", killed=True)
    before = steps(tmp_path / "before")
    assert {step: before[step] for step in range(10)} == {step: whole[step] for step in range(10)}
    launch(program, ranks, data, tmp_path, "--notes", "after", "--steps", "14")
    assert steps(tmp_path / "after") == {step: whole[step] for step in range(9, 14)}
