"""Joins of small real datasets and of arrays against dictionaries, and the same at a size that spills."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from arrays import numbered, write_array
from hypothesis import given, settings, strategies as st

from energon_grain.errors import ConfigError, DatasetNotFoundError, DuplicateKeyError, EmptyDatasetError
from energon_grain.formats.columnar import ColumnarIndex
from energon_grain.formats.nv_meta import DatasetInfo, write_info
from energon_grain.formats.splits import SplitConfig, write_split_config
from energon_grain.kinds.joins import build as join_build
from energon_grain.kinds.joins.build import build_join
from energon_grain.kinds.joins.index import JoinIndex
from energon_grain.kinds.joins.members import JoinedArray, JoinedDataset, Nonmatch, read_key_lines
from energon_grain.prepare import prepare_dataset
from energon_grain.testing import write_tars

Rows = list[tuple[str | None, ...]]
Make = Callable[..., Path]


def make_dataset(root: Path, shards: Sequence[Iterable[str]], parts: Mapping[str, Any], exclude: Sequence[str]) -> Path:
    """Prepare a dataset; one with repeated keys as Energon did before it refused them, without a columnar index."""
    shards = [list(keys) for keys in shards]
    for number, keys in enumerate(shards):
        samples = [{"__key__": key, "txt": f"{root.name} {key}" * (1 + len(key) % 3)} for key in keys]
        write_tars(root, samples, name=f"s{number}.tar")
    if len(set(sum(shards, []))) == sum(map(len, shards)):
        prepare_dataset(root, split_ratio={"train": 1}, crude=True, num_workers=0)
    else:
        (root / ".nv-meta").mkdir()
        write_info(root, DatasetInfo(shard_counts={f"s{n}.tar": len(keys) for n, keys in enumerate(shards)}))
    config = SplitConfig(split_parts={part: tuple(names) for part, names in parts.items()}, exclude=tuple(exclude))
    write_split_config(root / ".nv-meta" / "split.yaml", config)
    return root


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """`make(name, "a b", "c")` prepares a dataset with two shards; all are `train` unless `parts` says otherwise."""

    def make_one(name: str, *shards: str, exclude: Sequence[str] = (), **parts: Sequence[str]) -> Path:
        parts = parts or {"train": [f"s{number}.tar" for number in range(len(shards))]}
        return make_dataset(tmp_path / name, [shard.split() for shard in shards], parts, exclude)

    return make_one


def inputs(*members: tuple[Path, Nonmatch] | Path, part: str = "train") -> list[JoinedDataset]:
    pairs = [member if isinstance(member, tuple) else (member, "error") for member in members]
    return [JoinedDataset(root, part, nonmatch=nonmatch) for root, nonmatch in pairs]


def keys(members: Sequence[JoinedDataset], index: JoinIndex) -> Rows:
    opened = [member.index for member in members]
    return [
        tuple(None if sample < 0 else each.key(sample) for each, sample in zip(opened, row, strict=True))
        for row in index.rows.tolist()
    ]


def stored_rows(file: Path, members: int) -> np.ndarray:
    """What Energon reads of a join."""
    return np.fromfile(file, np.int64, offset=16).reshape(-1, members, 3)


def test_the_three_datasets_of_the_documentation(make: Make, tmp_path: Path) -> None:
    members = inputs(
        make("one", "s1 s2", "s3 s5 s6"), (make("two", "s7", "s1 s3 s4 s6"), "skip"), (make("three", "s1 s3"), "none")
    )
    index = build_join(members, tmp_path / "cache")
    assert keys(members, index) == [("s1", "s1", "s1"), ("s3", "s3", "s3"), ("s6", "s6", None)]
    assert index.header.skipped == 2
    assert [member.missing for member in index.header.members] == [0, 0, 1]
    assert np.array_equal(build_join(members, None).rows, index.rows)
    (file,) = (tmp_path / "cache").glob("*.bin")
    stored = stored_rows(file, 3)
    assert stored[2, 2].tolist() == [-1, -1, -1]
    assert stored[:, 0, 0].tolist() == [0, 1, 1]
    assert stored[:, 1, 0].tolist() == [1, 1, 1]
    sizes = members[0].index.shard_sample_start(1)
    assert stored[2, 0].tolist() == [1, sizes[2], sizes[3] - sizes[2]]


def test_equal_data_gives_equal_bytes(make: Make, tmp_path: Path) -> None:
    members = inputs(make("a", "1 2", "3"), make("b", "3 2 1"))
    for cache in ("x", "y"):
        build_join(members, tmp_path / cache)
    for file in (tmp_path / "x").rglob("*"):
        assert file.is_dir() or file.read_bytes() == (tmp_path / "y" / file.relative_to(tmp_path / "x")).read_bytes()


def test_more_than_ten_datasets(make: Make, tmp_path: Path) -> None:
    first = make("first", "b a", "c")
    full = [make(f"full{number}", "c a", "x b") for number in range(14)]
    members = inputs(first, *full)
    assert keys(members, build_join(members, tmp_path / "cache")) == [(key,) * 15 for key in "bac"]


def test_shards_of_a_split_part_in_its_order(make: Make, tmp_path: Path) -> None:
    one = make("one", "a b", "c", "d e", train=["s2.tar", "s0.tar"], val=["s1.tar"])
    two = make("two", "e d c b a", train=["s0.tar"], val=["s0.tar"])
    members = inputs(one, two)
    index = build_join(members, tmp_path / "cache")
    assert [row[0] for row in keys(members, index)] == ["d", "e", "a", "b"]
    val = inputs(one, two, part="val")
    assert [row[0] for row in keys(val, build_join(val, tmp_path / "cache"))] == ["c"]
    assert len(list((tmp_path / "cache").glob("*.bin"))) == 2


def test_excludes_on_either_side(make: Make, tmp_path: Path) -> None:
    """Whole shards at the dataset's root too, and places in the file count shards that are left out."""
    one = make("one", "a b", "c d", "e f", exclude=["s0.tar", "s1.tar/d", "s1.tar/nothing"])
    two = make("two", "a b c", "d e f", exclude=["s1.tar/f"])
    members = inputs(one, (two, "none"))
    index = build_join(members, tmp_path / "cache")
    assert keys(members, index) == [("c", "c"), ("e", "e"), ("f", None)]
    (file,) = (tmp_path / "cache").glob("*.bin")
    assert stored_rows(file, 2)[:, :, 0].tolist() == [[1, 0], [2, 1], [2, -1]]


def test_excludes_make_repeated_keys_unique(make: Make) -> None:
    """A key may come twice in a dataset, if it comes once in the part that is joined."""
    one = make("one", "a b", "a c", exclude=["s1.tar/a"])
    two = make("two", "a b", "a c", train=["s1.tar"])
    members = inputs(one, (two, "none"))
    assert keys(members, build_join(members, None)) == [("a", "a"), ("b", None), ("c", "c")]
    assert build_join(members, None).rows[0].tolist() == [0, 2]


def test_missing_keys_are_told(make: Make, tmp_path: Path) -> None:
    members = inputs(make("one", "a b c d e f g h"), make("two", "a"))
    with pytest.raises(
        ConfigError, match=r"7 of 8 keys of .*one \[train\] are missing in .*two \[train\]: 'b', .*'f', …"
    ):
        build_join(members, tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []
    # A row that is skipped for one dataset lacks nothing in another.
    half = inputs(make("three", "a b"), (make("four", "a"), "skip"), make("five", "a"))
    assert keys(half, build_join(half, None)) == [("a",) * 3]


@pytest.mark.parametrize("side", [0, 1])
def test_repeated_keys_are_told_with_their_places(make: Make, side: int) -> None:
    roots = [make("one", "a b", "c a", "b x"), make("two", "x a b c")]
    members = inputs(*(roots if side == 0 else roots[::-1]))
    with pytest.raises(DuplicateKeyError) as caught:
        build_join(members, None)
    message = str(caught.value)
    assert "2 of its keys are duplicates" in message
    assert "'a' in s0.tar and in s1.tar" in message
    assert "'b' in s0.tar and in s2.tar" in message


def test_shard_listed_twice(make: Make) -> None:
    root = make("one", "a", train=["s0.tar", "s0.tar"])
    with pytest.raises(DuplicateKeyError, match=r"lists s0\.tar more than once"):
        inputs(root)


def test_nothing_in_common(make: Make) -> None:
    members = inputs(make("one", "a b"), (make("two", "c"), "skip"))
    with pytest.raises(EmptyDatasetError, match=r"no key of .*one \[train\] \(2 samples\) is in .*two"):
        build_join(members, None)


def test_primary_has_no_mode(make: Make) -> None:
    with pytest.raises(ConfigError, match="primary"):
        build_join(inputs((make("one", "a"), "skip")), None)
    with pytest.raises(ConfigError, match="at least one"):
        build_join([], None)


def test_one_dataset_alone(make: Make) -> None:
    members = inputs(make("one", "b a", "c"))
    assert build_join(members, None).rows.tolist() == [[0], [1], [2]]


def test_progress_ends_at_the_total(make: Make) -> None:
    said: list[tuple[int, int]] = []
    build_join(inputs(make("one", "a b"), make("two", "a b c")), None, progress=lambda *now: said.append(now))
    assert said[-1] == (5, 5)
    assert said == sorted(said)


def test_collisions_of_hashes_change_nothing(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """With 2 bits different keys have equal hashes; the next seed has 64. Repeated keys are told all the same."""
    right, seeds = join_build.hash_keys, list[int]()

    def weak(words: Any, rows: Any, *, seed: int) -> Any:
        seeds.append(seed)
        return right(words, rows, seed=seed) & np.uint64(3 << 62 if seed < 2 else (1 << 64) - 1)

    monkeypatch.setattr(join_build, "hash_keys", weak)
    members = inputs(make("one", "a b c d e f"), make("two", "f e d c b a"))
    assert keys(members, build_join(members, None)) == [(key, key) for key in "abcdef"]
    assert set(seeds) == {0, 1, 2}
    with pytest.raises(DuplicateKeyError, match="1 of its keys"):
        build_join(inputs(make("three", "a b c d e f", "a")), None)


KEYS = st.lists(st.text("ab0-é", min_size=1, max_size=20), unique=True, min_size=1, max_size=25)


@settings(max_examples=30)
@given(data=st.data())
def test_any_join_is_that_of_dictionaries(data: st.DataObject) -> None:
    pool = data.draw(KEYS)
    sides: list[list[str]] = [pool]
    members: list[tuple[Path, Nonmatch]] = []
    modes: list[Nonmatch] = ["error"]
    for number in range(data.draw(st.integers(0, 2))):
        del number
        sides.append(data.draw(st.permutations(pool[: data.draw(st.integers(1, len(pool)))])))
        modes.append(data.draw(st.sampled_from(["skip", "none"])))
    folder = Path(tempfile.mkdtemp())
    for number, (side, mode) in enumerate(zip(sides, modes, strict=True)):
        cut = data.draw(st.integers(0, len(side)))
        shards = [shard for shard in (side[:cut], side[cut:]) if shard]
        parts = {"train": [f"s{place}.tar" for place in range(len(shards))]}
        members.append((make_dataset(folder / str(number), shards, parts, ()), mode))
    expected: Rows = []
    for key in pool:
        row = tuple(key if key in side else None for side in sides)
        if not any(mode == "skip" and value is None for mode, value in zip(modes, row, strict=True)):
            expected.append(row)
    small = data.draw(st.sampled_from([256 << 20, 4_000]))
    read = inputs(*members)
    assert keys(read, build_join(read, folder / "cache", memory_bytes=small)) == expected
    shutil.rmtree(folder)


def test_large_joins_spill_and_stay_the_same(made_up: Callable[..., Path], tmp_path: Path) -> None:
    """60,000 keys in 128 buckets, in both orders of keys."""
    members = [JoinedDataset(made_up(name, 60_000, seed), "train") for seed, name in enumerate(("primary", "other"))]
    in_memory = build_join(members, tmp_path / "memory")
    spilled = build_join(members, tmp_path / "spilled", memory_bytes=240_000)
    assert np.array_equal(in_memory.rows, spilled.rows)
    assert len(in_memory) == 60_000
    primary, other = (member.index for member in members)
    assert primary.keys(spilled.rows[:, 0]) == other.keys(spilled.rows[:, 1])
    assert (spilled.rows[:, 1] != spilled.rows[:, 0]).any()
    (one,), (two,) = (list((tmp_path / name).glob("*.bin")) for name in ("memory", "spilled"))
    assert one.read_bytes() == two.read_bytes()
    assert sorted(path.name for path in (tmp_path / "spilled").iterdir()) == [spilled.folder.name, two.name]  # type: ignore[union-attr]


def test_each_index_is_compared_once_with_its_checksums(
    made_up: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """To look through the whole order of the keys for each of many buckets brings all of it into memory each time."""
    looked_at: list[ColumnarIndex] = []
    right = ColumnarIndex.check

    def check(index: ColumnarIndex, samples: Any = None) -> None:
        looked_at.extend([index] * (samples is None))
        right(index, samples)

    monkeypatch.setattr(ColumnarIndex, "check", check)
    members = [JoinedDataset(made_up(name, 10_000, seed), "train") for seed, name in enumerate(("primary", "other"))]
    assert len(build_join(members, None, memory_bytes=100_000)) == 10_000
    assert looked_at == [member.index for member in members]


def test_windows_are_close_together(made_up: Callable[..., Path]) -> None:
    member = JoinedDataset(made_up("large", 20_000), "train")
    wanted = np.random.default_rng(0).integers(0, 20_000, 500)
    assert [piece.tolist() for piece in join_build.windows(member, wanted)] == [list(range(500))]
    pieces = list(join_build.windows(member, wanted, window_bytes=50_000))
    assert len(pieces) == 10  # of an index of about 500 KB
    assert sorted(np.concatenate(pieces).tolist()) == list(range(500))
    assert all(np.ptp(wanted[piece]) < 20_000 // 10 + 10 for piece in pieces)
    assert list(join_build.windows(member, np.zeros(0, np.int64), window_bytes=50_000)) == []


SHARDS = ("a b c", "d e", "f g h i")
ROW_KEYS = " ".join(SHARDS).split()


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Nine samples in three shards, the last two of them a train part without `e`."""
    root = tmp_path_factory.mktemp("primary") / "ds"
    for number, keys in enumerate(SHARDS):
        write_tars(root, [{"__key__": key, "txt": key} for key in keys.split()], name=f"s{number}.tar")
    prepare_dataset(root, split_ratio={"train": 1}, crude=True, num_workers=0)
    parts = {"all": ("s0.tar", "s1.tar", "s2.tar"), "train": ("s2.tar", "s1.tar"), "val": ("s0.tar",)}
    config = SplitConfig(split_parts=parts, exclude=("s1.tar/e",))
    write_split_config(root / ".nv-meta" / "split.yaml", config)
    return root


@pytest.fixture
def primary(root: Path) -> JoinedDataset:
    return JoinedDataset(root, "train")


def keyed(folder: Path, keys: str, **options: Any) -> JoinedArray:
    lines = folder / "keys.txt"
    lines.write_text("".join(f"{key}\n" for key in keys.split()))
    return JoinedArray(write_array(folder / "keyed", numbered(len(keys.split()), 2)), keys=lines, **options)


def rows(*members: Any, target: Path | None = None) -> list[list[int]]:
    return build_join(members, target).rows.tolist()


def test_numbers_count_through_the_whole_dataset(primary: JoinedDataset, tmp_path: Path) -> None:
    """Neither split parts nor excludes shift them."""
    array = JoinedArray(write_array(tmp_path / "a", numbered(9, 2)))
    assert rows(primary, array) == [[number, number] for number in (5, 6, 7, 8, 3)]
    assert rows(JoinedDataset(primary.folder.local, "val"), array) == [[0, 0], [1, 1], [2, 2]]


def test_numbers_behind_the_end(primary: JoinedDataset, tmp_path: Path) -> None:
    path = write_array(tmp_path / "a", numbered(7, 2))
    with pytest.raises(ConfigError, match=r"2 of 5 samples of .* have no row in .*a \(7 rows\): 'h' \(sample 7\), 'i'"):
        build_join([primary, JoinedArray(path)], None)
    assert rows(primary, JoinedArray(path, nonmatch="skip")) == [[5, 5], [6, 6], [3, 3]]
    missing = build_join([primary, JoinedArray(path, nonmatch="none")], tmp_path / "cache")
    assert missing.rows.tolist() == [[5, 5], [6, 6], [7, -1], [8, -1], [3, 3]]
    assert [member.missing for member in missing.header.members] == [0, 2]
    assert rows(JoinedDataset(primary.folder.local, "val"), JoinedArray(path)) == [[0, 0], [1, 1], [2, 2]]
    one = write_array(tmp_path / "one", numbered(1, 2))
    with pytest.raises(EmptyDatasetError, match=r"one \(1 rows\)"):
        build_join([primary, JoinedArray(one, nonmatch="skip")], None)


@settings(max_examples=30, deadline=None)
@given(
    lines=st.lists(st.sampled_from([*ROW_KEYS, "x", "y"]), unique=True, min_size=1),
    length=st.integers(1, 12),
    modes=st.tuples(*[st.sampled_from(["skip", "none"])] * 3),
    order=st.permutations(range(3)),
)
def test_as_dictionaries_would(
    root: Path, lines: list[str], length: int, modes: tuple[Any, ...], order: list[int]
) -> None:
    """Arrays by key and by row and a dataset, in any order behind the primary."""
    primary = JoinedDataset(root, "train")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        by_row = JoinedArray(write_array(folder / "row", numbered(length)), nonmatch=modes[0])
        by_key = keyed(folder, " ".join(lines), nonmatch=modes[1])
        dataset = JoinedDataset(root, "all", nonmatch=modes[2])
        found = [
            {key: number for number, key in enumerate(ROW_KEYS) if number < length},
            {key: number for number, key in enumerate(lines)},
            {key: number for number, key in enumerate(ROW_KEYS) if key != "e"},
        ]
        expected: list[list[int]] = []
        for key in "fghid":
            values = [found[place].get(key, -1) for place in order]
            if all(value >= 0 or modes[place] != "skip" for value, place in zip(values, order, strict=True)):
                expected.append([ROW_KEYS.index(key), *values])
        others = [(by_row, by_key, dataset)[place] for place in order]
        if not expected:
            with pytest.raises(EmptyDatasetError):
                build_join([primary, *others], folder / "cache")
            return
        index = build_join([primary, *others], folder / "cache")
        assert index.rows.tolist() == expected
        assert build_join([primary, *others], None).content_id == index.content_id
        assert not list((folder / "cache").glob("*.bin"))  # Energon's form has no place for arrays


def test_keys_that_spill(primary: JoinedDataset, tmp_path: Path) -> None:
    array = keyed(tmp_path, " ".join(reversed(ROW_KEYS)))
    index = build_join([primary, array], tmp_path / "cache", memory_bytes=512)
    assert index.rows.tolist() == rows(primary, array) == [[number, 8 - number] for number in (5, 6, 7, 8, 3)]


def test_wrong_keys_are_told(primary: JoinedDataset, tmp_path: Path) -> None:
    array = keyed(tmp_path, "d f g h i")
    (tmp_path / "keys.txt").write_text("d\nf\ng\nh\n")
    with pytest.raises(ConfigError, match=r"keys\.txt: has 4 lines, but .*keyed has 5 rows"):
        build_join([primary, array], None)
    with pytest.raises(DuplicateKeyError, match=r"keys\.txt: .*1 of its keys .*'f' in line 2 and in line 4"):
        build_join([primary, keyed(tmp_path, "d f g f h i")], None)
    with pytest.raises(
        ConfigError, match=r"1 of 5 keys of .*are missing in .*keyed \(4 rows\): 'i'.*set on this array"
    ):
        build_join([primary, keyed(tmp_path, "d f g h")], None)
    (tmp_path / "keys.txt").unlink()
    with pytest.raises(DatasetNotFoundError, match=r"keys\.txt: expected a text file with one key per line: "):
        JoinedArray(tmp_path / "keyed", tmp_path / "keys.txt")


def test_arrays_are_no_primaries(primary: JoinedDataset, tmp_path: Path) -> None:
    array = JoinedArray(write_array(tmp_path / "a", numbered(9, 2)))
    with pytest.raises(ConfigError, match="an array cannot be the primary"):
        build_join([array, primary], None)


def test_what_headers_and_names_say(primary: JoinedDataset, tmp_path: Path) -> None:
    """By row and by key, another array and other keys: each is another join."""
    path = write_array(tmp_path / "keyed", numbered(9, 2))
    by_row = JoinedArray(path, written="./a.zarr")
    orders = ("a b c d e f g h i", "a b c d e f g i h")
    names = {JoinedArray(path, written="./a.zarr").identity, *(keyed(tmp_path, keys).identity for keys in orders)}
    write_array(tmp_path / "keyed", numbered(9, 2) + 1)
    assert len({*names, JoinedArray(path, written="./a.zarr").identity}) == 4
    write_array(tmp_path / "keyed", numbered(9, 2))
    index: JoinIndex = build_join([primary, by_row], tmp_path / "cache")
    assert index.folder is not None
    member = json.loads((index.folder / "header.json").read_text())["members"][1]
    assert (member["path"], member["samples"], member["array"], "uuid" in member) == ("./a.zarr", 9, "row", False)
    assert "array" not in json.loads((index.folder / "header.json").read_text())["members"][0]
    assert primary.identity[1] == "train"


LINES = st.lists(st.text("aé\r", max_size=4).filter(lambda line: not line.endswith("\r")), max_size=8)


def key_lines(folder: Path, data: bytes, block: int) -> list[str]:
    (folder / "keys.txt").write_bytes(data)
    start, text = read_key_lines(folder / "keys.txt", folder, block_bytes=block)
    return [text[one:two].tobytes().decode("utf-8", "surrogateescape") for one, two in pairwise(start)]


@given(lines=LINES, end=st.sampled_from(["\n", "\r\n"]), last=st.booleans(), block=st.integers(1, 9))
def test_lines(lines: list[str], end: str, last: bool, block: int) -> None:
    """However the file is cut into blocks; the last line may lack its end if there is something on it."""
    text = "".join(line + end for line in lines)
    if last and lines and lines[-1]:
        text = text.removesuffix(end)
    with tempfile.TemporaryDirectory() as folder:
        assert key_lines(Path(folder), text.encode(), block) == lines


@pytest.mark.parametrize(("data", "lines"), [(b"", []), (b"\n", [""]), (b"a\r", ["a"]), (b"\xff\n", ["\udcff"])])
def test_lines_at_the_edges(tmp_path: Path, data: bytes, lines: list[str]) -> None:
    assert key_lines(tmp_path, data, 1) == key_lines(tmp_path, data, 9) == lines
