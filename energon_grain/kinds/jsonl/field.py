# SPDX-License-Identifier: Apache-2.0
"""Reads a field of the objects in a JSONL file, to attach it to samples as a column."""

from __future__ import annotations

import json
from typing import Any

from energon_grain.errors import FormatError
from energon_grain.prepare.attach import field_of_rows


def read_field(path: str, field: str, where: str) -> tuple[list[str] | None, list[Any]]:
    """See `Kind.read_field`."""
    try:
        with open(path, encoding="utf-8-sig") as file:
            rows = [json.loads(line) for line in file if line.strip()]
    except ValueError as error:
        raise FormatError(f"{path}: is not valid JSONL: {error}") from error
    if any(not isinstance(row, dict) for row in rows):
        raise FormatError(f"{path}: has lines that are not JSON objects")
    return field_of_rows(rows, field, where)
