# SPDX-License-Identifier: Apache-2.0
"""A compiled dataset: everything that determines its output, resolved once, with paths instead of open files."""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from energon_grain.errors import AmendmentError, ConfigError, StateError
from energon_grain.samplers.fold import SavedCarries, flat, unflat
from energon_grain.samplers.leaf_order import LeafOrder
from energon_grain.sources.cache_pool import CachePool
from energon_grain.sources.remote_runs import ReadInRuns
from energon_grain.sources.source import Source
from energon_grain.storage.urls import revision_of
from energon_grain.stream.flow import SampleLoader
from energon_grain.stream.hooks import HookSpec
from energon_grain.stream.index_map import IndexMap
from energon_grain.stream.lanes import Feed, LaneOperator
from energon_grain.stream.observer import Observer
from energon_grain.stream.places import Placing
from energon_grain.stream.state import Place, pack_integers, unpack_integers, walk
from energon_grain.transforms.decode import SampleDecoder
from energon_grain.transforms.field_map import FieldMap


def check_passes(passes: int | None, error_prefix: str = "") -> None:
    """Check a number of passes that are shuffled as one.

    Raises ConfigError if it is neither a positive number, -1 nor None.
    """
    if passes is not None and (not hasattr(passes, "__index__") or (passes != -1 and passes < 1)):
        raise ConfigError(
            f"{error_prefix}shuffle_over_epochs_multiplier={passes!r}: expected 1 or more, -1 (with replacement) or "
            f"None (keep the order)"
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Ordering:
    """How the samples of a leaf are ordered, after its own configuration was applied.

    Attributes:
        error_prefix: Origin of the values, as the beginning of a message.
        training: Whether samples are shuffled.
        passes: Passes that are shuffled as one; -1: with replacement; None: no shuffling.
        block: Consecutive samples that are read together; None: each sample is read alone.
        mixing: Minimum number of samples to mix, if blocks are read.
        blocks_in_lane: Blocks to mix in each lane, if batches are formed inside a lane.
    """

    error_prefix: str = ""
    training: bool
    passes: int | None
    block: int | None
    mixing: int | None
    blocks_in_lane: int | None

    def __post_init__(self) -> None:
        check_passes(self.passes, self.error_prefix)
        if self.block is not None and self.block < 1:
            raise ConfigError(f"{self.error_prefix}max_samples_per_sequence={self.block}: expected 1 or more, or None")
        if self.mixing is not None and self.mixing < 0:
            raise ConfigError(f"{self.error_prefix}shuffle_buffer_size={self.mixing}: expected 0 or more, or None")
        if self.blocks_in_lane is not None and self.blocks_in_lane < 1:
            raise ConfigError(
                f"{self.error_prefix}parallel_shard_iters={self.blocks_in_lane}: expected 1 or more, or None"
            )


class Resolved(Protocol):
    """A node with its own samples, after its configuration was read. Picklable: copies reopen their files."""

    @property
    def source(self) -> Source: ...

    @property
    def ordering(self) -> Ordering: ...

    @property
    def sample_type(self) -> type[Any] | None:
        """None: samples are crude."""
        ...

    @property
    def field_map(self) -> FieldMap | None:
        """Where to find the fields of its samples, as far as a field map determines it."""
        ...

    @property
    def decoder(self) -> SampleDecoder | None:
        """None: parts stay bytes."""
        ...

    @property
    def subflavors(self) -> dict[str, Any]:
        """Tags of every sample."""
        ...

    @property
    def path(self) -> str:
        """The folder or file, for provenance."""
        ...

    @property
    def loader(self) -> Callable[[int, int, int], SampleLoader] | None:
        """Makes a `SampleLoader` from (number of the leaf, key of its hooks, failure tolerance).

        None: it is a `ResolvedLeaf`, whose samples the engine makes.
        """
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class ResolvedLeaf:
    """A leaf whose configuration was read and whose index is open. Picklable: copies reopen their files.

    Attributes:
        sample_type: None for a crude dataset.
        field_map: Where to find the fields of `sample_type`; None with `load`, and for a crude dataset.
        load: Makes a sample from a crude one; may run in several threads. None: the field map or a cooker makes it.
        decoder: None: parts stay bytes.
        subflavors: Tags of every sample.
    """

    source: Source
    sample_type: type[Any] | None
    field_map: FieldMap | None
    load: Callable[[Any], Any] | None
    decoder: SampleDecoder | None
    subflavors: dict[str, Any]
    ordering: Ordering

    @property
    def path(self) -> str:
        """The dataset's folder or file, for provenance."""
        return os.fspath(self.source.path)

    @property
    def loader(self) -> None:
        """None: the engine makes its samples."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LeafSpec:
    """One leaf: its source, how its samples are made, and its order.

    Attributes:
        key: Identity of the leaf in random keys.
        hook_key: 64-bit key of the random numbers of hooks on its samples.
        cook: Hook that turns crude samples into samples; None if the leaf has a sample type or no cooker.
        hooks: Hooks on each sample, in order, after it was made (and cooked). Their names are unique.
        failure_tolerance: Samples in a row that may fail to decode; 0: no limit.
    """

    key: tuple[str, ...]
    leaf: Resolved
    order: LeafOrder
    hook_key: int
    cook: HookSpec | None
    hooks: tuple[HookSpec, ...]
    failure_tolerance: int


def wanted_block(leaf: Resolved) -> int | None:
    """Consecutive samples to read together, if there are enough of them; None: read each sample alone."""
    if leaf.ordering.block is None and isinstance(leaf.source, ReadInRuns):
        return leaf.source.run_samples
    return leaf.ordering.block


LastBatch = Literal["keep", "drop", "pad"]
"""Treatment of an incomplete last batch of a pass: delivered short, dropped, or padded, with a mask."""
_SHOWN = 4
"""Number of leaves that a representation names."""
_PASS_BITS = 40
_MAX_LANE_DISTANCE = 1 << 20
"""Maximum distance of lanes of an order with folds, plus a quarter of their position: all in between is planned."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchSpec:
    """How samples become batches.

    Attributes:
        size: Samples of one host's batch.
        last: Treatment of an incomplete last batch of a finite pass.
        placing: Assigns the items of a step to hosts; None: items are assigned by position.
    """

    size: int
    hook: HookSpec
    last: LastBatch
    encode: tuple[HookSpec, ...]
    placing: Placing | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class ItemSpec:
    """How samples become an item, if items of several samples are planned.

    Attributes:
        hooks: Each with the 64-bit key of its random numbers. The first one receives the list of samples, each other
            one the result of the previous.
        takes_ranges: Whether the first one also takes the keyword argument `ranges`: the part of each sample to use.
    """

    hooks: tuple[tuple[HookSpec, int], ...]
    takes_ranges: bool


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Program:
    """The program that lanes run on their samples."""

    root: LaneOperator
    feeds: tuple[Feed, ...]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class StreamSpec:
    """A compiled dataset, the result of `compile_dataset`. It is sent to worker processes.

    Attributes:
        seed: 64-bit hash of `written_seed`.
        written_seed: The user's seed and seed offset.
        index_map: Maps positions to draws, and knows the length of passes; None if lanes have a program.
        program: The program of lanes, if items depend on more than positions.
        batch: None: single samples are delivered.
        steps: Batches per host after which an iteration ends, although the stream continues; None: no limit.
        limit: Batches per host after which a pass ends; None: no limit.
        mixture: How leaves are mixed, for the manifest; None: a single leaf.
        ragged: Whether consecutive items may be batches of different datasets or groups, with different shapes.
        cache_pool: The `cache` argument of hooks; None: that of their task encoder.
        observers: Functions that make the observers of each stream.
        timed: Whether stages measure their times for an observer.
        described_by: The manifest of the configuration, if the run was amended.
        document: Number of each leaf of `mixture`, if the run was amended; None: 0, 1, 2, …
    """

    seed: int
    written_seed: tuple[int, int]
    lanes: int
    leaves: tuple[LeafSpec, ...]
    index_map: IndexMap | None
    program: Program | None
    makers: tuple[ItemSpec, ...]
    batch: BatchSpec | None
    steps: int | None
    limit: int | None
    mixture: dict[str, Any] | None
    same_pass: bool
    ragged: bool
    cache_pool: CachePool | None
    observers: tuple[Callable[[], Observer], ...] = ()
    timed: bool = True
    described_by: Mapping[str, Any] | None = None
    document: tuple[int, ...] | None = None

    @property
    def order(self) -> IndexMap:
        """The order of the stream. Raises ConfigError if it depends on data."""
        if self.index_map is None:
            raise ConfigError(
                "the samples at a position of this dataset depend on their contents, because it filters, groups, packs "
                "or generates. They are known only by iterating; use get_loader"
            )
        return self.index_map

    @property
    def endless(self) -> bool:
        """Whether it has no passes."""
        return self.order.passes is None if self.program is None else not self.program.root.finite

    @property
    def order_version(self) -> int:
        """The first order version (`stream.cursor.ORDER_VERSION`) that the stream is compatible with."""
        return 1 if self.program is None else _order_version(self.program.root)

    def length(self, pass_number: int) -> int | None:
        """Items of a pass, ignoring drops; None: endless, or dependent on data."""
        return None if self.program is not None else self.order.length(pass_number)

    def counted(self, pass_number: int) -> int:
        """The number of the pass for random numbers and the order."""
        return 0 if self.same_pass or self.endless else pass_number

    def first_item(self, pass_number: int) -> int:
        """Number of the first item of a pass, counted over all passes, to key random numbers with."""
        if self.program is not None:
            return self.counted(pass_number) << _PASS_BITS
        return self.order.start(pass_number)

    @property
    def stage_seeds_globals(self) -> bool:
        """Whether a hook on samples seeds global generators. Such hooks may not run in parallel with the program.

        In another thread such a hook would seed and restore `random` and other generators while the training loop draws
        from them, and the two would get each other's numbers. The batches would then depend on the workers.
        """
        return any(hook.restore_seeds for hook in self.stage_hooks())

    def stage_hooks(self) -> Iterator[HookSpec]:
        """The hooks that run where samples are read."""
        for leaf in self.leaves:
            yield from (hook for hook in (leaf.cook, *leaf.hooks) if hook is not None)
        for maker in self.makers:
            yield from (hook for hook, _ in maker.hooks)

    @property
    def assembly_seeds_globals(self) -> bool:
        """The same for hooks that run where batches are assembled: on batches, groups, packs and items of lanes."""
        batch = () if self.batch is None else (self.batch.hook, *self.batch.encode)
        lanes = () if self.program is None else _hooks(self.program.root)
        return any(hook.restore_seeds for hook in (*batch, *lanes))

    @property
    def patience(self) -> int:
        """Samples in a row that may be dropped on the way to one item of a lane."""
        return max(1000, 2 * sum(len(leaf.leaf.source) for leaf in self.leaves))

    def carries(self, pass_number: int, item: int, dropped: int, lanes: tuple[Any, ...] | None) -> str:
        """The carries to continue the folds of the order from at a place, in the form of saved states. Empty: no folds.

        Args:
            pass_number: Number of the pass, for the order.
            item: Next item of the pass.
            dropped: Minimum number of samples that each lane dropped: lanes are this many rounds ahead of their items.
            lanes: States of lanes; None: nothing was made yet, or they have no program.
        """
        if not self.folds:
            return ""
        places, _ = self._places(pass_number, item, dropped, lanes)
        return pack_integers(
            flat([c for order, at in zip(self._orders, places, strict=False) for c in order.carries(at)])
        )

    @property
    def folds(self) -> bool:
        """Whether the order contains folds."""
        return any(order.folds for order in self._orders)

    @property
    def _orders(self) -> list[IndexMap]:
        return [self.order] if self.program is None else [feed.order for feed in self.program.feeds]

    def _places(
        self, pass_number: int, item: int, dropped: int, lanes: tuple[Any, ...] | None
    ) -> tuple[list[int], list[int]]:
        """The first and the last position of each order that a place needs samples of; see `carries`."""
        if self.index_map is not None:
            position = item - item % self.lanes + dropped * self.lanes if dropped else item
            first = [self.index_map.start(pass_number) + position]
            return first, first
        assert self.program is not None
        if lanes is None:
            return [], []
        feeds = self.program.feeds
        places: list[list[int]] = [[] for _ in feeds]
        for form, found in walk((self.program.root.state_form,) * len(lanes), lanes, later=True):
            feed = feeds[form.feed]
            if isinstance(form, Place):
                position = found
            else:
                pass_number, rounds = found
                position = feed.order.start(pass_number) + rounds // feed.stripe * feed.stripe * feed.lanes
            places[feed.index].append(position)
        return [min(each, default=0) for each in places], [max(each, default=0) for each in places]

    def remember(self, carries: str, pass_number: int, item: int, dropped: int, lanes: tuple[Any, ...] | None) -> None:
        """Restore the result of `carries` at a place. Raises StateError if it is of another order or place."""
        try:
            saved = SavedCarries(unflat(unpack_integers(carries)))
            places = self._places(pass_number, item, dropped, lanes)
            try:
                for order, first, last in zip(self._orders, *places, strict=False):  # no places: nothing was made yet
                    if order.folds and last - first > _MAX_LANE_DISTANCE + first // 4:
                        raise ValueError(f"lanes are at positions {first} to {last}")
                    order.remember(saved, first)
                saved.finish()
            except BaseException:
                saved.undo()
                raise
        except AmendmentError:
            raise
        except ValueError as error:
            raise StateError(f"the state's 'plans' do not match its position in this dataset: {error}") from error

    def manifest(self) -> dict[str, Any]:
        """Every setting that changes the order, and the contents of each leaf; JSON-native.

        For data on the Hub it also records the commit. Another commit with the same data is not a change.
        """
        if self.described_by is not None:
            return dict(self.described_by)
        placing = None if self.batch is None else self.batch.placing
        sources = {"/".join(leaf.key): leaf.leaf.source for leaf in self.leaves}
        return {
            **({} if placing is None else {"balance": placing.manifest(sources)}),
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
                    **_where(leaf.leaf.source),
                    **({} if revision_of(leaf.leaf.path) is None else {"commit": leaf.leaf.path}),
                }
                for number, leaf in enumerate(self.leaves)
            },
        }

    def fingerprint(self) -> str:
        """32 hex digits that change with anything in the manifest, except commits."""
        manifest = copy.deepcopy(self.manifest())
        for leaf in manifest["leaves"].values():
            leaf.pop("commit", None)
        text = json.dumps(manifest, sort_keys=True, separators=(",", ":"))
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _where(source: Source) -> dict[str, Any]:
    """The manifest's entry for the condition that samples of a leaf satisfy, if there is one."""
    where = getattr(source, "where", None)
    return {} if where is None else {"where": dict(where)}


def not_a_dataset(value: Any) -> str:
    """Message about a value that is not a dataset: its type, and what to pass instead."""
    remedy = "pass the result of get_train_dataset or of another dataset class"
    if isinstance(value, str | os.PathLike | Mapping) or hasattr(value, "get_datasets"):
        remedy = "pass it to get_train_dataset or get_val_dataset, and pass the result of that"
    elif hasattr(value, "restore_sample"):
        remedy = "pass the dataset that it was made from"
    elif hasattr(value, "build") and not isinstance(value, type):
        remedy = "pass the result of its build()"
    elif isinstance(value, list | tuple):
        remedy = "pass its datasets one by one"
    return f"expected a dataset, got a {type(value).__name__}; {remedy}"


def names_of_leaves(identities: Iterable[tuple[str, ...]]) -> str:
    """One line that names the first few leaves, and how many others there are."""
    names = ["/".join(filter(None, identity[1:])) for identity in identities]  # the first part is the kind
    return ", ".join([*names[:_SHOWN], *([f"… {len(names) - _SHOWN} more"] if len(names) > _SHOWN else [])])


def _order_version(operator: LaneOperator) -> int:
    return max(operator.order_version, *map(_order_version, operator.children), 1)


def _hooks(value: Any) -> Iterator[HookSpec]:
    if isinstance(value, HookSpec):
        yield value
    elif isinstance(value, tuple):
        for part in value:  # pyright: ignore[reportUnknownVariableType]
            yield from _hooks(part)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from _hooks(getattr(value, field.name))
