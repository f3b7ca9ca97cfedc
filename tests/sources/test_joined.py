"""Rows of joins and columns of sources: the same as of each by itself, by any indices; and where they come from."""

from __future__ import annotations

import json
import pickle
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from arrays import numbered, write_array, write_group

from energon_grain import EPath, Source, SourceInfo, WebDatasetSource, measure_dataset
from energon_grain.errors import ConfigError, EmptyDatasetError, KeyNotFoundError, StaleIndexError
from energon_grain.kinds.arrays.source import ArrayGroupRows, ArraySource
from energon_grain.kinds.joins.build import JoinedArray, build_join
from energon_grain.kinds.joins.index import JoinIndex
from energon_grain.kinds.joins.members import JoinedDataset
from energon_grain.kinds.joins.source import JoinedBatch, JoinedSource
from energon_grain.kinds.jsonl.source import JsonlRows
from energon_grain.prepare import prepare_dataset
from energon_grain.prepare.columnar_build import open_columnar
from energon_grain.sources.rows import selected
from energon_grain.sources.source import LazySources
from energon_grain.testing import make_text_dataset, write_tars

KEYS = [f"{number:03d}" for number in range(40)]
ORDER = np.random.default_rng(3).permutation(40).tolist()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three datasets with the keys 0 to 39: in order, in another order, and only every third."""
    folder = tmp_path_factory.mktemp("joined")
    write_tars(folder / "text", [{"__key__": key, "txt": f"text {key}"} for key in KEYS], shards=3)
    other = [{"__key__": KEYS[i], "txt": f"other {KEYS[i]}", "bin": bytes([i]) * i} for i in ORDER]
    write_tars(folder / "other", other, shards=2)
    write_tars(folder / "third", [{"__key__": key, "txt": f"third {key}"} for key in KEYS[::3]])
    for name in ("text", "other", "third"):
        prepare_dataset(folder / name, split_ratio={"train": 1}, crude=True, num_workers=0)
    return folder


@pytest.fixture(scope="module")
def index(folder: Path) -> JoinIndex:
    members = [JoinedDataset(folder / name, "train", nonmatch="error") for name in ("text", "other")]
    members.append(JoinedDataset(folder / "third", "train", nonmatch="none"))
    return build_join(members, folder / "cache")


@pytest.fixture
def source(folder: Path, index: JoinIndex) -> JoinedSource:
    return JoinedSource(index, sources(folder))


def sources(folder: Path) -> list[WebDatasetSource]:
    return [WebDatasetSource(folder / name) for name in ("text", "other", "third")]


def seen(batch: JoinedBatch) -> list[list[tuple[str, dict[str, bytes]] | None]]:
    """(key, parts) of each dataset's sample in each row."""
    rows: list[list[tuple[str, dict[str, bytes]] | None]] = [[None] * len(batch.members) for _ in range(len(batch))]
    for number, member in enumerate(batch.members):
        for place, sample in zip(member.places.tolist(), member.batch or (), strict=True):
            rows[place][number] = (sample.key, dict(sample.parts))
    return rows


def expected(number: int) -> list[tuple[str, dict[str, bytes]] | None]:
    key = KEYS[number]
    other = {"txt": f"other {key}".encode(), "bin": bytes([number]) * number}
    third = (key, {"txt": f"third {key}".encode()}) if number % 3 == 0 else None
    return [(key, {"txt": f"text {key}".encode()}), (key, other), third]


def test_rows_in_any_order_and_repeated(source: JoinedSource) -> None:
    wanted = np.array([5, 39, 0, 0, 6, 17, 5])
    batch = source.read(wanted)
    assert seen(batch) == [expected(number) for number in wanted.tolist()]
    assert batch.indices.tolist() == wanted.tolist()
    assert batch.keys == [KEYS[number] for number in wanted.tolist()]
    assert batch[1].parts == {"txt": b"text 039"}
    assert batch.nbytes() == sum(
        len(value) for row in seen(batch) for cell in row if cell for value in cell[1].values()
    )


def test_rows_of_arrays(folder: Path, tmp_path: Path) -> None:
    path = write_array(tmp_path / "a", numbered(30, 2))
    text = JoinedDataset(folder / "text", "train")
    index = build_join([text, JoinedArray(path, nonmatch="none")], tmp_path / "cache")
    source = JoinedSource(index, [WebDatasetSource(folder / "text"), ArraySource(path)], start=5)
    copy = pickle.loads(pickle.dumps(source))
    assert copy.content_id == source.content_id
    wanted = np.array([30, 3, 24, 3])
    batch = copy.read(wanted)
    assert batch.members[1].places.tolist() == [1, 2, 3]
    assert batch.members[1].samples.tolist() == [8, 29, 8]
    assert [row.tolist() for row in batch.members[1].batch.columns[""]] == [[16, 17], [58, 59], [16, 17]]
    text_bytes = source.members[0].sizes(wanted + 5)
    assert (source.sizes(wanted) - text_bytes).tolist() == [0, 8, 8, 8]
    assert batch.nbytes() == 4 * len("text 000") + 3 * 8
    assert [place and (place.index, place.key) for place in source.locate_all(24)] == [(29, "029"), (29, "29")]
    assert source.locate_all(30)[1] is None
    copy.close()
    write_array(path, numbered(30, 2) + 1)
    with pytest.raises(StaleIndexError, match="a: its content changed"):
        pickle.loads(pickle.dumps(source))
    with pytest.raises(ConfigError, match="an array cannot be the primary"):
        _ = JoinedSource(index, [ArraySource(path), WebDatasetSource(folder / "text")])


def test_nothing_of_a_dataset_in_a_batch(source: JoinedSource) -> None:
    batch = source.read(np.array([1, 2]))
    assert batch.members[2].batch is None
    assert batch.members[2].places.tolist() == []
    assert len(source.read(np.zeros(0, np.int64))) == 0


def test_only_wanted_parts_are_read(folder: Path, index: JoinIndex) -> None:
    members = sources(folder)
    members[1] = WebDatasetSource(folder / "other", parts={"bin"})
    source = JoinedSource(index, members)
    batch = source.read(np.array([9]))
    assert seen(batch)[0][1] == ("009", {"bin": b"\x09" * 9})
    wanted = np.array([9, 10])
    text, other, third = source.samples(wanted).T
    sizes = members[0].sizes(text) + members[1].sizes(other) + [members[2].sizes(third[:1])[0], 0]
    assert source.sizes(wanted).tolist() == sizes.tolist()


def test_subsets(folder: Path, index: JoinIndex, source: JoinedSource) -> None:
    part = JoinedSource(index, sources(folder), start=10, stop=15)
    assert len(part) == 5
    assert seen(part.read(np.arange(5))) == [expected(number) for number in range(10, 15)]
    assert part.read(np.array([3])).indices.tolist() == [3]
    assert part.content_id != source.content_id
    for wrong in (-1, 5):
        with pytest.raises(IndexError, match=f"row {wrong} is out of range: there are 5"):
            part.read(np.array([0, wrong]))
    with pytest.raises(EmptyDatasetError):
        JoinedSource(index, sources(folder), start=3, stop=3)
    with pytest.raises(ConfigError, match="must hold"):
        JoinedSource(index, sources(folder), stop=41)


def test_places(source: JoinedSource, folder: Path) -> None:
    place = source.locate(21)
    assert (place.index, place.key, place.shard) == (21, "021", "shard_001.tar")
    everywhere = source.locate_all(20)
    assert everywhere[2] is None
    assert everywhere[1] is not None
    assert everywhere[1].index == ORDER.index(20)
    assert everywhere[1] == WebDatasetSource(folder / "other").locate(ORDER.index(20))


def test_content_id(folder: Path, index: JoinIndex, source: JoinedSource) -> None:
    def members(*names: str) -> list[JoinedDataset]:
        first, *others = names
        return [
            JoinedDataset(folder / first, "train"),
            *(JoinedDataset(folder / n, "train", nonmatch="none") for n in others),
        ]

    same = JoinedSource(build_join(members("text", "other", "third"), None), sources(folder))
    assert same.content_id == source.content_id
    swapped = members("other", "third", "text")
    assert build_join(swapped, None).content_id != index.content_id


@pytest.mark.parametrize("in_memory", [False, True])
def test_copies_in_other_processes_read_the_same(folder: Path, index: JoinIndex, in_memory: bool) -> None:
    rows = np.array(index.rows)
    kept = JoinIndex(rows=rows, header=index.header) if in_memory else index
    source = JoinedSource(kept, sources(folder), start=4)
    source.read(np.arange(3))
    copy = pickle.loads(pickle.dumps(source))
    assert copy.content_id == source.content_id
    assert seen(copy.read(np.arange(36))) == [expected(number) for number in range(4, 40)]
    copy.close()
    assert seen(copy.read(np.array([0]))) == [expected(4)]


def test_pages_of_large_joins_are_given_back(folder: Path, tmp_path: Path) -> None:
    """3 million rows of 8 bytes: more than stays resident. What is read stays the same."""
    member = JoinedDataset(folder / "text", "train")
    index = build_join([member], tmp_path)
    assert index.folder is not None
    many = np.tile(np.arange(40), 75_000).reshape(-1, 1)
    np.save(index.folder / "rows.npy", many)
    mapped = np.load(index.folder / "rows.npy", mmap_mode="r")
    source = JoinedSource(replace(index, rows=mapped), [WebDatasetSource(folder / "text")])
    for _ in range(3):
        wanted = np.random.default_rng(0).integers(0, len(many), 2_000)
        assert np.array_equal(source.samples(wanted), many[wanted])


def test_what_does_not_fit_is_refused(folder: Path, index: JoinIndex, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the join has 3 datasets, but 2 were given"):
        JoinedSource(index, sources(folder)[:2])
    with pytest.raises(ConfigError, match="must serve all of its 40 samples, not 39"):
        JoinedSource(index, [WebDatasetSource(folder / "text", start=1), *sources(folder)[1:]])
    with pytest.raises(StaleIndexError, match="energon-grain prepare"):
        JoinedSource(index, sources(folder)[::-1])


@pytest.fixture
def origin(tmp_path: Path) -> WebDatasetSource:
    return WebDatasetSource(make_text_dataset(tmp_path / "text", n=4, shards=2))


def test_behaves_as_a_tuple(origin: WebDatasetSource) -> None:
    lazy = LazySources(origin, 3)
    info = SourceInfo(
        dataset_path=EPath(origin.path), index=3, shard_name="shard_001.tar", file_names=("000003.txt", "000003.json")
    )
    assert not isinstance(lazy, Sequence)
    assert len(lazy) == 1
    assert lazy[0] == lazy[-1] == info
    assert lazy[:1] == tuple(lazy) == (info,)
    assert lazy == (info,)
    assert lazy == LazySources(origin, 3)
    assert lazy != LazySources(origin, 2)
    assert lazy != [info]
    assert info in lazy
    assert hash(lazy) == hash((info,))
    assert repr(lazy) == repr((info,))
    assert (*lazy, *lazy) == lazy + (info,) == (info,) + lazy == lazy + lazy  # noqa: RUF005
    with pytest.raises(IndexError):
        lazy[1]


def test_travels_as_a_plain_tuple(origin: WebDatasetSource) -> None:
    lazy = LazySources(origin, 0)
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


def test_paths_are_shared_objects_that_lead_on(origin: WebDatasetSource) -> None:
    first, second = LazySources(origin, 0)[0].dataset_path, LazySources(origin, 3)[0].dataset_path
    assert first is second  # thousands of samples refer to it
    assert (first / ".nv-meta").is_dir()
    assert pickle.loads(pickle.dumps(first)) == first == EPath(origin.path)
    assert len({first, EPath(origin.path)}) == 1


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
    """Gathered and sliced in every way, a column is `expected`."""
    assert name in source.columns
    assert len(source) == len(expected)
    picked = np.random.default_rng(1).integers(0, len(source), 500)
    for piece in (picked, slice(None), slice(3, 17), slice(-5, None), slice(9, 2), slice(None, None, 7)):
        assert np.array_equal(source.column(name, piece), expected[piece], equal_nan=True)


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
    for source in (WebDatasetSource(root), selected(JsonlRows(tmp_path / "x.jsonl"))):
        command = rf"energon-grain measure {source.path} --column nothing=module:function"
        for ask in (lambda: source.column("nothing", slice(None)), lambda: source.column_id("nothing")):  # noqa: B023
            with pytest.raises(KeyNotFoundError, match=rf"no column 'nothing'; the columns are bytes, .*{command}"):
                ask()
        with pytest.raises(KeyNotFoundError, match=r"no part 'jpg'; the parts are (txt, )?json$"):
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
    for path, kind in ((root, WebDatasetSource), (tmp_path / "x.jsonl", lambda path: selected(JsonlRows(path)))):
        measure_dataset(path, attach={"rank": np.arange(60)})
        source, other = kind(path), kind(path)
        known = source.column_id("rank")
        assert pickle.loads(pickle.dumps(source)).column_id("rank") == known
        measure_dataset(path, attach={"rank": -np.arange(60)})
        with pytest.raises(StaleIndexError, match=r"the column 'rank' was measured again with other numbers"):
            pickle.loads(pickle.dumps(source))
        assert pickle.loads(pickle.dumps(other)).column_id("rank") != known  # it never asked


def test_lines(tmp_path: Path) -> None:
    lines = [f'{{"a": {"1" * (n % 9 + 1)}}}\n' for n in range(500)]
    (tmp_path / "x.jsonl").write_text("".join(lines))
    sizes = np.array([len(line) for line in lines])
    check(selected(JsonlRows(tmp_path / "x.jsonl")), "bytes", sizes)
    check(selected(JsonlRows(tmp_path / "x.jsonl"), start=10, stop=400), "bytes.json", sizes[10:400])


def test_arrays(tmp_path: Path) -> None:
    score = np.random.default_rng(0).random(600).astype(np.float32)
    write_group(tmp_path / "g", score=score, vector=np.zeros((600, 3), np.float32))
    source = selected(ArrayGroupRows(tmp_path / "g", parts=["vector"]), start=50)
    assert source.columns == ("bytes", "bytes.vector", "score")
    check(source, "score", score[50:])
    check(source, "bytes", np.full(550, 12))
    with pytest.raises(KeyNotFoundError, match=r"no column 'tokens'; the columns are bytes, bytes\.vector, score"):
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
    with pytest.raises(KeyNotFoundError, match=r"no column 'who.bytes'; the columns are bytes, .*clip_score"):
        source.column("who.bytes", slice(None))
