"""Join two datasets that share keys: the captions of one, the images of the other."""

from pathlib import Path

import energon_grain_torch as energon

Path("metadataset.yaml").write_text("""
__module__: megatron.energon
__class__: MetadatasetV2
splits:
  train:
    join:
      - path: ds1
      - path: ds2
    joiner:
      __module__: megatron.energon
      __class__: CaptioningSample
""")
energon.prepare_metadataset(Path("metadataset.yaml"))

loader = energon.get_loader(
    energon.get_train_dataset(
        "metadataset.yaml",
        batch_size=2,
        shuffle_buffer_size=100,
        max_samples_per_sequence=100,
        worker_config=energon.WorkerConfig.default_worker_config(num_workers=2),
    )
)
for _, batch in zip(range(4), loader):
    for image, caption in zip(batch.image, batch.caption):
        assert caption == f"about {round(image.mean().item() * 255)}"
