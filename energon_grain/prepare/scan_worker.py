"""The program of one scanning process: `python -m energon_grain.prepare.scan_worker`.

Reads one `ScanTask` a line from standard input and answers each with one line: `{"outcome": …}` or `{"error": [class,
message]}`. Ends with its input, so it never outlives the process that started it.
"""

from __future__ import annotations

import os
import signal
import sys

import msgspec

from energon_grain.errors import EnergonGrainError
from energon_grain.prepare.scan_task import ScanOutcome, ScanTask, scan_shard


class ScanReply(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Either of the two."""

    outcome: ScanOutcome | None = None
    error: tuple[str, str] | None = None


def serve() -> None:
    """Answer tasks until standard input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which closes our input
    for line in sys.stdin.buffer:
        task = msgspec.json.decode(line, type=ScanTask)
        try:
            reply = ScanReply(outcome=scan_shard(task))
        except (EnergonGrainError, OSError) as error:
            reply = ScanReply(error=(type(error).__name__, str(error)))
        try:
            os.write(sys.stdout.fileno(), msgspec.json.encode(reply) + b"\n")
        except BrokenPipeError:
            return  # the parent is gone; what was scanned is kept for the next run


if __name__ == "__main__":
    serve()
