"""Say by hand which rank this is, without torch.distributed."""

import energon_grain_torch as energon

keys = []
for rank in range(2):
    worker_config = energon.WorkerConfig(rank=rank, world_size=2, num_workers=2)
    loader = energon.get_loader(
        energon.get_train_dataset(
            "coco",
            batch_size=4,
            shuffle_buffer_size=100,
            max_samples_per_sequence=100,
            worker_config=worker_config,
        )
    )
    # 40 samples: five batches of each rank are one pass.
    keys.append({key for _, batch in zip(range(5), loader) for key in batch.__key__})
assert keys[0]
assert keys[0].isdisjoint(keys[1])
