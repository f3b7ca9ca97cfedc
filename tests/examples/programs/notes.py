"""The options that the programs of this folder share, and notes of the samples in each step."""

from __future__ import annotations

import argparse
import json
import os
import signal
from pathlib import Path
from typing import Any


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("--checkpoints", type=Path, required=True)
    parser.add_argument("--notes", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--global-batch", type=int, default=12)
    parser.add_argument("--die-at", type=int)
    return parser.parse_args()


class Notes:
    """The numbers of the samples of one rank, one line for each step; `--die-at` kills the process in a step."""

    def __init__(self, options: argparse.Namespace) -> None:
        options.notes.mkdir(parents=True, exist_ok=True)
        self._file = options.notes / f"rank{os.environ.get('RANK', '0')}.jsonl"
        self._die_at = options.die_at

    def add(self, step: int, batch: dict[str, Any]) -> None:
        with self._file.open("a") as file:
            print(json.dumps([step, batch["number"].tolist()]), file=file)
        if step == self._die_at:
            os.kill(os.getpid(), signal.SIGKILL)
