"""Cut a whole blend in half, of which one part is cut by numbers already."""

from pathlib import Path

import energon_grain_torch as energon

Path("nested.yaml").write_text("""
__module__: megatron.energon
__class__: MetadatasetV2
splits:
  train:
    subset: {range: [0%, 50%]}
    blend:
      - weight: 1.0
        path: ./coco
        subset:
          range: [0, 10]
      - weight: 1.0
        path: ./coyo
""")

loader = energon.get_loader(
    energon.get_train_dataset(
        "nested.yaml",
        batch_size=4,
        shuffle_buffer_size=100,
        max_samples_per_sequence=100,
        worker_config=energon.WorkerConfig.default_worker_config(num_workers=0),
    )
)
keys = {key for _, batch in zip(range(40), loader) for key in batch.__key__}
assert sum(key.startswith("coco") for key in keys) == 5
assert sum(key.startswith("coyo") for key in keys) == 10
