"""Measurements in separate processes: the call, `python -m benchmarks.MODULE JSON`, and its answer.

The answering side needs only the standard library, because it also runs in the peers' interpreter.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import Any

ANSWER_PREFIX = "benchmark-answer: "


def serve(**calls: Callable[..., Mapping[str, Any]]) -> None:
    """Run the call named in the first argument and print its result.

    The process then exits immediately, worker processes first. The shutdown time of a peer is not measured, but the
    processor time of its workers counts.
    """
    arguments: dict[str, Any] = json.loads(sys.argv[1])
    answer = calls[arguments.pop("call")](**arguments)
    print(ANSWER_PREFIX + json.dumps(answer), flush=True)
    sys.stderr.flush()
    for worker in multiprocessing.active_children():
        worker.kill()
        worker.join()
    os._exit(0)


def answer_in(output: str) -> dict[str, Any] | None:
    """Return the answer of a child from its output; None if there is none."""
    lines = [line for line in output.splitlines() if line.startswith(ANSWER_PREFIX)]
    return json.loads(lines[-1].removeprefix(ANSWER_PREFIX)) if lines else None


def ask(
    module: str,
    call: str,
    *,
    python: str = sys.executable,
    environment: Mapping[str, str] | None = None,
    **arguments: Any,
) -> dict[str, Any]:
    """Run a call of a module in a separate process. Raises RuntimeError, with its output, if that fails."""
    command = [python, "-m", f"benchmarks.{module}", json.dumps({"call": call, **arguments})]
    variables = {**os.environ, **(environment or {})}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=variables)
    answer = answer_in(done.stdout)
    if done.returncode or answer is None:
        raise RuntimeError(f"{module}.{call} ended with {done.returncode}:\n{done.stderr[-1500:]}")
    return answer


def program(main: Callable[..., None], **calls: Callable[..., Mapping[str, Any]]) -> None:
    """Run a program with the parameters of `main` as options; with JSON, as passed by `ask`, run one of `calls`."""
    if len(sys.argv) == 2 and sys.argv[1].startswith("{"):
        serve(**calls)
    import typer

    main.__doc__ = sys.modules["__main__"].__doc__
    typer.run(main)
