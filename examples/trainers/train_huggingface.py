"""Hugging Face's Trainer: our loader in place of its own, and the loader's state in a callback.

    torchrun --nproc-per-node 2 train_huggingface.py DATASET --checkpoints DIR --notes NOTES [--die-at STEP]

Trainer goes on by reading again what it has read (`ignore_data_skip=False`); here the loader is at its place at once,
on any number of ranks. It must not be given to `accelerator.prepare`, which would deal out to the ranks what is dealt
out already.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from notes import Notes, parse_options
from task import new_classifier, train_dataset
from transformers import Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

from energon_grain_torch import get_savable_loader


class EnergonState(TrainerCallback):
    """Keeps the loader's state in each checkpoint, and goes on from it."""

    def __init__(self, loader: Any) -> None:
        self.loader = loader

    def _file(self, args: Any, state: Any) -> Path:
        return Path(args.output_dir, f"checkpoint-{state.global_step}", "energon.json")

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Called on every rank, which `save_state_global` needs; rank 0 writes."""
        saved = self.loader.save_state_global()
        if saved is not None:
            self._file(args, state).write_text(json.dumps(saved))

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step:
            self.loader.restore_state_global(json.loads(self._file(args, state).read_text()))


class EnergonTrainer(Trainer):
    """A Trainer whose `train_dataset` is one of `energon_grain_torch`."""

    def __init__(self, *args: Any, **keywords: Any) -> None:
        super().__init__(*args, **keywords)
        self.loader = get_savable_loader(self.train_dataset)
        self.add_callback(EnergonState(self.loader))

    def get_train_dataloader(self) -> Any:
        return self.loader


def main() -> None:
    options = parse_options()
    arguments = TrainingArguments(
        output_dir=str(options.checkpoints),
        max_steps=options.steps,
        save_steps=3,
        learning_rate=0.1,
        ignore_data_skip=True,  # the loader is where it should be
        accelerator_config={"dispatch_batches": False},
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
    )
    notes = Notes(options)

    class Noting(EnergonTrainer):
        def training_step(self, model: Any, inputs: dict[str, Any], *args: Any) -> Any:
            notes.add(self.state.global_step, inputs)
            return super().training_step(model, inputs, *args)

    dataset = train_dataset(options.data, options.global_batch)
    trainer = Noting(model=new_classifier(dataset), args=arguments, train_dataset=dataset)
    last = get_last_checkpoint(str(options.checkpoints)) if options.checkpoints.exists() else None
    trainer.train(resume_from_checkpoint=last)


if __name__ == "__main__":
    main()
