"""Metadatasets, blends and concatenations, run; and blends of so many that they share reads and open files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from metadatasets import v2, write_v2
from object_server import ObjectServer
from stream_hosts import MakeDataset, config, open_stream, train_on

from energon_grain import (
    BatchDataset,
    BlendDataset,
    BlendEpochizedDataset,
    ConcatDataset,
    ConfigError,
    Cooker,
    DefaultTaskEncoder,
    EpochizeDataset,
    LimitDataset,
    MapDataset,
    MetadatasetV2,
    ReadError,
    RepeatDataset,
    SampleDecoder,
    SavableDataset,
    SkipSample,
    StorageSettings,
    Stream,
    WorkerConfig,
    current_draw,
    get_loader,
    get_savable_loader,
    get_train_dataset,
    get_val_dataset,
    stateless,
    use_storage,
)
from energon_grain.loader import EnergonDataSource
from energon_grain.mixture_shares import leaf_draws, pass_length
from energon_grain.stream import index_map
from energon_grain.stream.chunks import Chunk, ChunkPace, Encoded
from energon_grain.stream.index_map import Draws
from energon_grain.testing import make_blob_dataset, make_crude_dataset, make_text_dataset

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
        ({"blend": [{"path": "a"}]}, {"repeat": False}, "a blend by weights is endless, so it cannot use repeat=False"),
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
    with pytest.raises(ConfigError, match="2 datasets, but 1 weights from position 0 on"):
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


FEW_DESCRIPTORS = """
import os, resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
from energon_grain import *
paths = sys.argv[1:]
blend = MetadatasetV2(splits={"train": {"blend": [{"path": path} for path in paths]}})
dataset = get_train_dataset(blend, batch_size=8, shuffle_buffer_size=None, max_samples_per_sequence=None)
stream = iter(get_savable_loader(dataset))
shards = set()
while len(shards) < 300:
    batch = next(stream)
    shards |= {(str(source.dataset_path), source.shard_name) for each in batch.__sources__ for source in each}
assert len(os.listdir("/proc/self/fd")) < 128
print("done")
"""


def test_descriptors_do_not_grow_with_datasets(tmp_path: Path) -> None:
    paths = [os.fspath(make_text_dataset(tmp_path / f"d{i}", n=60, shards=40)) for i in range(12)]
    command = [sys.executable, "-c", FEW_DESCRIPTORS, *paths]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.stdout == "done\n", done.stderr


def sources_of(batch: Any) -> Iterator[tuple[str, str, str]]:
    """(dataset, shard, key) of each sample of a batch."""
    for key, sources in zip(batch.__key__, batch.__sources__, strict=True):
        for source in sources:
            yield str(source.dataset_path), source.shard_name, key


def test_samples_read_together_are_those_read_alone(tmp_path: Path) -> None:
    paths = [make_text_dataset(tmp_path / f"d{i}", n=7 + i, shards=1 + i % 3, seed=i) for i in range(20)]
    alone = {}
    for path in paths:
        source = EnergonDataSource(path)
        for sample in source.__getitems__(range(len(source))):
            alone[os.fspath(path), sample.__key__] = sample.text
    train: Any = {"blend": [{"path": str(path), "weight": 1} for path in paths]}
    blend = MetadatasetV2(splits={"train": train})
    dataset = get_train_dataset(blend, batch_size=16, shuffle_buffer_size=None, max_samples_per_sequence=None)
    seen = set()
    for batch in islice(get_savable_loader(dataset), 200):
        for (path, _, key), text in zip(sources_of(batch), batch.text, strict=True):
            assert alone[path, key] == text
            seen.add((path, key))
    assert seen == alone.keys()


def test_sizes_of_many_leaves_are_those_of_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether a leaf is small enough for the table or not, and asked before or not."""
    monkeypatch.setattr(index_map, "_SMALL", 8)
    monkeypatch.setattr(index_map, "_KEPT", 200)
    paths = [make_text_dataset(tmp_path / f"d{i}", n=5 + i % 5, shards=1, seed=i) for i in range(64)]
    alone = [EnergonDataSource(path)._stage.sources[0] for path in paths]
    sources = index_map.Sources(alone)
    rng = np.random.default_rng(0)
    for count in (3, 40, 2000):
        leaf = rng.integers(64, size=count).astype(np.int32)
        index = rng.integers(5, size=count)
        sizes = sources.sizes(Draws(leaf=leaf, child=index, index=index, epoch=index))
        expected = [int(alone[at].sizes(index[[place]])[0]) for place, at in enumerate(leaf.tolist())]
        assert sizes.tolist() == expected


def test_an_error_names_the_dataset_it_is_in(tmp_path: Path) -> None:
    paths = [make_text_dataset(tmp_path / f"d{i}", n=10, shards=1) for i in range(5)]
    (gone,) = paths[3].glob("*.tar")
    gone.unlink()
    train: Any = {"blend": [{"path": str(path), "weight": 1} for path in paths]}
    blend = MetadatasetV2(splits={"train": train})
    dataset = get_train_dataset(blend, batch_size=16, shuffle_buffer_size=None, max_samples_per_sequence=None)
    with pytest.raises(ReadError, match=rf"{gone}.*restore it.*prepare {paths[3]} --force-overwrite"):
        list(islice(get_savable_loader(dataset), 10))


class Counting(SampleDecoder):
    """Counts how often a column is decoded."""

    calls = 0

    def decode_column(self, part: str, column: list[bytes], groups: Sequence[range] = ()) -> list[Any]:
        Counting.calls += 1
        return super().decode_column(part, column, groups)


def test_leaves_that_are_alike_are_decoded_together(tmp_path: Path) -> None:
    paths = [make_text_dataset(tmp_path / f"d{i}", n=10, shards=1) for i in range(30)]
    encoder = DefaultTaskEncoder()
    encoder.decoder = Counting()
    train: Any = {"blend": [{"path": str(path), "weight": 1} for path in paths]}
    dataset = train_on(
        MetadatasetV2(splits={"train": train}), batch_size=60, task_encoder=encoder, worker_config=WorkerConfig(0, 1, 0)
    )
    Counting.calls = 0
    assert len(set(next(iter(get_savable_loader(dataset))).__sources__)) > 30
    assert Counting.calls == 1


@dataclass(frozen=True)
class Named:
    """Equal to others of its kind, whatever it does."""

    name: str = field(compare=False)

    def __call__(self, sample: Any) -> Any:
        (source,) = sample.__sources__
        return self.name, str(source.dataset_path)


def test_hooks_that_their_author_calls_equal_stay_apart(tmp_path: Path) -> None:
    paths = [make_text_dataset(tmp_path / f"d{i}", n=10, shards=1) for i in range(3)]
    given: Any = {"batch_size": None, "shuffle_buffer_size": None, "max_samples_per_sequence": None, "repeat": False}
    leaves = [MapDataset(get_train_dataset(path, **given), Named(str(path))) for path in paths]
    loader = get_savable_loader(BatchDataset(BlendDataset(*leaves), 30, list))
    assert {sample for batch in islice(loader, 3) for sample in batch} == {(str(path), str(path)) for path in paths}


@pytest.mark.parametrize(
    ("leaves", "sample_s", "chunk_s", "samples"),
    [
        (1, 0, 0.15, 32),  # a batch stays in one chunk,
        (1, 0.0124, 0, 32),
        (1, 0.0126, 0, 7),  # but where it takes four times as long as a chunk may
        (1, 0.003, 0, 33),
        (1000, 0, 0.15, 16_000),  # of many leaves there are more samples, and they may take longer
    ],
)
def test_how_many_samples_a_chunk_holds(leaves: int, sample_s: float, chunk_s: float, samples: int) -> None:
    pace = ChunkPace(first=32, leaves=leaves)
    for _ in range(40):
        empty = np.zeros(pace.samples, np.int64)
        draws = Draws(leaf=empty.astype(np.int32), child=empty, index=empty, epoch=empty)
        encoded = Encoded(outcomes=[], restore_keys=[], drops=0, size_bytes=1)
        pace.learn(Chunk(number=0, draws=draws, size_bytes=1), encoded, chunk_s + sample_s * pace.samples)
    assert pace.samples == samples


LEAVES = 12


@pytest.mark.parametrize(("ahead_bytes", "alike"), [(0, True), (0, False), (1 << 20, True)])
def test_leaves_in_an_object_store_are_asked_side_by_side(
    tmp_path: Path, object_server: ObjectServer, monkeypatch: pytest.MonkeyPatch, ahead_bytes: int, alike: bool
) -> None:
    for name, value in object_server.environment.items():
        monkeypatch.setenv(name, value)
    bucket = object_server.make_bucket(f"leaves-{ahead_bytes}-{alike}".lower())
    for number in range(LEAVES):
        path = make_text_dataset(tmp_path / f"d{number}", n=3, shards=1)
        if not alike:
            config = path / ".nv-meta" / "dataset.yaml"
            config.write_text(config.read_text().replace("text: txt", f"text: txt,other{number}"))
    bucket.upload(tmp_path)
    use_storage(StorageSettings(cache_bytes=0, ahead_bytes=ahead_bytes))
    train: Any = {"blend": [{"path": f"{bucket.url}/d{number}", "weight": 1} for number in range(LEAVES)]}
    dataset = get_train_dataset(
        MetadatasetV2(splits={"train": train}), batch_size=LEAVES, shuffle_buffer_size=None, max_samples_per_sequence=1
    )
    bucket.server.reset()
    bucket.server.delay(0.2)
    try:
        next(iter(get_savable_loader(dataset)))
        # The first ones are looks at shards, of which each leaf has one.
        assert max(request.concurrent for request in bucket.server.requests(".tar")[: LEAVES // 2]) >= LEAVES // 3
    finally:
        bucket.server.reset()


class Telling(DefaultTaskEncoder):
    """Drops some samples; the others say what a hook was told of them."""

    decoder = None
    cookers = (
        Cooker(lambda sample: told(sample, "a"), has_subflavors={"cook": "a"}),
        Cooker(lambda sample: told(sample, "b"), has_subflavors={"cook": "b"}),
    )

    @stateless
    def batch(self, samples: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return samples


def told(sample: dict[str, Any], cook: str) -> dict[str, Any]:
    draw = current_draw()
    (source,) = sample["__sources__"]
    if draw.index % 5 == 3:
        raise SkipSample
    told = cook, draw.index, draw.epoch, draw.position, float(draw.rng.random())
    return {**sample, "told": told, "source": (str(source.dataset_path), source.index, source.file_names)}


def test_each_sample_of_a_chunk_is_told_what_it_is_alone(tmp_path: Path) -> None:
    """Leaves of several kinds in one blend: with other parts, cookers, excludes and ranges."""
    blend: list[Any] = []
    for number in range(24):
        make = make_blob_dataset if number % 6 == 5 else make_crude_dataset
        path = make(tmp_path / f"d{number}", n=20 + number, shards=1 + number % 3, seed=number)
        if number % 4 == 1:
            split = path / ".nv-meta" / "split.yaml"
            split.write_text(split.read_text().replace("exclude: []", "exclude: [shard_000.tar/002]"))
        part: dict[str, Any] = {"path": str(path), "subflavors": {"cook": "ab"[number % 2], "number": number}}
        blend.append({**part, "subset": {"range": [2, 11]}} if number % 4 == 2 else part)
    splits: Any = {"train": {"blend": blend}}
    metadataset = MetadatasetV2(splits=splits)
    dataset = get_train_dataset(
        metadataset, batch_size=32, shuffle_buffer_size=None, max_samples_per_sequence=None, task_encoder=Telling()
    )
    loader = get_savable_loader(dataset)
    leaves = set()
    for batch in islice(loader, 25):
        for sample in batch:
            leaves.add(sample["__subflavors__"]["number"])
            assert sample["source"][0].endswith(f"d{sample['__subflavors__']['number']}")
            assert sample["source"][1] == sample["told"][1]
            assert loader.restore_sample(sample["__restore_key__"]) == sample
    assert leaves == {*range(24)}
