"""The program of one scanning process: tasks in, one line each, and replies out.

Started by a fork, or as `python -m energon_grain.prepare.scan_worker`. It ends with its input, so it never outlives the
process that started it by more than the shard it is on.
"""

from __future__ import annotations

import os
import signal

import msgspec

from energon_grain.errors import EnergonGrainError
from energon_grain.forms import Form
from energon_grain.prepare.scan_task import ScanOutcome, ScanTask, scan_shard


class ScanReply(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Either the outcome of a task, or class and message of the error it met."""

    outcome: ScanOutcome | None = None
    error: tuple[str, str] | None = None


_TASK, REPLY = Form(ScanTask), Form(ScanReply)


def serve(tasks: int, replies: int) -> None:
    """Read a `ScanTask` a line from the descriptor `tasks`, and write a `ScanReply` a line to `replies`."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which closes our input
    with open(tasks, "rb", closefd=False) as lines:
        for line in lines:
            try:
                reply = ScanReply(outcome=scan_shard(_TASK.from_json(line)))
            except (EnergonGrainError, OSError) as error:
                reply = ScanReply(error=(type(error).__name__, str(error)))
            try:
                os.write(replies, msgspec.json.encode(reply) + b"\n")
            except BrokenPipeError:
                return  # the parent is gone; what was scanned is kept for the next run


if __name__ == "__main__":
    serve(0, 1)
