# SPDX-License-Identifier: Apache-2.0
"""Costs of samples: an expression over their columns (tokens, bytes, seconds), as exact integers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from energon_grain.errors import ConfigError
from energon_grain.samplers.expression import Expression
from energon_grain.sources.source import Source
from energon_grain.stream.index_map import Draws, IndexMap

Int64Array = npt.NDArray[np.int64]

PARTS_OF_ONE = 1024
"""Units per cost of 1. Whole costs are exact, others are rounded."""
_LARGEST = 1 << 42


@dataclass(frozen=True, slots=True)
class Costs:
    """The costs of the samples of one source, known without reading them. Picklable if the source is.

    Attributes:
        source: Source of the samples.
        expression: Maps their columns to a cost of 0 or more.
        said_by: The setting that requires the costs, for messages: `weight_unit='tokens'`.
    """

    source: Source
    expression: Expression
    requested_by: str

    def of(self, indices: npt.NDArray[np.int64] | slice) -> npt.NDArray[np.int64]:
        """Return (n,) costs of samples, in 1/1024.

        Raises KeyNotFoundError, with the command that makes the column, if a column is missing, and ConfigError if a
        cost is negative, not finite, above 2**42 or not a number.
        """
        found = np.asarray(self.expression.of(lambda name: self.source.column(name, indices)))
        wrong = ~((found >= 0) & (found <= _LARGEST)) if found.dtype != np.bool_ else None
        if wrong is not None and wrong.any():
            self._refuse(int(np.flatnonzero(wrong)[0]), indices, found)
        if found.dtype.kind == "f":
            return np.rint(found * PARTS_OF_ONE).astype(np.int64)
        return found.astype(np.int64) * PARTS_OF_ONE

    def _refuse(self, place: int, indices: npt.NDArray[np.int64] | slice, found: npt.NDArray[np.generic]) -> None:
        index = range(len(self.source))[indices][place] if isinstance(indices, slice) else int(indices[place])
        raise ConfigError(
            f"{self.requested_by}: {self.source.path}: {self.source.place_of(index)}: {self.expression} is "
            f"{found[place]}; the cost of a sample must be a number from 0 to 2**42. Leave such samples out (`where: "
            f"{self.expression} >= 0`), or measure the column again"
        )

    @property
    def ids(self) -> dict[str, str]:
        """For each column in the expression, an identifier that changes with its values."""
        return {name: self.source.column_id(name) for name in self.expression.names}


CostsOf = Callable[[npt.NDArray[np.int64]], npt.NDArray[np.int64]]
"""Costs of positions of a stream, (n,) of (n,)."""


def costs_of(leaves: Sequence[Costs], draws: Draws) -> Int64Array:
    """Return (n,) costs of samples, from the costs of each leaf; see `Costs.of`."""
    if len(leaves) == 1:
        return leaves[0].of(draws.index)
    found = np.empty(len(draws), np.int64)
    for leaf, places, own in draws.by_leaf():
        found[places] = leaves[leaf].of(own.index)
    return found


@dataclass(frozen=True, slots=True, eq=False)
class CostsOfStream:
    """Costs of the positions of an order, as a function of positions over all passes: (n,) of (n,).

    The cost of a pack is the total cost of its samples.
    """

    order: IndexMap
    leaves: Sequence[Costs]

    def __call__(self, positions: Int64Array) -> Int64Array:
        draws = self.order.draw_in_stream(positions)
        found = costs_of(self.leaves, draws.members)
        return found if draws.items is None else np.diff(np.append(0, np.cumsum(found))[draws.items.cuts])
