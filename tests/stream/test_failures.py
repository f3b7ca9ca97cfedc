"""What becomes of samples that fail."""

from __future__ import annotations

from typing import Any

import pytest
from stream_hosts import MakeDataset, worker_config

from energon_grain import (
    DecodingError,
    FatalSampleError,
    Stream,
    TaskEncoder,
    WorkerConfig,
    get_train_dataset,
    reraise_exception,
)


def test_too_many_failures_in_a_row_end_the_iteration(text_dataset: MakeDataset) -> None:
    class Impatient(TaskEncoder):
        __default_failure_tolerance__ = 3

        def encode_sample(self, sample: Any) -> Any:
            if int(sample.__key__) >= 10:
                raise ValueError("broken")
            return sample

    dataset = get_train_dataset(
        text_dataset(24),
        worker_config=worker_config(),
        batch_size=2,
        shuffle_buffer_size=None,
        max_samples_per_sequence=None,
        shuffle_over_epochs_multiplier=None,
        task_encoder=Impatient(),
        lanes=1,
    )
    stream = Stream.of(dataset)
    for _ in range(5):
        next(stream)
    with pytest.raises(FatalSampleError, match="encode_sample failed 3 times in a row"):
        next(stream)


def test_an_error_handler_may_end_the_iteration(text_dataset: MakeDataset) -> None:
    raising = WorkerConfig(0, 1, 0, global_error_handler=reraise_exception)
    dataset = get_train_dataset(
        text_dataset(24, broken={3}),
        worker_config=raising,
        batch_size=24,
        shuffle_buffer_size=None,
        max_samples_per_sequence=None,
    )
    with pytest.raises(DecodingError):
        next(Stream.of(dataset))
