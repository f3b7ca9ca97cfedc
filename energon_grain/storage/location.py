# SPDX-License-Identifier: Apache-2.0
"""Locations: local paths, and URLs of objects and folders in stores."""

from __future__ import annotations

import difflib
import os
import posixpath
import re
import warnings
from collections.abc import Iterable
from itertools import islice
from urllib.parse import quote, unquote

from energon_grain.errors import ConfigError
from energon_grain.storage.store import stores_module
from energon_grain.storage.urls import HUB, STORE_SCHEMES, URL, check_url, is_url, scheme_of, without_revision

METADATASET_ENDINGS = (".yaml", ".yml")
_MOST_NEIGHBOURS = 10_000
_PATTERN = re.compile(r"[*?\[{]")
_LOST_SLASH = re.compile(r"(?:^|/)([a-z][a-z0-9+.-]+):/([^/].*)", re.IGNORECASE)


def absolute(written: str, folder: str) -> str:
    """Resolve a path against a folder (absolute, or a URL). `..` is resolved as text; links are not followed.

    A path that begins with `/` is local, even if the folder is a URL; so are URLs of local paths, see `located`.

    Raises:
        ConfigError: The path leads out of the bucket of the folder.

    >>> absolute("../a", "/data/sets")
    '/data/a'
    >>> absolute("../a", "s3://bucket/sets")
    's3://bucket/a'
    >>> absolute("s3://bucket/a", "/data/sets")
    's3://bucket/a'
    """
    if is_url(written):
        return located(written)
    base = URL.match(folder)
    if base is not None and not written.startswith("/"):
        repository = HUB.match(folder)
        cut = folder.find("/", base.end() if repository is None else repository.end())
        bucket, key = (folder[base.end() :], "") if cut < 0 else (folder[base.end() : cut], folder[cut + 1 :])
        path = posixpath.normpath(posixpath.join(key, written)).lstrip("/") or "."
        if path.split("/")[0] == "..":
            whole = folder if written == "." else f"{folder}/{written}"
            raise ConfigError(f"{whole}: `..` leads out of the {'bucket' if repository is None else 'dataset'}")
        return folder[: base.end()] + (bucket if path == "." else f"{bucket}/{path}".lstrip("/"))
    return os.path.normpath(os.path.join(folder, written))


def located(path: str | os.PathLike[str]) -> str:
    """Normalize a path from the caller: a URL without trailing slashes, or a path unchanged.

    URLs of local paths become paths: `file://`, and those that settings or other tools' configurations map to a path,
    such as `msc://default` and `dss://`. `rclone://`, an older name, becomes `msc://`, with a warning.
    Raises ConfigError.
    """
    text = os.fspath(path)
    url = URL.match(text)
    if url is None:
        return text
    check_url(text)
    if url[1].lower() == "rclone":
        warnings.warn(f"{text}: rclone:// is deprecated, write msc:// instead", FutureWarning, stacklevel=2)
        return located(f"msc{text[len(url[1]) :]}")
    rest = text[url.end() :]
    if url[1].lower() == "file":
        return os.path.abspath(rest)
    if url[1].lower() not in STORE_SCHEMES:
        mapped = stores_module("addresses").local_path(text)
        if mapped is not None:
            return mapped
    return text[: url.end()] + rest.rstrip("/")


def join(folder: str, name: str) -> str:
    """The location of `name`, relative and with slashes, in a folder.

    In web URLs, names are quoted (`a%20b`); in store URLs, they are unchanged.
    """
    if not is_url(folder):
        return os.path.join(folder, name)
    if scheme_of(folder) in ("http", "https"):
        name = quote(name)
    return f"{folder.rstrip('/')}/{name}"


def leads_out(name: str) -> bool:
    """Whether a name, joined to a folder, may refer to something outside it.

    True for an empty name, an absolute path, a URL, or a path with a `..` component, even if it stays inside. Symbolic
    links in the folder are not checked.

    >>> [leads_out(name) for name in ("a/b..tar", "./b.tar", "../b.tar", "a/../b.tar", "/b.tar", "s3://a/b.tar")]
    [False, False, True, True, True, True]
    """
    return not name or name.startswith("/") or "\0" in name or is_url(name) or ".." in name.split("/")


def first_leading_out(names: Iterable[str]) -> str | None:
    """The first name that `leads_out`; None if none does. A million names take 30 ms."""
    names = list(names)
    text = "\n".join(["", *names, ""])
    if not any(sign in text for sign in ("..", "\n/", "://", "\0", "\n\n")):
        return None
    return next(filter(leads_out, names), None)


def as_joined(folder: str, written: str) -> str:
    """Undo the quoting of a name written after a folder, for `join`: `a b` for `a%20b` of the web."""
    return unquote(written) if scheme_of(folder) in ("http", "https") else written


def no_such_path(path: str | os.PathLike[str], what: str = "file or folder") -> str:
    """The message for a local path that does not exist, with the intended URL if it looks like one.

    >>> no_such_path("s3:/bucket/a")
    's3:/bucket/a: no such file or folder. Did you mean s3://bucket/a? (pathlib removes slashes: pass a str)'
    """
    text = os.fspath(path)
    lost = _LOST_SLASH.search(text)
    if lost is None:
        hint = ". Patterns must end in .tar, .parquet or .arrow; else pass the folder" if _PATTERN.search(text) else ""
        return f"{text}: no such {what}{hint or _neighbour(text)}"
    meant = f"{lost[1]}://{lost[2]}"
    return f"{text}: no such {what}. Did you mean {meant}? (pathlib removes slashes: pass a str)"


def _neighbour(path: str) -> str:
    """A similar name beside a path, one or two letters different, as the end of a message."""
    folder, name = os.path.split(os.path.normpath(path))
    try:
        with os.scandir(folder or ".") as entries:
            names = [entry.name for entry in islice(entries, _MOST_NEIGHBOURS)]
    except OSError:
        return ""
    near = difflib.get_close_matches(name, names, n=1, cutoff=max(0.5, 1 - 2 / max(len(name), 1)))
    return f". Did you mean {os.path.join(folder, near[0])}?" if near else ""


def is_file_of(location: str, endings: str | tuple[str, ...]) -> bool:
    """Whether a path or URL names a file with one of these extensions. A folder may have such a name, too."""
    return location.endswith(endings) and (is_url(location) or not os.path.isdir(location))


def name_of(location: str) -> str:
    """The last component of a location; for a dataset of the Hub, without its revision."""
    if not is_url(location):
        return os.path.basename(os.path.normpath(location))
    return posixpath.basename(without_revision(location).rstrip("/"))


def folder_of(location: str) -> str:
    """The location without its last component."""
    return posixpath.dirname(location.rstrip("/")) if is_url(location) else os.path.dirname(location)
