# SPDX-License-Identifier: Apache-2.0
"""Whether the pages that a cache on disk keeps are what was written, and what the store has.

A reader compares each page with its sum once, so a page that is damaged on disk is fetched again. Bytes that a server
sent wrongly, under right headers, have a right sum: only a comparison with the store finds these. An object of a store
has no sum from end to end that all stores agree on, and the columnar index has none for the parts of tars; ArrayRecord,
MDS (with hashes), Parquet (with page checksums) and arrays check what they decode.
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
    """A page that is not what the store has: bytes [start, stop) of an object."""

    url: str
    start: int
    stop: int


@dataclass(kw_only=True, slots=True)
class CacheReport:
    """What a check found.

    Attributes:
        folder: Of the pages.
        files: That were read.
        pages: In them.
        size_bytes: Of the pages.
        damaged_pages: Pages that did not fit their sums, and were removed.
        unreadable_files: Files that could not be read or written; they are still there.
        earlier_files: Files of earlier releases, which were removed.
        compared_objects: Objects of the store of which there are pages.
        compared_pages: Their pages.
        wrong: Of these, pages that the store has not; they were removed.
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
        """Whether nothing was wrong."""
        return not (self.damaged_pages or self.unreadable_files or self.wrong)


def pages_folder(folder: str) -> str:
    """The folder of the pages in a cache folder, or that folder itself. Raises ConfigError: there is none."""
    for found in (os.path.join(folder, "pages"), folder):
        if os.path.basename(found) == "pages" and os.path.isdir(found):
            return os.path.abspath(found)
    raise ConfigError(f"{folder}: has no folder `pages`; name the `cache_dir` of the storage settings")


def check_sums(folder: str) -> CacheReport:
    """Compare every page in a folder with its sum, and remove those that are damaged."""
    report = CacheReport(folder=folder)
    for shelf in sorted(os.scandir(folder), key=lambda entry: entry.name):
        if not shelf.is_dir(follow_symlinks=False):
            continue
        for file in sorted(os.scandir(shelf), key=lambda entry: entry.name):
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
    """Compare pages of an object, or of all objects below a URL, with what the store has, and remove the others.

    Raises ReadError, and MissingObjectError where there is nothing.
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
        found = client.look(url)
        if found is None or found.size_bytes is None:
            raise MissingObjectError(f"{url}: there is no such object, and nothing is below that URL")
        yield url, found.size_bytes, found.generation
    for name, (size_bytes, generation) in listed.items():
        yield join(url, name), size_bytes, generation


def _runs(pages: list[int]) -> Iterator[tuple[int, int]]:
    """Pages that follow each other, some at a time."""
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
