"""The lines of a JSONL file, by their numbers."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from energon_grain.errors import KeyNotFoundError
from energon_grain.formats.jsonl_file import JsonlFile
from energon_grain.samples.source_info import SourceInfo
from energon_grain.sources.file_store import FileStore
from energon_grain.sources.jsonl import PART, JsonlSource
from energon_grain.storage.epath import shared_epath


class JsonlFileStore(FileStore[bytes]):
    """Reads single samples of a JSONL file; the key of sample 12 is `12.json`.

    The whole file is served, whatever the subset of a leaf.

    Args:
        path: The file: a path, a URL, or what `open_jsonl` made of it.

    Raises:
        EnergonGrainError: As `JsonlSource` does.
    """

    def __init__(self, path: str | os.PathLike[str] | JsonlFile) -> None:
        self._source = JsonlSource(path)

    def __reduce__(self) -> tuple[Any, ...]:
        return JsonlFileStore, (self._source.file,)

    def __repr__(self) -> str:
        return f"JsonlFileStore({self.get_path()!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, JsonlFileStore) and self.get_path() == other.get_path()

    def __hash__(self) -> int:
        return hash(self.get_path())

    def get_path(self) -> str:
        """The file, path or URL."""
        return self._source.path

    def __contains__(self, key: object) -> bool:
        """Whether there is a sample of this number."""
        return isinstance(key, str) and self._number(key) is not None

    def read(self, keys: Sequence[str]) -> list[tuple[bytes, SourceInfo]]:
        """Read lines in the order asked for; neighbours are read together. See `FileStore.read`."""
        numbers = [self._number(key) for key in keys]
        for key, number in zip(keys, numbers, strict=True):
            if number is None:
                raise KeyNotFoundError(
                    f"{self.get_path()}: there is no {key!r}; keys go from '0.{PART}' to "
                    f"'{len(self._source) - 1}.{PART}'"
                )
        if not keys:
            return []
        lines = cast("list[bytes]", self._source.read(np.array(numbers, np.int64)).columns[PART])
        path, shard = shared_epath(self.get_path()), self._source.shard
        return [
            (line, SourceInfo(dataset_path=path, index=key, shard_name=shard, file_names=(key,)))
            for key, line in zip(keys, lines, strict=True)
        ]

    def _number(self, key: str) -> int | None:
        """The number of a sample; None where there is no such one, or it is written in another way."""
        text, dot, part = key.partition(".")
        if not (dot and part == PART and text.isascii() and text.isdecimal()) or (text[0] == "0" and text != "0"):
            return None
        number = int(text)
        return number if number < len(self._source) else None

    def close(self) -> None:
        """Close the file; reading again opens it anew."""
        self._source.close()
