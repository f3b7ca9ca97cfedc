"""Which samples of a dataset a join takes, and how they are ranked."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from energon_grain.errors import DatasetNotFoundError, EmptyDatasetError, SplitError
from energon_grain.formats.splits import SplitConfig, write_split_config
from energon_grain.prepare.join_input import JoinedSamples, JoinInput, read_join_input
from energon_grain.testing import make_text_dataset


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """12 samples in 4 shards; the part `mixed` has shards 3, 1 (excluded) and 0, without the key 000001."""
    root = make_text_dataset(tmp_path / "data", n=12, shards=4)
    config = SplitConfig(
        split_parts={"mixed": ("shard_003.tar", "shard_001.tar", "shard_000.tar"), "none": ("shard_001.tar",)},
        exclude=("shard_001.tar", "shard_000.tar/000001", "shard_002.tar/000006", "nowhere/x"),
    )
    write_split_config(root / ".nv-meta" / "split.yaml", config)
    return root


def test_ranks_and_samples(root: Path) -> None:
    member = read_join_input(root, "mixed", nonmatch="skip", written="data")
    assert member.listed == ("shard_003.tar", "shard_001.tar", "shard_000.tar")
    assert member.shards == ("shard_003.tar", "shard_000.tar")
    assert member.excludes == ("shard_000.tar/000001", "shard_001.tar")
    assert member.energon_excludes == ("shard_000.tar/000001", "shard_002.tar/000006", "nowhere/x")
    samples = JoinedSamples(member)
    assert (samples.total, len(samples)) == (6, 5)
    assert samples.left_out.tolist() == [4]
    assert samples.samples_at(np.arange(6)).tolist() == [9, 10, 11, 0, 1, 2]
    assert samples.ranks_of(np.arange(12)).tolist() == [3, 4, 5, -1, -1, -1, -1, -1, -1, 0, 1, 2]
    assert [block.tolist() for block in samples.blocks(2)] == [[0, 1], [2, 3], [5]]
    assert (samples.key(2), samples.where(2)) == ("000002", "shard_000.tar")
    described = samples.describe(7)
    assert (described.path, described.nonmatch, described.samples, described.missing) == ("data", "skip", 12, 7)


def test_what_is_not_there(root: Path, tmp_path: Path) -> None:
    with pytest.raises(SplitError, match="nothing"):
        read_join_input(root, "nothing")
    with pytest.raises(EmptyDatasetError, match="after the excludes"):
        read_join_input(root, "none")
    with pytest.raises(DatasetNotFoundError):
        read_join_input(tmp_path, "train")


def test_windows_are_close_together(join_of: Callable[[int], list[JoinInput]]) -> None:
    samples = JoinedSamples(join_of(20_000)[0])
    wanted = np.random.default_rng(0).integers(0, 20_000, 500)
    assert [piece.tolist() for piece in samples.windows(wanted)] == [list(range(500))]
    pieces = list(samples.windows(wanted, window_bytes=50_000))
    assert len(pieces) == 10  # of an index of about 500 KB
    assert sorted(np.concatenate(pieces).tolist()) == list(range(500))
    assert all(np.ptp(wanted[piece]) < 20_000 // 10 + 10 for piece in pieces)
    assert list(samples.windows(np.zeros(0, np.int64), window_bytes=50_000)) == []
