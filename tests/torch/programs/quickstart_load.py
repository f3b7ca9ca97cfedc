"""Load a dataset: a loader of batches of one, and one of single samples."""

import torch

import energon_grain_torch as energon

batches = energon.get_loader(
    energon.get_train_dataset(
        "coco",
        batch_size=1,
        shuffle_buffer_size=100,
        max_samples_per_sequence=100,
        worker_config=energon.WorkerConfig.default_worker_config(),
    )
)
for number, batch in enumerate(batches):
    assert batch.image.shape[:2] == (1, 3)
    if number == 5:
        break

samples = energon.get_loader(
    energon.get_train_dataset(
        "coco",
        batch_size=None,
        shuffle_buffer_size=100,
        max_samples_per_sequence=100,
        worker_config=energon.WorkerConfig.default_worker_config(),
    )
)
for sample in samples:
    assert isinstance(sample, energon.CaptioningSample)
    assert isinstance(sample.__key__, str)
    assert sample.image.shape == (3, 32, 48)
    assert sample.image.dtype == torch.float32
    assert 0 <= sample.image.min() <= sample.image.max() <= 1
    assert sample.caption.startswith("Something ")
    break
