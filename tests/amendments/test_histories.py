"""Random histories of a run that changes, against a count of what was delivered: nothing twice, nothing lost."""

from __future__ import annotations

import os
import random
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
from amended_runs import DROPPED, LANES, SIZES, Packing, Plain, Run, Skipping, write_data

from energon_grain.errors import AmendmentError

HISTORIES = int(os.environ.get("HISTORIES", "34" if os.environ.get("HYPOTHESIS_PROFILE") == "night" else "8"))
"""Of each kind."""
LAST = 60
"""Steps at the end, in which packs deliver what they hold."""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("data")
    write_data(root)
    return root


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
        (name, child)
        for (name, lane), last in before.items()
        for child in range(lane, last, LANES)
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
                if "nothing changes" not in str(error):
                    raise
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
