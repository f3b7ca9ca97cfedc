"""Grain's `DataLoader`: https://google-grain.readthedocs.io/en/latest/tutorials/data_loader_tutorial.html."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import grain
from absl import flags

from benchmarks.truth.adapter import Adapter, Dataset, Run, Sample
from benchmarks.truth.loaders.grain_map import Augment, records, samples_of, write_records


class Loader(Adapter):
    """One dataset; `DataLoader` has no mixture."""

    name = "Grain DataLoader"
    page = "https://google-grain.readthedocs.io/en/latest/tutorials/data_loader_tutorial.html"
    package = "grain"
    settings = "ArrayRecord with group_size:1; IndexSampler(shuffle=True); Batch as the last operation"
    claims = frozenset({"resume", "repeatable", "random", "shuffle"})
    forkable = True

    def prepare(self, folder: Path, datasets: Sequence[Dataset]) -> None:
        write_records(folder, datasets)

    def open(self, run: Run) -> None:
        if not flags.FLAGS.is_parsed():
            flags.FLAGS.mark_as_parsed()  # worker processes read absl flags, which only absl programs parse
        self.host = run.host
        source = records(run.folder, run.datasets[0])
        sampler = grain.samplers.IndexSampler(
            num_records=len(source),
            shard_options=grain.sharding.ShardOptions(run.host, run.hosts),
            shuffle=True,
            num_epochs=run.passes or None,
            seed=run.seed,
        )
        loader = grain.DataLoader(
            data_source=source,
            sampler=sampler,
            operations=[Augment(), grain.transforms.Batch(run.batch)],
            worker_count=run.workers,
        )
        self.iterator = iter(loader)

    def next(self) -> list[Sample]:
        return samples_of(next(self.iterator))

    def save(self) -> bytes:
        return self.iterator.get_state()

    def restore(self, states: list[bytes]) -> None:
        self.iterator.set_state(states[self.host])

    def close(self) -> None:
        self.iterator.close()
