"""Where the peers live: an interpreter of their own, so that their pins and ours never meet."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path


@cache
def peer_python() -> Path | None:
    """The interpreter that ENERGON_PEER_PYTHON names, else `.venv-peers/bin/python`, else None (peers are left out)."""
    named = os.environ.get("ENERGON_PEER_PYTHON")
    path = Path(named) if named else Path(__file__).resolve().parent.parent / ".venv-peers" / "bin" / "python"
    if path.exists():
        return path.absolute()
    if named:
        raise FileNotFoundError(f"ENERGON_PEER_PYTHON names {named}, which does not exist")
    return None


def energon_program() -> list[str]:
    """The peers' `energon` command."""
    return [str((peer_python() or Path("missing")).with_name("energon"))]
