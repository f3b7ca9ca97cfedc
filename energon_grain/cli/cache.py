# SPDX-License-Identifier: Apache-2.0
"""`energon-grain cache check`: checks the local cache of object stores."""

from __future__ import annotations

from typing import Annotated

import typer

from energon_grain.cli.terminal import Answer
from energon_grain.storage.settings import storage_settings
from energon_grain.stores.cache_check import check_sums, compare, pages_folder
from energon_grain.stores.object_client import shared_client
from energon_grain.stores.page_cache import PageCache
from energon_grain.words import counted, format_bytes


def cache_check(
    folder: Annotated[
        str | None, typer.Argument(help="The cache folder. Default: cache_dir of the storage settings.")
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(help="Also read this object, or all objects below this URL, and compare their cached pages."),
    ] = None,
) -> Answer:
    """Check the local cache of object stores, and remove the pages that are wrong.

    Every page is compared with its checksum, and with --against also with the store: a page that a server sent wrongly
    has a valid checksum. Readers can use the cache meanwhile. Exit code 1: there were wrong pages.

    Examples:
        energon-grain cache check
        energon-grain cache check cache --json
    """
    import msgspec

    settings = storage_settings()
    pages = pages_folder(settings.cache_folder if folder is None else folder)
    report = check_sums(pages)
    if against is not None:
        # Pages are only read, so the size limit has no effect.
        compare(report, PageCache(pages, limit_bytes=1 << 62), shared_client(settings), against)
    lines = [
        f"{pages}: {counted(report.pages, 'page')} ({format_bytes(report.size_bytes)}) in "
        f"{counted(report.files, 'file')}; {counted(report.damaged_pages, 'page')} damaged and removed",
    ]
    if report.earlier_files:
        lines.append(f"removed {counted(report.earlier_files, 'file')} of earlier releases")
    if report.unreadable_files:
        lines.append(f"{counted(report.unreadable_files, 'file')} cannot be read or written by this user")
    if against is not None:
        lines.append(
            f"{against}: {counted(report.compared_pages, 'page')} of {counted(report.compared_objects, 'object')} "
            f"compared; {counted(len(report.wrong), 'page')} wrong and removed"
        )
        lines += [f"  {page.url} bytes {page.start} to {page.stop}" for page in report.wrong]
    return Answer(document=msgspec.to_builtins(report), lines=lines, failed=not report.is_right)
