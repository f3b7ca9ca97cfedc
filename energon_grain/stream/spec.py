"""A compiled dataset: everything that decides what comes out, resolved once, with paths instead of open files."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from energon_grain.datasets.leaf import ResolvedLeaf
from energon_grain.datasets.nodes import LastBatch
from energon_grain.datasets.task_encoder import TaskEncoder
from energon_grain.samplers.leaf_order import LeafOrder
from energon_grain.stream.index_map import IndexMap


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
        order: From positions to draws, and how long passes are.
        sample_hooks: Hooks on each sample, in order, after it was made (and cooked).
        batch: None: single samples are delivered.
        steps: Batches per host after which an iteration ends although the stream goes on; None: no such end.
        limit: Batches per host after which a pass ends; None: at its natural end.
        mixture: How leaves are mixed, for the manifest; None: there is one.
        owner: The task encoder whose hooks run.
    """

    seed: int
    written_seed: tuple[int, int]
    lanes: int
    leaves: tuple[LeafSpec, ...]
    order: IndexMap
    sample_hooks: tuple[HookSpec, ...]
    batch: BatchSpec | None
    steps: int | None
    limit: int | None
    mixture: dict[str, Any] | None
    owner: TaskEncoder | None

    def manifest(self) -> dict[str, Any]:
        """Every setting that changes the order, and what each leaf holds; JSON-native."""
        return {
            "seed": self.written_seed[0],
            "seed_offset": self.written_seed[1],
            "lanes": self.lanes,
            "endless": self.order.passes is None,
            "mixture": self.mixture,
            "leaves": {
                "/".join(leaf.key): {
                    "number": number,
                    "samples": len(leaf.leaf.source),
                    "content": leaf.leaf.source.content_id,
                    "shuffle": leaf.order.shuffle,
                    "block": leaf.order.block,
                    "window": leaf.order.window,
                    "passes": leaf.order.passes,
                    "replacement": leaf.order.replacement,
                }
                for number, leaf in enumerate(self.leaves)
            },
        }

    def fingerprint(self) -> str:
        """32 hex digits that change with anything in the manifest."""
        text = json.dumps(self.manifest(), sort_keys=True, separators=(",", ":"))
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
