# SPDX-License-Identifier: Apache-2.0
"""The number of samples that each dataset of a mixture contributes, as its manifest describes it, without rounding."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any, cast

from energon_grain.stream.spec import StreamSpec


def expected_reads(spec: StreamSpec, first: int, stop: int) -> list[float] | None:
    """Expected number of samples of each leaf at positions [first, stop), from weights, repetitions and lengths.

    None: lanes mix items of several datasets, and the number of their samples depends on data; or items are planned
    from several samples each.
    """
    if spec.makers or (spec.program is not None and len(spec.program.feeds) > 1):
        return None
    sizes = [len(leaf.leaf.source) for leaf in spec.leaves]
    document = range(len(sizes)) if spec.document is None else spec.document
    listed = [sizes[number] for number in document]
    before, behind = (leaf_draws(spec.mixture, listed, positions) for positions in (first, stop))
    found = [0.0] * len(sizes)
    for number, early, late in zip(document, before, behind, strict=False):  # leaves of excluded samples are behind
        found[number] += late - early
    return found


def leaf_draws(mixture: Any, sizes: Sequence[int], positions: float) -> list[float]:
    """Approximate number of samples of each leaf in the first positions of a stream: the manifest, without rounding.

    If lanes pack, group or generate, positions are items, and leaves below have their share of these.

    Args:
        mixture: `mixture` of a manifest, or of a `StreamSpec`.
        sizes: Samples of each leaf.
        positions: Number of positions from the beginning, over all passes.
    """
    return _measured(mixture, iter(sizes))[1](positions)


def pass_length(mixture: Any, sizes: Sequence[int]) -> float:
    """Approximate positions of a pass over a finite mixture."""
    return _measured(mixture, iter(sizes))[0]


def _measured(mixture: Any, sizes: Iterator[int]) -> tuple[float, Callable[[float], list[float]]]:
    """Length of a node's pass, and a function from a number of its positions to the counts of its leaves."""
    if not isinstance(mixture, Mapping):
        return next(sizes), lambda positions: [positions]
    node = cast("Mapping[str, Any]", mixture)
    below = node.get("of", node.get("generate"))
    if not isinstance(below, list):
        length, draws = _measured(below, sizes)
        if "limit" in node:
            limit = min(node["limit"], length)

            def cut(positions: float) -> list[float]:
                passes, rest = divmod(positions, limit)
                return [passes * whole + part for whole, part in zip(draws(limit), draws(rest), strict=True)]

            return limit, draws if math.isinf(length) else cut  # an endless child continues in the next pass
        if "repeat" in node and node["repeat"] is None:
            return math.inf, draws
        return node.get("epochs") or length * float(Fraction(node.get("repeat", 1))), draws
    children = [_measured(each, sizes) for each in cast("list[Any]", below)]
    lengths = [length for length, _ in children]
    if "blend" in node:
        weights, starts = node["blend"]
        if "means" in node:  # weights are in another unit; `means` are units per sample
            weights = [[weight / mean for weight, mean in zip(row, means_of(node), strict=True)] for row in weights]

        def counts(positions: float) -> list[float]:
            found = [0.0] * len(children)
            for row, start, stop in zip(weights, starts, [*starts[1:], math.inf], strict=True):
                part = max(0.0, min(positions, stop) - start) / sum(row)
                found = [count + part * weight for count, weight in zip(found, row, strict=True)]
            return found

        lengths = [math.inf]
    elif "blend_epochized" in node:
        lengths = [float(Fraction(often)) * n for often, n in zip(node["blend_epochized"], lengths, strict=True)]

        def counts(positions: float) -> list[float]:
            return [positions * length / sum(lengths) for length in lengths]

    else:

        def counts(positions: float) -> list[float]:
            passes, rest = divmod(positions, sum(lengths))
            ends = list(itertools.accumulate(lengths))
            return [passes * n + min(max(rest - (end - n), 0), n) for n, end in zip(lengths, ends, strict=True)]

    def draw(positions: float) -> list[float]:
        counted = zip(children, counts(positions), strict=True)
        return [own for (_, draws), count in counted for own in draws(count)]

    return sum(lengths), draw


def means_of(blend: Mapping[str, Any]) -> list[float]:
    """Average cost of a sample of each child of a blend by cost, in units of 1/1024.

    It is the average of the first 1,024 samples. If all of them cost nothing, it is as if the next one cost 1.
    """
    return [mean or 1.0 for mean in blend["means"]]


def leaf_count(mixture: Any) -> int:
    """Number of leaves below a node of the manifest."""
    if not isinstance(mixture, Mapping):
        return 1
    node = cast("Mapping[str, Any]", mixture)
    below = node.get("of", node.get("generate"))
    return sum(map(leaf_count, below)) if isinstance(below, list) else leaf_count(below)
