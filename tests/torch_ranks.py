"""Functions on several ranks: real processes that `torch.distributed` connects by gloo."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch.distributed as dist
from patience import PATIENCE_S

# Processes are forked off a server that has imported these, and never JAX.
multiprocessing.set_forkserver_preload(["torch.distributed.checkpoint", "energon_grain_torch", "pytest"])


def on_ranks(
    world_size: int, function: Callable[..., Any], *arguments: Any, timeout_s: float = PATIENCE_S
) -> list[Any]:
    """What the function returns on each rank.

    Args:
        world_size: Number of processes.
        function: Of a module that tests can import.
        arguments: Of the function.
        timeout_s: For all of it.
    """
    context = multiprocessing.get_context("forkserver")
    with tempfile.TemporaryDirectory() as folder:
        pipes = [context.Pipe(duplex=False) for _ in range(world_size)]
        processes = [
            context.Process(target=_run, args=(rank, world_size, folder, send, function, arguments))
            for rank, (_, send) in enumerate(pipes)
        ]
        for process in processes:
            process.start()
        for _, send in pipes:
            send.close()
        try:
            return _collect([receive for receive, _ in pipes], time.monotonic() + timeout_s)
        finally:
            for process in processes:
                process.join(PATIENCE_S)
                process.kill()
                process.join()


def _collect(pipes: list[Connection], deadline: float) -> list[Any]:
    results: dict[Connection, Any] = {}
    while len(results) < len(pipes):
        ready = wait([pipe for pipe in pipes if pipe not in results], max(0.0, deadline - time.monotonic()))
        missing = [rank for rank, pipe in enumerate(pipes) if pipe not in results]
        assert ready, f"ranks {missing} have not ended in time"
        for pipe in ready:
            assert isinstance(pipe, Connection)
            good, results[pipe] = pipe.recv()
            assert good, f"rank {pipes.index(pipe)}:\n{results[pipe]}"
    return [results[pipe] for pipe in pipes]


def _run(
    rank: int, world_size: int, folder: str, send: Connection, function: Callable[..., Any], arguments: tuple[Any, ...]
) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    try:
        dist.init_process_group("gloo", init_method=f"file://{Path(folder, 'store')}", rank=rank, world_size=world_size)
        result = True, function(*arguments)
        dist.barrier()
    except BaseException:
        result = False, traceback.format_exc()
    send.send(result)
    if result[0]:
        dist.destroy_process_group()
