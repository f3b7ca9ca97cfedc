"""Reading records: every pattern of them, from bounded many files, in threads and forked processes."""

from __future__ import annotations

import os
import shutil
import threading
from pathlib import Path

import numpy as np
import pytest
from forking import may_fork
from hypothesis import given, strategies as st
from records import write_records

from energon_grain.errors import ReadError
from energon_grain.formats.array_record import ArrayRecordFile
from energon_grain.sources.array_record import OpenFiles

COUNT = 2000
OPTIONS = ("group_size:1,uncompressed", "group_size:1,zstd", "group_size:64,brotli")


def record(number: int) -> bytes:
    return number.to_bytes(4, "little") * (number % 7)


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("files")
    return [
        write_records(folder / f"{number}.array_record", map(record, range(COUNT)), options)
        for number, options in enumerate(OPTIONS)
    ]


@given(st.sets(st.integers(0, COUNT - 1), min_size=1, max_size=60), st.integers(0, 2), st.integers(1, 20))
def test_any_records(paths: list[Path], chosen: set[int], which: int, run: int) -> None:
    numbers = sorted({min(number + place, COUNT - 1) for number in chosen for place in range(run)})
    file = ArrayRecordFile(str(paths[which]))
    assert file.records == COUNT
    assert file.read(numbers) == [record(number) for number in numbers]


def test_all(paths: list[Path]) -> None:
    for path in paths:
        file = ArrayRecordFile(str(path))
        assert file.read(list(range(COUNT))) == [record(number) for number in range(COUNT)]
        assert file.read(list(range(0, COUNT, 2))) == [record(number) for number in range(0, COUNT, 2)]


def test_what_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(ReadError, match=r"none\.array_record: there is no such file"):
        ArrayRecordFile(str(tmp_path / "none.array_record"))
    for content in (b"", b"garbage" * 20000):
        (tmp_path / "bad.array_record").write_bytes(content)
        with pytest.raises(ReadError, match=r"bad\.array_record: is no ArrayRecord file, or a damaged one: ."):
            ArrayRecordFile(str(tmp_path / "bad.array_record"))


def test_a_file_that_was_cut(tmp_path: Path) -> None:
    path = write_records(tmp_path / "x.array_record", [b"abc"] * 100)
    os.truncate(path, path.stat().st_size // 2)
    with pytest.raises(ReadError, match=r"a damaged one: its end, which says where records lie, is missing$"):
        ArrayRecordFile(str(path))


def test_a_damaged_record_is_named(tmp_path: Path) -> None:
    path = write_records(tmp_path / "x.array_record", [bytes([number]) * 1000 for number in range(200)])
    data = bytearray(path.read_bytes())
    place = data.index(bytes([70]) * 500)
    data[place] ^= 1
    path.write_bytes(data)
    file = ArrayRecordFile(str(path))
    for wanted in ([70], [3, 70, 71], [69, 70, 71], list(range(0, 200, 2)), list(range(200))):
        with pytest.raises(ReadError, match=r"x\.array_record: record 70: .*hash mismatch"):
            file.read(wanted)
    assert file.read([69, 71]) == [bytes([69]) * 1000, bytes([71]) * 1000]


class Files(OpenFiles[ArrayRecordFile]):
    def file(self, path: object) -> ArrayRecordFile:
        return self.get(str(path)) or self.put(str(path), ArrayRecordFile(str(path)))


def test_few_files_stay_open(paths: list[Path], tmp_path: Path) -> None:
    copies = [shutil.copy(paths[0], tmp_path / f"{number}.array_record") for number in range(6)]
    files = Files(max_files=3)
    opened = [files.file(path) for path in copies]
    assert [files.file(path) is file for path, file in zip(copies[3:], opened[3:], strict=True)] == [True] * 3
    assert files.file(copies[0]) is not opened[0]
    assert opened[0].read([5]) == [record(5)]  # who holds it reads on
    few = Files(max_records=COUNT + 1)
    first = few.file(copies[0])
    assert few.file(copies[1]) is not None
    assert few.file(copies[0]) is not first
    files.close()
    assert files.file(copies[5]) is not opened[5]


def test_threads(paths: list[Path]) -> None:
    files, wrong = Files(max_files=2), list[str]()

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(40):
            numbers = rng.integers(0, COUNT, 50).tolist()
            if files.file(paths[rng.integers(3)]).read(numbers) != list(map(record, numbers)):
                wrong.append(f"seed {seed}")

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@may_fork
def test_forked_processes(paths: list[Path]) -> None:
    """Children open files anew, and need none of the reader's threads."""
    files = Files()
    every = list(range(0, COUNT, 3))
    before = [files.file(path) for path in paths]
    expected = [file.read(every) for file in before]
    for _ in range(3):
        child = os.fork()
        if child == 0:
            code = 1
            try:
                anew = [files.file(path) for path in paths]
                same = any(file in before for file in anew)
                right = [file.read(every) for file in anew] == expected
                code = 0 if right and not same else 2
            finally:
                os._exit(code)
        assert os.waitpid(child, 0)[1] == 0
    assert [files.file(path).read(every) for path in paths] == expected
