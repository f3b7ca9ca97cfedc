# SPDX-License-Identifier: Apache-2.0
"""Packing with a buffer of candidates: several samples become one."""

from __future__ import annotations

import reprlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import KW_ONLY, InitVar, dataclass
from typing import Any

import numpy as np

from energon_grain.datasets.dataset import OF_DATASET, SavableDataset, check_function, check_size, node, settle
from energon_grain.datasets.hooks import HookOwner, hook_spec, is_generator
from energon_grain.datasets.lowering import LanePart, Lowering, Part
from energon_grain.errors import ConfigError, SkipSample
from energon_grain.samplers.hashing import fold
from energon_grain.samplers.permutation import permute
from energon_grain.stream.hooks import HookSpec
from energon_grain.stream.lanes import (
    CombiningLanes,
    HookRunner,
    Item,
    Items,
    ItemsOver,
    Lane,
    Members,
    NumberOf,
    Reference,
    State,
)
from energon_grain.stream.state import Deferred, Form, ListOf, Number
from energon_grain.stream.worker_config import WorkerConfig

_TYPICAL_GROUP = 8


@node
class PackingDataset(SavableDataset):
    """Each lane fills a buffer with samples, divides it into groups, and makes one item of each group.

    Groups keep the order of `pre_packer`, but lanes start at different groups. Finite passes with few buffers use few
    lanes, unless `lanes=` is set.

    Args:
        dataset: Dataset to pack.
        buffer_size: Candidates per lane.
        pre_packer: Divides a full buffer of samples into a list of groups. Samples in no group are dropped, and so are
            empty groups. Its hook is `select_samples_to_pack`.
        final_packer: Makes one sample of a group (as a generator function, any number). Its hook is
            `pack_selected_samples`.
        sample_encoder: Applied to each selected sample before its group is packed; not a generator. Its hook is
            `postencode_sample`.
        task_encoder: Owner of the functions, with its `thread_safe` and failure tolerance.
        pre_packer_failure_tolerance: Consecutive failures after which the iteration ends; 0: never. Default: set by
            `@stateless` or the owner. The same holds for `final_packer` and `sample_encoder`.
        final_packer_stateless: Accepted for compatibility: all functions are expected to be pure. The same holds for
            `sample_encoder_stateless` and `packer_config`.
        worker_config: Default: the configuration of the dataset.

    Raises:
        ConfigError: A function is not callable, is a generator where one value is required, or `buffer_size` is not a
            positive number.
    """

    dataset: SavableDataset
    buffer_size: int
    pre_packer: Callable[[list[Any]], Sequence[Sequence[Any]]]
    final_packer: Callable[[list[Any]], Any]
    _: KW_ONLY
    sample_encoder: Callable[[Any], Any] | None = None
    task_encoder: HookOwner | None = None
    pre_packer_failure_tolerance: int | None = None
    final_packer_failure_tolerance: int | None = None
    sample_encoder_failure_tolerance: int | None = None
    final_packer_stateless: InitVar[bool] = False
    sample_encoder_stateless: InitVar[bool] = False
    packer_config: InitVar[Any] = None
    worker_config: WorkerConfig = OF_DATASET

    def __post_init__(self, final_packer_stateless: bool, sample_encoder_stateless: bool, packer_config: Any) -> None:
        check_size(self, "buffer_size", self.buffer_size, "samples")
        check_function(self, "pre_packer", self.pre_packer, generator=False)
        check_function(self, "final_packer", self.final_packer)
        if self.sample_encoder is not None:
            check_function(self, "sample_encoder", self.sample_encoder, generator=False)
        settle(self, self.dataset)

    def lower(self, to: Lowering) -> Part:
        owner = self.task_encoder
        below = to.below(self.dataset, forms=True)
        key = to.key("pack")
        pack = PackLanes(
            child=to.operator(below, stripe=1),
            hook=hook_spec("pack_selected_samples", self.final_packer, owner, self.final_packer_failure_tolerance),
            generates=is_generator(self.final_packer),
            key=key,
            size=self.buffer_size,
            selector=hook_spec("select_samples_to_pack", self.pre_packer, owner, self.pre_packer_failure_tolerance),
            encoder=None
            if self.sample_encoder is None
            else hook_spec("postencode_sample", self.sample_encoder, owner, self.sample_encoder_failure_tolerance),
            phases=tuple(permute(np.arange(to.lanes), to.lanes, fold(key, "phases")).tolist()),
        )
        return LanePart(pack, {"pack": self.buffer_size, "generates": pack.generates, "of": below.mixture})


@dataclass(frozen=True, slots=True, eq=False)
class PackLanes(CombiningLanes):
    """Packs items.

    A lane fills its buffer, passes it to `selector`, and packs the returned groups in turn while the buffer fills
    again. The buffer and the pending groups hold at most `size` items together. If the selector's result has a `rest`
    (as with the built-in packers and `keep_rest=True`), those items remain candidates.

    All lanes fill their buffers at the same time. To avoid that all of them deliver the first group of each buffer
    together (the smallest, if the selector sorts), lane l starts at group `G * phases[l] div L` of the G groups of each
    buffer, and delivers the groups before it last.

    Attributes:
        size: Maximum number of candidates.
        selector: Takes all candidates and returns lists of them; those in no list are dropped.
        encoder: Hook on each selected item, or None.
        phases: (L,) a permutation of [0, L).
    """

    size: int
    selector: HookSpec
    encoder: HookSpec | None
    phases: tuple[int, ...]

    @property
    def order_version(self) -> int:
        return 2 if len(self.phases) > 1 else 1

    def buffers(self) -> Iterator[int]:
        if self.finite:
            yield self.child.items() // self.size
        yield from self.child.buffers()

    def encoder_key(self, lane: Lane) -> int:
        return fold(self.key, "encoder", lane.number, lane.pass_number)

    def rebuild_member(self, reference: Reference, lane: Lane) -> Any:
        value = self.child.rebuild(reference, lane)
        if self.encoder is None:
            return value
        return lane.call(self.encoder, self.encoder_key(lane), NumberOf(self.child, reference), value)

    def open(self, lane: Lane, state: State | None) -> Items:
        if state is None:
            return _Pack(self, lane, self.child.open(lane, None), HookRunner(self, lane, None))
        below, runner, rounds, buffer, groups = state
        operator = _Pack(self, lane, self.child.open(lane, below), HookRunner(self, lane, runner))
        operator.fill(rounds, buffer, groups)
        return operator

    @property
    def state_form(self) -> Form:
        """The states of the child and of the current call, the selector calls, the buffer, and the pending groups."""
        pending = Deferred(self.members_form), Deferred(ListOf(self.members_form))
        return self.child.state_form, self.runner_form, Number(), *pending


class _Pack(ItemsOver[PackLanes]):
    __slots__ = ("_buffer", "_encoder_key", "_groups", "_held", "_rounds", "_runner", "_waiting")

    def __init__(self, node: PackLanes, lane: Lane, child: Items, runner: HookRunner) -> None:
        super().__init__(node, lane, child)
        self._runner = runner
        self._encoder_key = node.encoder_key(lane)
        self._rounds = 0
        self._held: Members = ()  # from a restored state: first in the buffer, read when the selector runs
        self._buffer: list[Item] = []
        self._groups: deque[list[Item] | Members] = deque()
        self._waiting = 0

    def fill(self, rounds: int, buffer: Members, groups: tuple[Members, ...]) -> None:
        """Restore buffered items."""
        self._rounds = rounds
        self._held = buffer
        self._groups.extend(groups)
        self._waiting = sum(map(len, groups))

    def next(self) -> Item | None:
        while True:
            item = self._runner.next()
            if item is not None:
                return item
            if not self._groups:
                self._top_up()
                if not self._buffer and not self._held:
                    return None
                self._select()
                continue
            group = self._groups.popleft()
            self._waiting -= len(group)
            self._top_up()
            self._pack(self._lane.rebuilt(self._node.child, group) if isinstance(group, tuple) else group)

    def _top_up(self) -> None:
        free = self._node.size - len(self._held) - len(self._buffer) - self._waiting
        following, append = self._child.next, self._buffer.append
        for _ in range(free):
            item = following()
            if item is None:
                return
            append(item)

    def _select(self) -> None:
        """Divide the buffer into groups."""
        node, buffer = self._node, self._buffer
        if self._held:
            buffer, self._held = self._lane.rebuilt(node.child, self._held) + buffer, ()
        self._buffer = []
        by_identity: dict[int, list[Item]] = {}
        for item in reversed(buffer):
            by_identity.setdefault(id(item[1]), []).append(item)
        selected = self._selected(buffer)
        if selected is None:
            return
        chosen, kept = _items_of(node.selector, selected, by_identity)
        for left in by_identity.values():
            for reference, value in left:
                self._lane.drop(node.child, reference, node.selector, SkipSample("not selected"), value)
        if not chosen and kept:
            chosen, kept = [kept], []  # no item can join them: the buffer is full, or the pass is over
        self._buffer = kept
        first = len(chosen) * node.phases[self._lane.number] // len(node.phases)
        self._groups.extend(chosen[first:] + chosen[:first])
        self._waiting = sum(map(len, self._groups))

    def _selected(self, buffer: list[Item]) -> tuple[list[list[Any]], list[Any]] | None:
        """Return the selector's groups of values, and the rest that it keeps; None: it failed."""
        node = self._node
        call, self._rounds = self._rounds, self._rounds + 1
        key = fold(node.key, "selector", self._lane.number, self._lane.pass_number)
        try:
            groups = self._lane.call(node.selector, key, [call], [value for _, value in buffer])
            try:
                return [list(group) for group in groups], list(getattr(groups, "rest", None) or ())
            except TypeError as error:
                raise _no_groups(node.selector, groups) from error
        except ConfigError:
            raise
        except Exception as error:
            for number, (reference, value) in enumerate(buffer):
                # The call failed once, regardless of the number of samples.
                why = SkipSample("its selection failed") if number else error
                self._lane.drop(node.child, reference, node.selector, why, value)
            return None

    def _pack(self, group: list[Item]) -> None:
        node = self._node
        if node.encoder is None:
            self._runner.start(tuple([reference for reference, _ in group]), [value for _, value in group])
            return
        members: list[Reference] = []
        values: list[Any] = []
        for reference, value in group:
            try:
                values.append(self._lane.call(node.encoder, self._encoder_key, NumberOf(node.child, reference), value))
            except Exception as error:
                self._lane.drop(node.child, reference, node.encoder, error, value)
                continue
            members.append(reference)
        if members:
            self._runner.start(tuple(members), values)

    def begin(self, pass_number: int) -> None:
        self._runner.stop()
        self._held = ()
        self._buffer.clear()
        self._groups.clear()
        self._waiting = 0
        self._child.begin(pass_number)

    def state(self) -> State:
        buffer: Members = (*self._held, *[reference for reference, _ in self._buffer])
        groups = tuple(
            [
                group if isinstance(group, tuple) else tuple([reference for reference, _ in group])
                for group in self._groups
            ]
        )
        return self._child.state(), self._runner.state(), self._rounds, buffer, groups

    def expect(self, items: float) -> None:
        free = self._node.size - len(self._held) - len(self._buffer) - self._waiting
        self._child.expect(free + items * _TYPICAL_GROUP)


def _items_of(
    selector: HookSpec, selected: tuple[list[list[Any]], list[Any]], by_identity: dict[int, list[Item]]
) -> tuple[list[list[Item]], list[Item]]:
    """Return the items of the selected values, without empty groups, and remove them from `by_identity`."""
    groups, rest = selected
    try:
        chosen = [[by_identity[id(value)].pop() for value in part] for part in (*groups, rest)]
    except (KeyError, IndexError) as error:
        raise _no_groups(selector, groups) from error
    kept = chosen.pop()
    return [group for group in chosen if group], kept


def _no_groups(selector: HookSpec, returned: Any) -> ConfigError:
    return ConfigError(
        f"{selector.name} must return a list of groups of the samples in its argument, with no new sample and none "
        f"twice, but it returned {reprlib.repr(returned)}. Modify samples in `postencode_sample` or "
        f"`pack_selected_samples` instead"
    )
