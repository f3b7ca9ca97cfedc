"""A compiled dataset: everything that decides what comes out, resolved once, with paths instead of open files."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from energon_grain.datasets.leaf import ResolvedLeaf
from energon_grain.datasets.nodes import LastBatch
from energon_grain.datasets.task_encoder import TaskEncoder
from energon_grain.samplers.leaf_order import LeafOrder, LeafTable
from energon_grain.stream.draws import Draws

Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, slots=True)
class HookSpec:
    """A user function, and how it is to be called.

    Attributes:
        name: In random keys, failure budgets and statistics.
        function: Takes a sample, a list of samples, or a batch.
        failure_tolerance: Failures in a row that are survived; 0: any number.
        restore_seeds: Seed the global generators around each call.
        concurrent: Whether calls may overlap in time.
    """

    name: str
    function: Callable[[Any], Any]
    failure_tolerance: int
    restore_seeds: bool
    concurrent: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class LeafSpec:
    """One leaf: its source, how its samples are made, and its order.

    Attributes:
        key: The leaf's identity in random keys.
        cook: Hook that turns crude samples into samples; None where the leaf has a sample type, or nobody cooks.
    """

    key: tuple[str, ...]
    leaf: ResolvedLeaf
    order: LeafOrder
    cook: HookSpec | None


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchSpec:
    """How samples become batches.

    Attributes:
        size: Samples of one host's batch.
        hook: Makes the batch of a list of samples.
        last: What becomes of an incomplete last batch of a finite pass.
        encode: Hooks on the batch, in order.
    """

    size: int
    hook: HookSpec
    last: LastBatch
    encode: tuple[HookSpec, ...]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class StreamSpec:
    """What `compile_dataset` makes of a dataset; what worker processes get.

    Attributes:
        seed: 64-bit hash of `written_seed`.
        written_seed: The user's seed and seed offset.
        lanes: L.
        length: Positions of one pass; None: endless.
        sample_hooks: Hooks on each sample, in order, after it was made (and cooked).
        batch: None: single samples are delivered.
        steps: Batches per host after which an iteration ends although the stream goes on; None: no such end.
        limit: Batches per host after which a pass ends; None: at its natural end.
        same_pass: Every pass is pass 0 again.
        owner: The task encoder whose hooks run.
        table: The kernel that draws all leaves.
    """

    seed: int
    written_seed: tuple[int, int]
    lanes: int
    leaves: tuple[LeafSpec, ...]
    length: int | None
    sample_hooks: tuple[HookSpec, ...]
    batch: BatchSpec | None
    steps: int | None
    limit: int | None
    same_pass: bool
    owner: TaskEncoder | None
    table: LeafTable

    def draw(self, positions: Int64Array, pass_number: int) -> Draws:
        """Draws of positions of one pass.

        Args:
            positions: (n,) in [0, length), or any where the stream is endless.
            pass_number: 0 where the stream is endless.
        """
        child = positions if self.length is None else positions + self.length * (0 if self.same_pass else pass_number)
        leaf = np.zeros(len(positions), np.int32)
        index, epoch = self.table.draw(leaf, child)
        return Draws(leaf=leaf, child=child, index=index, epoch=epoch)

    def manifest(self) -> dict[str, Any]:
        """Every setting that changes the order, and what each leaf holds; JSON-native."""
        return {
            "seed": self.written_seed[0],
            "seed_offset": self.written_seed[1],
            "lanes": self.lanes,
            "endless": self.length is None,
            "leaves": {
                "/".join(leaf.key): {
                    "samples": len(leaf.leaf.source),
                    "content": leaf.leaf.source.content_id,
                    "shuffle": leaf.order.shuffle,
                    "block": leaf.order.block,
                    "window": leaf.order.window,
                    "passes": leaf.order.passes,
                    "replacement": leaf.order.replacement,
                }
                for leaf in self.leaves
            },
        }

    def fingerprint(self) -> str:
        """32 hex digits that change with anything in the manifest."""
        text = json.dumps(self.manifest(), sort_keys=True, separators=(",", ":"))
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
