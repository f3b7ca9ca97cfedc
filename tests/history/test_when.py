"""`when` and `seen` are the inverse of `which`: in all graphs, and over changes of hosts, batches and mixtures."""

from __future__ import annotations

import itertools
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from amended_runs import SIZES, Packing, Plain, Run, Skipping, write_data
from hypothesis import HealthCheck, Phase, given, settings, strategies as st
from metadatasets import write_v2
from stream_graphs import Builder, balanced_tops, tops
from stream_hosts import LANES, MakeDataset, config, open_stream
from uses_oracle import check_replay, check_uses, used_keys, uses_of

from benchmarks.uses import blended
from energon_grain import (
    ConfigError,
    EmptyDatasetError,
    FatalSampleError,
    KeyNotFoundError,
    StateError,
    Stream,
    get_savable_loader,
    get_train_dataset,
    merge_cursors,
)
from energon_grain.amendments.holes import Holes
from energon_grain.history.which import is_filtered
from energon_grain.metadataset.documents import prepare_metadataset
from energon_grain.stream.extensions import SEEN, WHEN
from energon_grain.testing import make_text_dataset

OPTIONS: list[dict[str, Any]] = [
    {},
    {"repeat": False, "last_batch": "pad"},
    {"repeat": False, "last_batch": "drop"},
    {"shuffle_over_epochs_multiplier": 3},
    {"shuffle_over_epochs_multiplier": None},
    {"max_samples_per_sequence": 4, "shuffle_buffer_size": 20},
    {"virtual_epoch_length": 3},
    {"where": "bytes.txt % 3 != 1"},
]


def take(stream: Stream, steps: int) -> int:
    """Take steps, over the ends of passes, and return the number of steps so far."""
    for _ in range(steps):
        try:
            next(stream)
        except StopIteration:
            iter(stream)
    return stream.cursor()["step"]


@pytest.mark.parametrize("hosts", [1, 3, 16])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_uses_are_those_of_which(text_dataset: MakeDataset, options: dict[str, Any], hosts: int) -> None:
    lanes = 48 if hosts == 16 else LANES
    stream = open_stream(text_dataset(67), worker_config=config(0, hosts), batch_size=2, lanes=lanes, **options)
    with stream:
        take(stream, 9)
        stream.skip(1)
        assert check_uses(stream, take(stream, 6)) > 20


def test_changes_of_the_batch_size_and_of_the_hosts_are_part_of_the_history(text_dataset: MakeDataset) -> None:
    for repeat, sizes in ((True, ((4, 1), (7, 1), (3, 4), (5, 1))), (False, ((4, 1), (7, 1), (3, 1)))):
        cursor: Any = None
        for size, hosts in sizes:
            options = {"batch_size": size, "repeat": repeat}
            streams = [
                open_stream(text_dataset(53), **options, worker_config=config(host, hosts)) for host in range(hosts)
            ]
            steps = 0
            for stream in streams:
                if cursor is not None:
                    stream.restore(cursor)
                steps = take(stream, 7)
            cursor = merge_cursors([stream.cursor(with_manifest=True) for stream in streams])
            for stream in streams:
                assert check_uses(stream, steps, placed=hosts == 1) > 7
                stream.close()


def test_the_next_use_is_where_it_will_be(text_dataset: MakeDataset) -> None:
    with open_stream(text_dataset(53)) as stream:
        take(stream, 20)
        for key in ("000000", "000031"):
            use = stream.ask(WHEN, [key])[-1]
            assert not use.past
            keys = [[record.key for record in stream.which(step)] for step in range(20, use.step + 1)]
            assert key in keys[-1]
            assert not any(key in each for each in keys[:-1])


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("amended")
    write_data(root)
    return root


AMENDMENTS: list[dict[str, Any]] = [
    {"weights": {"a": 3, "b": 0, "c": 1}},
    {"weights": {"a": 1, "b": 1, "c": 1, "d": 2}, "add": {"d": None}},
    {"remove": ["a"]},
]


@pytest.mark.parametrize("hosts", [1, 2, 4])
def test_amended_runs(data: Path, hosts: int) -> None:
    run = Run(data, Plain, {"a": 1, "b": 2, "c": 1}, hosts)
    run.start()
    for change in AMENDMENTS:
        run.step(11)
        if "add" in change:
            change = {**change, "add": {"d": {"path": data / "d", "subflavors": {"name": "d"}}}}
        run.amend(**change)
    run.step(11)
    stream = run.loaders[0]._stream
    assert check_uses(stream, run.steps) > 40 * 12
    counted = {Path(each.dataset).name: each.times for each in run.loaders[0].seen()}
    delivered = {name: np.zeros(SIZES[name], np.int64) for name in counted}
    for name, _, key, _ in itertools.chain(*run.log):
        delivered[name][key] += 1
    assert all(np.array_equal(counted[name], delivered[name]) for name in counted)
    run.close()


def keys(*numbers: int) -> list[str]:
    return [f"{number:06d}" for number in numbers]


@pytest.mark.parametrize("hosts", [1, 4])
def test_runs_that_exclude_samples(data: Path, hosts: int) -> None:
    run = Run(data, Plain, {"a": 3, "b": 1}, hosts)
    run.start()
    run.step(5)
    run.amend(exclude={"a": keys(1, 2, 3, 50), "b": keys(*range(10, 20))})
    run.step(14)
    run.amend(exclude={"a": keys(*range(20, 40))}, weights={"a": 1, "b": 2})
    run.start(run.state())
    run.step(25)
    loader = run.loaders[0]
    assert check_uses(loader._stream, run.steps) > 40 * 12
    for until in (3, 19, run.steps, run.steps + 20):
        counted = {Path(each.dataset).name: each.times for each in loader.seen(until)}
        expected = {name: np.zeros(SIZES[name], np.int64) for name in counted}
        for record in itertools.chain.from_iterable(map(loader.which, range(until))):
            expected[Path(record.dataset).name][record.index] += 1
        assert all(np.array_equal(counted[name], expected[name]) for name in counted)
    late = {(name, key) for name, _, key, _ in itertools.chain(*run.log[19:])}
    for name, number in (("a", 2), ("a", 30), ("b", 15)):
        uses = loader.when(*keys(number), dataset=name)
        assert (name, number) not in late
        assert all(use.past for use in uses)
    assert not loader.when(*keys(0), dataset="a")[-1].past
    run.close()


def test_samples_that_are_dropped_where_passes_have_an_end(data: Path) -> None:
    options: dict[str, Any] = {"repeat": False, "batch_size": 6, "lanes": 12, "shuffle_over_epochs_multiplier": 1}
    dataset = get_train_dataset(data / "a", shuffle_buffer_size=None, max_samples_per_sequence=None, **options)
    with get_savable_loader(dataset) as loader:
        early = [int(key) for _ in range(4) for key in next(loader).__key__]
        late = next(each for each in range(61) if each not in early)
        loader.amend(exclude=keys(early[0], late))
        assert not loader.when(*keys(late))
        [use] = loader.when(*keys(early[0]), replay=True)
        assert (use.past, use.step) == (True, 0)
        assert not loader.when(*keys(early[1]))[-1].past
        assert [Path(each.dataset).name for each in loader.seen()] == ["a"]


def test_seen_does_not_route_every_position(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(data, Plain, {"a": 3, "b": 1})
    run.start()
    run.step(5)
    run.amend(exclude={"a": keys(1, 2, 3, 50)})
    route, routed = Holes.route, list[int]()

    def counted(self: Holes, position: Any) -> Any:
        routed.append(position.size)
        return route(self, position)

    monkeypatch.setattr(Holes, "route", counted)
    assert sum(each.uses for each in run.loaders[0].seen(100_000)) == 100_000 * 12
    assert sum(routed) < 1000
    run.close()


@pytest.mark.parametrize("encoder", [Skipping, Packing])
def test_what_hooks_decide_is_found_by_a_replay(data: Path, encoder: type[Plain]) -> None:
    run = Run(data, encoder, {"a": 1, "b": 2, "c": 1})
    run.start()
    run.step(5)
    run.state()
    run.step(4)
    stream = run.loaders[0]._stream
    name, _, key, _ = run.log[-1][0]
    uses = run.loaders[0].when(f"{key:06d}", name)
    assert uses.replay is not None
    assert not uses.replayed
    assert all(use.step is None and not use.exact for use in uses)
    found = run.loaders[0].when(f"{key:06d}", name, replay=True)
    assert found.replayed
    assert 8 in [use.step for use in found]
    assert check_replay(stream, run.steps) > 100
    counted = run.loaders[0].seen()
    assert not counted.exact
    delivered = {(name, key) for name, _, key, _ in itertools.chain(*run.log)}
    for each in counted:
        for index in np.flatnonzero(each.times == 0).tolist():
            assert (Path(each.dataset).name, index) not in delivered
    with pytest.raises(StateError, match="Known steps: 0, 5, 9"):
        run.loaders[0].seen(until=4)
    run.close()


def test_places_that_were_saved_narrow_the_steps(data: Path) -> None:
    run = Run(data, Packing, {"a": 1, "b": 2, "c": 1})
    run.start()
    for _ in range(4):
        run.step(5)
        run.state()  # has a manifest, so the stream remembers the place
    late = [use for key in range(30) for use in run.loaders[0].when(f"{key:06d}", "c") if use.past]
    widths = {use.between[1] - use.between[0] for use in late if use.between is not None}
    assert min(widths) == 4
    assert max(widths) < 19  # not the whole run
    name, _, key, _ = run.log[0][0]
    cost = run.loaders[0].when(f"{key:06d}", name).replay
    assert cost.first == 0
    assert cost.samples == cost.steps * 12 > 0
    run.close()


_REFUSED = (ConfigError, EmptyDatasetError, FatalSampleError)


def _check_graph(make: MakeDataset, graph: Any, hosts: int, steps: int) -> None:
    hosts = hosts if graph[1] % hosts == 0 else 1
    try:
        dataset = Builder(make, config(0, hosts, any_host=bool), graph[1], "keep" if hosts == 1 else "drop").top(graph)
        stream = Stream.of(dataset)
    except _REFUSED:
        return
    with stream:
        try:
            done = take(stream, steps)
        except _REFUSED:
            return
        by_data = stream.spec.program is not None or is_filtered(stream.spec) or stream._drops.any_dropped
        replaced = any(leaf.order.shuffle and leaf.order.replacement for leaf in stream.spec.leaves)
        if replaced or by_data or stream.place.drops.any():
            return
        check_uses(stream, done, packed=stream.spec.order.planned is not None)


@pytest.fixture
def _quiet() -> Iterator[None]:
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


NIGHT = os.environ.get("HYPOTHESIS_PROFILE") == "night"
_SETTINGS = settings(
    phases=[Phase.generate],
    max_examples=40 if NIGHT else 12,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@pytest.mark.usefixtures("_quiet")
@_SETTINGS
@given(graph=tops(2, hooks=(None,)), hosts=st.sampled_from([1, 2, 4]), steps=st.integers(1, 20))
def test_graphs_of_all_nodes(text_dataset: MakeDataset, graph: Any, hosts: int, steps: int) -> None:
    _check_graph(text_dataset, graph, hosts, steps)


@pytest.mark.slow
@pytest.mark.usefixtures("_quiet")
@settings(_SETTINGS, max_examples=400 if NIGHT else 12)
@given(graph=balanced_tops(3, hooks=(None,)), hosts=st.sampled_from([1, 2, 4]), steps=st.integers(1, 30))
def test_graphs_with_balanced_hosts_costs_and_plans(
    text_dataset: MakeDataset, graph: Any, hosts: int, steps: int
) -> None:
    _check_graph(text_dataset, graph, hosts, steps)


def test_seen_counts_any_step_before_and_after(text_dataset: MakeDataset) -> None:
    for options in OPTIONS:
        with open_stream(text_dataset(53), **options) as stream:
            take(stream, 12)
            steps = stream.cursor()["step"] + 15
            every = uses_of(stream, steps)
            for until in (0, 1, 7, steps // 2, steps):
                [found] = stream.ask(SEEN, until)
                expected = [sum(use[0] < until for use in every[name]) for name in used_keys(stream)]
                assert found.times.tolist() == expected, (options, until)
                assert found.uses == sum(expected)
                assert found.unused == expected.count(0)


def test_samples_drawn_with_replacement_are_counted_and_not_found(text_dataset: MakeDataset) -> None:
    with open_stream(text_dataset(53), shuffle_over_epochs_multiplier=-1) as stream:
        steps = take(stream, 30)
        every = uses_of(stream, steps)
        [found] = stream.ask(SEEN)
        assert found.times.tolist() == [len(every[name]) for name in used_keys(stream)]
        with pytest.raises(StateError, match="with replacement"):
            stream.ask(WHEN, ["000001"])


def test_keys_of_joins_of_shards_and_of_no_sample(text_dataset: MakeDataset, tmp_path: Path) -> None:
    path = text_dataset(53)
    with open_stream(path) as stream:
        take(stream, 20)
        shard = stream.which(0)[0].shard
        key = stream.which(0)[0].key
        assert stream.ask(WHEN, [f"{shard}/{key}"])[0].step == 0
        assert stream.ask(WHEN, [key], dataset="dataset")[0].dataset == str(path)
        both = stream.ask(WHEN, ["000001", "000002"])
        assert [use.key for use in both] == sorted(use.key for use in both)
        with pytest.raises(KeyNotFoundError, match="no sample '17x' in any dataset"):
            stream.ask(WHEN, ["17x"])
        with pytest.raises(KeyNotFoundError, match="no dataset 'other' in this run; there are "):
            stream.ask(WHEN, ["000001"], dataset="other")
        with pytest.raises(StateError, match="counted 0, 1, 2"):
            stream.ask(SEEN, -1)


def test_keys_of_all_members_of_a_join(tmp_path: Path) -> None:
    for name, n in (("short", 40), ("texts", 50)):
        make_text_dataset(tmp_path / name, n=n, shards=2)
        split = tmp_path / name / ".nv-meta" / "split.yaml"
        split.write_text("split_parts:\n  train: ['shard_{000..001}.tar']\nexclude: []\n")
    members = [{"path": "short"}, {"path": "texts", "nonmatch": "none"}]
    joined = write_v2(tmp_path, "join.yaml", train={"join": members})
    prepare_metadataset(joined)
    with open_stream(joined) as stream:
        take(stream, 12)
        for record in stream.which(3):
            for dataset in (None, "short", "texts", str(tmp_path / "texts")):
                uses = stream.ask(WHEN, [record.key], dataset=dataset)
                assert 3 in [use.step for use in uses]
        with pytest.raises(KeyNotFoundError, match="no sample '000049' in texts"):
            stream.ask(WHEN, ["000049"], dataset="texts")


@pytest.mark.parametrize("block", [None, 1000])
def test_arithmetic_among_a_hundred_million_samples(block: int | None) -> None:
    random = np.random.default_rng(0)
    with blended(100_000_000, block) as stream:
        stream.seek(600_000)
        for step in random.integers(0, 600_000, 6).tolist():
            for place, record in enumerate(stream.which(step)[:3]):
                leaf = next("/".join(leaf.key) for leaf in stream.spec.leaves if len(leaf.leaf.source) > record.index)
                found = [use for key in [record.key] for use in stream.ask(WHEN, [key])]
                assert (step, place, record.epoch) in {(use.step, use.place, use.epoch) for use in found}, leaf


def test_a_blend_of_a_hundred_thousand_samples_by_brute_force() -> None:
    with blended(100_000, 100) as stream:
        stream.seek(400)
        order = stream.spec.order
        draws = order.draw_in_stream(np.arange(400 * 512))
        assert order.routes is not None
        back = order.routes.position_of(draws.leaf, order.table.position_of(draws.leaf, draws.index, draws.epoch))
        assert np.array_equal(back, np.arange(400 * 512))
        for number, each in enumerate(stream.ask(SEEN)):
            counts = np.bincount(draws.index[draws.leaf == number], minlength=len(each.times))
            assert np.array_equal(each.times, counts)
