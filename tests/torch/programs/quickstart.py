"""Load single samples and batches, blend two datasets, say by hand which rank this is, save and go on."""

import torch
from _usual import keys, metadataset, take, train, validation

import energon_grain_torch as energon

BLEND = """
  train:
    blend:
      - {weight: 5, path: ./coco}
      - {weight: 2, path: ./coyo}
  val:
    path: ./coco
"""

for batch in take(train("coco", 1, worker_config=energon.WorkerConfig.default_worker_config()), 5):
    assert batch.image.shape[:2] == (1, 3)
(sample,) = take(train("coco", None), 1)
assert isinstance(sample, energon.CaptioningSample)
assert isinstance(sample.__key__, str)
assert (sample.image.shape, sample.image.dtype) == ((3, 32, 48), torch.float32)
assert 0 <= sample.image.min() <= sample.image.max() <= 1
assert sample.caption.startswith("Something ")
(batch,) = take(train("coco", 2), 1)
assert isinstance(batch.image, torch.Tensor)
assert batch.image.shape == (2, 3, 32, 48)
assert len(batch.__key__) == len(batch.caption) == 2

path = metadataset(BLEND)
found = keys(take(train(path, 4), 70))
assert 0.6 < sum(key.startswith("coco") for key in found) / len(found) < 0.82
found = keys(validation(path, 4, num_workers=2))
assert len(found) == len(set(found)) == 20
assert all(key.startswith("coco") for key in found)

# 40 samples: five batches of each of two ranks are one pass.
ranks = [energon.WorkerConfig(rank=rank, world_size=2, num_workers=2) for rank in range(2)]
one, other = (set(keys(take(train("coco", 4, worker_config=config), 5))) for config in ranks)
assert one
assert one.isdisjoint(other)

loader = train(path, 4)
assert all(len(batch.caption) == 4 for batch in take(loader, 10))
torch.save(loader.save_state_rank(), "loader.pt")
expected = keys(take(loader, 5))
loader = train(path, 4)
loader.restore_state_rank(torch.load("loader.pt", weights_only=False))
assert keys(take(loader, 5)) == expected


def global_batches(world_size, num_workers):
    """Of 8 samples, in micro-batches of 2."""
    configs = [
        energon.WorkerConfig(rank=rank, world_size=world_size, num_workers=num_workers) for rank in range(world_size)
    ]
    loaders = [iter(train("coco", 2, worker_config=config)) for config in configs]
    return [sorted(sum((keys(take(each, 4 // world_size)) for each in loaders), [])) for _ in range(4)]


assert global_batches(world_size=4, num_workers=1) == global_batches(world_size=1, num_workers=4)
