"""Two processes of `jax.distributed`: global arrays, one checkpoint, resumed on one process."""

from __future__ import annotations

import importlib.util
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orbax.checkpoint as ocp_v0
import pytest
from orbax.checkpoint import v1 as ocp
from patience import PATIENCE_S

from energon_grain import StateError, get_loader
from energon_grain.loader import EnergonCheckpointRestore
from energon_grain.testing import make_classification_dataset

PROGRAM = Path(__file__).parent / "two_hosts.py"
BROKEN = frozenset({3, 11})


def load_program() -> Any:
    spec = importlib.util.spec_from_file_location("two_hosts", PROGRAM)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run_two_hosts(folder: Path) -> list[dict[str, Any]]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    environment = {**os.environ, "PYTHONPATH": str(PROGRAM.parents[2]), "JAX_PLATFORMS": "cpu", "XLA_FLAGS": ""}
    running = [
        subprocess.Popen(
            [sys.executable, "-W", "error", str(PROGRAM), str(folder), str(port), str(rank)],
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        errors = [process.communicate(timeout=PATIENCE_S)[1] for process in running]
    finally:
        for process in running:
            process.kill()
            process.wait()
    assert [process.returncode for process in running] == [0, 0], "\n".join(errors)
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


def test_two_processes_save_and_one_resumes(tmp_path: Path) -> None:
    make_classification_dataset(tmp_path / "data", n=80, shards=4, broken={2, 9, 33, 47})
    first, second = run_two_hosts(tmp_path)
    packs = [first.pop("packs"), second.pop("packs")]
    assert first == second  # global arrays
    assert first["again"] == first["rest"]

    program = load_program()
    with program.host_loader(tmp_path / "data") as uninterrupted:
        batches = program.global_batches(program.on_all_devices(uninterrupted), 10)
    assert batches == first["first"] + first["rest"]

    # A pass of packs has as many steps on each process, and in each the packs that one process makes.
    together = [sorted(own + others) for own, others in zip(*packs, strict=True)]
    assert together == [sorted(step) for step in program.packed_pass(tmp_path / "data")]

    with program.on_all_devices(program.host_loader(tmp_path / "data")) as loader:
        with ocp_v0.CheckpointManager(tmp_path / "v0") as manager:
            manager.restore(5, args=ocp_v0.args.Composite(data=EnergonCheckpointRestore(loader)))
        assert program.global_batches(loader, 5) == first["rest"]
        ocp.load_checkpointables(tmp_path / "v1", {"data": loader})
        assert program.global_batches(loader, 5) == first["rest"]
    assert "drops" in json.loads((tmp_path / "v0" / "5" / "data" / "energon_grain.json").read_text())


def test_states_of_hosts_that_are_not_processes_of_jax_are_collected_by_hand(train: Callable[..., Any]) -> None:
    loaders = [get_loader(train(broken=BROKEN, rank=rank, world_size=2)) for rank in range(2)]
    for loader in loaders:
        for _ in range(8):
            next(loader)
    with pytest.raises(
        StateError, match=r"2 hosts can be gathered only by .* give all of them to `restore_state_global`"
    ):
        loaders[0].save_state_global()
    states = [loader.save_state_rank() for loader in loaders]
    resumed = get_loader(train(broken=BROKEN, batch_size=8))
    resumed.restore_state_global(states)
    assert sorted(next(resumed).__key__) == sorted(sum((list(next(loader).__key__) for loader in loaders), []))
    with pytest.raises(StateError, match=r"no state to restore on this host.*src_rank="):
        resumed.restore_state_global(None)
    with pytest.raises(StateError, match=r"the states of all hosts are needed"):
        resumed.restore_state_global(states[:1])
