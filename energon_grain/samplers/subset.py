"""Which raw samples of a split part belong to a leaf: a range of them, as it is written, minus excluded ones."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from energon_grain.errors import ConfigError, EmptyDatasetError

PERCENT = r"\s*[0-9]+(\.[0-9]*)?\s*%\s*"
_WHOLE = (Fraction(0), Fraction(1))


class Selection:
    """The samples [start, stop) of `total` raw ones, without excluded ones, renumbered 0, 1, 2, ... in raw order.

    The range counts raw samples, excluded ones too (as in Energon); `len` is the true number that is left. With
    `total=10, start=2, stop=8, excluded=[3, 9]` the raw samples are 2, 4, 5, 6, 7 and the length is 5.

    Attributes:
        total: number of raw samples in the split part.
        start: first raw sample of the range.
        stop: end of the range, exclusive.
        excluded: raw ranks inside the range that are left out, ascending, int64 (e,).
    """

    __slots__ = ("_kept_before", "excluded", "start", "stop", "total")

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
            excluded: raw ranks in [0, total) to leave out, in any order, repeats allowed.

        Raises:
            ConfigError: the range or an excluded rank does not fit the raw samples.
            EmptyDatasetError: nothing is left.
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
        # Before excluded sample i of the range lie excluded[i] - start - i kept ones.
        self._kept_before = ranks - start - np.arange(ranks.size, dtype=np.int64)

    def __len__(self) -> int:
        return self.stop - self.start - int(self.excluded.size)

    def __repr__(self) -> str:
        return f"Selection({self.total}, start={self.start}, stop={self.stop}, excluded={self.excluded.size} samples)"

    def to_raw(self, indices: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Give the raw ranks of samples of the selection.

        Args:
            indices: numbers in [0, len(self)), any shape; not checked.

        Returns:
            A new int64 array of the same shape, in [start, stop).
        """
        raw = indices + np.int64(self.start)
        if self.excluded.size:
            raw += np.searchsorted(self._kept_before, indices, side="right")
        return raw

    def raw_run(self, first: int, stop: int) -> slice | None:
        """The raw ranks of samples [first, stop) of the selection; None: they do not follow one another."""
        if self.excluded.size:
            return None
        return slice(self.start + first, self.start + max(first, stop))

    def from_raw(self, raw: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Undo `to_raw`; -1 where a raw rank is outside the range or excluded."""
        before = np.searchsorted(self.excluded, raw, side="left")
        out = raw - np.int64(self.start) - before
        outside = (raw < self.start) | (raw >= self.stop)
        if self.excluded.size:
            outside |= self.excluded[np.minimum(before, self.excluded.size - 1)] == raw
        return np.where(outside, np.int64(-1), out)


@dataclass(frozen=True, kw_only=True, slots=True)
class Subset:
    """Some consecutive samples of a split part, counted before excludes are taken out.

    First the absolute range is taken, then the share of what that leaves: `absolute=(10, 30), share=(1/5, 4/5)` are the
    samples 14 to 25. Shares are exact: 29% of 100 samples are 29 (Energon's floats make them 28).

    Attributes:
        absolute: First sample, and one past the last; None for the end of the split part.
        share: Start and end as parts of the whole.
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
        """Read `{"range": [10, 30]}` or, for short, `[10, 30]`, `[10, "end"]`, `["20%", "80%"]`.

        Raises:
            ConfigError: It is none of these, mixes percent with numbers, or is empty.
        """
        if isinstance(value, Subset):
            return value
        bounds: Any = value
        if isinstance(value, Mapping):
            if set(value) != {"range"}:
                raise ConfigError(f"subset {value!r}: `range: [start, end]` is meant, and nothing else")
            bounds = value["range"]
        if not isinstance(bounds, Sequence) or isinstance(bounds, str) or len(bounds) != 2:
            raise ConfigError(f"subset {value!r}: a range [start, end] of two values is meant")
        start = _bound(bounds[0], value)
        if isinstance(bounds[1], str) and bounds[1].strip() == "end":
            if isinstance(start, Fraction):
                raise ConfigError(f"subset {value!r}: `end` goes with sample numbers; write 100%")
            return cls(absolute=(start, None))
        stop = _bound(bounds[1], value)
        if isinstance(start, int) and isinstance(stop, int):
            return cls(absolute=(start, stop))
        if isinstance(start, Fraction) and isinstance(stop, Fraction):
            return cls(share=(start, stop))
        raise ConfigError(f"subset {value!r}: both bounds must be percentages, or both sample numbers")

    def within(self, outer: Subset | None) -> Subset:
        """Take the share that `outer` asks for of this subset. The inner one is applied first.

        Raises:
            ConfigError: `outer` is absolute: sample numbers have a meaning for a single dataset only.
        """
        if outer is None:
            return self
        if outer.absolute is not None:
            raise ConfigError(f"subset {outer} counts samples, which only a single dataset can; use percentages")
        start, stop = self.share
        length = stop - start
        return Subset(absolute=self.absolute, share=(start + outer.share[0] * length, start + outer.share[1] * length))

    def resolve(self, total: int, *, of: str = "the split part") -> tuple[int, int]:
        """(start, stop) in samples of a split part that has `total`. Shares are cut down to whole samples.

        Args:
            total: Its samples, before excludes are taken out.
            of: What a message calls it.

        Raises:
            ConfigError: An absolute bound lies beyond the end.
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


def combine_subsets(inner: Subset | None, outer: Subset | None) -> Subset | None:
    """Compose what a node says with what it inherits; None is everything.

    Raises:
        ConfigError: `outer` is absolute.
    """
    return Subset().within(outer) if inner is None and outer is not None else inner and inner.within(outer)


def _bound(value: Any, written: Any) -> int | Fraction:
    if isinstance(value, str) and value.strip().endswith("%"):
        if not re.fullmatch(PERCENT, value):
            raise ConfigError(f"subset {written!r}: {value!r} is not a percentage")
        share = Fraction(value.strip().removesuffix("%").strip()) / 100
        if share > 1:
            raise ConfigError(f"subset {written!r}: {value!r} does not lie in 0% to 100%")
        return share
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    raise ConfigError(f"subset {written!r}: {value!r} is neither a sample number, a percentage nor (as end) `end`")


def _percent(share: Fraction) -> str:
    """The share as exactly as it can be written: a decimal number, or a fraction of small terms."""
    percent = share * 100
    decimal = f"{float(percent):.12g}"
    return f"{decimal}%" if Fraction(decimal) == percent else f"{share}"
