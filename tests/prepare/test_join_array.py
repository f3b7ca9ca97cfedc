"""Arrays in joins: which row belongs to which sample, against dictionaries; and what is refused."""

from __future__ import annotations

import json
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from arrays import numbered, write_array
from hypothesis import given, settings, strategies as st

from energon_grain.errors import ConfigError, DatasetNotFoundError, DuplicateKeyError, EmptyDatasetError
from energon_grain.formats.join_index import JoinIndex
from energon_grain.formats.splits import SplitConfig, write_split_config
from energon_grain.prepare import prepare_dataset
from energon_grain.prepare.join_build import build_join
from energon_grain.prepare.join_members import JoinedArray, JoinedDataset, read_key_lines
from energon_grain.testing import write_tars

SHARDS = ("a b c", "d e", "f g h i")
KEYS = " ".join(SHARDS).split()


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
    lines=st.lists(st.sampled_from([*KEYS, "x", "y"]), unique=True, min_size=1),
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
            {key: number for number, key in enumerate(KEYS) if number < length},
            {key: number for number, key in enumerate(lines)},
            {key: number for number, key in enumerate(KEYS) if key != "e"},
        ]
        expected: list[list[int]] = []
        for key in "fghid":
            values = [found[place].get(key, -1) for place in order]
            if all(value >= 0 or modes[place] != "skip" for value, place in zip(values, order, strict=True)):
                expected.append([KEYS.index(key), *values])
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
    array = keyed(tmp_path, " ".join(reversed(KEYS)))
    index = build_join([primary, array], tmp_path / "cache", memory_bytes=512)
    assert index.rows.tolist() == rows(primary, array) == [[number, 8 - number] for number in (5, 6, 7, 8, 3)]


def test_wrong_keys_are_told(primary: JoinedDataset, tmp_path: Path) -> None:
    array = keyed(tmp_path, "d f g h i")
    (tmp_path / "keys.txt").write_text("d\nf\ng\nh\n")
    with pytest.raises(ConfigError, match=r"keys\.txt: has 4 lines, but .*keyed has 5 rows"):
        build_join([primary, array], None)
    with pytest.raises(DuplicateKeyError, match=r"keys\.txt: .*1 of its keys .*'f' in line 2 and in line 4"):
        build_join([primary, keyed(tmp_path, "d f g f h i")], None)
    with pytest.raises(ConfigError, match=r"1 of 5 keys of .*are not in .*keyed \(4 rows\): 'i'.*say at this array"):
        build_join([primary, keyed(tmp_path, "d f g h")], None)
    (tmp_path / "keys.txt").unlink()
    with pytest.raises(DatasetNotFoundError, match=r"keys\.txt: here must be a text file"):
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
