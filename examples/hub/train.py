"""Train a text classifier on the Hub: `python train.py hf://datasets/OWNER/NAME/train.jsonl CHECKPOINT [STEPS]`.

Each line (or row) has a `text` and a `label`. After an interruption, start the program again to resume.
"""

import sys
from pathlib import Path

import torch

from energon_grain_torch import (
    Cooker,
    DefaultTaskEncoder,
    WorkerConfig,
    get_savable_loader,
    get_train_dataset,
    stateless,
)


@stateless
def cook(sample):
    row = sample.get("json") or sample
    letters = torch.bincount(torch.tensor(list(row["text"].encode())), minlength=256).float()
    return {"letters": letters / letters.sum(), "label": torch.tensor(int(row["label"]))}


class Encoder(DefaultTaskEncoder):
    """Makes a sample from each line."""

    cookers = (Cooker(cook),)


def train(url: str, checkpoint: Path, steps: int = 100) -> float:
    workers = WorkerConfig.default_worker_config(num_workers=0)
    shuffle = {"shuffle_buffer_size": 1000, "max_samples_per_sequence": 100}
    loader = get_savable_loader(
        get_train_dataset(url, worker_config=workers, batch_size=32, task_encoder=Encoder(), **shuffle)
    )
    model = torch.nn.Linear(256, 2)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    done = 0
    if checkpoint.exists():
        saved = torch.load(checkpoint)
        done = saved["step"]
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        loader.restore_state_rank(saved["loader"])
    loss = torch.zeros(())
    for step, batch in zip(range(done + 1, steps + 1), loader, strict=False):
        loss = torch.nn.functional.cross_entropy(model(batch["letters"]), batch["label"])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            states = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save({"step": step, "loader": loader.save_state_rank(), **states}, checkpoint)
            print(f"step {step}: loss {loss:.3f}", flush=True)
    return loss.item()


if __name__ == "__main__":
    train(sys.argv[1], Path(sys.argv[2]), *map(int, sys.argv[3:]))
