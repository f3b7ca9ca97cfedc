# SPDX-License-Identifier: Apache-2.0
"""Digests of shards: recorded when a dataset was prepared, to verify the bytes that a store returns.

    .nv-meta/columnar/digests.json
        version       1
        algorithm     of the digests of whole shards: xxh3-128
        page_bytes    262144
        shards        by name: size_bytes; digest, in hex; pages: XXH3-64 of each page, 8 bytes each, in base64

With the sums of pages, every response of a store is checked before one of its samples is delivered, and no shard has to
be read as a whole. XXH3 (https://xxhash.com) detects damage by disks, networks and servers. It does not protect against
an attacker, who can replace the digests as well.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal

import msgspec
import xxhash

from energon_grain.errors import IndexFileError
from energon_grain.forms import Form
from energon_grain.storage.location import join

DIGESTS_JSON = "digests.json"
PAGE_BYTES = 256 << 10
SUM_BYTES = 8
_READ_PAGES = 32
_AT_ONCE = 4


class ShardDigest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Digest of a shard. `pages` holds the sum of each page."""

    size_bytes: int
    digest: str
    pages: bytes


class Digests(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The file."""

    version: Literal[1] = 1
    algorithm: Literal["xxh3-128"] = "xxh3-128"
    page_bytes: Literal[262144] = PAGE_BYTES
    shards: dict[str, ShardDigest]


_FILE = Form(Digests)


def digest_of(path: str) -> ShardDigest:
    """Read a whole local file. Raises OSError."""
    with open(path, "rb", buffering=0) as file:
        return digest_read(file.read)


def digest_read(read: Callable[[int], bytes | None]) -> ShardDigest:
    """The digest of all bytes that a function reads, called with their maximum number until it returns none."""
    whole, pages, size_bytes = xxhash.xxh3_128(), bytearray(), 0
    while data := _filled(read, PAGE_BYTES * _READ_PAGES):
        whole.update(data)
        size_bytes += len(data)
        for at in range(0, len(data), PAGE_BYTES):
            pages += xxhash.xxh3_64_digest(data[at : at + PAGE_BYTES])
    return ShardDigest(size_bytes=size_bytes, digest=whole.hexdigest(), pages=bytes(pages))


def _filled(read: Callable[[int], bytes | None], size_bytes: int) -> bytes:
    """Read exactly this many bytes, fewer only at the end of the file: a single read may return less."""
    parts, left = list[bytes](), size_bytes
    while left and (part := read(left)):
        parts.append(part)
        left -= len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def digests_of(root: str | Path, names: Iterable[str], known: Mapping[str, ShardDigest] | None = None) -> Digests:
    """The digests of local shards. Those in `known` are reused. Raises OSError."""
    known = known or {}
    with ThreadPoolExecutor(min(_AT_ONCE, os.cpu_count() or 1), "digests") as pool:
        found = pool.map(lambda name: known.get(name) or digest_of(os.path.join(root, name)), names := list(names))
        return Digests(shards=dict(zip(names, found, strict=True)))


def encode_digests(digests: Digests) -> bytes:
    """The content of the file."""
    return msgspec.json.encode(digests) + b"\n"


def read_digests(path: Path) -> Digests:
    """Raises FileNotFoundError, and IndexFileError if the file is invalid."""
    return decode_digests(path.read_bytes(), str(path))


def decode_digests(data: bytes, where: str) -> Digests:
    """The content of the file at `where`. Raises IndexFileError if it is invalid."""
    try:
        return _FILE.from_json(data)
    except msgspec.MsgspecError as error:
        raise IndexFileError(
            f"{where}: not a valid file of digests ({error}); run `energon-grain measure --digest` on the dataset"
        ) from error


class KnownDigests:
    """The digests of the shards of a dataset in a store, by URL, read lazily.

    Copies in other processes read the file themselves.
    """

    def __init__(self, location: str, path: Path) -> None:
        self._location, self._path = location, path

    def __reduce__(self) -> tuple[type[KnownDigests], tuple[str, Path]]:
        return KnownDigests, (self._location, self._path)

    @functools.cached_property
    def _shards(self) -> dict[str, ShardDigest]:
        return {join(self._location, name): digest for name, digest in read_digests(self._path).shards.items()}

    def get(self, url: str) -> ShardDigest | None:
        return self._shards.get(url)
