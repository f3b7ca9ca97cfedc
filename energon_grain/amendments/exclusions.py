# SPDX-License-Identifier: Apache-2.0
"""Samples that a run leaves out from a step on: their record in the state, and the stream without them.

Below blends by weights, the lanes of their leaf go on with the next sample (`amendments.holes`): shares and the order
of all others stay. Where the length of a pass is fixed (finite streams, blends by repetitions, planned packs), or a
leaf is drawn with replacement, an excluded sample is dropped: it is not read, and it is no failure.
"""

from __future__ import annotations

import base64
import copy
import dataclasses
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn, Self, cast

import numpy as np
import numpy.typing as npt

from energon_grain.amendments.holes import Holes, can_close
from energon_grain.amendments.removed import RemovedLeaf, RemovedSource
from energon_grain.datasets.dataset import SavableDataset, put
from energon_grain.datasets.lowering import IndexPart, Lowering, Part
from energon_grain.errors import AmendmentError, SkipSample, StateError
from energon_grain.samplers.blend import Blend, StepBlend
from energon_grain.samplers.hashing import fold
from energon_grain.samplers.routing import RouteTree
from energon_grain.stream.hooks import HookSpec
from energon_grain.stream.index_map import Draws, IndexMap
from energon_grain.stream.spec import LeafSpec, Ordering, Resolved, ResolvedLeaf, StreamSpec

Int64Array = npt.NDArray[np.int64]
LONG_TEXT = 1 << 10
"""Characters from which the condition is kept in place of the samples that it selects."""
MOST_TEXT = 1 << 16
"""Characters of all samples in a state."""
EXCLUDED = "excluded"
"""Name of the hook that drops samples, in statistics."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Exclusion:
    """Samples of one leaf that an amendment excludes.

    Attributes:
        amendment: Its number.
        pass_number: The pass in which it was made.
        leaf: Key of the leaf in the run.
        samples: Their indices in the leaf, ascending; None: `condition` selects them, and was not evaluated yet.
        condition: The expression over columns that selects them, or "!" and one that does not; "": they were named.
        count: Number of samples.
        digest: Digest of `samples`.
        configured: Whether the configuration excludes them.
    """

    amendment: int
    pass_number: int
    leaf: str
    samples: Int64Array | None
    condition: str
    count: int
    digest: str
    configured: bool

    def packed(self) -> list[Any]:
        """It as JSON."""
        text = "" if self.samples is None else pack_samples(self.samples)
        if self.condition and (self.samples is None or len(text) > LONG_TEXT):
            text = ""
        return [
            self.amendment,
            self.pass_number,
            self.leaf,
            self.count,
            self.digest,
            text,
            self.condition,
            int(self.configured),
        ]

    @classmethod
    def unpacked(cls, row: Sequence[Any]) -> Self:
        """The result of `packed`. Raises ValueError if it is damaged."""
        amendment, pass_number, leaf, count, digest, text, condition, configured = row
        samples = unpack_samples(str(text)) if text else None
        if samples is None and not condition:
            raise ValueError(f"{leaf}: its excluded samples are missing")
        if samples is not None and (len(samples) != count or digest_of(samples) != digest):
            raise ValueError(f"{leaf}: its excluded samples do not fit their digest")
        return cls(
            amendment=int(amendment),
            pass_number=int(pass_number),
            leaf=str(leaf),
            samples=samples,
            condition=str(condition),
            count=int(count),
            digest=str(digest),
            configured=bool(configured),
        )


@dataclass(slots=True)
class Exclusions:
    """The exclusions of a run until now.

    Attributes:
        entries: In the order of amendments.
        kept: Leaves of the run that the configuration selects more narrowly now: by their key in the run, the key in
            the configuration, and their entry in the manifest from before.
        nodes: Descriptions of these leaves as they were; not part of the state.
    """

    entries: list[Exclusion] = field(default_factory=list[Exclusion])
    kept: dict[str, tuple[str, dict[str, Any]]] = field(default_factory=dict[str, "tuple[str, dict[str, Any]]"])
    nodes: dict[str, SavableDataset] = field(default_factory=dict[str, SavableDataset])

    def copy(self) -> Exclusions:
        """A copy to which more can be added."""
        return Exclusions([*self.entries], dict(self.kept), dict(self.nodes))

    def counts(self, amendment: int) -> dict[str, int]:
        """Samples that an amendment excluded, by the key of their leaf."""
        found: dict[str, int] = {}
        for entry in self.entries:
            if entry.amendment == amendment:
                found[entry.leaf] = found.get(entry.leaf, 0) + entry.count
        return found

    def digests(self, amendment: int) -> list[list[str]]:
        """The leaf and the digest of each exclusion of an amendment."""
        return [[each.leaf, each.digest] for each in self.entries if each.amendment == amendment]

    def of(self, leaf: str, *, configured: bool = False) -> Int64Array:
        """All excluded samples of a leaf, ascending; `configured`: only those that the configuration excludes."""
        found = [each.samples for each in self.entries if each.leaf == leaf and (each.configured or not configured)]
        known = [samples for samples in found if samples is not None]
        return np.unique(np.concatenate(known)) if known else np.zeros(0, np.int64)

    def add(
        self,
        amendment: int,
        pass_number: int,
        leaf: str,
        samples: Int64Array,
        total: int,
        *,
        condition: str = "",
        configured: bool = False,
    ) -> int:
        """Exclude samples of a leaf that are not excluded yet; return how many.

        Raises AmendmentError if no sample of the leaf is left, or their list is too long for a state.
        """
        new = np.setdiff1d(samples, self.of(leaf))
        if not new.size:
            return 0
        if len(self.of(leaf)) + len(new) >= total:
            raise AmendmentError(
                f"{leaf}: all of its {total:,} samples would be excluded; remove the dataset instead (remove=[…]), or "
                f"give it the weight 0"
            )
        entry = Exclusion(
            amendment=amendment,
            pass_number=pass_number,
            leaf=leaf,
            samples=new,
            condition=condition,
            count=len(new),
            digest=digest_of(new),
            configured=configured,
        )
        length = sum(len(str(each.packed())) for each in [*self.entries, entry])
        if length > MOST_TEXT:
            raise AmendmentError(
                f"{leaf}: a list of {len(new):,} scattered samples takes too much of a state ({length:,} characters in "
                f"all, the limit is {MOST_TEXT:,}). Exclude whole shards, or measure a column that marks the samples "
                f"and exclude by a condition, of which the state keeps the text"
            )
        self.entries.append(entry)
        return len(new)

    def packed(self) -> list[Any]:
        """They as JSON; empty if there are none."""
        if not self.entries and not self.kept:
            return []
        return [[each.packed() for each in self.entries], {name: list(entry) for name, entry in self.kept.items()}]

    @classmethod
    def unpacked(cls, value: Sequence[Any]) -> Exclusions:
        """The result of `packed`. Raises ValueError, TypeError or LookupError if it is damaged."""
        if not value:
            return cls()
        rows, kept = value
        return cls(
            [*map(Exclusion.unpacked, rows)], {str(name): (str(now), dict(row)) for name, (now, row) in kept.items()}
        )

    def evaluate(self, sources: Mapping[str, Any], select: Callable[[Any, str], Int64Array]) -> None:
        """Find the samples of conditions, of which a state has only the text.

        Args:
            sources: Of the leaves of the run, by key. Those of removed ones are not read.
            select: Returns the samples of a source that a condition selects.

        Raises:
            StateError: It selects other samples now.
        """
        for number, entry in enumerate(self.entries):
            if entry.samples is not None or isinstance(sources[entry.leaf], RemovedSource):
                continue
            earlier = Exclusions(self.entries[:number]).of(entry.leaf)
            samples = np.setdiff1d(select(sources[entry.leaf], entry.condition), earlier)
            if len(samples) != entry.count or digest_of(samples) != entry.digest:
                raise StateError(
                    f"{entry.leaf}: {entry.condition!r} excluded {entry.count:,} samples of this run, and selects "
                    f"{len(samples):,} samples now: a column changed since. Restore the columns of then"
                )
            self.entries[number] = dataclasses.replace(entry, samples=samples)


def digest_of(samples: Int64Array) -> str:
    """16 hex digits that change with the samples."""
    return hashlib.blake2b(np.ascontiguousarray(samples, "<i8").tobytes(), digest_size=8).hexdigest()


def pack_samples(samples: Int64Array) -> str:
    """Ascending samples as a text: the difference to the sample before, in groups of 7 bits, least first; base64."""
    gaps = np.diff(samples, prepend=-1) - 1
    sizes = np.maximum(1, -(-np.ceil(np.log2(gaps.astype(np.float64) + 1)).astype(np.int64) // 7))
    ends = np.cumsum(sizes)
    place = np.arange(int(ends[-1])) - np.repeat(ends - sizes, sizes)
    bits = (np.repeat(gaps, sizes) >> (7 * place)) & 127
    more = place < np.repeat(sizes, sizes) - 1
    return base64.b64encode((bits | (more * 128)).astype(np.uint8).tobytes()).decode()


def unpack_samples(text: str) -> Int64Array:
    """Undo `pack_samples`. Raises ValueError if the text is damaged."""
    numbers = np.frombuffer(base64.b64decode(text, validate=True), np.uint8).astype(np.int64)
    last = numbers < 128
    if not len(numbers) or not last[-1]:
        raise ValueError("a list of samples is cut short")
    which = np.cumsum(last) - last
    first = np.flatnonzero(np.diff(which, prepend=-1))
    place = np.arange(len(numbers)) - first[which]
    if place.max() > 8:
        raise ValueError("a sample has too large a number")
    gaps = np.zeros(int(which[-1]) + 1, np.int64)
    np.add.at(gaps, which, (numbers & 127) << (7 * place))
    return np.cumsum(gaps + 1) - 1


@dataclass(frozen=True, kw_only=True, slots=True)
class WithoutSamples(SavableDataset):
    """A leaf whose lanes pass over excluded samples, if its lanes are those of the run.

    Attributes:
        dataset: The leaf.
        excluded: Number of each amendment, and samples.
        closed: Filled with the number of the leaf if lanes pass over the samples; otherwise they have to be dropped.
    """

    dataset: SavableDataset
    excluded: tuple[tuple[int, Int64Array], ...]
    closed: set[int]

    def lower(self, to: Lowering) -> Part:
        part = to.lower(self.dataset)
        assert isinstance(part, IndexPart)
        (leaf,) = part.leaves
        order = leaf.order(to.lanes, False)
        samples = np.concatenate([samples for _, samples in self.excluded])
        if to.begins and can_close(order, to.lanes, samples):
            self.closed.add(leaf.number)
            excluded = [(samples, to.begins[amendment]) for amendment, samples in self.excluded]
            part.routes = RouteTree(Holes(order, to.lanes, excluded), [part.routes])
        return part


def is_one_leaf(spec: StreamSpec) -> bool:
    """Whether the positions of lanes are those of a single leaf, without end."""
    if spec.program is not None:
        feeds = spec.program.feeds
        return len(feeds) == 1 and feeds[0].stripe == 1 and _is_endless_leaf(feeds[0].order)
    return _is_endless_leaf(spec.order)


def _is_endless_leaf(order: IndexMap) -> bool:
    return order.routes is None and order.planned is None and order.passes is None


@dataclass(frozen=True, kw_only=True, slots=True)
class Excluding:
    """The excluded samples of a run, for one compilation.

    Attributes:
        names: Number and key of each leaf, in document order.
        entries: By the key of their leaf.
        nodes: Leaves to use instead of those of the configuration, by key.
        never_closed: Numbers of leaves whose samples are dropped in any case.
        closed: Numbers of the leaves whose lanes pass over the samples.
    """

    names: tuple[tuple[int, str], ...]
    entries: Mapping[str, Sequence[Exclusion]]
    nodes: Mapping[str, SavableDataset]
    never_closed: frozenset[int] = frozenset()
    closed: set[int] = field(default_factory=set[int])

    @classmethod
    def of(cls, exclusions: Exclusions, names: Sequence[tuple[int, str]]) -> Self:
        """The exclusions of a run with these leaves."""
        entries: dict[str, list[Exclusion]] = {}
        for each in exclusions.entries:
            entries.setdefault(each.leaf, []).append(each)
        return cls(names=tuple(names), entries=entries, nodes=exclusions.nodes)

    def over(self, dataset: SavableDataset) -> SavableDataset:
        """A description without the samples, where lanes can pass over them."""
        return self._over(dataset, iter(self.names)) if self.entries or self.nodes else dataset

    def _over(self, node: Any, names: Iterator[tuple[int, str]]) -> Any:
        if hasattr(node, "identity"):
            return self._leaf(node, *next(names))
        changes: dict[str, Any] = {}
        for each in dataclasses.fields(node):
            value = getattr(node, each.name)
            if isinstance(value, SavableDataset):
                changes[each.name] = self._over(value, names)
            elif isinstance(value, tuple) and any(isinstance(below, SavableDataset) for below in cast("Any", value)):
                changes[each.name] = tuple(self._over(below, names) for below in cast("tuple[Any, ...]", value))
        changed = copy.copy(node)
        put(changed, **changes)
        return changed

    def _leaf(self, node: SavableDataset, number: int, name: str) -> SavableDataset:
        node = self.nodes.get(name, node)
        entries = self.entries.get(name)
        if not entries or number in self.never_closed or isinstance(node, RemovedLeaf):
            return node
        excluded = tuple((each.amendment, each.samples) for each in entries if each.samples is not None)
        return WithoutSamples(dataset=node, excluded=excluded, closed=self.closed, worker_config=node.worker_config)

    def in_other_lanes(self, spec: StreamSpec) -> Self | None:
        """The same, for a stream that was compiled with positions of leaves that are no rounds of its lanes; or None.

        Something between a leaf and the blend above it, such as a limit or another shuffle, changes their order.
        """
        wrong = self.closed - {*holes_of(spec)}
        return dataclasses.replace(self, never_closed=self.never_closed | wrong, closed=set()) if wrong else None

    def _not_closed(self) -> dict[int, Sequence[Exclusion]]:
        """The exclusions of leaves whose lanes do not pass over the samples, by number of the leaf."""
        known = {name: [each for each in own if each.samples is not None] for name, own in self.entries.items()}
        return {number: known[name] for number, name in self.names if known.get(name) and number not in self.closed}

    def dropped_from(self, spec: StreamSpec, begins: Sequence[Int64Array]) -> StreamSpec:
        """A compiled stream that drops samples of leaves whose lanes do not pass over them.

        Args:
            spec: The result of compiling `over`.
            begins: First round of each lane in the outermost order, (L,), of each amendment.

        Raises:
            AmendmentError: They cannot be dropped.
        """
        drops = self._not_closed()
        if not drops:
            return spec
        _check_drops(spec)
        twins = {number: len(spec.leaves) + place for place, number in enumerate(drops)}
        spec = dataclasses.replace(spec, leaves=(*spec.leaves, *(_twin(spec.leaves[number]) for number in drops)))
        if spec.program is None:
            return dataclasses.replace(spec, index_map=_excluding(spec.order, drops, twins, begins))
        feed = spec.program.feeds[0]
        put(feed, order=_excluding(feed.order, drops, twins, begins, feed.stripe))  # of this compilation alone
        return spec


def compiled_without(
    dataset: SavableDataset,
    compile_: Callable[[SavableDataset], StreamSpec],
    exclusions: Exclusions,
    names: Sequence[tuple[int, str]],
    taken: Sequence[Int64Array],
) -> StreamSpec:
    """Compile a description without excluded samples.

    Args:
        dataset: The description.
        compile_: Compiles one.
        exclusions: Of the run, with samples.
        names: Number and key of each leaf, in document order.
        taken: The round of each lane, (L,), that was next at each amendment.

    Raises:
        AmendmentError: Samples cannot be excluded.
    """
    excluding = Excluding.of(exclusions, names)
    spec = compile_(excluding.over(dataset))
    if (again := excluding.in_other_lanes(spec)) is not None:
        excluding, spec = again, compile_(again.over(dataset))
    return excluding.dropped_from(spec, taken)


def _check_drops(spec: StreamSpec) -> None:
    """Raise AmendmentError if samples of a stream cannot be dropped."""
    if spec.same_pass and not spec.endless:
        raise AmendmentError(
            "exclude: each pass of this dataset repeats the first one; exclude the samples in the configuration "
            "(`exclude` of split.yaml, `where`), and begin the next pass with it"
        )
    if spec.program is not None and len(spec.program.feeds) > 1:
        raise AmendmentError(
            "exclude: datasets below a blend or a concatenation filter, group or pack; move these steps above it"
        )


def _excluding(
    order: IndexMap,
    drops: Mapping[int, Sequence[Exclusion]],
    twins: Mapping[int, int],
    begins: Sequence[Int64Array],
    stripe: int = 1,
) -> ExcludingMap:
    """An order without the excluded samples of leaves."""
    return ExcludingMap.of(
        order, [_dropped(each, leaf, twins, order, begins, stripe) for leaf, own in drops.items() for each in own]
    )


def _dropped(
    entry: Exclusion,
    leaf: int,
    twins: Mapping[int, int],
    order: IndexMap,
    begins: Sequence[Int64Array],
    stripe: int = 1,
) -> DroppedSamples:
    """The samples of an exclusion in an order."""
    return DroppedSamples(
        leaf=leaf,
        twin=twins[leaf],
        samples=cast("Int64Array", entry.samples),
        begin=order.start(entry.pass_number),
        end=None if order.passes is None else order.start(entry.pass_number + 1),
        rounds=begins[entry.amendment],
        stripe=stripe,
    )


def holes_of(spec: StreamSpec) -> dict[int, Holes]:
    """The holes of leaves whose lanes are those of the run, by number of the leaf."""
    found: dict[int, Holes] = {}
    orders = [(spec.order, range(len(spec.leaves)))] if spec.program is None else []
    orders += [] if spec.program is None else [(feed.order, feed.leaves) for feed in spec.program.feeds]
    for order, leaves in orders:
        routes = order.routes if order.planned is None else order.planned.child.routes
        if routes is None:
            continue
        own: dict[int, Holes] = {}
        if isinstance(routes.router, Holes):
            own[0] = routes.router
        else:
            _closed_leaves(routes, 0, own, in_blend=False)
        numbers = routes._numbers
        found |= {leaves[at if numbers is None else int(numbers[at])]: holes for at, holes in own.items()}
    return found


def _closed_leaves(tree: RouteTree, first: int, found: dict[int, Holes], *, in_blend: bool) -> None:
    """Collect the leaves with only blends by weights between their `Holes` and the outermost blend."""
    router = tree.router
    blend = isinstance(router, Blend | StepBlend)
    for number, child in tree._children:
        if child is None:
            continue
        if not isinstance(child.router, Holes):
            if blend or not in_blend:
                _closed_leaves(child, first + number, found, in_blend=blend)
        elif blend:
            found[first + number] = child.router


class _ExcludedSource(RemovedSource):
    """Excluded samples, which are not read."""

    def locate(self, index: int) -> NoReturn:
        raise AmendmentError(f"{self.path}: sample {index} is excluded")


def _refuse(sample: Any) -> NoReturn:
    del sample
    raise SkipSample("the sample is excluded")


def _twin(leaf: LeafSpec) -> LeafSpec:
    """A leaf in place of another one for its excluded samples: it drops them without reading."""
    source: Any = _ExcludedSource("/".join(leaf.key), len(leaf.leaf.source), EXCLUDED)
    ordering = Ordering(training=False, passes=None, block=None, mixing=None, blocks_in_lane=None)
    resolved: Resolved = ResolvedLeaf(
        source=source,
        sample_type=None,
        field_map=None,
        load=None,
        decoder=None,
        subflavors={},
        ordering=ordering,
    )
    hook = HookSpec(
        name=EXCLUDED, function=_refuse, failure_tolerance=0, restore_seeds=False, concurrent=True, filters=True
    )
    return LeafSpec(
        key=(EXCLUDED, *leaf.key),
        leaf=resolved,
        order=leaf.order,
        hook_key=fold(leaf.hook_key, EXCLUDED),
        cook=None,
        hooks=(hook,),
        failure_tolerance=0,
    )


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class DroppedSamples:
    """Samples of a leaf that are dropped from a place in the stream on.

    Attributes:
        leaf: Number of the leaf.
        twin: Number of the leaf to draw them from instead.
        samples: Ascending.
        begin: First position of the pass of the place.
        end: One past its last position; None: it has no end.
        rounds: Round of each lane in that pass, (L,).
        stripe: Consecutive positions of a lane.
    """

    leaf: int
    twin: int
    samples: Int64Array
    begin: int
    end: int | None
    rounds: Int64Array
    stripe: int

    def among(self, leaf: npt.NDArray[np.int32], index: Int64Array, positions: Int64Array) -> npt.NDArray[np.intp]:
        """Where draws are of these samples, and behind the place."""
        here = np.flatnonzero(leaf == self.leaf)
        place = np.minimum(np.searchsorted(self.samples, index[here]), len(self.samples) - 1)
        here = here[self.samples[place] == index[here]]
        at = positions[here] - self.begin
        turn, rest = np.divmod(at, self.stripe)
        lane = turn % len(self.rounds)
        later = turn // len(self.rounds) * self.stripe + rest >= self.rounds[lane]
        if self.end is not None:
            later |= positions[here] >= self.end
        return here[later & (at >= 0)]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class ExcludingMap(IndexMap):
    """An order some of whose draws are of excluded samples, which are then draws of a leaf that drops them.

    Attributes:
        dropped: Excluded samples; leaves are numbered over the whole stream.
    """

    dropped: tuple[DroppedSamples, ...]

    @classmethod
    def of(cls, order: IndexMap, dropped: Sequence[DroppedSamples]) -> Self:
        """An order without these samples."""
        fields = {each.name: getattr(order, each.name) for each in dataclasses.fields(order)}
        return cls(**fields, dropped=tuple(dropped))

    def draw_in_stream(self, positions: Int64Array) -> Draws:
        """See `IndexMap.draw_in_stream`."""
        draws = IndexMap.draw_in_stream(self, positions)
        if draws.items is not None:
            positions = positions[draws.items.owner()]
        leaf = draws.leaf.copy()
        for each in self.dropped:
            leaf[each.among(leaf, draws.index, positions)] = each.twin
        return dataclasses.replace(draws, leaf=leaf)

    def drops(self, leaf: int, index: int, positions: Int64Array) -> npt.NDArray[np.bool_]:
        """Whether items at positions over all passes, (n,), drop a sample of a leaf because it is excluded."""
        leaves, indices = np.full(len(positions), leaf, np.int32), np.full(len(positions), index, np.int64)
        found = np.zeros(len(positions), np.bool_)
        for each in self.dropped:
            found[each.among(leaves, indices, positions)] = True
        return found
