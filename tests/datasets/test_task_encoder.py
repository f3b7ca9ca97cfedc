"""The graph of nodes that a task encoder's hooks come to, and encoders around encoders."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from energon_grain import (
    AugmentTaskEncoder,
    BatchDataset,
    CaptioningSample,
    ConfigError,
    Cooker,
    DefaultTaskEncoder,
    EpochizeDataset,
    GroupBatchDataset,
    LimitDataset,
    MapDataset,
    NoCachePool,
    PackingDataset,
    RepeatDataset,
    SampleDecoder,
    SavableDataset,
    TaskEncoder,
    TextSample,
    WorkerConfig,
    edataclass,
    get_loader,
    get_savable_loader,
    get_train_dataset,
    get_val_dataset,
    get_val_datasets,
    stateless,
)

MakeDataset = Callable[..., Path]
USUAL: dict[str, Any] = {"batch_size": 2, "shuffle_buffer_size": None, "max_samples_per_sequence": None}


def train(encoder: TaskEncoder | None = None, path: Any = "s3://nowhere/data", **arguments: Any) -> Any:
    return get_train_dataset(path, task_encoder=encoder, **{**USUAL, **arguments})


def layers(run: Any) -> list[tuple[type[SavableDataset], str]]:
    """The nodes from the leaf up, each with the name of its hook."""
    found: list[tuple[type[SavableDataset], str]] = []
    node = run.dataset
    while True:
        found.append((type(node), getattr(node, "hook", "")))
        if not hasattr(node, "dataset"):
            return found[::-1]
        node = node.dataset


LEAF = [(type(train(batch_size=None).dataset.dataset), ""), (RepeatDataset, "")]
BATCH = (BatchDataset, "batch")


class Packer(DefaultTaskEncoder):
    def select_samples_to_pack(self, samples: list[Any]) -> list[list[Any]]:
        return [samples]

    @stateless
    def pack_selected_samples(self, samples: list[Any]) -> Any:
        return samples[0]


def test_the_default_encoders_cost_nothing() -> None:
    assert layers(train()) == layers(train(TaskEncoder())) == [*LEAF, BATCH]
    assert layers(train(batch_size=None)) == LEAF
    typed = DefaultTaskEncoder(encoded_sample_type=dict, batch_type=dict)
    assert layers(train(typed)) == [*LEAF, (MapDataset, "encode_sample"), BATCH, (MapDataset, "encode_batch")]


def test_the_order_of_hooks() -> None:
    class Encoder(Packer):
        def preencode_sample(self, sample: Any) -> Any:
            return sample

        def postencode_sample(self, sample: Any) -> Any:
            return sample

        def encode_batch(self, batch: Any) -> Any:
            return batch

    encoder = Encoder()
    first, last = (MapDataset, "preencode_sample"), (MapDataset, "encode_batch")
    assert layers(train(encoder)) == [*LEAF, first, (MapDataset, "postencode_sample"), BATCH, last]
    run = train(encoder, packing_buffer_size=10, virtual_epoch_length=5)
    assert layers(run) == [*LEAF, first, (PackingDataset, ""), BATCH, last, (EpochizeDataset, "")]
    packing = run.dataset.dataset.dataset.dataset
    assert (packing.buffer_size, packing.sample_encoder) == (10, encoder.postencode_sample)
    assert packing.pre_packer == encoder.select_samples_to_pack
    assert packing.final_packer == encoder.pack_selected_samples
    assert packing.task_encoder is encoder
    assert run.dataset.length == 5
    assert layers(train(encoder, packing_buffer_size=10, batch_size=None)) == [*LEAF, first, (PackingDataset, "")]
    validation: Any = get_val_dataset(
        "s3://nowhere/data", batch_size=3, packing_buffer_size=7, limit=2, task_encoder=encoder, batch_drop_last=True
    )
    assert layers(validation) == [LEAF[0], first, (PackingDataset, ""), BATCH, last, (LimitDataset, "")]
    assert validation.dataset.dataset.dataset.last_batch == "drop"
    ((each, _),) = get_val_datasets(
        "s3://nowhere/data", batch_size=3, packing_buffer_size=7, limit=2, task_encoder=encoder, batch_drop_last=True
    )
    assert each == validation


def test_packing_hooks_without_a_buffer_are_not_used() -> None:
    """The same encoder serves training with packs and validation without."""
    assert layers(train(Packer())) == [*LEAF, BATCH]


def test_grouping() -> None:
    class Encoder(TaskEncoder):
        def batch_group_criterion(self, sample: Any) -> tuple[Any, int | None]:
            return sample.text[0], 4

        def encode_batch(self, batch: Any) -> Any:
            return batch

    encoder = Encoder()
    run = train(encoder, batch_size=None, batch_drop_last=True)
    assert layers(run) == [*LEAF, (GroupBatchDataset, "batch"), (MapDataset, "encode_batch")]
    grouping = run.dataset.dataset
    assert (grouping.fixed_batch_size, grouping.drop_last, grouping.task_encoder) == (None, True, encoder)
    assert grouping.sample_group_key == encoder.batch_group_criterion
    assert train(encoder, batch_size=5, last_batch="drop").dataset.dataset.drop_last
    assert not train(encoder, batch_size=5).dataset.dataset.drop_last
    with pytest.raises(ConfigError, match=r"last_batch='pad' with Encoder.batch_group_criterion: groups"):
        train(encoder, last_batch="pad")


@pytest.mark.parametrize(
    ("hooks", "arguments", "message"),
    [
        ({"preencode_sample", "encode_sample"}, {}, r"encode_sample and preencode_sample, .*keep only one"),
        (set(), {"packing_buffer_size": 5}, r"packing_buffer_size=5, but Made has no select_samples_to_pack"),
        ({"select_samples_to_pack"}, {"packing_buffer_size": 5}, r"Made has no pack_selected_samples"),
        (
            {"select_samples_to_pack", "pack_selected_samples"},
            {"packing_buffer_size": 0},
            r"packing_buffer_size=0: expected a positive number",
        ),
    ],
)
def test_hooks_that_do_not_fit(hooks: set[str], arguments: dict[str, Any], message: str) -> None:
    made = type("Made", (TaskEncoder,), {name: lambda self, value: value for name in hooks})
    with pytest.raises(ConfigError, match=message):
        train(made(), **arguments)


def test_a_conversion_stands_where_encode_sample_does() -> None:
    class Encoder(DefaultTaskEncoder):
        def preencode_sample(self, sample: Any) -> Any:
            return sample

    assert layers(train(Encoder())) == [*LEAF, (MapDataset, "preencode_sample"), BATCH]
    with pytest.raises(ConfigError, match=r"encoded_sample_type="):
        train(Encoder(encoded_sample_type=dict))


def test_generators() -> None:
    def several(self: Any, value: Any) -> Iterator[Any]:
        yield value

    def one(self: Any, value: Any) -> Any:
        return value

    allowed = dict.fromkeys(("encode_sample", "pack_selected_samples", "batch", "encode_batch"), several)
    made: Any = type("Made", (TaskEncoder,), {**allowed, "select_samples_to_pack": one})()
    assert len(layers(train(made, packing_buffer_size=4))) == len(LEAF) + 4
    made = type("Made", (TaskEncoder,), {"postencode_sample": several})()
    assert layers(train(made)) == [*LEAF, (MapDataset, "postencode_sample"), BATCH]
    for refused in ("postencode_sample", "select_samples_to_pack"):
        made = type("Made", (Packer,), {refused: several})()
        with pytest.raises(ConfigError, match=r"several\) is a generator function"):
            train(made, packing_buffer_size=4)
    for names in ({"batch": several, "batch_group_criterion": one}, {"batch_group_criterion": several}):
        made = type("Made", (TaskEncoder,), names)()
        with pytest.raises(ConfigError, match=r"several\) is a generator function"):
            train(made)


def test_what_counts_as_overridden() -> None:
    encoder = TaskEncoder()
    encoder.encode_sample = lambda sample: sample  # type: ignore[method-assign]

    class Wrapping(TaskEncoder):
        @functools.wraps(TaskEncoder.encode_sample)
        def encode_sample(self, sample: Any) -> Any:
            return super().encode_sample(sample)

    for overriding in (encoder, Wrapping()):
        assert layers(train(overriding)) == [*LEAF, (MapDataset, "encode_sample"), BATCH]


def test_subscripts() -> None:
    """They are there for annotations, and classes may be generic themselves."""

    class Encoder(DefaultTaskEncoder[TextSample, TextSample, TextSample, dict[str, Any]]):
        pass

    class Plain(TaskEncoder[CaptioningSample, Any, Any, Any]):
        pass

    assert isinstance(Encoder(), DefaultTaskEncoder)
    assert isinstance(Plain(), TaskEncoder)
    assert layers(train(Encoder(batch_type=dict))) == [*LEAF, BATCH, (MapDataset, "encode_batch")]


def test_an_encoder_that_does_not_call_the_constructor() -> None:
    class Encoder(DefaultTaskEncoder):
        def __init__(self, length: int) -> None:
            self.length = length

    assert layers(train(Encoder(3))) == [*LEAF, BATCH]


def test_the_cache() -> None:
    assert TaskEncoder().cache == NoCachePool()


def test_numbers_of_samples(text_dataset: MakeDataset) -> None:
    seen: list[int] = []

    class Encoder(DefaultTaskEncoder):
        def encode_sample(self, sample: TextSample) -> TextSample:
            seen.append(self.current_sample_index)
            return sample

    list(train(Encoder(), text_dataset(24), repeat=False))
    assert seen == list(range(24))
    with pytest.raises(RuntimeError, match="no hook runs"):
        _ = Encoder().current_sample_index


def test_hooks_run_in_order(text_dataset: MakeDataset) -> None:
    @edataclass
    class Words(TextSample):
        seen: list[str]

    class Encoder(DefaultTaskEncoder[TextSample, Words, Words, Any]):
        def preencode_sample(self, sample: TextSample) -> Words:
            return Words.extend(sample, seen=["preencode"])

        def postencode_sample(self, sample: Words) -> Words:
            sample.seen.append("postencode")
            return sample

        def batch(self, samples: list[Words]) -> Any:
            return {"keys": [s.__key__ for s in samples], "seen": [[*s.seen, "batch"] for s in samples]}

        def encode_batch(self, batch: Any) -> Any:
            return {**batch, "seen": [[*seen, "encode_batch"] for seen in batch["seen"]]}

    dataset = train(Encoder(), text_dataset(12), batch_size=4, repeat=False)
    for loader in (get_loader(dataset), get_savable_loader(dataset)):
        batches: list[Any] = list(loader)
        assert sorted(key for batch in batches for key in batch["keys"]) == [f"{i:06d}" for i in range(12)]
        order = ["preencode", "postencode", "batch", "encode_batch"]
        assert [seen for batch in batches for seen in batch["seen"]] == [order] * 12
        loader.close()


def test_the_encoder_s_worker_config() -> None:
    second = WorkerConfig(rank=1, world_size=2)
    run = train(Packer(), packing_buffer_size=4, worker_config=second, virtual_epoch_length=3)
    node = run
    while hasattr(node, "dataset"):
        assert node.worker_config is second
        node = node.dataset


HOOKS = {
    "cook_crude_sample": ("sample", "cooker", "aux"),
    "encode_sample": ("sample",),
    "preencode_sample": ("sample",),
    "postencode_sample": ("sample",),
    "select_samples_to_pack": ("samples",),
    "pack_selected_samples": ("samples",),
    "batch_group_criterion": ("sample",),
    "batch": ("samples",),
    "encode_batch": ("batch",),
}


class Inner(DefaultTaskEncoder):
    decoder = SampleDecoder(image_decode="l8")
    cookers = (Cooker(print),)
    thread_safe = True

    def encode_sample(self, sample: TextSample) -> TextSample:
        sample.text = f"inner {self.rng.integers(10)} {sample.text}"
        return sample


class Outer(AugmentTaskEncoder):
    def encode_sample(self, sample: TextSample) -> TextSample:
        sample = super().encode_sample(sample)
        sample.text = "outer " + sample.text
        return sample


def train_dataset(encoder: Any, path: Any = "s3://nowhere/data", **arguments: Any) -> Any:
    usual = {"batch_size": 2, "shuffle_buffer_size": None, "max_samples_per_sequence": None}
    return get_train_dataset(path, task_encoder=encoder, **{**usual, **arguments})


@pytest.mark.parametrize("hook", HOOKS)
def test_every_hook_is_handed_on(hook: str) -> None:
    made: Any = type("Made", (DefaultTaskEncoder,), {hook: lambda self, *arguments: (hook, arguments)})
    inner = made()
    outer: Any = AugmentTaskEncoder(AugmentTaskEncoder(inner))
    assert getattr(outer, hook)(*HOOKS[hook]) == (hook, HOOKS[hook])


def test_hooks_are_called_by_keyword_too() -> None:
    assert AugmentTaskEncoder(DefaultTaskEncoder()).encode_sample(sample=5) == 5


def test_what_is_not_overridden_costs_nothing() -> None:
    inner = Inner()
    plain, augmented = train_dataset(inner), train_dataset(AugmentTaskEncoder(inner))
    assert augmented.dataset.batcher == plain.dataset.batcher == inner.batch
    mapped = augmented.dataset.dataset
    assert (mapped.map_fn, mapped.task_encoder) == (inner.encode_sample, inner)
    outer = Outer(inner)
    mapped = train_dataset(outer).dataset.dataset
    assert (mapped.map_fn, mapped.task_encoder) == (outer.encode_sample, outer)
    assert not outer.thread_safe, "new code must say so itself"


def test_hooks_of_both_in_one_node() -> None:
    """Only the outer encoder can say whether all of a node's hooks are safe in threads."""

    class Packer(Inner):
        def select_samples_to_pack(self, samples: list[Any]) -> Any:
            return [samples]

        def pack_selected_samples(self, samples: list[Any]) -> Any:
            return samples[0]

    class Choosy(AugmentTaskEncoder):
        def select_samples_to_pack(self, samples: list[Any]) -> Any:
            return super().select_samples_to_pack(samples[1:])

    inner = Packer()
    outer = Choosy(inner)
    assert train_dataset(AugmentTaskEncoder(inner), packing_buffer_size=3).dataset.dataset.task_encoder is inner
    packing = train_dataset(outer, packing_buffer_size=3).dataset.dataset
    assert (packing.task_encoder, packing.final_packer) == (outer, inner.pack_selected_samples)


def test_attributes() -> None:
    inner = Inner()
    outer = AugmentTaskEncoder(inner)
    assert outer.inner is inner
    assert outer.decoder is inner.decoder
    assert outer.cookers is inner.cookers
    outer.decoder = None
    assert inner.decoder is None

    class Own(AugmentTaskEncoder):
        decoder = SampleDecoder(image_decode="pil")
        cookers = ()

    assert Own(inner).decoder == SampleDecoder(image_decode="pil")
    assert Own(inner).cookers == ()


def test_it_runs(text_dataset: MakeDataset) -> None:
    path = text_dataset(24)
    once = [text for batch in train_dataset(Inner(), path, repeat=False) for text in batch.text]
    both = [text for batch in train_dataset(Outer(Inner()), path, repeat=False) for text in batch.text]
    assert both == ["outer " + text for text in once]


def test_builders_of_the_inner_encoder() -> None:
    class Building(DefaultTaskEncoder):
        def build_batch(self, dataset: Any, **keywords: Any) -> Any:
            return super().build_batch(dataset, **keywords)

    class BuildingToo(AugmentTaskEncoder):
        def build_batch(self, dataset: Any, **keywords: Any) -> Any:
            return super().build_batch(dataset, **keywords)

    with pytest.raises(ConfigError, match=r"Building overrides build_batch, which AugmentTaskEncoder cannot forward"):
        AugmentTaskEncoder(Building())
    assert BuildingToo(Building())
    with pytest.raises(ConfigError, match=r"BuildingToo overrides build_batch"):
        AugmentTaskEncoder(BuildingToo(Inner()))
