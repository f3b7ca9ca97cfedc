"""Datasets and joins by class: in programs, and in the dataset's own configuration."""

from __future__ import annotations

import dataclasses
import json
import pickle
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import yaml
from stream_hosts import quiet

import energon_grain
from energon_grain import (
    BaseWebdatasetFactory,
    BlendDataset,
    CaptioningSample,
    CaptioningWebdataset,
    ConfigError,
    Cooker,
    CrudeSample,
    CrudeWebdataset,
    DefaultDecoderWebdatasetFactory,
    DefaultGenericWebdatasetFactory,
    DefaultTaskEncoder,
    FieldMapError,
    ImageSample,
    JoinedWebdatasetFactory,
    MapDataset,
    Sample,
    SampleDecoder,
    StandardWebdatasetFactory,
    Stream,
    TextSample,
    TextWebdataset,
    UntrustedCodeError,
    WorkerConfig,
    get_train_dataset,
    get_val_dataset,
)
from energon_grain.prepare import prepare_dataset
from energon_grain.testing import make_captioning_dataset, write_tars

CONFIG = WorkerConfig(0, 1, global_error_handler=quiet)
TEXTS = {"text": "txt"}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve samples of text and numbers, without a `dataset.yaml`."""
    root = tmp_path_factory.mktemp("factories") / "texts"
    samples = [{"__key__": f"{i:03d}", "txt": f"text {i}", "json": {"n": i}} for i in range(12)]
    write_tars(root, samples, shards=3)
    prepare_dataset(root, split_ratio={"train": 2, "val": 1}, crude=True, num_workers=0)
    (root / ".nv-meta" / "dataset.yaml").unlink()
    return root


@pytest.fixture
def copy(root: Path, tmp_path: Path) -> Path:
    """The same, to be given a configuration."""
    samples = [{"__key__": f"{i:03d}", "txt": f"text {i}", "json": {"n": i}} for i in range(12)]
    write_tars(tmp_path / "texts", samples, shards=3)
    prepare_dataset(tmp_path / "texts", split_ratio={"train": 1}, crude=True, num_workers=0, sqlite=False)
    return tmp_path / "texts"


def say(root: Path, **content: Any) -> Path:
    (root / ".nv-meta" / "dataset.yaml").write_text(yaml.safe_dump(content))
    return root


def read(factory: Any, **options: Any) -> list[Any]:
    with Stream.of(factory.build(), **options) as stream:
        return list(stream)


def val(**options: Any) -> dict[str, Any]:
    return {"split_part": "train", "training": False, "worker_config": CONFIG, **options}


def test_samples_by_a_field_map(root: Path) -> None:
    factory = TextWebdataset(root, **val(field_map=TEXTS, subflavors={"a": 1}))
    samples = read(factory)
    assert [sample.text for sample in samples] == [f"text {i}" for i in range(8)]
    assert {type(sample) for sample in samples} == {TextSample}
    assert samples[3].__subflavors__ == {"a": 1}
    assert samples[3].__sources__[0].file_names == ("003.txt",)  # of the parts, those that are needed
    assert len(factory) == 8
    assert factory
    assert len(TextWebdataset(root, **val(field_map=TEXTS, split_part="val"))) == 4
    assert len(TextWebdataset(root, **val(field_map=TEXTS, subset=["25%", "75%"]))) == 4
    assert json.loads(json.dumps(factory.config()))["type"] == "TextWebdataset"
    assert str(factory) == f"TextWebdataset(path={root})"
    assert factory.paths == [str(root)]
    assert factory.as_file_store().get("000.txt") == b"text 0"


def test_training_is_that_of_get_train_dataset(root: Path, copy: Path) -> None:
    say(copy, sample_type={"__module__": "megatron.energon", "__class__": "TextSample"}, field_map=TEXTS)
    options: dict[str, Any] = {"max_samples_per_sequence": 2, "parallel_shard_iters": 3}
    factory = TextWebdataset(copy, **val(field_map=TEXTS, training=True, shuffle_over_epochs=2, **options))
    same = get_train_dataset(
        copy,
        batch_size=None,
        shuffle_buffer_size=None,
        shuffle_over_epochs_multiplier=2,
        repeat=False,
        worker_config=CONFIG,
        **options,
    )
    one, other = Stream.of(factory.build(worker_rotation_offset=3)), Stream.of(same)
    seen = [sample.__key__ for _ in range(2) for sample in one]
    assert seen == [sample.__key__ for _ in range(2) for sample in other]
    assert sorted(seen) == sorted(2 * [f"{i:03d}" for i in range(12)])
    assert one.cursor() == other.cursor()


def test_what_is_built_is_a_node(root: Path) -> None:
    def built(**options: Any) -> Any:
        return TextWebdataset(root, **val(field_map=TEXTS, training=True, **options)).build()

    blend = BlendDataset((MapDataset(built(), lambda s: s.text), 3), (MapDataset(built(split_part="val"), str), 1))
    items = [item for item, _ in zip(iter(blend), range(480), strict=False)]
    assert abs(sum(item.startswith("text ") for item in items) - 360) <= 17
    node = built()
    assert node.build(worker_rotation_offset=1) is node


def loader(sample: dict[str, Any]) -> dict[str, Any]:
    return {"text": f"{sample['__key__']}: {sample['txt']} {sample['json']['n']}"}


@pytest.mark.parametrize("worker_type", ["thread", "process"])
def test_samples_by_a_function(root: Path, worker_type: Any) -> None:
    factory = StandardWebdatasetFactory(
        root, sample_type=TextSample, sample_loader=loader, part_filter=["txt", "json"], **val(subflavors={"a": 2})
    )
    workers = dataclasses.replace(CONFIG, num_workers=2, worker_type=worker_type)
    samples = read(factory, worker_config=workers)
    assert [sample.text for sample in samples] == [f"{i:03d}: text {i} {i}" for i in range(8)]
    assert {(type(sample), sample.__subflavors__["a"]) for sample in samples} == {(TextSample, 2)}
    assert {type(sample.__restore_key__) for sample in samples} == {tuple}


@dataclasses.dataclass
class Numbered(Sample):
    """A sample with a number."""

    n: int
    kind: str = ""


class Bare(BaseWebdatasetFactory[Numbered]):
    """Parts are bytes here."""

    __sample_type__ = Numbered

    def load_sample(self, sample: Any) -> Numbered:
        assert set(sample) == {"__key__", "__restore_key__", "__subflavors__", "__sources__", "__shard__", "json"}
        if sample["__key__"] == "003":
            raise ValueError("not this one")
        return Numbered(
            __key__=sample["__key__"],
            __restore_key__=sample["__restore_key__"],
            n=json.loads(sample["json"])["n"],
            kind=type(sample["json"]).__name__,
        )


class Fancy(DefaultDecoderWebdatasetFactory[Numbered]):
    """Changes what the field map finds, as it was configured to."""

    __sample_type__ = Numbered

    def __init__(self, path: Any, *, times: int = 2, **kwargs: Any) -> None:
        super().__init__(path, **kwargs)
        self.times = times

    def load_sample(self, sample: Any) -> Numbered:
        assert isinstance(sample["json"], bytes)
        made = super().load_sample(sample)
        made.n *= self.times
        made.kind = str(self.split_part)
        return made


class Upper(CrudeWebdataset):
    """Crude samples, changed before they are cooked."""

    def load_sample(self, sample: Any) -> CrudeSample:
        made = super().load_sample(sample)
        made["txt"] = made["txt"].upper()
        return made


def test_subclasses_that_load_samples_by_themselves(root: Path) -> None:
    samples = read(Bare(root, **val(part_filter={"json"})))
    assert [(sample.n, sample.kind) for sample in samples] == [(i, "bytes") for i in range(8) if i != 3]
    samples = read(Fancy(root, **val(field_map={"n": "json[n]"}, times=5)))
    assert [(sample.n, sample.kind) for sample in samples] == [(5 * i, "train") for i in range(8)]
    assert [sample["txt"] for sample in read(Upper(root, **val()))] == [f"TEXT {i}" for i in range(8)]
    assert pickle.loads(pickle.dumps(Fancy(root, **val(field_map={"n": "json[n]"})))).times == 2


def test_crude_samples(root: Path) -> None:
    samples = read(CrudeWebdataset(root, **val(subflavors={"a": 3})))
    assert [(type(s), s["txt"], s["json"], s["__subflavors__"]) for s in samples] == [
        (CrudeSample, f"text {i}", {"n": i}, {"a": 3}) for i in range(8)
    ]
    assert "json" not in read(CrudeWebdataset(root, **val(part_filter=["txt"])))[0]
    assert "json" not in read(CrudeWebdataset(root, **val(part_filter=lambda part: part == "txt")))[0]
    assert read(CrudeWebdataset(root, **val(decoder=None)))[0]["txt"] == b"text 0"


def test_decoders(tmp_path: Path) -> None:
    path = make_captioning_dataset(tmp_path / "coco", n=4)
    fields = {"field_map": {"image": "jpg", "caption": "txt"}}
    (sample, *_) = read(CaptioningWebdataset(path, **val(**fields)))
    assert isinstance(sample, CaptioningSample)
    assert sample.image.dtype == np.float32
    (sample, *_) = read(CaptioningWebdataset(path, **val(decoder=SampleDecoder(image_decode="rgb8"), **fields)))
    assert sample.image.dtype == np.uint8
    only = StandardWebdatasetFactory(path, sample_type=ImageSample, decoder=None, **val(field_map={"image": "jpg"}))
    assert read(only)[0].image[:2] == b"\xff\xd8"
    (sample, *_) = read(_Generic(path, **val(field_map={"image": "jpg"})))
    assert sample.image[:2] == b"\xff\xd8"


class _Generic(DefaultGenericWebdatasetFactory[ImageSample]):
    __sample_type__ = ImageSample


@pytest.mark.parametrize(
    "name",
    [name for name in energon_grain.__all__ if name.endswith("Webdataset") and name != "CrudeWebdataset"],
)
def test_one_factory_for_each_sample_type(root: Path, name: str) -> None:
    factory = getattr(energon_grain, name)
    sample_type = factory.__sample_type__
    assert issubclass(factory, DefaultDecoderWebdatasetFactory)
    assert issubclass(sample_type, Sample)
    assert sample_type.__name__ == f"{name.removesuffix('Webdataset')}Sample"
    needed = {
        field.name: "txt" if field.name == "text" else "json"
        for field in dataclasses.fields(sample_type)
        if not field.name.startswith("__")
    }
    made = factory(root, **val(field_map=needed))
    assert type(pickle.loads(pickle.dumps(made))) is factory
    assert [type(sample) for sample in read(made)] == [sample_type] * 8


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda path: TextWebdataset(path, **val()), ConfigError, "TextWebdataset: set either `field_map`, or"),
        (lambda path: TextWebdataset(path, **val(field_map={"txet": "txt"})), FieldMapError, "TextWebdataset: TextS"),
        (
            lambda path: TextWebdataset(path, **val(sample_loader=loader)),
            ConfigError,
            "or `sample_loader` with `part_filter`",
        ),
        (
            lambda path: TextWebdataset(path, **val(sample_loader="loader.py", part_filter=[])),
            ConfigError,
            r"sample_loader='loader\.py'\): code next to the data does not run; pass a function",
        ),
        (
            lambda path: CrudeWebdataset(path, **val(part_filter="parts.py:mine")),
            ConfigError,
            r"part_filter='parts\.py:mine'\): expected part names, or a function",
        ),
        (lambda path: CrudeWebdataset(path, **val(field_map=TEXTS)), ConfigError, "are cooked; remove field_map"),
        (
            lambda path: CrudeWebdataset(path, **val(sample_loader=loader)),
            ConfigError,
            "are cooked; remove sample_loader",
        ),
        (
            lambda path: DefaultDecoderWebdatasetFactory(path, **val(field_map=TEXTS)),
            ConfigError,
            "DefaultDecoderWebdatasetFactory has no `__sample_type__`",
        ),
        (
            lambda path: StandardWebdatasetFactory(path, sample_type=dict, **val(field_map=TEXTS)),
            ConfigError,
            "sample_type=dict: expected a subclass of Sample",
        ),
        (lambda path: BaseWebdatasetFactory(path, **val()).build(), ConfigError, "has no load_sample"),
        (lambda path: TextWebdataset(path, **val(field_map=TEXTS, subset=[3, 2])), ConfigError, "subset"),
    ],
)
def test_wrong_arguments(root: Path, make: Callable[[Path], Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        make(root)


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> str:
    """A module of the program, with factories."""
    made = ModuleType("my_factories")
    for value in (Bare, Fancy, Upper, Numbered):
        setattr(made, value.__name__, value)
    made.NoFactory = dict  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "my_factories", made)
    return "my_factories"


def samples_of(root: Path, **options: Any) -> list[Any]:
    return list(get_val_dataset(root, split_part="train", batch_size=None, worker_config=CONFIG, **options))


def test_classes_of_the_program_in_a_configuration(copy: Path, module: str) -> None:
    said = {
        "__module__": module,
        "__class__": "Fancy",
        "field_map": {"n": "json[n]"},
        "times": 3,
        "subflavors": {"b": 1},
    }
    say(copy, **said)
    with pytest.raises(UntrustedCodeError, match=r"trusted_modules=\['my_factories'\]"):
        samples_of(copy)
    samples = samples_of(copy, trusted_modules=[module])
    assert [sample.n for sample in samples] == [3 * i for i in range(12)]
    assert samples[0].__subflavors__ == {"b": 1}
    assert len(samples_of(copy, trusted_modules=[module], sample_type=Sample)) == 12
    with pytest.raises(ConfigError, match="contains Numbered, but sample_type=TextSample is requested"):
        samples_of(copy, trusted_modules=[module], sample_type=TextSample)
    say(copy, **{**said, "time": 3})
    with pytest.raises(ConfigError, match=r"my_factories\.Fancy does not accept .*'time'"):
        samples_of(copy, trusted_modules=[module])
    say(copy, __module__=module, __class__="Bare", part_filter=["json"], subset={"range": [0, 3]})
    assert [sample.n for sample in samples_of(copy, trusted_modules=[module])] == [0, 1, 2]
    for name in ("NoFactory", "Numbered"):
        say(copy, __module__=module, __class__=name)
        with pytest.raises(ConfigError, match=f"of class my_factories.{name}; set a `sample_type`"):
            samples_of(copy, trusted_modules=[module])


def test_a_crude_class_of_the_program(copy: Path, module: str) -> None:
    class Encoder(DefaultTaskEncoder):
        cookers = (Cooker(lambda sample: (sample["txt"], "json" in sample)),)

    say(copy, __module__=module, __class__="Upper", part_filter=["txt"])
    samples = samples_of(copy, trusted_modules=[module], task_encoder=Encoder())
    assert samples == [(f"TEXT {i}", False) for i in range(12)]
    everything = samples_of(copy, trusted_modules=[module], task_encoder=Encoder(), part_filter=["txt", "json"])
    assert everything == [(f"TEXT {i}", True) for i in range(12)]


def test_the_task_encoders_decoder_is_that_of_the_class(copy: Path, module: str) -> None:
    class Decoder(SampleDecoder):
        def __call__(self, sample: Any) -> Any:
            return {**super().__call__(sample), "json": {"n": 7}}

    class Encoder(DefaultTaskEncoder):
        decoder = Decoder()

    say(copy, __module__=module, __class__="Fancy", field_map={"n": "json[n]"})
    samples = samples_of(copy, trusted_modules=[module], task_encoder=Encoder())
    assert {sample.n for sample in samples} == {14}
    say(copy, __module__=module, __class__="Fancy", field_map={"n": "json[n]"}, decoder={"image_decode": "pil"})
    samples = samples_of(copy, trusted_modules=[module], task_encoder=Encoder())
    assert [sample.n for sample in samples] == [2 * i for i in range(12)]


@dataclass(kw_only=True)
class Pair(Sample):
    """What two datasets have for a key."""

    first: str
    second: str | None

    @classmethod
    def from_joined(cls, left: Any, right: Any) -> Pair:  # pyright: ignore[reportIncompatibleMethodOverride]
        return cls.derive_from(left, first=left.text, second=right and right.text)


class Loud(DefaultDecoderWebdatasetFactory[TextSample]):
    """Loads samples by itself."""

    __sample_type__ = TextSample

    def load_sample(self, sample: Any) -> TextSample:
        made = super().load_sample(sample)
        made.text = made.text.upper()
        return made


def inner(root: Path, keys: str, kind: type[Any] = TextWebdataset) -> Any:
    if not root.exists():
        write_tars(root, [{"__key__": key, "txt": f"{root.name} {key}"} for key in keys.split()], shards=1)
        prepare_dataset(root, split_ratio={"train": 1}, crude=True, num_workers=0, sqlite=False)
    return kind(root, split_part="train", training=True, worker_config=CONFIG, field_map={"text": "txt"})


def joined(datasets: Any, **options: Any) -> JoinedWebdatasetFactory[Pair]:
    arguments: dict[str, Any] = {"training": False, "worker_config": CONFIG, "joiner": Pair}
    return JoinedWebdatasetFactory(datasets, **{**arguments, **options})


def read_rows(factory: Any) -> list[tuple[str, str, str | None]]:
    return [(sample.__key__, sample.first, sample.second) for sample in Stream.of(factory.build())]


def test_samples_of_equal_keys_by_position_and_by_name(tmp_path: Path) -> None:
    a, b = inner(tmp_path / "a", "x y z"), inner(tmp_path / "b", "z w y x", Loud)
    rows = [(key, f"a {key}", f"B {key.upper()}") for key in "xyz"]
    assert read_rows(joined([a, b], join_index=tmp_path / "anything.bin")) == rows
    assert read_rows(joined({"left": a, "right": b})) == rows
    assert read_rows(joined({"right": a, "left": b}, nonmatch="skip"))[0][1:] == ("B X", "a x")
    function = joined([a, b], joiner=lambda left, right: Pair.from_joined(left, right))
    assert read_rows(function) == rows
    assert len(function) == 3
    assert function
    assert function.paths == [str(tmp_path / "a"), str(tmp_path / "b")]
    assert json.loads(json.dumps(function.config()))["joined_datasets"][1]["type"] == "Loud"
    assert str(tmp_path / "a") in str(function)


def test_keys_that_are_missing(tmp_path: Path) -> None:
    a, b = inner(tmp_path / "a", "x y z"), inner(tmp_path / "b", "z x")
    with pytest.raises(ConfigError, match="nonmatch"):
        len(joined([a, b]))
    assert [key for key, _, _ in read_rows(joined([a, b], nonmatch="skip"))] == ["x", "z"]
    assert [second for _, _, second in read_rows(joined([a, b], nonmatch="none"))] == ["b x", None, "b z"]


def test_order_and_subset(tmp_path: Path) -> None:
    keys = " ".join(f"{i:02d}" for i in range(40))
    a, b = inner(tmp_path / "a", keys), inner(tmp_path / "b", keys)
    assert [key for key, _, _ in read_rows(joined([a, b], subset=[10, 20]))] == keys.split()[10:20]
    shuffled = [key for key, _, _ in read_rows(joined([a, b], training=True))]
    assert shuffled != keys.split()
    assert sorted(shuffled) == keys.split()
    assert len(joined([a, b], subset=["0%", "50%"])) == 20


def test_one_dataset_is_no_join(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="expected at least two datasets, got 1"):
        joined([inner(tmp_path / "a", "x")])
