"""Indices of videos that have none of their own."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO, cast

from energon_grain.errors import RefusedError
from energon_grain.formats.data_folder import open_folder
from energon_grain.formats.nv_meta import DatasetKind, dataset_kind
from energon_grain.formats.seek_table import write_seek_table
from energon_grain.media.seek_index import missing_index
from energon_grain.sources.webdataset import WebDatasetSource
from energon_grain.storage.byte_stream import ByteStream

ENDINGS = frozenset({"mp4", "mov", "mkv", "webm"})
_AT_ONCE = 256


def index_videos(path: str | os.PathLike[str], *, threads: int = 4) -> int:
    """Make the indices that videos of a prepared dataset lack.

    Those are mp4 and mov in fragments without `sidx`, and mkv and webm without Cues. With an index a clip of such a
    video takes its group of pictures and not all that lies in front. Of files that have one headers are read, of the
    others the headers of all fragments, or (mkv, webm) all bytes. All indices are in `.nv-meta/seek_table.bin`, which
    is written whole or not at all.

    Args:
        path: The dataset's folder, with tars.
        threads: How many videos are read at a time.

    Returns:
        How many there are.

    Raises:
        DatasetNotFoundError: It is not prepared.
        RefusedError: It lies in an object store: index it where it is prepared. Or it is of ArrayRecord files, whose
            records are read whole.
        ReadError: A tar cannot be read.
    """
    folder = open_folder(path)
    if folder.is_remote:
        raise RefusedError(f"{folder.location}: lies in an object store; index its videos before they are uploaded")
    if dataset_kind(folder.local) is DatasetKind.ARRAY_RECORD:
        raise RefusedError(
            f"{folder.location}: records of ArrayRecord files are read whole, so an index of their videos is of no "
            f"use; clips of long videos want tars"
        )
    source = WebDatasetSource(folder, parts=lambda part: part.rpartition(".")[2].lower() in ENDINGS)
    shards = {name: number for number, name in enumerate(source.all_shards)}

    def lacking(first: int) -> list[tuple[int, int, int, int, bytes]]:
        found: list[tuple[int, int, int, int, bytes]] = []
        for sample in range(first, min(first + _AT_ONCE, len(source))):
            place = source.locate(sample)
            for offset, size in place.parts.values():
                # Not `source.stream`, which has the index that was made before.
                file = ByteStream(folder.store, folder.shard(place.shard), offset, size)
                index = missing_index(cast("BinaryIO", file))
                found += [] if index is None else [(shards[place.shard], offset, size, *index)]
        return found

    samples = range(0, len(source) if source.part_names else 0, _AT_ONCE)
    try:
        with ThreadPoolExecutor(threads) as executor:
            entries = [entry for found in executor.map(lacking, samples) for entry in found]
    finally:
        source.close()
    write_seek_table(Path(folder.local), source.index_id, entries)
    return len(entries)
