"""A loop of one's own with accelerate: the loader registered for checkpoints.

    accelerate launch train_accelerate.py DATASET --checkpoints DIR --notes NOTES [--die-at STEP]

The loader knows its rank, so `accelerator.prepare` gets model and optimizer alone: it would deal out to the ranks what
is dealt out already. `skip_first_batches` is not needed either.
"""

from __future__ import annotations

import shutil

import torch
from accelerate import Accelerator
from notes import Notes, parse_options
from task import new_classifier, train_dataset

from energon_grain_torch import get_savable_loader


def main() -> None:
    options = parse_options()
    accelerator = Accelerator(cpu=True)
    dataset = train_dataset(options.data, options.global_batch)
    model = new_classifier(dataset)
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    loader = get_savable_loader(dataset)
    accelerator.register_for_checkpointing(loader)

    step = 0
    saved = sorted(options.checkpoints.glob("step*"), key=lambda path: int(path.name[4:]))
    if saved:
        accelerator.load_state(str(saved[-1]))
        step = int(saved[-1].name[4:])
    notes = Notes(options)
    while step < options.steps:
        for batch in loader:
            notes.add(step, batch)
            moved = {name: value.to(accelerator.device, non_blocking=True) for name, value in batch.items()}
            accelerator.backward(model(**moved)["loss"])
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            if step % 3 == 0:
                unfinished = options.checkpoints / "unfinished"
                accelerator.save_state(str(unfinished))
                accelerator.wait_for_everyone()
                if accelerator.is_main_process:
                    shutil.move(unfinished, options.checkpoints / f"step{step}")
                accelerator.wait_for_everyone()
            if step == options.steps:
                break
    accelerator.end_training()


if __name__ == "__main__":
    main()
