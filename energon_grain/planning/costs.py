"""What the positions of a stream cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from energon_grain.sources.costs import Costs
from energon_grain.stream.index_map import IndexMap, costs_of

Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class CostsOfStream:
    """What the positions of an order cost, as a function of positions among those of all passes: (n,) of (n,).

    A pack costs what its samples cost together.
    """

    order: IndexMap
    leaves: Sequence[Costs]

    def __call__(self, positions: Int64Array) -> Int64Array:
        draws = self.order.draw_in_stream(positions)
        found = costs_of(self.leaves, draws.members)
        return found if draws.packs is None else np.diff(np.append(0, np.cumsum(found))[draws.packs.cuts])
