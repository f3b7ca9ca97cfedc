"""A run on some hosts whose mixture changes, and what it delivered."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from energon_grain import (
    SkipSample,
    TaskEncoder,
    WorkerConfig,
    current_draw,
    get_savable_loader,
    get_train_dataset,
    merge_cursors,
)
from energon_grain.testing import make_text_dataset

SIZES = {"a": 61, "b": 34, "c": 97, "d": 20, "e": 45}
LANES, GLOBAL_BATCH = 12, 12

Use = tuple[str, int, int, int]
"""Dataset, position in its own stream, sample, pass."""
DROPPED: set[tuple[str, int]] = set()
"""Positions that a hook dropped."""


class Plain(TaskEncoder):
    """Says of each sample which it is."""

    __default_failure_tolerance__ = 0
    drops: ClassVar[tuple[int, ...]] = ()

    def encode_sample(self, sample: Any) -> Any:
        name, child = sample.__subflavors__["name"], sample.__restore_key__[2]
        if int(sample.__key__) % 9 in self.drops:
            DROPPED.add((name, child))
            raise SkipSample
        sample.text = name, child, int(sample.__key__), current_draw().epoch
        return sample

    def batch(self, samples: list[Any]) -> Any:
        return [use for sample in samples for use in uses(sample)]


def uses(sample: Any) -> list[Use]:
    return [sample.text] if isinstance(sample.text, tuple) else list(sample.text)


class Skipping(Plain):
    """Drops some samples of each dataset."""

    drops = (3, 7)


class Packing(Plain):
    """Packs of 1 to 3 samples, with some dropped before."""

    drops = (2,)

    def select_samples_to_pack(self, samples: list[Any]) -> list[list[Any]]:
        ordered = sorted(samples, key=lambda sample: sample.text[2] % 5)
        packs, at = [], 0
        while at < len(ordered):
            size = 1 + ordered[at].text[2] % 3
            packs.append(ordered[at : at + size])
            at += size
        return packs

    def pack_selected_samples(self, samples: list[Any]) -> Any:
        samples[0].text = [use for sample in samples for use in uses(sample)]
        return samples[0]


def write_data(root: Path, names: Iterable[str] = SIZES) -> None:
    """Write text datasets of `SIZES`, each with all samples in one split part."""
    for name in names:
        make_text_dataset(root / name, n=SIZES[name], shards=2)
        split = root / name / ".nv-meta" / "split.yaml"
        split.write_text("split_parts:\n  train: ['shard_{000..001}.tar']\nexclude: []\n")


@dataclass
class Run:
    """A run on some hosts, whose configuration is a file that is edited."""

    data: Path
    encoder: type[Plain]
    weights: dict[str, float]
    hosts: int = 1
    workers: int = 0
    steps: int = 0
    log: list[list[Use]] = field(default_factory=list)
    loaders: list[Any] = field(default_factory=list)
    present: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.present = set(self.weights)

    def start(self, state: Any = None, **options: Any) -> None:
        yaml = self.data / "mixture.yaml"
        entries = "".join(
            f"    - weight: {weight}\n      path: {self.data / name}\n      subflavors: {{name: {name}}}\n"
            for name, weight in self.weights.items()
        )
        yaml.write_text(
            f"__module__: megatron.energon\n__class__: MetadatasetV2\nsplits:\n  train:\n    blend:\n{entries}"
        )
        self.close()
        packing = {"packing_buffer_size": 7} if self.encoder is Packing else {}
        self.loaders = [
            get_savable_loader(
                get_train_dataset(
                    yaml,
                    batch_size=GLOBAL_BATCH // self.hosts,
                    shuffle_buffer_size=8,
                    max_samples_per_sequence=4,
                    lanes=LANES,
                    task_encoder=self.encoder(),
                    worker_config=WorkerConfig(host, self.hosts, self.workers),
                    **packing,
                )
            )
            for host in range(self.hosts)
        ]
        if state is not None:
            for loader in self.loaders:
                loader.restore_state_rank(state, **options)

    def close(self) -> None:
        for loader in self.loaders:
            loader.close()

    def state(self) -> Any:
        return merge_cursors([loader.save_state_rank() for loader in self.loaders])

    def step(self, count: int) -> None:
        for _ in range(count):
            batches = [next(loader) for loader in self.loaders]
            self.log.append([use for batch in batches for use in batch])
            self.steps += 1

    def amend(self, **change: Any) -> None:
        for loader in self.loaders:
            loader.amend(**change)
