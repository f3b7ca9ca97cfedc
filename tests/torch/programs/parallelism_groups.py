"""Eight ranks: two data-parallel ranks, each with two tensor-parallel replicas and two pipeline stages.

Only the first pipeline stage loads data. Replicas get equal batches, so the first of them saves for both.
"""

from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing

import energon_grain_torch as energon

DATA_RANK = [0, 0, None, None, 1, 1, None, None]
PIPELINE_RANK = [0, 0, 1, 1, 0, 0, 1, 1]
TENSOR_RANK = [0, 1, 0, 1, 0, 1, 0, 1]


def make_loader(worker_config):
    return energon.get_savable_loader(
        energon.get_train_dataset(
            "coco",
            batch_size=4,
            shuffle_buffer_size=100,
            max_samples_per_sequence=100,
            worker_config=worker_config,
        )
    )


def main(rank):
    dist.init_process_group("gloo", init_method="file://" + RENDEZVOUS, rank=rank, world_size=8)
    groups = [dist.new_group([0, 4]), dist.new_group([1, 5])]  # every rank makes every group
    if DATA_RANK[rank] is not None:
        assert PIPELINE_RANK[rank] == 0
        train(rank, groups[TENSOR_RANK[rank]])
    dist.barrier()
    dist.destroy_process_group()


def train(rank, data_parallel_group):
    data_rank = DATA_RANK[rank]
    worker_config = energon.WorkerConfig(
        rank=data_rank,
        world_size=dist.get_world_size(data_parallel_group),
        num_workers=1,
        data_parallel_group=data_parallel_group,
    )
    loader = make_loader(worker_config)
    for _ in zip(range(3), loader):
        pass  # forward, backward
    if TENSOR_RANK[rank] == 0:
        torch.save(loader.save_state_rank(), f"loader_rank{data_rank}.pt")
    # The other way: one file of the whole group, gathered on a rank of it.
    state = loader.save_state_global([0, 1][TENSOR_RANK[rank]])
    if rank == 0:
        torch.save(state, "loader.pt")
    expected = [batch.__key__ for _, batch in zip(range(3), loader)]
    torch.save(expected, f"keys{rank}.pt")
    dist.barrier(data_parallel_group)
    wait_for(f"keys{rank ^ 1}.pt", "loader.pt", f"loader_rank{data_rank}.pt")
    assert torch.load(f"keys{rank ^ 1}.pt") == expected  # the replica

    loader = make_loader(worker_config)
    loader.restore_state_rank(torch.load(f"loader_rank{data_rank}.pt", weights_only=False))
    assert [batch.__key__ for _, batch in zip(range(3), loader)] == expected

    loader = make_loader(worker_config)
    loader.restore_state_global(torch.load("loader.pt", weights_only=False))
    assert [batch.__key__ for _, batch in zip(range(3), loader)] == expected


def wait_for(*files):
    import time

    while not all(Path(file).exists() for file in files):
        time.sleep(0.01)
    time.sleep(0.2)


if __name__ == "__main__":
    RENDEZVOUS = str(Path("rendezvous").absolute())
    torch.multiprocessing.start_processes(main, nprocs=8, start_method="fork")
