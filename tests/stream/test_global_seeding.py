"""Hooks that seed global generators: the batches depend neither on workers nor on what the program draws meanwhile."""

from __future__ import annotations

import logging
import random
from pathlib import Path
from typing import Any

import pytest
from stream_hosts import MakeDataset, config, train_on

from energon_grain import Stream, TaskEncoder, TextSample, stateless


class OnSamples(TaskEncoder):
    @stateless(restore_seeds=True)
    def encode_sample(self, sample: Any) -> Any:
        sample.text = str([random.random() for _ in range(50)])
        return sample


class OnPacks(TaskEncoder):
    def select_samples_to_pack(self, samples: list[Any]) -> list[list[Any]]:
        return [samples[at : at + 2] for at in range(0, len(samples), 2)]

    @stateless(restore_seeds=True)
    def pack_selected_samples(self, samples: list[Any]) -> Any:
        return TextSample.derive_from(samples[0], text=str([random.random() for _ in range(50)]))


def batches(path: Path, encoder: TaskEncoder, workers: int, worker_type: Any, packing: int | None) -> list[Any]:
    """Texts of 40 batches, and what the program drew between them."""
    dataset = train_on(
        path,
        worker_config=config(0, 1, workers, worker_type=worker_type),
        batch_size=4,
        packing_buffer_size=packing,
        task_encoder=encoder,
    )
    random.seed(7)
    seen: list[Any] = []
    with Stream.of(dataset) as stream:
        for _ in range(40):
            seen.append(next(stream).text)
            seen.append([random.random() for _ in range(500)][-1])
    return seen


@pytest.mark.parametrize(("encoder", "packing"), [(OnSamples(), None), (OnPacks(), 8)])
def test_workers_and_the_program_change_nothing(
    text_dataset: MakeDataset, encoder: TaskEncoder, packing: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    path = text_dataset(50)
    alone = batches(path, encoder, 0, "thread", packing)
    with caplog.at_level(logging.WARNING, "energon_grain"):
        assert batches(path, encoder, 2, "thread", packing) == alone
    assert ("seed generators of the whole process" in caplog.text) == (packing is None)
    assert batches(path, encoder, 1, "process", packing) == alone
