# SPDX-License-Identifier: Apache-2.0
"""Where an amendment takes effect in an order that cannot change at the present round of each lane.

A blend by weights can begin again at any round of a lane. A router that mixes lanes (a shuffle, a plan of packs, a
blend by cost, epochs with exact counts) needs one position for all of them: the first at which it can begin again, at
or after the last that any lane took. It follows from the state, and everything before it stays what it was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from energon_grain.amendments.epochs import EpochSegments
from energon_grain.errors import AmendmentError
from energon_grain.samplers.blend import Blend, StepBlend, lane_rounds
from energon_grain.samplers.epochized_blend import EpochizedBlend
from energon_grain.samplers.routing import Concat, CutRouter, Limit, Router
from energon_grain.samplers.window_shuffle import WindowShuffle
from energon_grain.stream.index_map import IndexMap
from energon_grain.stream.passes import PassPlan, Progress, Share
from energon_grain.stream.spec import StreamSpec
from energon_grain.stream.state import Rounds, walk

AnyHost = Callable[[bool], bool]


@dataclass(frozen=True, kw_only=True, slots=True)
class Cut:
    """Where an amendment takes effect.

    Attributes:
        position: First position of the outermost blend with the new weights.
        step: First step that can have samples from there, if no sample is dropped; None: it depends on data.
        epoch: Its epoch, of a blend by repetitions.
        first: The first position, if it is below that one, whose sample may not have been delivered yet.
    """

    position: int
    step: int | None
    epoch: int | None
    first: int


def order_of(spec: StreamSpec) -> IndexMap:
    """The one order of a stream. Raises AmendmentError if there are several."""
    if spec.program is None:
        return spec.order
    if len(spec.program.feeds) != 1:
        raise AmendmentError(
            "datasets below the blend filter, group or pack, and such a mixture cannot be amended yet; move these "
            "steps above the blend"
        )
    return spec.program.feeds[0].order


def require_cut(order: IndexMap) -> None:
    """Raise AmendmentError, with the reason, unless the outermost blend of an order can begin again."""
    router = next((each for each in _routers(order) if not isinstance(each, CutRouter)), None)
    problem = "it has no blend"
    if isinstance(router, Concat):
        problem = "it is a concatenation, whose passes have a fixed length and order"
    elif isinstance(router, Limit):
        problem = "its passes are limited to a fixed part of the data"
    elif router is not None:
        problem = f"{type(router).__name__} cannot begin again"
    elif order.passes is not None and order.same_pass:
        problem = "every pass repeats the first one"
    elif _routers(order)[-1] is not None:
        return
    raise AmendmentError(
        f"the stream cannot be amended: {problem}. The outermost mixture must be a blend (by weights, cost or "
        f"repetitions); shuffles, packs, batches and epochs can be above it"
    )


def _routers(order: IndexMap) -> list[Router | None]:
    """The routers from the root to the outermost blend."""
    tree = order.routes if order.planned is None else order.planned.child.routes
    found: list[Router | None] = []
    while tree is not None:
        found.append(tree.router)
        if not isinstance(tree.router, WindowShuffle):
            return found
        tree = tree.children[0]
    return [*found, None]


def blend_of(order: IndexMap) -> Router | None:
    """The outermost blend of an order."""
    return _routers(order)[-1]


def is_plain(order: IndexMap) -> bool:
    """Whether the order is that of a blend by weights, which can change at the present round of each lane."""
    return order.planned is None and order.passes is None and isinstance(_routers(order)[0], Blend | StepBlend)


def cut_of(
    spec: StreamSpec, share: Share, progress: Progress, *, hosts: int, any_host: AnyHost | None = None
) -> Cut | None:
    """Where a change at a place takes effect; None: at the present round of each lane.

    Args:
        spec: The stream until now.
        share: The lanes whose place is known: those of this host, or all.
        progress: Their place.
        hosts: Number of hosts.
        any_host: See `WorkerConfig.any_host`.

    Raises:
        AmendmentError: It is unknown what other hosts have read.
    """
    order = order_of(spec)
    if is_plain(order):
        return None
    first, taken = _taken(spec, share, progress)
    if share.hosts > 1:
        taken = _agreed(spec, progress, taken, any_host)
    root, position, epoch = _boundary(order, spec.counted(progress.pass_number), taken)
    step = None if root is None or spec.program is not None else _step_at(spec, progress, hosts, root)
    if order.planned is not None:  # samples of earlier windows: plans that need the costs of one that is gone fail
        first = position - (root is None or first < root)
    return Cut(position=position, step=step, epoch=epoch, first=min(first, position))


def _boundary(order: IndexMap, pass_number: int, taken: int) -> tuple[int | None, int, int | None]:
    """The first position at or after one at which a blend can begin again.

    Returns:
        The position of the order (None: only a later plan has it), the same of the blend, and the epoch, if it has any.
    """
    root: int | None
    root, position = (taken, taken) if order.planned is None else order.planned.next_cut(taken)
    epoch = None
    for router in _routers(order):
        assert isinstance(router, CutRouter)
        before, position = position, router.next_cut(position)
        if order.planned is None:
            root = position
        elif position != before:  # an epoch, at which a plan either begins again or goes on
            root = None if order.passes is None else order.start(pass_number + 1)
        if isinstance(router, EpochizedBlend | EpochSegments):
            epoch = router.epoch_at(position)
    return root, position, epoch


def _taken(spec: StreamSpec, share: Share, progress: Progress) -> tuple[int, int]:
    """The first position of the order that some lane has not taken, and one past the last that some lane has."""
    order, number = order_of(spec), spec.counted(progress.pass_number)
    spans = spec.program is not None and spec.program.root.spans_passes
    if progress.ended and not (spec.endless or spans):
        end = order.start(number + 1)
        return end, end
    if not _lanes_differ(spec, progress):
        item = order.start(number) + (progress.item if spec.program is None else 0)
        return item, item
    lanes = np.arange(share.host, share.lanes, share.hosts).tolist()
    taken = list(_rounds(spec, share, progress, lanes))
    first = min(_position(spec, *place) for place in taken)
    last = max((_position(spec, lane, part, rounds - 1) + 1 for lane, part, rounds in taken if rounds), default=0)
    return first, last


def _lanes_differ(spec: StreamSpec, progress: Progress) -> bool:
    """Whether the positions that lanes have taken do not follow from the next item."""
    if spec.program is not None:
        return progress.lanes is not None
    balanced = spec.batch is not None and spec.batch.placing is not None
    return bool(progress.drops.any()) and not balanced


def _rounds(spec: StreamSpec, share: Share, progress: Progress, lanes: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """(lane, pass, rounds of it that the lane has taken), of each lane."""
    if spec.program is None:
        number = spec.counted(progress.pass_number)
        for lane, dropped in zip(lanes, progress.drops.tolist(), strict=True):
            yield lane, number, int(lane_rounds(progress.item, share.lanes)[lane]) + dropped
        return
    for lane, state in zip(lanes, progress.lanes or (), strict=True):
        for form, found in walk(spec.program.root.state_form, state, later=True):
            if isinstance(form, Rounds):
                yield lane, *found


def _position(spec: StreamSpec, lane: int, number: int, rounds: int) -> int:
    """The position of a round of a lane in a pass, or the end of the pass."""
    order = order_of(spec)
    if spec.program is None:
        position = order.start(number) + rounds * spec.lanes + lane
    else:
        position = int(spec.program.feeds[0].in_stream(lane, number, np.array([rounds]))[0])
    return position if order.passes is None else min(position, order.start(number + 1))


def _agreed(spec: StreamSpec, progress: Progress, taken: int, any_host: AnyHost | None) -> int:
    """The last of all hosts."""
    order, number = order_of(spec), spec.counted(progress.pass_number)
    known = order.start(number) + progress.item
    if progress.ended and not spec.endless:
        known = order.start(number + 1)
    if spec.program is not None:  # lanes may have taken fewer or more samples than there are items
        known = 0
    if any_host is None:
        if spec.program is not None or taken > known:
            raise AmendmentError(
                "this change needs to know how far the lanes of all hosts have read. Restore a state of all hosts "
                "(save_state_global or the checkpoint handler) with on_change='amend', initialise `jax.distributed` or "
                "`torch.distributed`, or pass WorkerConfig(any_host=…)"
            )
        return known
    if not any_host(taken > known):
        return known
    beyond = 1
    while any_host(taken > known + beyond):
        beyond *= 2
    low = beyond // 2
    while beyond - low > 1:
        middle = (low + beyond) // 2
        low, beyond = (middle, beyond) if any_host(taken > known + middle) else (low, middle)
    return known + beyond


def _step_at(spec: StreamSpec, progress: Progress, hosts: int, root: int) -> int | None:
    """The first step with a position of the order, if nothing is dropped; None: it is in a later pass than the next."""
    plan = PassPlan.of(spec, hosts, progress.pass_number)
    number = spec.counted(progress.pass_number)
    ahead = root - spec.order.start(number) - progress.item
    if spec.endless:
        return progress.step + max(0, ahead // plan.global_batch)
    end = spec.order.start(number + 1)
    if root < end and not progress.ended:
        return progress.step + max(0, ahead // plan.global_batch)
    left = 0 if progress.ended else plan.remaining(progress.pass_step, progress.item)
    return None if root > end or left is None else progress.step + left
