"""Programs that run in processes of their own, and kill themselves."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from conftest import PYTHONPATH
from patience import PATIENCE_S

KILLER = """
import builtins, os, runpy, signal, sys

shown = print

def show(text):
    shown(text, flush=True)
    if text.startswith("step 50:"):  # between two checkpoints
        os.kill(os.getpid(), signal.SIGKILL)

builtins.print = show
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
ENVIRONMENT = {"PYTHONPATH": PYTHONPATH, "JAX_PLATFORMS": "cpu", "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}


def start(folder: Path, arguments: Sequence[str], environment: dict[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-W", "error", *arguments],
        cwd=folder,
        env=os.environ | ENVIRONMENT | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen[str], *, killed: bool = False) -> str:
    """Return the output of a program that has ended, as expected, by itself or by a signal."""
    try:
        output, errors = process.communicate(timeout=PATIENCE_S)
    finally:
        process.kill()
    assert (process.returncode != 0) == killed, errors[-6000:]
    return output


def start_hosts(folder: Path, arguments: Sequence[str], hosts: int, devices: int = 1) -> list[subprocess.Popen[str]]:
    """Start a program of JAX on several hosts with a number of devices each."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        coordinator = f"127.0.0.1:{free.getsockname()[1]}"
    flags = f"--xla_force_host_platform_device_count={devices}"
    environment = {"COORDINATOR": coordinator, "HOSTS": str(hosts), "XLA_FLAGS": flags}
    return [start(folder, arguments, {**environment, "HOST": str(host)}) for host in range(hosts)]
