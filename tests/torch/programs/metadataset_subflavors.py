"""Treat samples by where they come from: subflavors of a metadataset, in the task encoder."""

from pathlib import Path

import energon_grain_torch as energon

Path("metadataset.yaml").write_text("""
__module__: megatron.energon
__class__: MetadatasetV2
splits:
  train:
    blend:
      - weight: 5
        path: ./coco
        subflavors:
          augmentation_type: small_images
          text_length: short
      - weight: 2
        path: ./coyo
        split_part: train
        subflavors:
          augmentation_type: large_images
          text_length: short
      - weight: 1
        path: ./coyo
        split_part: val
        subflavors:
          augmentation_type: large_images
          text_length: short
  val:
    path: ./coco
    subflavors:
      augmentation_type: small_images
      text_length: short
""")


class ByOrigin(energon.DefaultTaskEncoder):
    def encode_sample(self, sample):
        if sample.__subflavors__["augmentation_type"] == "small_images":
            sample.image = sample.image[:, :16, :16]
        return sample


encoder = ByOrigin()
worker_config = energon.WorkerConfig.default_worker_config(num_workers=2)
loader = energon.get_loader(
    energon.get_train_dataset(
        "metadataset.yaml",
        batch_size=None,
        shuffle_buffer_size=100,
        max_samples_per_sequence=100,
        worker_config=worker_config,
        task_encoder=encoder,
    )
)
seen = set()
for _, sample in zip(range(200), loader):
    size = tuple(sample.image.shape[1:])
    assert sample.__subflavors__["text_length"] == "short"
    assert size == ((16, 16) if sample.__key__.startswith("coco") else (32, 48))
    seen.add(size)
assert len(seen) == 2

validation = energon.get_val_dataset(
    "metadataset.yaml", batch_size=4, worker_config=worker_config, task_encoder=encoder
)
for batch in energon.get_loader(validation):
    assert batch.image.shape[2:] == (16, 16)
