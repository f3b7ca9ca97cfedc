"""`header.json`, the small file that makes one generation of the columnar index the current one."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Annotated, Any

import msgspec

from energon_grain.errors import IndexFileError
from energon_grain.formats.nv_meta import META_FOLDER, DatasetInfo
from energon_grain.forms import Form, encode_json

COLUMNAR_FOLDER = "columnar"
HEADER_NAME = "header.json"
HEADER_VERSION = 2
Count = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]

COLUMN_TYPES = {
    "sample_start": "int64",
    "part_start": "int64",
    "part_name": "int32",
    "part_offset": "int64",
    "part_size": "int64",
    "key_start": "int64",
    "key_bytes": "uint8",
    "key_order": "int64",
}
"""The columns in the order in which they are written, and the type of each."""
_CONTENT_COLUMNS = ("key_start", "key_bytes", "part_start", "part_name", "part_size")


class Column(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Length and checksums of one column.

    Attributes:
        rows: Length.
        checksum: BLAKE2b-128, in hex, of the rows without the `.npy` header.
        block_sums: The same of the sums behind the rows (see `column_file`); None: there are none.
    """

    rows: Count
    checksum: str
    block_sums: str | None = None


class ColumnarHeader(msgspec.Struct, frozen=True, kw_only=True):
    """What `header.json` holds.

    Attributes:
        version: Version of this layout. The first one had no sums of blocks, and no checksum of its own.
        generation: The folder beside the header that holds the columns.
        shards: Name, bytes of the tar file, and samples of each shard, in the order of `.info.json`.
        part_names: Distinct part names; `part_name.npy` holds places in this list.
        columns: Length and checksum of each column.
        info_stamp: Size and modification time (ns) of `.info.json`, only where the index lies in a cache folder.
        header_checksum: BLAKE2b-128, in hex, of all the rest but the generation; see `header_digest`.
    """

    version: int = HEADER_VERSION
    generation: Annotated[str, msgspec.Meta(pattern="^g[0-9a-f]+$")]
    shards: list[tuple[str, Count, Count]]
    part_names: list[str]
    columns: dict[str, Column]
    info_stamp: tuple[int, int] | None = None
    header_checksum: str = ""

    @property
    def content_id(self) -> str:
        """16 bytes, in hex, that change whenever a key, a part's name or size, or a shard's number of samples does.

        They say which samples these are, not how they are kept: the same ones have the same id in tars and in
        ArrayRecord files, whatever the shards are called. Nothing but the checksums of columns is looked at.
        """
        counts = [samples for _, _, samples in self.shards]
        checksums = [self.columns[name].checksum for name in _CONTENT_COLUMNS]
        described = encode_json([counts, self.part_names, checksums])
        return hashlib.blake2b(described, digest_size=16).hexdigest()

    def fits(self, info: DatasetInfo) -> bool:
        """Say whether this describes the shards of `info`, in that order and with as many samples each."""
        counts = info.shard_counts
        return len(counts) == len(self.shards) and all(
            name == shard and samples == count
            for (name, _, samples), (shard, count) in zip(self.shards, counts.items(), strict=True)
        )


def columnar_folder(root: Path) -> Path:
    """Return the folder of the columnar index inside the dataset at `root`."""
    return root / META_FOLDER / COLUMNAR_FOLDER


def encode_header(header: ColumnarHeader) -> bytes:
    """Return the bytes of `header.json`."""
    return encode_json(msgspec.structs.replace(header, header_checksum=_digest(header))) + b"\n"


def _digest(header: ColumnarHeader) -> str:
    """The same for equal datasets: a wrong name of a generation leads to none."""
    return header_digest(header, generation="")


def header_digest(header: Any, **instead: Any) -> str:
    """BLAKE2b-128, in hex, of what a header says beside its own `header_checksum`, with other values `instead`."""
    bare = msgspec.structs.replace(header, header_checksum="", **instead)
    return hashlib.blake2b(encode_json(bare), digest_size=16).hexdigest()


def read_header(folder: Path, root: Path) -> ColumnarHeader | None:
    """Read the header of the columnar index in `folder`, for the dataset at `root`; None where there is none.

    Raises:
        IndexFileError: The header is damaged, or newer than this release can read.
    """
    path = folder / HEADER_NAME
    try:
        data = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        version = _VERSION.from_json(data).version
        if version > HEADER_VERSION:
            raise IndexFileError(
                f"{path}: has version {version}, this release of energon-grain reads up to {HEADER_VERSION}; "
                f"install a newer one or {mending(root)}"
            )
        header = _HEADER.from_json(data)
    except msgspec.MsgspecError as error:
        raise IndexFileError(f"{path}: {error}; {mending(root)}") from error
    if (header.version > 1 or header.header_checksum) and header.header_checksum != _digest(header):
        raise IndexFileError(f"{path}: is not what was written (its checksum differs); {mending(root)}")
    missing = COLUMN_TYPES.keys() - header.columns.keys()
    if missing:
        raise IndexFileError(f"{path}: names no columns {sorted(missing)}; {mending(root)}")
    return header


def mending(root: str | os.PathLike[str]) -> str:
    """Return the advice that ends every error about an index."""
    return f"`energon-grain prepare {root} --force-overwrite` writes the index anew"


class _Version(msgspec.Struct):
    version: int


_VERSION, _HEADER = Form(_Version), Form(ColumnarHeader)
