"""Blends by cost that change, against a count of what was delivered."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from amended_graphs import HISTORIES, Dropping, GraphRun, Marking, both, write_data

from energon_grain import BlendDataset, open_columns
from energon_grain.errors import AmendmentError
from energon_grain.planning import cost_blend


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("data")
    write_data(root)
    return root


@pytest.fixture(autouse=True)
def _short_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost_blend, "_WINDOW", 40)
    monkeypatch.setattr(cost_blend, "_OF_A_CHILD", 1)


def by_cost(pairs: list[Any]) -> Any:
    return BlendDataset(*pairs, weight_unit="bytes.txt")


@pytest.mark.parametrize("seed", range(HISTORIES))
@pytest.mark.parametrize(("encoder", "live_on"), [(Marking, 4), (Dropping, 1)])
def test_random_histories(data: Path, encoder: type[Marking], live_on: int, seed: int) -> None:
    both(data, seed, by_cost, {"a": 3, "b": 1}, encoder=encoder, choices=[1, 2, 5], last=60, live_on=live_on)


def test_shares_of_cost_follow_the_new_weights(data: Path) -> None:
    costs = {name: open_columns(data / name)["bytes.txt"] for name in "abc"}
    run = GraphRun(data, by_cost, {"a": 3, "b": 1})
    run.start()
    run.step(7)
    run.amend(weights={"a": 1, "b": 2, "c": 5}, add={"c": run.leaf("c")})
    assert [change.from_step for change in run.loaders[0].amendments] == [7]
    run.step(60)
    paid = dict.fromkeys("abc", 0)
    for step in run.log[7:]:
        for name, _, number, _ in step:
            paid[name] += int(costs[name][number])
        for name, share in {"a": 1 / 8, "b": 2 / 8, "c": 5 / 8}.items():
            assert abs(paid[name] - share * sum(paid.values())) <= 60 + 1
    run.close()


def test_plans_go_on_and_nothing_is_planned_again(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = GraphRun(data, by_cost, {"a": 3, "b": 1})
    run.start()
    run.step(30)
    begun: list[int] = []
    advance = cost_blend.CostBlend._advance

    def counted(self: Any, carry: Any) -> Any:
        begun.append(carry[0])
        return advance(self, carry)

    monkeypatch.setattr(cost_blend.CostBlend, "_advance", counted)
    run.amend(weights={"a": 1, "b": 1, "c": 1}, add={"c": run.leaf("c")})
    run.step(1)
    state = run.state()
    run.weights, run.hosts = {"a": 1, "b": 2, "c": 1}, 3
    run.start(state, on_change="amend")
    run.step(1)
    assert min(begun) > 250
    run.close()


def test_a_removed_dataset_may_be_gone(data: Path) -> None:
    run = GraphRun(data, by_cost, {"a": 3, "b": 1, "c": 2})
    run.start()
    run.step(9)
    state = run.state()
    run.weights = {"a": 1, "c": 1}
    with pytest.raises(AmendmentError, match=r"depends on its column 'bytes.txt'.*amend\(remove="):
        run.start(state, on_change="amend")
    run.weights = {"a": 3, "b": 1, "c": 2}
    run.start(state)
    run.amend(remove=["b"])
    state = run.state()
    run.weights = {"a": 1, "c": 1}
    run.start(state, on_change="amend")
    run.step(20)
    assert {name for name, *_ in run.log[-1]} == {"a", "c"}
    state = run.state()
    run.start(state)
    run.step(2)
    run.close()
