"""Preparing by the arguments that Energon's function has."""

from __future__ import annotations

import tarfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from beside_data import shard_counts, split_parts
from cli_runs import run
from object_server import Bucket

from energon_grain import BaseWebdatasetFactory, WebDatasetSource
from energon_grain.errors import ConfigError, DatasetNotFoundError, DuplicateKeyError
from energon_grain.prepare import prepare_dataset
from energon_grain.testing import write_tars


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_tars(tmp_path, ({"__key__": f"{i:03d}", "txt": "a", "json": {}} for i in range(20)), shards=10)
    return tmp_path


prepare_with_energon_arguments = BaseWebdatasetFactory.prepare_dataset
NAMES = [f"shard_{i:03d}.tar" for i in range(10)]


@pytest.mark.parametrize("shuffle_seed", [None, 0, 7])
def test_it_writes_what_prepare_dataset_writes(root: Path, shuffle_seed: int | None) -> None:
    ratio = [("train", 7), ("val", 3), ("test", 0)]
    found = prepare_with_energon_arguments(root, NAMES, split_parts_ratio=ratio, shuffle_seed=shuffle_seed, workers=0)
    assert found == {"txt", "json"}
    split = split_parts(root)
    prepare_dataset(
        root,
        split_ratio=dict(ratio),
        shuffle_tars=shuffle_seed is not None,
        shuffle_seed=shuffle_seed or 0,
        num_workers=0,
        force_overwrite=True,
    )
    assert split_parts(root) == split
    assert not (root / ".nv-meta" / "dataset.yaml").exists()


def test_patterns_of_one_name_add_up(root: Path) -> None:
    patterns = [("train", "shard_00[0-4].tar"), ("val", "shard_009.tar"), ("train", "shard_005.tar")]
    prepare_with_energon_arguments(root, NAMES, split_parts_patterns=patterns, shuffle_seed=None, workers=0)
    split = split_parts(root)
    assert split == {"train": NAMES[:6], "val": [NAMES[9]]}


def test_an_index_is_written_anew(root: Path) -> None:
    prepare_with_energon_arguments(root, NAMES, split_parts_ratio=[("train", 1)], workers=0)
    counts = shard_counts(root)
    (root / "shard_000.tar.idx").unlink()
    prepare_with_energon_arguments(root, NAMES, tar_index_only=True, workers=0)
    assert (root / "shard_000.tar.idx").exists()
    assert shard_counts(root) == counts


def test_progress_is_shown_to_its_end(root: Path) -> None:
    seen: list[int] = []
    ended: list[int] = []

    def show(elements: Iterable[int], length: int) -> Iterator[int]:
        for element in elements:
            seen.append(element)
            yield element
        ended.append(length)

    prepare_with_energon_arguments(root, NAMES, split_parts_ratio=[("train", 1)], progress_fn=show, workers=0)
    assert (seen, ended) == (list(range(10)), [10])


@pytest.mark.parametrize("paths", [["shard_00{0..9}.tar"], ["shard_00{0,1,2}.tar", "shard_00{3..8..1}.tar", NAMES[9]]])
def test_braces_expand(root: Path, paths: list[str]) -> None:
    prepare_with_energon_arguments(root, paths, split_parts_ratio=[("train", 1)], shuffle_seed=None, workers=0)
    assert list(shard_counts(root)) == NAMES


@pytest.mark.parametrize(
    ("paths", "message"),
    [
        (["shard_00{0..12}.tar"], "shard_0010.tar: listed as a shard"),
        (["a{b"], r"'a\{b'.*Write a brace in a file name as \\\{"),
    ],
)
def test_braces_that_fit_nothing(root: Path, paths: list[str], message: str) -> None:
    with pytest.raises((DatasetNotFoundError, ConfigError), match=message):
        prepare_with_energon_arguments(root, paths, split_parts_ratio=[("train", 1)], workers=0)


@pytest.mark.parametrize("name", ["other.yaml", "other.json"])
def test_the_split_file_has_the_name_given(root: Path, name: str) -> None:
    prepare_with_energon_arguments(root, NAMES, split_parts_ratio=[("all", 1)], split_config=name, workers=0)
    assert not (root / ".nv-meta/split.yaml").exists()
    assert set(split_parts(root, name)["all"]) == set(NAMES)
    for wrong in ("split.txt", "../split.yaml"):
        with pytest.raises(ConfigError, match="split_config"):
            prepare_with_energon_arguments(root, NAMES, split_parts_ratio=[("all", 1)], split_config=wrong, workers=0)


def test_metadata_of_media_are_refused(root: Path) -> None:
    with pytest.raises(ConfigError, match="media_filter"):
        prepare_with_energon_arguments(root, NAMES, split_parts_ratio=[("all", 1)], media_filter=object())


def test_a_temporary_path_for_the_database_is_not_needed_on_a_disk(root: Path, tmp_path: Path) -> None:
    path = tmp_path / "elsewhere" / "index.sqlite"
    prepare_with_energon_arguments(root, NAMES, split_parts_ratio=[("all", 1)], index_sqlite_tmp_path=path, workers=0)
    assert (root / ".nv-meta/index.sqlite").exists()
    assert not path.exists()


def test_the_database_of_objects_is_made_where_the_program_says(bucket: Bucket, root: Path, tmp_path: Path) -> None:
    url, path = bucket.upload(root, "there"), tmp_path.parent / f"{tmp_path.name}.sqlite"
    seen: list[bool] = []

    def show(elements: Iterable[int], length: int) -> Iterator[int]:
        yield from elements
        seen.append(length == 10)

    prepare_with_energon_arguments(
        url, NAMES, split_parts_ratio=[("all", 1)], index_sqlite_tmp_path=path, progress_fn=show
    )
    assert seen == [True]
    assert not path.exists(), "removed when it was uploaded"
    prepare_with_energon_arguments(root, NAMES, split_parts_ratio=[("all", 1)], workers=0)
    assert bucket.get("there/.nv-meta/index.sqlite") == (root / ".nv-meta/index.sqlite").read_bytes()
    with pytest.raises(OSError, match="nowhere"):
        prepare_with_energon_arguments(
            url, NAMES, split_parts_ratio=[("all", 1)], index_sqlite_tmp_path=tmp_path / "nowhere" / "x"
        )


def duplicates(root: Path) -> Path:
    for name, number in (("a", 1), ("b", 2), ("deep/c", 3)):
        samples = [{"__key__": f"x/{i}", "txt": f"{number}{i}", "json": {"number": number}} for i in range(3)]
        write_tars(root, samples, name=f"{name}.tar")
        with tarfile.open(root / f"{name}.tar", "a") as tar:  # what is part of no sample keeps its name
            tar.addfile(tarfile.TarInfo("__meta__/x.txt"))
    return root


DUPLICATES = ["a.tar", "b.tar", "deep/c.tar"]


def texts(root: Path) -> dict[str, str]:
    found: dict[str, str] = {}
    for shard in shard_counts(root):
        with tarfile.open(root / shard) as tar:
            found |= {m.name: tar.extractfile(m).read().decode() for m in tar if m.name.endswith("txt")}  # type: ignore[union-attr]
    return found


def test_duplicates_are_an_error(tmp_path: Path) -> None:
    duplicates(tmp_path)
    before = {name: (tmp_path / name).read_bytes() for name in DUPLICATES}
    with pytest.raises(DuplicateKeyError, match="fix_duplicates"):
        prepare_with_energon_arguments(tmp_path, DUPLICATES, split_parts_ratio=[("train", 1)], workers=0)
    assert {name: (tmp_path / name).read_bytes() for name in DUPLICATES} == before


def test_duplicates_are_mended(tmp_path: Path) -> None:
    duplicates(tmp_path)
    arguments = {"split_parts_ratio": [("train", 1)], "workers": 0, "fix_duplicates": True}
    prepare_with_energon_arguments(tmp_path, DUPLICATES, **arguments)  # type: ignore[arg-type]
    source = WebDatasetSource(tmp_path)
    assert [source.locate(i).key for i in range(9)] == [f"{name}/x/{i}" for name in DUPLICATES for i in range(3)]
    expected = {f"{name}/x/{i}.txt": f"{number}{i}" for number, name in enumerate(DUPLICATES, 1) for i in range(3)}
    assert {name: text for name, text in texts(tmp_path).items() if name in expected} == expected
    for name in DUPLICATES:
        with tarfile.open(tmp_path / name) as tar:
            assert tar.getnames()[-1] == "__meta__/x.txt"
    mended = {name: (tmp_path / name).read_bytes() for name in DUPLICATES}
    prepare_with_energon_arguments(tmp_path, DUPLICATES, **arguments)  # type: ignore[arg-type]
    assert {name: (tmp_path / name).read_bytes() for name in DUPLICATES} == mended, "distinct keys are left alone"


def test_duplicates_in_one_tar_stay_an_error(tmp_path: Path) -> None:
    duplicates(tmp_path)
    write_tars(tmp_path, [{"__key__": key, "txt": "a"} for key in ("x", "y", "x")], name="b.tar")
    before = {name: (tmp_path / name).read_bytes() for name in DUPLICATES}
    with pytest.raises(DuplicateKeyError, match=r"b\.tar: has a key twice"):
        prepare_dataset(tmp_path, num_workers=0, fix_duplicates=True)
    assert {name: (tmp_path / name).read_bytes() for name in DUPLICATES} == before


def test_duplicates_of_objects_are_not_mended(bucket: Bucket, tmp_path: Path) -> None:
    url = bucket.upload(duplicates(tmp_path))
    with pytest.raises(ConfigError, match="fix_duplicates renames members of tar files on a file system"):
        prepare_dataset(url, fix_duplicates=True)


def test_the_command_mends_duplicates(tmp_path: Path) -> None:
    duplicates(tmp_path)
    done = run("prepare", tmp_path, "--non-interactive", "--split-ratio=1", "--crude", "--fix-duplicates")
    assert done.exit_code == 0, done.output
    assert WebDatasetSource(tmp_path).locate(8).key == "deep/c.tar/x/2"
