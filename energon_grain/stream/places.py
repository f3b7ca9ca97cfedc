# SPDX-License-Identifier: Apache-2.0
"""Assigning the items of a step to places of hosts, based on known values of the samples."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from energon_grain.sources.source import Source
from energon_grain.stream.index_map import IndexMap, Sources

if TYPE_CHECKING:
    from energon_grain.stream.passes import PassPlan, Share

Int64Array = npt.NDArray[np.int64]


class Places(Protocol):
    """The places of one host in one pass. Places and hosts stay fixed: items move between places of their step."""

    @property
    def end(self) -> int | None:
        """One past the last local place of the pass; None: endless."""
        ...

    @property
    def whole_until(self) -> int | None:
        """One past the last local place of steps without padding; None: no padding."""
        ...

    def items(self, places: Int64Array) -> Int64Array:
        """Items at places of this host. Items past the end of a pass are padding."""
        ...

    def positions(self, items: Int64Array) -> Int64Array:
        """Positions of items. Padding repeats the pass from its beginning."""
        ...

    def hosts_of(self, step: int) -> Int64Array:
        """(G,) host of each item of a step, in order."""
        ...

    def substitutes(self, item: int) -> Int64Array:
        """The other items of an item's step, in the order in which they replace it."""
        ...


class Placing(Protocol):
    """Assigns items to places. Picklable, and identical on every host."""

    @property
    def requested_by(self) -> str:
        """The option that requested it, as the beginning of a message."""
        ...

    def places(
        self, order: IndexMap, sources: Sources, share: Share, *, pass_number: int, first: int, plan: PassPlan
    ) -> Places:
        """The places of a host in a pass.

        Args:
            order: Order of the stream.
            sources: Sources of its leaves.
            share: Share of the host.
            pass_number: Number of the pass.
            first: Item at which some step begins, before all requested ones.
            plan: Plan of the pass.
        """
        ...

    def manifest(self, sources: Mapping[str, Source]) -> dict[str, Any]:
        """The entry `balance` of the manifest, which changes whenever the places do, from sources by leaf name."""
        ...
