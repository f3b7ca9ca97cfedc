"""Train on the first 80 percent of a split part, validate on the rest; and ranges by number, to the end."""

from pathlib import Path

import energon_grain_torch as energon

Path("percent.yaml").write_text("""
__module__: megatron.energon
__class__: MetadatasetV2
splits:
  train:
    path: ./coyo
    subset: {range: [0%, 80%]}
  val:
    path: ./coyo
    split_part: train
    subset: {range: [80%, 100%]}
""")
Path("number.yaml").write_text("""
__module__: megatron.energon
__class__: MetadatasetV2
splits:
  val:
    path: ./coyo
    split_part: train
    subset: {range: [14, end]}
""")

worker_config = energon.WorkerConfig.default_worker_config(num_workers=2)


def keys_of(path, split_part):
    dataset = energon.get_val_dataset(path, split_part=split_part, batch_size=4, worker_config=worker_config)
    return [key for batch in energon.get_loader(dataset) for key in batch.__key__]


train, rest = keys_of("percent.yaml", "train"), keys_of("percent.yaml", "val")
everything = keys_of("coyo", "train")
assert (len(train), len(rest)) == (16, 4)
assert set(train) | set(rest) == set(everything)
assert sorted(keys_of("number.yaml", "val")) == sorted(everything)[14:]

training = energon.get_loader(
    energon.get_train_dataset(
        "percent.yaml",
        batch_size=4,
        shuffle_buffer_size=100,
        max_samples_per_sequence=100,
        worker_config=worker_config,
    )
)
assert {key for _, batch in zip(range(20), training) for key in batch.__key__} == set(train)
