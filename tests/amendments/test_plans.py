"""Amendments below planned packs and budgets: at the next window of the plan, or the next pass."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from amended_graphs import HISTORIES, Dropping, GraphRun, Marking, both, uses_in, write_data

from energon_grain import (
    BlendDataset,
    BlendEpochizedDataset,
    CostBudget,
    PackingPlan,
    PlannedPackingDataset,
)
from energon_grain.errors import AmendmentError

CAPACITY, WINDOW = 100, 60


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("data")
    write_data(root)
    return root


def uses_of_pack(samples: list[Any]) -> list[Any]:
    return [sample.text for sample in samples]


def packed(pairs: list[Any]) -> Any:
    plan = PackingPlan("bytes.txt", CAPACITY, window=WINDOW)
    return PlannedPackingDataset(BlendDataset(*pairs), plan, uses_of_pack)


def packed_by_cost(pairs: list[Any]) -> Any:
    plan = PackingPlan("bytes.txt", CAPACITY, window=WINDOW)
    return PlannedPackingDataset(BlendDataset(*pairs, weight_unit="bytes.txt"), plan, uses_of_pack)


def packed_epochs(pairs: list[Any]) -> Any:
    plan = PackingPlan("bytes.txt", CAPACITY, window=WINDOW)
    return PlannedPackingDataset(BlendEpochizedDataset(*pairs), plan, uses_of_pack)


def budgets(pairs: list[Any]) -> Any:
    budget = CostBudget("bytes.txt", 150, window=WINDOW)
    return PlannedPackingDataset(BlendDataset(*pairs), budget, uses_in, hook="batch", batches=True)


@pytest.mark.parametrize("seed", range(1 + HISTORIES // 2))
@pytest.mark.parametrize(("encoder", "live_on"), [(Marking, 4), (Dropping, 1)])
@pytest.mark.parametrize("build", [packed, packed_by_cost, packed_epochs, budgets])
def test_random_histories(data: Path, build: Any, encoder: type[Marking], live_on: int, seed: int) -> None:
    options = {"encoder": encoder, "choices": [1, 2, 3], "last": 60, "live_on": live_on}
    whole = {"batched": build is budgets}  # a step of more hosts has more batches
    both(data, seed, build, {"a": 2, "b": 1}, options=whole, **options)


@pytest.mark.parametrize("seed", range(1 + HISTORIES // 2))
def test_balanced_steps(data: Path, seed: int) -> None:
    def blend(pairs: list[Any]) -> Any:
        return BlendDataset(*pairs)

    options = {"choices": [1, 2, 3], "last": 40, "live_on": 4}
    both(data, seed, blend, {"a": 2, "b": 1}, options={"balance": "bytes.txt"}, **options)


def test_the_next_window_of_a_plan(data: Path) -> None:
    def in_large_windows(pairs: list[Any]) -> Any:
        return PlannedPackingDataset(BlendDataset(*pairs), PackingPlan("bytes.txt", CAPACITY, window=200), uses_of_pack)

    run = GraphRun(data, in_large_windows, {"a": 1, "b": 1})
    run.start()
    run.step(1)
    run.amend(weights={"a": 0, "b": 1})
    (change,) = run.loaders[0].amendments
    assert change.from_step is not None
    assert change.from_step > 1
    run.step(change.from_step + 60)
    assert all("a" in {name for name, *_ in step} for step in run.log[: change.from_step])
    assert {name for step in run.log[-5:] for name, *_ in step} == {"b"}
    run.close()


def test_other_costs_are_refused(data: Path) -> None:
    run = GraphRun(data, packed, {"a": 1, "b": 1})
    run.start()
    run.step(3)
    state = run.state()
    plan = PackingPlan("bytes.txt + 1", CAPACITY, window=WINDOW)
    run.build = lambda pairs: PlannedPackingDataset(BlendDataset(*pairs), plan, uses_of_pack)
    with pytest.raises(AmendmentError, match=r"mixture: was .*bytes.txt.*is .*bytes.txt \+ 1"):
        run.start(state, on_change="amend")
    run.close()
