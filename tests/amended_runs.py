"""A run on some hosts whose mixture changes, and what it delivered."""

from __future__ import annotations

import importlib
import json
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
OTHER_SIZES = {"f": 60, "left": 40, "right": 40}
LANES, GLOBAL_BATCH = 12, 12
ENTRIES: dict[str, dict[str, Any]] = {
    **{name: {"path": name} for name in SIZES},
    "c2": {"path": "c", "name": "c2", "shuffle_over_epochs_multiplier": 2},
    "f": {"path": "f", "where": "bytes.txt % 3 != 0"},
    "j": {"join": [{"path": "left"}, {"path": "right"}], "name": "j"},
}
"""Nodes of a metadataset, by name: plain datasets, two passes shuffled together, a condition, a join."""

Use = tuple[str, int, int, int]
"""Dataset, position in its own stream, sample, pass."""
DROPPED: set[tuple[str, int]] = set()
"""Positions that hooks of this process dropped."""


class Plain(TaskEncoder):
    """Notes which sample each is.

    Args:
        drops: Whether samples are dropped at all.
    """

    __default_failure_tolerance__ = 0
    remainders: ClassVar[tuple[int, ...]] = ()
    """Samples are dropped if their numbers have one of these remainders by 9."""
    packs: ClassVar[bool] = False

    def __init__(self, *, drops: bool = True) -> None:
        super().__init__()
        self.drops = drops

    @classmethod
    def drops_sample(cls, number: int) -> bool:
        return number % 9 in cls.remainders

    def encode_sample(self, sample: Any) -> Any:
        number, name, child = int(sample.__key__), sample.__subflavors__["name"], sample.__restore_key__[2]
        if self.drops and self.drops_sample(number):
            DROPPED.add((name, child))
            raise SkipSample
        sample.text = name, child, number, current_draw().epoch
        return sample

    def batch(self, samples: list[Any]) -> Any:
        return [use for sample in samples for use in uses(sample)]


def uses(sample: Any) -> list[Use]:
    return [sample.text] if isinstance(sample.text, tuple) else list(sample.text)


class Skipping(Plain):
    """Drops some samples of each dataset."""

    remainders = (3, 7)


class Packing(Plain):
    """Packs of 1 to 3 samples, with some dropped before."""

    remainders = (2,)
    packs = True

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


def write_data(root: Path, names: Iterable[str] = (*SIZES, *OTHER_SIZES)) -> None:
    """Write a text dataset of each size, all of it in one split part."""
    for name in names:
        make_text_dataset(root / name, n={**SIZES, **OTHER_SIZES}[name], shards=2)
        split = root / name / ".nv-meta" / "split.yaml"
        split.write_text("split_parts:\n  train: ['shard_{000..001}.tar']\nexclude: []\n")


def link_data(data: Path, folder: Path) -> None:
    """Link all datasets into the folder of a run."""
    for path in data.iterdir():
        (folder / path.name).symlink_to(path)


@dataclass
class Run:
    """A run on some hosts, whose configuration is a file that is edited.

    Attributes:
        weights: Of the datasets of the outermost blend.
        folder: Of the configuration; default: `data`.
        inner: Of the datasets of a blend in that blend, if any; its own weight is `share`.
        workers: Number of workers of each host, and "thread", "process" or "torch" (those of the PyTorch adapter).
        present: Names of all datasets of the run until now.
    """

    data: Path
    encoder: type[Plain]
    weights: dict[str, float]
    hosts: int = 1
    workers: tuple[int, str] = (0, "thread")
    inner: dict[str, float] = field(default_factory=dict)
    share: float = 2
    lanes: int = LANES
    global_batch: int = GLOBAL_BATCH
    drops: bool = True
    folder: Path | None = None
    log: list[list[Use]] = field(default_factory=list)
    loaders: list[Any] = field(default_factory=list)
    present: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.present = {*self.weights, *self.inner}

    @property
    def steps(self) -> int:
        return len(self.log)

    def entry(self, name: str) -> dict[str, Any]:
        """The node of a dataset in the metadataset."""
        entry: dict[str, Any] = {**ENTRIES.get(name, {"path": name}), "subflavors": {"name": name}}
        if "join" in entry:
            entry["join"] = [{"path": str(self.data / part["path"])} for part in entry["join"]]
            return entry | {"joiner": {"__module__": "amended_runs", "__function__": "first_of"}}
        return entry | {"path": str(self.data / entry["path"])}

    def write(self) -> Path:
        """Write the configuration. A weight of 0 removes a dataset."""
        blend = [{**self.entry(name), "weight": weight} for name, weight in self.weights.items() if weight]
        if self.inner:
            inner = [{**self.entry(name), "weight": weight} for name, weight in self.inner.items()]
            blend.append({"blend": inner, "weight": self.share})
        document = {"__module__": "megatron.energon", "__class__": "MetadatasetV2"}
        yaml = (self.folder or self.data) / "mixture.yaml"
        yaml.write_text(json.dumps({**document, "splits": {"train": {"blend": blend}}}))
        return yaml

    def start(self, state: Any = None, **options: Any) -> None:
        yaml = self.write()
        self.close()
        self.loaders = []
        api = importlib.import_module("energon_grain_torch") if self.workers[1] == "torch" else None
        number, kind = self.workers
        packing: dict[str, Any] = {"packing_buffer_size": 7} if self.encoder.packs else {}
        for host in range(self.hosts):
            config = WorkerConfig(host, self.hosts, number, worker_type="process" if kind == "process" else "thread")
            dataset = (api or _CORE).get_train_dataset(
                yaml,
                batch_size=self.global_batch // self.hosts,
                shuffle_buffer_size=8,
                max_samples_per_sequence=4,
                lanes=self.lanes,
                task_encoder=self.encoder(drops=self.drops),
                worker_config=config if api is None else api.WorkerConfig(host, self.hosts, number),
                trusted_modules=["amended_runs"],
                **packing,
            )
            self.loaders.append((api or _CORE).get_savable_loader(dataset))
        for loader in self.loaders if state is not None else ():
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

    def amend(self, **change: Any) -> None:
        for loader in self.loaders:
            loader.amend(**change)


class _Core:
    """The functions of the core's loader."""

    get_train_dataset = staticmethod(get_train_dataset)
    get_savable_loader = staticmethod(get_savable_loader)


_CORE: Any = _Core()


def first_of(first: Any, second: Any) -> Any:
    """Join two texts: the first one."""
    del second
    return first
