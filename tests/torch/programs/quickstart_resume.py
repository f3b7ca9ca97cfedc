"""Save a loader's state with torch.save, and go on with a new loader."""

from pathlib import Path

import torch

import energon_grain_torch as energon

Path("coyo-coco-dataset.yaml").write_text("""
__module__: megatron.energon
__class__: MetadatasetV2
splits:
  train:
    blend:
      - {weight: 5, path: ./coco}
      - {weight: 2, path: ./coyo}
""")


def make_loader():
    dataset = energon.get_train_dataset(
        "coyo-coco-dataset.yaml",
        batch_size=4,
        shuffle_buffer_size=100,
        max_samples_per_sequence=100,
        worker_config=energon.WorkerConfig.default_worker_config(num_workers=2),
    )
    return energon.get_savable_loader(dataset)


loader = make_loader()
for _, batch in zip(range(10), loader):
    assert len(batch.caption) == 4
torch.save(loader.save_state_rank(), "loader.pt")
expected = [batch.__key__ for _, batch in zip(range(5), loader)]

loader = make_loader()
loader.restore_state_rank(torch.load("loader.pt", weights_only=False))
assert [batch.__key__ for _, batch in zip(range(5), loader)] == expected
