"""Columns of sources of every kind: by the indices of the source, in any order or as slices."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import numpy as np
import pytest
from arrays import write_array, write_group

from energon_grain import Source, WebDatasetSource, measure_dataset
from energon_grain.errors import KeyNotFoundError, StaleIndexError
from energon_grain.formats.columnar import open_columnar
from energon_grain.prepare.join_build import JoinedArray, build_join
from energon_grain.prepare.join_members import JoinedDataset
from energon_grain.sources.arrays import ArrayGroupSource, ArraySource
from energon_grain.sources.joined import JoinedSource
from energon_grain.sources.jsonl import JsonlSource
from energon_grain.testing import make_text_dataset

N = 3000
TOKENS = np.arange(N, dtype=np.float64) * 7 % 1000


def tokens(parts: dict[str, bytes]) -> float:
    return float(TOKENS[json.loads(parts["json"])["number"]])


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = Path(make_text_dataset(tmp_path_factory.mktemp("columns") / "data", n=N, shards=4))
    measure_dataset(root, {"tokens": tokens}, num_workers=0)
    return root


def check(source: Source, name: str, expected: np.ndarray) -> None:
    """Gathered, sliced in every way, and after pickling, a column is `expected`."""
    assert name in source.columns
    assert len(source) == len(expected)
    picked = np.random.default_rng(1).integers(0, len(source), 500)
    for each in (source, pickle.loads(pickle.dumps(source))):
        assert np.array_equal(each.column(name, picked), expected[picked], equal_nan=True)
        for piece in (slice(None), slice(3, 17), slice(-5, None), slice(9, 2), slice(None, None, 7), slice(0, 10**9)):
            assert np.array_equal(each.column(name, piece), expected[piece], equal_nan=True)
        assert each.column(name, picked[:0]).shape == (0,)
        assert each.column_id(name) == source.column_id(name)
        with pytest.raises(IndexError, match="asked for, but there are"):
            each.column(name, np.array([len(source)]))


@pytest.mark.parametrize("part", ["all", "ranges", "excluded", "shards"])
def test_columns_go_by_the_indices_of_what_is_served(root: Path, part: str) -> None:
    index = open_columnar(root)
    sizes = index.part_size.reshape(N, 2)
    names, first = index.shards, index.shard_first.tolist()
    served = np.arange(N)
    if part == "all":
        source = WebDatasetSource(root)
    elif part == "ranges":
        source, served = WebDatasetSource(root, start=700, stop=2800), served[700:2800]
    elif part == "excluded":
        gone = [5, 900, 2999]
        excluded = [(names[int(index.shard_of(np.array([n]))[0])], index.key(n)) for n in gone]
        source, served = WebDatasetSource(root, excluded=excluded, parts=["txt"]), np.delete(served, gone)
    else:
        source = WebDatasetSource(root, shards=[names[3], names[0], names[1]])
        served = np.concatenate([np.arange(first[n], first[n + 1]) for n in (3, 0, 1)])
    check(source, "tokens", TOKENS[served])
    check(source, "bytes", sizes.sum(axis=1)[served])
    check(source, "bytes.json", sizes[:, index.part_names.index("json")][served])
    assert source.column_id("bytes") == index.content_id != source.column_id("tokens")


def test_a_slice_of_what_lies_so_takes_no_memory(root: Path) -> None:
    source = WebDatasetSource(root, start=100)
    assert np.shares_memory(source.column("tokens", slice(None)), source.column("tokens", slice(10, 20)))


def test_a_column_that_is_missing_names_the_command(root: Path, tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text('{"a": 1}\n')
    for source in (WebDatasetSource(root), JsonlSource(tmp_path / "x.jsonl")):
        command = rf"energon-grain measure {source.path} --column nothing=module:function"
        for ask in (lambda: source.column("nothing", slice(None)), lambda: source.column_id("nothing")):  # noqa: B023
            with pytest.raises(KeyNotFoundError, match=rf"no column 'nothing'; there are bytes, .*{command}"):
                ask()
        with pytest.raises(KeyNotFoundError, match=r"there is no part 'jpg'; there are (txt, )?json$"):
            source.column("bytes.jpg", slice(None))


def test_who_knows_a_columns_id_keeps_its_numbers(tmp_path: Path) -> None:
    root = make_text_dataset(tmp_path / "data", n=60)
    measure_dataset(root, attach={"rank": np.arange(60)})
    source = WebDatasetSource(root)
    known = source.column_id("rank")
    measure_dataset(root, attach={"rank": -np.arange(60)})
    assert source.column("rank", slice(None)).tolist() == [*range(60)]
    assert WebDatasetSource(root).column_id("rank") != known


def test_a_copy_in_another_process_has_the_same_numbers_or_none(tmp_path: Path) -> None:
    root = make_text_dataset(tmp_path / "data", n=60)
    (tmp_path / "x.jsonl").write_text('{"a": 1}\n' * 60)
    for path, kind in ((root, WebDatasetSource), (tmp_path / "x.jsonl", JsonlSource)):
        measure_dataset(path, attach={"rank": np.arange(60)})
        source, other = kind(path), kind(path)
        known = source.column_id("rank")
        assert pickle.loads(pickle.dumps(source)).column_id("rank") == known
        measure_dataset(path, attach={"rank": -np.arange(60)})
        with pytest.raises(StaleIndexError, match=r"the column 'rank' was measured again, with other numbers"):
            pickle.loads(pickle.dumps(source))
        assert pickle.loads(pickle.dumps(other)).column_id("rank") != known  # it never asked


def test_lines(tmp_path: Path) -> None:
    lines = [f'{{"a": {"1" * (n % 9 + 1)}}}\n' for n in range(500)]
    (tmp_path / "x.jsonl").write_text("".join(lines))
    sizes = np.array([len(line) for line in lines])
    check(JsonlSource(tmp_path / "x.jsonl"), "bytes", sizes)
    check(JsonlSource(tmp_path / "x.jsonl", start=10, stop=400), "bytes.json", sizes[10:400])


def test_arrays(tmp_path: Path) -> None:
    score = np.random.default_rng(0).random(600).astype(np.float32)
    write_group(tmp_path / "g", score=score, vector=np.zeros((600, 3), np.float32))
    source = ArrayGroupSource(tmp_path / "g", start=50, parts=["vector"])
    assert source.columns == ("bytes", "bytes.vector", "score")
    check(source, "score", score[50:])
    check(source, "bytes", np.full(550, 12))
    with pytest.raises(KeyNotFoundError, match=r"no column 'tokens'; there are bytes, bytes\.vector, score"):
        source.column("tokens", slice(None))


def test_members_of_joins(root: Path, tmp_path: Path) -> None:
    """Of the primary by their names; of others by theirs and a dot; arrays with a number a row by their own."""
    other = Path(make_text_dataset(tmp_path / "other", n=N // 2, shards=2))
    score = np.arange(N // 3, dtype=np.float32)
    path = write_array(tmp_path / "score", score)
    primary = JoinedDataset(root, "train")
    members = [primary, JoinedDataset(other, "train", nonmatch="none"), JoinedArray(path, nonmatch="none")]
    index = build_join(members, tmp_path / "cache")
    sources = [WebDatasetSource(root), WebDatasetSource(other), ArraySource(path)]
    source = JoinedSource(index, sources, names=["text", None, "clip_score"], start=20)
    assert source.columns == (
        *("bytes", "bytes.txt", "bytes.json", "tokens"),
        *("other.bytes", "other.bytes.txt", "other.bytes.json", "clip_score"),
    )
    number, of_other, row = np.asarray(index.rows)[20:].T
    check(source, "tokens", TOKENS[number])
    assert np.array_equal(source.column("text.tokens", slice(None)), TOKENS[number])
    sizes = WebDatasetSource(other).column("bytes.txt", slice(None))
    check(source, "other.bytes.txt", np.where(of_other < 0, 0, sizes[of_other]))
    check(source, "clip_score", np.where(row < 0, np.nan, score[row]))
    assert [(column < 0).any() for column in (number, of_other, row)] == [False, True, True]
    for name in ("nothing", "text.nothing", "other.nothing"):
        with pytest.raises(KeyNotFoundError, match=r"energon-grain measure .* --column nothing="):
            source.column(name, slice(None))
    with pytest.raises(KeyNotFoundError, match=r"no column 'who.bytes'; there are bytes, .*clip_score"):
        source.column("who.bytes", slice(None))
