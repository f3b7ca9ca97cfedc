from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from energon_grain import (
    AugmentTaskEncoder,
    ConfigError,
    Cooker,
    DefaultTaskEncoder,
    SampleDecoder,
    TextSample,
    get_train_dataset,
)

MakeDataset = Callable[..., Path]
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


def train(encoder: Any, path: Any = "s3://nowhere/data", **arguments: Any) -> Any:
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
    plain, augmented = train(inner), train(AugmentTaskEncoder(inner))
    assert augmented.dataset.batcher == plain.dataset.batcher == inner.batch
    mapped = augmented.dataset.dataset
    assert (mapped.map_fn, mapped.task_encoder) == (inner.encode_sample, inner)
    outer = Outer(inner)
    mapped = train(outer).dataset.dataset
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
    assert train(AugmentTaskEncoder(inner), packing_buffer_size=3).dataset.dataset.task_encoder is inner
    packing = train(outer, packing_buffer_size=3).dataset.dataset
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
    once = [text for batch in train(Inner(), path, repeat=False) for text in batch.text]
    both = [text for batch in train(Outer(Inner()), path, repeat=False) for text in batch.text]
    assert both == ["outer " + text for text in once]


def test_builders_of_the_inner_encoder() -> None:
    class Building(DefaultTaskEncoder):
        def build_batch(self, dataset: Any, **keywords: Any) -> Any:
            return super().build_batch(dataset, **keywords)

    class BuildingToo(AugmentTaskEncoder):
        def build_batch(self, dataset: Any, **keywords: Any) -> Any:
            return super().build_batch(dataset, **keywords)

    with pytest.raises(ConfigError, match=r"Building overrides build_batch, which AugmentTaskEncoder cannot hand on"):
        AugmentTaskEncoder(Building())
    assert BuildingToo(Building())
    with pytest.raises(ConfigError, match=r"BuildingToo overrides build_batch"):
        AugmentTaskEncoder(BuildingToo(Inner()))
