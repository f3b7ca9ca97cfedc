"""How far a check for a migration goes."""

from __future__ import annotations

from dataclasses import dataclass

SHARDS_LOOKED_AT = 8
"""Shards of each dataset whose headers are read by default."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckOptions:
    """How far to look, and what the program that is moved over will allow.

    Attributes:
        max_shards: Shards of each dataset whose headers are read, evenly spread; None: all.
        allow_pickle: The program decodes pickles (`SampleDecoder(allow_pickle=True)`).
        trusted_modules: What it passes as `trusted_modules`.
    """

    max_shards: int | None = SHARDS_LOOKED_AT
    allow_pickle: bool = False
    trusted_modules: tuple[str, ...] = ()

    def choose(self, count: int) -> list[int]:
        """Numbers of the shards to look at: the first, the last and some in between."""
        if self.max_shards is None or count <= self.max_shards:
            return list(range(count))
        if self.max_shards < 2:
            return [0][: self.max_shards]
        return [place * (count - 1) // (self.max_shards - 1) for place in range(self.max_shards)]
