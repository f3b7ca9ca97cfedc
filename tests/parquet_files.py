"""Parquet files for tests."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

FILE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
"""What Hugging Face stores a picture or a sound as."""


def picture(number: int) -> bytes:
    """Eight by eight pixels of one grey: PNG or, of odd numbers, JPEG."""
    file = io.BytesIO()
    Image.fromarray(np.full((8, 8, 3), number % 255, np.uint8)).save(file, "JPEG" if number % 2 else "PNG")
    return file.getvalue()


def files(contents: list[Any]) -> list[Any]:
    """Values of type `FILE`; lists of them where lists are given."""
    return [files(each) if isinstance(each, list) else {"bytes": each, "path": "x"} for each in contents]


def features(**said: Any) -> dict[str, str]:
    """What Hugging Face's `datasets` writes into a schema."""
    return {"huggingface": json.dumps({"info": {"features": said}})}


def write_parquet(
    path: Path, columns: Mapping[str, Any], *, files: int = 1, metadata: Any = None, **options: Any
) -> Path:
    """Write columns into a file, or into a folder of several with about as many rows each."""
    table = pa.table(dict(columns)).replace_schema_metadata(metadata)
    if files == 1:
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table, path, **options)
        return path
    path.mkdir(parents=True, exist_ok=True)
    cuts = np.linspace(0, len(table), files + 1).astype(int).tolist()
    for number in range(files):
        part = table.slice(cuts[number], cuts[number + 1] - cuts[number])
        pq.write_table(part, path / f"train-{number:05d}.parquet", **options)
    return path


def write_numbers(path: Path, count: int = 60, **options: Any) -> Path:
    """Rows with the column `n`, their numbers, and `text`."""
    texts = [f"text {number}" for number in range(count)]
    return write_parquet(path, {"n": np.arange(count), "text": texts}, **options)
