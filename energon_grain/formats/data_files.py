# SPDX-License-Identifier: Apache-2.0
"""Finds data files at a path, pattern, URL, or several of these: names, and versions if a listing contains them."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from energon_grain.errors import ConfigError, DatasetNotFoundError
from energon_grain.formats.brace_patterns import expand_braces
from energon_grain.formats.splits import collapse
from energon_grain.storage.data_names import GLOB, data_below, is_data
from energon_grain.storage.epath import glob_to_regex
from energon_grain.storage.location import as_joined, is_url, name_of, no_such_path
from energon_grain.storage.remote import has_lists, shared_client
from energon_grain.storage.settings import storage_settings

Version = tuple[int, int | bytes]
"""Size of a file, and its modification time or generation: the result of `ByteStore.version`."""
SIGNS = re.compile(r"[*?\[{]")
"""Signs of patterns and braces in a name."""
BETWEEN = "::"
"""Separator of several paths in one text."""


def find_files(location: str, endings: tuple[str, ...]) -> tuple[str, list[str], dict[str, Version] | None]:
    """A folder, names of files in it, and their versions if a listing contained them.

    Raises:
        DatasetNotFoundError: There are none.
        ReadError: A store cannot be reached.
    """
    query = _Query.of(location)
    find = _find_local if not is_url(location) else _find_in_store
    return find(location, query, endings)


@dataclass(frozen=True, slots=True)
class _Query:
    """The parsed form of a location: patterns of files below their common folder.

    Attributes:
        patterns: The location with its braces expanded.
        wild: Whether they contain signs of patterns.
        root: The common folder.
        cut: Length of its name in each pattern.
    """

    patterns: list[str]
    wild: bool
    root: str
    cut: int

    @classmethod
    def of(cls, location: str) -> _Query:
        is_literal = not is_url(location) and os.path.lexists(location)  # an existing path is taken literally
        patterns = expand_braces(location) if "{" in location and not is_literal else [location]
        wild = not is_literal and any(map(GLOB.search, patterns))
        fixed = [GLOB.split(pattern, maxsplit=1)[0] if wild else pattern for pattern in patterns]
        differ = (at for at, signs in enumerate(zip(*fixed, strict=False)) if len(set(signs)) > 1)
        cut = fixed[0][: next(differ, min(map(len, fixed)))].rfind("/")
        return cls(patterns, wild, fixed[0][:cut] if cut > 0 else "/"[: cut + 1], cut)


Found = tuple[str, list[str], dict[str, Version] | None]


def _find_local(location: str, query: _Query, endings: tuple[str, ...]) -> Found:
    if os.path.isdir(location):
        return location, _sorted(data_below(location, endings), location, endings), None
    found = set(query.patterns)
    if query.wild:
        found = {path for pattern in query.patterns for path in glob.iglob(pattern, recursive=True)}
    elif missing := sorted(path for path in found if not os.path.exists(path)):
        raise DatasetNotFoundError(no_such_path(missing[0]))
    files = {path for path in found if os.path.isfile(path)}
    files |= {os.path.join(path, name) for path in found if os.path.isdir(path) for name in data_below(path, endings)}
    start = len(query.root) + (query.cut > 0)
    return query.root, _sorted((path[start:] for path in files), location, endings), None


def _find_in_store(location: str, query: _Query, endings: tuple[str, ...]) -> Found:
    client, root, cut = shared_client(storage_settings()), query.root, query.cut
    if not has_lists(location, storage_settings()):
        if query.wild:
            raise ConfigError(f"{location}: this server has no listings; write the names, as {{000..009}}{endings[0]}")
        names = {as_joined(root, pattern[cut + 1 :]) for pattern in query.patterns}
        return root, _sorted(names, location, endings), None
    if not query.wild and len(query.patterns) == 1:
        below: Any = client.list_versions(location)
        if below:
            return location, _sorted((name for name in below if is_data(name, endings)), location, endings), below
        return root, [name_of(location)], None
    below = client.list_versions(root)
    wanted = [re.compile(glob_to_regex(pattern[cut + 1 :])) for pattern in query.patterns]
    matching = (name for name in below if is_data(name, endings) and any(each.fullmatch(name) for each in wanted))
    return root, _sorted(matching, location, endings), below


def _sorted(names: Iterable[str], location: str, endings: tuple[str, ...]) -> list[str]:
    found = sorted(names)
    if not found:
        raise nothing_found(location, endings)
    return found


def nothing_found(location: str, endings: tuple[str, ...]) -> DatasetNotFoundError:
    """The error for a path where no file has any of these endings."""
    return DatasetNotFoundError(f"{location}: no file ends in {' or '.join(endings)}; check the path")


def version_of(path: str) -> Version:
    """Version of a local file. Raises DatasetNotFoundError."""
    try:
        status = os.stat(path)
    except FileNotFoundError:
        raise DatasetNotFoundError(no_such_path(path)) from None
    return status.st_size, status.st_mtime_ns


def one_text(paths: Iterable[str | os.PathLike[str]]) -> str:
    """The text that names several paths, shortened by ranges of numbers.

    >>> one_text(["a/08.tar", "a/09.tar", "a/10.tar", "b"])
    'a/{08..10}.tar::b'

    Raises ConfigError if there are none, or one is not a text.
    """
    texts = [os.fspath(path) if isinstance(path, os.PathLike) else path for path in paths]
    if not texts or not all(isinstance(text, str) and text for text in texts):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigError(f"a list of paths must contain one or more texts, not {texts!r:.100}")
    pieces: list[str] = []
    for is_special, run in groupby(texts, lambda text: SIGNS.search(text) is not None):
        names = list(run)
        pieces += names if is_special else collapse(names)
    return BETWEEN.join(pieces)
