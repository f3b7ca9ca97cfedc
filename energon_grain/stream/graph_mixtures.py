"""Compiling nodes with several datasets below them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from energon_grain.datasets.dataset import SavableDataset
from energon_grain.datasets.mixtures import BlendDataset, BlendEpochizedDataset, ConcatDataset
from energon_grain.errors import ConfigError
from energon_grain.samplers.blend import Blend
from energon_grain.samplers.epochized_blend import EpochizedBlend
from energon_grain.samplers.hashing import fold
from energon_grain.samplers.passes import Concat
from energon_grain.samplers.routing import RouteTree
from energon_grain.samplers.step_blend import StepBlend
from energon_grain.stream.branches import Branch, IndexBranch, LaneBranch, equal_length
from energon_grain.stream.index_map import EqualPasses
from energon_grain.stream.operators.mixing import BlendNode, ConcatNode

if TYPE_CHECKING:
    from energon_grain.stream.graph import Context, GraphCompiler


class Mixtures:
    """Compiles mixtures: as index maps where their children are, else as operators of lanes.

    Args:
        compiler: For the children.
        hosts: Number of hosts, for blends that choose once a step.
    """

    def __init__(self, compiler: GraphCompiler, hosts: int) -> None:
        self._compiler = compiler
        self._hosts = hosts

    def _children(self, datasets: tuple[SavableDataset, ...], at: Context, *, endless: bool = False) -> list[Branch]:
        compile_node = self._compiler.compile
        return [compile_node(dataset, at.child(number, endless=endless)) for number, dataset in enumerate(datasets)]

    def blend(self, node: BlendDataset, at: Context) -> Branch:
        """A blend by weights. Above filters it counts items, so that shares are exact in what is left."""
        children = self._children(node.datasets, at, endless=True)
        router, width = self._router(node, at)
        told: dict[str, Any] = {
            "blend": [list(map(list, router.weights)), list(router.starts)],
            "of": [child.told for child in children],
        }
        if width:
            told["per_step"] = width
        batches = any(child.batches for child in children)
        if batches and not width:
            self._compiler.ragged = True
        if all(isinstance(child, IndexBranch) and not child.drops for child in children):
            branches = [child for child in children if isinstance(child, IndexBranch)]
            return IndexBranch(
                leaves=[leaf for branch in branches for leaf in branch.leaves],
                routes=RouteTree(router, [branch.routes for branch in branches]),
                passes=None,
                told=told,
                batches=batches,
                one_pass=sum(branch.samples() for branch in branches),
            )
        weights = router.weights[0]
        blend = BlendNode(
            nodes=tuple(self._compiler.feeds.node_of(child, stripe=1, endless=True) for child in children),
            router=router,
            lanes=self._compiler.lanes,
            shares=tuple(weight / sum(weights) for weight in weights),
        )
        return LaneBranch(blend, told, batches)

    def _router(self, node: BlendDataset, at: Context) -> tuple[Blend | StepBlend, int]:
        """The arithmetic of a blend, and how many items share a choice (0: each has its own)."""
        lanes = self._compiler.lanes
        width = self._hosts if node.per_step is True else int(node.per_step)
        if width and (lanes % width or width % self._hosts):
            raise ConfigError(
                f"BlendDataset: per_step={node.per_step!r} is {width} items a choice, with {self._hosts} hosts and "
                f"{lanes} lanes: it must be a multiple of the number of hosts and divide the lanes. Give "
                f"per_step=<the largest number of hosts that the run shall continue on> and a multiple of it as lanes="
            )
        width = width if width > 1 else 0
        schedule = [(start, list(weights)) for start, weights in node.schedule]
        key = fold(at.seed, "blend", at.place)
        if width:
            uneven = [start for start, _ in schedule if start % width]
            if uneven:
                raise ConfigError(
                    f"BlendDataset: the schedule changes at {uneven}, inside a step of {width} items: begin segments "
                    f"at multiples of it"
                )
            schedule = [(start // width, weights) for start, weights in schedule]
        inner = lanes // max(1, width)
        blend = (
            Blend(schedule[0][1], lanes=inner, key=key)
            if len(schedule) == 1
            else Blend(schedule=schedule, lanes=inner, key=key)
        )
        return (StepBlend(blend, width=width) if width else blend), width

    def blend_epochized(self, node: BlendEpochizedDataset, at: Context) -> Branch:
        """A blend by repetitions."""
        branches: list[IndexBranch] = []
        for child in self._children(node.datasets, at):
            if not isinstance(child, IndexBranch):
                raise ConfigError(
                    "BlendEpochizedDataset: one of the datasets generates, groups, batches or packs, so its length is "
                    "not known beforehand: blend by repetitions first, and pack (or batch) the blend; or use a "
                    "BlendDataset by weights"
                )
            branches.append(child)
        lengths = [equal_length(branch, "a blend by repetitions") for branch in branches]
        key = fold(at.seed, "blend_epochized", at.place)
        router = EpochizedBlend(lengths, node.repetitions, lanes=self._compiler.lanes, key=key)
        told = {"blend_epochized": [str(number) for number in node.repetitions], "of": [b.told for b in branches]}
        return IndexBranch(
            leaves=[leaf for branch in branches for leaf in branch.leaves],
            routes=RouteTree(router, [branch.routes for branch in branches]),
            passes=router,
            told=told,
            drops=any(branch.drops for branch in branches),
            batches=any(branch.batches for branch in branches),
        )

    def concat(self, node: ConcatDataset, at: Context) -> Branch:
        """One after the other."""
        children = self._children(node.datasets, at)
        told = {"concat": len(children), "of": [child.told for child in children]}
        batches = any(child.batches for child in children)
        if len(children) > 1 and batches:
            self._compiler.ragged = True
        branches = [child for child in children if isinstance(child, IndexBranch)]
        if len(branches) == len(children) and all(isinstance(b.passes, EqualPasses | None) for b in branches):
            lengths = [equal_length(branch, "a concatenation") for branch in branches]
            return IndexBranch(
                leaves=[leaf for branch in branches for leaf in branch.leaves],
                routes=RouteTree(Concat(lengths), [branch.routes for branch in branches]),
                passes=EqualPasses(sum(lengths)),
                told=told,
                drops=any(branch.drops for branch in branches),
                same_pass=all(branch.same_pass for branch in branches),
                batches=batches,
            )
        nodes = tuple(self._compiler.feeds.node_of(child, stripe=at.stripe, endless=False) for child in children)
        if not all(each.finite for each in nodes):
            raise ConfigError(
                "a concatenation takes finite datasets, but one of them is endless (a blend by weights, or repeated)"
            )
        return LaneBranch(ConcatNode(nodes), told, batches)
