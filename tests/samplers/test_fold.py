"""The memory of a fold: its answers are functions of positions, whatever was planned before."""

from __future__ import annotations

import os
import signal
import threading

import numpy as np
import pytest
from forking import may_fork
from patience import PATIENCE_S

from energon_grain.samplers.fold import Carry, Fold

WINDOW = 4


def sums() -> Fold[int]:
    """Of windows of four positions: the plan is the sum of all windows before, and so is the carry."""

    def advance(carry: Carry) -> tuple[int, Carry]:
        position, total = carry
        return total, (position + WINDOW, total + position)

    return Fold((0, 0), advance)


def carry_at(position: int) -> Carry:
    first = position // WINDOW * WINDOW
    return first, sum(range(0, first, WINDOW))


@pytest.mark.parametrize("ahead", [0, 40, 3_000, 60_000, 200_000])
def test_an_anchor_is_that_of_its_window_however_far_others_were_planned(ahead: int) -> None:
    fold = sums()
    for position in range(0, 200, 7):
        fold.plan_at(position + ahead)
        assert fold.anchor(position) == carry_at(position)


def test_anchors_long_past_lie_before_and_are_right() -> None:
    fold = sums()
    for position in range(0, 40_000, 50):
        fold.anchor(position)
    for position in np.random.default_rng(0).integers(0, 40_000, 50).tolist():
        found = fold.anchor(position)
        assert found == carry_at(found[0])
        assert position - 40_000 // 100 < found[0] <= position


def test_plans_are_the_same_in_any_order_and_from_a_carry_of_another_process() -> None:
    fold, other = sums(), sums()
    other.remember(fold.anchor(9_000))
    for position in np.random.default_rng(1).integers(9_000, 40_000, 200).tolist():
        first, end, plan = other.plan_at(position)
        assert (first, plan) == carry_at(position)
        assert (first, end, plan) == fold.plan_at(position)


@may_fork
def test_a_forked_child_does_not_wait_for_a_thread_that_plans_in_its_parent() -> None:
    planning, done = threading.Event(), threading.Event()

    def advance(carry: Carry) -> tuple[int, Carry]:
        planning.set()
        done.wait(PATIENCE_S)
        return 0, (carry[0] + WINDOW,)

    fold = Fold((0,), advance)
    thread = threading.Thread(target=fold.plan_at, args=(0,))
    thread.start()
    planning.wait(PATIENCE_S)
    child = os.fork()
    if not child:
        signal.alarm(10)
        os._exit(7 if fold.anchor(0) == (0,) else 8)
    done.set()
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
