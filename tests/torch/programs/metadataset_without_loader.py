"""Look at a metadataset's first batch without a loader and without a worker configuration."""

from pathlib import Path

import energon_grain_torch as energon

Path("demo-metadataset.yaml").write_text("""
__module__: megatron.energon
__class__: MetadatasetV2
splits:
  train:
    blend:
      - {weight: 5, path: ./coco}
      - {weight: 2, path: ./coyo}
""")

dataset = energon.get_train_dataset(
    "demo-metadataset.yaml", batch_size=4, shuffle_buffer_size=100, max_samples_per_sequence=100
)
for batch in dataset:
    assert batch.image.shape == (4, 3, 32, 48)
    break
