"""Sorting the keys of a dataset of any size in bounded memory, through files.

The keys are cut into runs that are sorted one by one and written to files. Keys drawn from all runs at regular
distances are the borders of buckets of about equal size; a bucket is the matching piece of every run, is sorted in
memory, and the buckets one after the other are the order (sample sort). So every key is sorted twice, and all files are
read and written from beginning to end.

100 million keys in random order with 512 MiB: 24 runs, 24 buckets, files of 16 bytes a key and the keys themselves.
"""

from __future__ import annotations

import tempfile
from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from energon_grain.formats.column_file import release_pages
from energon_grain.formats.key_order import KeyWords, duplicate_keys, key_order

Int64Array = npt.NDArray[np.int64]
Uint8Array = npt.NDArray[np.uint8]
Duplicates = Callable[[Int64Array], None]

SORT_MEMORY_BYTES = 512 << 20
_BYTES_A_KEY = 128  # what sorting takes at its worst moment, keys of 12 bytes included
_BLOCK_KEYS = 1 << 18
_DRAWN = 256  # keys drawn from each run for each bucket: buckets differ by a few percent


def external_key_order(
    key_start: Int64Array,
    key_bytes: Uint8Array,
    scratch: Path,
    *,
    memory_bytes: int = SORT_MEMORY_BYTES,
    on_duplicates: Duplicates | None = None,
) -> Iterator[Int64Array]:
    """Give `key_order` of all keys, block by block.

    Keys that are in order already are noticed in one pass and cost nothing else. Columns that are memory maps are
    released as it goes.

    Args:
        key_start: (n + 1,) where each key starts.
        key_bytes: All keys, one after the other.
        scratch: A folder for temporary files, where the keys do not fit into `memory_bytes`.
        memory_bytes: About the most memory to take.
        on_duplicates: Called with (m, 2) numbers of keys that are equal, neighbours in the order; not called if there
            are none.
    """
    total = len(key_start) - 1
    run = max(1, memory_bytes // _BYTES_A_KEY)
    if total <= run:
        order = key_order(key_start, key_bytes)
        _report(on_duplicates, key_start, key_bytes, order, order)
        yield order
        return
    if is_ascending(key_start, key_bytes):
        words = KeyWords(key_start, key_bytes)
        for begin in range(0, total, _BLOCK_KEYS):
            rows = np.arange(begin, min(begin + _BLOCK_KEYS, total), dtype=np.int64)
            if on_duplicates is not None:
                before = rows[rows < total - 1]
                equal = before[words.equal(before, words, before + 1)]
                if len(equal):
                    on_duplicates(np.stack([equal, equal + 1], axis=1))
                _release(key_start, key_bytes)
            yield rows
        return
    with tempfile.TemporaryDirectory(dir=scratch, prefix=".key-order-") as folder:
        runs = [
            _Run.sort(Path(folder) / str(begin), key_start, key_bytes, begin, min(begin + run, total))
            for begin in range(0, total, run)
        ]
        yield from _sorted_buckets(runs, -(-total // run), on_duplicates)


def is_ascending(key_start: Int64Array, key_bytes: Uint8Array) -> bool:
    """Say whether no key is smaller than the one before it. Takes little memory, whatever the number of keys."""
    total = len(key_start) - 1
    for begin in range(0, total - 1, _BLOCK_KEYS):
        rows = np.arange(begin, min(begin + _BLOCK_KEYS + 1, total), dtype=np.int64)
        if not np.array_equal(key_order(key_start, key_bytes, rows), rows):
            return False
        _release(key_start, key_bytes)
    return True


def gather_keys(key_start: Int64Array, key_bytes: Uint8Array, rows: Int64Array) -> tuple[Int64Array, Uint8Array]:
    """Return the keys of `rows`, one after the other: (m + 1,) where each starts, and the bytes."""
    begin = key_start[rows]
    length = key_start[rows + 1] - begin
    start = np.concatenate([[0], np.cumsum(length)]).astype(np.int64)
    if not int(start[-1]):
        return start, np.zeros(0, np.uint8)
    if (length == length[0]).all():  # six times as fast
        size = int(length[0])
        anywhere = np.ndarray((len(key_bytes) - size + 1,), dtype=f"V{size}", buffer=key_bytes, strides=(1,))
        return start, anywhere[begin].view(np.uint8)
    source = np.arange(int(start[-1])) + np.repeat(begin - start[:-1], length)
    return start, key_bytes[source]


@dataclass(frozen=True, slots=True)
class _Run:
    """Some keys, sorted, in files: their numbers, where they start, and their bytes."""

    base: Path
    keys: int

    @classmethod
    def sort(cls, base: Path, key_start: Int64Array, key_bytes: Uint8Array, begin: int, end: int) -> _Run:
        order = key_order(key_start, key_bytes, np.arange(begin, end, dtype=np.int64))
        run = cls(base, len(order))
        order.tofile(run._file("order"))
        with open(run._file("start"), "wb") as starts, open(run._file("bytes"), "wb") as text:
            written = 0
            for place in range(0, len(order), _BLOCK_KEYS):
                start, data = gather_keys(key_start, key_bytes, order[place : place + _BLOCK_KEYS])
                starts.write((start[:-1] + written).data.cast("B"))
                text.write(data.tobytes())
                written += len(data)
            starts.write(written.to_bytes(8, "little"))
        _release(key_start, key_bytes)
        return run

    def draw(self, count: int) -> list[bytes]:
        """Return about `count` keys at regular distances."""
        return [self._key(place) for place in range(0, self.keys, max(1, self.keys // count))]

    def cut(self, border: bytes) -> int:
        """Return how many keys are smaller than `border`."""
        return bisect_left(range(self.keys), border, key=self._key)

    def piece(self, begin: int, end: int) -> tuple[Int64Array, Int64Array, Uint8Array]:
        """Return numbers, starts and bytes of the sorted keys [begin, end)."""
        order = np.fromfile(self._file("order"), np.int64, end - begin, offset=8 * begin)
        start = np.fromfile(self._file("start"), np.int64, end - begin + 1, offset=8 * begin)
        text = np.fromfile(self._file("bytes"), np.uint8, int(start[-1] - start[0]), offset=int(start[0]))
        return order, start - start[0], text

    def _key(self, place: int) -> bytes:
        return self.piece(place, place + 1)[2].tobytes()

    def _file(self, name: str) -> Path:
        return self.base.with_name(f"{self.base.name}.{name}")


def _sorted_buckets(runs: list[_Run], buckets: int, on_duplicates: Duplicates | None) -> Iterator[Int64Array]:
    drawn = sorted(key for run in runs for key in run.draw(_DRAWN * buckets))
    borders = [drawn[len(drawn) * place // buckets] for place in range(1, buckets)]
    del drawn
    cuts = [[0, *(run.cut(border) for border in borders), run.keys] for run in runs]
    for bucket in range(buckets):
        pieces = [run.piece(cut[bucket], cut[bucket + 1]) for run, cut in zip(runs, cuts, strict=True)]
        rows = np.concatenate([order for order, _, _ in pieces])
        ends = np.cumsum([0, *(int(start[-1]) for _, start, _ in pieces)])
        starts = [start[:-1] + end for (_, start, _), end in zip(pieces, ends, strict=False)]
        start, text = np.concatenate([*starts, ends[-1:]]), np.concatenate([text for _, _, text in pieces])
        del pieces, starts
        order = key_order(start, text)
        rows = rows[order]
        _report(on_duplicates, start, text, order, rows)
        yield rows


def _report(
    on_duplicates: Duplicates | None, start: Int64Array, text: Uint8Array, order: Int64Array, rows: Int64Array
) -> None:
    """Report neighbours in `order` that are equal, by their numbers in the dataset."""
    places = np.zeros(0, np.int64) if on_duplicates is None else duplicate_keys(start, text, order)
    if on_duplicates is not None and len(places):
        on_duplicates(np.stack([rows[places], rows[places + 1]], axis=1))


def _release(key_start: Int64Array, key_bytes: Uint8Array) -> None:
    release_pages(key_start)
    release_pages(key_bytes)
