# SPDX-License-Identifier: Apache-2.0
"""Checks that an object store lists, reads, writes and removes objects, for built-in and added stores."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from energon_grain.errors import MissingObjectError, RangeError
from energon_grain.storage.location import join
from energon_grain.storage.remote import (
    UNVERSIONED,
    Fetched,
    ObjectClient,
    ObjectRange,
    has_lists,
    remote_files,
    shared_client,
)
from energon_grain.storage.settings import storage_settings

_WRITTEN = {"a.bin": bytes(range(256)) * 5, "empty": b"", "sub/b c ä.bin": b"b"}


def check_object_store(url: str, contents: Mapping[str, bytes] | None = None) -> None:
    """Check the store of a URL, through the library.

    Args:
        url: An empty folder in the store: the check writes objects there and removes them.
        contents: The existing objects, by path, for read-only stores. Nothing is then written.

    Raises:
        AssertionError: The store breaks the contract; the message says where.
    """
    client = shared_client(storage_settings())
    if contents is not None:
        _check_reads(client, url, contents)
        return
    assert client.list(url) == [], f"{url}: expected an empty folder, but it has objects"
    sibling = f"{url}-beside"  # not inside the folder
    try:
        client.write(sibling, b"x")
        written = {name: client.write(join(url, name), data) for name, data in _WRITTEN.items()}
        _check_reads(client, url, _WRITTEN)
        listed = {name: generation for name, (_, generation) in client.list_versions(url).items()}
        assert listed == written, f"{url}: the versions in its list are {listed}, those of its writes {written}"
        first = join(url, "a.bin")
        again = client.write(first, _WRITTEN["a.bin"][::-1])
        assert again == UNVERSIONED or again != written["a.bin"], f"{first}: other bytes have the same version"
    finally:
        for each in (sibling, *(join(url, name) for name in _WRITTEN)):
            client.delete(each)
    assert client.list(url) == [], f"{url}: objects remain after they were removed"


def _check_reads(client: ObjectClient, url: str, contents: Mapping[str, bytes]) -> None:
    assert any(len(data) > 1 for data in contents.values()), f"{url}: no object has bytes, so nothing is checked"
    sizes = {name: len(data) for name, data in contents.items()}
    if has_lists(url, client.settings):
        listed = {name: size for name, (size, _) in client.list_versions(url).items()}
        assert listed == sizes, f"{url}: its list is {listed}, expected {sizes}"
    for name, data in contents.items():
        _check_object(client, join(url, name), data)
    missing = join(url, "no/such object")
    for found in (client.head(missing), client.read(ObjectRange(missing))):
        assert found is None, f"{missing}: should not exist"
    _raises(MissingObjectError, lambda: remote_files(client.settings).size(missing), f"{missing}: its size")
    _check_paths(client, [join(url, name) for name, size in sizes.items() if size], contents, url)


def _check_object(client: ObjectClient, url: str, data: bytes) -> None:
    size, known = len(data), client.head(url)
    assert known is not None, f"{url}: does not exist"
    assert known.size_bytes == size, f"{url}: is {known}, expected {size} bytes"
    ranges = [(None, None), (0, None), (0, size), (size // 2, None), (1, size // 2 + 1), (-1, None)]
    for start, stop in ranges if size > 1 else ranges[:1]:
        found = client.read(ObjectRange(url, start, stop))
        assert found is not None, f"{url}: does not exist when read"
        assert found.data == data[start:stop], f"{url}: bytes {start} to {stop} differ"
        assert _version(found) == _version(known), f"{url}: is {known} when inspected, and {found} when read"
    again = client.read(ObjectRange(url, known=known.generation))
    sent = again is not None and again.pieces is not None
    assert sent == (known.generation == UNVERSIONED), f"{url}: sends data for the known version"
    _raises(RangeError, lambda: client.read(ObjectRange(url, 0, size + 1)), f"{url}: more bytes than it has")
    _raises(RangeError, lambda: client.read(ObjectRange(url, size + 1)), f"{url}: bytes after its end")


def _check_paths(client: ObjectClient, urls: list[str], contents: Mapping[str, bytes], root: str) -> None:
    """Read through pages, in several threads, and in a copy."""
    expected = {join(root, name): data for name, data in contents.items()}
    files = remote_files(client.settings)
    for each in (files, files, pickle.loads(pickle.dumps(files))):
        stops = np.array([len(expected[url]) for url in urls])
        found = each.read_spans(urls, np.arange(len(urls)), np.zeros(len(urls), np.int64), stops)
        assert found == [expected[url] for url in urls], f"{root}: pages contain other bytes"
    read = client.map(lambda at: client.read(ObjectRange(urls[0], at, at + 1)), [0, 1] * 16)
    assert [found.data for found in read if found] == [expected[urls[0]][at : at + 1] for at in [0, 1] * 16], (
        f"{urls[0]}: threads read other bytes"
    )


def _version(found: Fetched) -> tuple[int | None, bytes]:
    return found.size_bytes, found.generation


def _raises(kind: type[Exception], call: Callable[[], Any], what: str) -> None:
    try:
        call()
    except kind:
        return
    raise AssertionError(f"{what}: does not raise {kind.__name__}")
