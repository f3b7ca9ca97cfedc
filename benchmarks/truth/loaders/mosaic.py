"""MosaicML Streaming: https://docs.mosaicml.com/projects/streaming/en/stable/distributed_training/fast_resumption.html.

Elastic determinism: https://docs.mosaicml.com/projects/streaming/en/stable/distributed_training/elastic_determinism.html.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.distributed

if not torch.backends.cuda.is_built():
    # The torchvision wheel is built with CUDA. Its import, which `streaming` needs, expects these operators.
    library = torch.library.Library("torchvision", "DEF")
    for operator in ("nms", "qnms"):
        library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

from streaming import MDSWriter, Stream, StreamingDataLoader, StreamingDataset
from streaming.base.util import clean_stale_shared_memory, merge_index

from benchmarks.truth.adapter import Adapter, Dataset, Run, Sample
from benchmarks.truth.tars import members


class Loader(Adapter):
    """All hosts are ranks of one node: they share the shared memory of one machine."""

    name = "MosaicML Streaming"
    page = "https://docs.mosaicml.com/projects/streaming/en/stable/distributed_training/fast_resumption.html"
    package = "mosaicml-streaming"
    settings = (
        "one MDS shard per tar, merge_index(); shuffle=True with the default py1e; num_canonical_nodes=1: hosts are "
        "ranks of one node; mixtures: Stream(proportion), epochs as long as all datasets together; "
        "clean_stale_shared_memory() at the start"
    )
    claims = frozenset(
        {
            "resume",
            "elastic_hosts",
            "elastic_workers",
            "mixture",
            "elastic_mixture",
            "repeatable",
            "repeatable_workers",
            "shuffle",
        }
    )

    forkable = True

    def prepare(self, folder: Path, datasets: Sequence[Dataset]) -> None:
        for dataset in datasets:
            for tar in sorted((folder / dataset.name).glob("*.tar")):
                with MDSWriter(out=str(folder / dataset.name / "mds" / tar.stem), columns={"text": "bytes"}) as writer:
                    for text in members(tar):
                        writer.write({"text": text})
            merge_index(str(folder / dataset.name / "mds"))

    def open(self, run: Run) -> None:
        self.run, self.epoch, self.iterator = run, 0, None
        os.environ.update(
            RANK=str(run.host),
            WORLD_SIZE=str(run.hosts),
            LOCAL_RANK=str(run.host),
            LOCAL_WORLD_SIZE=str(run.hosts),
            MASTER_ADDR="127.0.0.1",
            MASTER_PORT=str(run.port),
        )
        torch.distributed.init_process_group("gloo", rank=run.host, world_size=run.hosts)
        clean_stale_shared_memory()
        mixed = len(run.datasets) > 1
        streams = [
            Stream(local=str(run.folder / dataset.name / "mds"), proportion=weight if mixed else None)
            for dataset, weight in zip(run.datasets, run.weights, strict=True)
        ]
        dataset = StreamingDataset(
            streams=streams, batch_size=run.batch, shuffle=True, shuffle_seed=run.seed, num_canonical_nodes=1
        )
        self.loader = StreamingDataLoader(dataset, batch_size=run.batch, num_workers=run.workers)

    def next(self) -> list[Sample]:
        if self.iterator is None:
            self.iterator = iter(self.loader)
        try:
            return [Sample.of(text) for text in next(self.iterator)["text"]]
        except StopIteration:
            self.epoch += 1
            if self.run.passes and self.epoch >= self.run.passes:
                raise
            self.iterator = None
            return self.next()

    def save(self) -> bytes:
        return json.dumps(self.loader.state_dict()).encode()

    def restore(self, states: list[bytes]) -> None:
        state = json.loads(states[0])  # "This is called on rank zero", and is loaded by all ranks
        self.epoch = state["epoch"]
        self.loader.load_state_dict(state)

    def close(self) -> None:
        del self.iterator, self.loader
        torch.distributed.destroy_process_group()
