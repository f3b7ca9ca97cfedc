"""Measure what a tokenizer gains if `encode_samples` passes it lists: `python -m benchmarks.tokenizing` prints a table.

A byte-pair encoding with 8,000 tokens, trained on the text that the datasets are cut from, tokenizes texts of 100 bytes
to 8 KB in a loader with one process. The programs take turns: each round runs `encode_sample` (`encode`, text by text)
and `encode_samples` (`encode_batch`, and `encode_batch_fast`, which leaves out the offsets of the tokens) once each,
over as many threads as there are cores and in a single thread (`TOKENIZERS_PARALLELISM`); the best round of each
counts. The exit code is 1 if lists bring no gain.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
import tokenizers.models
import tokenizers.pre_tokenizers
import tokenizers.trainers

from benchmarks.contents import prose
from energon_grain import Stream, TaskEncoder, WorkerConfig, get_train_dataset
from energon_grain.prepare import prepare_dataset
from energon_grain.testing import write_tars

SIZES = (100, 1_000, 8_000)
ROUNDS = 12
SECONDS = 0.4
TARGET = 1.2


def trained() -> tokenizers.Tokenizer:
    """Train a byte-pair encoding on the text that the datasets are cut from."""
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=8_000, show_progress=False)
    words = prose().decode()
    tokenizer.train_from_iterator((words[at : at + 8192] for at in range(0, 1 << 20, 8192)), trainer)
    return tokenizer


class OneByOne(TaskEncoder):
    """Turns texts into tokens, one at a time."""

    def __init__(self, tokenizer: tokenizers.Tokenizer) -> None:
        self.tokenizer = tokenizer

    def encode_sample(self, sample: Any) -> Any:
        sample.text = np.array(self.tokenizer.encode(sample.text).ids, np.int32)
        return sample


class ManyAtOnce(TaskEncoder):
    """Does the same with many texts at a time, by `method` of the tokenizer."""

    def __init__(self, tokenizer: tokenizers.Tokenizer, method: str) -> None:
        self.encode_all = getattr(tokenizer, method)

    def encode_samples(self, samples: list[Any]) -> list[Any]:
        encoded = self.encode_all([sample.text for sample in samples])
        for sample, tokens in zip(samples, encoded, strict=True):
            sample.text = np.array(tokens.ids, np.int32)
        return samples


def texts(folder: Path, size: int) -> Path:
    """Write a dataset of texts of `size` bytes."""
    words = prose().decode()
    places = np.random.default_rng(size).integers(0, len(words) - size, 8_000_000 // size).tolist()
    write_tars(folder, ({"__key__": f"{n:06d}", "txt": words[at : at + size]} for n, at in enumerate(places)), shards=4)
    prepare_dataset(folder, split_ratio={"train": 1}, sample_type="TextSample", field_map={"text": "txt"})
    return folder


def stream(folder: Path, encoder: TaskEncoder) -> Stream:
    """Return a stream of endless batches of 32, after some batches have been taken."""
    dataset = get_train_dataset(
        folder,
        batch_size=32,
        shuffle_buffer_size=100,
        max_samples_per_sequence=100,
        task_encoder=encoder,
        worker_config=WorkerConfig(rank=0, world_size=1, num_workers=0),
    )
    stream = Stream.of(dataset)
    rate(stream)
    return stream


def rate(stream: Stream) -> float:
    """Return samples per second."""
    count, began = 0, time.perf_counter()
    while time.perf_counter() - began < SECONDS:
        next(stream)
        count += 32
    return count / (time.perf_counter() - began)


def main() -> None:
    """Print the table."""
    tokenizer = trained()
    encoders = [OneByOne(tokenizer), ManyAtOnce(tokenizer, "encode_batch"), ManyAtOnce(tokenizer, "encode_batch_fast")]
    most = 0.0
    print("| bytes per text | threads | `encode`, samples/s | `encode_batch` | `encode_batch_fast` |")
    for size in SIZES:
        with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
            path = texts(Path(folder), size)
            streams = [stack.enter_context(stream(path, encoder)) for encoder in encoders]
            for threads in sorted({1, os.cpu_count() or 1}):
                os.environ["TOKENIZERS_PARALLELISM"] = "false" if threads == 1 else "true"
                rounds = [[rate(each) for each in streams] for _ in range(ROUNDS)]
                one, *many = map(max, zip(*rounds, strict=True))
                ratios = [each / one for each in many]
                print(f"| {size:,} | {threads} | {one:,.0f} | {ratios[0]:.2f} x | {ratios[1]:.2f} x |", flush=True)
                most = max(most, *ratios)
    sys.exit(most < TARGET)


if __name__ == "__main__":
    main()
