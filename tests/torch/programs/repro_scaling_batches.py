"""The same global batches of 8 from four ranks with one worker, and from one rank with four workers."""

import energon_grain_torch as energon


def global_batches(world_size, num_workers, steps=4):
    micro_batches = 8 // (2 * world_size)  # of 2 samples, for one step of training
    loaders = [
        energon.get_loader(
            energon.get_train_dataset(
                "coco",
                batch_size=2,
                shuffle_buffer_size=100,
                max_samples_per_sequence=100,
                worker_config=energon.WorkerConfig(rank=rank, world_size=world_size, num_workers=num_workers),
            )
        )
        for rank in range(world_size)
    ]
    iterators = [iter(loader) for loader in loaders]
    return [
        sorted(key for iterator in iterators for _ in range(micro_batches) for key in next(iterator).__key__)
        for _ in range(steps)
    ]


assert global_batches(world_size=4, num_workers=1) == global_batches(world_size=1, num_workers=4)
