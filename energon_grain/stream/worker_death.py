"""What is told of worker processes that died."""

from __future__ import annotations

from collections.abc import Iterable

from energon_grain.errors import WorkerError


def worker_death(dead: Iterable[tuple[int, int, int | None]]) -> WorkerError:
    """The error that names them.

    Args:
        dead: (number, process id, exit code; None: not known) of each.
    """
    told = ", ".join(f"worker process {number} (pid {pid}) {_how(code)}" for number, pid, code in dead)
    return WorkerError(
        f"{told} while it was needed; its own messages are on stderr. Signal 9 usually means that the machine ran out "
        f"of memory: use fewer workers or smaller batches. The loader goes on from here with a new one"
    )


def _how(code: int | None) -> str:
    if code is None:
        return "ended"
    return f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
