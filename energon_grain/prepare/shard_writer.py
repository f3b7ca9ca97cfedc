# SPDX-License-Identifier: Apache-2.0
"""Write one shard of any container and collect its index on the way: nothing is read again."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np

from energon_grain.atomic_files import naming_when_full, sync_folder
from energon_grain.errors import EnergonGrainError
from energon_grain.formats.scan import ShardScan
from energon_grain.prepare.containers import Compression, ContainerName, UnfitSampleError, container_named

TEMPORARY = ".writing"
"""Suffix of shards that are being written; their names also begin with a dot."""
_UTF8 = ("utf-8", "surrogateescape")


class ShardWriter:
    """Writes one shard, sample by sample, and collects the columns of its index.

    The shard appears under its name only when it is complete.

    Raises OSError if the file cannot be created.
    """

    def __init__(self, path: Path, container: ContainerName = "tar", compression: Compression = "none") -> None:
        self._path, self._temporary = path, path.with_name(f".{path.name}.{secrets.token_hex(4)}{TEMPORARY}")
        path.parent.mkdir(parents=True, exist_ok=True)
        with naming_when_full(path):
            self._file = container_named(container).writer(self._temporary, compression)
        self._names: dict[str, int] = {}
        self._sample_start, self._part_start = [0], [0]
        self._part_name, self._part_offset, self._part_size = list[int](), list[int](), list[int]()
        self._keys: dict[str, None] = {}

    @property
    def samples(self) -> int:
        return len(self._keys)

    @property
    def size_bytes(self) -> int:
        """Bytes of the samples so far, with their headers; for records, before compression."""
        return self._file.end

    def add(self, key: str, parts: Mapping[str, bytes]) -> None:
        """Add a sample.

        Raises UnfitSampleError if the shard already has its key, or the container cannot hold it; nothing of it was
        written. Raises OSError if the disk is full; the shard cannot be continued.
        """
        if key in self._keys:
            raise UnfitSampleError(f"sample {key!r}: {self._path.name} already has a sample with this key")
        with self._naming():
            offsets, end = self._file.add(key, parts)
        names = self._names
        self._part_name += [names.setdefault(part, len(names)) for part in parts]
        self._part_offset += offsets
        self._part_size += map(len, parts.values())
        self._sample_start.append(end)
        self._part_start.append(len(self._part_name))
        self._keys[key] = None

    def close(self, verify: Callable[[Path], None] = lambda _: None) -> ShardScan:
        """Finish the shard, flush it to disk, and rename it. Returns the scan of it.

        Args:
            verify: Called before the rename; raises an error if the file is wrong.

        Raises OSError: the disk is full.
        """
        with self._naming():
            self._file.close()
        verify(self._temporary)
        os.replace(self._temporary, self._path)
        sync_folder(self._path.parent)
        keys = [key.encode(*_UTF8) for key in self._keys]
        return ShardScan(
            size_bytes=self._path.stat().st_size,
            sample_start=np.array(self._sample_start, np.int64),
            part_start=np.array(self._part_start, np.int64),
            part_names=tuple(self._names),
            part_name=np.array(self._part_name, np.int32),
            part_offset=np.array(self._part_offset, np.int64),
            part_size=np.array(self._part_size, np.int64),
            key_start=np.cumsum([0, *map(len, keys)], dtype=np.int64),
            key_bytes=np.frombuffer(b"".join(keys), np.uint8),
        )

    def abandon(self) -> None:
        """Remove the shard, unless it is finished."""
        with suppress(OSError, RuntimeError):
            self._file.abandon()
        self._temporary.unlink(missing_ok=True)

    @contextmanager
    def _naming(self) -> Generator[None]:
        try:
            yield
        except EnergonGrainError:
            raise
        except (OSError, RuntimeError) as error:
            raise OSError(f"{self._path}: cannot be written: {error}") from error
