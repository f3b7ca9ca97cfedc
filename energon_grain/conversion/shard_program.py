"""Convert one shard: `python -m energon_grain.conversion.shard_program TASK`, the task as JSON; prints one line."""

from __future__ import annotations

import contextlib
import os
import signal
import sys

import msgspec

from energon_grain.conversion.shards import TASK, ShardReply, convert_shard
from energon_grain.errors import EnergonGrainError


def main(argument: str) -> None:
    """Convert the shard of a task, and print a `ShardReply`."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends this process
    try:
        reply = ShardReply(written=convert_shard(TASK.from_json(os.fsencode(argument))))
    except (EnergonGrainError, OSError) as error:
        reply = ShardReply(error=(type(error).__name__, str(error)))
    with contextlib.suppress(BrokenPipeError):
        print(msgspec.json.encode(reply).decode(), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
