"""Which positions and items are one host's."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from energon_grain.errors import ConfigError, HostsError

Int64Array = npt.NDArray[np.int64]


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

    @property
    def stride(self) -> int:
        """Steps of the host from one of this share's to the next."""
        return 1

    def first_at(self, item: int) -> int:
        """Number of this host's items before global item `item`: the local number of the first one at or behind it."""
        return max(0, -(-(item - self.host) // self.hosts))

    def to_global(self, local: Int64Array) -> Int64Array:
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


@dataclass(frozen=True, slots=True)
class StepsShare(Share):
    """Every so manieth step of a host, for readers beside each other whose batches are then taken in turns.

    Reader w of W makes the steps t of its host with `t mod W == w`. Its own items are counted u = 0, 1, 2, …: item u is
    the host's local item `(u div B · W + w) · B + u mod B`, B being the size of batches. So no sample is anybody
    else's, and where a sample is dropped, later ones of the same reader move up.

    Attributes:
        reader: w.
        readers: W.
        batch_size: B.
    """

    reader: int
    readers: int
    batch_size: int

    @property
    def stride(self) -> int:
        """See `Share`."""
        return self.readers

    def first_at(self, item: int) -> int:
        """See `Share`."""
        turn, rest = divmod(Share.first_at(self, item), self.batch_size * self.readers)
        return turn * self.batch_size + min(max(rest - self.reader * self.batch_size, 0), self.batch_size)

    def to_global(self, local: Int64Array) -> Int64Array:
        """See `Share`."""
        turn, place = np.divmod(local, self.batch_size)
        return Share.to_global(self, (turn * self.readers + self.reader) * self.batch_size + place)
