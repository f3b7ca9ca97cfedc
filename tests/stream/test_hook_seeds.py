"""Hooks that use the global generators: `@stateless(restore_seeds=True)`, wherever and whenever they run."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from logging_encoders import train
from small_graphs import number, on_hosts, take
from stream_hosts import MakeDataset, config

from energon_grain import SavableDataset, Stream, TaskEncoder, stateless


class Seeded(TaskEncoder):
    """Each hook of samples, packs and batches takes numbers from the global generators."""

    @staticmethod
    def roll() -> tuple[float, float]:
        return random.random(), float(np.random.random())  # noqa: NPY002

    @stateless(restore_seeds=True)
    def preencode_sample(self, sample: Any) -> Any:
        return number(sample), self.roll()

    def select_samples_to_pack(self, samples: list[Any]) -> list[list[Any]]:
        return [samples[at : at + 3] for at in range(0, len(samples), 3)]

    @stateless(restore_seeds=True)
    def postencode_sample(self, sample: Any) -> Any:
        return sample, self.roll()

    @stateless(restore_seeds=True)
    def pack_selected_samples(self, samples: list[Any]) -> Iterator[Any]:
        for sample in samples[:2]:
            yield sample, tuple(samples), self.roll()

    @stateless(restore_seeds=True)
    def batch(self, samples: list[Any]) -> Any:
        return tuple(samples), self.roll()

    @stateless(restore_seeds=True)
    def encode_batch(self, batch: Any) -> Any:
        return batch, self.roll()


def floats(value: Any) -> Iterator[float]:
    if isinstance(value, tuple):
        for entry in value:
            yield from floats(entry)
    elif isinstance(value, float):
        yield value


def seeded(path: Path, worker_config: Any, **options: Any) -> SavableDataset:
    arguments: dict[str, Any] = {
        "batch_size": 4 // worker_config.world_size,
        "packing_buffer_size": 4,
        "repeat": True,
        "lanes": 4,
        "shuffle_over_epochs_multiplier": 1,
        **options,
    }
    return train(path, Seeded(), worker_config=worker_config, **arguments)


def test_seeds_make_numbers_that_are_all_different_and_the_same_again(text_dataset: MakeDataset) -> None:
    path = text_dataset(53)
    random.seed(5)
    np.random.seed(5)  # noqa: NPY002
    before = random.getstate()[1], np.random.get_state()[1].tolist()  # type: ignore[index]  # noqa: NPY002
    steps = take(Stream.of(seeded(path, config())), 6)
    assert (random.getstate()[1], np.random.get_state()[1].tolist()) == before  # type: ignore[index]  # noqa: NPY002
    random.seed(6)
    assert take(Stream.of(seeded(path, config())), 6) == steps
    rolls = set(floats(tuple(steps)))
    # Samples, members and packs of 24 items (a member is in two of them), batches.
    assert len(rolls) > 24 * 2
    assert take(Stream.of(seeded(path, config(), seed=1)), 6) != steps


@pytest.mark.parametrize("num_workers", [1, 2])
def test_seeds_do_not_depend_on_workers(text_dataset: MakeDataset, num_workers: int) -> None:
    """W-15: in the original augmentations change with the number of workers and hosts."""
    path = text_dataset(53)
    with Stream.of(seeded(path, config()), num_workers=num_workers) as stream:
        assert take(stream, 6) == take(Stream.of(seeded(path, config())), 6)


@pytest.mark.parametrize("hosts", [2, 4])
def test_seeds_of_samples_do_not_depend_on_hosts(text_dataset: MakeDataset, hosts: int) -> None:
    path = text_dataset(53)
    [single] = on_hosts(lambda worker_config: seeded(path, worker_config), 1, 6)
    several = on_hosts(lambda worker_config: seeded(path, worker_config), hosts, 6)
    for step in range(6):
        assert sorted(single[step][0][0]) == sorted(pack for host in several for pack in host[step][0][0])


def test_seeds_do_not_depend_on_when_a_sample_is_made(text_dataset: MakeDataset) -> None:
    """W-10: the numbers of a sample are its own, whatever was made before it and by whom."""
    path = text_dataset(53)
    stream = Stream.of(seeded(path, config()))
    first = take(stream, 3)
    cursor = stream.cursor()
    expected = take(stream, 4)
    other = Stream.of(seeded(path, config()))
    other.restore(cursor)
    assert take(other, 4) == expected
    skipping = Stream.of(seeded(path, config()))
    skipping.skip(3)
    assert take(skipping, 4) == expected
    assert first != expected
