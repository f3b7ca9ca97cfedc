"""energon-grain in JAX: docs/train-with-jax.md, docs/mix-datasets.md, docs/resume.md, docs/how-to/pack.md."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import energon_grain as library
from benchmarks.truth.adapter import CLAIMS, Adapter, Dataset, Run, Sample
from energon_grain.prepare import prepare_dataset


class Hooks:
    """Each sample with a number that its augmentation draws. A mixin for the task encoders of JAX and torch."""

    def encode_sample(self: Any, sample: Any) -> tuple[str, float]:
        return sample.text, float(self.rng.random())

    def pack_selected_samples(self, samples: list[tuple[str, float]]) -> Any:
        return {"samples": samples}

    def batch(self, samples: list[Any]) -> dict[str, Any]:
        return {"samples": samples}


class Encoder(Hooks, library.DefaultTaskEncoder[Any, Any, Any, Any]):
    """The hooks, for JAX."""


class Loader(Adapter):
    """The savable loader, with a full shuffle of each dataset."""

    name = "energon-grain-jax"
    page = "https://energon-grain.readthedocs.io/en/latest/resume/"
    package = "energon-grain"
    settings = (
        "full shuffle (`max_samples_per_sequence=None`); worker threads, or processes in every eighth history; "
        "`PackingPlan(window=64)`; `lanes=1` for mixtures, so that passes do not overlap; `on_change='amend'`; half of "
        "the single datasets are finite (`repeat=False`)"
    )
    claims = frozenset(CLAIMS)
    forkable = True
    library: Any = library
    encoder: Any = Encoder
    threads, processes = "thread", "process"

    def prepare(self, folder: Path, datasets: Sequence[Dataset]) -> None:
        for dataset in datasets:
            prepare_dataset(
                folder / dataset.name,
                split_ratio={"train": 1},
                num_workers=0,
                sample_type="TextSample",
                field_map={"text": "txt"},
            )

    def open(self, run: Run) -> None:
        self.run = run
        packing = {"packing": library.PackingPlan("bytes.txt - 16", capacity=run.pack, window=64)} if run.pack else {}
        finite = run.passes == 1 and run.seed % 2 == 0
        dataset = self.library.get_train_dataset(
            self._source(run),
            worker_config=self.library.WorkerConfig(
                rank=run.host,
                world_size=run.hosts,
                num_workers=run.workers,
                worker_type=self.processes if run.seed % 8 == 0 else self.threads,
            ),
            batch_size=run.batch,
            shuffle_buffer_size=None,
            max_samples_per_sequence=None,
            task_encoder=self.encoder(),
            seed=run.seed,
            lanes=48 if run.passes else 1,
            repeat=not finite,
            **packing,
        )
        self.loader = self.library.get_savable_loader(dataset, on_change="amend")
        self.batches = iter(self.loader)

    def _source(self, run: Run) -> Any:
        """Return the folder of a dataset that is read once, or an endless blend, which may grow."""
        if run.passes:
            return run.folder / run.datasets[0].name
        blend = [
            {"path": str(run.folder / dataset.name), "weight": weight, "name": dataset.name}
            for dataset, weight in zip(run.datasets, run.weights, strict=True)
        ]
        return {
            "__module__": "megatron.energon",
            "__class__": "MetadatasetV2",
            "splits": {"train": {"blend": blend}},
        }

    def next(self) -> list[Sample]:
        found = list[Sample]()
        for item in next(self.batches)["samples"]:
            for text, random in item["samples"] if self.run.pack else [item]:
                found.append(Sample.of(text, random))
        return found

    def save(self) -> bytes:
        return json.dumps(self.loader.save_state_rank()).encode()

    def restore(self, states: list[bytes]) -> None:
        self.loader.restore_state_rank(library.merge_cursors([json.loads(state) for state in states]))

    def which(self, step: int) -> list[tuple[int, int]]:
        names = {dataset.name: index for index, dataset in enumerate(self.run.datasets)}
        return [(names[Path(use.dataset).name], int(use.key.rsplit("/")[-1])) for use in self.loader.which(step)]

    def when(self, dataset: int, number: int, steps: int) -> list[int]:
        uses = self.loader.when(f"{number:06d}", self.run.datasets[dataset].name)
        return [use.step for use in uses if use.past and use.step is not None and use.step < steps]

    def close(self) -> None:
        self.loader.close()
