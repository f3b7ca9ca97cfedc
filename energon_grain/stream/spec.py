"""A compiled dataset: everything that decides what comes out, resolved once, with paths instead of open files."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from energon_grain.datasets.cache_pool import CachePool
from energon_grain.errors import ConfigError
from energon_grain.samplers.leaf_order import LeafOrder
from energon_grain.stream.index_map import IndexMap

if TYPE_CHECKING:
    from energon_grain.datasets.joined_leaf import ResolvedJoin
    from energon_grain.datasets.leaf import ResolvedLeaf
    from energon_grain.stream.feed import Feed
    from energon_grain.stream.lanes import LaneOperator

LastBatch = Literal["keep", "drop", "pad"]
"""What becomes of an incomplete last batch of a pass: delivered short, left out, or filled up, with a mask."""
DEFAULT_FAILURE_TOLERANCE = 100
"""Failures of one hook in a row that end a run, where nothing else is said."""
_SHOWN = 4
"""Leaves that a representation names."""
_PASS_BITS = 40


@dataclass(frozen=True, kw_only=True, slots=True)
class HookSpec:
    """A user function, and how it is to be called.

    Attributes:
        name: In random keys, failure budgets and statistics.
        function: Takes a sample, a list of samples, or a batch.
        failure_tolerance: Failures in a row that are survived; 0: any number.
        restore_seeds: Seed the global generators around each call.
        concurrent: Whether calls may overlap in time.
        filters: Whether it is there to drop what it is given.
    """

    name: str
    function: Callable[[Any], Any]
    failure_tolerance: int
    restore_seeds: bool
    concurrent: bool
    filters: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class LeafSpec:
    """One leaf: its source, how its samples are made, and its order.

    Attributes:
        key: The leaf's identity in random keys.
        hook_key: 64-bit key of the random numbers of hooks on its samples.
        cook: Hook that turns crude samples into samples; None where the leaf has a sample type, or nobody cooks.
        hooks: Hooks on each sample, in order, after it was made (and cooked). No two have the same name.
        failure_tolerance: Samples in a row that may fail to decode; 0: any number.
    """

    key: tuple[str, ...]
    leaf: ResolvedLeaf | ResolvedJoin
    order: LeafOrder
    hook_key: int
    cook: HookSpec | None
    hooks: tuple[HookSpec, ...]
    failure_tolerance: int


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
class Program:
    """What lanes do with their samples.

    Attributes:
        root: Makes a lane's items.
        feeds: Where samples come from, by number.
    """

    root: LaneOperator
    feeds: tuple[Feed, ...]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class StreamSpec:
    """What `compile_dataset` makes of a dataset; what worker processes get.

    Attributes:
        seed: 64-bit hash of `written_seed`.
        written_seed: The user's seed and seed offset.
        lanes: L.
        index_map: From positions to draws, and how long passes are; None where lanes have a program.
        program: What lanes do with their samples, where that depends on more than a position.
        batch: None: single samples are delivered.
        steps: Batches per host after which an iteration ends although the stream goes on; None: no such end.
        limit: Batches per host after which a pass ends; None: at its natural end.
        mixture: How leaves are mixed, for the manifest; None: there is one.
        same_pass: Every pass is the first again.
        ragged: Whether consecutive items may be batches of different datasets or groups, whose shapes differ.
        cache_pool: What hooks get as `cache`; None: what their task encoder says.
    """

    seed: int
    written_seed: tuple[int, int]
    lanes: int
    leaves: tuple[LeafSpec, ...]
    index_map: IndexMap | None
    program: Program | None
    batch: BatchSpec | None
    steps: int | None
    limit: int | None
    mixture: dict[str, Any] | None
    same_pass: bool
    ragged: bool
    cache_pool: CachePool | None

    @property
    def order(self) -> IndexMap:
        """The order of the stream.

        Raises:
            ConfigError: It depends on data.
        """
        if self.index_map is None:
            raise ConfigError(
                "which samples stand at a position of this dataset depends on what is in them: it filters, groups, "
                "packs or generates. Only iterating tells; use get_loader"
            )
        return self.index_map

    @property
    def endless(self) -> bool:
        """Whether it has no passes."""
        if self.program is not None:
            return not self.program.root.finite
        return self.order.passes is None

    def length(self, pass_number: int) -> int | None:
        """Items of a pass, drops not counted; None: endless, or it depends on data."""
        return None if self.program is not None else self.order.length(pass_number)

    def counted(self, pass_number: int) -> int:
        """The pass as it counts for random numbers and the order."""
        return 0 if self.same_pass or self.endless else pass_number

    def first_item(self, pass_number: int) -> int:
        """Number of the first item of a pass among those of all passes, to key random numbers with."""
        if self.program is not None:
            return self.counted(pass_number) << _PASS_BITS
        return self.order.start(pass_number)

    @property
    def stage_seeds_globals(self) -> bool:
        """Whether a hook on samples seeds generators of the whole process: it may not run beside the program.

        In another thread it would seed `random` and its like, and put them back, in the middle of whatever the training
        loop draws, and get its numbers; the batches would then depend on the workers.
        """
        hooks = (hook for leaf in self.leaves for hook in (leaf.cook, *leaf.hooks) if hook is not None)
        return any(hook.restore_seeds for hook in hooks)

    @property
    def assembly_seeds_globals(self) -> bool:
        """The same of those where batches are put together: on batches, groups, packs and items of lanes."""
        batch = () if self.batch is None else (self.batch.hook, *self.batch.encode)
        lanes = () if self.program is None else _hooks(self.program.root)
        return any(hook.restore_seeds for hook in (*batch, *lanes))

    @property
    def patience(self) -> int:
        """Samples in a row that may be dropped on the way to one item of a lane."""
        return max(1000, 2 * sum(len(leaf.leaf.source) for leaf in self.leaves))

    def manifest(self) -> dict[str, Any]:
        """Every setting that changes the order, and what each leaf holds; JSON-native."""
        return {
            "seed": self.written_seed[0],
            "seed_offset": self.written_seed[1],
            "lanes": self.lanes,
            "endless": self.endless,
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


def names_of_leaves(identities: Iterable[tuple[str, ...]]) -> str:
    """One line that names the first few leaves, and says how many others there are."""
    names = ["/".join(filter(None, identity[1:])) for identity in identities]  # the first says of which kind it is
    return ", ".join([*names[:_SHOWN], *([f"… {len(names) - _SHOWN} more"] if len(names) > _SHOWN else [])])


def _hooks(value: Any) -> Iterator[HookSpec]:
    if isinstance(value, HookSpec):
        yield value
    elif isinstance(value, tuple):
        for part in value:  # pyright: ignore[reportUnknownVariableType]
            yield from _hooks(part)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from _hooks(getattr(value, field.name))
