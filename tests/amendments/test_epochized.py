"""Blends by repetitions that change at their next epoch, against a count of what was delivered."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from amended_graphs import (
    HISTORIES,
    SIZES,
    Dropping,
    GraphRun,
    Marking,
    both,
    write_data,
)

from energon_grain import BlendEpochizedDataset, RepeatDataset, ShuffleBufferDataset

OFTEN = [Fraction(1, 2), 1, 2, Fraction(7, 5)]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("data")
    write_data(root)
    return root


def finite(pairs: list[Any]) -> Any:
    return BlendEpochizedDataset(*pairs)


def endless(pairs: list[Any]) -> Any:
    return RepeatDataset(BlendEpochizedDataset(*pairs))


def shuffled(pairs: list[Any]) -> Any:
    return RepeatDataset(ShuffleBufferDataset(BlendEpochizedDataset(*pairs), 20))


@pytest.mark.parametrize("seed", range(HISTORIES))
@pytest.mark.parametrize(("encoder", "live_on"), [(Marking, 4), (Dropping, 1)])
@pytest.mark.parametrize("build", [finite, endless, shuffled])
def test_random_histories(data: Path, build: Any, encoder: type[Marking], live_on: int, seed: int) -> None:
    both(data, seed, build, {"a": 1, "b": 2}, encoder=encoder, choices=OFTEN, last=80, live_on=live_on)


def epochs_of(run: GraphRun, count: int) -> list[list[str]]:
    """The datasets of the samples of the next epochs of a finite run."""
    return [[use[0] for batch in run.loaders[0] for use in run.valid(batch)] for _ in range(count)]


def test_epochs_keep_exact_counts(data: Path) -> None:
    """first_k(e) = base_k + floor((e - e0) n_k r_k), with e0 the epoch after that of the change."""
    often = {"a": Fraction(7, 10), "b": Fraction(2)}
    run = GraphRun(data, finite, dict(often))
    run.start()
    expected: list[dict[str, int]] = []
    begin = dict.fromkeys(often, 0)

    def expect(count: int, often: dict[str, Fraction]) -> None:
        base = {name: begin.get(name, 0) for name in often}
        for epoch in range(count):
            ends = {name: base[name] + (epoch + 1) * SIZES[name] * number // 1 for name, number in often.items()}
            expected.append({name: end - begin.get(name, 0) for name, end in ends.items() if end > begin.get(name, 0)})
            begin.update(ends)

    found = epochs_of(run, 2)
    expect(3, often)
    found.append([use[0] for _ in range(3) for use in run._next(run.loaders[0])])
    loader = run.loaders[0]
    loader.amend(weights={"a": "1.3", "b": 0, "c": "0.5"}, add={"c": run.leaf("c")}, note="books twice was too much")
    (change,) = loader.amendments
    assert [len(epoch) for epoch in found] == [110, 111, 36]
    assert (change.step, change.from_epoch, change.from_step) == (10 + 10 + 3, 3, 10 + 10 + 10)
    found[-1] += [use[0] for batch in loader for use in run.valid(batch)]
    found += epochs_of(run, 3)
    expect(3, {"a": Fraction(13, 10), "c": Fraction(1, 2)})
    assert [dict(sorted({name: epoch.count(name) for name in set(epoch)}.items())) for epoch in found] == expected
    run.close()
