"""From mixtures of leaves to an index map."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from energon_grain.datasets.dataset import SavableDataset
from energon_grain.datasets.leaf import LeafDataset
from energon_grain.datasets.mixtures import BlendDataset, BlendEpochizedDataset, ConcatDataset
from energon_grain.datasets.nodes import RepeatDataset
from energon_grain.errors import ConfigError
from energon_grain.samplers.blend import Blend
from energon_grain.samplers.epochized_blend import EpochizedBlend
from energon_grain.samplers.hashing import fold
from energon_grain.samplers.leaf_order import LeafTable
from energon_grain.samplers.passes import Concat
from energon_grain.samplers.routing import RouteTree
from energon_grain.stream.index_map import EqualPasses, IndexMap, Passes
from energon_grain.stream.spec import LeafSpec

CompileLeaf = Callable[[LeafDataset, int, int, bool], LeafSpec]
"""(leaf, its number, its occurrence among equal ones, whether lanes ask for runs) to its spec."""


@dataclass(slots=True)
class _Branch:
    """A compiled part of the mixture.

    Attributes:
        routes: None for a leaf.
        passes: None where it is endless.
        told: For the manifest.
    """

    routes: RouteTree | None
    passes: Passes | None
    told: Any


class MixtureCompiler:
    """Compiles the part of a graph that is arithmetic on positions.

    Args:
        lanes: L.
        seed: 64-bit hash of the stream's seed.
        sizes: Samples of each leaf, in document order.
    """

    def __init__(self, *, lanes: int, seed: int, sizes: list[int]) -> None:
        self._lanes = lanes
        self._seed = seed
        self._sizes = iter(sizes)

    def compile(self, node: SavableDataset, place: str = "") -> _Branch:
        """One node with all below it; `place` is its path of child numbers, which keys its random choices."""
        match node:
            case LeafDataset():
                return _Branch(None, EqualPasses(next(self._sizes)), None)
            case RepeatDataset():
                branch = self.compile(node.dataset, place)
                return _Branch(branch.routes, None, branch.told)
            case BlendDataset():
                return self._blend(node, place)
            case BlendEpochizedDataset():
                return self._blend_epochized(node, place)
            case ConcatDataset():
                return self._concat(node, place)
            case _:
                raise ConfigError(f"a {type(node).__name__} cannot be a part of a mixture of datasets")

    def _children(self, datasets: tuple[SavableDataset, ...], place: str) -> list[_Branch]:
        return [self.compile(dataset, f"{place}.{number}") for number, dataset in enumerate(datasets)]

    def _blend(self, node: BlendDataset, place: str) -> _Branch:
        children = self._children(node.datasets, place)
        schedule = [(start, list(weights)) for start, weights in node.schedule]
        key = fold(self._seed, "blend", place)
        router = (
            Blend(schedule[0][1], lanes=self._lanes, key=key)
            if len(schedule) == 1
            else Blend(schedule=schedule, lanes=self._lanes, key=key)
        )
        told = {"blend": [list(map(list, router.weights)), list(router.starts)], "of": [c.told for c in children]}
        return _Branch(RouteTree(router, [child.routes for child in children]), None, told)

    def _blend_epochized(self, node: BlendEpochizedDataset, place: str) -> _Branch:
        children = self._children(node.datasets, place)
        lengths = [_length(child, "a blend by repetitions") for child in children]
        router = EpochizedBlend(
            lengths, node.repetitions, lanes=self._lanes, key=fold(self._seed, "blend_epochized", place)
        )
        told = {"blend_epochized": [str(number) for number in node.repetitions], "of": [c.told for c in children]}
        return _Branch(RouteTree(router, [child.routes for child in children]), router, told)

    def _concat(self, node: ConcatDataset, place: str) -> _Branch:
        children = self._children(node.datasets, place)
        lengths = [_length(child, "a concatenation") for child in children]
        told = {"concat": len(children), "of": [c.told for c in children]}
        routes = RouteTree(Concat(lengths), [child.routes for child in children])
        return _Branch(routes, EqualPasses(sum(lengths)), told)


def _length(branch: _Branch, where: str) -> int:
    """Length of a finite child whose passes are all equally long."""
    if branch.passes is None:
        raise ConfigError(
            f"{where} takes finite datasets, but one of them is endless (a blend by weights, or repeated)"
        )
    if not isinstance(branch.passes, EqualPasses):
        raise ConfigError(
            f"{where} cannot hold a blend by repetitions, whose epochs may differ by a sample; multiply its "
            f"repetitions into one flat `blend_epochized`"
        )
    return branch.passes.samples


def mixture_leaves(node: SavableDataset) -> list[LeafDataset]:
    """The leaves of a mixture in document order."""
    match node:
        case LeafDataset():
            return [node]
        case RepeatDataset():
            return mixture_leaves(node.dataset)
        case BlendDataset() | BlendEpochizedDataset() | ConcatDataset():
            return [leaf for dataset in node.datasets for leaf in mixture_leaves(dataset)]
        case _:
            raise ConfigError(
                f"a {type(node).__name__} cannot be a part of a mixture of datasets; mix leaves (and blends and "
                f"concatenations of leaves), then encode and batch"
            )


def compile_mixture(
    node: SavableDataset, compile_leaf: CompileLeaf, *, lanes: int, seed: int, same_pass: bool, endless: bool
) -> tuple[IndexMap, tuple[LeafSpec, ...], Any]:
    """The index map of a mixture, its leaves, and what the manifest tells about how they are mixed.

    Args:
        node: Leaves, and blends and concatenations of them.
        compile_leaf: Makes the spec of one leaf.
        lanes: L.
        seed: 64-bit hash of the stream's seed.
        same_pass: Every pass is the first again.
        endless: Whether the whole is repeated for ever.
    """
    leaves = mixture_leaves(node)
    seen: Counter[tuple[str, ...]] = Counter()
    specs: list[LeafSpec] = []
    runs = _runs(node)
    for number, leaf in enumerate(leaves):
        specs.append(compile_leaf(leaf, number, seen[leaf.identity], runs[number]))
        seen[leaf.identity] += 1
    sizes = [len(spec.leaf.source) for spec in specs]
    branch = MixtureCompiler(lanes=lanes, seed=seed, sizes=sizes).compile(node)
    order = IndexMap(
        routes=branch.routes,
        table=LeafTable([spec.order for spec in specs], lanes),
        passes=None if endless else branch.passes,
        same_pass=same_pass,
    )
    return order, tuple(specs), branch.told


def _runs(node: SavableDataset, below_epochized: bool = False) -> list[bool]:
    """For each leaf, whether a blend by repetitions stands above it, which hands each lane contiguous runs."""
    match node:
        case RepeatDataset():
            return _runs(node.dataset, below_epochized)
        case BlendDataset() | BlendEpochizedDataset() | ConcatDataset():
            below = below_epochized or isinstance(node, BlendEpochizedDataset)
            return [run for dataset in node.datasets for run in _runs(dataset, below)]
        case _:
            return [below_epochized]
