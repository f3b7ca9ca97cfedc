"""Three ways to save and restore the loaders of two ranks: each its own, by one rank, saved by one and read by all."""

import torch
import torch.distributed as dist
import torch.multiprocessing

import energon_grain_torch as energon

RANKS = 2


def my_loader(worker_config):
    return energon.get_savable_loader(
        energon.get_train_dataset(
            "coco",
            batch_size=4,
            shuffle_buffer_size=100,
            max_samples_per_sequence=100,
            worker_config=worker_config,
        )
    )


def keys_of(loader, steps):
    return [batch.__key__ for _, batch in zip(range(steps), loader)]


def each_rank_its_own(worker_config):
    loader = my_loader(worker_config)
    keys_of(loader, 3)
    torch.save(loader.save_state_rank(), f"loader_rank{worker_config.rank}.pth")
    expected = keys_of(loader, 3)

    loader = my_loader(worker_config)
    loader.restore_state_rank(torch.load(f"loader_rank{worker_config.rank}.pth", weights_only=False))
    assert keys_of(loader, 3) == expected


def on_the_first_rank(worker_config):
    loader = my_loader(worker_config)
    keys_of(loader, 3)
    state = loader.save_state_global(0)
    assert (state is None) == (worker_config.rank != 0)
    if worker_config.rank == 0:
        torch.save(state, "loader.pth")
    expected = keys_of(loader, 3)

    loader = my_loader(worker_config)
    state = torch.load("loader.pth", weights_only=False) if worker_config.rank == 0 else None
    loader.restore_state_global(state, src_rank=0)
    assert keys_of(loader, 3) == expected
    return expected


def saved_by_one_read_by_all(worker_config, expected):
    dist.barrier()
    loader = my_loader(worker_config)
    loader.restore_state_global(torch.load("loader.pth", weights_only=False), src_rank=None)
    assert keys_of(loader, 3) == expected


def main(rank):
    dist.init_process_group("gloo", init_method="file://" + RENDEZVOUS, rank=rank, world_size=RANKS)
    worker_config = energon.WorkerConfig.default_worker_config(num_workers=1)
    assert (worker_config.rank, worker_config.world_size) == (rank, RANKS)
    each_rank_its_own(worker_config)
    expected = on_the_first_rank(worker_config)
    saved_by_one_read_by_all(worker_config, expected)
    dist.destroy_process_group()


if __name__ == "__main__":
    from pathlib import Path

    RENDEZVOUS = str(Path("rendezvous").absolute())
    torch.multiprocessing.start_processes(main, nprocs=RANKS, start_method="fork")
