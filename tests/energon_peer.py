"""The real Megatron-Energon, in the environment whose Python ENERGON_PEER_PYTHON names (`make peers`)."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from patience import PATIENCE_S

PEER = os.environ.get("ENERGON_PEER_PYTHON")
needs_energon = [
    pytest.mark.energon,
    pytest.mark.skipif(PEER is None, reason="ENERGON_PEER_PYTHON is not set: no Megatron-Energon to compare with"),
]


def run_there(*words: str | Path, **environment: str) -> str:
    """What a program says that runs in that environment: `run_there("-c", …)`, `run_there(file, …)`."""
    return _run(str(PEER), *words, **environment)


def energon(*arguments: str | Path) -> str:
    """What the command `energon` says."""
    return _run(Path(str(PEER)).with_name("energon"), *arguments)


def _run(*command: str | Path, **environment: str) -> str:
    done = subprocess.run(
        [str(word) for word in command],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout
