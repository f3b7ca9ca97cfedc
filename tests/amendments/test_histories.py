"""Random histories of a run that changes, against a count of what was delivered: nothing twice, nothing lost."""

from __future__ import annotations

import os
import random
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import pytest

from energon_grain import (
    SkipSample,
    TaskEncoder,
    WorkerConfig,
    current_draw,
    get_savable_loader,
    get_train_dataset,
    merge_cursors,
)
from energon_grain.errors import AmendmentError
from energon_grain.testing import make_text_dataset

SIZES = {"a": 61, "b": 34, "c": 97, "d": 20, "e": 45}
LANES, GLOBAL_BATCH = 12, 12
HISTORIES = int(os.environ.get("HISTORIES", "10"))
"""Of each kind; more at night."""

LAST = 60
"""Steps at the end, in which packs deliver what they hold."""

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


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("data")
    for name, n in SIZES.items():
        make_text_dataset(root / name, n=n, shards=2)
        split = root / name / ".nv-meta" / "split.yaml"
        split.write_text("split_parts:\n  train: ['shard_{000..001}.tar']\nexclude: []\n")
    return root


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


def check(run: Run) -> None:
    """Every lane of every dataset goes on without a gap, and nothing comes twice in a pass."""
    seen = [use for step in run.log for use in step]
    assert max(Counter((name, key, epoch) for name, _, key, epoch in seen).values()) == 1
    done = {(name, child) for name, child, *_ in seen} | DROPPED
    before: dict[tuple[str, int], int] = defaultdict(int)
    for step in run.log[:-LAST]:
        for name, child, *_ in step:
            before[name, child % LANES] = max(before[name, child % LANES], child)
    lost = [
        (name, child) for (name, lane), last in before.items() for child in range(lane, last, LANES)
        if (name, child) not in done
    ]
    assert not lost, lost[:5]


def changes(rng: random.Random, weights: dict[str, float]) -> dict[str, float]:
    """Another mixture: weights, datasets added or removed."""
    names = list(weights)
    missing = [name for name in SIZES if name not in weights]
    after = {name: rng.choice([1, 2, 3, 5]) for name in names}
    if missing and rng.random() < 0.5:
        after[rng.choice(missing)] = rng.choice([1, 4])
    if len(names) > 1 and rng.random() < 0.4:
        del after[rng.choice(names)]
    items = list(after.items())
    rng.shuffle(items)
    return dict(items)


def history(rng: random.Random, run: Run, hosts: Iterator[int]) -> None:
    run.hosts = next(hosts)
    run.start()
    run.step(rng.randrange(1, 12))
    live = False  # whether the configuration lacks what was added
    for _ in range(rng.randrange(2, 7)):
        kind = rng.random()
        after = changes(rng, run.weights)
        if kind < 0.35:  # while it runs
            amended = {name: after.get(name, 0) for name in sorted(run.present | set(after))}
            add = {
                name: {"path": str(run.data / name), "subflavors": {"name": name}}
                for name in after
                if name not in run.present
            }
            try:
                run.amend(weights=amended, add=add, note="live")
            except AmendmentError as error:
                assert "nothing changes" in str(error)
            live = live or bool(add)
            run.present |= set(add)
        elif live or kind < 0.8:  # edit and restart
            live = False
            state = run.state()
            # What was added stays; and what packs hold can be delivered only while its dataset is there.
            stays = run.present if run.encoder is Packing else run.present - set(run.weights)
            after = {**dict.fromkeys(sorted(stays), 1), **after}
            run.weights, run.present, run.hosts = after, set(after), next(hosts)
            run.start(state, on_change="amend")
        else:
            state = run.state()
            run.hosts = next(hosts)
            run.start(state)
        run.step(rng.randrange(1, 25))
    run.step(LAST)
    run.close()


@pytest.mark.parametrize("encoder", [Plain, Skipping, Packing])
@pytest.mark.parametrize("seed", range(HISTORIES))
def test_nothing_twice_nothing_lost(data: Path, tmp_path: Path, encoder: type[Plain], seed: int) -> None:
    for name in SIZES:
        (tmp_path / name).symlink_to(data / name)
    DROPPED.clear()
    rng = random.Random(seed)
    run = Run(tmp_path, encoder, {"a": 3, "b": 1})
    choices = random.Random(seed + 1000)
    history(rng, run, iter(lambda: choices.choice([1, 2, 3, 4]), None))
    check(run)
    alone = Run(tmp_path, encoder, {"a": 3, "b": 1})
    history(random.Random(seed), alone, iter(lambda: 1, None))
    assert list(map(sorted, run.log)) == list(map(sorted, alone.log))
