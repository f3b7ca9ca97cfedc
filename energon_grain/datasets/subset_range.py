"""Taking a range of a leaf's samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from energon_grain.errors import ConfigError

Bound = int | Fraction
"""An absolute sample number, or a share of all samples."""


@dataclass(frozen=True, slots=True)
class SubsetRange:
    """Samples [start, stop) of a split part, counted before excludes are taken out.

    Attributes:
        start: First sample: a number, or a share of the total.
        stop: One past the last, likewise; None: the end.
    """

    start: Bound
    stop: Bound | None

    @classmethod
    def parse(cls, value: Any) -> SubsetRange:
        """Read `[10, 30]`, `[10, "end"]` or `["20%", "80%"]`, also as `{"range": [...]}`.

        Raises:
            ConfigError: It is none of these, mixes percent with numbers, or is empty.
        """
        written = value
        if isinstance(value, dict) and set(value) == {"range"}:
            value = value["range"]
        if not isinstance(value, Sequence) or isinstance(value, str) or len(value) != 2:
            raise ConfigError(f"subset {written!r}: a range [start, end] of two values is meant")
        start, stop = _bound(value[0], written), None if value[1] == "end" else _bound(value[1], written)
        if stop is not None and isinstance(start, Fraction) != isinstance(stop, Fraction):
            raise ConfigError(f"subset {written!r}: both bounds must be percentages, or both sample numbers")
        if stop is None and isinstance(start, Fraction):
            raise ConfigError(f"subset {written!r}: 'end' goes with sample numbers; write '100%'")
        if stop is not None and stop <= start:
            raise ConfigError(f"subset {written!r}: the range is empty; its end must lie behind its start")
        return cls(start, stop)

    def resolve(self, total: int) -> tuple[int, int]:
        """(start, stop) in samples of a split part that has `total`. Shares are cut down to whole samples.

        Raises:
            ConfigError: An absolute bound lies beyond the end.
        """
        start, stop = (_samples(bound, total) for bound in (self.start, total if self.stop is None else self.stop))
        if stop > total or start >= total:
            raise ConfigError(f"subset {self}: the split part has {total} samples")
        return start, stop

    def __str__(self) -> str:
        bounds = (self.start, "end" if self.stop is None else self.stop)
        return "[{}, {}]".format(*(f"{float(b * 100):g}%" if isinstance(b, Fraction) else b for b in bounds))


def _samples(bound: Bound, total: int) -> int:
    return int(bound * total) if isinstance(bound, Fraction) else bound


def _bound(value: Any, written: Any) -> Bound:
    if isinstance(value, str) and value.endswith("%"):
        try:
            share = Fraction(value[:-1].strip()) / 100
        except ValueError as error:
            raise ConfigError(f"subset {written!r}: {value!r} is not a percentage") from error
        if not 0 <= share <= 1:
            raise ConfigError(f"subset {written!r}: {value!r} does not lie in 0% to 100%")
        return share
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    raise ConfigError(f"subset {written!r}: {value!r} is neither a sample number, a percentage nor (as end) 'end'")
