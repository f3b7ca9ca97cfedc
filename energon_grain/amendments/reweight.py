# SPDX-License-Identifier: Apache-2.0
"""Changes of weights alone, which a running loader makes often: a segment is appended to one blend, all else is shared.

The result equals that of compiling the whole run again, which takes as long as the run has datasets and amendments.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from energon_grain.amendments.mixture import Mixture
from energon_grain.datasets.dataset import put
from energon_grain.errors import AmendmentError
from energon_grain.samplers.blend import Blend, StepBlend
from energon_grain.samplers.routing import RouteTree
from energon_grain.samplers.weights import Smooth, Weight, exact
from energon_grain.stream.index_map import IndexMap
from energon_grain.stream.lanes import Feed, LaneOperator
from energon_grain.stream.spec import Program, StreamSpec

SHARES = (1 << 16) - 1
"""The whole in units of quantised weights: each fits 16 bits."""


def quantised(weights: Mapping[str, Weight]) -> dict[str, int]:
    """Shares in units of 1 / 65,535, rounded to the nearest; weights above 0 are at least 1.

    The arithmetic is exact, so hosts that have equal weights get equal integers.

    Raises:
        AmendmentError: All weights are 0.
        ConfigError: A weight is negative, or not a finite number.
    """
    numbers = {name: exact(weight, f"reweight: weight of {name!r}:") for name, weight in weights.items()}
    total = sum(numbers.values())
    if not total:
        raise AmendmentError("reweight: all weights are 0; give one dataset a weight above 0")
    return {name: max(1, round(number * SHARES / total)) if number else 0 for name, number in numbers.items()}


def path_to(mixture: Mixture, blend: Mixture) -> tuple[int, ...] | None:
    """The numbers of the children that lead from a mixture to a blend in it; None: it is not there."""
    if mixture is blend:
        return ()
    for number, child in enumerate(mixture.children):
        below = path_to(child, blend) if isinstance(child, Mixture) else None
        if below is not None:
            return number, *below
    return None


def with_segment(
    spec: StreamSpec, path: Sequence[int], rounds: npt.NDArray[np.int64], weights: list[int], *, smooth: bool
) -> StreamSpec | None:
    """A stream whose blend goes on with other weights.

    Args:
        spec: The stream until now.
        path: To the blend, from the outermost one: see `path_to`.
        rounds: Where it changes: a round of each lane of the outermost blend, int64 (L,).
        weights: A weight for each child.
        smooth: Whether it carries on the divisions of the segment before; see `samplers.blend`.

    Returns:
        None if the stream is not one blend with nested blends, from one order: then it has to be compiled again.
    """
    orders = [spec.index_map] if spec.program is None else [feed.order for feed in spec.program.feeds]
    order = orders[0] if len(orders) == 1 else None
    if order is None or order.routes is None or order.planned is not None:
        return None
    routes = _routes(order.routes, path, rounds, weights, smooth=smooth)
    if routes is None:
        return None
    mixture = None if spec.mixture is None else _mixed(spec.mixture, path, weights)
    return _over(dataclasses.replace(spec, mixture=mixture), order, dataclasses.replace(order, routes=routes))


def _routes(
    tree: RouteTree, path: Sequence[int], rounds: npt.NDArray[np.int64], weights: list[int], *, smooth: bool
) -> RouteTree | None:
    router, children = tree.router, tree.children
    if not isinstance(router, Blend | StepBlend):
        return None
    if not path:
        return tree.over(router.amended(Smooth(rounds) if smooth else rounds, weights), children)
    child = children[path[0]]
    own = router.counts_at(rounds)[path[0]].astype(np.int64)
    below = None if child is None else _routes(child, path[1:], own, weights, smooth=smooth)
    children[path[0]] = below
    return None if below is None else tree.over(router, children)


def _mixed(node: Mapping[str, Any], path: Sequence[int], weights: list[int]) -> dict[str, Any]:
    """A description of a mixture with the last weights of one blend."""
    if "blend" not in node:
        name = "of" if "of" in node else "generate"
        return {**node, name: _mixed(node[name], path, weights)}
    if not path:
        return {**node, "blend": [[weights], [0]]}
    below = list(node["of"])
    below[path[0]] = _mixed(below[path[0]], path[1:], weights)
    return {**node, "of": below}


def _over(spec: StreamSpec, old: IndexMap, new: IndexMap) -> StreamSpec:
    """The same stream with another order of samples."""
    if spec.program is None:
        return dataclasses.replace(spec, index_map=new)
    (feed,) = spec.program.feeds
    assert feed.order is old
    changed = dataclasses.replace(feed, order=new)
    return dataclasses.replace(spec, program=Program(root=_swapped(spec.program.root, feed, changed), feeds=(changed,)))


def _swapped(value: Any, old: Feed, new: Feed) -> Any:
    """Operators that read from another feed."""
    if value is old:
        return new
    if isinstance(value, tuple):
        parts = [_swapped(part, old, new) for part in value]  # pyright: ignore[reportUnknownVariableType]
        return value if all(map(lambda one, other: one is other, parts, value)) else tuple(parts)  # pyright: ignore
    if not isinstance(value, LaneOperator) or not dataclasses.is_dataclass(value):
        return value
    return _with_fields(value, {name: _swapped(getattr(value, name), old, new) for name in _fields(value)})


def _fields(value: Any) -> list[str]:
    return [each.name for each in dataclasses.fields(value)]


def _with_fields(value: Any, fields: Mapping[str, Any]) -> Any:
    """The same object with other fields, or itself if they are the same."""
    if all(part is getattr(value, name) for name, part in fields.items()):
        return value
    changed = copy.copy(value)
    put(changed, **fields)
    return changed
