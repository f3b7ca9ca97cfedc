"""Samples that a run leaves out: the others go on in their order, in their shares, on any number of hosts."""

from __future__ import annotations

import json
import random
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from amended_runs import DROPPED, GLOBAL_BATCH, LANES, SIZES, Packing, Plain, Run, Skipping, write_data

from energon_grain import (
    BatchDataset,
    get_savable_loader,
    get_train_dataset,
)
from energon_grain.errors import AmendmentError
from energon_grain.samplers.leaf_order import LeafTable

LAST = 60
"""Steps at the end, in which packs deliver what they hold."""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("data")
    write_data(root)
    return root


@pytest.fixture
def run(data: Path, tmp_path: Path) -> Iterator[Run]:
    run = run_over(data, tmp_path, Plain)
    yield run
    run.close()


def run_over(data: Path, folder: Path, encoder: type[Plain]) -> Run:
    for each in data.iterdir():
        if not (folder / each.name).exists():
            (folder / each.name).symlink_to(each)
    return Run(folder, encoder, {"a": 3, "b": 1})


def keys(*numbers: int) -> list[str]:
    return [f"{number:06d}" for number in numbers]


def datasets_of(run: Run) -> list[list[str]]:
    return [[name for name, *_ in step] for step in run.log]


class Story:
    """What a run excluded, to compare it with lists of what the lanes of each dataset drew.

    Attributes:
        gone: (dataset, sample) and the step from which on it is excluded.
    """

    def __init__(self, run: Run) -> None:
        self.run = run
        self.gone: dict[tuple[str, int], int] = {}

    def exclude(self, name: str, samples: list[int], **more: Any) -> None:
        self.run.amend(exclude={name: keys(*samples)}, **more)
        for sample in samples:
            self.gone.setdefault((name, sample), len(self.run.log))

    def check(self) -> None:
        """Lanes have no gap but excluded samples, and those not before their amendment; nothing comes twice."""
        log = self.run.log
        seen = [use for step in log for use in step]
        assert max(Counter((name, key, epoch) for name, _, key, epoch in seen).values()) == 1
        at: dict[tuple[str, int], list[tuple[int, int]]] = defaultdict(list)
        for step, uses in enumerate(log):
            for name, child, *_ in uses:
                at[name, child % LANES].append((child, step))
        done = {(name, child) for name, child, *_ in seen} | DROPPED
        last: dict[tuple[str, int], int] = defaultdict(int)
        for step in log[:-LAST]:
            for name, child, *_ in step:
                last[name, child % LANES] = max(last[name, child % LANES], child)
        spec = self.run.loaders[0].stream.spec
        orders = {Path(leaf.leaf.path).name: leaf.order for leaf in spec.leaves}
        holes = 0
        for (name, lane), end in last.items():
            children = np.arange(lane, end, LANES)
            index, _ = LeafTable([orders[name]], LANES).draw(0, children)
            for child, sample in zip(children.tolist(), index.tolist(), strict=True):
                if (name, child) in done:
                    continue
                holes += 1
                step = self.gone[name, sample]
                assert all(each < child for each, when in at[name, lane] if when < step), (name, child, sample)
        assert holes or not self.gone
        for (name, sample), step in self.gone.items():
            late = [number for number, uses in enumerate(log) for use in uses if (use[0], use[2]) == (name, sample)]
            held = 25 if self.run.encoder is Packing else 0
            assert all(number < step + held for number in late), (name, sample, step, late)


def history(rng: random.Random, run: Run, hosts: Iterator[int]) -> Story:
    run.hosts = next(hosts)
    run.start()
    run.step(rng.randrange(1, 9))
    story = Story(run)
    for _ in range(rng.randrange(3, 7)):
        kind = rng.random()
        if kind < 0.6:
            name = rng.choice("ab")
            left = [each for each in range(SIZES[name]) if (name, each) not in story.gone]
            weights = {"a": rng.choice([1, 2, 5]), "b": rng.choice([1, 3])} if rng.random() < 0.4 else None
            story.exclude(name, rng.sample(left, rng.randrange(1, 6)), weights=weights)
        if kind > 0.4:
            state = run.state()
            run.hosts = next(hosts)
            run.start(json.loads(json.dumps(state)))
        run.step(rng.randrange(1, 20))
    run.step(LAST)
    run.close()
    return story


@pytest.mark.parametrize("encoder", [Plain, Skipping, Packing])
@pytest.mark.parametrize("seed", range(4))
def test_lanes_go_on_without_excluded_samples(data: Path, tmp_path: Path, encoder: type[Plain], seed: int) -> None:
    DROPPED.clear()
    choices = random.Random(seed + 1000)
    run = run_over(data, tmp_path, encoder)
    story = history(random.Random(seed), run, iter(lambda: choices.choice([1, 2, 3, 4]), None))
    story.check()
    alone = run_over(data, tmp_path, encoder)
    history(random.Random(seed), alone, iter(lambda: 1, None))
    assert list(map(sorted, run.log)) == list(map(sorted, alone.log))


def test_shares_and_the_order_of_datasets_stay(run: Run) -> None:
    run.start()
    run.step(5)
    state = run.state()
    run.amend(exclude={"a": keys(3, 4, 50), "b": keys(7)}, note="takedown")
    run.step(60)
    with_holes = datasets_of(run)[5:]
    (amendment,) = run.loaders[0].amendments
    assert sorted(amendment.excluded.values()) == [1, 3]
    assert amendment.note == "takedown"
    assert amendment.before == amendment.after
    run.start(state)
    run.log.clear()
    run.step(60)
    assert datasets_of(run) == with_holes


@pytest.mark.parametrize("encoder", [Plain, Skipping, Packing])
def test_questions_about_steps(run: Run, encoder: type[Plain]) -> None:
    run.encoder = encoder
    run.start()
    run.step(4)
    run.amend(exclude={"a": keys(*range(5, 20))})
    run.step(4)
    run.amend(exclude={"b": keys(1)}, weights={"a": 1, "b": 1})
    run.step(8)
    loader = run.loaders[0]
    for step, uses in enumerate(run.log):
        found = [(Path(each.dataset).name, int(each.key), each.epoch) for each in loader.which(step)]
        assert found == [(name, key, epoch) for name, _, key, epoch in uses]
    peeked = loader.stream.peek(2)
    run.step(2)
    assert run.log[-2:] == peeked
    if encoder is not Packing:
        name, child, key, _ = run.log[10][3]
        leaf = {"a": 0, "b": 1}[name]
        assert loader.restore_sample(("sample", leaf, child)).text[:3] == (name, child, key)
    if encoder is Plain:
        state = run.state()
        run.step(9)
        run.start(state)
        run.loaders[0].skip(6)
        run.step(3)
        assert run.log[-12:-9] != run.log[-3:]
        assert run.log[-6:-3] == run.log[-3:]


def test_a_state_is_enough(run: Run) -> None:
    run.start()
    run.step(3)
    run.amend(exclude={"a": keys(1, 2)})
    run.step(2)
    run.amend(exclude={"a": keys(2, 8)}, note="again")  # 2 is excluded already
    state = json.loads(json.dumps(run.state()))
    run.step(30)
    run.start(state)
    run.step(30)
    assert run.log[5:35] == run.log[35:]
    assert [sum(each.excluded.values()) for each in run.loaders[0].amendments] == [2, 1]
    with pytest.raises(AmendmentError, match="nothing changes"):
        run.amend(exclude={"a": keys(1)})


def leaf(data: Path, name: str, **options: Any) -> Any:
    settings = {"shuffle_buffer_size": 8, "max_samples_per_sequence": 4, "lanes": LANES, "batch_size": None} | options
    return get_train_dataset(data / name, task_encoder=Plain(), **settings)


def numbers(batch: Any) -> list[tuple[int, int]]:
    return [(int(key), draw) for key, draw in zip(batch.__key__, batch.__restore_key__[5:], strict=True)]


def loader_of(dataset: Any, size: int = GLOBAL_BATCH, **options: Any) -> Any:
    return get_savable_loader(
        BatchDataset(dataset, size, lambda samples: [int(each.__key__) for each in samples], **options)
    )
