# SPDX-License-Identifier: Apache-2.0
"""Local copies of the small files of a remote folder: files that are read whole, or memory-mapped.

A mirror is in the cache folder; its name identifies the remote folder. Several processes may use it at once: files are
written atomically, and one process at a time updates it. Mirrors of the Hub, one per commit, are removed after 30 days
without use.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import logging
import os
import shutil
from collections.abc import Collection, Generator, Mapping
from pathlib import Path
from urllib.parse import quote

import msgspec

from energon_grain.atomic_files import atomic_write_bytes, locked_at, open_unlinked, remove_unused, sync_folder
from energon_grain.errors import ConfigError, EnergonGrainError, MissingObjectError, ReadError
from energon_grain.forms import Form
from energon_grain.storage.location import join, located, name_of
from energon_grain.storage.remote import ObjectRange
from energon_grain.storage.settings import storage_settings
from energon_grain.stores.addresses import address_of
from energon_grain.stores.hub import UNUSED_S
from energon_grain.stores.object_client import ObjectClient, shared_client

_logger = logging.getLogger("energon_grain")
_NOTES_NAME = ".mirror.json"
_LOCK = ".mirror.lock"
_NOTES = Form(dict[str, tuple[bytes, bytes]])
"""Generation of each copied file, and BLAKE2b-128 of its content."""


def mirror_of(url: str) -> Mirror:
    """The copy of a remote folder, with the client of this process."""
    return Mirror(url, shared_client(storage_settings()))


class Mirror:
    """The copy of a remote folder.

    Raises:
        ReadError: The Hub does not return a commit.

    Attributes:
        url: As given, without trailing slashes; for the Hub, with the commit.
        folder: Local folder of the copies, with the same relative paths.
    """

    def __init__(self, url: str, client: ObjectClient) -> None:
        self.url = client.pinned(located(url))
        self._client = client
        address = address_of(self.url, client.settings)
        # The full address, not the URL: programs may use one URL for several places.
        place = (address.kind, address.store.endpoint, address.bucket, address.key)
        name = f"{quote(name_of(address.key or address.bucket))[:100]}-{_sum(repr(place).encode()).hex()}"
        self._is_of_hub = address.kind == "hub"
        self.folder = Path(client.settings.cache_folder, "hub-mirror" if self._is_of_hub else "mirror", name)
        if self._is_of_hub:
            with contextlib.suppress(OSError):
                os.utime(self.folder)

    @contextlib.contextmanager
    def locked(self) -> Generator[None]:
        """Hold the exclusive lock for updates of the mirror. Raises ConfigError if its folder is not writable."""
        try:
            if self._is_of_hub and not self.folder.exists():
                remove_unused(self.folder.parent, UNUSED_S)
            self.folder.mkdir(parents=True, exist_ok=True)
            with locked_at(self.folder / _LOCK):  # without locks, files are read twice
                yield
        except OSError as error:
            if isinstance(error, EnergonGrainError):
                raise
            raise ConfigError(
                f"{self.url} cannot be mirrored in {self.folder}: {error.strerror or error}; set `cache_dir` in the "
                "storage settings to a writable folder on a disk with free space"
            ) from error

    def refresh(self, names: Collection[str]) -> dict[str, bool]:
        """Update files; unchanged ones are not read again. Call while `locked`.

        Damaged copies are replaced.

        For files that do not exist remotely, copies are removed, but not files created locally.

        Returns:
            The existing files, and whether each changed.

        Raises ReadError: the store cannot be reached.
        """
        notes = self._notes()
        before = dict(notes)

        def copy(name: str) -> tuple[str, bool | None]:
            target = self.folder / name
            held = target.read_bytes() if target.is_file() else None
            generation, expected = notes.get(name, (None, b""))
            known = generation if held is not None and _sum(held) == expected else None
            found = self._client.read(ObjectRange(join(self.url, name), known=known))
            if found is None:
                if notes.pop(name, None) is not None:
                    target.unlink(missing_ok=True)
                return name, None
            if found.data is None:
                return name, False
            changed = held != found.data
            if changed:
                target.parent.mkdir(parents=True, exist_ok=True)
                atomic_write_bytes(target, found.data)
            notes[name] = found.generation, _sum(found.data)
            return name, changed

        try:
            changes = self._client.map(copy, sorted(names))
        finally:
            if notes != before:
                atomic_write_bytes(self.folder / _NOTES_NAME, msgspec.json.encode(notes))
        return {name: changed for name, changed in changes if changed is not None}

    def is_whole(self) -> bool:
        """Whether copies made by `refresh` are still intact, or gone."""
        copies = ((self.folder / name, expected) for name, (_, expected) in self._notes().items())
        return all(_sum(path.read_bytes()) == expected for path, expected in copies if path.is_file())

    def copy_folder(self, name: str, sizes: Mapping[str, int]) -> None:
        """Copy immutable files of known sizes, unless they exist. Call while `locked`.

        Args:
            name: Their folder, relative to the mirrored one. It is written atomically.
            sizes: Size of each file, in bytes.

        Raises ReadError: a file is missing, has another size, or cannot be read.
        """
        target = self.folder / name
        if all((target / file).is_file() and (target / file).stat().st_size == size for file, size in sizes.items()):
            return
        temporary = target.with_name(f".{target.name}.tmp")
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        try:
            self._copy({temporary / file: (f"{name}/{file}", size) for file, size in sizes.items()})
            sync_folder(temporary)
            shutil.rmtree(target, ignore_errors=True)
            os.rename(temporary, target)
            sync_folder(target.parent)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)

    def copy_file(self, name: str, target: Path, size_bytes: int) -> None:
        """Copy an immutable file, unless it exists. Call while `locked`.

        Args:
            name: Name of the file, relative to the mirrored folder.
            target: Path of the copy. It is written atomically.

        Raises ReadError: the file is missing, has another size, or cannot be read.
        """
        if target.is_file() and target.stat().st_size == size_bytes:
            return
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = target.with_name(f".{target.name}.tmp")
        try:
            self._copy({temporary: (name, size_bytes)})
            os.replace(temporary, target)
        finally:
            temporary.unlink(missing_ok=True)
        sync_folder(target.parent)

    def fetch_again(self, name: str, size_bytes: int) -> None:
        """Rewrite a copied file in place, so that open memory maps see it. Call while `locked`.

        Raises ReadError if it is missing, or cannot be read.
        """
        _logger.warning("%s: the copy of %s/%s is damaged; fetching it again", self.folder / name, self.url, name)
        self._copy({self.folder / name: (name, size_bytes)})

    def _copy(self, files: Mapping[Path, tuple[str, int]]) -> None:
        """Write files, given the name (relative to the mirrored folder) and size of each, and flush them to disk."""
        step = self._client.settings.request_bytes
        for path, (_, size) in files.items():
            with open(path, "ab", opener=open_unlinked) as file:
                file.truncate(size)

        def copy(piece: tuple[Path, int]) -> None:
            path, start = piece
            name, size = files[path]
            wanted = ObjectRange(join(self.url, name), start, min(start + step, size))
            found = self._client.read(wanted)
            if found is None:
                raise MissingObjectError(f"{wanted.url}: no such object, but the index lists it; upload it again")
            if found.size_bytes != size:
                raise ReadError(
                    f"{wanted.url}: has {found.size_bytes} bytes, but the index lists {size}; "
                    "run `energon-grain prepare` again"
                )
            # Opened again: after a failure this thread may run on although the files are gone.
            with open(path, "r+b", opener=open_unlinked) as file:
                if os.pwritev(file.fileno(), found.pieces, start) != found.received_bytes:  # disk full
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        self._client.map(copy, [(path, start) for path, (_, size) in files.items() for start in range(0, size, step)])
        for path in files:
            with open(path, "r+b", opener=open_unlinked) as file:
                os.fsync(file)  # else a power cut may leave zeros under a correct name and size

    def _notes(self) -> dict[str, tuple[bytes, bytes]]:
        try:
            with open(self.folder / _NOTES_NAME, "rb", opener=open_unlinked) as file:
                return _NOTES.from_json(file.read())
        except (OSError, msgspec.MsgspecError):
            return {}


def _sum(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=16).digest()
