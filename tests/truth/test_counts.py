"""The formulas of LoaderTruth, on sequences whose violations are known."""

from __future__ import annotations

import random

import pytest

from benchmarks.truth.checks.shuffle import randomness
from benchmarks.truth.counts import Violations, by_dataset, differing_steps, share_error, violations
from benchmarks.truth.tars import tokens_of


def passes(samples: int, count: int, seed: int) -> list[int]:
    rng = random.Random(seed)
    return [number for _ in range(count) for number in rng.sample(range(samples), samples)]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("events", [0, 1, 7, 30])
def test_repeats_and_losses_are_counted(seed: int, events: int) -> None:
    rng = random.Random(seed)
    exact = passes(200, 3, seed)
    again = rng.sample(range(20, 150), events)
    repeats = [number for place, number in enumerate(exact) for _ in range(1 + (place in again))]
    assert violations(repeats, 200) == Violations(repeated=events)
    kept = [number for place, number in enumerate(exact) if place not in again]
    found = violations(kept, 200)
    assert events * 2 // 3 <= found.lost <= found.lost + found.repeated <= events


def test_finite_data_show_each_loss() -> None:
    assert violations([0, 1, 2, 3], 4, ended=True) == Violations()
    assert violations([0, 1, 1, 3], 4, ended=True) == Violations(repeated=1, lost=1)
    assert violations([3, 0], 4, ended=True) == Violations(lost=2)
    assert violations([3, 3], 4) == Violations(repeated=1)  # the run was too short to show losses


def test_own_violations_are_subtracted() -> None:
    assert Violations(5, 2).beyond(Violations(3, 4)) == Violations(2, 0)


def test_pieces_count_with_the_last_token() -> None:
    number = next(number for number in range(100) if tokens_of(0, number) == 10)
    pieces = [(0, number, 4, 0.0), (0, number, 6, 0.0), (0, number, 10, 0.0), (0, number, 3, 0.0)]
    assert by_dataset([[pieces]], 1, pieces=True) == [[number, number]]
    assert by_dataset([[pieces]], 1) == [[number] * 4]


def test_a_pass_may_end_within_a_step() -> None:
    steps = [[[(0, 1, 1)], [(0, 2, 1)]], [[(0, 1, 1), (0, 2, 1)], [(0, 3, 1)]]]
    assert by_dataset(steps, 1) == [[1, 2, 3, 1, 2]]
    assert violations(by_dataset(steps, 1)[0], 3) == Violations()


def test_share_errors_are_those_of_the_worst_prefix() -> None:
    fair = [[[(0, 0, 1), (1, 0, 1)]]] * 10
    assert share_error(fair, [(0.5, 0.5)] * 10) == 0
    late = [[[(0, 0, 1), (0, 1, 1)]]] * 5 + [[[(1, 0, 1), (1, 1, 1)]]] * 5
    assert share_error(late, [(0.5, 0.5)] * 10) == 5
    assert share_error(late, [(1.0,)] * 5 + [(0.0, 1.0)] * 5) == 0  # the weights had changed


def test_hosts_may_exchange_samples_of_a_step() -> None:
    one = [[[(0, 1, 5, 0.5)], [(0, 2, 5, 0.25)]], [[(0, 3, 5, 0.1)], [(0, 4, 5, 0.2)]]]
    assert differing_steps(one, [[one[0][1], one[0][0]], one[1]]) == 0
    assert differing_steps(one, [one[0], [[(0, 3, 5, 0.1)], [(0, 4, 5, 0.3)]]]) == 1
    assert differing_steps(one, [one[1], one[0]]) == 2


def test_randomness_tells_orders_apart() -> None:
    shuffled = randomness(passes(4800, 1, 0), 4800)
    assert 0.7 < shuffled["chi2"] < 1.3
    assert abs(shuffled["neighbours"]) < 0.06
    assert abs(shuffled["moved"] - 1 / 3) < 0.02
    blocks = [block * 48 + place for block in random.Random(0).sample(range(100), 100) for place in range(48)]
    assert randomness(blocks, 4800)["neighbours"] > 0.9
    in_order = randomness(range(4800), 4800)
    assert in_order["chi2"] > 100
    assert in_order["moved"] == 0
