"""The table of what one host gets, on the page about shuffling, computed again from the samplers."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from energon_grain.formats.local_files import LocalFiles
from energon_grain.samplers.leaf_order import LeafOrder, LeafTable, window_blocks
from energon_grain.stream.chunks import MAX_CHUNK
from energon_grain.stream.memory import CHUNK_BYTES

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "shuffle.md"
SAMPLES, BATCH, STRETCH, SAMPLE_BYTES = 1_000_000, 64, 100, 2560


def rows() -> list[list[str]]:
    """Cells of the table, without commas."""
    table = PAGE.read_text().split("tests/docs/test_shuffle_table.py -->")[1].split("\n\n")[1]
    return [[cell.strip().replace(",", "") for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]


def stretches_in_a_batch(stream: npt.NDArray[np.int64], hosts: int) -> float:
    mine = stream[::hosts]
    batches = mine[: len(mine) // BATCH * BATCH].reshape(-1, BATCH)
    return float(np.mean([len(np.unique(batch // STRETCH)) for batch in batches[:: max(1, len(batches) // 200)]]))


def requests(stream: npt.NDArray[np.int64], hosts: int) -> int:
    mine, together = stream[::hosts], min(MAX_CHUNK, CHUNK_BYTES // SAMPLE_BYTES)
    count = 0
    for start in range(0, len(mine), together):
        gaps = np.diff(np.sort(mine[start : start + together])) - 1
        count += 1 + int(np.count_nonzero(gaps * SAMPLE_BYTES > LocalFiles.merge_gap_bytes))
    return count * hosts


@pytest.mark.parametrize("row", rows(), ids=lambda row: "-".join(row[:3]))
def test_the_table_says_what_the_samplers_do(row: list[str]) -> None:
    block, mixing, lanes = (ast.literal_eval(cell) for cell in row[:3])
    window = 1 if block is None else window_blocks(block=block, lanes=lanes, shuffle_buffer_size=mixing)
    order = LeafOrder(n=SAMPLES, key=1, block=block, window=window)
    stream = LeafTable([order], lanes=lanes).draw(0, np.arange(SAMPLES))[0]
    for said, hosts in zip(row[3:7], (1, 8, 16, 48), strict=True):
        assert re.fullmatch(r"\d\d|\d\.\d", said)
        assert f"{stretches_in_a_batch(stream, hosts):.2g}" == f"{float(said):.2g}"
    for said, hosts in zip(row[7:], (16, 48), strict=True):
        assert f"{requests(stream, hosts) / 1000:.0f}000" == said


def test_the_table_has_rows() -> None:
    assert len(rows()) == 7
