"""Amendments below planned packs and budgets: at the next window of the plan, or the next pass."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from amended_graphs import HISTORIES, Dropping, Marking, both, uses_in, write_data

from energon_grain import (
    BlendDataset,
    BlendEpochizedDataset,
    CostBudget,
    PackingPlan,
    PlannedPackingDataset,
)

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
