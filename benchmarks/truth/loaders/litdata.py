"""LitData: https://github.com/Lightning-AI/litData#readme, "Pause, resume data streaming" and "Combine datasets"."""

from __future__ import annotations

import os
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch.distributed
from litdata import CombinedStreamingDataset, StreamingDataLoader, StreamingDataset
from litdata.streaming.writer import BinaryWriter

from benchmarks.truth.adapter import Adapter, Dataset, Run, Sample
from benchmarks.truth.tars import members


class Loader(Adapter):
    """`StreamingDataset`; several datasets are a `CombinedStreamingDataset`, which resumes only on equal hosts."""

    name = "LitData"
    page = "https://github.com/Lightning-AI/litData#readme"
    package = "litdata"
    settings = (
        "one chunk per tar; StreamingDataset(shuffle=True, drop_last=True); CombinedStreamingDataset(weights, "
        "iterate_over_all=False), which the README has for mixing by weights; ranks from torch.distributed (gloo)"
    )
    claims = frozenset({"resume", "elastic_hosts", "elastic_workers", "mixture", "repeatable", "shuffle"})
    forkable = True

    def prepare(self, folder: Path, datasets: Sequence[Dataset]) -> None:
        for dataset in datasets:
            target = folder / dataset.name / "chunks"
            writer = BinaryWriter(str(target), chunk_size=-(-dataset.samples // dataset.shards))
            index = 0
            for tar in sorted((folder / dataset.name).glob("*.tar")):
                for text in members(tar):
                    writer[index] = text.decode()
                    index += 1
            writer.done()
            writer.merge()

    def open(self, run: Run) -> None:
        self.run, self.epoch, self.iterator = run, 0, None
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(run.port))
        torch.distributed.init_process_group("gloo", rank=run.host, world_size=run.hosts)
        datasets = [
            StreamingDataset(
                str(run.folder / dataset.name / "chunks"), shuffle=True, drop_last=True, seed=run.seed + index
            )
            for index, dataset in enumerate(run.datasets)
        ]
        mixed: Any = datasets[0]
        if len(datasets) > 1:
            mixed = CombinedStreamingDataset(datasets, seed=run.seed, weights=run.weights, iterate_over_all=False)
        self.loader = StreamingDataLoader(mixed, batch_size=run.batch, num_workers=run.workers, collate_fn=list)

    def next(self) -> list[Sample]:
        if self.iterator is None:
            self.iterator = iter(self.loader)
        try:
            return [Sample.of(text) for text in next(self.iterator)]
        except StopIteration:
            self.epoch += 1
            if self.run.passes and self.epoch >= self.run.passes:
                raise
            self.iterator = None
            return self.next()

    def save(self) -> bytes:
        return pickle.dumps((self.epoch, self.loader.state_dict()))

    def restore(self, states: list[bytes]) -> None:
        # The state counts what all ranks delivered; that of the first host fits another number of hosts.
        same = len(states) == self.run.hosts
        self.epoch, state = pickle.loads(states[self.run.host if same else 0])
        self.loader.load_state_dict(state)

    def close(self) -> None:
        del self.iterator, self.loader
        torch.distributed.destroy_process_group()
