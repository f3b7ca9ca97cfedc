"""webdataset in torchdata's `StatefulDataLoader`, which saves the state that an iterable dataset returns.

https://github.com/webdataset/webdataset#readme (pipelines, `RandomMix`) and
https://github.com/meta-pytorch/data/blob/v0.11.0/torchdata/stateful_dataloader/README.md,
"Saving Custom State". Without
such a state StatefulDataLoader replays by itself, and loses samples after a second restart (`../PEERS.md`).
"""

from __future__ import annotations

import os
import pickle
import random
from collections.abc import Iterator
from itertools import islice
from typing import Any

import torch
import webdataset as wds
from torchdata.stateful_dataloader import StatefulDataLoader

from benchmarks.truth.adapter import Adapter, Run, Sample


class _Epoch(torch.utils.data.IterableDataset[dict[str, Any]]):
    """The pipeline of one epoch. Its state is the number of samples; it is seeded, so that a replay gives the same."""

    def __init__(self, run: Run) -> None:
        self.run, self.epoch, self.taken, self.restored = run, 0, 0, False

    def state_dict(self) -> dict[str, int]:
        return {"taken": self.taken}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.taken, self.restored = state["taken"], True

    def __iter__(self) -> Iterator[dict[str, Any]]:
        self.taken = self.taken if self.restored else 0
        self.restored = False
        for sample in islice(self._pipeline(), self.taken, None):
            self.taken += 1
            yield sample

    def _pipeline(self) -> Iterator[dict[str, Any]]:
        run, worker = self.run, torch.utils.data.get_worker_info()
        seed = f"{run.seed}/{self.epoch}/{run.host}/{worker.id if worker else 0}"
        random.seed(seed)  # RandomMix draws from the global generator
        sources = list[Any]()
        for index, dataset in enumerate(run.datasets):
            tars = sorted(str(tar) for tar in (run.folder / dataset.name).glob("*.tar"))
            source = wds.WebDataset(
                tars,
                shardshuffle=100,
                detshuffle=True,
                seed=run.seed + 1000 * self.epoch + index,
                nodesplitter=wds.split_by_node,
            ).shuffle(1000, rng=random.Random(f"{seed}/{index}"))
            sources.append(source if run.passes else source.repeat())
        return iter(sources[0] if len(sources) == 1 else wds.RandomMix(sources, list(run.weights)))


class Loader(Adapter):
    """Tars, shuffled by shards and in a buffer."""

    name = "webdataset in StatefulDataLoader"
    page = "https://github.com/meta-pytorch/data/blob/v0.11.0/torchdata/stateful_dataloader/README.md"
    package = "webdataset"
    settings = (
        "WebDataset(shardshuffle=100, detshuffle=True, seed, nodesplitter=split_by_node).shuffle(1000) with seeded "
        "generators; RandomMix(probs), repeat(), with a seeded `random`; the dataset counts samples as its state"
    )
    claims = frozenset({"resume", "mixture", "repeatable", "shuffle"})
    forkable = True

    def open(self, run: Run) -> None:
        self.run, self.iterator = run, None
        os.environ.update(RANK=str(run.host), WORLD_SIZE=str(run.hosts))
        self.dataset = _Epoch(run)
        self.loader = StatefulDataLoader(self.dataset, batch_size=run.batch, num_workers=run.workers, collate_fn=list)

    def next(self) -> list[Sample]:
        if self.iterator is None:
            self.iterator = iter(self.loader)
        try:
            return [Sample.of(row["txt"]) for row in next(self.iterator)]
        except StopIteration:
            if self.run.passes and self.dataset.epoch + 1 >= self.run.passes:
                raise
            self.dataset.epoch, self.iterator = self.dataset.epoch + 1, None
            return self.next()

    def save(self) -> bytes:
        return pickle.dumps((self.dataset.epoch, self.loader.state_dict()))

    def restore(self, states: list[bytes]) -> None:
        self.dataset.epoch, state = pickle.loads(states[self.run.host])
        self.loader.load_state_dict(state)

    def close(self) -> None:
        self.iterator = self.loader = None
