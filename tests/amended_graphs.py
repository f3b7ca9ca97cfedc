"""Runs of any graph above a blend whose mixture changes, and an oracle for what they delivered."""

from __future__ import annotations

import os
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from energon_grain import (
    BatchDataset,
    SkipSample,
    TaskEncoder,
    WorkerConfig,
    current_draw,
    get_savable_loader,
    get_train_dataset,
    merge_cursors,
)
from energon_grain.errors import AmendmentError
from energon_grain.prepare import prepare_dataset
from energon_grain.samplers.leaf_order import LeafTable
from energon_grain.testing import write_tars

SIZES = {"a": 61, "b": 34, "c": 97, "d": 20, "e": 45}
LANES, GLOBAL_BATCH = 12, 12
HISTORIES = int(os.environ.get("HISTORIES", "30" if os.environ.get("HYPOTHESIS_PROFILE") == "night" else "3"))
Use = tuple[str, int, int, int]
"""Dataset, position in its own stream, sample, pass."""
Build = Callable[[list[tuple[Any, Any]]], Any]
"""Makes the graph below the batches from (dataset, weight) pairs."""


class Marking(TaskEncoder):
    """Says of each sample which it is."""

    __default_failure_tolerance__ = 0
    drops: ClassVar[tuple[int, ...]] = ()

    def encode_sample(self, sample: Any) -> Any:
        name, number = sample.__key__[0], int(sample.__key__[1:])
        if number % 9 in self.drops:
            raise SkipSample
        sample.text = name, sample.__restore_key__[2], number, current_draw().epoch
        return sample


class Dropping(Marking):
    """Drops some samples of each dataset."""

    drops = (3, 7)


def uses_in(samples: list[Any]) -> dict[str, Any]:
    """The samples of a batch, grouped by item."""
    return {"uses": [sample if isinstance(sample, list) else [sample.text] for sample in samples]}


def write_data(root: Path) -> None:
    """Datasets of texts of 1 to 60 bytes, whose keys say which they are."""
    rng = np.random.default_rng(1)
    for name, n in SIZES.items():
        sizes = rng.integers(1, 61, n).tolist()
        samples = [{"__key__": f"{name}{number:03}", "txt": b"x" * size} for number, size in enumerate(sizes)]
        write_tars(root / name, samples, shards=2)
        prepare_dataset(root / name, split_ratio={"train": 1}, sample_type="TextSample", field_map={"text": "txt"})


@dataclass
class GraphRun:
    """A run on some hosts, whose configuration changes.

    Attributes:
        build: Makes the graph below the batches.
        weights: Of the configuration.
        present: Datasets that the run has in its mixture, with a weight.
    """

    data: Path
    build: Build
    weights: dict[str, Any]
    encoder: type[Marking] = Marking
    hosts: int = 1
    steps: int = 0
    log: list[list[Use]] = field(default_factory=list)
    loaders: list[Any] = field(default_factory=list)
    options: dict[str, Any] = field(default_factory=dict)

    def leaf(self, name: str, config: WorkerConfig | None = None) -> Any:
        return get_train_dataset(
            self.data / name,
            batch_size=None,
            shuffle_buffer_size=8,
            max_samples_per_sequence=4,
            lanes=LANES,
            repeat=False,
            task_encoder=self.encoder(),
            worker_config=config or WorkerConfig(0, 1, 0),
        )

    def dataset(self, host: int) -> Any:
        config = WorkerConfig(host, self.hosts, 0)
        graph = self.build([(self.leaf(name, config), weight) for name, weight in self.weights.items()])
        if self.options.get("batched"):
            return graph
        return BatchDataset(graph, GLOBAL_BATCH // self.hosts, uses_in, last_batch="pad")

    def start(self, state: Any = None, **options: Any) -> None:
        self.close()
        self.loaders = [get_savable_loader(self.dataset(host)) for host in range(self.hosts)]
        for loader in self.loaders if state is not None else ():
            loader.restore_state_rank(state, **options)

    def close(self) -> None:
        for loader in self.loaders:
            loader.close()

    def state(self) -> Any:
        return merge_cursors([loader.save_state_rank() for loader in self.loaders])

    def step(self, count: int) -> None:
        for _ in range(count):
            self.log.append([use for loader in self.loaders for use in self._next(loader)])
            self.steps += 1

    def _next(self, loader: Any) -> list[Use]:
        for _ in range(3):
            try:
                return self.valid(next(loader))
            except StopIteration:
                iter(loader)  # the next pass
        raise AssertionError

    @staticmethod
    def valid(batch: Any) -> list[Use]:
        """The samples of a batch without padding."""
        valid = batch.get("__valid__", [True] * len(batch["uses"]))
        return [use for uses, real in zip(batch["uses"], valid, strict=True) if real for use in uses]

    def amend(self, **change: Any) -> None:
        for loader in self.loaders:
            loader.amend(**change)


def changes(rng: random.Random, weights: dict[str, Any], choices: list[Any]) -> dict[str, Any]:
    """Another mixture: weights, datasets added or removed."""
    names = list(weights)
    missing = [name for name in SIZES if name not in weights]
    after = {name: rng.choice(choices) for name in names}
    if missing and rng.random() < 0.5:
        after[rng.choice(missing)] = rng.choice(choices)
    items = list(after.items())
    rng.shuffle(items)
    return dict(items)


def history(
    rng: random.Random, run: GraphRun, hosts: Iterator[int], *, choices: list[Any], last: int, live_on: int = 4
) -> None:
    """Change a run at random.

    Args:
        choices: Weights.
        last: Steps at the end.
        live_on: Number of hosts up to which the running loaders are amended.
    """
    run.hosts = next(hosts)
    run.start()
    run.step(rng.randrange(1, 12))
    there = dict(run.weights)  # in the run, the configuration has to follow
    for _ in range(rng.randrange(2, 6)):
        kind, after, removed = rng.random(), changes(rng, there, choices), rng.random()
        many = next(hosts)
        if kind < 0.5:
            if run.hosts > live_on:
                state = run.state()
                run.hosts = live_on
                run.start(state)
            add = {name: run.leaf(name) for name in after if name not in there}
            if len(there) > 1 and removed < 0.3:
                after[rng.choice(sorted(there))] = 0
            try:
                run.amend(weights=after, add=add, note="live")
                there |= after
            except AmendmentError as error:
                if "nothing changes" not in str(error):
                    raise
            if set(there) - set(run.weights):  # write down what was added
                state = run.state()
                run.weights = {name: weight or choices[0] for name, weight in there.items()}
                there = dict(run.weights)
                run.start(state, on_change="amend")
        elif kind < 0.8:  # edit and restart
            state, stays = run.state(), {name: weight or choices[0] for name, weight in after.items()}
            run.weights, run.hosts, there = dict(stays), many, dict(stays)
            if removed < 0.5 and len(stays) > 1:
                del run.weights[rng.choice(sorted(stays))]
            try:
                run.start(state, on_change="amend")
                there = dict(run.weights)
            except AmendmentError as error:  # its samples are in the order for some time
                if "was removed from the configuration" not in str(error):
                    raise
                run.weights = stays
                run.start(state, on_change="amend")
        else:
            state = run.state()
            run.hosts = many
            run.start(state)
        run.step(rng.randrange(1, 25))
    run.step(last)
    run.close()


def check(run: GraphRun, last: int) -> None:
    """Nothing twice, nothing lost, and each dataset in its own order."""
    seen = [use for step in run.log for use in step]
    assert max(Counter((name, key, epoch) for name, _, key, epoch in seen).values()) == 1
    drawn: dict[str, dict[int, tuple[int, int]]] = defaultdict(dict)
    for name, child, *use in seen:
        drawn[name][child] = use[0], use[1]
    own = {name: own_order(run, name, 1 + max(found)) for name, found in drawn.items()}
    for name, found in drawn.items():
        assert all(own[name].get(child) == use for child, use in found.items())
    reached: dict[tuple[str, int], int] = defaultdict(int)
    for step in run.log[:-last]:
        for name, child, *_ in step:
            reached[name, child % LANES] = max(reached[name, child % LANES], child)
    for (name, lane), end in reached.items():
        places = range(lane, end, LANES)
        lost = [child for child in places if child not in drawn[name] and child in own[name]]
        assert not lost, (name, lost[:5])


def own_order(run: GraphRun, name: str, count: int) -> dict[int, tuple[int, int]]:
    """(sample, pass) of each position that is not dropped, of a dataset that is alone in the same graph."""
    spec = GraphRun(run.data, run.build, {name: 1}, run.encoder, options=run.options).dataset(0).compiled(hosts=1)
    (leaf,) = spec.leaves
    index, epoch = LeafTable([leaf.order], LANES).draw(np.zeros(count, np.int32), np.arange(count))
    numbers = [int(leaf.leaf.source.locate(each).key[1:]) for each in index.tolist()]
    own = enumerate(zip(numbers, epoch.tolist(), strict=True))
    return {child: use for child, use in own if use[0] % 9 not in run.encoder.drops}


def both(data: Path, seed: int, build: Build, weights: dict[str, Any], **options: Any) -> GraphRun:
    """A random history on several hosts, checked, which is the same on one host."""
    encoder, last = options.pop("encoder", Marking), options.get("last", 60)
    run_options = options.pop("options", {})
    many = random.Random(seed + 1000)
    run = GraphRun(data, build, dict(weights), encoder, options=run_options)
    history(random.Random(seed), run, iter(lambda: many.choice([1, 2, 3, 4]), None), **options)
    check(run, last)
    alone = GraphRun(data, build, dict(weights), encoder, options=run_options)
    history(random.Random(seed), alone, iter(lambda: 1, None), **options)
    assert list(map(sorted, run.log)) == list(map(sorted, alone.log))
    return run
