"""Collecting garbage at regular distances."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest
from small_graphs import in_order, number

from energon_grain import BatchDataset, ConfigError, GcDataset, Stream
from energon_grain.testing import make_text_dataset


@pytest.fixture
def collections() -> Any:
    """Counts full collections that somebody asked for or that happen."""
    seen: list[int] = []

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "stop" and info["generation"] == 2:
            seen.append(len(seen))

    gc.disable()  # only those that are asked for
    gc.callbacks.append(note)
    try:
        yield seen
    finally:
        gc.callbacks.remove(note)
        gc.enable()


def test_every_so_many_items(tmp_path: Path, collections: list[int]) -> None:
    path = make_text_dataset(tmp_path / "text", n=12, shards=1)
    batches = BatchDataset(in_order(path), 2, lambda samples: tuple(map(number, samples)))
    plain, collecting = Stream.of(batches), Stream.of(GcDataset(batches, every_n_iter=2, freeze=True))
    collections.clear()
    assert list(plain) == [(n, n + 1) for n in range(0, 12, 2)]
    assert not collections
    assert list(collecting) == [(n, n + 1) for n in range(0, 12, 2)]
    assert len(collections) == 3
    assert plain.cursor(with_manifest=True) == collecting.cursor(with_manifest=True)
    assert gc.get_freeze_count() == 0


def test_below_batches(tmp_path: Path, collections: list[int]) -> None:
    path = make_text_dataset(tmp_path / "text", n=12, shards=1)
    stream = Stream.of(BatchDataset(GcDataset(in_order(path), every_n_iter=4), 3, len))
    collections.clear()
    assert list(stream) == [3] * 4
    assert len(collections) == 3


def test_a_distance_that_is_none(tmp_path: Path) -> None:
    path = make_text_dataset(tmp_path / "text", n=2, shards=1)
    with pytest.raises(ConfigError, match="GcDataset: every_n_iter=0: expected a positive number of items"):
        GcDataset(in_order(path), every_n_iter=0)
