# SPDX-License-Identifier: Apache-2.0
"""A blend whose weights are shares of sample costs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from energon_grain.datasets.lowering import IndexPart, Lowering, Part
from energon_grain.datasets.mixtures import AmendedAt
from energon_grain.errors import ConfigError
from energon_grain.planning.cost_blend import CostBlend
from energon_grain.planning.costs import Costs, CostsOfStream
from energon_grain.samplers.expression import Expression
from energon_grain.samplers.hashing import fold
from energon_grain.samplers.routing import RouteTree
from energon_grain.samplers.weights import Weight


def blend_by_cost(
    to: Lowering, parts: Sequence[Part], schedule: Sequence[tuple[int | AmendedAt, Sequence[Weight]]], unit: Expression
) -> Part:
    """Return the blend of parts by sample costs. Raises ConfigError if the costs are not known in advance."""
    arithmetic = _require_known(parts, unit)
    requested_by = f"weight_unit='{unit}'"
    costs = [[Costs(leaf.resolved.source, unit, requested_by) for leaf in part.leaves] for part in arithmetic]
    amended = any(isinstance(start, AmendedAt) for start, _ in schedule)
    router = CostBlend(
        [(_position(start, to), weights) for start, weights in schedule],
        [CostsOfStream(part.index_map(to.lanes), own) for part, own in zip(arithmetic, costs, strict=True)],
        key=fold(to.seed, "blend", to.place),
        inspect=not amended,  # of a dataset that was removed, costs may be gone
    )
    blend, columns, means = _last_of(router) if amended else _all_of(router, costs)
    return IndexPart(
        leaves=[leaf for part in arithmetic for leaf in part.leaves],
        routes=RouteTree(router, [part.routes for part in arithmetic]),
        passes=None,
        mixture={
            "blend": blend,
            "unit": str(unit),
            "columns": columns,
            "means": means,
            "of": [part.mixture for part in arithmetic],
        },
        one_pass=sum(part.items() for part in arithmetic),
    )


def _all_of(router: CostBlend, costs: Sequence[Sequence[Costs]]) -> tuple[list[Any], list[Any], list[float]]:
    """Return the weights and starts, the columns and the means for the manifest."""
    weights = [list(map(list, router.weights)), list(router.starts)]
    means = [round(router.mean(child), 6) for child in range(len(costs))]
    return weights, [each.ids for own in costs for each in own], means


def _last_of(router: CostBlend) -> tuple[list[Any], list[Any], list[float]]:
    """Return the same for the last segment of an amended run, whose manifest is that of its configuration."""
    last = router.weights[-1]
    means = [round(router.mean(child), 6) if weight else 0.0 for child, weight in enumerate(last)]
    return [[list(last)], [0]], [], means


def _position(start: int | AmendedAt, to: Lowering) -> int:
    """Return the first position of a segment. That of an amendment is the same for all lanes."""
    if isinstance(start, AmendedAt):
        return int((to.begins[start.number] * to.lanes + np.arange(to.lanes)).min())
    return start


def _require_known(parts: Sequence[Part], unit: Expression) -> list[IndexPart]:
    """Return the parts if the costs of their items are known in advance. Raises ConfigError otherwise."""
    arithmetic = [part for part in parts if isinstance(part, IndexPart) and not part.drops and not part.batches]
    if len(arithmetic) < len(parts):
        raise ConfigError(
            f"BlendDataset: weight_unit='{unit}': one of the datasets filters, groups, batches or packs, so the costs "
            f"of its items are unknown in advance. Do that above the blend; in place of a filter, give the leaf a "
            f"`where` of columns"
        )
    return arithmetic
