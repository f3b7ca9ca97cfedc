"""Paths as a metadataset writes them: relative to its folder, absolute, or URLs."""

from __future__ import annotations

import os
import posixpath
import re

_URL = re.compile(r"([a-z][a-z0-9+.-]*)://", re.IGNORECASE)


def is_url(path: str) -> bool:
    """Whether a path has a protocol, so that it does not lie on this machine."""
    return _URL.match(path) is not None


def absolute(written: str, folder: str) -> str:
    """Resolve a path against a folder (absolute, or a URL). `..` is taken out as text; links are not followed.

    >>> absolute("../a", "/data/sets")
    '/data/a'
    >>> absolute("msc://store/a", "/data/sets")
    'msc://store/a'
    """
    url = _URL.match(written)
    if url is not None:
        if url[1].lower() != "file":
            return written
        return os.path.abspath(written[url.end() :])
    base = _URL.match(folder)
    if base is not None:
        if written.startswith("/"):
            return written
        return folder[: base.end()] + posixpath.normpath(posixpath.join(folder[base.end() :], written))
    return os.path.normpath(os.path.join(folder, written))
