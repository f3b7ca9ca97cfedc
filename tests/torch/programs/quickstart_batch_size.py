"""Batch with the default task encoder: images are stacked, keys and captions listed."""

import torch

import energon_grain_torch as energon

loader = energon.get_loader(
    energon.get_train_dataset(
        "coco",
        batch_size=2,
        shuffle_buffer_size=100,
        max_samples_per_sequence=100,
        worker_config=energon.WorkerConfig.default_worker_config(),
    )
)
for batch in loader:
    assert isinstance(batch.image, torch.Tensor)
    assert batch.image.shape == (2, 3, 32, 48)
    assert len(batch.__key__) == len(batch.caption) == 2
    break
