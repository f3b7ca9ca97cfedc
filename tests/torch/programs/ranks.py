"""Ranks of torch.distributed: each saves its own, one saves for all, and replicas of a data-parallel rank.

Of eight ranks there are two data-parallel ones, each with two tensor-parallel replicas and two pipeline stages. Only
the first stage loads data. Replicas get equal batches, so the first of them saves for both.
"""

import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing
from _usual import keys, take, train

import energon_grain_torch as energon

DATA_RANK = [0, 0, None, None, 1, 1, None, None]
TENSOR_RANK = [0, 1, 0, 1, 0, 1, 0, 1]


def load(name):
    return torch.load(name, weights_only=False)


def next_keys(loader):
    return [keys([batch]) for batch in take(loader, 3)]


def run(ranks, function):
    rendezvous = str(Path(f"rendezvous{ranks}").absolute())
    torch.multiprocessing.start_processes(on_rank, (ranks, rendezvous, function), nprocs=ranks, start_method="fork")


def on_rank(rank, ranks, rendezvous, function):
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=ranks)
    function(rank)
    dist.barrier()
    dist.destroy_process_group()


def two_ranks(rank):
    config = energon.WorkerConfig.default_worker_config(num_workers=1)
    assert (config.rank, config.world_size) == (rank, 2)
    loader = train("coco", 4, worker_config=config)
    next_keys(loader)
    torch.save(loader.save_state_rank(), f"own{rank}.pth")
    state = loader.save_state_global(0)
    assert (state is None) == (rank != 0)
    if rank == 0:
        torch.save(state, "all.pth")
    expected = next_keys(loader)
    dist.barrier()
    for restore in (
        lambda loader: loader.restore_state_rank(load(f"own{rank}.pth")),
        lambda loader: loader.restore_state_global(state, src_rank=0),
        lambda loader: loader.restore_state_global(load("all.pth"), src_rank=None),
    ):
        loader = train("coco", 4, worker_config=config)
        restore(loader)
        assert next_keys(loader) == expected


def eight_ranks(rank):
    groups = [dist.new_group([0, 4]), dist.new_group([1, 5])]  # every rank makes every group
    if DATA_RANK[rank] is not None:
        in_group(rank, groups[TENSOR_RANK[rank]])


def in_group(rank, group):
    data_rank = DATA_RANK[rank]
    config = energon.WorkerConfig(
        rank=data_rank, world_size=dist.get_world_size(group), num_workers=1, data_parallel_group=group
    )
    loader = train("coco", 4, worker_config=config)
    next_keys(loader)
    if TENSOR_RANK[rank] == 0:
        torch.save(loader.save_state_rank(), f"loader_rank{data_rank}.pt")
    # The other way: one file of the whole group, gathered on a rank of it.
    state = loader.save_state_global([0, 1][TENSOR_RANK[rank]])
    if rank == 0:
        torch.save(state, "loader.pt")
    expected = next_keys(loader)
    torch.save(expected, f"keys{rank}.pt")
    dist.barrier(group)
    while not all(Path(file).exists() for file in (f"keys{rank ^ 1}.pt", "loader.pt", f"loader_rank{data_rank}.pt")):
        time.sleep(0.01)
    time.sleep(0.2)
    assert load(f"keys{rank ^ 1}.pt") == expected  # the replica
    loader = train("coco", 4, worker_config=config)
    loader.restore_state_rank(load(f"loader_rank{data_rank}.pt"))
    assert next_keys(loader) == expected
    loader = train("coco", 4, worker_config=config)
    loader.restore_state_global(load("loader.pt"))
    assert next_keys(loader) == expected


if __name__ == "__main__":
    run(2, two_ranks)
    run(8, eight_ranks)
