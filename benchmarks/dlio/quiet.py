"""DLIO without one debug text: `python -m benchmarks.dlio.quiet workload=...`.

For each sample, DLIO e1919d7 formats its map of all files for a debug message, which takes milliseconds for thousands
of files, also where debug messages are off (`FormatReader.read_index` in `reader/reader_handler.py`). Its loader then
waits for that text instead of files. Here the map has a short text; nothing else differs.
"""

from __future__ import annotations

from typing import Any

from dlio_benchmark import main
from dlio_benchmark.utils.config import ConfigArguments


class ShortMap(dict[Any, Any]):
    """A dictionary with a short text."""

    def __format__(self, spec: str) -> str:
        return f"{len(self)} samples"


def shorten() -> None:
    """Let DLIO make maps of files with a short text."""
    make = ConfigArguments.get_global_map_index

    def short(self: ConfigArguments, *arguments: Any, **keywords: Any) -> tuple[ShortMap, int]:
        samples, total = make(self, *arguments, **keywords)
        return ShortMap(samples), total

    ConfigArguments.get_global_map_index = short


if __name__ == "__main__":
    shorten()
    main.main()
