"""The list of files that the DLIO plug-in reads. Runs without DLIO."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from energon_grain.errors import DatasetNotFoundError, ReadError, StaleIndexError

PLUG_IN = Path(__file__).resolve().parents[2] / "benchmarks" / "dlio"


@pytest.fixture
def listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a list of twenty arrays, with the plug-in on the path."""
    monkeypatch.syspath_prepend(PLUG_IN)
    files = [tmp_path / f"img_{number:02d}.npy" for number in range(20)]
    for number, file in enumerate(files):
        np.save(file, np.full((4, 4), number, np.uint8))
    path = tmp_path / "files.dlio"
    path.write_text("".join(f"{file}\n" for file in files))
    return path


def rows_of(path: Path) -> Any:
    from energon_grain_dlio.files import FileRows

    return FileRows(str(path))


def test_rows_have_the_bytes_of_the_files_in_any_order(listed: Path) -> None:
    rows = rows_of(listed)
    numbers = np.array([7, 0, 19, 7])
    batch = rows.read_rows(numbers)
    assert batch.keys == ["img_07", "img_00", "img_19", "img_07"]
    assert [each[-1] for each in batch.columns["npy"]] == numbers.tolist()
    assert rows.sizes(numbers).tolist() == [len(each) for each in batch.columns["npy"]]


def test_a_worker_refuses_files_that_changed(listed: Path) -> None:
    copy = pickle.dumps(rows_of(listed))
    assert pickle.loads(copy).digest == rows_of(listed).digest
    np.save(listed.with_name("img_03.npy"), np.zeros((5, 5), np.uint8))
    with pytest.raises(StaleIndexError, match="changed"):
        pickle.loads(copy)


@pytest.mark.parametrize("more_bytes", [-1, 1])
def test_a_file_that_grew_or_shrank_is_named(listed: Path, more_bytes: int) -> None:
    rows = rows_of(listed)
    file = listed.with_name("img_05.npy")
    file.write_bytes((file.read_bytes() + b"x")[: int(rows.lengths[5]) + more_bytes])
    with pytest.raises(StaleIndexError, match=r"img_05.*had"):
        rows.read_rows(np.array([5]))


def test_missing_files_are_named(listed: Path) -> None:
    rows = rows_of(listed)
    listed.with_name("img_05.npy").unlink()
    with pytest.raises(ReadError, match="img_05"):
        rows.read_rows(np.array([5]))
    with pytest.raises(DatasetNotFoundError, match="img_05"):
        rows_of(listed)
    with pytest.raises(DatasetNotFoundError, match="no such list"):
        rows_of(listed.with_name("other.dlio"))


def test_the_loader_delivers_every_file_once(listed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("dlio_benchmark")
    from dlio_benchmark.common.enumerations import DatasetType, FormatType
    from dlio_benchmark.utils.config import ConfigArguments
    from energon_grain_dlio.loader import EnergonGrainDataLoader

    arguments = ConfigArguments.get_instance()
    values = {
        "file_list_train": listed.read_text().split(),
        "total_samples_train": 20,
        "training_steps": 5,
        "batch_size": 4,
        "read_threads": 1,
        "my_rank": 0,
        "comm_size": 1,
    }
    for name, value in values.items():
        monkeypatch.setattr(arguments, name, value)
    loader = EnergonGrainDataLoader(FormatType.NPY, DatasetType.TRAIN, 1)
    loader.read()
    numbers = [int(image[0, 0]) for batch in loader.next() for image in batch["npy"]]
    assert sorted(numbers) == list(range(20))
