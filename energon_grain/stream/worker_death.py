"""What is told of worker processes that died."""

from __future__ import annotations

from collections.abc import Iterable

from energon_grain.errors import WorkerError


def worker_death(dead: Iterable[tuple[int, int, int | None]], *, import_script: bool = False) -> WorkerError:
    """The error that names them.

    Args:
        dead: (number, process id, exit code; None: not known) of each.
        import_script: Whether such processes begin by importing the user's script.
    """
    dead = tuple(dead)
    told = ", ".join(f"worker process {number} (pid {pid}) {_how(code)}" for number, pid, code in dead)
    codes = {code for _, _, code in dead}
    advice = ""
    if codes & {None, -9}:
        advice = " Signal 9 usually means that the machine ran out of memory: use fewer workers or smaller batches."
    elif import_script and 1 in codes:
        advice = (
            " Processes that are started by `spawn` or `forkserver` import the script again: what it does must stand "
            "below `if __name__ == '__main__':`."
        )
    return WorkerError(
        f"{told} while it was needed; its own messages are on stderr.{advice} The loader goes on from here with a new "
        f"one"
    )


def _how(code: int | None) -> str:
    if code is None:
        return "ended"
    return f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
