"""Building the columnar index: on first use, again, beside others, and not from what is stale."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

import numpy as np
import pytest
from columnar_cases import check_contents, shards_of, write_dataset
from made_scans import scan_of
from patience import PATIENCE_S

from energon_grain.errors import DuplicateKeyError, StaleIndexError
from energon_grain.formats.columnar import open_columnar
from energon_grain.formats.columnar_build import write_columnar
from energon_grain.formats.columnar_header import columnar_folder, index_cache_folder, read_header
from energon_grain.formats.data_folder import open_folder
from energon_grain.formats.nv_meta import DatasetInfo, write_info
from energon_grain.formats.tar.index import check_shards, tar_index_path
from energon_grain.formats.tar.scan import scan_tar


def test_first_use_builds_into_the_dataset(tmp_path: Path) -> None:
    shards = shards_of(3, 7)
    write_dataset(tmp_path, shards)
    check_contents(open_columnar(tmp_path), shards)
    generation = read_header(columnar_folder(tmp_path), tmp_path)
    index = open_columnar(tmp_path)
    assert read_header(columnar_folder(tmp_path), tmp_path) == generation
    check_shards(open_folder(tmp_path), index)
    assert index.sample_start.flags.writeable is False


def test_tar_index_files_are_not_needed(tmp_path: Path) -> None:
    shards = shards_of(2, 3)
    write_dataset(tmp_path, shards, tar_index=False)
    check_contents(open_columnar(tmp_path), shards)


def test_a_dataset_prepared_again_is_indexed_again(tmp_path: Path) -> None:
    write_dataset(tmp_path, shards_of(2, 5))
    old = open_columnar(tmp_path)
    shards = shards_of(3, 4)
    write_dataset(tmp_path, shards)
    check_contents(open_columnar(tmp_path), shards)
    assert len(old) == 10
    assert old.keys(np.arange(10))[-1] == "01/004"
    assert len(list(columnar_folder(tmp_path).glob("g*"))) == 1


def test_stale_info_is_refused(tmp_path: Path) -> None:
    write_dataset(tmp_path, shards_of(2, 5))
    write_info(tmp_path, DatasetInfo(shard_counts={"parts/s0.tar": 5, "parts/s1.tar": 6}))
    with pytest.raises(StaleIndexError, match=r"s1\.tar: has 5 samples, .* 6; `energon-grain prepare"):
        open_columnar(tmp_path)
    (tmp_path / "parts/s1.tar").unlink()
    with pytest.raises(StaleIndexError, match=r"s1\.tar.* gone"):
        open_columnar(tmp_path)
    assert not list(columnar_folder(tmp_path).glob("g*"))


def test_stale_tar_index_is_refused(tmp_path: Path) -> None:
    write_dataset(tmp_path, shards_of(2, 5))
    path = tmp_path / "parts/s1.tar"
    (scan_tar(path).sample_start + 512).tofile(tar_index_path(path))
    with pytest.raises(StaleIndexError, match=r"s1\.tar\.idx"):
        open_columnar(tmp_path)


def test_duplicates_are_refused_on_request(tmp_path: Path) -> None:
    scans = [scan_of([b"a", b"b"], [["x"], ["x"]]), scan_of([b"b"], [["x"]])]
    with pytest.raises(DuplicateKeyError, match=r"'b' in 0\.tar and in 1\.tar"):
        write_columnar(tmp_path, ["0.tar", "1.tar"], scans, unique_keys=True)
    assert not list(tmp_path.iterdir())
    write_columnar(tmp_path, ["0.tar", "1.tar"], scans)
    keys = [b"\xff", *(b"%d" % number for number in range(40))]
    with pytest.raises(DuplicateKeyError, match=r"^82 samples .* and 77 more") as caught:
        write_columnar(tmp_path, ["0.tar", "1.tar"], [scan_of(keys * 2), scan_of(keys)], unique_keys=True)
    assert "twice" in str(caught.value)


def test_a_failing_scan_leaves_the_old_index(tmp_path: Path) -> None:
    shards = shards_of(2, 4)
    write_dataset(tmp_path, shards)
    open_columnar(tmp_path)

    def scans() -> object:
        yield scan_tar(tmp_path / "parts/s0.tar")
        raise OSError("disk on fire")

    with pytest.raises(OSError, match="on fire"):
        write_columnar(columnar_folder(tmp_path), list(shards), scans())  # type: ignore[arg-type]
    check_contents(open_columnar(tmp_path), shards)
    assert len(list(columnar_folder(tmp_path).glob("g*"))) == 1


def test_read_only_datasets_are_indexed_in_the_cache(tmp_path: Path) -> None:
    root, cache = tmp_path / "data", tmp_path / "cache"
    shards = shards_of(2, 4)
    write_dataset(root, shards)
    columnar_folder(root).touch()  # a file in the place of the folder: nothing can be written there
    check_contents(open_columnar(root, cache_dir=cache), shards)
    folder = index_cache_folder(root, cache)
    header = read_header(folder, root)
    assert header is not None
    check_contents(open_columnar(root, cache_dir=cache), shards)
    assert read_header(folder, root) == header
    write_info(root, DatasetInfo(shard_counts=dict.fromkeys(shards, 4)))  # as a new `prepare` would
    open_columnar(root, cache_dir=cache)
    assert read_header(folder, root) != header


def test_cache_folder_follows_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert index_cache_folder(Path("/data/x")).parent == tmp_path / "energon-grain"
    assert index_cache_folder(Path("/data/x")) != index_cache_folder(Path("/data/y"))


def _open_and_report(root: Path, queue: multiprocessing.Queue[str]) -> None:
    queue.put(open_columnar(root).content_id)


def test_processes_that_build_at_once_all_end_well(tmp_path: Path) -> None:
    shards = shards_of(4, 50)
    write_dataset(tmp_path, shards)
    context = multiprocessing.get_context("forkserver")
    queue = context.Queue()
    processes = [context.Process(target=_open_and_report, args=(tmp_path, queue)) for _ in range(3)]
    for process in processes:
        process.start()
    ids = {queue.get(timeout=PATIENCE_S) for _ in processes}
    for process in processes:
        process.join()
    assert len(ids) == 1
    assert len(list(columnar_folder(tmp_path).glob("g*"))) == 1
    check_contents(open_columnar(tmp_path), shards)
