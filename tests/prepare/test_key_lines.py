"""Lines of files as columns of keys."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from energon_grain.prepare.join_build import read_key_lines

LINES = st.lists(st.text("aé\r", max_size=4).filter(lambda line: not line.endswith("\r")), max_size=8)


@given(lines=LINES, end=st.sampled_from(["\n", "\r\n"]), last=st.booleans(), block=st.integers(1, 9))
def test_lines(lines: list[str], end: str, last: bool, block: int) -> None:
    """However the file is cut into blocks; the last line may lack its end if there is something on it."""
    text = "".join(line + end for line in lines)
    if last and lines and lines[-1]:
        text = text.removesuffix(end)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "keys.txt"
        path.write_bytes(text.encode())
        found = read_key_lines(path, Path(folder), block_bytes=block)
        assert [found.line(number) for number in range(len(found))] == lines


@pytest.mark.parametrize(("data", "lines"), [(b"", []), (b"\n", [""]), (b"a\r", ["a"]), (b"\xff\n", ["\udcff"])])
def test_edges(tmp_path: Path, data: bytes, lines: list[str]) -> None:
    (tmp_path / "keys.txt").write_bytes(data)
    found = read_key_lines(tmp_path / "keys.txt", tmp_path, block_bytes=1)
    assert [found.line(number) for number in range(len(found))] == lines
    read_key_lines(tmp_path / "keys.txt", tmp_path)  # several files of one name may be read into one folder
