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

from energon_grain import BlendDataset, BlendEpochizedDataset, RepeatDataset, ShuffleBufferDataset
from energon_grain.errors import AmendmentError

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
    steps = len(loader)
    expect(3, {"a": Fraction(13, 10), "c": Fraction(1, 2)})
    assert [dict(sorted({name: epoch.count(name) for name in set(epoch)}.items())) for epoch in found] == expected
    assert steps == -(-len(epochs_of(run, 1)[0]) // 12)
    run.close()


def test_what_is_below_the_blend_stays(data: Path) -> None:
    def nested(often: int) -> Any:
        def build(pairs: list[Any]) -> Any:
            (a, _), (b, _), (c, weight) = pairs
            return BlendDataset((BlendEpochizedDataset((a, 1), (b, often)), 2), (c, weight))

        return build

    run = GraphRun(data, nested(1), {"a": 1, "b": 1, "c": 1})
    run.start()
    run.step(3)
    state = run.state()
    run.build = nested(2)
    with pytest.raises(AmendmentError, match="a combination of datasets that changed from"):
        run.start(state, on_change="amend")
    run.build, run.weights = nested(1), {"a": 1, "b": 1, "c": 4}
    run.start(state, on_change="amend")
    run.step(20)
    seen = [use for step in run.log for use in step]
    assert len(set(seen)) == len(seen)
    run.build = endless
    with pytest.raises(AmendmentError, match="the blend was by weights and is now by repetitions"):
        run.start(state, on_change="amend")
    run.close()


def test_weights_for_repetitions_are_refused(data: Path) -> None:
    run = GraphRun(data, endless, {"a": 1, "b": 1})
    run.start()
    with pytest.raises(AmendmentError, match="a blend by repetitions, not by weights"):
        run.loaders[0].reweight({"a": 1, "b": 2})
    run.close()
