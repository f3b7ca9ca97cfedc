"""Megatron-Energon: https://nvidia.github.io/Megatron-Energon/basic/save_restore.html.

Other numbers of hosts: https://nvidia.github.io/Megatron-Energon/advanced/repro_scaling.html, with the command
`energon checkpoint redist`. Packs: https://nvidia.github.io/Megatron-Energon/advanced/packing.html.
"""

from __future__ import annotations

import io
import math
import random
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import megatron.energon as energon
import torch
import yaml
from megatron.energon.epathlib import EPath
from megatron.energon.flavors import BaseWebdatasetFactory
from megatron.energon.tools.checkpoint import command_redist

from benchmarks.truth.adapter import Adapter, Dataset, Run, Sample

_KIND = {"__module__": "megatron.energon", "__class__": "TextWebdataset", "field_map": {"text": "txt"}}


@energon.edataclass
class Places(energon.Sample):
    """A sample, or the samples of a pack."""

    places: list[Sample]


class _Encoder(energon.DefaultTaskEncoder):
    """Draws the number of an augmentation, and packs samples in their order while they fit."""

    def __init__(self, pack: int) -> None:
        super().__init__()
        self.pack = pack

    @energon.stateless(restore_seeds=True)
    def encode_sample(self, sample: energon.TextSample) -> Places:
        return Places.derive_from(sample, places=[Sample.of(sample.text, random.random())])

    def batch(self, samples: list[Places]) -> Places:
        return Places.derive_from(samples[0], places=[place for sample in samples for place in sample.places])

    def select_samples_to_pack(self, samples: list[Places]) -> list[list[Places]]:
        groups, space = list[list[Places]](), 0
        for sample in samples:
            if sample.places[0].tokens > space:
                groups.append([])
                space = self.pack
            groups[-1].append(sample)
            space -= sample.places[0].tokens
        return groups

    @energon.stateless
    def pack_selected_samples(self, samples: list[Places]) -> Places:
        return Places.derive_from(samples[0], places=[sample.places[0] for sample in samples])


class Loader(Adapter):
    """The global number of workers stays the same, as the page asks for."""

    name = "Megatron-Energon"
    page = "https://nvidia.github.io/Megatron-Energon/basic/save_restore.html"
    package = "megatron-energon"
    settings = (
        "shuffle_buffer_size=100, max_samples_per_sequence=100 (quickstart); hosts x workers = gcd(global batch, "
        "shards), equal for all hosts of a history; a step is a micro-batch of each worker; other hosts: `energon "
        "checkpoint redist`; packing_buffer_size=50; endless, as in the page"
    )
    claims = frozenset({"resume", "elastic_hosts", "mixture", "elastic_mixture", "pack", "elastic_pack"}) | frozenset(
        {"repeatable", "random", "shuffle"}
    )
    forkable = True

    def prepare(self, folder: Path, datasets: Sequence[Dataset]) -> None:
        for dataset in datasets:
            path = folder / dataset.name
            BaseWebdatasetFactory.prepare_dataset(
                EPath(path),
                sorted(tar.name for tar in path.glob("*.tar")),
                split_parts_ratio=[("train", 1.0), ("val", 0), ("test", 0)],
                tar_index_only=False,
                shuffle_seed=None,
                workers=1,
            )
            (path / ".nv-meta" / "dataset.yaml").write_text(yaml.safe_dump(_KIND))

    def open(self, run: Run) -> None:
        self.run = run
        common = math.gcd(run.batch * run.hosts, *(dataset.shards for dataset in run.datasets))
        workers = common // run.hosts if common % run.hosts == 0 else math.gcd(run.batch, run.workers or 1)
        self.rounds = workers
        dataset = energon.get_train_dataset(
            self._description(),
            worker_config=energon.WorkerConfig(
                rank=run.host, world_size=run.hosts, num_workers=workers, seed_offset=run.seed % 10**6
            ),
            batch_size=run.batch // workers,
            shuffle_buffer_size=100,
            max_samples_per_sequence=100,
            packing_buffer_size=50 if run.pack else None,
            task_encoder=_Encoder(run.pack),
        )
        self.loader: Any = energon.get_savable_loader(dataset)
        self.iterator: Any = None

    def _description(self) -> Path:
        """Return the path of the dataset, or of a metadataset that blends several."""
        run = self.run
        paths = [run.folder / dataset.name for dataset in run.datasets]
        if len(paths) == 1:
            return paths[0]
        blend = [{"path": str(path), "weight": weight} for path, weight in zip(paths, run.weights, strict=True)]
        path = run.folder / f"{len(blend)}-{run.port}-{run.host}.yaml"
        splits = {"train": {"blend": blend}}
        path.write_text(
            yaml.safe_dump({"__module__": "megatron.energon", "__class__": "MetadatasetV2", "splits": splits})
        )
        return path

    def next(self) -> list[Sample]:
        if self.iterator is None:
            self.iterator = iter(self.loader)
        return [place for _ in range(self.rounds) for place in next(self.iterator).places]

    def save(self) -> bytes:
        state = io.BytesIO()
        torch.save(self.loader.save_state_rank(), state)
        return state.getvalue()

    def restore(self, states: list[bytes]) -> None:
        loaded = [torch.load(io.BytesIO(state), weights_only=False) for state in states]
        if len(loaded) != self.run.hosts:
            with tempfile.TemporaryDirectory() as name:
                files, out = [Path(name, f"rank{rank}.pth") for rank in range(len(loaded))], Path(name, "out")
                for file, state in zip(files, loaded, strict=True):
                    torch.save(state, file)  # a file of each rank: the command refuses one file of all ranks
                out.mkdir()
                command_redist.callback([EPath(file) for file in files], EPath(out), self.run.hosts)
                loaded = [torch.load(out / f"rank{rank}.pth", weights_only=False) for rank in range(self.run.hosts)]
        self.loader.restore_state_rank(loaded[self.run.host])

    def close(self) -> None:
        self.iterator = self.loader = None
