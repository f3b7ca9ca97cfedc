"""Take the validation part of a dataset into the training blend too."""

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
      - weight: 2
        path: ./coyo
        split_part: train
      - weight: 1
        path: ./coyo
        split_part: val
  val:
    path: ./coco
  test:
    path: ./coyo
    split_part: val
""")


worker_config = energon.WorkerConfig.default_worker_config(num_workers=0)


def parts_of(path, split_part):
    dataset = energon.get_val_dataset(path, split_part=split_part, batch_size=None, worker_config=worker_config)
    return {sample.__key__ for sample in energon.get_loader(dataset)}


train_part, val_part = parts_of("coyo", "train"), parts_of("coyo", "val")
assert parts_of("metadataset.yaml", "test") == val_part

loader = energon.get_loader(
    energon.get_train_dataset(
        "metadataset.yaml",
        batch_size=8,
        shuffle_buffer_size=100,
        max_samples_per_sequence=100,
        worker_config=worker_config,
    )
)
keys = [key for _, batch in zip(range(100), loader) for key in batch.__key__]
shares = [sum(key in part for key in keys) / len(keys) for part in (train_part, val_part)]
assert 0.19 < shares[0] < 0.31, shares
assert 0.08 < shares[1] < 0.17, shares
