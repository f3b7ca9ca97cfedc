# SPDX-License-Identifier: Apache-2.0
"""`records.json`: the encoding of samples in record-based shards."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec

from energon_grain.errors import IndexFileError
from energon_grain.formats.nv_meta import META_FOLDER, RECORDS_JSON
from energon_grain.forms import Form, encode_json

RecordEncoding: TypeAlias = Literal["msgpack", "tf_example", "raw"]
RECORD_ENCODINGS: tuple[RecordEncoding, ...] = ("msgpack", "tf_example", "raw")
_VERSION = 1


class _Records(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    version: int
    encoding: RecordEncoding


_RECORDS = Form(_Records)


def encode_records_file(encoding: RecordEncoding) -> bytes:
    """Return the bytes of `records.json`."""
    return encode_json(_Records(_VERSION, encoding)) + b"\n"


def read_records_file(root: str | os.PathLike[str]) -> RecordEncoding | None:
    """Read the record encoding of the dataset at `root`; None if its shards are not ArrayRecord files.

    Raises IndexFileError.
    """
    path = Path(root) / META_FOLDER / RECORDS_JSON
    try:
        data = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        found = _RECORDS.from_json(data)
        if found.version != _VERSION:
            raise msgspec.ValidationError(f"version {found.version}, but this release reads version {_VERSION}")
    except msgspec.MsgspecError as error:
        raise IndexFileError(
            f'{path}: {error}. It must have the form {{"version": 1, "encoding": "msgpack"}}, with one of '
            f"{', '.join(RECORD_ENCODINGS)}; `energon-grain prepare {root} --force-overwrite --records ENCODING` "
            f"rewrites it"
        ) from error
    return found.encoding
