"""Train the digit classifier from tars with PyTorch, on any number of ranks, with checkpoints of model and loader.

    torchrun --nproc-per-node 2 train_torch.py DATASET --notes NOTES --checkpoints DIR [--save-at STEP] [--die-at STEP]

Training starts from the checkpoint in DIR, if one exists. Any number of ranks may have saved it. `--notes` records the
contents of every batch of a rank for the comparisons of the demo.
"""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import torch
import torch.distributed as dist
from bookkeeping import TrainingProgress, parse_options
from classifier_torch import Classifier
from digits import sample_digests, train_dataset, vary
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from energon_grain_torch import (
    DefaultTaskEncoder,
    ImageClassificationSample,
    SampleDecoder,
    WorkerConfig,
    get_savable_loader,
    get_val_dataset,
)


class TensorDigitEncoder(DefaultTaskEncoder):
    """Grey images in 0..1 as (8, 8) float32 tensors and labels as int32. Training images are augmented."""

    decoder = SampleDecoder(image_decode="torchl")

    def __init__(self, *, augment: bool) -> None:
        super().__init__()
        self.augment = augment

    def encode_sample(self, sample: ImageClassificationSample) -> ImageClassificationSample:
        """Encode one sample. `self.rng` belongs to the sample, so a replayed sample is augmented in the same way."""
        sample.label = torch.tensor(sample.label, dtype=torch.int32)
        sample.image = sample.image.squeeze(0)
        if self.augment:
            sample.image = torch.from_numpy(vary(sample.image.numpy(), self.rng))
        return sample


@torch.no_grad()
def accuracy(model: nn.Module, path: Path) -> float:
    """Return the share of correct predictions on the held-out split part. This rank reads all of it."""
    alone = WorkerConfig(rank=0, world_size=1)
    right = total = 0
    for batch in get_val_dataset(
        path, worker_config=alone, batch_size=64, task_encoder=TensorDigitEncoder(augment=False)
    ):
        right += int((model(batch.image).argmax(dim=1) == batch.label).sum())
        total += len(batch.label)
    return right / total


def main() -> None:
    """Train, record every batch, save a checkpoint, and kill rank 0 at `--die-at`."""
    args = parse_options(__doc__)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(Classifier())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.06, momentum=0.9)
    loader = get_savable_loader(
        train_dataset(args.dataset, TensorDigitEncoder(augment=True), WorkerConfig.default_worker_config(num_workers=1))
    )
    checkpoint = args.checkpoints / "checkpoint.pt"
    first_step = 0
    if checkpoint.exists():
        saved = torch.load(checkpoint)
        first_step = saved["step"]
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        loader.restore_state_global(saved["loader"])

    progress = TrainingProgress(first_step, args.steps, disable=rank > 0)
    with progress, args.notes.open("w") as notes:
        for step in range(first_step + 1, args.steps + 1):
            batch = next(loader)
            optimizer.param_groups[0]["lr"] = 0.06 * (1 - step / args.steps)
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(batch.image), batch.label.long())
            loss.backward()
            optimizer.step()
            print(json.dumps({"step": step, "batch": list(sample_digests(batch))}), file=notes, flush=True)
            progress.show(step, loss.detach())
            if step == args.save_at:
                state = loader.save_state_global()  # the state of all ranks, returned on rank 0
                if rank == 0:
                    args.checkpoints.mkdir(parents=True)
                    states = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "loader": state}
                    torch.save({"step": step, **states}, checkpoint)
            if step == args.die_at:
                dist.barrier()  # the demo compares the notes of all ranks up to this step
                if rank == 0:
                    progress.stop()
                    os.kill(os.getpid(), signal.SIGKILL)
        if rank == 0:
            print(json.dumps({"accuracy": accuracy(model.module, args.dataset)}), file=notes)
    loader.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
