"""Measurements in processes of their own: how they are asked, `python -m benchmarks.MODULE JSON`, and answer.

What answers needs the standard library only, because it also runs in the peers' interpreter.
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
    """Run the call that the first argument names and print what it returns.

    The process then ends at once, worker processes first: how long a peer takes to shut down is not measured, and their
    processor time is still counted as this process's.
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
    """What a child has answered, by all that it printed; None: it has not."""
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
    """Run a call of a module in a process of its own. Raises RuntimeError, with what it printed, if that fails."""
    command = [python, "-m", f"benchmarks.{module}", json.dumps({"call": call, **arguments})]
    variables = {**os.environ, **(environment or {})}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=variables)
    answer = answer_in(done.stdout)
    if done.returncode or answer is None:
        raise RuntimeError(f"{module}.{call} ended with {done.returncode}:\n{done.stderr[-1500:]}")
    return answer


def program(main: Callable[..., None], **calls: Callable[..., Mapping[str, Any]]) -> None:
    """A program by itself: options are the parameters of `main`; with JSON, as `ask` gives it, one of `calls`."""
    if len(sys.argv) == 2 and sys.argv[1].startswith("{"):
        serve(**calls)
    import typer

    main.__doc__ = sys.modules["__main__"].__doc__
    typer.run(main)
