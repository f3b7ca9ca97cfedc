"""Preparing by the arguments that Energon's function has."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from energon_grain import BaseWebdatasetFactory
from energon_grain.errors import DuplicateKeyError
from energon_grain.formats.nv_meta import read_info
from energon_grain.formats.splits import read_split_config
from energon_grain.prepare import prepare_dataset
from energon_grain.prepare.energon_arguments import prepare_with_energon_arguments
from energon_grain.testing import write_tars


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_tars(tmp_path, ({"__key__": f"{i:03d}", "txt": "a", "json": {}} for i in range(20)), shards=10)
    return tmp_path


NAMES = [f"shard_{i:03d}.tar" for i in range(10)]


def test_it_is_where_programs_look_for_it() -> None:
    assert BaseWebdatasetFactory.prepare_dataset is prepare_with_energon_arguments


@pytest.mark.parametrize("shuffle_seed", [None, 0, 7])
def test_it_writes_what_prepare_dataset_writes(root: Path, shuffle_seed: int | None) -> None:
    ratio = [("train", 7), ("val", 3), ("test", 0)]
    found = prepare_with_energon_arguments(root, NAMES, split_parts_ratio=ratio, shuffle_seed=shuffle_seed, workers=0)
    assert found == ({"txt", "json"}, [])
    split = read_split_config(root)
    prepare_dataset(
        root,
        split_ratio=dict(ratio),
        shuffle_tars=shuffle_seed is not None,
        shuffle_seed=shuffle_seed or 0,
        num_workers=0,
        force_overwrite=True,
    )
    assert read_split_config(root) == split
    assert not (root / ".nv-meta" / "dataset.yaml").exists()


def test_patterns_of_one_name_add_up(root: Path) -> None:
    patterns = [("train", "shard_00[0-4].tar"), ("val", "shard_009.tar"), ("train", "shard_005.tar")]
    prepare_with_energon_arguments(root, NAMES, split_parts_patterns=patterns, shuffle_seed=None, workers=0)
    split = read_split_config(root)
    assert split.split_parts == {"train": tuple(NAMES[:6]), "val": (NAMES[9],)}


def test_an_index_is_written_anew(root: Path) -> None:
    prepare_with_energon_arguments(root, NAMES, split_parts_ratio=[("train", 1)], workers=0)
    info = read_info(root)
    (root / "shard_000.tar.idx").unlink()
    prepare_with_energon_arguments(root, NAMES, tar_index_only=True, workers=0)
    assert (root / "shard_000.tar.idx").exists()
    assert read_info(root) == info


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


def test_duplicates_are_an_error(tmp_path: Path) -> None:
    write_tars(tmp_path, [{"__key__": "same", "txt": "a"}] * 2, shards=2)
    with pytest.raises(DuplicateKeyError):
        prepare_with_energon_arguments(tmp_path, NAMES[:2], split_parts_ratio=[("train", 1)], workers=0)
