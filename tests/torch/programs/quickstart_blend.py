"""Blend two datasets by weight, as a metadataset says."""

from pathlib import Path

import energon_grain_torch as energon

Path("coyo-coco-dataset.yaml").write_text("""
__module__: megatron.energon
__class__: MetadatasetV2
splits:
  train:
    blend:
      - weight: 5
        path: ./coco
      - weight: 2
        path: ./coyo
  val:
    path: ./coco
  test:
    path: ./coyo
""")

worker_config = energon.WorkerConfig.default_worker_config()
loader = energon.get_loader(
    energon.get_train_dataset(
        "coyo-coco-dataset.yaml",
        batch_size=4,
        shuffle_buffer_size=100,
        max_samples_per_sequence=100,
        worker_config=worker_config,
    )
)
keys = [key for _, batch in zip(range(70), loader) for key in batch.__key__]
share = sum(key.startswith("coco") for key in keys) / len(keys)
assert 0.6 < share < 0.82, share

validation = energon.get_loader(
    energon.get_val_dataset("coyo-coco-dataset.yaml", batch_size=4, worker_config=worker_config)
)
keys = [key for batch in validation for key in batch.__key__]
assert len(keys) == len(set(keys)) == 20
assert all(key.startswith("coco") for key in keys)
