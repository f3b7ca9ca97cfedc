# SPDX-License-Identifier: Apache-2.0
"""The index of a join in both of its formats: ours, which is memory-mapped, and Energon's.

    <metadataset>.cache/.join_<name>/rows.npy      int64 (rows, datasets): sample of each dataset, -1 if it has none
    <metadataset>.cache/.join_<name>/header.json   what was joined

Rows are verified by their checksums on first use, like the columns of an index. Samples are numbered through all shards
of their dataset, as in its columnar index; for an array, the number is the row. Rows are in the order of the first
dataset, the primary: its shards as listed in the split part, and the samples of each in file order. The folder is
created atomically by a rename. Its name begins with a dot because Energon's `prepare` removes all other files that it
did not write, and fails at a folder.

    <metadataset>.cache/join_index_<sha256>.bin    location of the samples of each joined row:

    b"JIDX0001"                                          8 bytes
    C                                                    int64, number of joined datasets
    C x (shard_idx, byte_offset, byte_size) per row      int64 each; (-1, -1, -1): this dataset lacks the key

`shard_idx` counts the shards listed in the split part, including excluded ones; offset and size are those of the whole
sample in its tar. Numbers have the machine's byte order. We only write this format.

Energon derives the file name from the datasets' uuids, excludes and modes, without the split part, so its train and val
joins share one file. The names from `join_name` distinguish them.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import shutil
import sys
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from energon_grain.atomic_files import atomic_write, sweep, sync_folder, writing_in
from energon_grain.errors import IndexFileError
from energon_grain.formats.columnar_header import (
    BlockSums,
    Count,
    column_file_bytes,
    header_digest,
    read_column,
)
from energon_grain.forms import Form, encode_json
from energon_grain.storage.location import is_url
from energon_grain.storage.memory_maps import release_pages
from energon_grain.storage.remote import mirror_of

Int64Array = npt.NDArray[np.int64]

VERSION = 2
HEADER_NAME = "header.json"
ROWS_NAME = "rows.npy"
_PREFIX = ".join_"
_REPAIR_ADVICE = "remove it; `energon-grain prepare` on the metadataset writes it again"

MAGIC = b"JIDX0001"
_WINDOW_SHIFT = 10


class JoinedMember(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One dataset or array of a join, at the time of the join.

    Attributes:
        path: The dataset, relative to the folder of the metadataset if it has one.
        split_part: Name of its split part.
        content_id: Content id of its columnar index, which changes with any key, part or size. For an array, see
            `ArraySource`, with a digest of the keys of its rows.
        uuid: The id from its `prepare`; None without one.
        samples: Samples of the whole dataset, or rows of the array.
        shards: Digest of the shards that the split part lists, in order.
        excludes: Excluded shards and samples of these, sorted.
        nonmatch: Treatment of rows whose key it lacks.
        missing: Number of rows without a sample of it.
        array: For an array, how its rows are found: by the number of the primary's sample, or by key.
    """

    path: str
    split_part: str
    content_id: str
    uuid: str | None = None
    samples: Count
    shards: str
    excludes: list[str]
    nonmatch: str
    missing: int = 0
    array: Literal["row", "key"] | None = None


class JoinHeader(msgspec.Struct, frozen=True, kw_only=True):
    """The content of `header.json`.

    Attributes:
        version: Version of this layout.
        members: The joined datasets, the primary first.
        rows: Number of rows.
        skipped: Samples of the primary without a row, because a dataset with `nonmatch: skip` lacks their key.
        checksum: BLAKE2b-128 of the rows, in hex.
        block_sums: The same of the sums after the rows (see `column_file`); None without sums.
        header_checksum: The same of the rest of the header.
    """

    version: int = VERSION
    members: list[JoinedMember]
    rows: Count
    skipped: int = 0
    checksum: str
    block_sums: str | None = None
    header_checksum: str = ""

    @property
    def content_id(self) -> str:
        """32 hex digits that change with any dataset or row, but not with the datasets' location."""
        described = [self.checksum, [member.content_id for member in self.members]]
        return hashlib.blake2b(encode_json(described), digest_size=16).hexdigest()


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class JoinIndex:
    """The rows of a join. Picklable: rows in a file are memory-mapped again.

    Attributes:
        rows: (n, datasets) number of the sample in each dataset, -1 if it has none. Read-only.
        header: Description of the join.
        folder: Folder of the rows; None: in memory.
        url: The folder in an object store that `folder` is a copy of.

    Rows may be used only after `check`.
    """

    rows: Int64Array
    header: JoinHeader
    folder: Path | None = None
    url: str | None = None
    sums: BlockSums | None = None  # None: already verified
    _seen: npt.NDArray[np.bool_] = field(init=False)  # by windows of rows

    def __post_init__(self) -> None:
        object.__setattr__(self, "_seen", np.zeros(-(-len(self.rows) >> _WINDOW_SHIFT), np.bool_))

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def content_id(self) -> str:
        return self.header.content_id

    def check(self, rows: Int64Array | None = None) -> None:
        """Verify rows (None: all) by their checksums, once. Raises IndexFileError."""
        if self.sums is None:
            return
        windows = np.arange(len(self._seen)) if rows is None else rows >> _WINDOW_SHIFT
        for window in sorted(set(windows[~self._seen[windows]].tolist())):
            first, stop = window << _WINDOW_SHIFT, min((window + 1) << _WINDOW_SHIFT, len(self))
            self.sums.check(first, stop)
            block, members = self.rows[first:stop], self.header.members
            if (block[:, 0] < 0).any() or (block < -1).any() or (block >= [each.samples for each in members]).any():
                raise self.sums.damaged("refers to samples that do not exist")
            self._seen[window] = True

    def release(self) -> None:
        release_pages(self.rows)

    def __reduce__(self) -> tuple[Any, ...]:
        if self.folder is not None:
            return _reopen, (self.folder, self.url, self.header.checksum)
        return _in_memory, (self.rows, self.header)


def join_file_sizes(header: bytes, where: object) -> dict[str, int]:
    """Size of each file of a join index, by the content of its header. See `decode_join_header`."""
    content = decode_join_header(header, where)
    return {HEADER_NAME: len(header), ROWS_NAME: _rows_bytes(content)}


def _rows_bytes(header: JoinHeader) -> int:
    return column_file_bytes(np.int64, header.rows, width=len(header.members), block_sums=header.block_sums)


def join_folder(cache: Path, name: str) -> Path:
    """Return the folder of a join in a cache folder."""
    return cache / f"{_PREFIX}{name}"


def stored_headers(names: Iterable[str]) -> dict[str, str]:
    """The join headers among the names of files below a cache folder, by the name of the join."""
    found = ((name.removeprefix(_PREFIX), name) for name in names if name.startswith(_PREFIX))
    return {join.removesuffix(f"/{HEADER_NAME}"): name for join, name in found if join.endswith(f"/{HEADER_NAME}")}


def joins_in(cache: Path) -> dict[str, JoinHeader]:
    """Read the headers of all joins in a cache folder, by name. Skips unreadable ones."""
    found: dict[str, JoinHeader] = {}
    with contextlib.suppress(OSError):
        for folder in sorted(cache.glob(f"{_PREFIX}*")):
            with contextlib.suppress(OSError, IndexFileError):
                found[folder.name.removeprefix(_PREFIX)] = read_join_header(folder)
    return found


def read_join_header(folder: Path) -> JoinHeader:
    """Read the header of a join. Raises FileNotFoundError and IndexFileError."""
    path = folder / HEADER_NAME
    return decode_join_header(path.read_bytes(), path)


def decode_join_header(data: bytes, where: object) -> JoinHeader:
    """Decode the content of `header.json`. Messages begin with `where`. Raises IndexFileError."""
    try:
        version = _VERSION_FORM.from_json(data).version
        if version <= VERSION:
            header = _HEADER.from_json(data)
            if header.header_checksum != header_digest(header):
                raise IndexFileError(f"{where}: is damaged (checksum mismatch); {_REPAIR_ADVICE}")
            return header
    except msgspec.MsgspecError as error:
        raise IndexFileError(f"{where}: {error}; {_REPAIR_ADVICE}") from error
    raise IndexFileError(f"{where}: has version {version}, but this release reads up to {VERSION}; {_REPAIR_ADVICE}")


def open_join_index(folder: Path, *, url: str | None = None) -> JoinIndex:
    """Open our format of a join: one small file and one memory map.

    Damaged rows are fetched again from `url`, if the folder is a copy of it. Raises FileNotFoundError and
    IndexFileError.
    """
    header = read_join_header(folder)
    path = folder / ROWS_NAME
    rows = read_column(path, np.int64, header.rows, width=len(header.members), block_sums=header.block_sums)
    sums = BlockSums(
        path,
        rows,
        checksum=header.checksum,
        block_sums=header.block_sums,
        where=str(path) if url is None else f"{url}/{ROWS_NAME}",
        repair_advice=_REPAIR_ADVICE,
        fetch_again=None if url is None else lambda: _fetch_again(url, _rows_bytes(header)),
    )
    return JoinIndex(rows=rows, header=header, folder=folder, url=url, sums=sums)


def _fetch_again(url: str, size_bytes: int) -> None:
    mirror = mirror_of(url.rpartition("/")[0])
    with mirror.locked():
        mirror.fetch_again(f"{url.rpartition('/')[2]}/{ROWS_NAME}", size_bytes)


@contextlib.contextmanager
def writing_joins(cache: Path) -> Generator[None]:
    """Mark a folder as being written by a join. Creates the folder, and removes temporary files of killed runs."""
    cache.mkdir(parents=True, exist_ok=True)
    sweep(cache, ".tmp_*", ".join_index_*.tmp")
    with writing_in(cache):
        yield


@contextlib.contextmanager
def new_join_folder(cache: Path, name: str) -> Generator[Path]:
    """Create a temporary folder that becomes the folder of the join `name` when the block ends without an error.

    Of two concurrent processes one wins, and both continue with its result. To be called inside `writing_joins`.
    """
    cache.mkdir(parents=True, exist_ok=True)
    target = join_folder(cache, name)
    temporary = cache / f".tmp_{secrets.token_hex(8)}"
    temporary.mkdir()
    try:
        yield temporary
        sync_folder(temporary)
        try:
            os.rename(temporary, target)
        except OSError:
            if not _is_whole(target):  # replaces a damaged one; keeps measured columns
                for other in target.glob("*"):
                    if other.name not in (HEADER_NAME, ROWS_NAME):
                        os.rename(other, temporary / other.name)
                shutil.rmtree(target, ignore_errors=True)
                os.rename(temporary, target)
        sync_folder(cache)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def write_join_header(folder: Path, header: JoinHeader) -> None:
    """Write the header of a join beside its rows."""
    with open(folder / HEADER_NAME, "xb") as file:
        sealed = msgspec.structs.replace(header, header_checksum=header_digest(header))
        file.write(encode_json(sealed) + b"\n")
        file.flush()
        os.fsync(file.fileno())


def shards_digest(shards: Sequence[str]) -> str:
    """Return 32 hex digits for a list of shards."""
    return hashlib.blake2b(encode_json(list(shards)), digest_size=16).hexdigest()


class _Version(msgspec.Struct):
    version: int


_VERSION_FORM, _HEADER = Form(_Version), Form(JoinHeader)


def _is_whole(folder: Path) -> bool:
    try:
        open_join_index(folder).check()
    except (OSError, IndexFileError):
        return False
    return True


def _reopen(folder: Path, url: str | None, checksum: str) -> JoinIndex:
    index = open_join_index(folder, url=url)
    if index.header.checksum != checksum:
        raise IndexFileError(f"{folder}: the join was prepared again while it was in use; restart")
    return index


def _in_memory(rows: Int64Array, header: JoinHeader) -> JoinIndex:
    rows.flags.writeable = False
    return JoinIndex(rows=rows, header=header)


def cache_folder(metadataset: str | os.PathLike[str]) -> Path:
    """Return the folder with the join indices of a metadataset file; for one in an object store, its mirror."""
    location = f"{os.fspath(metadataset)}.cache"
    return mirror_of(location).folder if is_url(location) else Path(location)


def index_file_name(digest: str) -> str:
    """Return the name of the index file of a join."""
    return f"join_index_{digest}.bin"


def join_name(members: Sequence[tuple[str, str, Sequence[str], Sequence[str], str]]) -> str:
    """Return the 64 hex digits that name a join: equal exactly if the rows must be equal.

    Args:
        members: (content id, name of the split part, its shards, excludes of these, nonmatch) of each dataset, in
            order. The order of shards matters, that of excludes does not.
    """
    described = [
        [content_id, split_part, list(shards), sorted(excludes), nonmatch]
        for content_id, split_part, shards, excludes, nonmatch in members
    ]
    return hashlib.sha256(encode_json(["energon-grain join 1", described])).hexdigest()


def energon_join_name(members: Iterable[tuple[str, Sequence[str], str]]) -> str:
    """Return Energon's name for a join, the digits only.

    For several excludes of a dataset, Energon uses the order of a set of strings, which differs between processes.

    Args:
        members: (uuid, excludes that contain a `/`, nonmatch) of each dataset, in order.
    """
    digest = hashlib.sha256()
    for uuid, excludes, nonmatch in members:
        digest.update(f"\0uuid={uuid}\0excludes=".encode())
        for exclude in excludes:
            digest.update(exclude.encode("utf-8", "surrogateescape") + b"\0")
        digest.update(f"\0nonmatch={nonmatch}\0".encode())
    return digest.hexdigest()


def write_join_index(path: str | os.PathLike[str], columns: int, blocks: Iterable[Int64Array]) -> int:
    """Write a join index atomically from consecutive blocks of (n, columns, 3) rows; return its number of rows."""
    rows = 0
    with atomic_write(path) as file:
        file.write(MAGIC + columns.to_bytes(8, sys.byteorder))
        for block in blocks:
            file.write(np.ascontiguousarray(block, np.int64).data.cast("B") if len(block) else b"")
            rows += len(block)
    return rows
