"""Ranges of samples, with the vectors that were measured on the original."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from energon_grain.datasets.subset_range import SubsetRange
from energon_grain.errors import ConfigError


@pytest.mark.parametrize(
    ("written", "total", "expected"),
    [
        (["20%", "80%"], 55, (11, 44)),
        ([10, 30], 55, (10, 30)),
        ([10, "end"], 55, (10, 55)),
        (["0%", "100%"], 55, (0, 55)),
        (["0%", "50%"], 55, (0, 27)),
        (["12.5%", "37.5%"], 16, (2, 6)),
        (["33.3%", "66.6%"], 1000, (333, 666)),
        (["29%", "57%"], 100, (29, 57)),
        ((0, 1), 1, (0, 1)),
        ({"range": ["20%", "80%"]}, 55, (11, 44)),
    ],
)
def test_vectors(written: Any, total: int, expected: tuple[int, int]) -> None:
    """Shares are exact: 29 % of 100 is 29, although 0.29 * 100 is less in floating point."""
    assert SubsetRange.parse(written).resolve(total) == expected


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ([0, "50%"], r"both bounds must be percentages, or both sample numbers"),
        (["50%", "end"], r"'end' goes with sample numbers; write '100%'"),
        ([5, 5], r"the range is empty; its end must lie behind its start"),
        (["50%", "50%"], r"the range is empty"),
        ([30, 10], r"the range is empty"),
        (["-5%", "10%"], r"does not lie in 0% to 100%"),
        (["5%", "110%"], r"does not lie in 0% to 100%"),
        (["x%", "10%"], r"'x%' is not a percentage"),
        ([-1, 10], r"-1 is neither a sample number"),
        ([1.5, 10], r"1\.5 is neither a sample number"),
        ([True, 10], r"True is neither a sample number"),
        (["end", 10], r"'end' is neither a sample number"),
        ([1], r"a range \[start, end\] of two values is meant"),
        ("10%", r"a range \[start, end\]"),
        (7, r"a range \[start, end\]"),
        ({"from": 1}, r"a range \[start, end\]"),
    ],
)
def test_what_is_no_range(written: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        SubsetRange.parse(written)


@pytest.mark.parametrize(("written", "total"), [([10, 56], 55), ([55, "end"], 55), ([60, 70], 55)])
def test_beyond_the_end(written: Any, total: int) -> None:
    with pytest.raises(ConfigError, match=rf"the split part has {total} samples"):
        SubsetRange.parse(written).resolve(total)


def test_told_as_written() -> None:
    assert str(SubsetRange.parse(["12.5%", "80%"])) == "[12.5%, 80%]"
    assert str(SubsetRange.parse([10, "end"])) == "[10, end]"


def test_equality_and_pickling() -> None:
    subset = SubsetRange.parse(["20%", "80%"])
    assert subset == SubsetRange.parse(["20.0%", "80%"])
    assert pickle.loads(pickle.dumps(subset)) == subset
