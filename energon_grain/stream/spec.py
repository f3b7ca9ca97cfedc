# SPDX-License-Identifier: Apache-2.0
"""A compiled dataset: everything that decides what comes out, resolved once, with paths instead of open files."""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import itertools
import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal, Protocol, cast

from energon_grain.errors import ConfigError, StateError
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
    """How a leaf's samples are ordered, once its own configuration was asked.

    Attributes:
        said_by: Where the numbers come from, to begin a message with.
        training: Whether they are shuffled.
        passes: Passes that are shuffled as one; -1: with replacement; None: no shuffling.
        block: Consecutive samples that are read together; None: each sample by itself.
        mixing: Samples that mix at least, where blocks are read.
        blocks_in_lane: Blocks that mix in each lane, where batches are formed inside a lane.
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
            raise ConfigError(f"{self.error_prefix}max_samples_per_sequence={self.block}: 1 or more, or None")
        if self.mixing is not None and self.mixing < 0:
            raise ConfigError(f"{self.error_prefix}shuffle_buffer_size={self.mixing}: 0 or more, or None")
        if self.blocks_in_lane is not None and self.blocks_in_lane < 1:
            raise ConfigError(f"{self.error_prefix}parallel_shard_iters={self.blocks_in_lane}: 1 or more, or None")


class Resolved(Protocol):
    """A node with samples of its own, once its configuration was read. Picklable: the copy opens its files again."""

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
        """Where the fields of its samples are found, as far as a map says that."""
        ...

    @property
    def decoder(self) -> SampleDecoder | None:
        """None leaves parts as bytes."""
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
        """Makes what makes its samples, by (number of the leaf, key of its hooks, failure tolerance).

        None: it is a `ResolvedLeaf`, whose samples the engine makes.
        """
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class ResolvedLeaf:
    """A leaf whose configuration was read and whose index is open. Picklable: the copy opens its files anew.

    Attributes:
        sample_type: None for a crude dataset.
        field_map: Where the fields of `sample_type` are found; None where there is `load`, and for a crude dataset.
        load: Makes a sample of a crude one; may run in several threads. None: the field map does, or a cooker.
        decoder: None leaves parts as bytes.
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
        key: The leaf's identity in random keys.
        hook_key: 64-bit key of the random numbers of hooks on its samples.
        cook: Hook that turns crude samples into samples; None where the leaf has a sample type, or nobody cooks.
        hooks: Hooks on each sample, in order, after it was made (and cooked). No two have the same name.
        failure_tolerance: Samples in a row that may fail to decode; 0: any number.
    """

    key: tuple[str, ...]
    leaf: Resolved
    order: LeafOrder
    hook_key: int
    cook: HookSpec | None
    hooks: tuple[HookSpec, ...]
    failure_tolerance: int


def wanted_block(leaf: Resolved) -> int | None:
    """Consecutive samples to read together where there are enough of them; None: each by itself."""
    if leaf.ordering.block is None and isinstance(leaf.source, ReadInRuns):
        return leaf.source.run_samples
    return leaf.ordering.block


LastBatch = Literal["keep", "drop", "pad"]
"""What becomes of an incomplete last batch of a pass: delivered short, left out, or filled up, with a mask."""
_SHOWN = 4
"""Leaves that a representation names."""
_PASS_BITS = 40
_APART = 1 << 20
"""Positions that lanes of an order with folds may be apart, besides a quarter of their place: all are planned."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchSpec:
    """How samples become batches.

    Attributes:
        size: Samples of one host's batch.
        last: What becomes of an incomplete last batch of a finite pass.
        placing: Which items of a step each host gets; None: each gets items as they come.
    """

    size: int
    hook: HookSpec
    last: LastBatch
    encode: tuple[HookSpec, ...]
    placing: Placing | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class ItemSpec:
    """How samples become an item, where items of several samples are planned.

    Attributes:
        hooks: With the 64-bit key of its random numbers, each: the first one's argument is the list of samples, the
            others work on what it returned.
        takes_ranges: Whether the first one is also told, by the keyword `ranges`, which part of each sample to take.
    """

    hooks: tuple[tuple[HookSpec, int], ...]
    takes_ranges: bool


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Program:
    """What lanes do with their samples."""

    root: LaneOperator
    feeds: tuple[Feed, ...]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class StreamSpec:
    """What `compile_dataset` makes of a dataset; what worker processes get.

    Attributes:
        seed: 64-bit hash of `written_seed`.
        written_seed: The user's seed and seed offset.
        index_map: From positions to draws, and how long passes are; None where lanes have a program.
        program: What lanes do with their samples, where that depends on more than a position.
        batch: None: single samples are delivered.
        steps: Batches per host after which an iteration ends although the stream goes on; None: no such end.
        limit: Batches per host after which a pass ends; None: at its natural end.
        mixture: How leaves are mixed, for the manifest; None: there is one.
        ragged: Whether consecutive items may be batches of different datasets or groups, whose shapes differ.
        cache_pool: What hooks get as `cache`; None: what their task encoder says.
        observers: Make observers for each stream.
        timed: Whether stages take their times, for an observer.
        described_by: The manifest of the configuration that the stream follows from, where the run was amended.
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

    @property
    def order(self) -> IndexMap:
        """The order of the stream. Raises ConfigError if it depends on data."""
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

    @property
    def order_version(self) -> int:
        """Order version (`stream.cursor.ORDER_VERSION`) since which the stream is what it is."""
        return 1 if self.program is None else _order_version(self.program.root)

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
        return any(hook.restore_seeds for hook in self.stage_hooks())

    def stage_hooks(self) -> Iterator[HookSpec]:
        """The hooks that run where samples are read."""
        for leaf in self.leaves:
            yield from (hook for hook in (leaf.cook, *leaf.hooks) if hook is not None)
        for maker in self.makers:
            yield from (hook for hook, _ in maker.hooks)

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

    def expected_reads(self, first: int, stop: int) -> list[float] | None:
        """How many samples of each leaf positions [first, stop) ask for, by weights, repetitions and lengths.

        None: lanes mix items of several datasets, and only data could tell how many samples they take; or items are
        planned from several samples each.
        """
        if self.makers or (self.program is not None and len(self.program.feeds) > 1):
            return None
        sizes = [len(leaf.leaf.source) for leaf in self.leaves]
        before, behind = (leaf_draws(self.mixture, sizes, positions) for positions in (first, stop))
        return [late - early for early, late in zip(before, behind, strict=True)]

    def carries(self, pass_number: int, item: int, dropped: int, lanes: tuple[Any, ...] | None) -> str:
        """From what the folds in the order can go on at a place, as a saved state holds it; empty: there are none.

        Args:
            pass_number: As it counts for the order.
            item: Next item of the pass.
            dropped: Samples that every lane dropped, at least: all are so many rounds further than their items.
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
        """Whether there are any."""
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
        """Take in what `carries` gave at a place. Raises StateError if it is of another order or place."""
        try:
            saved = SavedCarries(unflat(unpack_integers(carries)))
            places = self._places(pass_number, item, dropped, lanes)
            try:
                for order, first, last in zip(self._orders, *places, strict=False):  # no places: nothing was made yet
                    if order.folds and last - first > _APART + first // 4:
                        raise ValueError(f"lanes are at positions {first} to {last}")
                    order.remember(saved, first)
                saved.finish()
            except BaseException:
                saved.undo()
                raise
        except ValueError as error:
            raise StateError(f"the state's 'plans' do not fit its place in this dataset: {error}") from error

    def manifest(self) -> dict[str, Any]:
        """Every setting that changes the order, and what each leaf holds; JSON-native.

        Of data on the Hub it says of which commit they are, too: another commit with the same data is no change.
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
        """32 hex digits that change with anything in the manifest, commits aside."""
        manifest = copy.deepcopy(self.manifest())
        for leaf in manifest["leaves"].values():
            leaf.pop("commit", None)
        text = json.dumps(manifest, sort_keys=True, separators=(",", ":"))
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _where(source: Source) -> dict[str, Any]:
    """What a manifest says of the condition that samples of a leaf meet, where there is one."""
    where = getattr(source, "where", None)
    return {} if where is None else {"where": dict(where)}


def leaf_draws(mixture: Any, sizes: Sequence[int], positions: float) -> list[float]:
    """About how many of the first positions of a stream each leaf has: what a manifest says, without its rounding.

    Where lanes pack, group or generate, positions are items, and leaves below have their part in these.

    Args:
        mixture: `mixture` of a manifest, or of a `StreamSpec`.
        sizes: Samples of each leaf.
        positions: From the beginning on, in all passes.
    """
    return _measured(mixture, iter(sizes))[1](positions)


def pass_length(mixture: Any, sizes: Sequence[int]) -> float:
    """Positions of a pass over a finite mixture, likewise."""
    return _measured(mixture, iter(sizes))[0]


def _measured(mixture: Any, sizes: Iterator[int]) -> tuple[float, Callable[[float], list[float]]]:
    """Length of a node's pass, and what its leaves have of so many of its positions."""
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

            return limit, draws if math.isinf(length) else cut  # what is endless goes on behind it
        if "repeat" in node and node["repeat"] is None:
            return math.inf, draws
        return node.get("epochs") or length * float(Fraction(node.get("repeat", 1))), draws
    children = [_measured(each, sizes) for each in cast("list[Any]", below)]
    lengths = [length for length, _ in children]
    if "blend" in node:
        weights, starts = node["blend"]
        if "means" in node:  # weights are of something else than samples, of which a sample has so much
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
    """What a sample of each child of a blend counts, by whose sum children get their weights, in 1/1024 on average.

    That of the first 1,024 samples is known. Where they count nothing, it is as if the next one counted 1.
    """
    return [mean or 1.0 for mean in blend["means"]]


def leaf_count(mixture: Any) -> int:
    """Leaves below a node, as the manifest describes it."""
    if not isinstance(mixture, Mapping):
        return 1
    node = cast("Mapping[str, Any]", mixture)
    below = node.get("of", node.get("generate"))
    return sum(map(leaf_count, below)) if isinstance(below, list) else leaf_count(below)


def not_a_dataset(value: Any) -> str:
    """What to say of something that is given in place of a dataset: what it is, and what to pass."""
    remedy = "pass what get_train_dataset or another dataset class gave"
    if isinstance(value, str | os.PathLike | Mapping) or hasattr(value, "get_datasets"):
        remedy = "give it to get_train_dataset or get_val_dataset, and pass what that returns"
    elif hasattr(value, "restore_sample"):
        remedy = "pass the dataset that it was made of"
    elif hasattr(value, "build") and not isinstance(value, type):
        remedy = "pass what its build() gives"
    elif isinstance(value, list | tuple):
        remedy = "pass the datasets in it, one by one"
    return f"expected a dataset, got a {type(value).__name__}; {remedy}"


def names_of_leaves(identities: Iterable[tuple[str, ...]]) -> str:
    """One line that names the first few leaves, and says how many others there are."""
    names = ["/".join(filter(None, identity[1:])) for identity in identities]  # the first says of which kind it is
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
