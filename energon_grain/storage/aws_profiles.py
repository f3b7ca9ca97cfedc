"""Sections of `~/.aws/credentials` and `~/.aws/config`: which of them credentials are taken from.

Neither obstore nor TensorStore looks there by itself. Keys that stand in a section are read here; sections that stand
for a role, a program or a single sign-on are left to boto3, where it is installed.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Mapping
from typing import Any

from energon_grain.errors import ConfigError

_HEADER = re.compile(r"\s*\[\s*(?:profile\s+)?([^\]]+?)\s*\]")
_SUFFICIENT = frozenset(("aws_access_key_id", "credential_process", "role_arn"))
"""Entries by which a section gives credentials by itself; others (single sign-on) need the library's whole search."""


def aws_credentials(url: str, profile: str | None) -> dict[str, str] | None:
    """Where credentials are to be taken from; None: neither the environment nor `~/.aws` holds any.

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
    if not _SUFFICIENT & set().union(*entries):
        return {"type": "default", "profile": name}
    # A file that is not there would be complained of.
    named_files = {file: os.path.expanduser(path) if sections[file] else os.devnull for file, path in files.items()}
    return {"type": "profile", "profile": name, **named_files}


def store_credentials(url: str, told: Mapping[str, str] | None) -> dict[str, Any]:
    """What `obstore.store.S3Store` is to be given.

    Args:
        url: Of the bucket, for messages.
        told: As `aws_credentials` gives it.

    Raises:
        ConfigError: The profile needs boto3, which is not installed.
    """
    if told is None:
        # Left to itself the store asks the role of the machine, which takes seconds where there is none.
        return {"skip_signature": True} if os.environ.get("AWS_EC2_METADATA_DISABLED", "").lower() == "true" else {}
    if told["type"] == "anonymous":
        return {"skip_signature": True}
    if told["type"] == "environment":
        return {}
    files = (told[file] for file in ("config_file", "credentials_file") if file in told)
    entries: dict[str, str] = {}
    for file in files:
        entries |= _sections_of(file).get(told["profile"], {})
    if "aws_access_key_id" in entries and "role_arn" not in entries:
        keys = {"access_key_id": "aws_access_key_id", "secret_access_key": "aws_secret_access_key"}
        keys["session_token"] = "aws_session_token"
        return {name: entries[entry] for name, entry in keys.items() if entry in entries}
    try:
        import boto3
        from obstore.auth.boto3 import Boto3CredentialProvider
    except ImportError as error:
        raise ConfigError(
            f"{url}: the profile {told['profile']!r} gives no keys itself, and what it stands for is asked by boto3: "
            "`pip install boto3`"
        ) from error
    return {"credential_provider": Boto3CredentialProvider(boto3.Session(profile_name=told["profile"]))}


def _sections_of(path: str) -> dict[str, dict[str, str]]:
    """The entries of each section; nothing where there is no file that can be read."""
    try:
        return _parsed(path, os.stat(path).st_mtime_ns)
    except OSError:
        return {}


@functools.lru_cache(maxsize=8)
def _parsed(path: str, changed_ns: int) -> dict[str, dict[str, str]]:
    sections: dict[str, dict[str, str]] = {}
    entries: dict[str, str] = {}
    with open(path, encoding="utf-8", errors="replace") as file:
        for line in file:
            header = _HEADER.match(line)
            if header is not None:
                entries = sections.setdefault(header[1], {})
            elif not line[0].isspace():  # else it goes on with the entry above
                name, _, value = line.partition("=")
                entries[name.strip().lower()] = value.strip()
    return sections
