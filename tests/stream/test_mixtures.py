"""Metadatasets, blends and concatenations, run."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given, settings as hypothesis_settings, strategies as st
from metadatasets import v2, write_v2
from stream_hosts import MakeDataset, config, open_stream, train_on

from energon_grain import (
    BlendDataset,
    BlendEpochizedDataset,
    ConcatDataset,
    ConfigError,
    EpochizeDataset,
    LimitDataset,
    MapDataset,
    RepeatDataset,
    SavableDataset,
    Stream,
    WorkerConfig,
    get_loader,
    get_train_dataset,
    get_val_dataset,
    merge_cursors,
)
from energon_grain.stream.spec import leaf_draws, pass_length
from energon_grain.testing import make_text_dataset

Folder = Path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    """Datasets a (55 samples), b (31) and c (20, some of them broken)."""
    root = tmp_path_factory.mktemp("mixture")
    for name, n, broken in (("a", 55, ()), ("b", 31, ()), ("c", 20, (3, 4))):
        make_text_dataset(root / name, n=n, shards=2, seed=n, broken=set(broken))
        shards = sorted(path.name for path in (root / name).glob("*.tar"))
        parts = {"train": shards, "val": shards}
        (root / name / ".nv-meta" / "split.yaml").write_text(yaml.safe_dump({"split_parts": parts, "exclude": []}))
    return root


def streams(path: Any, hosts: int = 1, batch_size: int = 5, **options: Any) -> list[Stream]:
    return [
        open_stream(path, worker_config=config(host, hosts), batch_size=batch_size, **options) for host in range(hosts)
    ]


def rows(batch: Any) -> list[tuple[str, str]]:
    """(leaf, key) of each sample of a batch."""
    return [(sources[0].dataset_path.name, key) for sources, key in zip(batch.__sources__, batch.__key__, strict=True)]


def taken(stream: Stream, steps: int) -> list[tuple[str, str]]:
    return [row for _ in range(steps) for row in rows(next(stream))]


def test_a_blend_keeps_its_shares_after_any_prefix(folder: Folder) -> None:
    path = write_v2(
        folder, "blend.yaml", train={"blend": [{"path": "a", "weight": 0.7}, {"path": "./b", "weight": 0.3}]}
    )
    [stream] = streams(path, batch_size=50)
    assert stream.spec.order.length(0) is None
    counts: Counter[str] = Counter()
    seen: dict[str, list[str]] = {"a": [], "b": []}
    for place, (leaf, key) in enumerate(taken(stream, 60), 1):
        counts[leaf] += 1
        seen[leaf].append(key)
        assert abs(counts["a"] - 0.7 * place) <= 19
    # Inside the blend each leaf still goes over its samples evenly: passes may overlap by a few rounds of the lanes.
    visits = Counter(seen["a"])
    assert set(visits.values()) <= {37, 38, 39}


def test_nested_files_flatten_and_tags_merge(folder: Folder) -> None:
    write_v2(folder, "inner.yaml", train={"blend": [{"path": "a", "subflavors": {"x": 1, "y": 1}}, {"path": "b"}]})
    path = write_v2(
        folder,
        "outer.yaml",
        train={"blend": [{"path": "inner.yaml", "weight": 2, "subflavors": {"y": 2}}, {"path": "c", "weight": 2}]},
    )
    [stream] = streams(path, batch_size=20)
    tags: dict[str, Any] = {}
    counts: Counter[str] = Counter()
    for _ in range(60):
        batch = next(stream)
        for (leaf, _), subflavors in zip(rows(batch), batch.__subflavors__, strict=True):
            counts[leaf] += 1
            tags[leaf] = subflavors
    assert tags["a"] == {"x": 1, "y": 2}
    assert tags["b"] == {"y": 2}
    assert counts["a"] == pytest.approx(300, abs=40)
    assert counts["c"] == pytest.approx(600, abs=80)


def test_the_older_form_of_subflavors_is_read_from_samples(folder: Folder) -> None:
    path = write_v2(folder, "tags.yaml", train={"blend": [{"path": "a", "subflavor": "x"}, {"path": "b"}]})
    options: dict[str, Any] = {"max_samples_per_sequence": None, "shuffle_buffer_size": None}
    expected = {"a": "x", "b": None}
    samples = iter(get_train_dataset(path, batch_size=None, **options))
    for _ in range(20):
        sample = next(samples)
        assert sample.__subflavor__ == expected[sample.__sources__[0].dataset_path.name]
    batch = next(iter(get_train_dataset(path, batch_size=20, **options)))
    assert batch.__subflavor__ == [expected[leaf] for leaf, _ in rows(batch)]


def test_an_epochized_blend_is_exact(folder: Folder) -> None:
    path = write_v2(
        folder,
        "epochs.yaml",
        train={"blend_epochized": [{"path": "a", "repetitions": 0.7}, {"path": "b", "repetitions": 2}]},
    )
    [stream] = streams(path, repeat=False)
    total: Counter[tuple[str, str]] = Counter()
    for _ in range(10):
        length = len(stream)
        epoch = [row for batch in stream for row in rows(batch)]
        assert length == -(-len(epoch) // 5)
        counts = Counter(leaf for leaf, _ in epoch)
        assert counts["a"] in (38, 39)
        assert counts["b"] == 62
        total.update(epoch)
    assert {visits for (leaf, _), visits in total.items() if leaf == "a"} == {7}
    assert {visits for (leaf, _), visits in total.items() if leaf == "b"} == {20}
    [endless] = streams(path)
    again: Counter[tuple[str, str]] = Counter(taken(endless, sum(total.values()) // 5))
    assert sum(again.values()) == sum(total.values()) // 5 * 5
    assert max(again.values()) <= 20


def one_of(sample: Any) -> Any:
    yield sample


def test_the_length_of_an_endless_epochized_blend_is_that_of_its_epoch(folder: Folder) -> None:
    node = {"blend_epochized": [{"path": "a", "repetitions": 2}, {"path": "b", "repetitions": 3}]}
    path = write_v2(folder, "counted.yaml", train=node)
    nested = {"blend_epochized": [{"path": "counted.yaml", "repetitions": 1.5}, {"path": "c"}]}
    for file, samples in ((path, 2 * 55 + 3 * 31), (write_v2(folder, "above.yaml", train=nested), 165 + 139 + 20)):
        arguments: dict[str, Any] = {"shuffle_buffer_size": None, "max_samples_per_sequence": None}
        for hosts in (1, 2):
            arguments["worker_config"] = config(0, hosts)
            finite = get_train_dataset(file, batch_size=5, repeat=False, last_batch="drop", **arguments)
            endless = get_train_dataset(file, batch_size=5, **arguments)
            assert len(endless) == len(finite) == samples // 5 // hosts
            with get_loader(endless) as loader:
                assert len(loader) == samples // 5 // hosts
    arguments = {**arguments, "worker_config": config()}
    a, b = (get_train_dataset(folder / name, batch_size=None, repeat=False, **arguments) for name in "ab")
    repeated = RepeatDataset(BlendEpochizedDataset((a, 2), (b, 3)))
    assert len(MapDataset(repeated, one_of)) == 203  # operators of lanes count the same
    assert len(BlendDataset((repeated, 1), (get_train_dataset(folder / "c", batch_size=None, **arguments), 1))) == 223
    assert len(EpochizeDataset(repeated, num_epochs=2)) == 406


def test_states_of_passes_of_different_length_restore(folder: Folder) -> None:
    path = write_v2(folder, "uneven.yaml", train={"blend_epochized": [{"path": "a", "repetitions": 0.7}]})
    [stream] = streams(path, repeat=False, batch_size=4)
    told = [sorted(record.key for record in stream.which(step)) for step in range(40)]
    batches: list[list[str]] = []
    cursors: list[Any] = []
    while len(batches) < 40:
        for batch in stream:
            batches.append(batch.__key__)
            cursors.append(json.loads(json.dumps(stream.cursor())))
            if len(batches) == 40:
                break
    assert [sorted(batch) for batch in batches] == told
    for step in (3, 9, 17, 30):
        [other] = streams(path, repeat=False, batch_size=4)
        other.restore(cursors[step])
        assert next(iter(other)).__key__ == batches[step + 1]


@hypothesis_settings(max_examples=12)
@given(
    mixture=st.sampled_from(
        [
            {"blend": [{"path": "a", "weight": 3}, {"path": "b"}, {"path": "c", "weight": 0.5}]},
            {"blend_epochized": [{"path": "a", "repetitions": 0.7}, {"path": "c", "repetitions": 1.5}]},
            {"concat": [{"path": "b"}, {"path": "c"}]},
            {"blend": [{"concat": [{"path": "a"}, {"path": "b"}]}, {"path": "c"}]},
            {
                "blend": [{"path": "a"}, {"path": "b"}],
                "schedule": [
                    {"from_position": 0, "weights": [1, 0]},
                    {"from_position": 60, "weights": [1, 3]},
                ],
            },
        ]
    ),
    block=st.sampled_from([None, 4]),
    hosts=st.sampled_from([2, 3, 8]),
)
def test_mixtures_are_the_same_sets_on_any_number_of_hosts(
    folder: Folder, mixture: Any, block: int | None, hosts: int
) -> None:
    path = write_v2(folder, "any.yaml", train=mixture)
    options = {"max_samples_per_sequence": block}
    [single] = streams(path, batch_size=24, **options)
    several = streams(path, hosts, 24 // hosts, **options)
    for step in range(14):
        if step == 7:
            cursor = merge_cursors([stream.cursor(with_manifest=True) for stream in several])
            several = streams(path, 4, 6, **options)
            for stream in several:
                stream.restore(cursor)
        assert sorted(rows(next(single))) == sorted(row for stream in several for row in rows(next(stream)))


def test_a_schedule_changes_the_shares(folder: Folder) -> None:
    steps = [{"from_position": 0, "weights": [1, 0]}, {"from_position": 240, "weights": [1, 3]}]
    path = write_v2(folder, "schedule.yaml", train={"blend": [{"path": "a"}, {"path": "b"}], "schedule": steps})
    [stream] = streams(path, batch_size=24)
    leaves = [leaf for leaf, _ in taken(stream, 40)]
    assert set(leaves[:240]) == {"a"}
    assert leaves[240:].count("b") == pytest.approx(540, abs=20)


def orders(dataset: Any) -> dict[str, list[str]]:
    """The order of each leaf of a mixture, by itself."""
    spec = dataset.spec
    found: dict[str, list[str]] = {}
    for number, leaf in enumerate(spec.leaves):
        index, _ = spec.order.table.draw(number, np.arange(40))
        found["/".join(leaf.key)] = index.tolist()
    return found


def test_the_same_leaf_twice_has_two_orders_and_siblings_leave_others_alone(folder: Folder) -> None:
    twice = write_v2(folder, "twice.yaml", train={"blend": [{"path": "a"}, {"path": "a"}]})
    first, second = orders(streams(twice)[0]).values()
    assert first != second
    alone = orders(streams(write_v2(folder, "one.yaml", train={"blend": [{"path": "a"}, {"path": "b"}]}))[0])
    more = orders(
        streams(write_v2(folder, "more.yaml", train={"blend": [{"path": "c"}, {"path": "b"}, {"path": "a"}]}))[0]
    )
    assert all(more[key] == order for key, order in alone.items())
    named = write_v2(folder, "named.yaml", train={"blend": [{"path": "a", "name": "images"}, {"path": "b"}]})
    renamed = write_v2(folder, "renamed.yaml", train={"blend": [{"path": "./a", "name": "images"}, {"path": "b"}]})
    assert orders(streams(named)[0]) == orders(streams(renamed)[0])


def test_validation_concatenates_all_leaves(folder: Folder) -> None:
    blend = {"blend": [{"path": "a", "weight": 9}, {"path": "b"}]}
    path = write_v2(folder, "val.yaml", train=blend, val=blend)
    dataset = get_val_dataset(path, batch_size=10, worker_config=WorkerConfig(0, 1))
    assert len(dataset) == 9
    passes = [[row for batch in dataset for row in rows(batch)] for _ in range(2)]
    assert passes[0] == passes[1]
    assert [leaf for leaf, _ in passes[0]] == ["a"] * 55 + ["b"] * 31
    assert [key for _, key in passes[0]] == [f"{i:06d}" for i in [*range(55), *range(31)]]


def test_an_old_metadataset_loads(folder: Folder) -> None:
    path = folder / "v1.yaml"
    path.write_text(
        "__module__: megatron.energon\n__class__: Metadataset\nsplits:\n  train:\n    datasets:\n"
        "      - {path: ./a, weight: 5, subflavor: old}\n      - {path: ./b}\n"
    )
    [stream] = streams(path, batch_size=12)
    batch = next(stream)
    tags = {leaf: tag for (leaf, _), tag in zip(rows(batch), batch.__subflavors__, strict=True)}
    assert tags["a"] == {"__subflavor__": "old"}


def test_mixtures_made_in_python_equal_those_of_files(folder: Folder) -> None:
    def blend(place: str) -> dict[str, Any]:
        weights = {"a": 0.25, "b": 0.75}
        return {"blend": [{"path": place + name, "weight": weight, "name": name} for name, weight in weights.items()]}

    content, path = v2(train=blend(f"{folder}/")), write_v2(folder, "py.yaml", train=blend(""))
    assert taken(streams(content)[0], 20) == taken(streams(path)[0], 20)


@pytest.mark.parametrize(
    ("mixture", "options", "message"),
    [
        ({"blend": [{"path": "a"}]}, {"repeat": False}, "a blend by weights has no end, so repeat=False"),
        ({"concat": [{"blend": [{"path": "a"}]}, {"path": "b"}]}, {}, "nothing can follow it"),
        ({"blend": [{"path": "a", "wieght": 2}]}, {}, r"\$\.splits\.train\.blend\[0\].*Did you mean `weight`"),
        ({"blend": [{"path": "nowhere"}]}, {}, "nowhere"),
    ],
)
def test_mistakes_are_named(folder: Folder, mixture: Any, options: Any, message: str) -> None:
    path = write_v2(folder, "mistake.yaml", train=mixture)
    with pytest.raises((ConfigError, FileNotFoundError), match=message):
        streams(path, **options)


def test_mixtures_of_nothing_are_refused() -> None:
    for mixture in (BlendDataset, BlendEpochizedDataset, ConcatDataset):
        make: Callable[..., SavableDataset] = mixture
        with pytest.raises(ConfigError, match="nothing to"):
            make()


def test_a_hundred_leaves_have_a_small_cursor(folder: Folder) -> None:
    path = write_v2(
        folder, "hundred.yaml", train={"blend": [{"path": "abc"[i % 3], "weight": 1 + i} for i in range(100)]}
    )
    [stream] = streams(path, batch_size=32)
    for _ in range(30):
        next(stream)
    assert len(stream.spec.leaves) == 100
    assert len(json.dumps(stream.cursor())) < 1024


def test_a_blend_needs_a_weight_for_each_part(text_dataset: MakeDataset) -> None:
    part: Any = get_train_dataset(
        text_dataset(24), batch_size=None, shuffle_buffer_size=None, max_samples_per_sequence=None, repeat=False
    )
    with pytest.raises(ConfigError, match="2 datasets and 1 weights"):
        BlendDataset(part.dataset, part.dataset, schedule=[(0, [1])])


@pytest.mark.parametrize(
    "kind", ["weights", "a schedule", "repetitions", "one after the other", "each in each", "a limit"]
)
def test_what_a_manifest_says_was_drawn_of_each_leaf(folder: Folder, kind: str) -> None:
    """From weights and lengths alone, without the data: off by the rounding of blends, and nothing else."""

    def leaf(name: str) -> SavableDataset:
        made: Any = train_on(folder / name, worker_config=config(), batch_size=None, repeat=False)
        return made.dataset.dataset if isinstance(made.dataset, EpochizeDataset) else made.dataset

    a, b, c = map(leaf, "abc")
    dataset = {
        "weights": lambda: BlendDataset((a, 5), (b, 3), (c, 2)),
        "a schedule": lambda: BlendDataset(a, b, c, schedule=[(0, [1, 1, 0]), (480, [0, 1, 3])]),
        "repetitions": lambda: BlendEpochizedDataset((a, 2), (b, 0.5), (c, 3)),
        "one after the other": lambda: ConcatDataset(a, RepeatDataset(b, repeats=2), c),
        "each in each": lambda: BlendDataset((ConcatDataset(a, b), 3), (BlendDataset((c, 1), (leaf("b"), 2)), 1)),
        "a limit": lambda: LimitDataset(ConcatDataset(LimitDataset(BlendDataset(a, b), 60), b, c), 100),
    }[kind]()
    spec = dataset.compiled()
    saved = json.loads(json.dumps(spec.manifest()))
    sizes = [entry["samples"] for entry in sorted(saved["leaves"].values(), key=lambda entry: entry["number"])]
    if not saved["endless"]:
        assert pass_length(saved["mixture"], sizes) == pytest.approx(spec.order.length(0), abs=1)
    for positions in (1, 100, 480, 700, 3000):
        counted = np.bincount(spec.order.draw_in_stream(np.arange(positions)).leaf, minlength=len(sizes))
        told = leaf_draws(saved["mixture"], sizes, positions)
        assert sum(told) == pytest.approx(positions)
        assert np.abs(counted - told).max() <= 2 * 17, (positions, counted, told)
