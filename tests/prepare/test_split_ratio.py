from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given, strategies as st

from energon_grain.errors import ConfigError, SplitError
from energon_grain.formats.splits import name_ratio, parse_ratio
from energon_grain.prepare.listing import shards_per_part, split_by_ratio

ratios = st.dictionaries(
    st.sampled_from(["train", "val", "test", "a", "b", "c"]),
    st.one_of(st.just(0.0), st.floats(1e-6, 1e6), st.integers(1, 100).map(float)),
    min_size=1,
).filter(lambda ratio: any(ratio.values()))


@given(ratios, st.integers(1, 500))
def test_no_shard_is_lost(ratio: dict[str, float], shards: int) -> None:
    positive = {name: Fraction(str(value)) for name, value in ratio.items() if value}
    if shards < len(positive):
        with pytest.raises(SplitError, match="at least one"):
            shards_per_part(shards, ratio)
        return
    counts = shards_per_part(shards, ratio)
    assert sum(counts.values()) == shards
    assert list(counts) == [name for name in ratio if name in positive]
    assert min(counts.values()) >= 1
    exact = {name: value * shards / sum(positive.values()) for name, value in positive.items()}
    if min(exact.values()) >= 1:  # nobody needed help
        assert all(abs(counts[name] - exact[name]) < 1 for name in counts)


@pytest.mark.parametrize("ratio", [(7, 2, 1), (0.7, 0.2, 0.1), (70, 20, 10), (0.07, 0.02, 0.01)])
def test_exact_shares_are_exact(ratio: tuple[float, ...]) -> None:
    """Energon loses the last shard here, because 0.7 + 0.2 + 0.1 < 1 in floats."""
    assert shards_per_part(10, name_ratio(ratio)) == {"train": 7, "val": 2, "test": 1}


def test_small_parts_get_a_shard() -> None:
    assert shards_per_part(5, {"train": 1000, "val": 1, "test": 1}) == {"train": 3, "val": 1, "test": 1}
    assert shards_per_part(3, {"val": 1, "train": 1000, "test": 1}) == {"val": 1, "train": 1, "test": 1}


def test_parts_of_zero_are_left_out() -> None:
    assert shards_per_part(1, {"train": 1, "val": 0, "test": 0}) == {"train": 1}


@given(ratios, st.integers(6, 40))
def test_parts_are_consecutive(ratio: dict[str, float], count: int) -> None:
    shards = [f"{number}.tar" for number in range(count)]
    parts = split_by_ratio(shards, ratio)
    assert [shard for part in parts.values() for shard in part] == shards


@pytest.mark.parametrize(
    ("text", "ratio"),
    [
        ("8,1,1", {"train": 8, "val": 1, "test": 1}),
        (" 0.5, 0.2 ,0.3", {"train": 0.5, "val": 0.2, "test": 0.3}),
        ("9,1", {"train": 9, "val": 1}),
        ("train=9, heldout=1", {"train": 9, "heldout": 1}),
    ],
)
def test_parse(text: str, ratio: dict[str, float]) -> None:
    assert parse_ratio(text) == ratio


@pytest.mark.parametrize(
    "text", ["", "a,b", "1,2,3,4", "-1,1,1", "0,0,0", "nan,1,1", "inf,1,1", "a=1,2", "a=1,a=2", "=1", "a=x"]
)
def test_parse_refuses(text: str) -> None:
    with pytest.raises(ConfigError, match="ratio"):
        parse_ratio(text)
