"""Packs and batches that are planned from columns: what they are made of, on any hosts, from any state."""

from __future__ import annotations

import json
import logging
import threading
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from planned_data import (
    CAPACITY,
    SAMPLES,
    Packing,
    add_column,
    long_tokens,
    make_tokens,
    packed,
    stream_of,
    tokens,
    tokens_of,
    told,
)
from small_graphs import require_exact_states
from stream_hosts import config

from energon_grain import (
    BatchDataset,
    BlendDataset,
    ConcatDataset,
    ConfigError,
    CostBudget,
    EmptyDatasetError,
    FilterDataset,
    LimitDataset,
    MapDataset,
    PackingPlan,
    PlannedPackingDataset,
    SkipSample,
    Stream,
    TaskEncoder,
    get_val_dataset,
    merge_cursors,
)
from energon_grain.errors import FingerprintError, HostsError, KeyNotFoundError, StateError

__all__ = ["long_tokens", "tokens"]
PLAN = PackingPlan("tokens", capacity=CAPACITY, window=100)


def keys(packs: Any) -> list[str]:
    return [key for pack in packs for key, _ in pack.members]


def costs(packs: Any, largest: int = CAPACITY) -> list[int]:
    return [sum(int(tokens_of(largest)[int(key)]) for key, _ in pack.members) for pack in packs]


def steps_of(path: Path, hosts: int, steps: int, **options: Any) -> list[list[Any]]:
    """What all hosts get in each step."""
    streams = [stream_of(path, host=host, hosts=hosts, **options) for host in range(hosts)]
    return [[next(stream) for stream in streams] for _ in range(steps)]


def test_packs_are_full_and_hold_every_sample_of_a_pass_once(tokens: Path) -> None:
    stream = stream_of(tokens, packing=PLAN, repeat=False)
    first, second = list(stream), list(stream)
    for packs in (first, second):
        assert sorted(keys(packs)) == [f"{number:06d}" for number in range(SAMPLES)]
        assert max(costs(packs)) <= CAPACITY
        assert sum(costs(packs)) > 0.95 * CAPACITY * len(packs)
    assert len(first) == len(stream_of(tokens, packing=PLAN, repeat=False))
    assert list(map(told, first)) != list(map(told, second))


def test_packs_go_over_the_ends_of_passes(tokens: Path) -> None:
    seen = Counter(keys(islice(stream_of(tokens, packing=PLAN), 500)))
    assert set(seen.values()) <= {2, 3, 4, 5}


@pytest.mark.parametrize("repeat", [True, False], ids=["endless", "finite"])
def test_a_state_is_continued_on_other_hosts(tokens: Path, repeat: bool) -> None:
    options: dict[str, Any] = {"packing": PLAN, "repeat": repeat, "lanes": 48}
    expected = [told(pack) for pack in islice(stream_of(tokens, **options), 105)]
    streams = [stream_of(tokens, host=host, hosts=3, **options) for host in range(3)]
    for _ in range(21):
        for stream in streams:
            next(stream)
    saved = json.loads(json.dumps(merge_cursors([stream.cursor(with_manifest=True) for stream in streams])))
    streams = [stream_of(tokens, host=host, hosts=7, **options) for host in range(7)]
    for stream in streams:
        stream.restore(saved)
        assert stream.cursor()["plans"] == saved["plans"]
    found = [told(next(stream)) for _ in range(6) for stream in streams]
    assert found == expected[63:105]


def test_a_restored_stream_plans_nothing_again(tokens: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = stream_of(tokens, packing=PLAN)
    list(islice(stream, 1000))
    saved = stream.cursor()
    assert len(json.dumps(saved)) < 1024
    windows: list[int] = []
    advance = type(stream.spec.order.planned)._advance

    def counted(self: Any, pass_number: int, carry: Any) -> Any:
        windows.append(carry[0])
        return advance(self, pass_number, carry)

    monkeypatch.setattr(type(stream.spec.order.planned), "_advance", counted)
    other = stream_of(tokens, packing=PLAN)
    other.restore(saved)
    assert told(next(other)) == told(next(stream))
    assert 0 < len(windows) < 5  # the plans of the next chunk, of some forty windows


def test_which_skip_and_replay(tokens: Path) -> None:
    stream = stream_of(tokens, packing=PLAN, batch_size=2)
    batches = list(islice(stream, 30))
    for step in (0, 17, 29):
        records = stream.which(step)
        assert not records.read
        assert [record.key for record in records] == keys(batches[step].packs)
        assert sorted({record.item for record in records}) == [2 * step, 2 * step + 1]
    again = stream.restore_sample(json.loads(json.dumps(batches[7].__restore_key__)))
    assert [told(pack) for pack in again.packs] == [told(pack) for pack in batches[7].packs]
    key = ("pack", 0, 3, ((0, 5), (0, 9)), ((0, 4), (0, 7)))
    pack = stream.restore_sample(key)
    assert (pack.ranges, pack.__restore_key__) == (key[4], key)
    for wrong in (
        ("pack", 1, *key[2:]),
        (*key[:3], (), ()),
        (*key[:3], ((1, 5), (0, 9)), key[4]),
        (*key[:4], ((4, 0), (0, 7))),
        (*key[:4], ((0, 4),)),
        ("pack", 7),
    ):
        with pytest.raises(StateError, match="is not a restore key of this dataset"):
            stream.restore_sample(wrong)
    skipping = stream_of(tokens, packing=PLAN, batch_size=2)
    skipping.skip(25)
    assert [told(pack) for pack in next(skipping).packs] == [told(pack) for pack in batches[25].packs]


def test_a_sample_that_is_dropped_leaves_its_place_empty(tokens: Path) -> None:
    skipped = set(range(0, SAMPLES, 10))
    whole = stream_of(tokens, packing=PLAN, repeat=False)
    # Seven hosts do not divide the lanes: nothing moves up, so they need not.
    streams = [stream_of(tokens, packing=PLAN, host=h, hosts=7, task_encoder=Packing(skipped)) for h in range(7)]
    endless = stream_of(tokens, packing=PLAN)
    for _ in range(5):
        for stream in streams:
            expected = [entry for entry in next(endless).members if int(entry[0]) not in skipped]
            assert list(next(stream).members) == expected
    holed = stream_of(tokens, packing=PLAN, repeat=False, task_encoder=Packing(skipped))
    packs = list(holed)
    assert sorted(keys(packs)) == sorted(set(keys(whole)) - {f"{number:06d}" for number in skipped})
    [dropped] = holed.stats().dropped.values()
    assert dropped["postencode_sample: SkipSample"] == len(skipped)
    assert all(len(pack.ranges) == len(pack.members) for pack in packs)


def test_packs_that_are_dropped_make_room_for_later_ones_of_their_lane(tokens: Path) -> None:
    fails = Packing(fails=lambda pack: pack.number % 9 == 0)
    options: dict[str, Any] = {"packing": PLAN, "lanes": 8, "task_encoder": fails}
    whole = [told(pack) for pack in islice(stream_of(tokens, packing=PLAN, lanes=8), 400)]
    lanes = [[pack for pack in whole[lane::8] if pack[2] % 9] for lane in range(8)]
    expected = [lanes[item % 8][item // 8] for item in range(240)]
    stream = stream_of(tokens, **options)
    assert [told(pack) for pack in islice(stream, 240)] == expected
    dropped = stream.stats().dropped
    assert list(dropped.values()) == [{"pack_selected_samples: SkipSample": stream.stats().dropped_total}]
    found = [told(pack) for step in steps_of(tokens, 4, 60, **options) for pack in step]
    assert sorted(found) == sorted(expected)
    records = stream.which(100)
    assert records.read
    assert [record.key for record in records] == [key for key, _ in expected[100][0]]
    with pytest.raises(HostsError, match="do not divide the 8 lanes"):
        steps_of(tokens, 7, 60, **options)


def test_a_pack_of_which_nothing_is_left_is_dropped(tokens: Path) -> None:
    alone = {number for number in range(SAMPLES) if tokens_of(CAPACITY)[number] == CAPACITY}
    assert alone
    stream = stream_of(tokens, packing=PLAN, repeat=False, task_encoder=Packing(alone))
    packs = list(stream)
    assert all(pack.members for pack in packs)
    [dropped] = stream.stats().dropped.values()
    assert dropped == {
        "postencode_sample: SkipSample": len(alone),
        "pack_selected_samples: SkipSample": len(alone),
    }


class Tiles:
    """Where the parts of each sample are, by pack."""

    def __init__(self, packs: list[Any], largest: int) -> None:
        self.parts: dict[str, list[tuple[int, int, int]]] = {}
        for number, pack in enumerate(packs):
            for (key, _), (start, stop) in zip(pack.members, pack.ranges, strict=True):
                self.parts.setdefault(key, []).append((start, stop, number))
        self.largest = largest

    def check(self, *, exactly: bool) -> None:
        for key, parts in self.parts.items():
            ends = [0, *(stop for _, stop, _ in sorted(parts))]
            assert [start for start, _, _ in sorted(parts)] == ends[:-1]
            assert ends[-1] == tokens_of(self.largest)[int(key)]
        if exactly:
            assert len(self.parts) == SAMPLES


def test_large_samples_are_split_over_neighbouring_packs(long_tokens: Path) -> None:
    plan = PackingPlan("tokens", capacity=CAPACITY, window=100, oversize="split")
    stream = stream_of(long_tokens, packing=plan, repeat=False)
    packs = list(stream)
    Tiles(packs, 4 * CAPACITY).check(exactly=True)
    assert all(sum(stop - start for start, stop in pack.ranges) <= CAPACITY for pack in packs)
    split = {key: parts for key, parts in Tiles(packs, 4 * CAPACITY).parts.items() if len(parts) > 1}
    assert len(split) > 10
    for parts in split.values():
        numbers = sorted(number for _, _, number in parts)
        between = [pack for pack in packs[numbers[0] : numbers[-1] + 1] if {key for key, _ in pack.members} & {*split}]
        assert len(between) == numbers[-1] - numbers[0] + 1  # nothing but parts
    keys_again = Counter(record.key for step in range(len(packs)) for record in stream.which(step))
    assert keys_again == Counter(keys(packs))


def test_large_samples_are_left_out_or_alone(long_tokens: Path, caplog: pytest.LogCaptureFixture) -> None:
    lengths = tokens_of(4 * CAPACITY)
    large = {f"{number:06d}" for number in range(SAMPLES) if lengths[number] > CAPACITY}
    drop = PackingPlan("tokens", capacity=CAPACITY, window=100, oversize="drop")
    with caplog.at_level(logging.WARNING, "energon_grain"):
        packs = list(stream_of(long_tokens, packing=drop, repeat=False))
    assert [record.getMessage() for record in caplog.records if "larger than a pack" in record.getMessage()]
    assert sorted(keys(packs)) == sorted({f"{number:06d}" for number in range(SAMPLES)} - large)
    alone = PackingPlan("tokens", capacity=CAPACITY, window=100, oversize="alone")
    packs = list(stream_of(long_tokens, packing=alone, repeat=False))
    assert len(keys(packs)) == SAMPLES
    over = [pack for pack, cost in zip(packs, costs(packs, 4 * CAPACITY), strict=True) if cost > CAPACITY]
    assert {key for pack in over for key, _ in pack.members} == large
    assert len(over) == len(large)


def test_a_sample_that_is_too_large_is_named(long_tokens: Path) -> None:
    with pytest.raises(ConfigError, match=r"shard_00\d.tar: 000\d+: tokens is \d+, but a pack holds 64: .*'split'"):
        stream_of(long_tokens, packing=PLAN)
    with pytest.raises(ConfigError, match=r"a batch holds 64: .*'drop'.*'alone'") as told:
        stream_of(long_tokens, batch_size=CostBudget("tokens", CAPACITY))
    assert "split" not in str(told.value)  # which is refused for batches
    tiny = PackingPlan({"tokens": 4 * CAPACITY, "images + 100": 50}, oversize="drop")
    with pytest.raises(ConfigError, match="every sample is larger than a pack"):
        stream_of(long_tokens, packing=tiny)


def test_several_capacities_and_a_number_of_samples(tokens: Path) -> None:
    plan = PackingPlan({"tokens": 2 * CAPACITY, "images": 3}, window=200, max_samples=5)
    packs = list(stream_of(tokens, packing=plan, repeat=False))
    assert sorted(keys(packs)) == [f"{number:06d}" for number in range(SAMPLES)]
    assert max(costs(packs)) <= 2 * CAPACITY
    assert max(len(pack.members) for pack in packs) == 5
    images = [sum(int(key) % 3 for key, _ in pack.members) for pack in packs]
    assert max(images) == 3
    assert sum(images) > 0.9 * 3 * len(packs)


@pytest.mark.parametrize("last_batch", ["keep", "drop", "pad"])
def test_finite_passes_end_as_their_last_batch_says(tokens: Path, last_batch: Any) -> None:
    stream = stream_of(tokens, packing=PLAN, repeat=False, batch_size=8, last_batch=last_batch)
    for _ in range(2):
        steps, batches = len(stream), list(stream)
        assert len(batches) == steps
        found = keys(pack for batch in batches for pack in batch.packs)
        if last_batch == "keep":
            assert len(found) == SAMPLES
        elif last_batch == "pad":
            real = keys(p for batch in batches for p, v in zip(batch.packs, batch.__valid__, strict=True) if v)
            assert sorted(real) == [f"{number:06d}" for number in range(SAMPLES)]
        else:
            assert len(found) > SAMPLES - 8 * 20


def test_validation_is_packed_alike_in_every_pass(tokens: Path) -> None:
    def dataset(host: int = 0, hosts: int = 1, **options: Any) -> Any:
        given = {"batch_size": 2, "task_encoder": Packing(), "packing": PLAN, "worker_config": config(host, hosts)}
        return get_val_dataset(tokens, **{**given, **options})

    stream = Stream.of(dataset())
    first = [told(pack) for batch in stream for pack in batch.packs]
    assert first == [told(pack) for batch in stream for pack in batch.packs]
    streams = [Stream.of(dataset(host, 3)) for host in range(3)]  # no host waits for another
    real = []
    for _ in range(len(streams[0])):
        batches = [next(each) for each in streams]
        real += [told(p) for batch in batches for p, v in zip(batch.packs, batch.__valid__, strict=True) if v]
    assert sorted(real) == sorted(first)
    assert len(list(Stream.of(dataset(limit=3)))) == 3


def test_batches_by_budget(tokens: Path) -> None:
    budget = CostBudget("tokens", 4 * CAPACITY, window=200)
    stream = stream_of(tokens, batch_size=budget, repeat=False)
    batches = list(stream)
    assert len(batches) == len(stream_of(tokens, batch_size=budget, repeat=False))
    members = [[key for key, _ in batch.packs] for batch in batches]
    assert sorted(key for batch in members for key in batch) == [f"{number:06d}" for number in range(SAMPLES)]
    lengths = tokens_of(CAPACITY)
    assert max(sum(int(lengths[int(key)]) for key in batch) for batch in members) <= 4 * CAPACITY
    assert batches[0].__valid__ is None
    expected = [batch.packs for batch in islice(stream_of(tokens, batch_size=budget), 30)]
    assert [batch.packs for step in steps_of(tokens, 5, 6, batch_size=budget) for batch in step] == expected
    again = stream.restore_sample(batches[3].__restore_key__)
    assert again.packs == batches[3].packs


class Encoding(Packing):
    def encode_batch(self, batch: Any) -> Any:
        return batch.packs, self.current_batch_index, float(self.rng.random())


def test_hooks_of_budgeted_batches_know_their_step(tokens: Path) -> None:
    budget = CostBudget("tokens", 4 * CAPACITY, window=200)
    batches = list(islice(stream_of(tokens, batch_size=budget, task_encoder=Encoding()), 12))
    assert [number for _, number, _ in batches] == list(range(12))
    hosts = steps_of(tokens, 3, 4, batch_size=budget, task_encoder=Encoding())
    assert [(b[0], b[2]) for step in hosts for b in step] == [(batch[0], batch[2]) for batch in batches]
    assert [[b[1] for b in step] for step in hosts] == [[step] * 3 for step in range(4)]


def mixture(path: Path, host: int, hosts: int) -> Any:
    """Packs beside packs, in lanes; those of the second are filtered once they are made."""
    parts = []
    for number, window in enumerate((100, 150)):
        samples = packed(path, host=host, hosts=hosts, seed=number, lanes=12, task_encoder=TaskEncoder())
        plan = PackingPlan("tokens", capacity=CAPACITY, window=window)
        encoder = Packing({number, 50})
        mapped = MapDataset(samples, encoder.postencode_sample, task_encoder=encoder)
        parts.append(PlannedPackingDataset(mapped, plan, encoder.pack_selected_samples, task_encoder=encoder))
    parts[1] = FilterDataset(parts[1], lambda pack: pack.number % 3 != 0)
    return BatchDataset(BlendDataset((parts[0], 2), (parts[1], 1)), 12 // hosts, lambda packs: list(map(told, packs)))


def test_packs_in_a_blend(tokens: Path) -> None:
    stream = Stream.of(mixture(tokens, 0, 1))
    states = [stream.cursor(with_manifest=True)]
    expected = []
    for _ in range(20):
        expected.append(next(stream))
        states.append(json.loads(json.dumps(stream.cursor(with_manifest=True))))
    for at in (0, 3, 11):
        hosts = [Stream.of(mixture(tokens, host, 4)) for host in range(4)]
        for each in hosts:
            each.restore(states[at])
        for step in range(at, at + 4):
            assert sorted(pack for each in hosts for pack in next(each)) == sorted(expected[step])
    keys_of_step = sorted(key for members, _, _ in expected[5] for key, _ in members)
    assert set(keys_of_step) <= {record.key for record in stream.which(5)}


def finite(path: Path) -> Any:
    """All packs of a pass, and then its first ones again, in lanes."""
    encoder = Packing()
    samples = packed(path, repeat=False, lanes=12, task_encoder=TaskEncoder())
    mapped = MapDataset(samples, encoder.postencode_sample, task_encoder=encoder)
    packs = PlannedPackingDataset(mapped, PLAN, encoder.pack_selected_samples, task_encoder=encoder)
    return BatchDataset(ConcatDataset(packs, LimitDataset(packs, 40)), 12, lambda packs: list(map(told, packs)))


def test_finite_packs_in_lanes(tokens: Path) -> None:
    expected = require_exact_states(lambda: finite(tokens), 40, every=7, ahead=3)
    steps = expected.index(None)
    everything = [members for batch in expected[:steps] for members, _, _ in batch]
    assert Counter(key for members in everything[:-40] for key, _ in members).most_common(1)[0][1] <= 2
    assert {key for members in everything for key, _ in members} == {f"{number:06d}" for number in range(SAMPLES)}


def test_what_does_not_go_together(tokens: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Selecting(Packing):
        def select_samples_to_pack(self, samples: list[Any]) -> list[list[Any]]:
            return [samples]

    with caplog.at_level(logging.WARNING, "energon_grain"):
        packed(tokens, packing=PLAN, task_encoder=Selecting())
    assert "select_samples_to_pack is not called" in caplog.text

    class Whole(TaskEncoder):
        def pack_selected_samples(self, samples: list[Any]) -> Any:
            return samples

    class Several(TaskEncoder):
        def pack_selected_samples(self, samples: list[Any]) -> Any:
            yield samples

    class Halves(Packing):
        def encode_sample(self, sample: Any) -> Any:
            yield sample

    split = PackingPlan("tokens", capacity=CAPACITY, oversize="split")
    budget = CostBudget("tokens", CAPACITY)
    for options, message in (
        ({"packing": PLAN, "task_encoder": TaskEncoder()}, "has no pack_selected_samples"),
        ({"packing": PLAN, "packing_buffer_size": 9}, "both define the packs"),
        ({"packing": PLAN, "batch_size": budget}, "both define the packs"),
        ({"packing": split, "task_encoder": Whole()}, "has no parameter `ranges`.*add the parameter"),
        ({"packing": PLAN, "task_encoder": Several()}, "is a generator function"),
        ({"packing": 4096}, "expected a plan, such as"),
        ({"batch_size": budget, "last_batch": "pad", "repeat": False}, "never padded"),
        ({"batch_size": 0}, "a CostBudget, or None"),
    ):
        with pytest.raises(ConfigError, match=message):
            packed(tokens, **options)
    with pytest.raises(ConfigError, match="must be known before they are read"):
        stream_of(tokens, packing=PLAN, task_encoder=Halves())
    with pytest.raises(KeyNotFoundError, match="energon-grain measure"):
        stream_of(tokens, packing=PackingPlan("words", capacity=10))
    with pytest.raises(EmptyDatasetError):
        stream_of(tokens, packing=PLAN, repeat=False, batch_size=5000, last_batch="drop")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"costs": "tokens"}, "expected one cost and its capacity"),
        ({"costs": {"tokens": 3}, "capacity": 3}, "expected one cost and its capacity"),
        ({"costs": {}}, "expected one cost and its capacity"),
        ({"costs": "tokens", "capacity": 0}, "capacity of tokens=0: expected a positive"),
        ({"costs": "tokens +", "capacity": 5}, "PackingPlan"),
        ({"costs": "tokens", "capacity": 5, "window": 0}, "window=0: expected a positive"),
        ({"costs": "tokens", "capacity": 5, "oversize": "cut"}, "expected 'error', 'split'"),
        ({"costs": "tokens", "capacity": 5, "max_samples": 0}, "max_samples=0: expected a positive"),
    ],
)
def test_plans_are_checked(arguments: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        PackingPlan(**arguments)


def test_a_budget_splits_nothing() -> None:
    with pytest.raises(ConfigError, match="cannot be split"):
        CostBudget("tokens", 5, oversize="split")


def test_a_column_that_was_measured_anew_is_another_run(tmp_path: Path) -> None:
    root = make_tokens(tmp_path / "data", samples=60)
    stream = stream_of(root, packing=PLAN)
    next(stream)
    saved = stream.cursor(with_manifest=True)
    stream.close()
    add_column(root, tokens=np.full(60, 7), images=np.zeros(60))
    with pytest.raises(FingerprintError, match="columns"):
        stream_of(root, packing=PLAN).restore(saved)


def test_two_threads_plan_the_same(tokens: Path) -> None:
    stream = stream_of(tokens, packing=PLAN)
    order, found = stream.spec.order, {}

    def draw(name: int) -> None:
        found[name] = [order.draw(np.arange(at, at + 5), 0).child.tolist() for at in (0, 700, 30, 1400)]

    threads = [threading.Thread(target=draw, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    assert all(each == found[0] for each in found.values())


def test_a_filter_leaves_holes(tokens: Path) -> None:
    encoder = Packing()
    samples = packed(tokens, repeat=False, task_encoder=TaskEncoder())
    samples = FilterDataset(samples, lambda sample: int(sample.__key__) % 4 > 0)
    mapped = MapDataset(samples, encoder.postencode_sample, task_encoder=encoder)
    stream = Stream.of(PlannedPackingDataset(mapped, PLAN, encoder.pack_selected_samples, task_encoder=encoder))
    assert len(keys(stream)) == SAMPLES * 3 // 4


def test_a_hook_that_fails_on_packs_is_told(tokens: Path) -> None:
    class Failing(Packing):
        def pack_selected_samples(self, samples: list[Any]) -> Any:
            if len(samples) == 1:
                raise SkipSample("one is too few")
            return super().pack_selected_samples(samples, [])

    stream = stream_of(tokens, packing=PLAN, repeat=False, task_encoder=Failing())
    assert all(len(pack.members) > 1 for pack in stream)
    assert "pack_selected_samples: SkipSample" in next(iter(stream.stats().dropped.values()))
