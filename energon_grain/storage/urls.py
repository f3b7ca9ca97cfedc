# SPDX-License-Identifier: Apache-2.0
"""The text of URLs: their protocols, revisions of datasets of the Hub, and what may be shown and kept."""

from __future__ import annotations

import re
from collections.abc import Callable

from energon_grain.errors import ConfigError

STORE_SCHEMES = ("s3", "gs", "az", "azure", "abfs", "abfss", "http", "https", "memory", "hf")
"""Schemes of stores. `file://` is a path of this machine."""
URL = re.compile(r"([a-z][a-z0-9+.-]*)://", re.IGNORECASE)
_SIGNED = re.compile(r"[?&][^=&]*(?:sig|token|credential|secret|password|key)[^=&]*=", re.IGNORECASE)
HUB = re.compile(r"(hf://datasets/[^/@]+/[^/@]+)(?:@(refs/(?:convert|pr)/[^/]+|[^/]*))?(?=/|$)", re.IGNORECASE)


def is_url(path: str) -> bool:
    """Whether a path has a protocol, so that it does not lie on this machine."""
    return URL.match(path) is not None


def scheme_of(path: str) -> str | None:
    """The protocol of a URL in lower case; None for a path of this machine."""
    url = URL.match(path)
    return None if url is None else url[1].lower()


def revision_of(url: str) -> str | None:
    """The branch, tag or commit that a URL of the Hub names, as it is written; None: it names none, or is no such URL.

    >>> revision_of("hf://datasets/team/captions@main/train")
    'main'
    """
    found = HUB.match(url)
    return None if found is None else found[2]


def without_revision(url: str) -> str:
    """A location without the revision that it names, if it does.

    >>> without_revision("hf://datasets/team/captions@main/train")
    'hf://datasets/team/captions/train'
    """
    return with_revisions(url, lambda _: "")


def with_revisions(text: str, revision_for: Callable[[str], str]) -> str:
    """A location, or a list of them, with other revisions of the datasets of the Hub; empty: none."""

    def written(found: re.Match[str]) -> str:
        revision = revision_for(found[0])
        return f"{found[1]}@{revision}" if revision else found[1]

    return HUB.sub(written, text)


def check_url(url: str) -> str:
    """Give back a URL that may be shown and kept: in messages, names of files and states.

    Raises ConfigError if it has a user, a password or a signature; names the rest of it. Of the web only plain paths
    are read.
    """
    found = URL.match(url)
    if found is None:
        return url
    host, slash, path = url[found.end() :].partition("/")
    plain = re.split("[?#]", f"{found[0]}{host.rpartition('@')[2]}{slash}{path}", maxsplit=1)[0]
    if found[1].lower() in ("http", "https"):
        if "@" in host or re.search("[?#]", url):
            raise ConfigError(
                f"{plain}: only plain paths are read from the web, without `?…`, `#…` and passwords; write `%3F` and "
                "`%23` for these characters in a name"
            )
    elif ":" in host.rpartition("@")[0] or _SIGNED.search(url):
        raise ConfigError(
            f"{plain}: a URL of a dataset has no user, password or signature, because it is shown in messages and kept "
            "in states; give credentials in the environment or in the files of the store's own tools"
        )
    return url
