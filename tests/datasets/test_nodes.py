"""What dataset nodes hold, and which arguments they refuse when they are made."""

from __future__ import annotations

import dataclasses
import pickle
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from energon_grain import (
    BaseCoreDataset,
    BaseCoreDatasetFactory,
    BatchDataset,
    BlendDataset,
    BlendEpochizedDataset,
    ConcatDataset,
    ConfigError,
    EpochizeDataset,
    FilterDataset,
    GroupBatchDataset,
    IterMapDataset,
    LimitDataset,
    MapDataset,
    MixBatchDataset,
    PackingDataset,
    RepeatDataset,
    SavableDataset,
    ShuffleBufferDataset,
    TextSample,
    WorkerConfig,
    get_val_dataset,
    homogeneous_concat_mix,
)

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
        (lambda: MixBatchDataset(batch_size=2), r"BlendDataset: there is nothing to combine"),
        (lambda: BlendDataset([]), r"BlendDataset: there is nothing to combine"),
        (lambda: BlendDataset("path"), r"BlendDataset: expected a dataset, got a str"),
        (lambda: MixBatchDataset((leaf(), 1), batch_size=0), r"MixBatchDataset: batch_size=0"),
        (lambda: blend(1, 0), r"BlendDataset: weight of dataset 1 is 0: expected a number above 0"),
        (lambda: blend(float("nan")), r"weight of dataset 0 is nan"),
        (lambda: blend("0.3"), r"weight of dataset 0 is '0.3'"),
        (lambda: blend(1, per_step=-1), r"per_step=-1: expected True, False or a number of items"),
        (lambda: BlendDataset((leaf(), 1, 2)), r"a \(dataset, weight\) pair"),
        (lambda: blend(1, 1, schedule=[]), r"begins at position 0 and ascends, but this one is from \[\]"),
        (lambda: blend(1, schedule=[(5, [1])]), r"from \[5\]"),
        (lambda: blend(1, schedule=[(0, [1]), (1e6, [1])]), r"begins at 1000000.0: expected a whole number"),
        (lambda: blend(1, 1, schedule=[(0, [1, 1]), (0, [1, 2])]), r"from \[0, 0\]"),
        (lambda: blend(1, 1, schedule=[(0, [1])]), r"2 datasets and 1 weights from 0 on"),
        (lambda: blend(1, 1, schedule=[(0, [1, -1])]), r"weights \[1, -1\] from 0 on: expected 0 or more"),
        (lambda: blend(1, 1, schedule=[(0, [1, 1]), (9, [0, 0])]), r"all weights from 9 on are 0"),
        (lambda: BlendEpochizedDataset((leaf(), -1)), r"repetitions of dataset 0 is -1: expected a number above 0"),
        (lambda: RepeatDataset(leaf(), repeats=0), r"repeats=0: expected a number above 0, or None for no end"),
        (lambda: RepeatDataset(leaf(), repeats=2, restart=False), r"restart=False is not supported"),
        (lambda: LimitDataset(leaf(), 0), r"LimitDataset: length=0: expected a positive number of items"),
        (lambda: EpochizeDataset(leaf()), r"length=None, num_epochs=None: give one of the two"),
        (lambda: EpochizeDataset(leaf(), 3, num_epochs=2), r"length=3, num_epochs=2: give one of the two"),
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
