# SPDX-License-Identifier: Apache-2.0
"""The raw samples of a split part that belong to a leaf: a range, without excluded samples."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from energon_grain.errors import ConfigError, EmptyDatasetError
from energon_grain.samplers.expression import Expression
from energon_grain.samplers.hashing import fold

PERCENT = r"\s*[0-9]+(\.[0-9]*)?\s*%\s*"
_WHOLE = (Fraction(0), Fraction(1))


_BLOCK = 128
"""Samples of a block: 16 bytes of the bitmap, and 8 bytes for the count before it, together 1.5 bits per sample."""
_PLACES = np.zeros((256, 8), np.uint8)
for _byte in range(256):
    _PLACES[_byte, : _byte.bit_count()] = [place for place in range(8) if _byte >> place & 1]
"""(256, 8) positions of the ones of a byte, the lowest first."""
_SHORT_RUN = 256
_U64 = np.uint64
_EACH, _HIGH = _U64(0x0101010101010101), _U64(0x8080808080808080)


def _ones_below(words: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """For each byte i of each word, the number of ones in bytes 0 to i: at most 64.

    Source: S. Vigna, "Broadword implementation of rank/select queries", WEA 2008.
    """
    pairs = words - (words >> _U64(1) & _U64(0x5555555555555555))
    fours = (pairs & _U64(0x3333333333333333)) + (pairs >> _U64(2) & _U64(0x3333333333333333))
    return (fours + (fours >> _U64(4)) & _U64(0x0F0F0F0F0F0F0F0F)) * _EACH


def select(
    first: npt.NDArray[np.int64], before: npt.NDArray[np.int64], block: npt.NDArray[np.uint64]
) -> npt.NDArray[np.int64]:
    """(n,) `first` plus the offset of the one bit in `block`, (n, 2), that has `before` ones before it."""
    word, second = block.T
    left = before.astype(np.uint64)
    behind = _ones_below(word)
    ones = behind >> _U64(56)
    later = left >= ones
    left -= np.where(later, ones, _U64(0))
    word = np.where(later, second, word)
    behind = np.where(later, _ones_below(second), behind)
    # The byte: the number of bytes whose cumulative ones do not exceed `left`, compared in parallel.
    ended = ((left * _EACH | _HIGH) - behind & _HIGH) >> _U64(7)
    shift = (ended * _EACH >> _U64(56)) << _U64(3)
    own = word >> shift & _U64(255)
    left -= behind << _U64(8) >> shift & _U64(255)
    place = shift.astype(np.int64) + _PLACES[own.astype(np.intp), left.astype(np.intp)]
    return first + place + np.where(later, 64, 0)


class Selection:
    """The samples [start, stop) of `total` raw ones, without excluded ones, renumbered 0, 1, 2, ... in raw order.

    The range counts raw samples, including excluded ones (as in Energon); `len` is the number of remaining samples.
    With `total=10, start=2, stop=8, excluded=[3, 9]` the raw samples are 2, 4, 5, 6, 7 and the length is 5.

    A range is arithmetic, and so are samples excluded by name, because they are few. For a condition, a bitmap stores
    the kept samples and, for each 128 bits, the number of kept ones before: 1.5 bits per raw sample, for any share
    kept. The k-th kept sample is found by a binary search for its block, then by counting ones in parallel in the bytes
    of a word.

    Attributes:
        total: number of raw samples in the split part.
        start: first raw sample of the range.
        stop: end of the range, exclusive.
        excluded: raw ranks inside the range that are excluded by name, ascending, int64 (e,).
        digest: a word that identifies the samples kept by `where`, for `fold`; empty if it was not used.
        condition: the condition passed to `where`; None if it was not used.
    """

    __slots__ = (
        *("_before", "_bits", "_kept_before", "_length", "_stretches"),
        *("condition", "digest", "excluded", "start", "stop", "total"),
    )

    def __init__(
        self,
        total: int,
        *,
        start: int = 0,
        stop: int | None = None,
        excluded: npt.NDArray[np.int64] | Sequence[int] = (),
    ) -> None:
        """Select a range.

        Args:
            total: number of raw samples.
            start: first raw sample of the range.
            stop: end of the range, exclusive; None is `total`.
            excluded: raw ranks in [0, total) to exclude, in any order, repeats allowed.

        Raises:
            ConfigError: the range or an excluded rank does not fit the raw samples.
            EmptyDatasetError: no sample remains.
        """
        stop = total if stop is None else stop
        if not 0 <= start <= stop <= total:
            raise ConfigError(f"subset [{start}, {stop}) of {total} samples: 0 <= start <= stop <= {total} must hold")
        ranks = np.asarray(excluded, dtype=np.int64)
        if ranks.size:
            ranks = np.unique(ranks)
            if not (ranks[0] >= 0 and ranks[-1] < total):
                bad = int(ranks[0] if ranks[0] < 0 else ranks[-1])
                raise ConfigError(f"excluded sample {bad} does not exist: there are {total} samples, numbered from 0")
            ranks = ranks[np.searchsorted(ranks, start) : np.searchsorted(ranks, stop)]
        if ranks.size >= stop - start:
            raise EmptyDatasetError(
                f"subset [{start}, {stop}) of {total} samples without {ranks.size} excluded ones is empty; "
                "widen the range or exclude less"
            )
        self.total = total
        self.start = start
        self.stop = stop
        self.excluded = ranks
        self.digest: tuple[int, ...] = ()
        self.condition: Mapping[str, Any] | None = None
        self._length = stop - start - int(ranks.size)
        # excluded[i] - start - i kept samples are before excluded sample i of the range.
        self._kept_before = ranks - start - np.arange(ranks.size, dtype=np.int64)
        self._bits: npt.NDArray[np.uint64] | None = None
        self._stretches: tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]] | None = None

    @classmethod
    def of_stretches(
        cls,
        begin: npt.NDArray[np.int64],
        end: npt.NDArray[np.int64],
        *,
        start: int = 0,
        stop: int | None = None,
        excluded: npt.NDArray[np.int64] | Sequence[int] = (),
    ) -> Selection:
        """Samples of stretches [begin[i], end[i]) of raw ones, in any order, concatenated.

        `total`, `start`, `stop` and `excluded` count along the stretches: `ranks`.

        Raises: as the constructor.
        """
        first = np.cumsum(end - begin) - (end - begin)
        found = cls(int((end - begin).sum()), start=start, stop=stop, excluded=excluded)
        first, shift = first[end > begin], (begin - first)[end > begin]
        new = np.diff(shift, prepend=shift[:1] - 1) != 0  # a stretch that follows directly is merged with the previous
        if new.sum() > 1 or shift[0]:
            found._stretches = first[new], shift[new]
        return found

    @classmethod
    def of_runs(
        cls, total: int, runs: Sequence[tuple[int, int]], *, start: int = 0, stop: int | None = None
    ) -> Selection:
        """Samples [start, stop) of those in runs [begin, end) of raw ranks, which ascend and do not overlap.

        Raises: as the constructor.
        """
        bounds = np.array(runs, np.int64).reshape(-1, 2)
        first = np.concatenate([[0], np.cumsum(bounds[:, 1] - bounds[:, 0])])
        within = cls(int(first[-1]), start=start, stop=stop)
        low = np.searchsorted(first, [within.start, within.stop - 1], side="right") - 1
        begin, last = (np.array([within.start, within.stop - 1]) - first[low] + bounds[low, 0]).tolist()
        found = cls(total, start=begin, stop=last + 1)
        if last + 1 - begin == len(within):
            return found
        keep = np.zeros(last + 1 - begin, np.bool_)
        for low, high in (np.clip(bounds, begin, last + 1) - begin).tolist():
            keep[low:high] = True
        return found._narrowed(keep, None)

    def _keep(self, bits: npt.NDArray[np.uint8]) -> None:
        self._bits = bits.view("<u8").astype(np.uint64, copy=False).reshape(-1, 2)
        self._before = np.zeros(len(self._bits) + 1, np.int64)
        for begin in range(0, len(self._bits), _BLOCK << 10):
            ones = _ones_below(self._bits[begin : begin + (_BLOCK << 10)]) >> _U64(56)
            self._before[begin + 1 : begin + 1 + len(ones)] = ones.sum(axis=1)
        np.cumsum(self._before, out=self._before)
        self._length = int(self._before[-1])

    def where(self, keep: npt.NDArray[np.bool_], condition: Mapping[str, Any]) -> Selection:
        """The samples of this selection for which `keep`, (len(self),), is true. At least one must be true.

        Args:
            keep: (len(self),) which to keep.
            condition: the condition, for manifests; JSON-native.
        """
        if not self.is_range:
            raw = np.zeros(self.stop - self.start, np.bool_)
            raw[self.ranks(np.arange(len(self))) - self.start] = keep
            keep = raw
        return self._narrowed(keep, condition)

    def _narrowed(self, keep: npt.NDArray[np.bool_], condition: Mapping[str, Any] | None) -> Selection:
        """The samples in the range for which `keep`, (stop - start,), is true."""
        packed = np.packbits(keep, bitorder="little")
        bits = np.zeros(-(-packed.size // (_BLOCK // 8)) * (_BLOCK // 8), np.uint8)
        bits[: packed.size] = packed
        narrowed = copy(self)
        narrowed._keep(bits)
        narrowed.digest = (fold(bits.tobytes()),)
        narrowed.condition = condition
        return narrowed

    def __getstate__(self) -> tuple[Any, ...]:
        bits = None if self._bits is None else self._bits.astype("<u8", copy=False).reshape(-1).view(np.uint8)
        return self.total, self.start, self.stop, self.excluded, self.digest, self.condition, self._stretches, bits

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        total, start, stop, excluded, digest, condition, stretches, bits = state
        Selection.__init__(self, total, start=start, stop=stop, excluded=excluded)
        self.digest, self.condition, self._stretches = digest, condition, stretches
        if bits is not None:
            self._keep(bits)

    def __len__(self) -> int:
        return self._length

    def __repr__(self) -> str:
        return f"Selection({self.total}, start={self.start}, stop={self.stop}, samples={len(self)})"

    @property
    def is_range(self) -> bool:
        """Whether no sample inside the range is left out."""
        return self._bits is None and not self.excluded.size

    @property
    def has_bitmap(self) -> bool:
        """Whether a condition selects the samples."""
        return self._bits is not None

    @property
    def stretches(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """(k,) first rank of each stretch, and (k,) the shift from its ranks to raw numbers."""
        return self._stretches or (np.zeros(1, np.int64), np.zeros(1, np.int64))

    def to_raw(self, indices: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the raw numbers of samples of the selection.

        Args:
            indices: numbers in [0, len(self)), any shape; not checked.

        Returns:
            A new int64 array of the same shape.
        """
        ranks = self.ranks(indices)
        if self._stretches is not None:
            first, shift = self._stretches
            ranks += shift[np.searchsorted(first, ranks, side="right") - 1]
        return ranks

    def indices_of(self, raw: int) -> npt.NDArray[np.int64]:
        """(k,) samples of the selection with a raw number: none or one, or several if stretches overlap."""
        first, shift = self.stretches
        ranks = raw - shift
        ranks = ranks[(ranks >= first) & (ranks < np.append(first[1:], self.total))]
        low, high = np.zeros(len(ranks), np.int64), np.full(len(ranks), len(self), np.int64)
        while (open_ := low < high).any():  # `ranks` ascends
            middle = (low + high) // 2
            before = open_ & (self.ranks(np.minimum(middle, len(self) - 1)) < ranks)
            low, high = np.where(before, middle + 1, low), np.where(open_ & ~before, middle, high)
        low = np.minimum(low, len(self) - 1)
        return low[self.ranks(low) == ranks]

    def ranks(self, indices: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """As `to_raw`, but ranks along the stretches, in [start, stop). Without stretches they are the raw numbers."""
        if self._bits is None:
            raw = indices + np.int64(self.start)
            if self.excluded.size:
                raw += np.searchsorted(self._kept_before, indices, side="right")
            return raw
        asked = np.asarray(indices, np.int64).reshape(-1)
        order = np.argsort(asked)  # ascending ones are searched three times as fast
        raw = np.empty_like(asked)
        raw[order] = select(*self.blocks_of(asked[order]))
        return raw.reshape(np.shape(indices))

    def blocks_of(
        self, indices: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.uint64]]:
        """The arguments of `select`, to look up samples of many selections at once. Only with a bitmap.

        Args:
            indices: (n,) in [0, len(self)).

        Returns:
            (n,) raw rank of the first sample of the block of each, (n,) kept ones of the block before it, and (n, 2)
            the block.
        """
        assert self._bits is not None
        block = np.searchsorted(self._before, indices, side="right") - 1
        return block * _BLOCK + self.start, indices - self._before[block], self._bits[block]

    def raw_runs(self, first: int, stop: int) -> list[slice]:
        """The raw numbers of samples [first, stop) of the selection, as slices in order; empty: they are too scattered.

        Only runs of stretches with a mean of at least 256 samples are worthwhile.
        """
        if first >= stop:
            return [slice(self.start, self.start)]
        begin, last = self.ranks(np.array([first, stop - 1])).tolist()
        if last - begin != stop - 1 - first:
            return []
        firsts, shifts = self.stretches
        low, high = (np.searchsorted(firsts, [begin, last], side="right") - 1).tolist()
        if high - low > (stop - first) // _SHORT_RUN:
            return []
        ends = [begin, *firsts[low + 1 : high + 1].tolist(), last + 1]
        moved = zip(ends, ends[1:], shifts[low : high + 1].tolist(), strict=False)
        return [slice(own + shift, end + shift) for own, end, shift in moved]

    def cut_by(self, bounds: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """(k,) number of samples of the selection before each raw rank of `bounds`, ascending, without duplicates."""
        low, high = np.zeros(len(bounds), np.int64), np.full(len(bounds), len(self), np.int64)
        while (open_ := low < high).any():  # `to_raw` ascends
            middle = (low + high) // 2
            before = np.where(open_, self.to_raw(np.minimum(middle, len(self) - 1)) < bounds, False)
            low, high = np.where(before, middle + 1, low), np.where(open_ & ~before, middle, high)
        return np.unique(low)


@dataclass(frozen=True, kw_only=True, slots=True)
class Subset:
    """Consecutive samples of a split part, counted before samples are excluded.

    The absolute range is applied first, then the share of the result: `absolute=(10, 30), share=(1/5, 4/5)` are the
    samples 14 to 25. Shares are exact: 29% of 100 samples are 29 (Energon's floats make them 28).

    Attributes:
        absolute: First sample, and one past the last; None for the end of the split part.
        share: Start and end as fractions of the whole.
    """

    absolute: tuple[int, int | None] | None = None
    share: tuple[Fraction, Fraction] = _WHOLE

    def __post_init__(self) -> None:
        start, stop = self.share
        if not 0 <= start < stop <= 1:
            raise ConfigError(f"subset {self}: 0% <= start < end <= 100% must hold")
        if self.absolute is not None:
            first, last = self.absolute
            if first < 0 or (last is not None and last <= first):
                raise ConfigError(f"subset {self}: 0 <= start < end must hold, the range would be empty")

    @classmethod
    def parse(cls, value: Any) -> Subset:
        """Parse `{"range": [10, 30]}` or, for short, `[10, 30]`, `[10, "end"]`, `["20%", "80%"]`.

        Raises ConfigError if it is none of these, mixes percentages with numbers, or is empty.
        """
        if isinstance(value, Subset):
            return value
        first, last = _bounds(value)
        start = _bound(first, value)
        if isinstance(last, str) and last.strip() == "end":
            if isinstance(start, Fraction):
                raise ConfigError(f"subset {value!r}: `end` is only valid with sample numbers; write 100%")
            return cls(absolute=(start, None))
        stop = _bound(last, value)
        if isinstance(start, int) and isinstance(stop, int):
            return cls(absolute=(start, stop))
        if isinstance(start, Fraction) and isinstance(stop, Fraction):
            return cls(share=(start, stop))
        raise ConfigError(f"subset {value!r}: both bounds must be percentages, or both sample numbers")

    def within(self, outer: Subset) -> Subset:
        """Take the share of `outer` of this subset. The inner one is applied first.

        Raises ConfigError if `outer` is absolute: sample numbers are only meaningful for a single dataset.
        """
        if outer.absolute is not None:
            raise ConfigError(f"subset {outer} counts samples, which only works for a single dataset; use percentages")
        start, stop = self.share
        length = stop - start
        return Subset(absolute=self.absolute, share=(start + outer.share[0] * length, start + outer.share[1] * length))

    def resolve(self, total: int, *, of: str = "the split part") -> tuple[int, int]:
        """(start, stop) in samples of a split part with `total` samples. Shares are rounded down to whole samples.

        Args:
            total: Samples of the split part, before any are excluded.
            of: Name of the split part, for messages.

        Raises:
            ConfigError: An absolute bound is past the end.
        """
        first, last = (0, total) if self.absolute is None else self.absolute
        last = total if last is None else last
        if last > total or first > last:
            raise ConfigError(f"subset {self}: {of} has only {total:,} samples")
        return first + int(self.share[0] * (last - first)), first + int(self.share[1] * (last - first))

    def __str__(self) -> str:
        absolute = None if self.absolute is None else "[{}, {}]".format(self.absolute[0], self.absolute[1] or "end")
        share = "[{}, {}]".format(*map(_percent, self.share))
        if absolute is None:
            return share
        return absolute if self.share == _WHOLE else f"{share} of {absolute}"


def part_of(subset: Subset | None, where: Expression | None) -> str:
    """Description of a selection from a split part, which identifies the leaf; empty: everything."""
    condition = None if where is None else f"where {where}"
    return " ".join(str(each) for each in (subset, condition) if each is not None)


def _bounds(value: Any) -> tuple[Any, Any]:
    """Both bounds, unparsed."""
    bounds: Any = value
    if isinstance(value, Mapping):
        if set(value) != {"range"}:
            raise ConfigError(f"subset {value!r}: expected `range: [start, end]` and no other key")
        bounds = value["range"]
    if not isinstance(bounds, Sequence) or isinstance(bounds, str) or len(bounds) != 2:
        raise ConfigError(f"subset {value!r}: expected a range [start, end] of two values")
    return bounds[0], bounds[1]


def _bound(value: Any, written: Any) -> int | Fraction:
    if isinstance(value, str) and value.strip().endswith("%"):
        if not re.fullmatch(PERCENT, value):
            raise ConfigError(f"subset {written!r}: {value!r} is not a percentage")
        share = Fraction(value.strip().removesuffix("%").strip()) / 100
        if share > 1:
            raise ConfigError(f"subset {written!r}: {value!r} is not between 0% and 100%")
        return share
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    raise ConfigError(f"subset {written!r}: {value!r} is neither a sample number, a percentage nor (as end) `end`")


def _percent(share: Fraction) -> str:
    """The share in exact form: a decimal number, or a fraction."""
    percent = share * 100
    decimal = f"{float(percent):.12g}"
    return f"{decimal}%" if Fraction(decimal) == percent else f"{share}"
