"""Amendments below shuffles and epochs: at the next window, with everything else where it was."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from amended_graphs import HISTORIES, Dropping, Marking, both, write_data

from energon_grain import BlendDataset, EpochizeDataset, ShuffleBufferDataset

WINDOW = 50


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("data")
    write_data(root)
    return root


def shuffled(pairs: list[Any]) -> Any:
    return ShuffleBufferDataset(BlendDataset(*pairs), WINDOW)


def in_epochs(pairs: list[Any]) -> Any:
    return EpochizeDataset(BlendDataset(*pairs), 12 * 7)


@pytest.mark.parametrize("seed", range(HISTORIES))
@pytest.mark.parametrize(("encoder", "live_on"), [(Marking, 4), (Dropping, 1)])
@pytest.mark.parametrize("build", [shuffled, in_epochs])
def test_random_histories(data: Path, build: Any, encoder: type[Marking], live_on: int, seed: int) -> None:
    both(data, seed, build, {"a": 3, "b": 1}, encoder=encoder, choices=[1, 2, 5], last=40, live_on=live_on)
