# SPDX-License-Identifier: Apache-2.0
"""The targets of a blend by cost for its leaves, to compare with the samples read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from energon_grain.mixture_shares import leaf_count, means_of
from energon_grain.planning.costs import PARTS_OF_ONE, Costs, costs_of
from energon_grain.samplers.expression import Expression
from energon_grain.stream.index_map import Draws
from energon_grain.stream.spec import StreamSpec


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class CostShares:
    """The targets of a blend by cost for its leaves.

    Attributes:
        weights: (segments, children) of its children.
        means: (children,) approximate mean cost of a sample.
        child: (leaves,) number of the child that contains each leaf.
        costs: Costs of the samples of each leaf.
    """

    weights: npt.NDArray[np.float64]
    means: npt.NDArray[np.float64]
    child: npt.NDArray[np.int64]
    costs: list[Costs]

    def of(self, draws: Draws) -> npt.NDArray[np.float64]:
        """Return (leaves,) the total cost of the samples of each leaf."""
        costs = costs_of(self.costs, draws.members)
        return np.bincount(draws.members.leaf, weights=costs, minlength=len(self.child)) / PARTS_OF_ONE

    def targets(
        self,
        cost: npt.NDArray[np.float64],
        samples: npt.NDArray[np.int64],
        requested: npt.NDArray[np.float64] | None,
    ) -> list[float | None]:
        """Return each leaf's target of the total cost; None: it shares a child with others, or a schedule decides.

        Args:
            cost: (leaves,) cost of the samples read.
            samples: (leaves,) number of samples read.
            requested: (leaves,) samples requested by the positions so far; None: only data could tell.
        """
        children = len(self.means)
        if len(self.weights) == 1:
            shares = self.weights[0] / self.weights[0].sum()
        elif requested is None or not requested.any():
            return [None] * len(cost)
        else:
            shares = np.bincount(self.child, weights=requested, minlength=children) * self.means
            shares /= shares.sum()
        within = np.ones(len(cost)) if requested is None else requested * cost / np.maximum(samples, 1)
        together = np.bincount(self.child, weights=within, minlength=children)[self.child]
        alone = np.bincount(self.child, minlength=children)[self.child] == 1
        parts = np.where(alone, 1.0, within / np.where(together > 0, together, 1))
        known = alone if requested is None else np.ones(len(cost), np.bool_)
        found = cost.sum() * shares[self.child] * parts
        return [target if is_known else None for target, is_known in zip(found.tolist(), known.tolist(), strict=True)]


def cost_shares(spec: StreamSpec) -> CostShares | None:
    """Return the cost shares of the outermost blend, if it is a blend by cost; None: it blends by samples."""
    node: Any = spec.mixture
    while isinstance(node, Mapping) and isinstance(below := node.get("of", node.get("generate")), Mapping):
        node = below  # pyright: ignore[reportUnknownVariableType]
    if not (isinstance(node, Mapping) and "unit" in node):
        return None
    unit = Expression.parse(node["unit"], where="weight_unit")
    return CostShares(
        weights=np.array(node["blend"][0], np.float64),
        means=np.array(means_of(node)),
        child=np.repeat(np.arange(len(node["of"])), [leaf_count(each) for each in node["of"]]),
        costs=[Costs(leaf.leaf.source, unit, f"weight_unit='{unit}'") for leaf in spec.leaves],
    )
