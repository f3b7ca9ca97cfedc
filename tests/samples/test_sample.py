from __future__ import annotations

import copy
import pickle
from dataclasses import dataclass, fields

import pytest

from energon_grain import (
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
    edataclass,
)

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
    assert not hasattr(object.__new__(kind), "__dict__")


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


def test_edataclass_subclass_has_slots():
    sample = Scored(__key__="a", __restore_key__=(), text="x", score=0.5)
    with pytest.raises(AttributeError):
        sample.anything = 1  # pyright: ignore[reportAttributeAccessIssue]


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
    with pytest.raises(TypeError, match=r"Scored\.extend: takes an instance of a parent type.*CaptioningSample"):
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
