# SPDX-License-Identifier: Apache-2.0
"""`EPath`: a local path or a URL, with the methods of `pathlib` that apply to both."""

from __future__ import annotations

import io
import os
import re
import shutil
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import lru_cache, total_ordering
from pathlib import Path, PurePosixPath
from typing import IO, Any, BinaryIO, Literal, NamedTuple, TextIO, overload

from energon_grain.errors import ConfigError, MissingObjectError, RangeError, public
from energon_grain.storage.location import absolute, located
from energon_grain.storage.remote import (
    ObjectClient,
    ObjectRange,
    address_of,
    create_object,
    open_object,
    read_whole,
    remote_files,
    shared_client,
)
from energon_grain.storage.settings import storage_settings
from energon_grain.storage.urls import is_url, scheme_of

_BUFFER_BYTES = 1 << 20
_PLAIN_FOLDERS = re.compile(r"(?:[^*?\[/.][^*?\[/]*/)*")
"""The folders that a pattern names before its first special character."""


class FileStat(NamedTuple):
    """Metadata of a file.

    Attributes:
        content_length: Its size in bytes.
        last_modified: Its modification time, in UTC.
    """

    content_length: int
    last_modified: datetime


@public
@total_ordering
class EPath:
    """The location of a file or folder: local, or in an object store. Immutable.

    `str(path)` is an absolute path or a URL, which all functions and commands accept. A pickle holds only that text:
    each process looks up settings and credentials itself. `dss://name@version` is a local folder (`local_path()`,
    `os.fspath`), but keeps its URL as text.

    Object stores have no folders: a folder exists as long as there is an object below it.

    Args:
        initial_path: A path, relative to the working folder, or a URL: `s3://bucket/folder`, `gs://`, `https://`,
            `file://`, `memory://`, `msc://profile/path`, …

    Raises:
        ConfigError: `..` leads out of the bucket, or a `dss://` URL is not configured.
    """

    __slots__ = ("_location", "_written")
    _location: str
    _written: str

    def __init__(self, initial_path: str | os.PathLike[str]) -> None:
        text = initial_path._written if isinstance(initial_path, EPath) else os.fspath(initial_path)
        if scheme_of(text) == "dss":
            text = absolute(".", text)
            address_of(text, storage_settings())  # raises if it is not configured
        location = located(text)
        location = absolute(".", location) if is_url(location) else os.path.abspath(location)
        self._set(location, text if scheme_of(text) == "dss" else location)

    def _set(self, location: str, written: str) -> None:
        object.__setattr__(self, "_location", location)
        object.__setattr__(self, "_written", written)

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"an EPath is immutable: {name} cannot be set")

    def __reduce__(self) -> tuple[Any, ...]:
        return EPath, (self._written,)

    def __setstate__(self, state: dict[str, Any]) -> None:
        # As Energon pickles paths: with a profile of the Multi-Storage Client; "default" is the local machine.
        path, profile = str(state["internal_path"]), state["profile"]
        local = profile in ("default", "__filesystem__")
        location = path if local else f"dss:/{path}" if profile == "dss" else f"msc://{profile}{path}"
        self._set(located(location), location)

    def __str__(self) -> str:
        return self._written

    def __fspath__(self) -> str:
        return self._location

    def __repr__(self) -> str:
        return f"EPath({self._written!r})"

    def __hash__(self) -> int:
        return hash(self._written)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, EPath) and other._written == self._written

    def __lt__(self, other: EPath) -> bool:
        return self._written < other._written

    def __truediv__(self, other: str | os.PathLike[str]) -> EPath:
        """A location below; an absolute path or a URL replaces this one."""
        return other if isinstance(other, EPath) else EPath(absolute(os.fspath(other), self._written))

    @property
    def url(self) -> str:
        """The absolute path or URL as text."""
        return self._written

    @property
    def name(self) -> str:
        """The last component."""
        return self._pure.name

    @property
    def display_name(self) -> str:
        """The last component; for `dss://`, name and version."""
        return self._root.partition("://")[2] if scheme_of(self._written) == "dss" else self.name

    @property
    def stem(self) -> str:
        """The last component without its suffix."""
        return self._pure.stem

    @property
    def suffix(self) -> str:
        """The suffix: from the last dot of the last component on."""
        return self._pure.suffix

    @property
    def parent(self) -> EPath:
        """The parent folder; for a bucket or `/`, itself."""
        return self._with(self._pure.parent)

    def with_suffix(self, suffix: str) -> EPath:
        """The path with another suffix."""
        return self._with(self._pure.with_suffix(suffix))

    def with_name(self, name: str) -> EPath:
        """Return the path with another last component."""
        return self._with(self._pure.with_name(name))

    def relative_to(self, other: EPath) -> str:
        """Return the path relative to a folder.

        Raises:
            ValueError: This path is not below the folder.
        """
        if self._root != other._root:
            raise ValueError(f"{self} is not below {other}")
        return str(self._pure.relative_to(other._pure))

    def is_local(self) -> bool:
        """Whether the path is on a local file system."""
        return not is_url(self._location)

    def local_path(self) -> Path:
        """Return the path as a `pathlib.Path`.

        Raises:
            ValueError: The path is in an object store.
        """
        if not self.is_local():
            raise ValueError(f"{self} is in an object store and has no local path")
        return Path(self._location)

    def is_file(self) -> bool:
        """Whether the file or object exists. Raises ReadError if the store cannot be reached."""
        if self.is_local():
            return os.path.isfile(self._location)
        try:
            return _client().read(ObjectRange(self._location, 0, 1)) is not None
        except RangeError:
            return True  # an empty object

    def is_dir(self) -> bool:
        """Whether the folder exists, or an object below it. Lists the whole folder.

        Raises:
            ReadError: The store cannot be reached, or cannot list (`https://`).
        """
        return os.path.isdir(self._location) if self.is_local() else bool(_client().list(self._location))

    def exists(self) -> bool:
        """Whether the file or folder exists. Raises as `is_dir` does."""
        return self.is_file() or self.is_dir()

    def size(self) -> int:
        """Size of the file in bytes.

        Raises:
            FileNotFoundError: It does not exist.
            ReadError: The store cannot be reached.
        """
        return os.path.getsize(self._location) if self.is_local() else remote_files(storage_settings()).size(str(self))

    def stat(self) -> FileStat:
        """Size and modification time of the file.

        Raises:
            FileNotFoundError: It does not exist.
            ReadError: The store cannot be reached.
        """
        if self.is_local():
            found = os.stat(self._location)
            return FileStat(found.st_size, datetime.fromtimestamp(found.st_mtime, UTC))
        there = _client().head(self._location)
        if there is None or there.size_bytes is None or there.modified is None:
            raise MissingObjectError(f"{self}: no such object; check the URL")
        return FileStat(there.size_bytes, there.modified)

    @overload
    def open(
        self, mode: Literal["r", "w"] = "r", block_size: int | None = None, prefetch_file: bool = False
    ) -> TextIO: ...

    @overload
    def open(
        self, mode: Literal["rb", "wb"], block_size: int | None = None, prefetch_file: bool = False
    ) -> BinaryIO: ...

    def open(
        self, mode: Literal["r", "rb", "w", "wb"] = "r", block_size: int | None = None, prefetch_file: bool = False
    ) -> IO[Any]:
        """Open the file; text is UTF-8, line ends are not translated.

        An object is read in ranges of 1 MiB or more. It is written as a whole when the file is closed, and not at all
        if the `with` block fails.

        Args:
            mode: `r`, `rb`, `w` or `wb`.
            block_size: Ignored.
            prefetch_file: Fetch the whole file at once.

        Raises:
            ConfigError: The mode is unsupported.
            FileNotFoundError: The file does not exist.
            ReadError: The store cannot be reached.
        """
        if mode not in ("r", "rb", "w", "wb"):
            raise ConfigError(f"{self}: mode {mode!r} is unsupported; expected r, rb, w or wb")
        text, writes = "b" not in mode, mode.startswith("w")
        if self.is_local():
            if writes:
                os.makedirs(os.path.dirname(self._location), exist_ok=True)
            return open(self._location, mode, encoding="utf-8" if text else None, newline="" if text else None)
        if writes:
            return create_object(self._location, text=text)
        file = io.BytesIO(self.read_bytes()) if prefetch_file else open_object(self._location, _BUFFER_BYTES)
        return io.TextIOWrapper(file, encoding="utf-8", newline="") if text else file

    def read_bytes(self) -> bytes:
        """The content of the file. Raises as `open` does."""
        return read_whole(self._location)

    def read_text(self) -> str:
        """Return the content of the file, decoded as UTF-8. Raises the same errors as `open`."""
        return self.read_bytes().decode()

    def write_bytes(self, data: bytes) -> None:
        """Write the file, and create its parent folders. Raises ReadError if a store cannot be reached."""
        with self.open("wb") as file:
            file.write(data)

    def write_text(self, text: str) -> None:
        """Write the file, encoded as UTF-8. Raises as `write_bytes` does."""
        self.write_bytes(text.encode())

    def mkdir(self, exist_ok: bool = True, parents: bool = True) -> None:
        """Create a local folder; object stores need none. Raises OSError."""
        if self.is_local():
            self.local_path().mkdir(parents=parents, exist_ok=exist_ok)

    def walk(self) -> Iterator[EPath]:
        """All files below, sorted by folder if local, and by name in a store.

        Links to folders are followed, except links to their own parent folders.

        Raises:
            ReadError: The store cannot be reached, or cannot list (`https://`).
        """
        if not self.is_local():
            for name in _client().list(self._location):
                if name and not name.endswith("/"):  # placeholders that some tools create for folders
                    yield self / name
            return
        yield from self._local_files(lambda folder: True)

    def iterdir(self) -> Iterator[EPath]:
        """The files and folders in this folder, sorted. Raises as `walk` does."""
        if self.is_local():
            names = sorted(os.listdir(self._location))
        else:
            names = list(dict.fromkeys(path.relative_to(self).partition("/")[0] for path in self.walk()))
        yield from (self / name for name in names)

    def glob(self, pattern: str) -> Iterator[EPath]:
        """The files below that match a shell pattern; `**` matches any folders. Raises as `walk` does.

        Only folders with possible matches are searched.
        """
        fits = re.compile(glob_to_regex(pattern)).fullmatch
        if self.is_local():
            files = self._local_files(re.compile(folders_of_glob(pattern)).fullmatch)
        else:
            plain = _PLAIN_FOLDERS.match(pattern)
            files = (self / plain[0] if plain else self).walk()
        yield from (path for path in files if fits(path.relative_to(self)))

    def copy(self, target: EPath) -> None:
        """Copy a file, or all files below a folder, to a local path or a URL.

        Raises:
            FileNotFoundError: Neither a file nor a folder exists.
            OSError: It cannot be read or written; for stores, a ReadError.
        """
        if self.is_file():
            with self.open("rb") as source, target.open("wb") as copy:
                shutil.copyfileobj(source, copy, 8 << 20)
            return
        files = list(self.walk())
        if not files and not self.is_dir():
            raise MissingObjectError(f"{self}: nothing to copy, neither a file nor a folder exists; check the path")
        for path in files:
            path.copy(target / path.relative_to(self))

    def move(self, target: EPath) -> None:
        """`copy`, then `unlink`. Raises as they do."""
        files = [self] if self.is_file() else list(self.walk())
        self.copy(target)
        for file in files:
            file.unlink()

    def unlink(self) -> None:
        """Remove a file. A missing object is not an error.

        Raises:
            OSError: The file cannot be removed.
        """
        if self.is_local():
            os.unlink(self._location)
        else:
            _client().delete(self._location)

    def _local_files(self, enters: Callable[[str], Any]) -> Iterator[EPath]:
        """The files below, in folders accepted by `enters`, which gets their relative names with a trailing slash."""
        waiting: list[tuple[str, frozenset[tuple[int, int]]]] = [("", frozenset())]
        while waiting:
            inside, above = waiting.pop()
            folder = os.path.join(self._location, inside)
            try:
                known = os.stat(folder)
                entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
            except OSError:  # removed meanwhile, a file, or not accessible
                continue
            here = (known.st_dev, known.st_ino)
            if here in above:
                continue
            folders: list[str] = []
            for entry in entries:
                if not entry.is_dir():
                    yield self._below(f"{inside}{entry.name}")
                elif enters(f"{inside}{entry.name}/"):
                    folders.append(f"{inside}{entry.name}/")
            waiting += ((each, above | {here}) for each in reversed(folders))

    @property
    def _root(self) -> str:
        """The part that has no parent: the protocol and the bucket, or nothing."""
        if not is_url(self._written):
            return ""
        scheme, _, rest = self._written.partition("://")
        return f"{scheme}://{rest.partition('/')[0]}"

    @property
    def _pure(self) -> PurePosixPath:
        """The path after the root."""
        return PurePosixPath(self._written[len(self._root) :] or "/")

    def _with(self, path: PurePosixPath) -> EPath:
        return EPath(self._root + str(path))

    def _below(self, name: str) -> EPath:
        """A local file below."""
        found = EPath.__new__(EPath)
        found._set(os.path.join(self._location, name), os.path.join(self._written, name))
        return found


@lru_cache(maxsize=1024)
def shared_epath(path: str) -> EPath:
    """The `EPath` of an absolute path or a URL: one shared object for thousands of samples."""
    return EPath(path)


def _client() -> ObjectClient:
    return shared_client(storage_settings())


def glob_to_regex(glob: str) -> str:
    """Translate one shell pattern; `*`, `?` and `[…]` stay inside a folder, `**/` matches any number of folders."""
    return "".join(regex for regex, _ in _signs(glob))


def folders_of_glob(glob: str) -> str:
    """A regular expression for the folders, each with a trailing slash, in which a pattern may match something.

    >>> folders_of_glob("sub/*/x.tar")
    'sub/|sub/[^/]*/'
    """
    signs = _signs(glob)
    return "|".join("".join(regex for regex, _ in signs[: at + 1]) for at, (_, slash) in enumerate(signs) if slash)


def _signs(glob: str) -> list[tuple[str, bool]]:
    """The regular expression of each element of a pattern, and whether it can match a slash."""
    out: list[tuple[str, bool]] = []
    place = 0
    while place < len(glob):
        if glob.startswith("**/", place):
            out.append(("(?:[^/]+/)*", True))
            place += 3
        elif glob.startswith("**", place):
            out.append((".*", True))
            place += 2
        elif glob[place] in "*?":
            out.append(("[^/]*" if glob[place] == "*" else "[^/]", False))
            place += 1
        elif glob[place] == "[" and (end := glob.find("]", place + 2 + glob.startswith(("!", "^"), place + 1))) > 0:
            choice = glob[place + 1 : end]
            inverted = choice[0] in "!^"
            letters = "".join(letter if letter == "-" else re.escape(letter) for letter in choice[inverted:])
            out.append((f"(?!/)[^{letters}]", False) if inverted else (f"[{letters}]", True))
            place = end + 1
        else:
            out.append((re.escape(glob[place]), glob[place] == "/"))
            place += 1
    return out
