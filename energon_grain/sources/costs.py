"""What samples cost: an expression over their columns (tokens, bytes, seconds), as exact integers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from energon_grain.errors import ConfigError
from energon_grain.samplers.expression import Expression
from energon_grain.sources.source import Source

PARTS_OF_ONE = 1024
"""Costs are counted in so many parts of one: those of whole numbers exactly, others rounded."""
_LARGEST = 1 << 42


@dataclass(frozen=True, slots=True)
class Costs:
    """The costs of the samples of one source, known without reading them. Picklable as the source is.

    Attributes:
        source: Of the samples.
        expression: From their columns to what each costs: a number, 0 or more.
        said_by: What asks for them, as messages name it: `weight_unit='tokens'`.
    """

    source: Source
    expression: Expression
    said_by: str

    def of(self, indices: npt.NDArray[np.int64] | slice) -> npt.NDArray[np.int64]:
        """(n,) costs of samples, in 1/1024.

        Raises KeyNotFoundError if a column is missing; says which command makes it, and ConfigError if the expression
        is negative, not finite or above 2**42 for a sample, or not a number at all.
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
            f"{self.said_by}: {self.source.path}: {self.source.place_of(index)}: {self.expression} is {found[place]}; "
            f"what a sample costs must be a number from 0 to 2**42. Leave such samples out (`where: "
            f"{self.expression} >= 0`), or measure the column again"
        )

    @property
    def ids(self) -> dict[str, str]:
        """For each column that is asked for, what changes with its numbers."""
        return {name: self.source.column_id(name) for name in self.expression.names}


CostsOf = Callable[[npt.NDArray[np.int64]], npt.NDArray[np.int64]]
"""Costs of positions of a stream, (n,) of (n,)."""
