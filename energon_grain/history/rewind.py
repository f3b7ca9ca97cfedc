# SPDX-License-Identifier: Apache-2.0
"""The state that a run had at an earlier step.

Where items are positions, the earlier place follows from the history of batch sizes in the state. Where lanes have
states of their own (filters, groups, packs), or samples were dropped, the steps from an earlier state on are made
again. Amendments that the run made after the step are forgotten.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from energon_grain.errors import StateError
from energon_grain.stream.cursor import Cursor, check_cursor
from energon_grain.stream.extensions import AMENDMENTS_UNTIL, IS_ARITHMETIC, extension
from energon_grain.stream.passes import PassPlan, Segment, place_of
from energon_grain.stream.spec import StreamSpec
from energon_grain.stream.stream import Stream

MOST_ITEMS = 1 << 20
"""Items that are made again without being asked for."""


def needs_data(cursor: Mapping[str, Any]) -> bool:
    """Whether the place of an earlier step does not follow from a state alone, whatever the dataset."""
    return bool(cursor["drops"] or cursor["held"] or cursor["pass"] or "plans" in cursor)


def rewound_alone(cursor: Cursor, step: int) -> Cursor:
    """The state at an earlier step of an endless run, from a state alone.

    Raises StateError if this takes the dataset, or if the step is not before the state.
    """
    if needs_data(cursor) or not _since(cursor, step):
        raise StateError(
            f"the state of step {step} does not follow from the state of step {cursor['step']} alone (the run has "
            f"passes, drops or groups samples, or plans): give the dataset and the settings of the run too"
        )
    start, pass_number, pass_step, item, size = _segment(cursor["history"], step)
    ahead = step - start
    return _at(cursor, step, pass_number, pass_step + ahead, item + ahead * size)


def rewound(stream: Stream, cursor: Cursor, step: int) -> Cursor | None:
    """The state at an earlier step, by arithmetic; None: that takes the data.

    Args:
        stream: A stream of the run on one host that was restored from the state.
        cursor: The state.
        step: The earlier step.
    """
    if cursor["drops"] or cursor["held"] or not _since(cursor, step):
        return None
    if not stream.ask(IS_ARITHMETIC, step):
        return None
    spec, history = stream.spec, stream.place.history
    pass_number, item, size = place_of(spec, stream.share.hosts, history, step)
    return _at(cursor, step, *_pass_place(spec, history, step, pass_number, item, size), item)


def _pass_place(
    spec: StreamSpec, history: Sequence[Segment], step: int, pass_number: int, item: int, size: int
) -> tuple[int, int]:
    """Pass and step in it."""
    start, first_pass, pass_step, _, _ = _segment(history, step)
    pass_step += step - start
    if spec.order.passes is not None:
        return pass_number, pass_step if pass_number == first_pass else item // size
    steps = PassPlan.of(spec, 1).steps
    return (first_pass + pass_step // steps, pass_step % steps) if steps else (first_pass, pass_step)


def remade(stream: Stream, step: int, *, asked: bool) -> Cursor:
    """The state at a later step than that of a stream, from making the steps until then.

    Args:
        stream: A stream of the run, restored from an earlier state, or at its beginning.
        step: The step.
        asked: Whether the caller accepts the cost.

    Raises:
        StateError: That takes more than `MOST_ITEMS` items, and the caller was not asked; or the run ends before.
    """
    begin, size = stream.place.step, stream.plan.global_batch
    items = (step - begin) * size
    if items > MOST_ITEMS and not asked:
        raise StateError(
            f"the state of step {step} depends on the samples before it. The nearest known state is that of step "
            f"{begin}, and {items:,} items would have to be read and made from there: pass --replay to do that, or "
            f"the folder with all checkpoints, to begin at a later one"
        )
    while stream.place.step < step:
        before = stream.place.step
        for _ in stream:
            if stream.place.step >= step:
                break
        if stream.place.step == before:
            raise StateError(f"the run ends at step {before}, before step {step}")
    return stream.cursor(with_manifest=True)


def _since(cursor: Mapping[str, Any], step: int) -> bool:
    """Whether the history in a state reaches back to a step. Raises StateError if the step is not before the state."""
    if not 0 <= step <= cursor["step"]:
        raise StateError(f"step {step}: the state is of step {cursor['step']}; give a step from 0 to that")
    return step >= cursor["history"][0][0]


def _segment(history: Sequence[Sequence[int]], step: int) -> Sequence[int]:
    """The last change of the batch size at or before a step."""
    return [segment for segment in history if segment[0] <= step][-1]


def _at(cursor: Cursor, step: int, pass_number: int, pass_step: int, item: int) -> Cursor:
    """A state at another place of its run."""
    found = {name: value for name, value in cursor.items() if name not in ("check", "plans", "amendments")}
    amendments = extension(AMENDMENTS_UNTIL)(cursor, step) if "amendments" in cursor else []
    found |= {
        "step": step,
        "pass": pass_number,
        "pass_step": pass_step,
        "item": item,
        "ended": False,
        "history": [list(segment) for segment in cursor["history"] if segment[0] <= step],
        "skipped": [[first, min(count, step - first)] for first, count in cursor["skipped"] if first < step],
        **({"amendments": amendments} if amendments else {}),
    }
    return check_cursor(found)
