"""Train with FSDP and tensor parallelism. Run it again, on any mesh, to resume."""

import os
import sys

import torch
import torch.distributed.checkpoint as dcp
from torch import distributed as dist, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import parallel as tp

import energon_grain_torch as eg

GLOBAL_BATCH, SAVE_EVERY = 48, 5


class Images(eg.DefaultTaskEncoder):
    decoder = eg.SampleDecoder(image_decode="torchrgb")  # (3, height, width)

    def encode_sample(self, sample):
        sample.label = torch.tensor(sample.label)
        return sample


def main(data, checkpoint, tensor_parallel, steps):
    dist.init_process_group()  # gloo for CPUs, NCCL for GPUs
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda":
        torch.cuda.set_device(dist.get_node_local_rank())
    shape = dist.get_world_size() // int(tensor_parallel), int(tensor_parallel)
    mesh = init_device_mesh(device, shape, mesh_dim_names=("dp", "tp"))
    torch.manual_seed(0)
    layers = nn.Flatten(), nn.Linear(768, 64), nn.ReLU(), nn.Linear(64, 10)
    model = nn.Sequential(*layers).to(device)
    plan = {"1": tp.ColwiseParallel(), "3": tp.RowwiseParallel()}
    model = fully_shard(
        tp.parallelize_module(model, mesh["tp"], plan), mesh=mesh["dp"]
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    train = eg.get_train_dataset(
        data,
        worker_config=eg.WorkerConfig.of_mesh(mesh, data="dp", num_workers=2),
        batch_size=GLOBAL_BATCH // shape[0],
        shuffle_buffer_size=100,
        max_samples_per_sequence=100,
        task_encoder=Images(),
    )
    with eg.get_savable_loader(train) as loader:
        saved = {"model": model.state_dict(), "loader": loader, "step": 0}
        if os.path.exists(checkpoint):
            dcp.load(saved, checkpoint_id=checkpoint)
        for step, batch in zip(range(saved["step"] + 1, int(steps) + 1), loader):
            batch = batch.to(device)
            loss = nn.functional.cross_entropy(model(batch.image), batch.label)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            mean = loss.detach() / shape[0]
            dist.all_reduce(mean, group=mesh.get_group("dp"))
            if dist.get_rank() == 0:
                print(f"step {step}: loss {mean:.4f}")
            if step % SAVE_EVERY == 0:
                saved |= {"model": model.state_dict(), "step": step}
                dcp.save(saved, checkpoint_id=checkpoint)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
