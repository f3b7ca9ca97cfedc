# SPDX-License-Identifier: Apache-2.0
"""A file beside a checkpoint for the amendments of a run that has thousands of them.

The state keeps the last ones, and the name of the file: `amendments-DIGEST.json`, a list of texts. Without the file, a
run continues; only questions about earlier steps fail.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from typing import cast

from energon_grain.errors import StateError
from energon_grain.stream.cursor import Cursor, checksum

MOST_BYTES = 1 << 16
"""The log of all amendments is in the state itself up to this length."""
FILE_NAME = re.compile(r"amendments-[0-9a-f]{32}\.json")


def taken_out(cursor: Cursor) -> tuple[Cursor, str, str]:
    """A state without a long log, the name of a file, and its content; the name is empty if no file is needed."""
    texts: list[str] = cursor.get("amendments", [])
    if len(texts) <= 4 or sum(map(len, texts[3:])) <= MOST_BYTES:
        return cursor, "", ""
    content = json.dumps(texts[3:], indent=1)
    name = f"amendments-{_digest(content)}.json"
    return _with(cursor, [*texts[:3], name]), name, content


def put_back(cursor: Cursor, read: Callable[[str], str]) -> Cursor:
    """The state with the log from its file.

    Args:
        cursor: A state from a checkpoint.
        read: Reads a file of that checkpoint. If it raises OSError, the state continues without the log.

    Raises:
        StateError: The file is not the one that was written with the state.
    """
    texts: list[str] = cursor.get("amendments", [])
    if len(texts) != 4 or not FILE_NAME.fullmatch(texts[3]):
        return cursor
    try:
        content = read(texts[3])
    except OSError:
        return cursor
    if texts[3] != f"amendments-{_digest(content)}.json":
        raise StateError(f"{texts[3]} is damaged: its content has the digest {_digest(content)}")
    return _with(cursor, [*texts[:3], *cast("list[str]", json.loads(content))])


def _with(cursor: Cursor, texts: list[str]) -> Cursor:
    changed = {**cursor, "amendments": texts}
    return {**changed, "check": checksum(changed)}


def _digest(content: str) -> str:
    return hashlib.blake2b(content.encode(), digest_size=16).hexdigest()
