"""Train under Lightning, and go on from its checkpoints: in the middle of an epoch, and at its end."""

import logging
import warnings

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

import energon_grain_torch as energon

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
warnings.filterwarnings("ignore", module="lightning")


class Brightness(lightning.LightningModule):
    """Guesses how bright an image is; notes the keys that it saw."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(3, 1)
        self.seen = []
        self.validated = []

    def training_step(self, batch, _):
        self.seen.append(batch.__key__)
        guess = self.layer(batch.image.mean(dim=(2, 3)))
        return torch.nn.functional.mse_loss(guess, batch.image.mean(dim=(1, 2, 3))[:, None])

    def validation_step(self, batch, _):
        self.validated += batch.__key__

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Data(lightning.LightningDataModule):
    """Saves the loader itself: Lightning alone restores loaders in the middle of an epoch, but not at its end."""

    loader = state = None

    def __init__(self, num_workers):
        super().__init__()
        self.worker_config = energon.WorkerConfig.default_worker_config(num_workers=num_workers)

    def state_dict(self):
        return {} if self.loader is None else self.loader.state_dict()

    def load_state_dict(self, state_dict):
        self.state = state_dict

    def train_dataloader(self):
        dataset = energon.get_train_dataset(
            "coco",
            batch_size=4,
            shuffle_buffer_size=100,
            max_samples_per_sequence=100,
            virtual_epoch_length=8,
            worker_config=self.worker_config,
        )
        self.loader = energon.get_savable_loader(dataset)
        if self.state:
            self.loader.load_state_dict(self.state)
        return self.loader

    def val_dataloader(self):
        dataset = energon.get_val_dataset("coco", batch_size=5, worker_config=self.worker_config)
        return energon.get_loader(dataset)


def train(num_workers, checkpoint=None, **options):
    model = Brightness()
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=1,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        max_epochs=3,
        **options,
    )
    trainer.fit(model, Data(num_workers), ckpt_path=checkpoint, weights_only=False)
    return model


save = ModelCheckpoint("checkpoints", filename="{step}", every_n_train_steps=4, save_top_k=-1)
whole = train(0, callbacks=[save])
assert len(whole.seen) == 24
assert len(set(whole.validated)) == 20

for step in (4, 8, 12):  # in the middle of the first pass, at its end, in the middle of the second
    resumed = train(2, f"checkpoints/step={step}.ckpt", enable_checkpointing=False)
    assert resumed.seen == whole.seen[step:]
