from __future__ import annotations

from pathlib import Path

import pytest

from energon_grain.formats.jsonl import LineNumbers, scan_lines
from energon_grain.storage.local import LocalFiles


@pytest.mark.parametrize("block", [1, 7, 1 << 20])
def test_line_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    monkeypatch.setattr("energon_grain.formats.jsonl._COUNTED_BYTES", block)
    path = tmp_path / "x.jsonl"
    content = b"".join(b"{" + b" " * (i % 13) + b"}\n" * (i % 3) for i in range(200))
    path.write_bytes(content)
    numbers = LineNumbers(str(path), LocalFiles())
    for offset in (*range(len(content) - 1, -1, -17), *range(0, len(content), 11), len(content)):
        assert numbers.at(offset) == content.count(b"\n", 0, offset) + 1


def test_blocks_cover_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("energon_grain.formats.jsonl._BLOCK_BYTES", 10)
    path = tmp_path / "x.jsonl"
    path.write_bytes(b'{"a": 1}\n{"a": 12345678901234567890}\n\n{}')
    blocks = list(scan_lines(path))
    assert [start for starts, _ in blocks for start in starts.tolist()] == [0, 9, 38]
    assert blocks[-1][1] == 40
