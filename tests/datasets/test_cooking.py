"""Crude datasets end to end: which cooker, what it gets, what comes out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from metadatasets import write_v2

from energon_grain import (
    ConfigError,
    Cooker,
    CrudeSample,
    DefaultTaskEncoder,
    EPath,
    FatalSampleError,
    Sample,
    SourceInfo,
    TaskEncoder,
    basic_sample_keys,
    cooker,
    get_train_dataset,
    get_val_dataset,
    stateless,
)
from energon_grain.testing import make_crude_dataset, make_text_dataset


@dataclass
class Number(Sample):
    """A plain dataclass, as users write it."""

    number: int
    words: str = ""


def add_to_config(root: Path, **content: Any) -> Path:
    path = root / ".nv-meta" / "dataset.yaml"
    path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), **content}))
    return root


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    return add_to_config(make_crude_dataset(tmp_path / "crude", n=8, shards=1), subflavors={"lang": "en", "level": 3})


def first(dataset: Path, encoder: TaskEncoder) -> Any:
    return next(iter(get_val_dataset(dataset, split_part="train", batch_size=None, task_encoder=encoder)))


def test_without_a_cooker_samples_are_dicts(dataset: Path) -> None:
    sample = first(dataset, DefaultTaskEncoder())
    assert type(sample) is CrudeSample
    assert set(sample) == {"__key__", "__restore_key__", "__shard__", "__subflavors__", "__sources__", "txt", "json"}
    assert (sample["__key__"], sample["__shard__"]) == ("000000", "shard_000.tar")
    assert sample["__subflavors__"] == {"lang": "en", "level": 3}
    assert isinstance(sample["txt"], str)
    assert sample["json"]["number"] == 0
    assert sample["__sources__"] == (
        SourceInfo(
            dataset_path=EPath(dataset), index=0, shard_name="shard_000.tar", file_names=("000000.txt", "000000.json")
        ),
    )


def test_a_part_that_is_not_there_is_told_with_those_that_are(dataset: Path) -> None:
    def cook(sample: dict[str, Any]) -> Number:
        return Number(**basic_sample_keys(sample), number=sample["jsno"]["index"])

    class Misspelt(DefaultTaskEncoder):
        cookers = (Cooker(cook),)

    with pytest.raises(FatalSampleError, match=r"the sample has no part 'jsno'; it has (txt, json|json, txt)"):
        first(dataset, Misspelt())
    assert CrudeSample(txt="a").get("jpg") is None


def test_the_first_cooker_that_fits(dataset: Path) -> None:
    def never(sample: CrudeSample) -> Any:
        raise AssertionError("this cooker is for other leaves")

    @stateless
    def cook(sample: CrudeSample) -> Number:
        return Number(**basic_sample_keys(sample), number=sample["json"]["number"], words=sample["txt"])

    class Encoder(DefaultTaskEncoder):
        cookers = (
            Cooker(never, has_subflavors={"lang": "de"}),
            Cooker(never, has_subflavors={"lang": "en", "level": 4}),
            Cooker(never, has_subflavors={"missing": None}),
            Cooker(cook, has_subflavors={"lang": "en"}),
            Cooker(never),
        )

    sample = first(dataset, Encoder())
    assert type(sample) is Number
    assert sample.number == 0
    assert sample.words
    assert sample.__key__ == "000000"
    assert sample.__subflavors__ == {"lang": "en", "level": 3}
    assert sample.__sources__[0].shard_name == "shard_000.tar"
    batches = list(
        get_train_dataset(
            dataset, batch_size=4, shuffle_buffer_size=None, max_samples_per_sequence=None, repeat=False,
            task_encoder=Encoder(),
        )
    )  # fmt: skip
    assert sorted(number for batch in batches for number in batch.number) == list(range(8))
    assert all(type(batch) is Number for batch in batches)


def test_several_leaves_with_a_cooker_each(tmp_path: Path) -> None:
    class Encoder(DefaultTaskEncoder):
        cookers = (
            Cooker(lambda crude: Number(**basic_sample_keys(crude), number=-1), has_subflavors={"sign": "minus"}),
            Cooker(lambda crude: Number(**basic_sample_keys(crude), number=+1), has_subflavors={"sign": "plus"}),
        )

    for sign, number in (("minus", -1), ("plus", 1)):
        root = add_to_config(make_crude_dataset(tmp_path / sign, n=2, shards=1), subflavors={"sign": sign})
        assert first(root, Encoder()).number == number
    none = add_to_config(make_crude_dataset(tmp_path / "none", n=2, shards=1), subflavors={"sign": "zero"})
    with pytest.raises(ConfigError, match=r"none: no cooker fits its subflavors \{'sign': 'zero'\}.*'minus'.*'plus'"):
        first(none, Encoder())


def test_a_batch_of_crude_and_typed_samples_ends_the_run(dataset: Path, tmp_path: Path) -> None:
    make_text_dataset(tmp_path / "text", n=8, shards=1)
    mixture = write_v2(tmp_path, train={"blend": [{"path": "crude"}, {"path": "text"}]})
    with pytest.raises(FatalSampleError, match=r"batch failed on .*: those of .*crude are crude, others TextSample"):
        list(get_val_dataset(mixture, split_part="train", batch_size=12))


def test_cook_crude_sample_may_be_overridden(dataset: Path) -> None:
    class Encoder(TaskEncoder):
        cookers = (Cooker(lambda crude: crude["json"]["number"]),)

        def cook_crude_sample(self, sample: Any, cooker: Cooker, aux: dict[str, Any]) -> Any:
            assert aux == {}
            return Number(**basic_sample_keys(sample), number=cooker.cook(sample) + 100)

    assert first(dataset, Encoder()).number == 100


def test_hooks_see_bytes_without_a_decoder(dataset: Path) -> None:
    class Encoder(TaskEncoder):
        decoder = None

    sample = first(dataset, Encoder())
    assert type(sample["txt"]) is bytes
    assert type(sample["json"]) is bytes


@pytest.mark.parametrize("wanted", [["json"], lambda part: part == "json"])
def test_only_some_parts(dataset: Path, wanted: Any) -> None:
    samples = get_val_dataset(dataset, split_part="train", batch_size=None, part_filter=wanted)
    assert all("txt" not in sample and sample["json"]["number"] == i for i, sample in enumerate(samples))


def test_is_match() -> None:
    def cook(sample: Any) -> Any:
        return sample

    assert Cooker(cook).is_match(None)
    assert Cooker(cook).is_match({"a": 1})
    assert Cooker(cook, has_subflavors={}).is_match(None)
    assert Cooker(cook, {"a": 1}).is_match({"a": 1, "b": 2})
    assert not Cooker(cook, {"a": 1}).is_match({"a": 2})
    assert not Cooker(cook, {"a": 1}).is_match(None)
    assert not Cooker(cook, {"a": None}).is_match({})


def test_the_decorator() -> None:
    @cooker
    def plain(sample: Any) -> Any:
        return sample

    @cooker(need_cache=True)
    def cached(sample: Any, cache: Any) -> Any:
        return sample

    @cooker(need_primary=True, need_cache=True)
    def both(sample: Any, primary: Any, cache: Any) -> Any:
        return sample

    needs = [(Cooker(fn).need_cache, Cooker(fn).need_primary) for fn in (plain, cached, both, test_the_decorator)]
    assert needs == [(False, False), (True, False), (True, True), (False, False)]
    assert plain(5) == 5


def test_basic_sample_keys() -> None:
    source = SourceInfo(dataset_path=EPath("d"), index=0, shard_name="s", file_names=("k.txt",))
    base: Mapping[str, Any] = {
        "__key__": "k",
        "__restore_key__": ("sample", 0, 1),
        "__subflavors__": {"a": 1},
        "__sources__": (source,),
    }
    assert basic_sample_keys({**base, "__shard__": "s", "txt": "t"}) == base
    assert basic_sample_keys({"__key__": "k", "txt": "t"}) == {"__key__": "k"}
    assert basic_sample_keys(base, (source,))["__sources__"] == (source, source)


def test_subclasses_are_plain_dataclasses_with_arrays(dataset: Path) -> None:
    @dataclass
    class Wide(Number):
        values: np.ndarray | None = None

    class Encoder(DefaultTaskEncoder):
        cookers = (
            Cooker(lambda crude: Wide(**basic_sample_keys(crude), number=1, values=np.arange(len(crude["txt"])))),
        )

    (batch,) = get_val_dataset(dataset, split_part="train", batch_size=8, task_encoder=Encoder())
    assert type(batch) is Wide
    assert isinstance(batch.values, np.ndarray)
    assert batch.values.shape[0] == 8, "padded and stacked"
