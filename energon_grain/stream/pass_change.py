"""Places in a stream that do not follow from the step before: the next pass, and a restored one."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from energon_grain.errors import StateError
from energon_grain.stream.cursor import from_cursor
from energon_grain.stream.operators.program import goes_on
from energon_grain.stream.pass_plan import PassPlan
from energon_grain.stream.progress import Progress
from energon_grain.stream.share import Share
from energon_grain.stream.spec import StreamSpec
from energon_grain.stream.which import history_holds

_POSITIONS = 1 << 62


def next_pass(before: Progress, spec: StreamSpec, plan: PassPlan, hosts: int) -> Progress:
    """The beginning of the pass behind the one that `before` is in.

    Args:
        before: A place in it.
        spec: The compiled dataset.
        plan: Of that pass.
        hosts: Number of hosts.
    """
    progress = dataclasses.replace(before, pass_number=before.pass_number + 1, pass_step=0, ended=False)
    if not spec.endless:
        lanes = before.lanes if spec.program is not None and goes_on(spec.program.root) else None
        progress = dataclasses.replace(progress, item=0, drops=np.zeros_like(before.drops), lanes=lanes)
        if before.drops.any() or spec.program is not None:
            progress = progress.forgetting(plan.global_batch)
    # Of passes that differ in length, one may have no complete batch.
    return dataclasses.replace(progress, ended=PassPlan.of(spec, hosts, progress.pass_number).over(0, progress.item))


def restored(
    cursor: Mapping[str, Any], spec: StreamSpec, share: Share, now: PassPlan, *, allow_changes: bool
) -> Progress:
    """The place of a cursor, in a stream that may be cut otherwise than when it was saved.

    Args:
        cursor: What `Stream.cursor` returned.
        spec: The compiled dataset.
        share: This host's part.
        now: A plan of the stream as it is cut now.
        allow_changes: Whether it may be of other data, in which there may be no such place.

    Raises:
        StateError: The cursor is malformed or cannot be continued here.
        HostsError: The number of hosts does not fit its lanes.
    """
    progress = from_cursor(cursor, share, spec.program)
    if spec.program is not None and progress.lanes is None and progress.item:
        raise StateError(
            f"the state is of item {progress.item} of a dataset that does not filter, group or pack ('held' is empty), "
            f"which this one does: where its lanes stand is not known there, so it cannot go on, not even with "
            f"allow_changes"
        )
    plan = PassPlan.of(spec, share.hosts, progress.pass_number)
    if spec.program is None:
        _check_place(progress, spec)
        if not allow_changes:
            _check_reach(progress, spec, plan.length)
    if progress.history[-1][4] != now.global_batch:
        segment = (progress.step, progress.pass_number, progress.pass_step, progress.item, now.global_batch)
        kept = tuple(old for old in progress.history if old[0] < progress.step)
        progress = dataclasses.replace(progress, history=(*kept, segment))
    if not progress.ended and plan.over(progress.pass_step, progress.item):
        progress = dataclasses.replace(progress, ended=True)
    if not history_holds(spec, share.hosts, progress):
        # Passes before this one were cut in another way (limit, last_batch) than they would be now.
        progress = progress.forgetting(now.global_batch)
    return progress


def _check_place(progress: Progress, spec: StreamSpec) -> None:
    """Refuse what no stream says."""
    if progress.history[0][0] > progress.step:
        raise StateError(f"the state's 'history' begins at step {progress.history[0][0]}, behind its {progress.step}")
    if spec.order.start(progress.pass_number) + progress.item >= _POSITIONS:
        raise StateError(f"the state's 'pass' is {progress.pass_number}: the order has no positions that far on")


def _check_reach(progress: Progress, spec: StreamSpec, length: int | None) -> None:
    """Refuse what no stream of this data says."""
    if length is not None and progress.item >= length and not progress.ended:
        raise StateError(f"the state's 'item' is {progress.item} in a pass that is not over, but passes have {length}")
    if progress.drops.max() > spec.patience * (progress.item // spec.lanes + 2):
        raise StateError(
            f"the state's 'drops' are up to {progress.drops.max()} in one lane before item {progress.item}: more "
            f"than any stream of this data drops"
        )
