"""Runs over nested blends, built from nodes, whose graph changes; and an oracle for what they may deliver."""

from __future__ import annotations

import random
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from amended_runs import GLOBAL_BATCH, LANES, Use

from energon_grain import (
    BatchDataset,
    BlendDataset,
    ConcatDataset,
    FilterDataset,
    GroupBatchDataset,
    PackingDataset,
    SkipSample,
    TaskEncoder,
    WorkerConfig,
    get_savable_loader,
    get_train_dataset,
    merge_cursors,
)
from energon_grain.errors import AmendmentError
from energon_grain.stream.state import Place, walk

REFUSED = "put it above the blend|cannot move to another blend"
Tree = list[Any]
"""A blend: [what, weight] of each child, where what is the name of a dataset, or another blend."""


class Named(TaskEncoder):
    """Says of each sample which it is."""

    __default_failure_tolerance__ = 0

    def __init__(self, name: str, drops: int = 0) -> None:
        self.name, self.drops = name, drops

    def encode_sample(self, sample: Any) -> Any:
        _, _, child = sample.__restore_key__
        if self.drops and int(sample.__key__) % self.drops == 1:
            raise SkipSample
        sample.text = [(self.name, child, int(sample.__key__))]
        return sample


def kept(sample: Any) -> bool:
    return sample.text[0][2] % 5 != 2


def groups(samples: list[Any]) -> list[list[Any]]:
    found, at = [], 0
    while at < len(samples):
        size = 1 + samples[at].text[0][2] % 3
        found.append(samples[at : at + size])
        at += size
    return found


def joined(samples: list[Any]) -> Any:
    samples[0].text = [use for sample in samples for use in sample.text]
    return samples[0]


def parity(sample: Any) -> tuple[int, None]:
    return sample.text[0][2] % 2, None


def uses(samples: list[Any]) -> list[Use]:
    return [use for sample in samples for use in sample.text]


def names_in(tree: Tree) -> Iterator[str]:
    for what, _ in tree:
        if isinstance(what, str):
            yield what
        else:
            yield from names_in(what)


@dataclass
class GraphRun:
    """A run on some hosts over a tree.

    Attributes:
        kinds: The operation on a dataset below its blend: "filter", "pack", "group", "twice" (a concatenation).
        above: The same above the outermost blend.
        dropped: Datasets of which held samples were dropped.
        held: Positions that lanes held when it was closed.
    """

    data: Path
    tree: Tree
    kinds: Mapping[str, str] = field(default_factory=dict[str, str])
    above: str = ""
    hosts: int = 1
    log: list[list[Use]] = field(default_factory=list)
    dropped: set[str] = field(default_factory=set)
    held: set[tuple[str, int]] = field(default_factory=set)
    loaders: list[Any] = field(default_factory=list)

    def leaf(self, name: str, host: int, part: str = "") -> Any:
        return get_train_dataset(
            self.data / name.rstrip("+"),
            batch_size=None,
            shuffle_buffer_size=8,
            max_samples_per_sequence=4,
            lanes=LANES,
            repeat=False,
            task_encoder=Named(name + part),
            worker_config=WorkerConfig(host, self.hosts, 0),
        )

    def node(self, what: Any, host: int) -> Any:
        if not isinstance(what, str):
            return BlendDataset(*((self.node(each, host), weight) for each, weight in what))
        kind = self.kinds.get(what, "")
        if kind == "twice":
            return ConcatDataset(self.leaf(what, host), self.leaf("e", host, "2"))
        return formed(kind, self.leaf(what, host))

    def loader(self, host: int, **options: Any) -> Any:
        node = formed(self.above, self.node(self.tree, host))
        return get_savable_loader(BatchDataset(node, GLOBAL_BATCH // self.hosts, uses), **options)

    def start(self, state: Any = None, **options: Any) -> None:
        self.close()
        self.loaders = [self.loader(host) for host in range(self.hosts)]
        if state is not None:
            for loader in self.loaders:
                loader.restore_state_rank(state, **options)

    def close(self) -> None:
        self.held = {each for loader in self.loaders for each in held_by(loader.stream)}
        for loader in self.loaders:
            loader.close()

    def state(self) -> Any:
        return merge_cursors([loader.save_state_rank() for loader in self.loaders])

    def step(self, count: int) -> None:
        for _ in range(count):
            self.log.append([use for loader in self.loaders for use in next(loader)])

    def amend(self, **change: Any) -> None:
        for loader in self.loaders:
            loader.amend(**change)


def held_by(stream: Any) -> Iterator[tuple[str, int]]:
    """Dataset and position of each sample that lanes hold."""
    spec, lanes = stream.spec, stream.place.lanes
    if spec.program is None or lanes is None:
        return
    for form, value in walk((spec.program.root.state_form,) * len(lanes), lanes, later=True):
        if isinstance(form, Place):
            draws = spec.program.feeds[form.feed].draw(np.array([value]))
            kind, key, *_ = spec.leaves[int(draws.leaf[0])].key
            yield key.split("/")[1] if kind == "removed" else key, int(draws.child[0])


def formed(kind: str, node: Any) -> Any:
    if kind == "filter":
        return FilterDataset(node, kept)
    if kind == "pack":
        return PackingDataset(node, 7, groups, joined)
    if kind == "group":
        return GroupBatchDataset(node, 3, parity, joined)
    return node


def check(run: GraphRun, last: int) -> None:
    """Every lane of every dataset goes on without a gap and nothing comes twice, in the order of the dataset alone.

    Args:
        run: With its log.
        last: Steps at the end in which lanes deliver what they hold.
    """
    seen = Counter(use for step in run.log for use in step)
    assert not seen or max(seen.values()) == 1
    done: dict[tuple[str, int], int] = {(name, child): key for name, child, key in seen}
    before: dict[tuple[str, int], int] = defaultdict(int)
    for step in run.log[:-last]:
        for name, child, _ in step:
            before[name, child % LANES] = max(before[name, child % LANES], child)
    for name in {name for name, _ in before}:
        order = own_order(run, name, max(child for (each, _), child in before.items() if each == name))
        for lane in range(LANES):
            for child in range(lane, before.get((name, lane), -1) + 1, LANES):
                if (name, child) in done:
                    assert done[name, child] == order[child], (name, child)
                elif name not in run.dropped and (name, child) not in run.held:  # filtered
                    assert (run.kinds.get(name), order[child] % 5) == ("filter", 2), (name, child)


def own_order(run: GraphRun, name: str, until: int) -> dict[int, int]:
    """The samples at the positions of a dataset, if it were alone."""
    kinds = {each: kind for each, kind in run.kinds.items() if kind != "filter"}
    alone = GraphRun(run.data, [[name, 1]], kinds, run.above)
    if name.endswith("2"):
        alone.tree = [[next(each for each, kind in run.kinds.items() if kind == "twice"), 1]]
    alone.start()
    found: dict[int, int] = {}
    while not found.keys() >= set(range(until + 1)):
        alone.step(1)
        found |= {child: key for each, child, key in alone.log[-1] if each == name}
        assert len(alone.log) < 10_000
    alone.close()
    return found


def changed(rng: random.Random, tree: Tree, spare: list[str]) -> Tree:
    """Another tree: other weights; and datasets added, removed, or moved."""
    after = copied(tree)
    for blend in blends(after):
        for entry in blend:
            entry[1] = rng.choice([1, 2, 3, 5])
    kind = rng.random()
    missing = [name for name in spare if name not in names_in(after)]
    blend = rng.choice(list(blends(after)))
    leaves = [entry for entry in blend if isinstance(entry[0], str)]
    if kind < 0.35 and missing:
        blend.insert(rng.randrange(len(blend) + 1), [rng.choice(missing), rng.choice([1, 4])])
    elif kind < 0.8 and leaves and len(blend) > 1:
        entry = rng.choice(leaves)
        blend.remove(entry)
        if kind > 0.5:
            others = [each for each in blends(after) if each is not blend]
            if others:
                rng.choice(others).append(entry)
    for each in blends(after):
        rng.shuffle(each)
    return after


def copied(tree: Tree) -> Tree:
    return [[what if isinstance(what, str) else copied(what), weight] for what, weight in tree]


def blends(tree: Tree) -> Iterator[Tree]:
    yield tree
    for what, _ in tree:
        if not isinstance(what, str):
            yield from blends(what)


def history(rng: random.Random, run: GraphRun, hosts: Iterator[int], spare: list[str], last: int) -> None:
    """Run, change the tree at restarts, restore without a change, and deliver what lanes hold in `last` steps."""
    run.hosts = next(hosts)
    run.start()
    run.step(rng.randrange(1, 10))
    for _ in range(rng.randrange(2, 6)):
        state = run.state()
        run.hosts = next(hosts)
        if rng.random() < 0.75:
            before, run.tree = run.tree, changed(rng, run.tree, spare)
            try:
                run.start(state, on_change="amend")
            except AmendmentError as error:
                if re.search("held='drop'", str(error)):
                    run.dropped |= set(names_in(before)) - set(names_in(run.tree))
                    run.start(state, on_change="amend", held="drop")
                elif re.search(REFUSED, str(error)):
                    run.tree = before
                    run.start(state)
                else:
                    raise
        else:
            run.start(state)
        run.step(rng.randrange(1, 20))
    run.step(last)
    run.close()
