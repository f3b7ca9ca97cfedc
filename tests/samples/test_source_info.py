from __future__ import annotations

import pytest

from energon_grain import EPath, SourceInfo, TextSample, add_source_info
from energon_grain.samples.sample import get_source_info

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
