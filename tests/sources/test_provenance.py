"""`__sources__` looks like a tuple of one and is looked up when asked for."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from pathlib import Path

import pytest

from energon_grain import SourceInfo
from energon_grain.sources.provenance import LazySources
from energon_grain.sources.webdataset import WebDatasetSource
from energon_grain.testing import make_text_dataset


@pytest.fixture
def source(tmp_path: Path) -> WebDatasetSource:
    return WebDatasetSource(make_text_dataset(tmp_path / "text", n=4, shards=2))


def test_behaves_as_a_tuple(source: WebDatasetSource) -> None:
    lazy = LazySources(source, 3)
    info = SourceInfo(
        dataset_path=source.path, index=3, shard_name="shard_001.tar", file_names=("000003.txt", "000003.json")
    )
    assert isinstance(lazy, Sequence)
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
