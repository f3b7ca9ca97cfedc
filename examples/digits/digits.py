"""The training dataset of both training scripts, with its random augmentation."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np

from energon_grain import (
    DefaultTaskEncoder,
    ImageClassificationSample,
    SampleDecoder,
    TaskEncoder,
    WorkerConfig,
    get_train_dataset,
)

BATCH_SIZE = 32

GlobalBatch = set[str]
"""For each sample in a batch, or in the batches of all hosts, its key and a hash of its image and label."""


class DigitEncoder(DefaultTaskEncoder):
    """Grey images in 0..1 as (8, 8) float32 and labels as int32. Training images are augmented."""

    decoder = SampleDecoder(image_decode="l")

    def __init__(self, *, augment: bool) -> None:
        super().__init__()
        self.augment = augment

    def encode_sample(self, sample: ImageClassificationSample) -> ImageClassificationSample:
        """Encode one sample. `self.rng` belongs to the sample, so a replayed sample is augmented in the same way."""
        sample.label = np.asarray(sample.label, np.int32)
        if self.augment:
            sample.image = vary(sample.image, self.rng)
        return sample


def vary(image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Shift an image by up to 0.7 pixels in each direction, change its contrast, and add noise."""
    down, right = rng.uniform(-0.7, 0.7, 2)
    top, left = int(np.floor(down)), int(np.floor(right))
    down, right = down - top, right - left
    framed = np.pad(image, 2)
    corner = framed[2 + top : 11 + top, 2 + left : 11 + left]  # (9, 9): neighbours to interpolate between
    rows = (1 - down) * corner[:-1] + down * corner[1:]
    shifted = (1 - right) * rows[:, :-1] + right * rows[:, 1:]
    return (shifted * rng.uniform(0.7, 1.3) + rng.normal(0, 0.08, image.shape)).astype(np.float32)


def train_dataset(path: Path, encoder: TaskEncoder, worker_config: WorkerConfig):
    """Return the training dataset: the same global batches on any number of hosts, in JAX and in PyTorch."""
    return get_train_dataset(
        path,
        worker_config=worker_config,
        batch_size=BATCH_SIZE // worker_config.world_size,
        shuffle_buffer_size=None,
        max_samples_per_sequence=None,  # full shuffle: the data is small and local
        task_encoder=encoder,
        seed=7,
    )


def digest(arrays) -> str:
    """Return a hash of the bytes of arrays or tensors."""
    hashed = hashlib.sha256()
    for array in arrays:
        hashed.update(np.ascontiguousarray(array).tobytes())
    return hashed.hexdigest()


def sample_digests(batch) -> GlobalBatch:
    """Return each sample's key with a hash of its augmented image and label, so random numbers are compared too."""
    samples = zip(batch.__key__, batch.image, batch.label, strict=True)
    return {f"{key} {digest([image, label])}" for key, image, label in samples}
