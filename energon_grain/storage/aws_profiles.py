"""Sections of `~/.aws/credentials` and `~/.aws/config`: which of them TensorStore is to take credentials from.

Left to itself it asks the AWS library for a section and for files without names, and finds none; and what it misses it
says on the standard error stream. So section and files are named to it. Of the files only names of sections and of
their entries are looked at here.
"""

from __future__ import annotations

import functools
import os
import re

from energon_grain.errors import ConfigError

_HEADER = re.compile(r"\s*\[\s*(?:profile\s+)?([^\]]+?)\s*\]")
_SUFFICIENT = frozenset(("aws_access_key_id", "credential_process", "role_arn"))
"""Entries by which a section gives credentials by itself; others (single sign-on) need the library's whole search."""


def aws_credentials(url: str, profile: str | None) -> dict[str, str] | None:
    """What TensorStore is to be told about credentials; None: neither the environment nor `~/.aws` holds any.

    Args:
        url: Of the bucket, for messages.
        profile: The section that the settings name; None: what the environment holds, else the section that
            `AWS_PROFILE` names, else `default`.

    Raises:
        ConfigError: There is no section of a name that is given, or the environment holds half of a key.
    """
    if profile is None and os.environ.get("AWS_ACCESS_KEY_ID"):
        if not os.environ.get("AWS_SECRET_ACCESS_KEY"):
            raise ConfigError(f"{url}: AWS_ACCESS_KEY_ID is set, but AWS_SECRET_ACCESS_KEY is not; set both, or none")
        return {"type": "environment"}
    named = profile or os.environ.get("AWS_PROFILE")
    name = named or "default"
    files = {
        "credentials_file": os.environ.get("AWS_SHARED_CREDENTIALS_FILE") or "~/.aws/credentials",
        "config_file": os.environ.get("AWS_CONFIG_FILE") or "~/.aws/config",
    }
    sections = {file: _sections_of(os.path.expanduser(path)) for file, path in files.items()}
    entries = [found[name] for found in sections.values() if name in found]
    if not entries and named:
        there = ", ".join(sorted(set().union(*sections.values()))) or "none"
        source = "AWS_PROFILE" if profile is None else "the storage settings"
        raise ConfigError(
            f"{url}: the profile {name!r} of {source} has no section in {' or '.join(files.values())}; "
            f"there are: {there}"
        )
    if not entries:
        return None
    if not _SUFFICIENT & frozenset().union(*entries):
        return {"type": "default", "profile": name}
    # A file that is not there would be complained of.
    named_files = {file: os.path.expanduser(path) if sections[file] else os.devnull for file, path in files.items()}
    return {"type": "profile", "profile": name, **named_files}


def _sections_of(path: str) -> dict[str, frozenset[str]]:
    """Names of the entries of each section; nothing where there is no file that can be read."""
    try:
        return _parsed(path, os.stat(path).st_mtime_ns)
    except OSError:
        return {}


@functools.lru_cache(maxsize=8)
def _parsed(path: str, changed_ns: int) -> dict[str, frozenset[str]]:
    sections: dict[str, set[str]] = {}
    entries: set[str] = set()
    with open(path, encoding="utf-8", errors="replace") as file:
        for line in file:
            header = _HEADER.match(line)
            if header is not None:
                entries = sections.setdefault(header[1], set())
            elif not line[0].isspace():  # else it goes on with the entry above
                entries.add(line.partition("=")[0].strip().lower())
    return {name: frozenset(found) for name, found in sections.items()}
