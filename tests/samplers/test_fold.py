"""The memory of a fold: its answers are functions of positions, whatever was planned before."""

from __future__ import annotations

import numpy as np
import pytest

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


@pytest.mark.parametrize("ahead", [0, 40, 3_000, 60_000])
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
