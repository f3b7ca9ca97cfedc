"""`__sources__` looks like a tuple and is looked up when asked for."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from pathlib import Path

import pytest

from energon_grain import EPath, SourceInfo, WebDatasetSource
from energon_grain.prepare.join_build import build_join
from energon_grain.prepare.join_members import JoinedDataset
from energon_grain.sources.joined import JoinedSource
from energon_grain.sources.source import LazySources
from energon_grain.testing import make_text_dataset


@pytest.fixture
def source(tmp_path: Path) -> WebDatasetSource:
    return WebDatasetSource(make_text_dataset(tmp_path / "text", n=4, shards=2))


def test_behaves_as_a_tuple(source: WebDatasetSource) -> None:
    lazy = LazySources(source, 3)
    info = SourceInfo(
        dataset_path=EPath(source.path), index=3, shard_name="shard_001.tar", file_names=("000003.txt", "000003.json")
    )
    assert not isinstance(lazy, Sequence)
    assert len(lazy) == 1
    assert lazy[0] == lazy[-1] == info
    assert lazy[:1] == tuple(lazy) == (info,)
    assert lazy == (info,)
    assert lazy == LazySources(source, 3)
    assert lazy != LazySources(source, 2)
    assert lazy != [info]
    assert info in lazy
    assert hash(lazy) == hash((info,))
    assert repr(lazy) == repr((info,))
    assert (*lazy, *lazy) == lazy + (info,) == (info,) + lazy == lazy + lazy  # noqa: RUF005
    with pytest.raises(IndexError):
        lazy[1]


def test_travels_as_a_plain_tuple(source: WebDatasetSource) -> None:
    lazy = LazySources(source, 0)
    copy = pickle.loads(pickle.dumps(lazy))
    assert type(copy) is tuple
    assert copy == lazy


def test_rows_name_what_all_members_have(tmp_path: Path) -> None:
    left = make_text_dataset(tmp_path / "left", n=4, shards=1)
    right = make_text_dataset(tmp_path / "right", n=2, shards=1)
    members = [JoinedDataset(left, "train"), JoinedDataset(right, "train", nonmatch="none")]
    source = JoinedSource(build_join(members, None), [WebDatasetSource(left), WebDatasetSource(right)], start=1)
    both, alone = LazySources(source, 0), LazySources(source, 1)
    assert both == LazySources(source.members[0], 1) + LazySources(source.members[1], 1)
    assert alone == LazySources(source.members[0], 2)
    assert [len(both), len(alone)] == [2, 1]
    assert type(pickle.loads(pickle.dumps(both))) is tuple


def test_paths_are_shared_objects_that_lead_on(source: WebDatasetSource) -> None:
    first, second = LazySources(source, 0)[0].dataset_path, LazySources(source, 3)[0].dataset_path
    assert first is second  # thousands of samples refer to it
    assert (first / ".nv-meta").is_dir()
    assert pickle.loads(pickle.dumps(first)) == first == EPath(source.path)
    assert len({first, EPath(source.path)}) == 1
