"""Save by the keyword that Energon's pages use, `dst_rank`, without a process group."""

import json

import energon_grain_torch as energon


def my_loader():
    return energon.get_savable_loader(
        energon.get_train_dataset(
            "coco",
            batch_size=4,
            shuffle_buffer_size=100,
            max_samples_per_sequence=100,
            worker_config=energon.WorkerConfig.default_worker_config(num_workers=2),
        )
    )


loader = my_loader()
for _ in zip(range(10), loader):
    pass
state = json.loads(json.dumps(loader.save_state_global(dst_rank=0)))
expected = next(iter(loader)).__key__

loader = my_loader()
loader.restore_state_global(state, src_rank=None)
assert next(iter(loader)).__key__ == expected
