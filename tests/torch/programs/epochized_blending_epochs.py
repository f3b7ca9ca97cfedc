"""Blend by repetitions, and iterate epoch by epoch."""

from collections import Counter
from pathlib import Path

import energon_grain_torch as energon

Path("metadataset.yaml").write_text("""
__module__: megatron.energon
__class__: MetadatasetV2
splits:
  train:
    blend_epochized:
      - repetitions: 5
        path: ./coco
      - repetitions: 2
        path: ./coyo
      - repetitions: 1
        path: ./coyo
        split_part: val
""")

loader = energon.get_loader(
    energon.get_train_dataset(
        "metadataset.yaml",
        batch_size=2,
        shuffle_buffer_size=100,
        max_samples_per_sequence=100,
        worker_config=energon.WorkerConfig.default_worker_config(num_workers=2),
        repeat=False,
    )
)
epochs = []
for _ in range(2):
    counts = Counter(key for batch in loader for key in batch.__key__)
    assert sum(counts.values()) == 5 * 40 + 2 * 20 + 10
    by_dataset = {(key.partition("_")[0], times) for key, times in counts.items()}
    assert by_dataset == {("coco", 5), ("coyo", 2), ("coyo", 1)}
    epochs.append(counts)
assert epochs[0] == epochs[1]
