"""LanceDB's `StreamingDataset`: https://docs.lancedb.com/training/distributed-training."""

from __future__ import annotations

import json
import multiprocessing
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lancedb
import pyarrow as pa
from lancedb.streaming import StreamingDataLoader, StreamingDataset

from benchmarks.truth.adapter import Adapter, Dataset, Run, Sample
from benchmarks.truth.tars import members


class Loader(Adapter):
    """One table; `StreamingDataset` has no mixture."""

    name = "LanceDB StreamingDataset"
    page = "https://docs.lancedb.com/training/distributed-training"
    package = "lancedb"
    settings = (
        "num_splits = global batch: each step takes one row of each split; a step of a host with workers is one "
        "batch of each worker, of equal sizes: state_dict() needs a step that all splits have taken; the number of "
        "workers is rounded down to a divisor of the batch; shuffle=True; forkserver, preloaded; one loader per epoch"
    )
    claims = frozenset({"resume", "elastic_hosts", "elastic_workers", "repeatable", "repeatable_workers", "shuffle"})

    def prepare(self, folder: Path, datasets: Sequence[Dataset]) -> None:
        database = lancedb.connect(str(folder / "lance"))
        for dataset in datasets:
            tars = sorted((folder / dataset.name).glob("*.tar"))
            database.create_table(dataset.name, pa.table({"text": [text for tar in tars for text in members(tar)]}))

    def open(self, run: Run) -> None:
        multiprocessing.set_forkserver_preload(["benchmarks.truth.loaders.lance"])  # else each worker imports it
        self.run, self.epoch, self.state, self.loader = run, 0, None, None
        self.table = lancedb.connect(str(run.folder / "lance")).open_table(run.datasets[0].name)

    def _start(self) -> None:
        """Make the loader of an epoch."""
        run = self.run
        workers = next(number for number in range(run.workers or 1, 0, -1) if run.batch % number == 0)
        self.batches = workers if run.workers else 1
        self.dataset = StreamingDataset(
            self.table,
            num_splits=run.batch * run.hosts,
            shuffle=True,
            shuffle_seed=run.seed,
            epoch=self.epoch,
            rank=run.host,
            world_size=run.hosts,
        )
        if self.state:
            self.dataset.load_state_dict(self.state)
        self.loader = StreamingDataLoader(
            self.dataset,
            batch_size=run.batch // self.batches,
            num_workers=workers if run.workers else 0,
            collate_fn=_texts,
            multiprocessing_context="forkserver" if run.workers else None,
        )
        self.iterator = iter(self.loader)

    def next(self) -> list[Sample]:
        if self.loader is None:
            self._start()
        try:
            return [Sample.of(text) for _ in range(self.batches) for text in next(self.iterator)]
        except StopIteration:
            if self.run.passes and self.epoch + 1 >= self.run.passes:
                raise
            self.epoch, self.state, self.loader = self.epoch + 1, None, None
            return self.next()

    def save(self) -> bytes:
        return json.dumps([self.epoch, self.dataset.state_dict()]).encode()

    def restore(self, states: list[bytes]) -> None:
        saved: list[Any] = [json.loads(state) for state in states]
        self.epoch, self.state = saved[0][0], StreamingDataset.merge_state_dicts([state for _, state in saved])

    def close(self) -> None:
        self.iterator = self.loader = self.dataset = None


def _texts(rows: list[dict[str, bytes]]) -> list[bytes]:
    return [row["text"] for row in rows]
