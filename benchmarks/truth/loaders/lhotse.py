"""Lhotse: https://lhotse.readthedocs.io/en/v1.33/datasets.html, section "Restoring sampler's state"."""

from __future__ import annotations

import pickle
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from lhotse import CutSet
from lhotse.cut import MonoCut
from lhotse.dataset import DynamicCutSampler

from benchmarks.truth.adapter import Adapter, Dataset, Run, Sample
from benchmarks.truth.tars import members


class _Cuts(torch.utils.data.Dataset[list[Sample]]):
    """A task dataset: it maps a mini-batch of cuts to a batch."""

    def __getitem__(self, cuts: CutSet) -> list[Sample]:
        return [Sample.of(cut.id) for cut in cuts]


class Loader(Adapter):
    """Cuts without audio: the identifier of a cut is the text of its sample, its duration the number of tokens."""

    name = "Lhotse"
    page = "https://lhotse.readthedocs.io/en/v1.33/datasets.html"
    package = "lhotse"
    settings = (
        "DynamicCutSampler(max_cuts=batch, shuffle=True) over cuts in memory; DataLoader(num_workers=0), because with "
        "workers the page says that the state is ahead of the batches; mixtures: CutSet.mux(weights) of repeat()ed sets"
    )
    claims = frozenset({"resume", "mixture", "repeatable", "shuffle"})
    forkable = True

    def prepare(self, folder: Path, datasets: Sequence[Dataset]) -> None:
        for dataset in datasets:
            tars = sorted((folder / dataset.name).glob("*.tar"))
            cuts = [
                MonoCut(text.decode(), start=0, duration=Sample.of(text).tokens, channel=0)
                for tar in tars
                for text in members(tar)
            ]
            CutSet.from_cuts(cuts).to_file(str(folder / dataset.name / "cuts.jsonl"))

    def open(self, run: Run) -> None:
        self.run = run
        sets = [CutSet.from_file(str(run.folder / dataset.name / "cuts.jsonl")).to_eager() for dataset in run.datasets]
        mixed = len(sets) > 1
        if mixed:
            sets = [
                cuts.shuffle(random.Random(run.seed + index)).repeat(preserve_id=True)
                for index, cuts in enumerate(sets)
            ]
            sets = [CutSet.mux(*sets, weights=list(run.weights), seed=run.seed)]
        self.sampler = DynamicCutSampler(
            sets[0], max_cuts=run.batch, shuffle=not mixed, seed=run.seed, world_size=run.hosts, rank=run.host
        )
        self.iterator: Any = None

    def next(self) -> list[Sample]:
        if self.iterator is None:
            self.iterator = iter(torch.utils.data.DataLoader(_Cuts(), sampler=self.sampler, batch_size=None))
        try:
            return next(self.iterator)
        except StopIteration:
            if self.run.passes and self.sampler.epoch + 1 >= self.run.passes:
                raise
            self.sampler.set_epoch(self.sampler.epoch + 1)
            self.iterator = None
            return self.next()

    def save(self) -> bytes:
        return pickle.dumps(self.sampler.state_dict())

    def restore(self, states: list[bytes]) -> None:
        self.sampler.load_state_dict(pickle.loads(states[self.run.host]))

    def close(self) -> None:
        self.iterator = self.sampler = None
