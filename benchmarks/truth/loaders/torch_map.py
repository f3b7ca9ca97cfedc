"""torchdata's `StatefulDataLoader` over a map-style dataset.

https://github.com/meta-pytorch/data/blob/v0.11.0/torchdata/stateful_dataloader/README.md
"""

from __future__ import annotations

import pickle
from typing import Any

import torch
from torch.utils.data import Dataset as TorchDataset
from torchdata.stateful_dataloader import StatefulDataLoader
from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler

from benchmarks.truth.adapter import Adapter, Run, Sample
from benchmarks.truth.tars import members


class _Texts(TorchDataset[Sample]):
    """All samples in memory. Its generator is worker state, saved as the README shows ("Saving Custom State")."""

    def __init__(self, texts: list[bytes], seed: int) -> None:
        self.texts, self.seed = texts, seed
        self.generator: torch.Generator | None = None
        self.state: torch.Tensor | None = None

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, index: int) -> Sample:
        if self.generator is None:
            worker = torch.utils.data.get_worker_info()
            self.generator = torch.Generator().manual_seed(self.seed + (worker.id if worker else 0))
            if self.state is not None:
                self.generator.set_state(self.state)
        return Sample.of(self.texts[index], float(torch.rand((), generator=self.generator)))

    def state_dict(self) -> dict[str, Any]:
        return {"generator": self.generator.get_state() if self.generator else self.state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.state, self.generator = state["generator"], None


class Loader(Adapter):
    """`StatefulDistributedSampler`, whose state restores in constant time."""

    name = "torchdata StatefulDataLoader (map-style)"
    page = "https://github.com/meta-pytorch/data/blob/v0.11.0/torchdata/stateful_dataloader/README.md"
    package = "torchdata"
    settings = (
        "samples in memory; StatefulDistributedSampler(shuffle=True, drop_last=False), set_epoch in each epoch; "
        "snapshot_every_n_steps=1; the generator of the augmentation is saved with the dataset"
    )
    claims = frozenset({"resume", "repeatable", "random", "shuffle"})
    forkable = True

    def open(self, run: Run) -> None:
        self.run, self.epoch = run, 0
        folder = run.folder / run.datasets[0].name
        texts = [text for tar in sorted(folder.glob("*.tar")) for text in members(tar)]
        self.sampler = StatefulDistributedSampler(
            texts, num_replicas=run.hosts, rank=run.host, shuffle=True, seed=run.seed, drop_last=False
        )
        self.loader = StatefulDataLoader(
            _Texts(texts, run.seed * 1000 + run.host * 100),
            batch_size=run.batch,
            sampler=self.sampler,
            num_workers=run.workers,
            collate_fn=list,
            multiprocessing_context="fork" if run.workers else None,
        )
        self.iterator: Any = None

    def next(self) -> list[Sample]:
        if self.iterator is None:
            self.sampler.set_epoch(self.epoch)
            self.iterator = iter(self.loader)
        try:
            return next(self.iterator)
        except StopIteration:
            if self.run.passes and self.epoch + 1 >= self.run.passes:
                raise
            self.epoch, self.iterator = self.epoch + 1, None
            return self.next()

    def save(self) -> bytes:
        return pickle.dumps((self.epoch, self.loader.state_dict()))

    def restore(self, states: list[bytes]) -> None:
        self.epoch, state = pickle.loads(states[self.run.host])
        self.loader.load_state_dict(state)

    def close(self) -> None:
        del self.iterator, self.loader
