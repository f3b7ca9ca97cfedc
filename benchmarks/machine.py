"""The machine of the measurements, and the peers' separate interpreter, which avoids conflicting versions."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Iterable
from functools import cache as cached
from importlib import metadata
from pathlib import Path

_OURS = ("numpy", "grain", "simplejpeg", "pillow", "jax", "orbax-checkpoint")
_PEERS = ("megatron-energon", "torch", "grain", "array_record", "webdataset", "litdata", "spdl-io", "numpy", "pillow")
_OWN_ENVIRONMENTS = {"mosaic": ("mosaicml-streaming", "numpy")}
"""Peers whose dependencies conflict with those of the others, and the packages that the report names."""
_LIST = """import sys; from importlib import metadata as m
for n in sys.argv[1:]:
    try: print(n, m.version(n))
    except m.PackageNotFoundError: pass"""


def peer_python(peer: str = "") -> Path | None:
    """Return the interpreter of a peer, or None, which leaves it out.

    It is that of ENERGON_PEER_PYTHON, by default `.venv-peers/bin/python`. A peer with an environment of its own has it
    beside that one: `.venv-peers-mosaic`.
    """
    common = _peer_python()
    if common is None or peer not in _OWN_ENVIRONMENTS:
        return common
    folder = common.parent.parent
    own = folder.with_name(f"{folder.name}-{peer}") / "bin" / "python"
    return own if own.exists() else None


@cached
def _peer_python() -> Path | None:
    named = os.environ.get("ENERGON_PEER_PYTHON")
    path = Path(named) if named else Path(__file__).resolve().parent.parent / ".venv-peers" / "bin" / "python"
    if path.exists():
        return path.absolute()
    if named:
        raise FileNotFoundError(f"ENERGON_PEER_PYTHON={named}: no such file")
    return None


def energon_program() -> list[str]:
    """Return the peers' `energon` command."""
    return [str((peer_python() or Path("missing")).with_name("energon"))]


def describe(cache: Path) -> list[str]:
    """Return lines of text: processor, memory, kernel, file system, interpreters and versions."""
    lines = [
        f"{os.cpu_count()} x {_processor()}, {_memory_gib():.0f} GiB, {platform.system()} {platform.release()}, "
        f"data on {_file_system(cache)}, page cache warm",
        f"ours: Python {platform.python_version()}, {', '.join(_versions(_OURS))}",
    ]
    interpreter = peer_python()
    if interpreter is None:
        return [*lines, "peers: not installed (`make peers`), so only energon-grain and the floor were measured"]
    lines.append(f"peers: {', '.join(_versions_there(interpreter, _PEERS))}")
    for peer, packages in _OWN_ENVIRONMENTS.items():
        own = peer_python(peer)
        lines += [f"{peer}: {', '.join(_versions_there(own, packages))}"] if own else []
    return lines


def _versions_there(interpreter: Path, names: Iterable[str]) -> list[str]:
    listed = subprocess.run([interpreter, "-c", _LIST, *names], capture_output=True, text=True, check=True)
    return listed.stdout.splitlines()


def _versions(names: Iterable[str]) -> list[str]:
    installed = {str(found.name).lower().replace("_", "-"): found.version for found in metadata.distributions()}
    return [f"{name} {installed[name]}" for name in names if name in installed]


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _memory_gib() -> float:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30


def _file_system(folder: Path) -> str:
    if sys.platform != "linux":
        return "an unknown file system"
    mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    inside = [(point, kind) for _, point, kind, *_ in mounts if folder.resolve().is_relative_to(point)]
    return max(inside, key=lambda mount: len(mount[0]))[1]
