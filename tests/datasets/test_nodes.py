"""What dataset nodes hold, and which arguments they refuse when they are made."""

from __future__ import annotations

import dataclasses
import gc
import pickle
import random
from collections.abc import Callable, Iterator
from dataclasses import KW_ONLY, dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_graphs import in_order, mixed, number, require_exact_states
from stream_hosts import MakeDataset

from energon_grain import (
    BaseCoreDataset,
    BaseCoreDatasetFactory,
    BatchDataset,
    BlendDataset,
    BlendEpochizedDataset,
    ConcatDataset,
    ConfigError,
    DefaultTaskEncoder,
    EpochizeDataset,
    FilterDataset,
    GcDataset,
    GroupBatchDataset,
    IterMapDataset,
    LimitDataset,
    MapDataset,
    MixBatchDataset,
    PackingDataset,
    RepeatDataset,
    SavableDataset,
    ShuffleBufferDataset,
    SkipSample,
    Stream,
    TextSample,
    WorkerConfig,
    current_draw,
    get_train_dataset,
    get_val_dataset,
    homogeneous_concat_mix,
    stateless,
)
from energon_grain.datasets.dataset import OF_DATASET, node as kind_of_node, settle
from energon_grain.datasets.lowering import LanePart, Lowering, Part
from energon_grain.stream.lanes import Item, Items, Lane, LaneOperator, Reference, State
from energon_grain.stream.state import Form, ListOf
from energon_grain.testing import make_text_dataset

HOST = WorkerConfig(rank=0, world_size=1)
SECOND_OF_TWO = WorkerConfig(rank=1, world_size=2)


def leaf(path: str = "s3://nowhere/data", worker_config: WorkerConfig = HOST) -> Any:
    """A leaf without anything above it; it reads nothing before it is used."""
    run: Any = get_val_dataset(path, batch_size=None, worker_config=worker_config)
    return run.dataset


def function(value: Any) -> Any:
    return value


def generator(value: Any) -> Iterator[Any]:
    yield value


def group(sample: Any) -> tuple[str, None]:
    return sample.text[:1], None


def select(samples: list[Any]) -> list[list[Any]]:
    return [samples]


MAKERS: dict[str, Callable[[Any], SavableDataset]] = {
    "map": lambda dataset: MapDataset(dataset, function),
    "generator": lambda dataset: MapDataset(dataset, generator),
    "filter": lambda dataset: FilterDataset(dataset, function),
    "iter_map": lambda dataset: IterMapDataset(dataset, function),
    "batch": lambda dataset: BatchDataset(dataset, 3, function),
    "group": lambda dataset: GroupBatchDataset(dataset, 3, group, function),
    "packing": lambda dataset: PackingDataset(dataset, 10, select, function),
    "mix": lambda dataset: MixBatchDataset((dataset, 1), batch_size=3, batch_mix_fn=homogeneous_concat_mix),
    "blend": lambda dataset: BlendDataset((dataset, 1)),
    "epochized blend": lambda dataset: BlendEpochizedDataset((dataset, 1)),
    "concat": lambda dataset: ConcatDataset(dataset),
    "repeat": lambda dataset: RepeatDataset(dataset),
    "limit": lambda dataset: LimitDataset(dataset, 4),
    "epochize": lambda dataset: EpochizeDataset(dataset, 4),
    "shuffle": lambda dataset: ShuffleBufferDataset(dataset, 4),
}


@pytest.mark.parametrize("name", MAKERS)
def test_every_node(name: str) -> None:
    make = MAKERS[name]
    below = leaf(worker_config=SECOND_OF_TWO)
    node = make(below)
    assert node.worker_config is SECOND_OF_TWO
    assert isinstance(node, SavableDataset)
    assert node == make(below)
    assert repr(node) == f"{type(node).__name__}({repr(below)[len('LeafDataset(') : -1]})"
    with pytest.raises(AttributeError):
        node.worker_config = HOST  # type: ignore[misc]
    copy = pickle.loads(pickle.dumps(node))
    assert type(copy) is type(node)
    assert copy.worker_config == node.worker_config
    with pytest.raises(ConfigError, match="expected a dataset, got a str"):
        make("below")


def test_the_own_worker_config_wins() -> None:
    for node in (
        MapDataset(leaf(), function, worker_config=SECOND_OF_TWO),
        BatchDataset(leaf(), 2, function, worker_config=SECOND_OF_TWO),
        BlendDataset((leaf(), 1), worker_config=SECOND_OF_TWO),
        MixBatchDataset((leaf(), 1), batch_size=2, worker_config=SECOND_OF_TWO),
        EpochizeDataset(leaf(), 2, SECOND_OF_TWO),
    ):
        assert node.worker_config is SECOND_OF_TWO


def test_names_of_the_original() -> None:
    """Annotations of programs written for it are evaluated when they are loaded."""
    assert BaseCoreDataset is BaseCoreDatasetFactory is SavableDataset
    assert SavableDataset[TextSample] is not None
    assert BaseCoreDatasetFactory[TextSample] is not None
    assert MapDataset[TextSample] is not None


def test_keywords_of_the_original_are_accepted() -> None:
    MapDataset(leaf(), function, stateless_map_fn=True, map_fn_config={}, failure_tolerance=3)
    FilterDataset(leaf(), filter_fn=function, filter_fn_config={})
    IterMapDataset(leaf(), function, len_map_fn=function, stateless_iter_fn=True, iter_map_fn_config={})
    BatchDataset(leaf(), batch_size=2, batcher=function, batcher_stateless=True, batcher_config={}, drop_last=True)
    GroupBatchDataset(
        leaf(), fixed_batch_size=None, sample_group_key=group, batcher=function, batcher_stateless=True, drop_last=True
    )
    PackingDataset(
        leaf(),
        buffer_size=10,
        pre_packer=select,
        final_packer=generator,
        final_packer_stateless=True,
        sample_encoder=function,
        sample_encoder_stateless=True,
        packer_config={},
        pre_packer_failure_tolerance=1,
        final_packer_failure_tolerance=2,
        sample_encoder_failure_tolerance=3,
    )
    LimitDataset(leaf(), length=3, reset_after_epoch=True)
    RepeatDataset(leaf(), repeats=1.5, restart=True)


def test_nodes_are_replaced_as_other_dataclasses() -> None:
    below, other = leaf(), leaf(worker_config=SECOND_OF_TWO)
    for name in ("map", "filter", "iter_map", "group", "packing", "repeat", "limit", "shuffle"):
        node = MAKERS[name](below)
        assert dataclasses.replace(node, dataset=other, worker_config=SECOND_OF_TWO) == MAKERS[name](other) != node
    limited = LimitDataset(RepeatDataset(below), 3, reset_after_epoch=True)
    assert dataclasses.replace(limited, length=2) == LimitDataset(RepeatDataset(below), 2, reset_after_epoch=True)


def test_what_nodes_hold() -> None:
    below = leaf()
    mapped = MapDataset(below, function, failure_tolerance=3)
    assert (mapped.dataset, mapped.map_fn, mapped.hook, mapped.task_encoder, mapped.failure_tolerance) == (
        below,
        function,
        "map",
        None,
        3,
    )
    chosen = FilterDataset(below, function)
    assert (chosen.filter_fn, chosen.hook) == (function, "filter")
    streamed = IterMapDataset(below, function)
    assert (streamed.inputs_per_call, streamed.len_map_fn(7), streamed.hook) == (1000, 7, "iter_map")
    packed = PackingDataset(below, 10, select, function)
    assert (packed.buffer_size, packed.pre_packer, packed.final_packer, packed.sample_encoder) == (
        10,
        select,
        function,
        None,
    )
    grouped = GroupBatchDataset(below, None, group, function)
    assert (grouped.fixed_batch_size, grouped.drop_last, grouped.hook, grouped.group_hook) == (
        None,
        False,
        "batch",
        "batch_group_criterion",
    )
    mixed = MixBatchDataset((below, 3), (below, 1), batch_size=5, per_step=4)
    assert isinstance(mixed, BatchDataset)
    assert mixed.dataset == BlendDataset((below, 3), (below, 1), per_step=4)
    assert mixed.batcher(["a", "b"]) == ["a", "b"]
    assert RepeatDataset(below).repeats is None
    assert RepeatDataset(below, repeats=0.7).repeats == 0.7
    halved = EpochizeDataset(below, num_epochs=Fraction(1, 2))
    assert (halved.length, halved.num_epochs) == (None, Fraction(1, 2))
    assert LimitDataset(below, np.int64(3)).length == 3


def test_what_becomes_of_a_last_batch() -> None:
    def last(worker_config: WorkerConfig = HOST, **arguments: Any) -> str:
        return BatchDataset(leaf(worker_config=worker_config), 2, function, **arguments).last_batch

    assert last() == "keep"
    assert last(SECOND_OF_TWO) == "pad"
    assert last(drop_last=True) == last(SECOND_OF_TWO, drop_last=True) == "drop"
    assert last(last_batch="pad") == "pad"
    assert last(drop_last=True, last_batch="drop") == "drop"


def blend(*weights: Any, **arguments: Any) -> BlendDataset:
    return BlendDataset(*((leaf(), weight) for weight in weights), **arguments)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: MapDataset(leaf(), None), r"MapDataset: map_fn=None: expected a function"),
        (lambda: FilterDataset(leaf(), generator), r"filter_fn \(generator\) is a generator function"),
        (lambda: IterMapDataset(leaf(), function, inputs_per_call=0), r"inputs_per_call=0: expected a positive number"),
        (lambda: IterMapDataset(leaf(), function, len_map_fn=3), r"len_map_fn=3: expected a function"),
        (
            lambda: BatchDataset(leaf(), 0, function),
            r"BatchDataset: batch_size=0: expected a positive number of samples",
        ),
        (lambda: BatchDataset(leaf(), 2.0, function), r"batch_size=2.0: expected a positive number"),
        (lambda: BatchDataset(leaf(), True, function), r"batch_size=True"),
        (lambda: BatchDataset(leaf(), 2, None), r"batcher=None"),
        (
            lambda: BatchDataset(leaf(), 2, function, last_batch="half"),
            r"last_batch='half': expected 'keep', 'drop' or 'pad'",
        ),
        (lambda: BatchDataset(leaf(), 2, function, drop_last=True, last_batch="pad"), r"contradict each other"),
        (
            lambda: BatchDataset(leaf(), 2, function, last_batch="keep", worker_config=SECOND_OF_TWO),
            r"last_batch='keep' with 2 hosts",
        ),
        (lambda: GroupBatchDataset(leaf(), 0, group, function), r"fixed_batch_size=0"),
        (lambda: GroupBatchDataset(leaf(), 2, "text", function), r"sample_group_key='text': expected a function"),
        (lambda: GroupBatchDataset(leaf(), 2, group, generator), r"batcher \(generator\) is a generator function"),
        (lambda: PackingDataset(leaf(), 0, select, function), r"buffer_size=0: expected a positive number of samples"),
        (lambda: PackingDataset(leaf(), 2, generator, function), r"pre_packer \(generator\) is a generator"),
        (
            lambda: PackingDataset(leaf(), 2, select, function, sample_encoder=generator),
            r"sample_encoder \(generator\) is a generator",
        ),
        (lambda: MixBatchDataset(batch_size=2), r"BlendDataset: got nothing to combine"),
        (lambda: BlendDataset([]), r"BlendDataset: got nothing to combine"),
        (lambda: BlendDataset("path"), r"BlendDataset: expected a dataset, got a str"),
        (lambda: MixBatchDataset((leaf(), 1), batch_size=0), r"MixBatchDataset: batch_size=0"),
        (lambda: blend(1, 0), r"BlendDataset: weight of dataset 1 is 0: expected a number above 0"),
        (lambda: blend(float("nan")), r"weight of dataset 0 is nan"),
        (lambda: blend("0.3"), r"weight of dataset 0 is '0.3'"),
        (lambda: blend(1, per_step=-1), r"per_step=-1: expected True, False or a number of items"),
        (lambda: BlendDataset((leaf(), 1, 2)), r"a \(dataset, weight\) pair"),
        (lambda: blend(1, 1, schedule=[]), r"must start at position 0 and ascend, but its starts are \[\]"),
        (lambda: blend(1, schedule=[(5, [1])]), r"its starts are \[5\]"),
        (lambda: blend(1, schedule=[(0, [1]), (1e6, [1])]), r"starts at 1000000.0: expected a whole number"),
        (lambda: blend(1, 1, schedule=[(0, [1, 1]), (0, [1, 2])]), r"its starts are \[0, 0\]"),
        (lambda: blend(1, 1, schedule=[(0, [1])]), r"2 datasets, but 1 weights from position 0 on"),
        (
            lambda: blend(1, 1, schedule=[(0, [1, -1])]),
            r"weights \[1, -1\] from position 0 on: each weight must be 0 or more",
        ),
        (lambda: blend(1, 1, schedule=[(0, [1, 1]), (9, [0, 0])]), r"all weights from position 9 on are 0"),
        (lambda: blend(1, 1, schedule=[(0, [1, 0]), (9, [2, 0])]), r"weight 1 is 0 in every segment"),
        (lambda: BlendEpochizedDataset((leaf(), -1)), r"repetitions of dataset 0 is -1: expected a number above 0"),
        (lambda: RepeatDataset(leaf(), repeats=0), r"repeats=0: expected a number above 0, or None \(endless\)"),
        (lambda: RepeatDataset(leaf(), repeats=2, restart=False), r"restart=False is not supported"),
        (lambda: LimitDataset(leaf(), 0), r"LimitDataset: length=0: expected a positive number of items"),
        (lambda: EpochizeDataset(leaf()), r"length=None, num_epochs=None: set exactly one of them"),
        (lambda: EpochizeDataset(leaf(), 3, num_epochs=2), r"length=3, num_epochs=2: set exactly one of them"),
        (lambda: EpochizeDataset(leaf(), length=-1), r"length=-1"),
        (lambda: EpochizeDataset(leaf(), num_epochs=0), r"num_epochs=0: expected a number above 0"),
        (lambda: ShuffleBufferDataset(leaf(), 0), r"size=0: expected a positive number of samples"),
    ],
)
def test_what_nodes_refuse(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()


def test_a_child_may_pause_in_a_schedule() -> None:
    paused = blend(1, 1, schedule=[(0, [1, 0]), (100, [1, 3])])
    assert paused.schedule == ((0, (1, 0)), (100, (1, 3)))


def test_pairs_in_a_concatenation(text_dataset: Callable[..., Path]) -> None:
    """What `build_val_datasets` gets fits `ConcatDataset` as it is."""
    part = get_val_dataset(text_dataset(12), split_part="train", batch_size=None).dataset  # type: ignore[attr-defined]
    assert ConcatDataset((part, 1), part) == ConcatDataset(part, part)


@pytest.mark.parametrize("several", [tuple, list, iter])
def test_mixtures_take_one_iterable(several: Callable[[Any], Any]) -> None:
    a, b = leaf("s3://nowhere/a"), leaf("s3://nowhere/b")
    pairs = [(a, 0.6), (b, 0.4)]
    assert BlendDataset(several(pairs)) == BlendDataset(*pairs)
    assert BlendEpochizedDataset(several(pairs)) == BlendEpochizedDataset(*pairs)
    assert ConcatDataset(several(pairs)) == ConcatDataset(several([a, b])) == ConcatDataset(a, b)
    mixed = MixBatchDataset(several(pairs), batch_size=2, batch_mix_fn=homogeneous_concat_mix)
    assert mixed == MixBatchDataset(*pairs, batch_size=2, batch_mix_fn=homogeneous_concat_mix)
    assert BlendDataset(several([(a, 2)])) == BlendDataset((a, 2))
    assert BlendDataset(several([a, b])) == BlendDataset(a, b)


def test_what_fails_inside_of_a_node_s_property_is_named() -> None:
    class Widths(SavableDataset[Any]):
        @property
        def width(self) -> int:
            return self.worker_config.widht  # type: ignore[attr-defined]

    with pytest.raises(AttributeError, match=r"'WorkerConfig' object has no attribute 'widht'"):
        _ = Widths(worker_config=HOST).width


def run(path: Path, encoder: DefaultTaskEncoder, **options: Any) -> list[Any]:
    arguments = {"batch_size": None, "shuffle_buffer_size": None, "max_samples_per_sequence": None, "repeat": False}
    return list(get_train_dataset(path, task_encoder=encoder, **{**arguments, **options}))


def test_outside_hooks_there_is_no_draw() -> None:
    with pytest.raises(RuntimeError, match="no hook runs in this thread"):
        current_draw()
    with pytest.raises(RuntimeError):
        _ = DefaultTaskEncoder().rng


def test_draws(text_dataset: MakeDataset) -> None:
    class Encoder(DefaultTaskEncoder):
        def encode_sample(self, sample: TextSample) -> Any:
            draw = current_draw()
            assert draw.rng is self.rng
            return sample.__key__, draw.index, draw.position, draw.epoch, draw.seed, self.rng.random()

    seen = run(text_dataset(24), Encoder())
    assert all(int(key) == index for key, index, *_ in seen)
    assert [position for _, _, position, *_ in seen] == list(range(24))
    assert {epoch for *_, epoch, _, _ in seen} == {0}
    assert len({seed for *_, seed, _ in seen}) == len({number for *_, number in seen}) == 24
    assert run(text_dataset(24), Encoder()) == seen
    assert [last for *_, last in run(text_dataset(24), Encoder(), seed=1)] != [last for *_, last in seen]
    with pytest.raises(RuntimeError):
        current_draw()


def test_hooks_of_one_sample_draw_different_numbers(text_dataset: MakeDataset) -> None:
    class Encoder(DefaultTaskEncoder):
        def encode_sample(self, sample: TextSample) -> Any:
            return {"sample": np.array(self.rng.random())}

        def batch(self, samples: list[Any]) -> Any:
            return {"batch": self.rng.random(), "index": current_draw().index, **super().batch(samples)}

        def encode_batch(self, batch: Any) -> Any:
            return {"encoded": self.rng.random(), **batch}

    batches = run(text_dataset(24), Encoder(), batch_size=6)
    numbers = [n for batch in batches for n in (batch["batch"], batch["encoded"], *batch["sample"].tolist())]
    assert len(set(numbers)) == 4 * 8
    assert {batch["index"] for batch in batches} == {-1}


def test_restored_seeds(text_dataset: MakeDataset) -> None:
    """Global generators give each sample its own numbers, and outside go on as if nothing had happened."""

    class Encoder(DefaultTaskEncoder):
        @stateless(restore_seeds=True)
        def encode_sample(self, sample: TextSample) -> Any:
            return sample.__key__, random.random(), float(np.random.random())  # noqa: NPY002

    random.seed(1)
    np.random.seed(1)  # noqa: NPY002
    expected = random.random(), float(np.random.random())  # noqa: NPY002
    random.seed(1)
    np.random.seed(1)  # noqa: NPY002
    seen = run(text_dataset(24), Encoder())
    assert (random.random(), float(np.random.random())) == expected  # noqa: NPY002
    assert len({number for _, *numbers in seen for number in numbers}) == 48
    assert run(text_dataset(24), Encoder()) == seen


def test_skipping(text_dataset: MakeDataset) -> None:
    class Encoder(DefaultTaskEncoder):
        def encode_sample(self, sample: TextSample) -> Any:
            if int(sample.__key__) % 3 == 0:
                raise SkipSample
            return sample

    kept = run(text_dataset(24), Encoder())
    assert sorted(int(sample.__key__) for sample in kept) == [i for i in range(24) if i % 3]


@kind_of_node
class WithPrevious(SavableDataset):
    """Each item of a lane beside the one before it."""

    dataset: SavableDataset

    _: KW_ONLY
    worker_config: WorkerConfig = OF_DATASET

    def __post_init__(self) -> None:
        settle(self, self.dataset)

    def lower(self, to: Lowering) -> Part:
        below = to.below(self.dataset)
        return LanePart(WithPreviousLanes(to.operator(below)), {"with previous": below.mixture})


@dataclass(frozen=True, slots=True, eq=False)
class WithPreviousLanes(LaneOperator):
    child: LaneOperator

    @property
    def state_form(self) -> Form:
        return self.child.state_form, ListOf(self.child.reference_form)

    @property
    def reference_form(self) -> Form:
        return ListOf(self.child.reference_form), self.child.reference_form

    def open(self, lane: Lane, state: State | None) -> Items:
        below, held = (None, ()) if state is None else state
        items = [(reference, self.child.rebuild(reference, lane)) for reference in held]
        return _WithPrevious(self.child.open(lane, below), items)

    def number(self, reference: Reference) -> int:
        return self.child.number(reference[1])

    def rebuild(self, reference: Reference, lane: Lane) -> Any:
        values = [self.child.rebuild(each, lane) for each in (*reference[0], reference[1])]
        return tuple(values)


class _WithPrevious:
    def __init__(self, child: Items, before: list[Item]) -> None:
        self._child = child
        self._before = before

    def next(self) -> Item | None:
        item = self._child.next()
        if item is None:
            return None
        both, self._before = (*self._before, item), [item]
        return (tuple(reference for reference, _ in both[:-1]), item[0]), tuple(value for _, value in both)

    def begin(self, pass_number: int) -> None:
        self._before = []
        self._child.begin(pass_number)

    def state(self) -> State:
        return self._child.state(), tuple(reference for reference, _ in self._before)

    def expect(self, items: float) -> None:
        self._child.expect(items)


def test_a_node_of_somebody_else(text_dataset: MakeDataset) -> None:
    def make() -> SavableDataset:
        return BatchDataset(RepeatDataset(WithPrevious(mixed(text_dataset(31)))), 6, tuple)

    batches = require_exact_states(make, 12)
    assert {len(item) for batch in batches for item in batch} == {1, 2}


def test_a_node_that_does_not_lower() -> None:
    dataset = SavableDataset(worker_config=WorkerConfig(rank=0, world_size=1))
    with pytest.raises(ConfigError, match="SavableDataset defines no `lower`, so it cannot run"):
        Stream.of(dataset)


@pytest.fixture
def collections() -> Any:
    """Counts full collections that somebody asked for or that happen."""
    seen: list[int] = []

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "stop" and info["generation"] == 2:
            seen.append(len(seen))

    gc.disable()  # only those that are asked for
    gc.callbacks.append(note)
    try:
        yield seen
    finally:
        gc.callbacks.remove(note)
        gc.enable()


def test_every_so_many_items(tmp_path: Path, collections: list[int]) -> None:
    path = make_text_dataset(tmp_path / "text", n=12, shards=1)
    batches = BatchDataset(in_order(path), 2, lambda samples: tuple(map(number, samples)))
    plain, collecting = Stream.of(batches), Stream.of(GcDataset(batches, every_n_iter=2, freeze=True))
    frozen = gc.get_freeze_count()
    collections.clear()
    assert list(plain) == [(n, n + 1) for n in range(0, 12, 2)]
    assert not collections
    assert list(collecting) == [(n, n + 1) for n in range(0, 12, 2)]
    assert len(collections) == 3
    assert plain.cursor(with_manifest=True) == collecting.cursor(with_manifest=True)
    assert gc.get_freeze_count() == frozen


def test_below_batches(tmp_path: Path, collections: list[int]) -> None:
    path = make_text_dataset(tmp_path / "text", n=12, shards=1)
    stream = Stream.of(BatchDataset(GcDataset(in_order(path), every_n_iter=4), 3, len))
    collections.clear()
    assert list(stream) == [3] * 4
    assert len(collections) == 3


def test_a_distance_that_is_none(tmp_path: Path) -> None:
    path = make_text_dataset(tmp_path / "text", n=2, shards=1)
    with pytest.raises(ConfigError, match="GcDataset: every_n_iter=0: expected a positive number of items"):
        GcDataset(in_order(path), every_n_iter=0)
