"""What hooks may know and do: random numbers, seeded globals, their own draw."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from energon_grain import DefaultTaskEncoder, SkipSample, TextSample, current_draw, get_train_dataset, stateless

MakeDataset = Callable[..., Path]


def run(path: Path, encoder: DefaultTaskEncoder, **options: Any) -> list[Any]:
    arguments = {"batch_size": None, "shuffle_buffer_size": None, "max_samples_per_sequence": None, "repeat": False}
    return list(get_train_dataset(path, task_encoder=encoder, **{**arguments, **options}))


def test_outside_hooks_there_is_no_draw() -> None:
    with pytest.raises(RuntimeError, match="no hook runs in this thread"):
        current_draw()
    with pytest.raises(RuntimeError):
        _ = DefaultTaskEncoder().rng


def test_draws(text_dataset: MakeDataset) -> None:
    class Encoder(DefaultTaskEncoder):
        def encode_sample(self, sample: TextSample) -> Any:
            draw = current_draw()
            assert draw.rng is self.rng
            return sample.__key__, draw.index, draw.position, draw.epoch, draw.seed, self.rng.random()

    seen = run(text_dataset(24), Encoder())
    assert all(int(key) == index for key, index, *_ in seen)
    assert [position for _, _, position, *_ in seen] == list(range(24))
    assert {epoch for *_, epoch, _, _ in seen} == {0}
    assert len({seed for *_, seed, _ in seen}) == len({number for *_, number in seen}) == 24
    assert run(text_dataset(24), Encoder()) == seen
    assert [last for *_, last in run(text_dataset(24), Encoder(), seed=1)] != [last for *_, last in seen]
    with pytest.raises(RuntimeError):
        current_draw()


def test_hooks_of_one_sample_draw_different_numbers(text_dataset: MakeDataset) -> None:
    class Encoder(DefaultTaskEncoder):
        def encode_sample(self, sample: TextSample) -> Any:
            return {"sample": np.array(self.rng.random())}

        def batch(self, samples: list[Any]) -> Any:
            return {"batch": self.rng.random(), "index": current_draw().index, **super().batch(samples)}

        def encode_batch(self, batch: Any) -> Any:
            return {"encoded": self.rng.random(), **batch}

    batches = run(text_dataset(24), Encoder(), batch_size=6)
    numbers = [n for batch in batches for n in (batch["batch"], batch["encoded"], *batch["sample"].tolist())]
    assert len(set(numbers)) == 4 * 8
    assert {batch["index"] for batch in batches} == {-1}


def test_restored_seeds(text_dataset: MakeDataset) -> None:
    """Global generators give each sample its own numbers, and outside go on as if nothing had happened."""

    class Encoder(DefaultTaskEncoder):
        @stateless(restore_seeds=True)
        def encode_sample(self, sample: TextSample) -> Any:
            return sample.__key__, random.random(), float(np.random.random())  # noqa: NPY002

    random.seed(1)
    np.random.seed(1)  # noqa: NPY002
    expected = random.random(), float(np.random.random())  # noqa: NPY002
    random.seed(1)
    np.random.seed(1)  # noqa: NPY002
    seen = run(text_dataset(24), Encoder())
    assert (random.random(), float(np.random.random())) == expected  # noqa: NPY002
    assert len({number for _, *numbers in seen for number in numbers}) == 48
    assert run(text_dataset(24), Encoder()) == seen


def test_skipping(text_dataset: MakeDataset) -> None:
    class Encoder(DefaultTaskEncoder):
        def encode_sample(self, sample: TextSample) -> Any:
            if int(sample.__key__) % 3 == 0:
                raise SkipSample
            return sample

    kept = run(text_dataset(24), Encoder())
    assert sorted(int(sample.__key__) for sample in kept) == [i for i in range(24) if i % 3]
