"""Random histories of runs that change, against counts of what was delivered and each dataset's own order.

A history is up to 20 changes: restarts with an edited configuration, changes while it runs, restarts on other hosts,
and returns to earlier states. It is carried out on many hosts and again on one.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from amended_runs import ENTRIES, SIZES, Packing, Plain, Run, Skipping, Use

from energon_grain.errors import AmendmentError

NIGHT = os.environ.get("HYPOTHESIS_PROFILE") == "night"
HISTORIES = int(os.environ.get("HISTORIES", "1000" if NIGHT else "100"))
TAIL = 10
"""Steps at the end, in which packs deliver what they hold."""
KINDS = {"thread": 20, "process": 50, "torch": 50}
"""One of n histories has workers of this kind."""


@dataclass(frozen=True)
class Mixture:
    """A configuration: weights of the outermost blend, and of one in it."""

    outer: dict[str, float]
    inner: dict[str, float]
    share: float

    @property
    def written(self) -> Mixture:
        """The same in a file, where a dataset of weight 0 is left out."""
        return Mixture({name: weight for name, weight in self.outer.items() if weight}, self.inner, self.share)


@dataclass(frozen=True)
class Change:
    """One change of a run, and the steps after it.

    Attributes:
        kind: "edit", "live", "hosts" (nothing but other hosts) or "back" (to an earlier state).
        to: The mixture from then on.
        back: For "back": the number of the change before which the state was saved.
    """

    kind: str
    to: Mixture
    steps: int
    back: int = 0


@dataclass(frozen=True)
class Plan:
    """A history."""

    encoder: type[Plain]
    lanes: int
    global_batch: int
    hosts: list[int]
    workers: tuple[int, str]
    first: Mixture
    changes: list[Change]


def plan(seed: int) -> Plan:
    rng = random.Random(seed)
    encoder = (Plain, Skipping, Packing)[seed % 3]
    lanes, global_batch, hosts = rng.choice(
        [(12, 12, [1, 2, 3, 4, 6, 12]), (48, 48, [1, 2, 8, 16]), *[(12, 20, [1, 2, 5, 10])] * (encoder is Plain)]
    )
    kind = next((kind for kind, each in KINDS.items() if rng.randrange(each) == 0), "")
    if kind in ("process", "torch"):
        hosts = hosts[:2]
    names = list(SIZES) if rng.random() < 0.6 else list(ENTRIES)
    rng.shuffle(names)
    inner = _weights(rng, names[3:5]) if rng.random() < 0.4 else {}
    first = mixture = Mixture(_weights(rng, names[:2]), inner, 2)
    longest = rng.choice([2, 4, 4, 20 if NIGHT or seed % 25 == 0 else 6])
    changes, before = list[Change](), list[Mixture]()
    for _ in range(rng.randrange(1, longest + 1)):
        before.append(mixture)
        if rng.random() < 0.1:
            back = rng.randrange(len(before))
            changes.append(Change("back", before[back].written, rng.choice([1, 3]), back))
        else:
            changes.append(_change(rng, encoder, names, mixture))
        mixture = changes[-1].to
    return Plan(
        encoder=encoder,
        lanes=lanes,
        global_batch=global_batch,
        hosts=[rng.choice(hosts if rng.random() < 0.2 else hosts[:3]) for _ in range(len(changes) + 1)],
        workers=(1 if kind != "thread" else 2, kind) if kind else (0, "thread"),
        first=first,
        changes=changes,
    )


def _weights(rng: random.Random, names: Iterable[str]) -> dict[str, float]:
    return {name: rng.choice([1, 2, 3, 5]) for name in names}


def _change(rng: random.Random, encoder: type[Plain], names: list[str], now: Mixture) -> Change:
    kind = rng.choice(["edit", "edit", "live", "hosts"])
    steps = rng.choice([1, 2, 3, 5])
    if kind != "live":
        now = now.written
    if kind == "hosts":
        return Change(kind, now, steps)
    outer, inner, share = _weights(rng, now.outer), now.inner, now.share
    if inner and rng.random() < 0.5:
        inner = _weights(rng, inner)
    plain = [
        name
        for name in names
        if name not in {*outer, *inner} and (kind == "edit" or (name in SIZES and "c2" not in {*outer, *inner}))
    ]
    if plain and rng.random() < 0.5:
        outer[rng.choice(plain)] = rng.choice([1, 4])
    if len(outer) > 1 and rng.random() < 0.4 and encoder is not Packing:  # packs may hold its samples
        gone = rng.choice(list(outer))
        if kind == "live":
            outer[gone] = 0
        else:
            del outer[gone]
    if inner:
        share = rng.choice([1, 2, 4])
    items = list(outer.items())
    rng.shuffle(items)
    if not any(outer.values()):
        items[0] = (items[0][0], 1)
    return Change(kind, Mixture(dict(items), inner, share), steps)


@dataclass
class Carried:
    """A history that was carried out.

    Attributes:
        parts: Steps at which the shares changed, and the shares from there on.
    """

    run: Run
    parts: list[tuple[int, dict[str, float]]] = field(default_factory=list)


def shares(mixture: Mixture) -> dict[str, float]:
    total = sum(mixture.outer.values()) + (mixture.share if mixture.inner else 0)
    found = {name: weight / total for name, weight in mixture.outer.items()}
    part = mixture.share / total / sum(mixture.inner.values()) if mixture.inner else 0
    return found | {name: weight * part for name, weight in mixture.inner.items()}


def carry_out(plan: Plan, data: Path, folder: Path, hosts: list[int], workers: tuple[int, str]) -> Carried:
    run = Run(
        data, plan.encoder, plan.first.outer, hosts[0], workers, plan.first.inner, plan.first.share, folder=folder
    )
    run.lanes, run.global_batch = plan.lanes, plan.global_batch
    run.start()
    run.step(2)
    done = Carried(run, [(0, shares(plan.first))])
    states = list[tuple[Any, list[list[Use]], list[tuple[int, dict[str, float]]]]]()
    mixture = plan.first
    for change, number in zip(plan.changes, hosts[1:], strict=True):
        states.append((run.state(), [*run.log], [*done.parts]))
        if change.kind == "live":
            _live(run, mixture, change.to)
            mixture = change.to
        else:
            state = states[-1][0]
            mixture = change.to
            if change.kind == "back":
                state, run.log, done.parts = states[change.back]
                run.log, done.parts = [*run.log], [*done.parts]
            run.weights, run.inner, run.share, run.hosts = mixture.outer, mixture.inner, mixture.share, number
            run.start(state, on_change="amend")
        if done.parts[-1][1] != shares(mixture):
            done.parts.append((run.steps, shares(mixture)))
        run.step(change.steps)
    run.step(TAIL)
    return done


def _live(run: Run, now: Mixture, to: Mixture) -> None:
    before, weights = ({**each.outer, **each.inner} for each in (now, to))
    if to.inner:  # blends in blends of a metadataset are one blend
        total = sum(to.inner.values())
        weights = {name: to.share * weight if name in to.inner else total * weight for name, weight in weights.items()}
    add = {name: {"path": str(run.data / name), "subflavors": {"name": name}} for name in weights if name not in before}
    try:
        run.amend(weights=weights, add=add, note="live")
    except AmendmentError as error:
        if "nothing changes" not in str(error):
            raise


def check(done: Carried, own: dict[str, list[tuple[int, int]]]) -> None:
    """Every dataset delivers its own order, lane by lane, without a gap and without a repetition."""
    run = done.run
    seen = [use for step in run.log for use in step]
    assert max(Counter((name, child) for name, child, *_ in seen).values()) == 1
    assert max(Counter((name, key, epoch) for name, _, key, epoch in seen).values()) == 1
    for name, child, *use in seen:
        assert child >= len(own[name]) or own[name][child] == tuple(use), (name, child)
    reached: dict[tuple[str, int], int] = {}
    for step in run.log[:-TAIL]:
        for name, child, *_ in step:
            reached[name, child % run.lanes] = max(reached.get((name, child % run.lanes), 0), child)
    delivered = {(name, child) for name, child, *_ in seen}
    lost = [
        (name, child)
        for (name, lane), last in reached.items()
        for child in range(lane, min(last, len(own[name])), run.lanes)
        if (name, child) not in delivered and not run.encoder.drops_sample(own[name][child][0])
    ]
    assert not lost, lost[:5]


def check_shares(done: Carried) -> None:
    """Without drops, the shares of every part of the run are those of its weights."""
    ends = [*(first for first, _ in done.parts[1:]), done.run.steps]
    for (first, shares), end in zip(done.parts, ends, strict=True):
        counts = Counter(name for step in done.run.log[first:end] for name, *_ in step)
        total = sum(counts.values())
        for name in {*counts, *shares}:
            assert abs(counts[name] - shares.get(name, 0) * total) <= 24, (name, first, end)


@cache
def own_order(data: Path, encoder: type[Plain], lanes: int) -> dict[str, list[tuple[int, int]]]:
    """Number and pass of each sample of each dataset, by position in its own stream: of a run that never changes."""
    run = Run(data, encoder, dict.fromkeys(ENTRIES, 1), lanes=lanes, global_batch=lanes, drops=False)
    run.start()
    run.step(2400 // lanes // (2 if encoder.packs else 1))
    run.close()
    found: dict[str, dict[int, tuple[int, int]]] = {name: {} for name in ENTRIES}
    for name, child, *use in (use for step in run.log for use in step):
        found[name][child] = (use[0], use[1])
    return {
        name: [own[at] for at in range(next(at for at in range(len(own) + 1) if at not in own))]
        for name, own in found.items()
    }


@pytest.mark.parametrize("seed", range(HISTORIES))
def test_nothing_twice_nothing_lost(data: Path, tmp_path: Path, seed: int) -> None:
    chosen = plan(seed)
    done = carry_out(chosen, data, tmp_path, chosen.hosts, chosen.workers)
    try:
        check(done, own_order(data, chosen.encoder, chosen.lanes))
        if chosen.encoder is Plain:
            check_shares(done)
            present = {name for name, share in done.parts[-1][1].items() if share}  # others may be gone from the disk
            known = [number for number, step in enumerate(done.run.log) if present.issuperset(use[0] for use in step)]
            for step in random.Random(seed).choices(known, k=2 if known else 0):
                records = [(int(each.key), each.epoch) for each in done.run.loaders[0].which(step)]
                assert sorted(records) == sorted((key, epoch) for _, _, key, epoch in done.run.log[step])
    finally:
        done.run.close()
    if chosen.hosts == [1] * len(chosen.hosts) and not chosen.workers[0]:
        return
    alone = carry_out(chosen, data, tmp_path, [1] * len(chosen.hosts), (0, "thread"))
    alone.run.close()
    assert [_sorted(step) for step in done.run.log] == [_sorted(step) for step in alone.run.log]


def _sorted(step: list[Use]) -> list[Use]:
    return sorted(step)
