# SPDX-License-Identifier: Apache-2.0
"""Sorts the keys of a whole dataset as bytes, in numpy.

Keys are variable-length byte strings in CSR form: key i is `key_bytes[key_start[i]:key_start[i + 1]]`. They are sorted
by their first eight bytes, read as one big-endian integer; ties are sorted again by the next eight bytes:

    keys      b"cat/10"   b"cat/9"   b"a_very_long_1"   b"a_very_long_0"
    word 0      cat/10      cat/9       a_very_l           a_very_l        the last two tie
    word 1                              ong_1              ong_0
    order     [3, 2, 0, 1]

Usual names (zero-padded numbers) are already sorted, which one pass detects.
"""

from __future__ import annotations

import itertools
import tempfile
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from energon_grain.errors import DuplicateKeyError
from energon_grain.samplers.hashing import GAMMA, splitmix64
from energon_grain.storage.memory_maps import release_pages

_WORD_BYTES = 8


def hash_keys(words: KeyWords, rows: npt.NDArray[np.int64], *, seed: int = 0) -> npt.NDArray[np.uint64]:
    """Hash the keys of `rows`: equal keys have equal hashes, different keys almost never.

    Among 100 million keys, some two have the same hash with a probability of 1 in 3,700. Other seeds give other hashes.
    """
    begin, length = words.spans(rows)
    hashed = splitmix64(length.astype(np.uint64) + np.uint64(seed * GAMMA % (1 << 64)))
    longest, shortest = (int(length.max()), int(length.min())) if len(length) else (0, 0)
    for depth in range(0, longest, _WORD_BYTES):
        if depth < shortest:
            hashed = splitmix64(hashed ^ words.word(begin + depth, length - depth))
        else:
            places = np.flatnonzero(length > depth)
            word = words.word(begin[places] + depth, length[places] - depth)
            hashed[places] = splitmix64(hashed[places] ^ word)
    return hashed


_FIRST_BYTES = np.array([(1 << 64) - (1 << 8 * (8 - count)) for count in range(9)], dtype=np.uint64)
"""Masks of the first 0 to 8 bytes of a word."""


def key_order(
    key_start: npt.NDArray[np.int64],
    key_bytes: npt.NDArray[np.uint8],
    rows: npt.NDArray[np.int64] | None = None,
) -> npt.NDArray[np.int64]:
    """Return the argsort of keys, all or those of `rows`, as bytes; equal keys stay in the order of their numbers.

    Takes about 0.02 µs per key for sorted keys and 0.3 µs for keys in random order, and memory of about 40 bytes per
    key in addition to `key_bytes`; `external_key_order` takes less.
    """
    words = KeyWords(key_start, key_bytes)
    order = np.arange(len(words), dtype=np.int64) if rows is None else rows.copy()
    if len(order) < 2 or _is_ascending(words, order):
        return order
    tied = np.arange(len(order), dtype=np.int64)  # places in `order` whose keys equal a neighbor's so far
    group = np.zeros(len(order), dtype=np.int64)  # the run of equal keys that each belongs to
    longest = int(words.lengths(order).max())
    for depth in range(0, longest, _WORD_BYTES):
        rows = order[tied]
        word = words.at(rows, depth)
        if depth == 0:
            by_word = np.argsort(word)
        elif len(tied) and group[0] == group[-1]:
            by_word = np.arange(len(tied)) if word.min() == word.max() else np.argsort(word)
        else:
            by_word = np.lexsort((word, group))
        order[tied] = rows[by_word]
        tied, group = _ties(tied, group, word[by_word])
        if not len(tied):
            return order
    # The remaining keys differ at most in trailing NUL bytes, that is, in length.
    rows = order[tied]
    order[tied] = rows[np.lexsort((rows, words.lengths(rows), group))]
    return order


def duplicate_keys(
    key_start: npt.NDArray[np.int64],
    key_bytes: npt.NDArray[np.uint8],
    order: npt.NDArray[np.int64],
) -> npt.NDArray[np.int64]:
    """Return the places p of `order`, from `key_order`, where key `order[p]` equals key `order[p + 1]`."""
    words = KeyWords(key_start, key_bytes)
    return np.flatnonzero(words.equal(order[:-1], words, order[1:]))


def _is_ascending(words: KeyWords, rows: npt.NDArray[np.int64]) -> bool:
    before, after = rows[:-1], rows[1:]
    longest = int(words.lengths(rows).max())
    for depth in range(0, longest, _WORD_BYTES):
        first, second = words.at(before, depth), words.at(after, depth)
        if (first > second).any():
            return False
        same = first == second
        before, after = before[same], after[same]
        if not len(before):
            return True
    shorter = words.lengths(before) - words.lengths(after)
    return bool(((shorter < 0) | ((shorter == 0) & (before < after))).all())


def _ties(
    places: npt.NDArray[np.int64], group: npt.NDArray[np.int64], word: npt.NDArray[np.uint64]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Keep the places whose group and word equal a neighbor's, with new group numbers."""
    same = np.zeros(len(places) + 1, dtype=np.bool_)  # same[i]: place i - 1 and place i tie
    same[1:-1] = (word[1:] == word[:-1]) & (group[1:] == group[:-1])
    kept = same[1:] | same[:-1]
    numbered: npt.NDArray[np.int64] = np.cumsum(~same[:-1], dtype=np.int64)
    return places[kept], numbered[kept]


class KeyWords:
    """Keys as big-endian words of eight bytes, padded with zeros."""

    def __init__(self, key_start: npt.NDArray[np.int64], key_bytes: npt.NDArray[np.uint8]) -> None:
        self._bounds = np.asarray(key_start)
        if len(key_bytes) < _WORD_BYTES:
            key_bytes = np.concatenate([key_bytes, np.zeros(_WORD_BYTES, np.uint8)])
        self._last = len(key_bytes) - _WORD_BYTES
        # Every byte offset is the start of one (unaligned) word: no padded copy of the keys is needed.
        self._words = np.ndarray((self._last + 1,), dtype=">u8", buffer=key_bytes, strides=(1,))

    def __len__(self) -> int:
        return len(self._bounds) - 1

    def lengths(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        return self._bounds[rows + 1] - self._bounds[rows]

    def equal(
        self, rows: npt.NDArray[np.int64], other: KeyWords, other_rows: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.bool_]:
        """Whether the key `rows[i]` equals the key `other_rows[i]` of `other`, for each pair.

        The last bytes are compared first: in sorted order neighbors share their beginnings.
        """
        begin, length = self.spans(rows)
        other_begin, other_length = other.spans(other_rows)
        result = length == other_length
        result &= self.word(*_tail(begin, length)) == other.word(*_tail(other_begin, other_length))
        places = np.flatnonzero(result & (length > _WORD_BYTES))
        depth = 0
        while len(places):
            left = length[places] - depth
            same = self.word(begin[places] + depth, left) == other.word(other_begin[places] + depth, left)
            result[places[~same]] = False
            depth += _WORD_BYTES
            places = places[same & (left > 2 * _WORD_BYTES)]
        return result

    def spans(self, rows: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        begin = self._bounds[rows]
        return begin, self._bounds[rows + 1] - begin

    def at(self, rows: npt.NDArray[np.int64], depth: int | npt.NDArray[np.int64]) -> npt.NDArray[np.uint64]:
        """Bytes [depth, depth + 8) of the keys of `rows`; zeros after the end of a key."""
        begin, length = self.spans(rows)
        return self.word(begin + depth, length - depth)

    def word(self, begin: npt.NDArray[np.int64], left: npt.NDArray[np.int64]) -> npt.NDArray[np.uint64]:
        """The eight bytes from `begin`, with those after the first `left` replaced by zeros."""
        if not len(begin):
            return np.zeros(0, np.uint64)
        near_end = begin.max() > self._last  # these words would reach past the end of the array
        word = self._words[np.minimum(begin, self._last) if near_end else begin].astype(np.uint64)
        if near_end:
            places = np.flatnonzero(begin > self._last)
            word[places] = _shift_left(word[places], begin[places] - self._last)
        if left.min() < _WORD_BYTES:
            word &= _FIRST_BYTES[np.clip(left, 0, _WORD_BYTES)]
        return word


def _tail(
    begin: npt.NDArray[np.int64], length: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The last eight bytes of keys, or all of shorter ones, in the form that `KeyWords.word` takes."""
    skipped = np.maximum(length - _WORD_BYTES, 0)
    return begin + skipped, length - skipped


def _shift_left(word: npt.NDArray[np.uint64], byte_count: npt.NDArray[np.int64]) -> npt.NDArray[np.uint64]:
    shifted = word << (np.minimum(byte_count, 7) * 8).astype(np.uint64)
    return np.where(byte_count >= _WORD_BYTES, np.uint64(0), shifted)


Int64Array = npt.NDArray[np.int64]
Uint8Array = npt.NDArray[np.uint8]
Duplicates = Callable[[Int64Array], None]

SORT_MEMORY_BYTES = 512 << 20
_BYTES_PER_KEY = 128  # peak memory of sorting, including keys of 12 bytes
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
    """Yield `key_order` of all keys in blocks, within about `memory_bytes` and temporary files in `scratch`.

    Sorted keys are detected in one pass at no further cost. Memory-mapped columns are released on the way.
    `on_duplicates` is called with (m, 2) numbers of equal keys, which are neighbors in the order.
    """
    total = len(key_start) - 1
    run = max(1, memory_bytes // _BYTES_PER_KEY)
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
    """Whether no key is smaller than its predecessor. Takes little memory for any number of keys."""
    total = len(key_start) - 1
    for begin in range(0, total - 1, _BLOCK_KEYS):
        rows = np.arange(begin, min(begin + _BLOCK_KEYS + 1, total), dtype=np.int64)
        if not np.array_equal(key_order(key_start, key_bytes, rows), rows):
            return False
        _release(key_start, key_bytes)
    return True


def gather_keys(key_start: Int64Array, key_bytes: Uint8Array, rows: Int64Array) -> tuple[Int64Array, Uint8Array]:
    """Return the keys of `rows`, concatenated: (m + 1,) start of each, and the bytes."""
    begin = key_start[rows]
    length = key_start[rows + 1] - begin
    start = np.concatenate([[0], np.cumsum(length)]).astype(np.int64)
    if not int(start[-1]):
        return start, np.zeros(0, np.uint8)
    if (length == length[0]).all():  # six times faster
        size = int(length[0])
        anywhere = np.ndarray((len(key_bytes) - size + 1,), dtype=f"V{size}", buffer=key_bytes, strides=(1,))
        return start, anywhere[begin].view(np.uint8)
    source = np.arange(int(start[-1])) + np.repeat(begin - start[:-1], length)
    return start, key_bytes[source]


@dataclass(frozen=True, slots=True)
class _Run:
    """Some sorted keys, in files: their numbers, their starts, and their bytes."""

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
        """Return about `count` keys at regular intervals."""
        return [self._key(place) for place in range(0, self.keys, max(1, self.keys // count))]

    def cut(self, border: bytes) -> int:
        """Return the number of keys smaller than `border`."""
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
    """Report neighbors in `order` that are equal, by their numbers in the dataset."""
    places = np.zeros(0, np.int64) if on_duplicates is None else duplicate_keys(start, text, order)
    if on_duplicates is not None and len(places):
        on_duplicates(np.stack([rows[places], rows[places + 1]], axis=1))


def _release(key_start: Int64Array, key_bytes: Uint8Array) -> None:
    release_pages(key_start)
    release_pages(key_bytes)


_LISTED = 5


class DuplicateKeys:
    """Samples that share a key with another one: their number, and the first few. Needs no memory for the others."""

    def __init__(self) -> None:
        self._count = 0
        self._listed: list[str] = []

    def add(self, count: int, examples: Iterable[tuple[bytes, str, str]]) -> None:
        """Add some of them, with key and the names of both shards for the first few."""
        self._count += count
        for key, one, other in itertools.islice(examples, _LISTED - len(self._listed)):
            places = f"{one} twice" if one == other else f"{one} and in {other}"
            self._listed.append(f"{key.decode('utf-8', 'backslashreplace')!r} in {places}")

    def refuse(self) -> None:
        """Raise DuplicateKeyError if there are any. Lists a few of them with their shards."""
        if not self._count:
            return
        more = f" and {self._count - len(self._listed)} more" if self._count > len(self._listed) else ""
        raise DuplicateKeyError(
            f"{self._count} samples share a key with another sample: {'; '.join(self._listed)}{more}. Keys (the name "
            f"of a tar member up to the first dot of its last component) must be unique within a dataset, and the "
            f"members of a sample adjacent; rename them, or use fix_duplicates (--fix-duplicates) to prefix each with "
            f"the path of its tar"
        )
