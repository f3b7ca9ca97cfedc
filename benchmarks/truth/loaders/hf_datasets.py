"""Hugging Face `datasets`, streamed: https://huggingface.co/docs/datasets/stream.

Sections "Save a dataset checkpoint and resume iteration", "Shuffle", "Interleave" and, for hosts,
https://huggingface.co/docs/datasets/use_with_pytorch (`split_dataset_by_node`, `StatefulDataLoader`).
"""

from __future__ import annotations

import pickle
from typing import Any

from datasets import interleave_datasets, load_dataset
from datasets.distributed import split_dataset_by_node
from torchdata.stateful_dataloader import StatefulDataLoader

from benchmarks.truth.adapter import Adapter, Run, Sample


class Loader(Adapter):
    """Tars, read by the `webdataset` builder."""

    name = "HF datasets streaming"
    page = "https://huggingface.co/docs/datasets/stream"
    package = "datasets"
    settings = (
        "webdataset builder; shuffle(seed, buffer_size=100, max_buffer_input_shards=1): with its default of 10, states "
        "of workers raise IndexError; split_dataset_by_node; interleave_datasets(probabilities, "
        "stopping_strategy='all_exhausted'); StatefulDataLoader. The page says that samples in shuffle buffers are "
        "lost when resuming: compare with the row of the unshuffled stream"
    )
    claims = frozenset({"resume", "mixture", "repeatable", "shuffle"})
    forkable = True
    shuffled = True

    def open(self, run: Run) -> None:
        self.run, self.epoch, self.iterator = run, 0, None
        datasets = list[Any]()
        for dataset in run.datasets:
            tars = sorted(str(tar) for tar in (run.folder / dataset.name).glob("*.tar"))
            datasets.append(load_dataset("webdataset", data_files={"train": tars}, split="train", streaming=True))
        if self.shuffled:
            datasets = [
                dataset.shuffle(seed=run.seed, buffer_size=100, max_buffer_input_shards=1) for dataset in datasets
            ]
        mixed = datasets[0]
        if len(datasets) > 1:
            mixed = interleave_datasets(datasets, list(run.weights), seed=run.seed, stopping_strategy="all_exhausted")
        self.dataset = split_dataset_by_node(mixed, rank=run.host, world_size=run.hosts)
        self.loader = StatefulDataLoader(self.dataset, batch_size=run.batch, num_workers=run.workers, collate_fn=list)

    def next(self) -> list[Sample]:
        if self.iterator is None:
            self.dataset.set_epoch(self.epoch)
            self.iterator = iter(self.loader)
        try:
            return [Sample.of(row["txt"]) for row in next(self.iterator)]
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
        self.iterator = self.loader = None
