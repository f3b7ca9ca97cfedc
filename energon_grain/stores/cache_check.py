# SPDX-License-Identifier: Apache-2.0
"""Verify cached pages on disk: against their checksums, and against the store.

A reader compares each page with its sum once, so a page damaged on disk is fetched again. Wrong bytes sent by a
server with valid headers have a matching sum; only a comparison with the store finds them. Stores do not share a
checksum for whole objects, and the columnar index has none for the parts of tars. ArrayRecord, MDS (with hashes),
Parquet (with page checksums) and arrays verify the data that they decode.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from energon_grain.errors import ConfigError, MissingObjectError
from energon_grain.storage.location import join
from energon_grain.storage.remote import ObjectRange
from energon_grain.storage.urls import without_revision
from energon_grain.stores.addresses import has_lists
from energon_grain.stores.object_client import ObjectClient
from energon_grain.stores.page_cache import CachedObject, PageCache, check_file
from energon_grain.stores.remote_files import BLOCK_BYTES

_NAME = re.compile(r"[0-9a-f]{38}-[0-9a-f]{6}")
_AT_ONCE = 32


@dataclass(frozen=True, kw_only=True, slots=True)
class WrongPage:
    """A cached page that differs from the store: bytes [start, stop) of an object."""

    url: str
    start: int
    stop: int


@dataclass(kw_only=True, slots=True)
class CacheReport:
    """Result of a check.

    Attributes:
        folder: Folder of the pages.
        files: Number of files read.
        pages: Number of pages in them.
        size_bytes: Size of the pages.
        damaged_pages: Pages that did not match their sums, and were removed.
        unreadable_files: Files that could not be read or written; they were kept.
        earlier_files: Files of earlier releases, which were removed.
        compared_objects: Objects of the store with cached pages.
        compared_pages: Their pages.
        wrong: Those that differ from the store; they were removed.
    """

    folder: str
    files: int = 0
    pages: int = 0
    size_bytes: int = 0
    damaged_pages: int = 0
    unreadable_files: int = 0
    earlier_files: int = 0
    compared_objects: int = 0
    compared_pages: int = 0
    wrong: list[WrongPage] = field(default_factory=list[WrongPage])

    @property
    def is_right(self) -> bool:
        """Whether no problem was found."""
        return not (self.damaged_pages or self.unreadable_files or self.wrong)


def pages_folder(folder: str) -> str:
    """The folder of pages in a cache folder, or that folder itself. Raises ConfigError if there is none."""
    for found in (os.path.join(folder, "pages"), folder):
        if os.path.basename(found) == "pages" and os.path.isdir(found):
            return os.path.abspath(found)
    raise ConfigError(f"{folder}: has no folder `pages`; pass the `cache_dir` of the storage settings")


def check_sums(folder: str) -> CacheReport:
    """Compare every page in a folder with its sum, and remove damaged ones."""
    report = CacheReport(folder=folder)
    for subfolder in sorted(os.scandir(folder), key=lambda entry: entry.name):
        if not subfolder.is_dir(follow_symlinks=False):
            continue
        for file in sorted(os.scandir(subfolder), key=lambda entry: entry.name):
            if not _NAME.fullmatch(file.name):
                continue
            try:
                found = check_file(file.path, BLOCK_BYTES)
            except FileNotFoundError:  # evicted meanwhile
                continue
            except OSError:
                report.unreadable_files += 1
                continue
            report.files += not found.of_earlier_release
            report.earlier_files += found.of_earlier_release
            report.pages += found.pages
            report.size_bytes += found.size_bytes
            report.damaged_pages += found.damaged
    return report


def compare(report: CacheReport, cache: PageCache, client: ObjectClient, url: str) -> None:
    """Compare the cached pages of an object, or of all objects below a URL, with the store, and remove wrong ones.

    Raises ReadError, and MissingObjectError if no object exists.
    """
    for name, size_bytes, generation in _objects(client, client.pinned(url.rstrip("/"))):
        pages = cache.open(without_revision(name), generation, size_bytes)
        count = -(-size_bytes // BLOCK_BYTES)
        missing = set(pages.missing(0, count))
        there = [page for page in range(count) if page not in missing]
        report.compared_objects += bool(there)
        report.compared_pages += len(there)
        for first, stop in _runs(there):
            report.wrong += _wrong_in(pages, client, name, first * BLOCK_BYTES, min(stop * BLOCK_BYTES, size_bytes))


def _objects(client: ObjectClient, url: str) -> Iterator[tuple[str, int, bytes]]:
    """URL, size and generation."""
    listed = client.list_versions(url) if has_lists(url, client.settings) else {}
    if not listed:
        found = client.head(url)
        if found is None or found.size_bytes is None:
            raise MissingObjectError(f"{url}: no such object, and no objects below this URL; check the URL")
        yield url, found.size_bytes, found.generation
    for name, (size_bytes, generation) in listed.items():
        yield join(url, name), size_bytes, generation


def _runs(pages: list[int]) -> Iterator[tuple[int, int]]:
    """Runs of consecutive pages, of limited length."""
    first = previous = None
    for page in pages:
        if first is None or previous is None or page != previous + 1 or page - first == _AT_ONCE:
            if first is not None and previous is not None:
                yield first, previous + 1
            first = page
        previous = page
    if first is not None and previous is not None:
        yield first, previous + 1


def _wrong_in(pages: CachedObject, client: ObjectClient, url: str, start: int, stop: int) -> Iterator[WrongPage]:
    kept, found = pages.read(start, stop), client.read(ObjectRange(url, start, stop))
    if kept is None or found is None or found.data is None:  # evicted, or removed from the store, meanwhile
        return
    for at in range(0, len(kept), BLOCK_BYTES):
        if kept[at : at + BLOCK_BYTES] != found.data[at : at + BLOCK_BYTES]:
            pages.discard((start + at) // BLOCK_BYTES)
            yield WrongPage(url=url, start=start + at, stop=min(start + at + BLOCK_BYTES, stop))
