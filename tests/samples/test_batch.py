from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from energon_grain import Batch, CaptioningSample, EPath, SourceInfo, edataclass


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
