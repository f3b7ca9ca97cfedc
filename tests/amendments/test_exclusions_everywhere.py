"""Samples that a run leaves out: of joins, below nested blends, with PyTorch, and on many hosts."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from amended_runs import LANES, SIZES, Packing, Plain, Run, Skipping
from uses_oracle import check_uses

from energon_grain import (
    BatchDataset,
    BlendDataset,
    SkipSample,
    TaskEncoder,
    WorkerConfig,
    get_savable_loader,
    get_train_dataset,
    merge_cursors,
)
from energon_grain.errors import AmendmentError, StateError
from energon_grain.samplers.leaf_order import LeafTable


def keys(*numbers: int) -> list[str]:
    return [f"{number:06d}" for number in numbers]


def late(run: Run, begin: int, name: str) -> set[int]:
    return {key for step in run.log[begin:] for each, _, key, _ in step if each == name}


def check_lanes(run: Run, gone: dict[str, set[int]]) -> None:
    """Lanes deliver everything once that hooks do not drop, except excluded samples."""
    delivered = [use[:2] for step in run.log for use in step]
    assert max(Counter(delivered).values()) == 1
    done = set(delivered)
    last: dict[tuple[str, int], int] = {}
    for name, child in (use[:2] for step in run.log[:-20] for use in step):  # later, packs hold some
        last[name, child % run.lanes] = max(last.get((name, child % run.lanes), 0), child)
    orders = {Path(leaf.leaf.path).name: leaf.order for leaf in run.loaders[0].stream.spec.leaves}
    passed = 0
    for (name, lane), end in last.items():
        children = np.arange(lane, end, run.lanes)
        samples, _ = LeafTable([orders[name]], run.lanes).draw(0, children)
        for child, sample in zip(children.tolist(), samples.tolist(), strict=True):
            if (name, child) not in done:
                assert sample in gone[name] or run.encoder.drops_sample(sample), (name, child, sample)
                passed += sample in gone[name]
    assert passed > 10


@pytest.mark.parametrize(
    ("hosts", "workers"), [(1, (0, "thread")), (2, (2, "thread")), (2, (1, "torch")), (8, (0, "thread"))]
)
def test_a_join_by_the_keys_of_its_first_member(run: Run, hosts: int, workers: tuple[int, str]) -> None:
    if workers[1] == "torch":
        pytest.importorskip("torch")
    run.weights, run.present = {"j": 2, "b": 1}, {"j", "b"}
    run.hosts, run.workers = hosts, workers
    run.lanes = run.global_batch = 24 if hosts == 8 else LANES
    run.start()
    run.step(3)
    run.amend(exclude={"j": keys(3, 4, 20)})
    state = json.loads(json.dumps(run.state()))
    run.step(12)
    assert late(run, 0, "j") >= set(range(40)) - {3, 4, 20}
    assert not late(run, 3, "j") & {3, 4, 20}
    assert late(run, 0, "b") == set(range(SIZES["b"]))
    log = run.log
    run.log = log[:3]
    run.hosts, run.workers = 1, (0, "thread")
    run.start(state)
    run.step(12)
    assert [sorted(step) for step in run.log] == [sorted(step) for step in log]
    assert check_uses(run.loaders[0]._stream, run.steps) > run.steps * run.global_batch


def test_ways_to_name_samples_of_a_join(run: Run) -> None:
    run.weights, run.present = {"j": 2, "b": 1}, {"j", "b"}
    run.start()
    loader = run.loaders[0]
    with pytest.raises(AmendmentError, match=r"several datasets have the key '000001' \(name/j/0"):
        loader.amend(exclude=keys(1))
    for exclude in (keys(39), {"j": ["shard_000.tar"]}, {"j": ["shard_001.tar/000030"]}):
        loader.amend(exclude=exclude)
    assert [sum(each.excluded.values()) for each in loader.amendments] == [1, 20, 1]
    run.step(20)
    assert late(run, 0, "j") == set(range(20, 39)) - {30}


@pytest.mark.parametrize(("hosts", "workers"), [(8, (0, "thread")), (1, (2, "torch"))])
@pytest.mark.parametrize("encoder", [Skipping, Packing])
def test_lanes_deliver_all_other_samples(run: Run, encoder: type[Plain], hosts: int, workers: tuple[int, str]) -> None:
    if workers[1] == "torch":
        pytest.importorskip("torch")
    run.encoder, run.hosts, run.workers, run.lanes, run.global_batch = encoder, hosts, workers, 24, 24
    run.start()
    run.step(4)
    run.amend(exclude={"a": keys(0, 1, 50)})
    run.step(2)
    run.amend(exclude={"a": keys(22), "b": keys(8, 10)}, weights={"a": 1, "b": 1})
    state = json.loads(json.dumps(run.state()))
    run.step(60)
    log, run.log = run.log, run.log[:6]
    run.hosts, run.workers = (2, (0, "thread")) if hosts == 8 else (8, (0, "thread"))
    run.start(state)
    run.step(60)
    assert [sorted(step) for step in run.log] == [sorted(step) for step in log]
    gone = {"a": {0, 1, 22, 50}, "b": {8, 10}}
    check_lanes(run, gone)
    if encoder is Skipping:  # packs deliver what they hold
        assert all(not late(run, 6, name) & samples for name, samples in gone.items())
    assert all(not late(run, 40, name) & samples for name, samples in gone.items())


class Naming(TaskEncoder):
    """Says of each sample which it is, from where it is."""

    drops: frozenset[int] = frozenset()

    def encode_sample(self, sample: Any) -> Any:
        (source,) = sample.__sources__
        if int(sample.__key__) in self.drops:
            raise SkipSample
        sample.text = Path(str(source.dataset_path)).name, sample.__restore_key__[2], int(sample.__key__)
        return sample


class Dropping(Naming):
    drops = frozenset({5, 6, 11})


def nested(data: Path, encoder: Any, hosts: int, host: int, per_step: int) -> Any:
    def leaf(name: str) -> Any:
        return get_train_dataset(
            data / name,
            batch_size=None,
            shuffle_buffer_size=8,
            max_samples_per_sequence=4,
            lanes=24,
            task_encoder=encoder(),
            worker_config=WorkerConfig(host, hosts, 0),
        )

    innermost = BlendDataset((leaf("c"), 1), (leaf("d"), 2))
    inner = BlendDataset((leaf("b"), 2), (innermost, 3))
    blend = BlendDataset((leaf("a"), 1), (inner, 2), per_step=per_step)
    return get_savable_loader(BatchDataset(blend, 24 // hosts, lambda samples: [each.text for each in samples]))


Drawn = tuple[str, int, int]


def steps_of(loaders: list[Any], count: int) -> list[list[Drawn]]:
    return [[drawn for loader in loaders for drawn in next(loader)] for _ in range(count)]


def by_lane(steps: list[list[Drawn]]) -> dict[tuple[str, int], list[int]]:
    """The samples of each lane of each dataset, in order."""
    found: dict[tuple[str, int], list[tuple[int, int]]] = {}
    for name, child, key in (drawn for step in steps for drawn in step):
        found.setdefault((name, child % 24), []).append((child, key))
    return {place: [key for _, key in sorted(drawn)] for place, drawn in found.items()}


@pytest.mark.parametrize("hosts", [1, 3, 8])
@pytest.mark.parametrize(("encoder", "per_step"), [(Naming, 0), (Dropping, 0), (Naming, 24)])
def test_blends_in_blends(data: Path, encoder: Any, per_step: int, hosts: int) -> None:
    def started(hosts: int, state: Any = None) -> list[Any]:
        loaders = [nested(data, encoder, hosts, host, per_step) for host in range(hosts)]
        for loader in loaders if state is not None else ():
            loader.restore_state_rank(state)
        return loaders

    gone = {("c", key) for key in (0, 1, 2, 50)} | {("a", 3), ("d", 19)}
    run, whole = started(hosts), started(1)
    before = steps_of(run, 4)
    for loader in run:
        loader.amend(exclude={"c": keys(0, 1), "d": keys(19)})
        loader.amend(exclude={"a": keys(3), "c": keys(2, 50)})
    state = json.loads(json.dumps(merge_cursors([loader.save_state_rank() for loader in run])))
    after = steps_of(run, 16)
    assert not gone & {(name, key) for step in after for name, _, key in step}
    names = [[name for name, *_ in step] for step in before + after]
    every = steps_of(whole, 40)
    if encoder is Naming:
        assert [sorted(step) for step in names] == [sorted(name for name, *_ in step) for step in every[:20]]
    drawn = {(name, child) for step in before for name, child, _ in step}
    kept = [[each for each in step if each[:2] in drawn or each[::2] not in gone] for step in every]
    expected = by_lane(kept)
    for place, keys_of_lane in by_lane(before + after).items():
        assert keys_of_lane == expected[place][: len(keys_of_lane)]
    again = started(4 if hosts == 1 else 1, state)
    assert [sorted(step) for step in steps_of(again, 16)] == [sorted(step) for step in after]
    asked = again
    if encoder is not Naming and len(again) > 1:  # samples were dropped: a host knows its own lanes only
        with pytest.raises(StateError, match="restore the state of all hosts on one host"):
            again[0].which(1)
        asked = started(1, state)
    records = [(Path(each.dataset).name, int(each.key)) for step in (1, 9) for each in asked[0].which(step)]
    assert Counter(records) == Counter(each[::2] for step in (1, 9) for each in (before + after)[step])
    if encoder is Naming:
        assert check_uses(run[0]._stream, 20) > 20 * 24
    for loader in (*run, *whole, *again, *asked):
        loader.close()
