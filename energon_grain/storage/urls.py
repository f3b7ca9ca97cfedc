# SPDX-License-Identifier: Apache-2.0
"""The text of URLs: schemes, revisions of Hub datasets, and which URLs may be shown and stored."""

from __future__ import annotations

import re
from collections.abc import Callable

from energon_grain.errors import ConfigError

STORE_SCHEMES = ("s3", "gs", "az", "azure", "abfs", "abfss", "http", "https", "memory", "hf")
"""Schemes of stores. `file://` is a local path."""
URL = re.compile(r"([a-z][a-z0-9+.-]*)://", re.IGNORECASE)
_SIGNED = re.compile(r"[?&][^=&]*(?:sig|token|credential|secret|password|key)[^=&]*=", re.IGNORECASE)
HUB = re.compile(r"(hf://datasets/[^/@]+/[^/@]+)(?:@(refs/(?:convert|pr)/[^/]+|[^/]*))?(?=/|$)", re.IGNORECASE)


def is_url(path: str) -> bool:
    """Whether a path has a scheme, so it is not local."""
    return URL.match(path) is not None


def scheme_of(path: str) -> str | None:
    """The scheme of a URL in lower case; None for a local path."""
    url = URL.match(path)
    return None if url is None else url[1].lower()


def revision_of(url: str) -> str | None:
    """The branch, tag or commit in a URL of the Hub, as written; None without one, or for other URLs.

    >>> revision_of("hf://datasets/team/captions@main/train")
    'main'
    """
    found = HUB.match(url)
    return None if found is None else found[2]


def without_revision(url: str) -> str:
    """A location without its revision, if it has one.

    >>> without_revision("hf://datasets/team/captions@main/train")
    'hf://datasets/team/captions/train'
    """
    return with_revisions(url, lambda _: "")


def with_revisions(text: str, revision_for: Callable[[str], str]) -> str:
    """A location, or a list of them, with the revisions of Hub datasets replaced; empty removes them."""

    def written(found: re.Match[str]) -> str:
        revision = revision_for(found[0])
        return f"{found[1]}@{revision}" if revision else found[1]

    return HUB.sub(written, text)


def check_url(url: str) -> str:
    """Return a URL that may be shown and stored: in messages, file names and states.

    Raises ConfigError if it has a user, a password or a signature; the message shows only the rest. On the web, only
    plain paths are accepted.
    """
    found = URL.match(url)
    if found is None:
        return url
    host, slash, path = url[found.end() :].partition("/")
    plain = re.split("[?#]", f"{found[0]}{host.rpartition('@')[2]}{slash}{path}", maxsplit=1)[0]
    if found[1].lower() in ("http", "https"):
        if "@" in host or re.search("[?#]", url):
            raise ConfigError(
                f"{plain}: web URLs must be plain paths, without `?…`, `#…` and passwords; write `%3F` and "
                "`%23` for these characters in a name"
            )
    elif ":" in host.rpartition("@")[0] or _SIGNED.search(url):
        raise ConfigError(
            f"{plain}: remove user, password and signature from the URL, because URLs are shown in messages and stored "
            "in states; set credentials in the environment or in the files of the store's own tools"
        )
    return url
