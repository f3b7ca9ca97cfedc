# SPDX-License-Identifier: Apache-2.0
"""A loader's state in a checkpoint folder: one file for all hosts, whatever their number."""

from __future__ import annotations

import json
import re
from typing import Any

from energon_grain.errors import StateError
from energon_grain.stream.cursor import Cursor, check_cursor, merge_cursors

FILE_NAME = "energon_grain.json"
GRAIN_FILE = re.compile(r"process_(\d+)-of-(\d+)\.json")


def write_state(directory: Any, cursor: Cursor) -> None:
    """Write the state of all hosts. Called by one process.

    Args:
        directory: An existing folder (a `pathlib` or `epath` path).
        cursor: As `gather_cursor` gives it.
    """
    (directory / FILE_NAME).write_text(json.dumps(cursor, indent=1))


def write_process_state(directory: Any, cursor: Cursor, rank: int, count: int) -> None:
    """Write the state of one process to the file that Grain's iterators write. Called by every process."""
    (directory / f"process_{rank}-of-{count}.json").write_text(json.dumps(cursor, indent=1))


def read_state(directory: Any) -> Cursor:
    """Read a state that any number of hosts wrote: ours, or the files of Grain's own handler, one a process.

    Raises StateError if there is none, it is damaged, or Grain's files are not complete.
    """
    path = directory / FILE_NAME
    try:
        names = [entry.name for entry in directory.iterdir()]
    except OSError as error:
        raise StateError(f"{directory} is no folder with a state: {error}") from error
    if FILE_NAME in names:
        return _read(path)
    found: dict[int, Cursor] = {}
    total = 0
    for name in names:
        match = GRAIN_FILE.fullmatch(name)
        if match:
            found[int(match[1])] = _read(directory / name)
            total = int(match[2])
    if not found:
        raise StateError(f"{directory} holds neither {FILE_NAME} nor a state that Grain's handler wrote")
    if len(found) != total:
        raise StateError(f"{directory} holds the states of {sorted(found)} of {total} processes; all are needed")
    by_host = {cursor["host"][0]: cursor for cursor in found.values()}
    return merge_cursors(list(by_host.values()))


def _read(file: Any) -> Cursor:
    try:
        return check_cursor(json.loads(file.read_text()))
    except (ValueError, OSError, RecursionError) as error:
        reason = str(error) if isinstance(error, StateError) else f"{type(error).__name__}: {error}"
        raise StateError(f"{file} holds no usable state: {reason}; restore another checkpoint") from error
