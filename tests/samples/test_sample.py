"""Samples, their fields and batches, and where they come from."""

from __future__ import annotations

import copy
import pickle
from collections import OrderedDict
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

import numpy as np
import pytest

from energon_grain import (
    Batch,
    CaptioningSample,
    CrudeSample,
    EPath,
    ImageClassificationSample,
    ImageSample,
    InterleavedSample,
    MultiChoiceVQASample,
    OCRSample,
    Sample,
    SimilarityInterleavedSample,
    SourceInfo,
    TextSample,
    VidQASample,
    VQAOCRSample,
    VQASample,
    add_source_info,
    edataclass,
)
from energon_grain.samples.columns import column_constructor
from energon_grain.samples.sample import get_source_info, pin_memory

TYPES = [
    TextSample, ImageSample, CaptioningSample, ImageClassificationSample, VQASample, MultiChoiceVQASample, VidQASample,
    OCRSample, VQAOCRSample, InterleavedSample, SimilarityInterleavedSample,
]  # fmt: skip


@dataclass
class Tagged(TextSample):
    tag: int


@edataclass
class Scored(TextSample):
    score: float = 0.0


def source(index: int = 0) -> SourceInfo:
    return SourceInfo(dataset_path=EPath("/data"), index=index, shard_name="s.tar", file_names=(f"{index}.txt",))


@pytest.mark.parametrize("kind", TYPES)
def test_type_has_slots_base_fields_first_and_keywords_only(kind: type[Sample]):
    base = ["__key__", "__restore_key__", "__subflavors__", "__sources__", "__valid__"]
    assert [f.name for f in fields(kind)][:5] == base
    assert all(f.kw_only for f in fields(kind))
    made = object.__new__(kind)
    for each in fields(kind):
        setattr(made, each.name, None)
    assert vars(made) == {}


def test_base_fields_default_to_none():
    sample = TextSample(__key__="a", __restore_key__=(), text="x")
    assert sample.__subflavors__ is None
    assert sample.__sources__ is None


def test_plain_dataclass_subclass_has_own_positional_fields():
    sample = Tagged(3, __key__="a", __restore_key__=(), text="x")
    assert (sample.tag, sample.text) == (3, "x")
    sample.text = "y"
    sample.anything = 1  # a subclass without slots has a __dict__, as any plain dataclass
    assert sample.text == "y"


# Copies, pickles and collation are in tests/torch/programs/attributes.py, which runs with Energon too.
@pytest.mark.parametrize("kind", [TextSample, Tagged, Scored])
def test_samples_that_are_made_at_once_take_attributes(kind: type[TextSample]):
    names = [each.name for each in fields(kind)]
    first, second = column_constructor(kind)(2, {name: [f"{name} 0", f"{name} 1"] for name in names})
    assert [getattr(second, name) for name in names] == [f"{name} 1" for name in names]
    first.tokens = [1]
    assert (first.tokens, hasattr(second, "tokens")) == ([1], False)


@pytest.mark.parametrize("kind", [TextSample, Scored])
def test_samples_copy_and_pickle(kind: type[TextSample]):
    sample = kind(__key__="a", __restore_key__=("p", 1), __sources__=(source(),), text="x")
    assert pickle.loads(pickle.dumps(sample)) == sample
    assert copy.deepcopy(sample) == sample


def test_derive_from_takes_base_fields_only():
    base = TextSample(__key__="a", __restore_key__=(1,), __subflavors__={"s": 1}, __sources__=(source(),), text="x")
    derived = ImageSample.derive_from(base, image=None)
    assert (derived.__key__, derived.__restore_key__, derived.__subflavors__) == ("a", (1,), {"s": 1})
    assert derived.__sources__ == (source(),)
    assert ImageSample.derive_from(base, image=None, __key__="b").__key__ == "b"


def test_extend_takes_all_fields_of_a_parent():
    base = TextSample(__key__="a", __restore_key__=(1,), text="x")
    assert Scored.extend(base, score=2.0) == Scored(__key__="a", __restore_key__=(1,), text="x", score=2.0)
    assert Scored.extend(base, text="y").text == "y"


def test_extend_refuses_other_types():
    other = CaptioningSample(__key__="a", __restore_key__=(), image=None, caption="c")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"Scored\.extend: expected an instance of a parent type.*CaptioningSample"):
        Scored.extend(other)


def test_from_joined_lets_later_samples_win_and_concatenates_sources():
    primary = TextSample(__key__="a", __restore_key__=(1,), __sources__=(source(0),), text="x")
    other = Scored(__key__="b", __restore_key__=(2,), __sources__=(source(1),), text="y", score=1.0)
    joined = Scored.from_joined(primary, None, other)
    assert (joined.__key__, joined.__restore_key__, joined.text, joined.score) == ("a", (1,), "y", 1.0)
    assert joined.__sources__ == (source(0), source(1))
    with pytest.raises(TypeError, match="primary sample"):
        Scored.from_joined(None, other)


def test_crude_sample_is_a_dict():
    crude = CrudeSample(__key__="a", txt=b"x")
    assert crude == {"__key__": "a", "txt": b"x"}
    assert pickle.loads(pickle.dumps(crude)) == crude


A = SourceInfo(dataset_path=EPath("/d"), index=0, shard_name="s.tar", file_names=("a.txt",))
B = SourceInfo(dataset_path=EPath("/d"), index="b", shard_name="s.tar", file_names=("b.txt", "b.json"))


def test_source_info_is_frozen_hashable_and_compares_by_value():
    with pytest.raises(AttributeError):
        A.index = 1  # type: ignore[misc]
    assert len({A, B, SourceInfo(dataset_path=EPath("/d"), index=0, shard_name="s.tar", file_names=("a.txt",))}) == 2
    assert "index=0" in repr(A)


def test_sources_are_appended_to_samples_and_dictionaries():
    sample = TextSample(__key__="a", __restore_key__=(), text="x")
    assert add_source_info(sample, A).__sources__ == (A,)
    assert add_source_info(sample, B).__sources__ == (A, B)
    assert add_source_info({"__sources__": None}, A) == {"__sources__": (A,)}
    assert add_source_info(5, A) == 5


def test_sources_are_found_in_samples_lists_and_dictionaries():
    sample = TextSample(__key__="a", __restore_key__=(), __sources__=(A,), text="x")
    bare = TextSample(__key__="a", __restore_key__=(), text="x")
    assert get_source_info(sample) == [A]
    assert get_source_info([sample, bare, {"__sources__": (B,)}]) == [A, B]
    assert get_source_info(bare) is None
    assert get_source_info([]) is None
    assert get_source_info(5) is None


class Pinnable:
    """What a tensor is to pinning."""

    def __init__(self, value: int, pinned: bool = False) -> None:
        self.value = value
        self.pinned = pinned

    def pin_memory(self) -> Pinnable:
        return Pinnable(self.value, pinned=True)


class Pair(NamedTuple):
    left: Any
    right: Any


@dataclass(frozen=True)
class Plain:
    entry: Any
    computed: Any = field(init=False, default=None)


@edataclass
class Example(Sample):
    image: Any


@edataclass
class Examples(Batch):
    image: Any
    inner: Any
    valid: Any


def test_batches_are_copied_with_their_types_and_metadata() -> None:
    sources: Any = object()
    array = np.ones(2)
    batch = Examples(
        __key__=["a"],
        __restore_key__=((1,),),
        __sources__=sources,
        image=Pinnable(1),
        inner={"pair": Pair(Pinnable(2), "text"), "list": [Pinnable(3), None], "tuple": (array, 1)},
        valid=Plain(Pinnable(4)),
    )
    pinned = batch.pin_memory()
    assert type(pinned) is Examples
    assert pinned is not batch
    assert (pinned.__key__, pinned.__restore_key__) == (["a"], ((1,),))
    assert pinned.__sources__ is sources
    pair, listed = pinned.inner["pair"], pinned.inner["list"]
    assert (type(pair), type(listed), type(pinned.valid)) == (Pair, list, Plain)
    assert [one.value for one in (pinned.image, pair.left, listed[0], pinned.valid.entry)] == [1, 2, 3, 4]
    assert all(one.pinned for one in (pinned.image, pair.left, listed[0], pinned.valid.entry))
    assert pinned.inner["tuple"][0] is array
    assert not batch.image.pinned
    assert not batch.inner["pair"].left.pinned


@edataclass
class Measured(Sample):
    image: Any

    @property
    def width(self) -> int:
        return self.image.shpe[1]


def test_an_error_names_the_attribute_that_is_missing() -> None:
    sample = Measured(__key__="a", __restore_key__=(), image=np.ones((2, 3)))
    with pytest.raises(AttributeError, match="no attribute 'shpe'"):
        _ = sample.width
    with pytest.raises(AttributeError, match="no attribute 'imgae'"):
        _ = sample.imgae  # pyright: ignore


def test_copies_have_what_was_set() -> None:
    @dataclass
    class WithDict(Sample):
        image: Any = None

    for kind in (Measured, WithDict):
        made = kind(__key__="a", __restore_key__=(), image=1)
        made.__valid__ = np.ones(1, bool)
        copied = copy.copy(made)
        assert (copied.__valid__ is made.__valid__, copied.image) == (True, 1)
    loaded = pickle.loads(pickle.dumps(Measured(__key__="a", __restore_key__=(1,), image=2)))
    assert (loaded.__key__, loaded.__restore_key__, loaded.image, loaded.__valid__) == ("a", (1,), 2, None)


def test_attributes_that_are_no_fields_stay() -> None:
    plain = Plain(Pinnable(1))
    object.__setattr__(plain, "more", 5)
    assert pin_memory(plain).more == 5  # type: ignore[attr-defined]


def test_dictionaries_keep_their_type_and_metadata() -> None:
    crude = CrudeSample({"__key__": "k", "__subflavors__": {"t": Pinnable(0)}, "x": Pinnable(1)})
    pinned = pin_memory(crude)
    assert type(pinned) is CrudeSample
    assert list(pinned) == list(crude)
    assert pinned["x"].pinned
    assert not pinned["__subflavors__"]["t"].pinned
    assert type(pin_memory(OrderedDict(a=1))) is OrderedDict


def test_an_entry_with_its_own_way_is_asked() -> None:
    @edataclass
    class Own(Sample):
        image: Any

        def pin_memory(self) -> Any:
            return "its own way"

    own = Own(__key__="", __restore_key__=(), image=1)
    example = Example(__key__="", __restore_key__=(), image=Pinnable(1))
    pinned = pin_memory([own, example, Pinnable])
    assert pinned[0] == "its own way"
    assert pinned[1].image.pinned
    assert pinned[2] is Pinnable


def test_fields_are_mapped_for_frameworks_that_ask() -> None:
    batch = Examples(__key__=["a"], __restore_key__=((1,),), image=[1], inner=2, valid=3)
    assert {**batch} == dict(batch) == batch.as_dict() == {"image": [1], "inner": 2, "valid": 3}
    assert batch.as_dict(metadata=True)["__key__"] == batch["__key__"] == ["a"]
    assert batch["image"] is batch.image
    assert "inner" in batch
    assert "other" not in batch
    with pytest.raises(KeyError, match="Examples has no field 'other'; it has image, inner, valid"):
        batch["other"]
    with pytest.raises(TypeError, match="not iterable"):
        iter(batch)  # type: ignore[call-overload]
    sample = Example(__key__="a", __restore_key__=(1,), image=5)
    assert dict(sample) == {"image": 5}


class Movable:
    def __init__(self, places: tuple[Any, ...] = ()) -> None:
        self.places = places

    def to(self, *place: Any, non_blocking: bool = False) -> Movable:
        return Movable((*place, non_blocking))


def test_batches_move_with_what_can_be_moved() -> None:
    array = np.ones(2)
    batch: Any = Examples(
        __key__=["a"], __restore_key__=((1,),), image=Movable(), inner={"x": [Movable(), "t"]}, valid=array
    )
    batch.more = [Movable()]
    moved = batch.to("cuda", non_blocking=True)
    assert moved.more[0].places == ("cuda", True)
    assert type(moved) is Examples
    assert moved.image.places == moved.inner["x"][0].places == ("cuda", True)
    assert moved.valid is array
    assert moved.__key__ is batch.__key__
    assert batch.image.places == ()


@edataclass
class Captions(Batch):
    image: Any
    caption: list[str]


@dataclass
class WithNotes(Captions):
    notes: list[str] = field(default_factory=list)


def sample(index: int, height: int = 2, subflavors: dict[str, Any] | None = None) -> CaptioningSample:
    info = SourceInfo(dataset_path=EPath("/d"), index=index, shard_name="s", file_names=())
    return CaptioningSample(
        __key__=str(index),
        __restore_key__=(index,),
        __subflavors__=subflavors,
        __sources__=(info,),
        image=np.full((height, 2), index, np.uint8),
        caption=f"c{index}",
    )


def test_from_samples_stacks_and_pads_arrays_and_lists_the_rest():
    batch = Captions.from_samples([sample(1), sample(2, height=3)])
    assert batch.__key__ == ["1", "2"]
    assert batch.__restore_key__ == ((1,), (2,))
    assert batch.caption == ["c1", "c2"]
    assert batch.image.shape == (2, 3, 2)
    assert batch.image[0].tolist() == [[1, 1], [1, 1], [0, 0]]
    assert [source.index for source in batch.__sources__ or ()] == [1, 2]


def test_from_samples_stacks_numpy_scalars_and_lists_dictionaries():
    @edataclass
    class Labels(Batch):
        label: Any
        box: Any

    @edataclass
    class Label(CaptioningSample):
        label: Any
        box: Any

    samples = [Label.extend(sample(i), label=np.int32(i), box={"x": np.zeros(2)}) for i in (3, 4)]
    batch = Labels.from_samples(samples)
    assert batch.label.dtype == np.int32
    assert batch.label.tolist() == [3, 4]
    assert [box["x"].shape for box in batch.box] == [(2,), (2,)]


def test_from_samples_keeps_one_subflavors_entry_a_sample():
    assert Captions.from_samples([sample(1), sample(2)]).__subflavors__ is None
    batch = Captions.from_samples([sample(1), sample(2, subflavors={"a": 1})])
    assert batch.__subflavors__ == [None, {"a": 1}]


def test_from_samples_takes_given_fields_and_keeps_defaults():
    batch = WithNotes.from_samples([sample(1)], caption=["other"])
    assert batch.caption == ["other"]
    assert batch.notes == []


def test_from_samples_names_a_field_that_samples_lack():
    @edataclass
    class Wrong(Batch):
        label: list[int]

    with pytest.raises(TypeError, match="CaptioningSample has no field 'label'"):
        Wrong.from_samples([sample(1)])
    with pytest.raises(ValueError, match="no samples"):
        Wrong.from_samples([])


def test_derive_from_and_extend():
    base = Captions.from_samples([sample(1)])
    derived = Batch.derive_from(base)
    assert (derived.__key__, derived.__restore_key__) == (["1"], ((1,),))
    assert WithNotes.extend(base, notes=["n"]).notes == ["n"]
    with pytest.raises(TypeError, match="parent type"):
        Captions.extend(sample(1))
