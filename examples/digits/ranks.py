"""Start a process for each rank of a training run, as a cluster or `torchrun` does."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Sequence


def run_ranks(commands: Sequence[Sequence[object]]) -> int:
    """Run one command per rank and wait for all of them. If one fails, the others are killed.

    Returns:
        The exit status of the first command that failed (-9 if it was killed), or 0.
    """
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    world = {"WORLD_SIZE": str(len(commands)), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    # When a rank is lost, all others print long errors before they are killed. Only the errors of rank 0 are shown.
    ranks = [
        subprocess.Popen(
            [str(word) for word in command],
            env={**os.environ, **world, "RANK": str(rank)},
            stderr=subprocess.DEVNULL if rank else None,
        )
        for rank, command in enumerate(commands)
    ]
    try:
        while True:
            statuses = [process.poll() for process in ranks]
            if failed := [status for status in statuses if status]:
                return failed[0]
            if None not in statuses:
                return 0
            time.sleep(0.05)
    finally:
        for process in ranks:
            process.kill()
            process.wait()
