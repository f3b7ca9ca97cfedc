"""Indices that are asked for: those that do not exist are named."""

from __future__ import annotations

import numpy as np
import pytest

from energon_grain.sources.source import in_range


@pytest.mark.parametrize("indices", [[], [0], [4, 0, 4]])
def test_indices_in_range(indices: list[int]) -> None:
    found = in_range(np.array(indices, np.int32), 5, where="here")
    assert found.dtype == np.int64
    assert found.tolist() == indices


@pytest.mark.parametrize(("indices", "wrong"), [([0, -1, 9], -1), ([5], 5), ([4, 7, -2], 7)])
def test_the_first_one_out_of_range_is_named(indices: list[int], wrong: int) -> None:
    with pytest.raises(IndexError, match=rf"^here: row {wrong} asked for, but there are 5$"):
        in_range(np.array(indices), 5, where="here", what="row")
