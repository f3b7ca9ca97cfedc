"""Train an image classifier with PyTorch. Run it again, on any ranks, to resume."""

import os
import sys

import torch
from torch import distributed as dist, nn

import energon_grain_torch as eg

GLOBAL_BATCH, STEPS, SAVE_EVERY, LOG_EVERY = 48, 100, 20, 5


class Images(eg.DefaultTaskEncoder):
    decoder = eg.SampleDecoder(image_decode="torchrgb")  # (3, height, width)

    def encode_sample(self, sample):
        if self.rng.random() < 0.5:  # the same flips on any rank and after a resume
            sample.image = sample.image.flip(2)
        sample.label = torch.tensor(sample.label)
        return sample


def main(data, checkpoint):
    dist.init_process_group()  # gloo for CPUs, NCCL for GPUs
    rank, ranks = dist.get_rank(), dist.get_world_size()
    device = "cpu"
    if torch.cuda.is_available():
        device = f"cuda:{dist.get_node_local_rank()}"
        torch.cuda.set_device(device)
    torch.manual_seed(0)
    layers = nn.Flatten(), nn.Linear(768, 64), nn.ReLU(), nn.Linear(64, 10)
    model = nn.parallel.DistributedDataParallel(nn.Sequential(*layers).to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    train = eg.get_train_dataset(
        data,
        worker_config=eg.WorkerConfig.default_worker_config(num_workers=2),
        batch_size=GLOBAL_BATCH // ranks,
        shuffle_buffer_size=100,
        max_samples_per_sequence=100,
        task_encoder=Images(),
    )
    with eg.get_savable_loader(train) as loader, loader.watch() as watch:
        parts, done = {"model": model, "optimizer": optimizer, "loader": loader}, 0
        if os.path.exists(checkpoint):
            state = torch.load(checkpoint, map_location=device)
            done = state["step"]
            for name, part in parts.items():
                part.load_state_dict(state[name])
        for step, batch in zip(range(done + 1, STEPS + 1), loader):
            batch = batch.to(device)
            loss = nn.functional.cross_entropy(model(batch.image), batch.label)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % LOG_EVERY == 0:
                mean, waited = loss.detach() / ranks, watch.lap().waiting
                dist.all_reduce(mean)
                if rank == 0:
                    print(f"step {step}: loss {mean:.4f}, waited {waited:.0%}")
            if step % SAVE_EVERY == 0:
                state = {name: part.state_dict() for name, part in parts.items()}
                if rank == 0:
                    torch.save(state | {"step": step}, checkpoint + ".new")
                    os.replace(checkpoint + ".new", checkpoint)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
