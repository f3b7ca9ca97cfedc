"""A loop in the manner of Megatron-LM: data- and tensor-parallel groups, one saved file, another number of ranks.

Within a tensor-parallel group the first rank reads and the others get its batches. Each data-parallel rank brings its
part of the state to the first one, which saves it with the iteration.
"""

from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing

import energon_grain_torch as energon

GLOBAL_BATCH = 12
TENSOR_PARALLEL = 2


def tensor_groups(world):
    return [list(range(first, first + TENSOR_PARALLEL)) for first in range(0, world, TENSOR_PARALLEL)]


def data_groups(world):
    return [list(range(first, world, TENSOR_PARALLEL)) for first in range(TENSOR_PARALLEL)]


def my_group(all_ranks, rank):
    groups = [dist.new_group(ranks) for ranks in all_ranks]  # every rank makes every group
    return next(group for ranks, group in zip(all_ranks, groups) if rank in ranks)


def make_loader(data_group):
    worker_config = energon.WorkerConfig.default_worker_config(num_workers=1, data_parallel_group=data_group)
    dataset = energon.get_train_dataset(
        "coco",
        batch_size=GLOBAL_BATCH // worker_config.world_size,
        shuffle_buffer_size=100,
        max_samples_per_sequence=100,
        worker_config=worker_config,
    )
    return energon.get_savable_loader(dataset)


def broadcast(loader, first_rank, tensor_group):
    """The next batch's keys and images, on all ranks of a tensor-parallel group."""
    parts = [None, None]
    if loader is not None:
        batch = next(loader)
        parts = [batch.__key__, batch.image]
    dist.broadcast_object_list(parts, first_rank, group=tensor_group)
    return parts


def train(rank, world, iterations, rendezvous):
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=world)
    tensor_group = my_group(tensor_groups(world), rank)
    data_group = my_group(data_groups(world), rank)
    first_rank = rank - rank % TENSOR_PARALLEL
    loader = make_loader(data_group) if rank == first_rank else None
    begin = 0
    checkpoint = Path("checkpoint.pt")
    if checkpoint.exists():
        saved = torch.load(checkpoint)
        begin = saved["iteration"]
        if loader is not None:
            loader.restore_state_global(saved["loader"])

    for iteration in range(begin, iterations):
        keys, images = broadcast(loader, first_rank, tensor_group)
        assert images.shape == (GLOBAL_BATCH // dist.get_world_size(data_group), 3, 32, 48)
        everywhere = [None] * world
        dist.all_gather_object(everywhere, keys)
        for ranks in tensor_groups(world):
            assert everywhere[ranks[0]] == everywhere[ranks[1]]
        if rank == 0:
            global_batch = sorted(key for at in data_groups(world)[0] for key in everywhere[at])
            torch.save(global_batch, f"world{world}_iteration{iteration}.pt")

    if loader is not None:
        state = loader.save_state_global(global_dst_rank=0)
        if rank == 0:
            torch.save({"iteration": iterations, "loader": state}, checkpoint)
    dist.barrier()
    dist.destroy_process_group()


def run(world, iterations):
    """Train to an iteration; the global batches of the iterations that were done."""
    rendezvous = Path(f"rendezvous_{world}_{iterations}").absolute()
    arguments = (world, iterations, str(rendezvous))
    torch.multiprocessing.start_processes(train, args=arguments, nprocs=world, start_method="fork")
    files = sorted(Path().glob(f"world{world}_*.pt"))
    return [(file.stem.partition("_")[2], torch.load(file)) for file in files]


if __name__ == "__main__":
    whole = run(2, 6)  # one data-parallel rank
    Path("checkpoint.pt").unlink()
    first = run(4, 3)  # two of them
    second = run(6, 6)  # three
    assert len(whole) == 6
    assert first + second == whole
