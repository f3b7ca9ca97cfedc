# SPDX-License-Identifier: Apache-2.0
"""Columns: one number per sample, known before reading it, in one `.npy` file each beside the index.

    .nv-meta/columnar/columns.json               lists the file of each column; replaced atomically
    .nv-meta/columnar/columns/<name>-<hex>.npy   (N,) one number per sample; NaN without a value
    x.jsonl.columns/…                            the same two, of a file without preparation
    data/.columns/…                              of a folder of these
    meta.yaml.cache/.join_<name>/…               of a join, beside its index
    ~/.cache/energon-grain/columns/<id>/…        for this machine, of data in read-only places

A column belongs to samples, identified by the `content_id` of the index with which it was created, not to a generation
of the index. It remains valid when the index of the same samples is written again, and is never used for others.

Sizes of parts are columns without files: `bytes` for all parts of a sample, `bytes.jpg` for one, 0 if it is missing.
"""

from __future__ import annotations

import hashlib
import logging
import os
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import msgspec
import numpy as np
import numpy.typing as npt

from energon_grain.atomic_files import is_writable, sync_folder
from energon_grain.errors import IndexFileError, KeyNotFoundError, StaleIndexError
from energon_grain.formats.columnar import ColumnarIndex
from energon_grain.formats.columnar_header import (
    COLUMNAR_FOLDER,
    COLUMNS_JSON,
    BlockSums,
    Column,
    ColumnWriter,
    column_file_bytes,
    columnar_folder,
    header_digest,
    read_column,
)
from energon_grain.formats.data_folder import DataFolder
from energon_grain.formats.nv_meta import META_FOLDER
from energon_grain.forms import Form, encode_json
from energon_grain.media.headers import HEADER_FUNCTION
from energon_grain.storage.location import is_url, join, without_revision
from energon_grain.storage.memory_maps import release_pages
from energon_grain.storage.remote import address_of, mirror_of, shared_client
from energon_grain.storage.settings import storage_settings

Int64Array = npt.NDArray[np.int64]

COLUMNS_FOLDER = "columns"
SIZES = "bytes"
ATTACHED = "attached "
"""Prefix of the function of an attached column. The name of the file follows."""
_VERSION = 1
_BLOCK_SAMPLES = 1 << 20
_COLUMNAR = f"{META_FOLDER}/{COLUMNAR_FOLDER}"
_LONGEST_NAME = 100
_logger = logging.getLogger("energon_grain")


class StoredColumn(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A column with a file in the folder `columns`, of the samples of `content_id`.

    Its numbers were computed by a `function` of a `version`, as `module:name`, from `parts` of samples (empty: all); or
    they were attached: `attached ` and the name of the file.
    """

    file: Annotated[str, msgspec.Meta(pattern=r"^[\w.~%-]+\.npy$")]
    dtype: Annotated[str, msgspec.Meta(pattern="^(float|int|uint)(8|16|32|64)$")]
    column: Column
    content_id: str
    function: str
    version: int
    parts: tuple[str, ...] = ()

    @property
    def size_bytes(self) -> int:
        return column_file_bytes(self.dtype, self.column.rows, block_sums=self.column.block_sums)

    def made_by(self, name: str, dataset: str) -> str:
        """The command that creates it."""
        if self.function == HEADER_FUNCTION:
            return f"`energon-grain prepare-media {dataset} --media-metadata-by-extension`"
        if self.function.startswith(ATTACHED):
            return f"`energon-grain measure {dataset} --attach {name}={self.function.removeprefix(ATTACHED)}`"
        parts = f" --parts {','.join(self.parts)}" if self.parts else ""
        return f"`energon-grain measure {dataset} --column {name}={self.function}{parts}`"


class _ColumnsFile(msgspec.Struct, frozen=True, kw_only=True):
    version: int = _VERSION
    columns: dict[str, StoredColumn] = {}
    header_checksum: str = ""


_FILE = Form(_ColumnsFile)


@dataclass(frozen=True, kw_only=True, slots=True)
class ColumnFolder:
    """Location of the columns of a dataset.

    Attributes:
        dataset: Path or URL of the dataset, for messages.
        location: Path or URL of the folder with `columns.json`.
        local: That folder on this machine: the same, or a copy.
        mirrored: The folder in an object store that contains the original of `local`; None: it is local.
        locked: The local folder that measuring and preparing lock; None: `local`.
        has_media_headers: Whether `prepare-media` also creates columns.
        identity: Identity of the samples on this machine: their location, then the list of them.
    """

    dataset: str
    location: str
    local: Path
    mirrored: str | None = None
    locked: Path | None = None
    has_media_headers: bool = True
    identity: tuple[str, ...]

    @classmethod
    def of(cls, folder: DataFolder) -> ColumnFolder:
        return cls(
            dataset=folder.bare or folder.location,
            location=f"{columnar_folder(folder.local)}" if folder.bare else folder.shard(_COLUMNAR),
            local=columnar_folder(folder.local),
            mirrored=folder.location if folder.is_mirrored else None,
            locked=folder.local / META_FOLDER,
            identity=(folder.location, folder.bare or ""),
        )

    @classmethod
    def beside(cls, dataset: str, location: str) -> ColumnFolder:
        """The folder at `location`, of data without preparation. For a URL, updates `columns.json`.

        Raises ReadError.
        """
        place = cls(
            dataset=dataset, location=location, local=Path(location), has_media_headers=False, identity=(dataset,)
        )
        if not is_url(location):
            return place
        mirror = mirror_of(location)
        with mirror.locked():
            mirror.refresh([COLUMNS_JSON])
        return replace(place, local=mirror.folder, mirrored=location)

    @property
    def is_read_only(self) -> bool:
        """Whether the data are on a web server or the Hub, which are read-only."""
        where = self.identity[0]
        return is_url(where) and address_of(where, storage_settings()).kind in ("http", "hub")

    @property
    def read_only_note(self) -> str:
        """Addition to messages about columns that each machine stores for itself."""
        if not self.is_read_only:
            return ""
        return ". The data are read-only, so each machine stores its own columns: measure on every host"

    @property
    def machine_local(self) -> ColumnFolder:
        """The folder in the cache folder of this machine, the same one for all commits of a Hub dataset.

        The content id alone is insufficient: it depends on the sizes of samples, not on their content.
        """
        known = [without_revision(each) if is_url(each) else os.path.realpath(each) for each in self.identity]
        digest = hashlib.blake2b("\0".join(known).encode("utf-8", "surrogateescape"), digest_size=16)
        local = Path(os.path.dirname(storage_settings().cache_folder), "columns", digest.hexdigest())
        return replace(self, location=str(local), local=local, mirrored=None, locked=None)

    def writable(self) -> ColumnFolder:
        """This folder if it is writable, else the one in the cache folder. Creates it."""
        if self.is_read_only or (self.mirrored is None and not is_writable(self.local)):
            return self.machine_local
        return self

    def read(self) -> dict[str, StoredColumn]:
        """The columns with files, including those of other samples. Raises IndexFileError."""
        path, where = self.local / COLUMNS_JSON, join(self.location, COLUMNS_JSON)
        repair_advice = f"remove it, and create the columns again; {self._creation_advice}"
        try:
            found = _FILE.from_json(path.read_bytes())
        except (FileNotFoundError, NotADirectoryError):
            return {}
        except msgspec.MsgspecError as error:
            raise IndexFileError(f"{where}: {error}; {repair_advice}") from error
        if found.version > _VERSION:
            raise IndexFileError(
                f"{where}: has version {found.version}, but this release of energon-grain reads versions up to "
                f"{_VERSION}; install a newer release"
            )
        if found.header_checksum != header_digest(found):
            raise IndexFileError(f"{where}: is damaged (checksum mismatch); {repair_advice}")
        return found.columns

    def refuse_unknown(self, names: Iterable[str]) -> None:
        """Raise KeyNotFoundError for a name that neither a column of any samples nor a size of a part can have.

        Needs no samples. Also raises IndexFileError.
        """
        known = {SIZES: None, **self.read(), **self.machine_local.read()}
        for name in names:
            if name not in known and not name.startswith(f"{SIZES}."):
                raise KeyNotFoundError(f"{self.dataset}: {self.no_column(name, known)}")

    def no_column(self, name: str, known: Iterable[str]) -> str:
        """Message for a missing column, with the existing ones and the command that creates it."""
        made_by = self._creation_advice.replace("NAME=", f"{name}=").replace("creates any", "creates it")
        return f"no column {name!r}; the columns are {', '.join(known)}; {made_by}{self.read_only_note}"

    def open(self, name: str, stored: StoredColumn, samples: int) -> tuple[npt.NDArray[Any], BlockSums]:
        """Map a column, (samples,), with its checksums. The file of one in an object store is copied first.

        Raises IndexFileError and ReadError.
        """
        path = self.local / COLUMNS_FOLDER / stored.file
        where = join(self.location, f"{COLUMNS_FOLDER}/{stored.file}")
        repair_advice = f"create the column {name!r} again: {stored.made_by(name, self.dataset)}"
        rows, checksum, block_sums = stored.column.rows, stored.column.checksum, stored.column.block_sums
        again: Callable[[], None] | None = None
        if self.mirrored is not None:
            mirror = mirror_of(self.mirrored)
            own = path.relative_to(mirror.folder).as_posix()
            with mirror.locked():
                self._remove_others(path.parent)
                mirror.copy_file(own, path, stored.size_bytes)

            def fetch_again() -> None:
                with mirror.locked():
                    mirror.fetch_again(own, stored.size_bytes)

            again = fetch_again
        try:
            if rows != samples:
                raise IndexFileError(f"{where}: has {rows} rows, but the dataset has {samples} samples")
            column = read_column(path, stored.dtype, samples, block_sums=block_sums)
        except (FileNotFoundError, IndexFileError) as error:
            raise IndexFileError(f"{where}: the column {name!r} cannot be opened: {error}; {repair_advice}") from error
        sums = BlockSums(
            path,
            column,
            checksum=checksum,
            block_sums=block_sums,
            where=where,
            repair_advice=repair_advice,
            fetch_again=again,
        )
        return column, sums

    def put_in_place(self, staging: Path, *, put: Sequence[str], remove: Sequence[str]) -> None:
        """Move the files from `ColumnStage.finish` into the folder. `columns.json`, the last one, commits the change.

        Raises ReadError.
        """
        if self.mirrored is not None:
            client = shared_client(storage_settings())
            for name in put:
                client.write(join(self.location, name), (staging / name).read_bytes())
            client.map(client.delete, [join(self.location, name) for name in remove])
            return
        (self.local / COLUMNS_FOLDER).mkdir(parents=True, exist_ok=True)
        for name in put:
            if name == COLUMNS_JSON:
                sync_folder(self.local / COLUMNS_FOLDER)
            os.replace(staging / name, self.local / name)
        sync_folder(self.local)
        for name in remove:
            (self.local / name).unlink(missing_ok=True)

    @property
    def _creation_advice(self) -> str:
        measuring = f"`energon-grain measure {self.dataset} --column NAME=module:function` creates any"
        if not self.has_media_headers:
            return measuring
        return (
            f"{measuring}, and `energon-grain prepare-media {self.dataset} "
            "--media-metadata-by-extension` creates those of media"
        )

    def _remove_others(self, copies: Path) -> None:
        named = {each.file for each in self.read().values()}
        for old in copies.glob("*.npy"):
            if old.name not in named:
                old.unlink(missing_ok=True)


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """The samples that columns belong to.

    Attributes:
        content_id: Their content id; columns with another one are stale.
        samples: Number of samples.
        parts: Names of the parts with known sizes.
        earlier: The content ids of the dataset before each time that shards were appended.
        sizes: (n,) sizes in bytes for sample numbers, or a slice, of the part with this index in `parts`; None: of all
            parts. Raises IndexFileError. None instead of the function: sizes are not available this way.
        release: Releases the memory used for looking up sizes.
    """

    content_id: str
    samples: int
    parts: tuple[str, ...]
    earlier: tuple[str, ...] = ()
    sizes: Callable[[Int64Array | slice, int | None], Int64Array] | None = None
    release: Callable[[], None] = lambda: None

    @classmethod
    def of(cls, index: ColumnarIndex) -> Measured:
        return cls(
            content_id=index.content_id,
            samples=len(index),
            parts=index.part_names,
            earlier=tuple(content_id for _, content_id in index.earlier),
            sizes=partial(_part_sizes, index),
            release=index.release,
        )


def _part_sizes(index: ColumnarIndex, samples: Int64Array | slice, part: int | None) -> Int64Array:
    run = isinstance(samples, slice)
    index.check(np.arange(samples.start, samples.stop) if run else samples)
    first = np.asarray(index.part_start[samples])
    if run:
        start = np.asarray(index.part_start[samples.start : samples.stop + 1])
        rows: Any = slice(start[0], start[-1])
        count = np.diff(start)
    else:
        count = np.asarray(index.part_start[samples + 1]) - first
        rows = np.arange(int(count.sum())) + np.repeat(first - (np.cumsum(count) - count), count)
    size = np.asarray(index.part_size[rows])
    if part is not None:
        size = np.where(np.asarray(index.part_name[rows]) == part, size, 0)
    ends = np.cumsum(count)
    running = np.concatenate([[0], np.cumsum(size, dtype=np.int64)])
    return running[ends] - running[ends - count]  # not `reduceat`: a sample may have no parts


class KeptColumns:
    """All columns stored beside a dataset: measured ones, and the sizes of parts.

    Those with files are memory maps, verified by their checksums on access. Samples without a number have NaN. A column
    stored for this machine only takes precedence over one beside the data.

    Attributes:
        folder: Folder of the files beside the data.
        stored: Descriptions of the columns with files.
    """

    def __init__(self, folder: ColumnFolder, of: Measured) -> None:
        self.folder, self._of = folder, of
        self._all: dict[str, StoredColumn] = {}
        self._places: dict[str, ColumnFolder] = {}
        for place in (folder, folder.machine_local):
            for name, each in place.read().items():
                if name not in self._all or each.content_id == of.content_id:
                    self._all[name], self._places[name] = each, place
        self.stored = {name: each for name, each in self._all.items() if each.content_id == of.content_id}
        self._open: dict[str, tuple[npt.NDArray[Any], BlockSums]] = {}
        self._parts: dict[str, int | None] = {} if of.sizes is None else {SIZES: None}
        self._parts |= {f"{SIZES}.{part}": number for number, part in enumerate(of.parts)}
        self._names = tuple(dict.fromkeys((*self._parts, *self.stored)))

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    @property
    def stale(self) -> tuple[str, ...]:
        """Names of columns that belong to other samples."""
        return tuple(name for name in self._all if name not in self.stored)

    @property
    def samples(self) -> int:
        return self._of.samples

    @property
    def content_id(self) -> str:
        return self._of.content_id

    def at(self, name: str, samples: Int64Array | slice) -> npt.NDArray[Any]:
        """(n,) values of a column for samples, by their numbers in the whole dataset.

        Args:
            samples: (n,) in [0, N), not checked; or a slice with explicit start and stop, for which stored columns are
                returned as views of the mapping.

        Raises:
            KeyNotFoundError: The column does not exist, or belongs to other samples.
            IndexFileError: Its file is damaged.
        """
        if name in self.stored:
            column, sums = self._opened(name)
            if isinstance(samples, slice):
                sums.check(samples.start, samples.stop)
            else:
                sums.check_rows(samples)
            return column[samples]
        if name not in self._parts:
            raise self.no_column(name)
        part, sizes = self._parts[name], self._of.sizes
        assert sizes is not None
        if not isinstance(samples, slice):
            return sizes(samples, part)
        found = np.empty(samples.stop - samples.start, np.int64)
        for begin in range(samples.start, samples.stop, _BLOCK_SAMPLES):
            stop = min(begin + _BLOCK_SAMPLES, samples.stop)
            found[begin - samples.start : stop - samples.start] = sizes(slice(begin, stop), part)
            self._of.release()
        return found

    def id(self, name: str) -> str:
        """Digest that changes with the numbers of a column. Raises as `at` does."""
        if name in self.stored:
            self._opened(name)  # keeps this version open if the column is measured again
            return self.stored[name].column.checksum
        if name not in self._parts:
            raise self.no_column(name)
        return self._of.content_id

    def used(self) -> dict[str, str]:
        """Ids of the stored columns that were used: another process must find the same ones."""
        return {name: self.stored[name].column.checksum for name in self._open}

    def require(self, used: Mapping[str, str]) -> None:
        """Raise StaleIndexError unless the columns are those that `used` returned in another process."""
        for name, before in used.items():
            if self.id(name) != before:
                raise StaleIndexError(
                    f"{self.folder.dataset}: the column {name!r} was measured again with other numbers after the "
                    "parent process opened it; restart, and do not measure a column that a run uses"
                )

    def id_of_first(self, name: str, samples: int, content_id: str) -> str:
        """The `id` that the column had when the dataset had only its first samples. Reads them. Raises as `at` does.

        Args:
            content_id: Content id of the dataset at that time.
        """
        if name not in self.stored:
            return content_id if name in self._parts else self.id(name)
        digest = hashlib.blake2b(digest_size=16)  # as `ColumnWriter.checksum`
        for begin in range(0, samples, _BLOCK_SAMPLES):
            block = self.at(name, slice(begin, min(begin + _BLOCK_SAMPLES, samples)))
            digest.update(np.ascontiguousarray(block).data.cast("B"))
            release_pages(self._opened(name)[0])
        return digest.hexdigest()

    def of_first(self, name: str) -> tuple[StoredColumn, npt.NDArray[Any]] | None:
        """The column of the samples that existed before shards were appended; None without one.

        Raises IndexFileError.
        """
        stored = self._all.get(name)
        if stored is None or stored.content_id not in self._of.earlier:
            return None
        column, sums = self._places[name].open(name, stored, stored.column.rows)
        sums.check(0, len(column))
        return stored, column

    def _opened(self, name: str) -> tuple[npt.NDArray[Any], BlockSums]:
        if name not in self._open:
            self._open[name] = self._places[name].open(name, self.stored[name], self.samples)
        return self._open[name]

    def refuse_stale(self, name: str) -> None:
        """Raise KeyNotFoundError if a column with this name belongs to other samples."""
        if name in self.stale:
            raise KeyNotFoundError(
                f"{self.folder.dataset}: the column {name!r} belongs to other samples; create it again: "
                f"{self.made_by(name)}"
            )

    def made_by(self, name: str) -> str:
        """The command that creates a column with a file, stale or not."""
        return self._all[name].made_by(name, self.folder.dataset)

    def no_column(self, name: str) -> KeyNotFoundError:
        """The error for a name that no column has. Raises KeyNotFoundError if one of other samples has it."""
        self.refuse_stale(name)
        why = self.folder.no_column(name, self)
        if name.startswith(f"{SIZES}."):
            why = f"no part {name.removeprefix(f'{SIZES}.')!r}; the parts are {', '.join(self._of.parts)}"
        return KeyNotFoundError(f"{self.folder.dataset}: {why}")


@dataclass(slots=True)
class _New:
    file: str
    dtype: np.dtype[Any]
    function: str
    version: int
    parts: tuple[str, ...]
    writer: ColumnWriter


class ColumnStage:
    """New columns of a dataset, written into an empty folder from which a commit moves them into place."""

    def __init__(self, folder: ColumnFolder, staging: Path) -> None:
        self._folder, self._staging = folder, staging
        (staging / COLUMNS_FOLDER).mkdir(parents=True, exist_ok=True)
        self._new: dict[str, _New] = {}

    def new(
        self,
        name: str,
        dtype: npt.DTypeLike = np.float64,
        *,
        function: str,
        version: int,
        parts: tuple[str, ...] = (),
    ) -> ColumnWriter:
        """Begin a column, and return its writer."""
        file = f"{quote(name, safe='')[:_LONGEST_NAME]}-{secrets.token_hex(8)}.npy"
        writer = ColumnWriter(self._staging / COLUMNS_FOLDER / file, dtype)
        self._new[name] = _New(file, np.dtype(dtype), function, version, parts, writer)
        return writer

    def drop(self, name: str) -> None:
        """Discard a new column."""
        new = self._new.pop(name)
        new.writer.close()
        (self._staging / COLUMNS_FOLDER / new.file).unlink()

    def finish(self, content_id: str, *, fill: bool = False) -> tuple[list[str], list[str]]:
        """Close all columns, and write the file that lists them together with the existing ones.

        With `fill`, missing numbers are copied from the existing column of this name, if that has the same samples and
        version of the function and is not damaged. Returns the names in the folder to move into place, in order, and
        those to remove.
        """
        old = self._folder.read()
        stored: dict[str, StoredColumn] = {}
        for name in [*self._new]:
            new, before = self._new[name], old.get(name)
            new.writer.close()
            made = content_id, new.function, new.version
            if fill and before is not None and (before.content_id, before.function, before.version) == made:
                new = self._filled(name, new, before)
            writer = new.writer
            stored[name] = StoredColumn(
                file=new.file,
                dtype=new.dtype.name,
                column=Column(writer.rows, writer.checksum, writer.block_sums),
                content_id=content_id,
                function=new.function,
                version=new.version,
                parts=new.parts,
            )
        named = _ColumnsFile(columns={**old, **stored})
        named = msgspec.structs.replace(named, header_checksum=header_digest(named))
        (self._staging / COLUMNS_JSON).write_bytes(encode_json(named) + b"\n")
        with open(self._staging / COLUMNS_JSON, "rb") as file:
            os.fsync(file.fileno())
        put = [f"{COLUMNS_FOLDER}/{each.file}" for each in stored.values()] + [COLUMNS_JSON]
        return put, [f"{COLUMNS_FOLDER}/{old[name].file}" for name in stored if name in old]

    def _filled(self, name: str, new: _New, before: StoredColumn) -> _New:
        rows = new.writer.rows
        try:
            held, sums = self._folder.open(name, before, rows)
            sums.check(0, rows)
        except IndexFileError as error:
            _logger.warning("the existing numbers of a column are not reused: %s", error)
            return new
        path = self._staging / COLUMNS_FOLDER / new.file
        found = read_column(path, new.dtype, rows, block_sums=new.writer.block_sums)
        filled = self.new(name, new.dtype, function=new.function, version=new.version)
        for begin in range(0, rows, _BLOCK_SAMPLES):
            piece = found[begin : begin + _BLOCK_SAMPLES]
            filled.append(np.where(np.isnan(piece), held[begin : begin + _BLOCK_SAMPLES], piece))
        filled.close()
        path.unlink()
        return self._new[name]
