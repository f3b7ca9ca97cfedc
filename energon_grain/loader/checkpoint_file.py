# SPDX-License-Identifier: Apache-2.0
"""A loader's state in a checkpoint folder: one file for any number of hosts."""

from __future__ import annotations

import json
import re
from typing import Any

from energon_grain.amendments.log_file import put_back, taken_out
from energon_grain.errors import StateError
from energon_grain.stream.cursor import Cursor, check_cursor, merge_cursors

FILE_NAME = "energon_grain.json"
GRAIN_FILE = re.compile(r"process_(\d+)-of-(\d+)\.json")


def write_state(directory: Any, cursor: Cursor) -> None:
    """Write the state of all hosts, and a log of more than 64 KiB as a file beside it. Called by one process.

    Args:
        directory: An existing folder (a `pathlib` or `epath` path).
        cursor: Result of `gather_cursor`.
    """
    short, name, log = taken_out(cursor)
    if name:
        (directory / name).write_text(log)
    (directory / FILE_NAME).write_text(json.dumps(short, indent=1))


def write_process_state(directory: Any, cursor: Cursor, rank: int, count: int) -> None:
    """Write the state of one process to the file that Grain's iterators write. Called by every process."""
    (directory / f"process_{rank}-of-{count}.json").write_text(json.dumps(cursor, indent=1))


def read_state(directory: Any) -> Cursor:
    """Read a state written by any number of hosts: the file of this library, or Grain's files, one per process.

    Raises StateError if there is no state, it is damaged, or files of Grain are missing.
    """
    path = directory / FILE_NAME
    try:
        names = [entry.name for entry in directory.iterdir()]
    except OSError as error:
        raise StateError(f"{directory}: not a folder with a state: {error}") from error
    if FILE_NAME in names:
        return put_back(_read(path), lambda name: (directory / name).read_text())
    found: dict[int, Cursor] = {}
    total = 0
    for name in names:
        match = GRAIN_FILE.fullmatch(name)
        if match:
            found[int(match[1])] = _read(directory / name)
            total = int(match[2])
    if not found:
        raise StateError(f"{directory}: contains neither {FILE_NAME} nor a state written by Grain's handler")
    if len(found) != total:
        raise StateError(
            f"{directory}: contains the states of {sorted(found)} of {total} processes, but all are needed"
        )
    by_host = {cursor["host"][0]: cursor for cursor in found.values()}
    return merge_cursors(list(by_host.values()))


def _read(file: Any) -> Cursor:
    try:
        return check_cursor(json.loads(file.read_text()))
    except (ValueError, OSError, RecursionError) as error:
        reason = str(error) if isinstance(error, StateError) else f"{type(error).__name__}: {error}"
        raise StateError(f"{file}: not a usable state: {reason}. Restore another checkpoint") from error
