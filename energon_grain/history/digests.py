# SPDX-License-Identifier: Apache-2.0
"""Digests of the files of any dataset: which files, where their digests are kept, and the root over them.

A kind of data lists its files (`Rows.data_files`). Their digests are in one `digests.json` (see `storage.digests`) in
the folder of the dataset's columns, or in `PATH.columns` for kinds without columns.

The digest of a file is XXH3-128. On one core of the machine of the benchmarks it takes 0.05 s per GB; BLAKE2b takes
1.1 s and SHA-256 0.6 s, more than the scan of a shard (0.3 to 1 s), which it must not slow down. XXH3 detects every
accidental change, and is no protection against an attacker who makes shards with equal digests. The few roots above are
BLAKE2b-128.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any

import xxhash

from energon_grain.atomic_files import atomic_write_bytes
from energon_grain.errors import ConfigError, StaleIndexError
from energon_grain.formats.columns import ColumnFolder, KeptColumns
from energon_grain.formats.data_folder import open_folder
from energon_grain.formats.nv_meta import META_FOLDER, RECORDS_JSON
from energon_grain.sources.kinds import kind_at
from energon_grain.sources.rows import rows_of
from energon_grain.storage.cores import usable_cores
from energon_grain.storage.digests import (
    DIGESTS_JSON,
    Digests,
    ShardDigest,
    decode_digests,
    digest_read,
    encode_digests,
)
from energon_grain.storage.location import is_url, join
from energon_grain.storage.remote import read_whole, scan_object, shared_client
from energon_grain.storage.settings import storage_settings

CONFIGURATION = ("dataset.yaml", "split.yaml", "split.json", RECORDS_JSON)
"""The files in `.nv-meta` that configure a prepared dataset."""
Notify = Callable[[int], None]
"""Called with a number of bytes that were just read, from any thread, one call at a time."""
_READ_BYTES = 4 << 20
_MOST_THREADS = 16
_LISTED = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class FileDigest:
    """Size and XXH3-128 digest, in hex, of a file."""

    size_bytes: int
    digest: str


@dataclass(frozen=True, kw_only=True, slots=True)
class DataFiles:
    """The files of a dataset.

    Attributes:
        path: Path or URL of the dataset.
        named: The same as the user writes it, for messages and commands.
        files: Path or URL of each file, by name, in order.
        folder: Folder of the digests.
    """

    path: str
    named: str
    files: Mapping[str, str]
    folder: ColumnFolder

    @classmethod
    def of(cls, source: Any) -> Iterator[DataFiles]:
        """The datasets behind a source: itself, or the members that it combines; none if its files are unknown.

        Raises ConfigError.
        """
        holder = rows_of(source) or source
        if members := getattr(holder, "members", ()):
            for member in members:
                yield from cls.of(member)
            return
        if is_removed(holder):
            return
        files = getattr(holder, "data_files", None)
        if files is None:
            raise ConfigError(
                f"{source.path}: does not list its files, so there can be no digests of them; give its class the "
                f"property `data_files`, as `Rows` has"
            )
        kept = getattr(holder, "kept", None)
        path = os.fspath(holder.path)
        folder = kept.folder if isinstance(kept, KeptColumns) else _beside(path)
        yield cls(path=path, named=folder.dataset, files=files, folder=folder)

    def kept(self) -> dict[str, FileDigest] | None:
        """The digests that `prepare` or `measure` stored; None without any.

        Raises:
            StaleIndexError: They are of other files, or of other sizes.
            IndexFileError: Their file is damaged.
        """
        differs: str | None = None
        for found in self.stored():
            differs = self._difference(found)
            if differs is None:
                return found
        if differs is not None:
            raise StaleIndexError(f"{self.named}: the stored digests are outdated: {differs}; {self.remedy}")
        return None

    def stored(self) -> Iterator[dict[str, FileDigest]]:
        """The stored digests, outdated or not: those beside the data, then those of this machine.

        Raises IndexFileError: Their file is damaged.
        """
        for place in (self.folder, self.folder.machine_local):
            where = join(place.location, DIGESTS_JSON)
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                shards = decode_digests(read_whole(where), where).shards
                yield {
                    name: FileDigest(size_bytes=each.size_bytes, digest=each.digest) for name, each in shards.items()
                }

    @property
    def size_bytes(self) -> int:
        """Size of all files that exist; objects in stores count as 0."""
        found = 0
        for location in self.files.values():
            with contextlib.suppress(OSError):
                found += 0 if is_url(location) else os.stat(location).st_size
        return found

    @property
    def remedy(self) -> str:
        """The command that stores digests."""
        return f"run `energon-grain measure {self.named} --digest`"

    def _difference(self, found: Mapping[str, FileDigest]) -> str | None:
        """The first difference of names and (for local files) sizes from the present ones; None without any."""
        for name in found.keys() ^ self.files.keys():
            return f"{name} {'was removed' if name in found else 'is not among them'}"
        if list(found) != list(self.files):
            return "the order of the files changed"
        for name, location in self.files.items():
            if not is_url(location) and (size := os.stat(location).st_size) != found[name].size_bytes:
                return f"{name} has {size} bytes, but had {found[name].size_bytes}"
        return None

    def configuration(self) -> dict[str, str]:
        """Digest, in hex, of each file in `.nv-meta` that configures the dataset, by name."""
        if not kind_at(self.path).is_configured:
            return {}
        folder = open_folder(self.path).local / META_FOLDER
        return {name: root_of((folder / name).read_bytes()) for name in CONFIGURATION if (folder / name).is_file()}

    def store(self, notify: Notify = lambda _: None) -> int:
        """Read all files, and store their digests; returns their size in bytes. Raises OSError and ReadError."""
        found = dict(self._each(_digested, notify))
        data = encode_digests(Digests(shards=found))
        folder = self.folder.writable()
        if folder.mirrored is not None:
            shared_client(storage_settings()).write(join(folder.location, DIGESTS_JSON), data)
        else:
            folder.local.mkdir(parents=True, exist_ok=True)
            atomic_write_bytes(folder.local / DIGESTS_JSON, data)
        return sum(each.size_bytes for each in found.values())

    def now(self, notify: Notify = lambda _: None) -> dict[str, FileDigest | None]:
        """The digests of the files as they are now; None for files that do not exist. Raises OSError and ReadError."""
        return dict(self._each(_hashed, notify))

    def _each(self, function: Callable[[str, Notify], Any], notify: Notify) -> Iterable[tuple[str, Any]]:
        lock = Lock()

        def count(size_bytes: int) -> None:
            with lock:
                notify(size_bytes)

        remote = any(map(is_url, self.files.values()))
        threads = min(_MOST_THREADS if remote else usable_cores(), _MOST_THREADS, len(self.files) or 1)
        if threads == 1:
            return [(name, function(location, count)) for name, location in self.files.items()]
        with ThreadPoolExecutor(threads, "energon_grain-digests") as pool:
            found = pool.map(lambda location: function(location, count), self.files.values())
            return list(zip(self.files, found, strict=True))


def is_removed(source: Any) -> bool:
    """Whether a source stands for data that were removed from a run."""
    return getattr(source, "data_files", source) is None


def datasets_of(sources: Iterable[Any]) -> list[DataFiles]:
    """The datasets behind sources, each once, in order. Raises ConfigError."""
    found: dict[tuple[str, tuple[str, ...]], DataFiles] = {}
    for source in sources:
        for each in DataFiles.of(source):
            found.setdefault((each.path, tuple(each.files)), each)
    return list(found.values())


def root_of(value: Any) -> str:
    """BLAKE2b-128, in hex, of bytes, or of the canonical JSON of a value: sorted keys, no spaces."""
    data = value if isinstance(value, bytes) else canonical(value).encode("utf-8", "surrogatepass")
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def canonical(value: Any) -> str:
    """A value as JSON with sorted keys and no spaces: equal values have equal text."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def data_root(digests: Mapping[str, FileDigest]) -> str:
    """The root over the files of a dataset, in order: name, size and digest of each."""
    return root_of([[name, each.size_bytes, each.digest] for name, each in digests.items()])


def several(names: Sequence[str]) -> str:
    """The first few of some names, and how many others there are."""
    more = f" and {len(names) - _LISTED:,} more" if len(names) > _LISTED else ""
    return f"{', '.join(names[:_LISTED])}{more}"


def _beside(path: str) -> ColumnFolder:
    location = f"{path}.columns"
    return ColumnFolder(
        dataset=path,
        location=location,
        local=Path(location),
        mirrored=location if is_url(location) else None,
        has_media_headers=False,
        identity=(path,),
    )


@contextlib.contextmanager
def _opened(location: str, notify: Notify) -> Generator[Callable[[int], bytes]]:
    """A function that reads a file or an object from start to end, at most as many bytes as requested at a time."""
    at = 0
    with contextlib.ExitStack() as stack:
        if is_url(location):
            data = stack.enter_context(contextlib.closing(scan_object(location)))
            read_at = data.read_sequential
        else:
            file = stack.enter_context(open(location, "rb", buffering=0))

            def read_at(offset: int, size_bytes: int) -> bytes:
                del offset
                return file.read(size_bytes)

        def read(size_bytes: int) -> bytes:
            nonlocal at
            piece = read_at(at, size_bytes)
            at += len(piece)
            notify(len(piece))
            return piece

        yield read


def _digested(location: str, notify: Notify) -> ShardDigest:
    with _opened(location, notify) as read:
        return digest_read(read)


def _hashed(location: str, notify: Notify) -> FileDigest | None:
    try:
        with _opened(location, notify) as read:
            whole, size_bytes = xxhash.xxh3_128(), 0
            while piece := read(_READ_BYTES):
                whole.update(piece)
                size_bytes += len(piece)
    except FileNotFoundError:
        return None
    return FileDigest(size_bytes=size_bytes, digest=whole.hexdigest())
