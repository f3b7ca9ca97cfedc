"""Grain's `MapDataset`, read by `ElasticIterator`: https://google-grain.readthedocs.io/en/latest/grain.experimental.html.

Packing needs an `IterDataset`, which `ElasticIterator` excludes: packs follow the dataset tutorial,
https://google-grain.readthedocs.io/en/latest/tutorials/dataset_advanced_tutorial.html, and are not elastic.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import grain
import numpy as np
from absl import flags
from array_record.python.array_record_module import ArrayRecordWriter

from benchmarks.truth.adapter import Adapter, Dataset, Run, Sample
from benchmarks.truth.tars import members

_BINS = 8  # open packs; the tutorial leaves the number to the user


def write_records(folder: Path, datasets: Sequence[Dataset]) -> None:
    """Write one ArrayRecord file per tar; `group_size:1` is what Grain recommends for random access."""
    for dataset in datasets:
        for tar in sorted((folder / dataset.name).glob("*.tar")):
            writer = ArrayRecordWriter(str(tar.with_suffix(".array_record")), "group_size:1")
            for text in members(tar):
                writer.write(text)
            writer.close()


def records(folder: Path, dataset: Dataset) -> grain.sources.ArrayRecordDataSource:
    """Open the ArrayRecord files of a dataset."""
    return grain.sources.ArrayRecordDataSource(
        sorted(str(path) for path in (folder / dataset.name).glob("*.array_record"))
    )


def augment(record: bytes, rng: np.random.Generator) -> dict[str, Any]:
    """Parse a record, and draw the number of an augmentation from the generator that Grain passes."""
    sample = Sample.of(record)
    return {"place": np.asarray(sample[:3]), "random": rng.random()}


def samples_of(batch: dict[str, Any]) -> list[Sample]:
    """Return the samples of a batch of `augment`."""
    return [Sample(*map(int, place), float(each)) for place, each in zip(batch["place"], batch["random"], strict=True)]


class Augment(grain.transforms.RandomMap):
    """`augment` as a transform."""

    def random_map(self, element: bytes, rng: np.random.Generator) -> dict[str, Any]:
        return augment(element, rng)


def _tokens(record: bytes) -> dict[str, Any]:
    """Return the tokens of a sample: its place in every position."""
    sample = Sample.of(record)
    return {"tokens": np.full(sample.tokens, sample.dataset << 32 | sample.number, np.int64)}


def _pieces(tokens: np.ndarray, segments: np.ndarray) -> Iterator[Sample]:
    for segment in range(1, int(segments.max()) + 1):
        piece = tokens[segments == segment]
        yield Sample(int(piece[0]) >> 32, int(piece[0]) & 0xFFFFFFFF, len(piece))


class Loader(Adapter):
    """Shuffled sources, mixed by `MapDataset.mix`."""

    name = "Grain MapDataset"
    page = "https://google-grain.readthedocs.io/en/latest/grain.experimental.html"
    package = "grain"
    settings = (
        "ArrayRecord with group_size:1; shuffle() of each dataset, reshuffled in each epoch; mix(weights); "
        f"ElasticIterator; packs: FirstFitPackIterDataset with {_BINS} bins on ds[host::hosts]"
    )
    claims = frozenset(
        {"resume", "elastic_hosts", "mixture", "elastic_mixture", "pack", "repeatable", "random", "shuffle"}
    )
    forkable = True

    def prepare(self, folder: Path, datasets: Sequence[Dataset]) -> None:
        write_records(folder, datasets)

    def open(self, run: Run) -> None:
        if not flags.FLAGS.is_parsed():
            flags.FLAGS.mark_as_parsed()  # worker processes read absl flags, which only absl programs parse
        self.host, self.pack = run.host, bool(run.pack)
        self.iterator = iter(self._packs(run) if run.pack else self._rows(run))

    def _mixture(self, run: Run) -> grain.MapDataset:
        sources = [
            grain.MapDataset.source(records(run.folder, dataset)).seed(run.seed + index).shuffle()
            for index, dataset in enumerate(run.datasets)
        ]
        sources = [source.repeat(run.passes or None) for source in sources]
        return sources[0] if len(sources) == 1 else grain.MapDataset.mix(sources, list(run.weights))

    def _rows(self, run: Run) -> grain.experimental.ElasticIterator:
        return grain.experimental.ElasticIterator(
            self._mixture(run).seed(run.seed).random_map(Augment()),
            run.batch * run.hosts,
            grain.sharding.ShardOptions(run.host, run.hosts),
            multiprocessing_options=grain.MultiprocessingOptions(run.workers) if run.workers else None,
        )

    def _packs(self, run: Run) -> grain.IterDataset:
        mine = self._mixture(run)[run.host :: run.hosts].map(_tokens).to_iter_dataset()
        packs = grain.experimental.FirstFitPackIterDataset(
            mine, length_struct={"tokens": run.pack}, num_packing_bins=_BINS
        )
        batches = packs.batch(run.batch)
        return batches.mp_prefetch(grain.MultiprocessingOptions(run.workers)) if run.workers else batches

    def next(self) -> list[Sample]:
        batch = next(self.iterator)
        if not self.pack:
            return samples_of(batch)
        rows = zip(batch["tokens"], batch["tokens_segment_ids"], strict=True)
        return [sample for tokens, segments in rows for sample in _pieces(tokens, segments)]

    def save(self) -> bytes:
        return json.dumps(self.iterator.get_state(), default=lambda each: each.tolist()).encode()

    def restore(self, states: list[bytes]) -> None:
        # The state of any host fits all hosts of an ElasticIterator; packs continue from the state of their host.
        self.iterator.set_state(json.loads(states[self.host if self.pack else 0]))

    def close(self) -> None:
        self.iterator.close()
