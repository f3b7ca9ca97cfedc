"""A loop in the manner of torchtitan: loader, model and step in one distributed checkpoint, and a resumed run."""

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.stateful import Stateful

import energon_grain_torch as energon


class TrainState(Stateful):
    step = 0

    def state_dict(self):
        return {"step": torch.tensor(self.step)}

    def load_state_dict(self, state_dict):
        self.step = int(state_dict["step"])


class Trainer:
    def __init__(self, num_workers, batch_size=4):
        torch.manual_seed(0)
        dataset = energon.get_train_dataset(
            "coco",
            batch_size=batch_size,
            shuffle_buffer_size=100,
            max_samples_per_sequence=100,
            worker_config=energon.WorkerConfig.default_worker_config(num_workers=num_workers),
        )
        self.loader = energon.get_savable_loader(dataset)
        self.model = torch.nn.Linear(3, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.train_state = TrainState()
        self.losses = []

    def states(self):
        return {"model": self.model.state_dict(), "dataloader": self.loader, "train_state": self.train_state}

    def load(self, folder):
        states = self.states()
        dcp.load(states, checkpoint_id=folder)
        self.model.load_state_dict(states["model"])

    def train(self, steps):
        batches = iter(self.loader)
        while self.train_state.step < steps:
            batch = next(batches)
            guess = self.model(batch.image.mean(dim=(2, 3)))
            loss = torch.nn.functional.mse_loss(guess, batch.image.mean(dim=(1, 2, 3))[:, None])
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.losses.append(loss.item())
            self.train_state.step += 1


whole = Trainer(num_workers=0)
whole.train(12)

first = Trainer(num_workers=2)
assert isinstance(first.loader, Stateful)
first.train(7)
dcp.save(first.states(), checkpoint_id="checkpoint")

second = Trainer(num_workers=1)
second.load("checkpoint")
assert second.train_state.step == 7
second.train(12)
assert first.losses + second.losses == whole.losses
