"""Samples that a run leaves out: the others go on in their order, in their shares, on any number of hosts."""

from __future__ import annotations

import base64
import json
import random
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from amended_runs import DROPPED, GLOBAL_BATCH, LANES, SIZES, Packing, Plain, Run, Skipping, write_data

from energon_grain import (
    BatchDataset,
    BlendDataset,
    BlendEpochizedDataset,
    ConcatDataset,
    LimitDataset,
    RepeatDataset,
    TaskEncoder,
    WorkerConfig,
    get_savable_loader,
    get_train_dataset,
)
from energon_grain.amendments.exclusions import pack_samples, unpack_samples
from energon_grain.errors import AmendmentError, ConfigError, FingerprintError, KeyNotFoundError, StateError
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


def delivered(run: Run, begin: int) -> list[Any]:
    return [use for step in run.log[begin:] for use in step]


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


class Naming(TaskEncoder):
    """Says of each sample which it is, from where it is."""

    def encode_sample(self, sample: Any) -> Any:
        (source,) = sample.__sources__
        sample.text = Path(str(source.dataset_path)).name, sample.__restore_key__[2], int(sample.__key__)
        return sample


def leaf(data: Path, name: str, **options: Any) -> Any:
    settings = {"shuffle_buffer_size": 8, "max_samples_per_sequence": 4, "lanes": LANES, "batch_size": None} | options
    return get_train_dataset(data / name, task_encoder=Naming(), **settings)


def loader_of(dataset: Any, size: int = GLOBAL_BATCH, **options: Any) -> Any:
    return get_savable_loader(
        BatchDataset(dataset, size, lambda samples: [int(each.__key__) for each in samples], **options)
    )


def taken(loader: Any, steps: int) -> list[list[int]]:
    return [next(loader) for _ in range(steps)]


@pytest.mark.parametrize("shuffled", [True, False])
def test_a_dataset_alone(data: Path, shuffled: bool) -> None:
    options: dict[str, Any] = {} if shuffled else {"shuffle_over_epochs_multiplier": None}

    def loader() -> Any:
        return loader_of(leaf(data, "a", **options))

    with loader() as first, loader() as second, loader() as third:
        before = taken(first, 3)
        first.amend(exclude=keys(0, 1, 2, 17, 60))
        state = json.loads(json.dumps(first.save_state_rank()))
        after = taken(first, 20)
        assert not {0, 1, 2, 17, 60} & {sample for batch in after for sample in batch}
        second.restore_state_rank(state)
        assert taken(second, 20) == after
        assert [[int(each.key) for each in second.which(step)] for step in range(23)] == before + after
        with pytest.raises(AmendmentError, match="it has no blend"):
            second.amend(weights={"a": 2})
        everything = taken(third, 23)
        gone = {0, 1, 2, 17, 60}
        for lane in range(LANES):
            own = [batch[lane] for batch in everything[3:] if batch[lane] not in gone]
            assert [batch[lane] for batch in after][: len(own)] == own


def test_a_lane_that_would_get_nothing(data: Path) -> None:
    """In order, 60 samples in 12 lanes: lane 1 always gets the samples 1, 13, 25, …."""
    options = {"subset": {"range": [0, 60]}, "shuffle_over_epochs_multiplier": None}
    with loader_of(leaf_of_part(data, **options), 6) as loader:
        with pytest.raises(AmendmentError, match="one of the 12 lanes gets only samples that would be excluded"):
            loader.amend(exclude=keys(*range(1, 60, 12)))
        loader.amend(exclude=keys(*range(1, 48, 12)))
        assert {sample for batch in taken(loader, 20) for sample in batch} & set(range(1, 60, 12)) == {49}


def leaf_of_part(data: Path, subset: Any, **options: Any) -> Any:
    path = data / "part.yaml"
    path.write_text(
        "__module__: megatron.energon\n__class__: MetadatasetV2\nsplits:\n  train:\n"
        f"    path: {data / 'a'}\n    subset: {json.dumps(subset)}\n"
    )
    settings = {"shuffle_buffer_size": 8, "max_samples_per_sequence": 4, "lanes": LANES, "batch_size": None} | options
    return get_train_dataset(path, task_encoder=Naming(), **settings)


FINITE = {
    "a leaf": lambda data: leaf(data, "a", repeat=False),
    "epochs": lambda data: BlendEpochizedDataset(
        (leaf(data, "a", repeat=False), 2), (leaf(data, "b", repeat=False), 1)
    ),
    "concat": lambda data: ConcatDataset(leaf(data, "a", repeat=False), leaf(data, "b", repeat=False)),
    "endless epochs": lambda data: RepeatDataset(BlendEpochizedDataset((leaf(data, "a", repeat=False), 1))),
    "concat in a blend": lambda data: BlendDataset(
        (ConcatDataset(leaf(data, "a", repeat=False), leaf(data, "b", repeat=False)), 1), (leaf(data, "c"), 1)
    ),
    "limit in a blend": lambda data: BlendDataset(
        (LimitDataset(leaf(data, "a", repeat=False), 50), 1), (leaf(data, "c"), 1)
    ),
    "with replacement": lambda data: leaf(data, "a", shuffle_over_epochs_multiplier=-1),
}


@pytest.mark.parametrize("kind", FINITE)
def test_where_the_length_of_a_pass_is_fixed(data: Path, kind: str) -> None:
    def steps(loader: Any, count: int) -> list[list[tuple[str, int]]]:
        found: list[list[tuple[str, int]]] = []
        while len(found) < count:
            for batch in loader:
                found.append(batch)
                if len(found) == count:
                    break
        return found

    def loader() -> Any:
        return get_savable_loader(
            BatchDataset(
                FINITE[kind](data), 7, lambda samples: [each.text[:3:2] for each in samples], last_batch="keep"
            )
        )

    gone = {("a", sample) for sample in (0, 1, 2, 17, 40, 60)}
    with loader() as first, loader() as second:
        before = steps(first, 3)
        first.amend(exclude={"a": keys(*(sample for _, sample in gone))})
        state = json.loads(json.dumps(first.save_state_rank()))
        after = steps(first, 40)
        assert not gone & {each for batch in after for each in batch}
        second.restore_state_rank(state)
        assert steps(second, 40) == after
        stats = first.stats()
        dropped = {reason for reasons in stats.dropped.values() for reason in reasons}
        assert dropped == {"excluded: SkipSample"}
        found = [[(Path(each.dataset).name, int(each.key)) for each in second.which(step)] for step in (1, 3, 12)]
        assert found == [(before + after)[step] for step in (1, 3, 12)]


def edited(run: Run, name: str, options: str) -> Any:
    """A loader of the configuration with further options of a dataset."""
    yaml = run.data / "mixture.yaml"
    entries = "".join(
        f"    - weight: {weight}\n      path: {run.data / each}\n      subflavors: {{name: {each}}}\n"
        + (f"      {options}\n" if each == name and options else "")
        for each, weight in run.weights.items()
    )
    yaml.write_text(f"__module__: megatron.energon\n__class__: MetadatasetV2\nsplits:\n  train:\n    blend:\n{entries}")
    dataset = get_train_dataset(
        yaml,
        batch_size=GLOBAL_BATCH,
        shuffle_buffer_size=8,
        max_samples_per_sequence=4,
        lanes=LANES,
        task_encoder=Plain(),
        worker_config=WorkerConfig(0, 1, 0),
    )
    return get_savable_loader(dataset)


def steps_of(run: Run, loader: Any, count: int) -> None:
    with loader:
        run.log += [next(loader) for _ in range(count)]


@pytest.fixture
def own(run: Run) -> Run:
    """A run whose dataset `a` is a copy that can be changed, with the column `text_bytes`."""
    link = run.data / "a"
    link.unlink()
    write_data(run.data, names=["a"])
    return run


def split_of(run: Run, *excludes: str) -> None:
    (run.data / "a" / ".nv-meta" / "split.yaml").write_text(
        f"split_parts:\n  train: ['shard_{{000..001}}.tar']\nexclude: {json.dumps(list(excludes))}\n"
    )


def test_a_longer_list_of_excludes(own: Run) -> None:
    run = own
    split_of(run, "shard_000.tar/000007")
    run.start()
    run.step(6)
    state = run.state()
    expected = datasets_of(run)
    run.step(50)
    expected += datasets_of(run)[6:]
    del run.log[6:]
    split_of(run, "shard_000.tar/000007", "shard_000.tar/000002", "shard_001.tar")
    loader = edited(run, "a", "")
    with pytest.raises(FingerprintError, match=r"on_change='amend'"):
        loader.restore_state_rank(state)
    loader.restore_state_rank(state, on_change="amend")
    state = json.loads(json.dumps(loader.save_state_rank()))
    run.log += [next(loader) for _ in range(50)]
    assert datasets_of(run) == expected
    samples = [(key, epoch) for step in run.log[6:] for name, _, key, epoch in step if name == "a"]
    assert len(samples) == len(set(samples))
    assert max(key for key, _ in samples) < 30
    assert not {2, 7} & {key for key, _ in samples}
    steps = [[(name, key) for name, _, key, _ in step] for step in run.log]
    assert [[(Path(each.dataset).name, int(each.key)) for each in loader.which(step)] for step in (2, 9)] == [
        steps[2],
        steps[9],
    ]
    again = edited(run, "a", "")
    again.restore_state_rank(state)
    assert [next(again) for _ in range(50)] == run.log[6:]
    split_of(run, "shard_000.tar/000007", "shard_000.tar/000002", "shard_001.tar", "shard_000.tar/000011")
    third = edited(run, "a", "")
    third.restore_state_rank(again.save_state_rank(), on_change="amend")
    assert [dict.fromkeys(each.excluded.values()) for each in third.amendments] == [{32: None}, {1: None}]
    assert 11 not in {key for _ in range(60) for name, _, key, _ in next(third) if name == "a"}
    split_of(run, "shard_000.tar/000007")
    fourth = edited(run, "a", "")
    with pytest.raises(AmendmentError, match=r"are selected again|cannot be opened again"):
        fourth.restore_state_rank(again.save_state_rank(), on_change="amend")
    split_of(run, "shard_000.tar/000012")
    fifth = edited(run, "a", "")
    with pytest.raises(AmendmentError, match="cannot be opened again"):
        fifth.restore_state_rank(again.save_state_rank(), on_change="amend")
    for each in (loader, again, third, fourth, fifth):
        each.close()


@pytest.mark.parametrize(
    ("before", "after", "left"),
    [
        ("", "subset: {range: [10, 61]}", range(10, 61)),
        ("subset: {range: ['0%', '50%']}", "subset: {range: [3, 20]}", range(3, 20)),
        ("", "where: bytes >= 155", None),
        ("where: bytes > 0", "where: bytes >= 155", None),
    ],
)
def test_a_narrower_selection(run: Run, before: str, after: str, left: Any) -> None:
    first = edited(run, "a", before)
    run.log += [next(first) for _ in range(6)]
    state = first.save_state_rank()
    run.log += [next(first) for _ in range(40)]
    second = edited(run, "a", after)
    second.restore_state_rank(state, on_change="amend")
    found = [next(second) for _ in range(40)]
    assert [[use[0] for use in step] for step in found] == datasets_of(run)[6:]
    samples = {key for step in found for name, _, key, _ in step if name == "a"}
    if left is not None:
        assert samples == set(left)
    (amendment,) = second.amendments
    (count,) = amendment.excluded.values()
    assert count == len({key for step in run.log for name, _, key, _ in step if name == "a"}) - len(samples)
    assert count > 0
    third = edited(run, "a", after)
    third.restore_state_rank(json.loads(json.dumps(second.save_state_rank())))
    assert [next(third) for _ in range(5)] == [next(second) for _ in range(5)]
    fourth = edited(run, "a", before)
    with pytest.raises(AmendmentError, match="selected again"):
        fourth.restore_state_rank(third.save_state_rank(), on_change="amend")
    for each in (first, second, third, fourth):
        each.close()


def test_ways_to_name_samples(own: Run, tmp_path: Path) -> None:
    run = own
    run.start()
    run.step(1)
    loader, number = run.loaders[0], 0
    for exclude in (
        {"a": ["shard_000.tar/000003"]},
        {"a": "bytes == 0 or bytes > 1"},
        {"a": ["shard_000.tar"]},
        keys(60),
    ):
        state = run.state()
        if exclude == {"a": "bytes == 0 or bytes > 1"}:
            with pytest.raises(AmendmentError, match="remove the dataset instead"):
                loader.amend(exclude=exclude)
            continue
        loader.amend(exclude=exclude)
        number += 1
        assert len(loader.amendments) == number
        del state
    files = {
        "one.txt": "a\t000040\na\t000041\n\n",
        "two.csv": "dataset,key\na,000042\n",
        "three.json": '{"a": ["000043", "000044"]}',
        "four.txt": "000045\n000046\n",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
        loader.amend(exclude=tmp_path / name)
    counts = [sum(each.excluded.values()) for each in loader.amendments]
    assert counts == [1, 29, 1, 2, 1, 2, 2]
    for exclude, said in [
        (keys(3), "nothing changes"),
        (keys(1), "several datasets have the key '000001'"),
        (keys(999), "no dataset of this run has a sample or shard '000999'"),
        ({"z": keys(1)}, "there is no dataset 'z'"),
        ({"a": [1]}, "expected a list of keys"),
        ([], "expected a list of keys"),
        ("nothing.txt", "is read as a file of keys"),
    ]:
        if exclude == keys(3):
            exclude = {"a": exclude}
        with pytest.raises(AmendmentError, match=said):
            loader.amend(exclude=exclude)
    for text in ("000040", "one.txt", "size < 3"):
        with pytest.raises((ConfigError, KeyNotFoundError)) as raised:
            loader.amend(exclude={"a": text})
        assert f"Keys are a list, {{'a': ['{text}']}}" in raised.value.__notes__[0]
    run.step(20)
    late = {key for name, _, key, _ in delivered(run, 1) if name == "a"}
    assert late == set(range(30, 61)) - {60, *range(40, 47)}


def test_samples_as_text() -> None:
    rng = np.random.default_rng(0)
    for most in (1, 2, 127, 128, 129, 10**7, 2**40):
        for count in {1, min(most, 200)}:
            samples = np.unique(rng.integers(0, most, count))
            text = pack_samples(samples)
            assert np.array_equal(unpack_samples(text), samples)
    for text in ("", "gA==", "gICAgICAgICAgA==", "###"):
        with pytest.raises(ValueError):  # noqa: PT011
            unpack_samples(text)


def test_the_state_stays_small(data: Path, tmp_path: Path) -> None:
    run = run_over(data, tmp_path, Plain)
    run.start()
    for number in range(20):
        run.step(1)
        run.amend(exclude={"a": keys(2 * number, 2 * number + 1)}, weights={"a": 1 + number % 7, "b": 2 + number % 3})
    assert len(json.dumps(run.loaders[0].get_state())) < 2048
    run.close()


def test_a_damaged_state_is_refused(run: Run) -> None:
    run.start()
    run.step(1)
    run.amend(exclude={"a": keys(4)})
    state = run.state()
    del state["check"]
    text = json.loads(zlib.decompress(base64.b64decode(state["amendments"][0])))
    text[3][0][3] = 2
    state["amendments"][0] = base64.b64encode(zlib.compress(json.dumps(text).encode())).decode()
    with pytest.raises(StateError, match="do not fit their digest"):
        run.loaders[0].restore_state_rank(state)
