"""Which positions and items are one host's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from energon_grain.errors import ConfigError, HostsError

Int64Array = npt.NDArray[np.int64]
_Numbers = TypeVar("_Numbers", int, Int64Array)


@dataclass(frozen=True, slots=True)
class Share:
    """The part of the stream that one host reads.

    Host h of H takes the items q with `q mod H == h`. They are counted m = 0, 1, 2, …: local item m is item `h + H·m`.
    Where H divides the lanes, these are the items of the lanes `l mod H == h`, and local item m belongs to the host's
    local lane `m mod (L div H)`.

    Attributes:
        host: h.
        hosts: H.
        lanes: L.
    """

    host: int
    hosts: int
    lanes: int

    def __post_init__(self) -> None:
        if self.hosts < 1 or not 0 <= self.host < self.hosts:
            raise ConfigError(f"host {self.host} of {self.hosts}: the host must lie in [0, hosts)")

    @property
    def whole_lanes(self) -> bool:
        """Whether this host's items are those of some whole lanes."""
        return self.lanes % self.hosts == 0

    @property
    def fitting_hosts(self) -> list[int]:
        """Numbers of hosts that each own whole lanes."""
        return [hosts for hosts in range(1, self.lanes + 1) if self.lanes % hosts == 0]

    @property
    def local_lanes(self) -> int:
        """Number of lanes that this host owns; 1 where hosts do not divide the lanes, and then nothing may drop."""
        return self.lanes // self.hosts if self.whole_lanes else 1

    def first_at(self, item: int) -> int:
        """Number of this host's items before global item `item`: the local number of the first one at or behind it."""
        return max(0, -(-(item - self.host) // self.hosts))

    def to_global(self, local: _Numbers) -> _Numbers:
        """Global numbers of local items (or positions)."""
        return local * self.hosts + self.host

    def require_whole_lanes(self, why: str) -> None:
        """Check that this host owns whole lanes.

        Raises:
            HostsError: The number of hosts does not divide the lanes.
        """
        if not self.whole_lanes:
            raise HostsError(
                f"{why}, and {self.hosts} hosts do not divide the {self.lanes} lanes of this run: a host must own "
                f"whole lanes so that the next sample of the lane is its own. Run on one of {self.fitting_hosts} "
                f"hosts, or start the run with lanes= a multiple of every number of hosts that it shall continue on"
            )
