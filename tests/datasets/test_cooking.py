"""Crude datasets end to end: which cooker, what it gets, what comes out; and conversion by field name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import yaml
from metadatasets import write_v2

from energon_grain import (
    AugmentTaskEncoder,
    ConfigError,
    Cooker,
    CrudeSample,
    DefaultTaskEncoder,
    EPath,
    FatalSampleError,
    Sample,
    SourceInfo,
    TaskEncoder,
    TextSample,
    WorkerConfig,
    basic_sample_keys,
    cooker,
    get_train_dataset,
    get_val_dataset,
    reraise_exception,
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
    with pytest.raises(
        ConfigError, match=r"none: no cooker matches the subflavors \{'sign': 'zero'\}.*'minus'.*'plus'"
    ):
        first(none, Encoder())


def test_a_batch_of_crude_and_typed_samples_ends_the_run(dataset: Path, tmp_path: Path) -> None:
    make_text_dataset(tmp_path / "text", n=8, shards=1)
    mixture = write_v2(tmp_path, train={"blend": [{"path": "crude"}, {"path": "text"}]})
    with pytest.raises(FatalSampleError, match=r"batch failed on .*: samples of .*crude are crude, others TextSample"):
        list(get_val_dataset(mixture, split_part="train", batch_size=12))


class WithMethods(DefaultTaskEncoder):
    """Cookers that are methods, as functions of the class's body."""

    def __init__(self, added: int) -> None:
        super().__init__()
        self.added = added

    @stateless
    def cook(self, crude: Any) -> Number:
        return Number(**basic_sample_keys(crude), number=self.added + int(self.rng.integers(10)))

    cookers = (Cooker(cook),)


class Wrapped(WithMethods):
    def cook_crude_sample(self, sample: Any, cooker: Cooker, aux: dict[str, Any]) -> Any:
        made = cooker.cook(sample, **aux)
        made.words = "wrapped"
        return made


def test_a_cooker_may_be_a_method(dataset: Path) -> None:
    def numbers(encoder: TaskEncoder) -> list[tuple[int, str]]:
        samples = get_val_dataset(dataset, split_part="train", batch_size=None, task_encoder=encoder)
        return [(each.number, each.words) for each in samples]

    found = numbers(WithMethods(100))
    assert len({number for number, _ in found}) > 1
    assert all(100 <= number < 110 for number, _ in found)
    assert numbers(WithMethods(200)) == [(number + 100, words) for number, words in found]
    assert numbers(AugmentTaskEncoder(WithMethods(100))) == found
    assert numbers(Wrapped(100)) == [(number, "wrapped") for number, _ in found]


def test_functions_of_a_class_that_take_no_self_stay_functions(dataset: Path) -> None:
    class Encoder(DefaultTaskEncoder):
        def cook(crude: Any) -> Number:  # type: ignore[misc]
            return Number(**basic_sample_keys(crude), number=1)

        @classmethod
        def of_class(cls, crude: Any) -> Number:
            return Number(**basic_sample_keys(crude), number=2, words=cls.__name__)

        @staticmethod
        def alone(crude: Any) -> Number:
            return Number(**basic_sample_keys(crude), number=3)

        cookers = (Cooker(cook),)

    made: list[Any] = []
    for name in ("cook", "of_class", "alone"):
        encoder = Encoder()
        encoder.cookers = [Cooker(vars(Encoder)[name])]
        made.append(first(dataset, encoder))
    assert [(each.number, each.words) for each in made] == [(1, ""), (2, "Encoder"), (3, "")]


def test_a_method_of_another_class_and_a_parameter_too_many_say_what_to_do(dataset: Path) -> None:
    class Encoder(DefaultTaskEncoder):
        cookers = (Cooker(WithMethods.cook),)

    with pytest.raises(ConfigError, match=r"cook do not fit: its first parameter is `self`, but .*Cooker\(other.cook"):
        first(dataset, Encoder())
    Encoder.cookers = (Cooker(lambda crude, more: more),)
    with pytest.raises(ConfigError, match=r"needs `more`, but is called with only the sample: .* has no auxiliary"):
        first(dataset, Encoder())


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


MakeDataset = Callable[..., Path]


@dataclass
class Point:
    x: int
    y: int = 2


class Pair(NamedTuple):
    x: int
    y: int


class Dictionary(dict[str, Any]):
    pass


def convert(value: Any, target: type[Any]) -> Any:
    return DefaultTaskEncoder(encoded_sample_type=target).encode_sample(value)


VALUES = [Point(1, 2), Pair(1, 2), {"x": 1, "y": 2}]


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("target", [Point, Pair, dict, Dictionary])
def test_between_all_kinds(value: Any, target: type[Any]) -> None:
    converted = convert(value, target)
    assert type(converted) is target or converted is value
    assert convert(converted, dict) == {"x": 1, "y": 2}


def test_what_is_one_already_stays() -> None:
    point = Point(1)
    assert convert(point, Point) is point


@pytest.mark.parametrize("value", [5, "text", (1, 2), [1], None, Point])
def test_what_has_no_fields(value: Any) -> None:
    with pytest.raises(ConfigError, match=r"cannot convert a \w+ by field name"):
        convert(value, dict)


@pytest.mark.parametrize("value", [{"x": 1, "z": 3}, {"y": 1}, {}])
def test_fields_that_do_not_fit(value: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match=r"fields \[.*\] of dict do not fit Point.*override the hook"):
        convert(value, Point)


@dataclass
class Encoded(TextSample):
    extra: int = 7


def first_sample(path: Path, encoder: DefaultTaskEncoder) -> Any:
    return next(iter(get_val_dataset(path, split_part="train", batch_size=3, task_encoder=encoder)))


def test_default_task_encoder_keeps_types(text_dataset: MakeDataset) -> None:
    batch = first_sample(text_dataset(12), DefaultTaskEncoder())
    assert type(batch) is TextSample
    assert batch.__key__ == ["000000", "000001", "000002"]
    assert len(batch.text) == 3


def test_default_task_encoder_converts(text_dataset: MakeDataset) -> None:
    path = text_dataset(12)
    texts = first_sample(path, DefaultTaskEncoder()).text
    encoded = first_sample(path, DefaultTaskEncoder(encoded_sample_type=Encoded))
    assert type(encoded) is Encoded
    assert encoded.text == texts
    assert encoded.extra == [7, 7, 7]
    as_dict = first_sample(path, DefaultTaskEncoder(encoded_sample_type=dict))
    assert as_dict["text"] == texts
    raw = first_sample(path, DefaultTaskEncoder(raw_batch_type=dict))
    assert type(raw) is dict
    assert raw["text"] == texts
    both = first_sample(path, DefaultTaskEncoder(raw_batch_type=dict, batch_type=Dictionary))
    assert type(both) is Dictionary
    assert both["text"] == texts
    typed = first_sample(path, DefaultTaskEncoder(batch_type=Encoded))
    assert type(typed) is Encoded
    assert typed.extra == 7


@dataclass
class Plain:
    __key__: Any
    __restore_key__: Any
    __subflavors__: Any
    __sources__: Any
    text: Any


@pytest.mark.parametrize("option", ["encoded_sample_type", "raw_batch_type", "batch_type"])
def test_types_of_the_user_alone(text_dataset: MakeDataset, option: str) -> None:
    """They need no place for the validity mask while there is none."""
    batch = first_sample(text_dataset(12), DefaultTaskEncoder(**{option: Plain}))
    assert type(batch) is Plain
    assert len(batch.text) == 3


def test_wrong_types(text_dataset: MakeDataset) -> None:
    dataset = get_val_dataset(
        text_dataset(12),
        split_part="train",
        batch_size=3,
        task_encoder=DefaultTaskEncoder(encoded_sample_type=Point),
        worker_config=WorkerConfig(0, 1, global_error_handler=reraise_exception),
    )
    with pytest.raises(FatalSampleError, match="do not fit Point"):
        next(iter(dataset))


def test_hooks_in_a_row(text_dataset: MakeDataset) -> None:
    class Encoder(DefaultTaskEncoder):
        def __init__(self) -> None:
            super().__init__(batch_type=dict)

        def encode_sample(self, sample: TextSample) -> dict[str, Any]:
            return {"length": np.array(len(sample.text))}

    batch = first_sample(text_dataset(12), Encoder())
    assert type(batch) is dict
    assert batch["length"].shape == (3,)
