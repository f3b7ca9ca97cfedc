# SPDX-License-Identifier: Apache-2.0
"""Which item of a step stands at each place of a host, where that follows from what is known of its samples."""

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
    """The places of one host in one pass. Places and hosts stay what they are: items change places in their step."""

    @property
    def end(self) -> int | None:
        """The local place behind the last one of the pass; None: endless."""
        ...

    @property
    def whole_until(self) -> int | None:
        """The local place behind those of steps without padding; None: there is none."""
        ...

    def items(self, places: Int64Array) -> Int64Array:
        """Items at places of this host; those behind the end of a pass are padding."""
        ...

    def positions(self, items: Int64Array) -> Int64Array:
        """Positions of items: padding repeats the pass from its beginning on."""
        ...

    def hosts_of(self, step: int) -> Int64Array:
        """(G,) host of each item of a step, counted from the first."""
        ...

    def substitutes(self, item: int) -> Int64Array:
        """The other items of an item's step, in the order in which they stand in for it."""
        ...


class Placing(Protocol):
    """What says so: picklable, and the same on every host."""

    @property
    def asked(self) -> str:
        """How it was asked for, to begin a message with."""
        ...

    def places(
        self, order: IndexMap, sources: Sources, share: Share, *, pass_number: int, first: int, plan: PassPlan
    ) -> Places:
        """The places of a host in a pass.

        Args:
            order: Of the stream.
            sources: Of its leaves.
            share: The host's part.
            pass_number: Of the pass.
            first: Item at which some step begins, before all that are asked for.
            plan: Of the pass.
        """
        ...

    def manifest(self, sources: Mapping[str, Source]) -> dict[str, Any]:
        """What changes with the places, for the manifest, by the names of leaves; its key is `balance`."""
        ...
