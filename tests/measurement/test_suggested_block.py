from __future__ import annotations

from dataclasses import replace

import pytest
from measured_figures import BALANCED

from energon_grain.measurement.suggested_block import suggested_block


@pytest.mark.parametrize(("sample_bytes", "block"), [(0, 1000), (100, 1000), (1100, 1000), (5000, 300), (2e6, 1)])
def test_suggested_blocks_hold_a_mebibyte(sample_bytes: float, block: int) -> None:
    assert suggested_block(replace(BALANCED, sample_bytes=sample_bytes)) == block


@pytest.mark.parametrize(("largest", "block"), [(0, 1), (1, 1), (166, 166), (5000, 300)])
def test_there_are_blocks_for_all_lanes(largest: int, block: int) -> None:
    assert suggested_block(replace(BALANCED, sample_bytes=5000, largest_block=largest)) == block
