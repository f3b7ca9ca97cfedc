from __future__ import annotations

import pytest

from energon_grain.errors import ConfigError, SplitError
from energon_grain.prepare.listing import compile_pattern, parse_split_parts, split_by_patterns

SHARDS = [f"shards/shard_{number:03d}.tar" for number in range(12)] + ["extra/deep/x.tar", "y.tar"]


def chosen(pattern: str) -> list[str]:
    return [shard for shard in SHARDS if compile_pattern(pattern)(shard)]


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("glob:shards/{000..002}.tar", []),
        ("glob:shards/shard_{000..002}.tar", SHARDS[:3]),
        ("glob:shards/shard_00[89].tar", SHARDS[8:10]),
        ("glob:shards/shard_01?.tar", SHARDS[10:12]),
        ("glob:shards/shard_00[!0-8].tar", SHARDS[9:10]),
        ("glob:*.tar", ["y.tar"]),
        ("glob:**/*.tar", SHARDS),
        ("glob:**", SHARDS),
        ("glob:extra/**/x.tar", ["extra/deep/x.tar"]),
        ("glob:{extra/**,y}*", ["extra/deep/x.tar", "y.tar"]),
        ("glob:shards/shard_000", []),
        (r"re:shard_\d{2}1", [SHARDS[1], SHARDS[11]]),
        ("re:deep", ["extra/deep/x.tar"]),
        ("re:^y", ["y.tar"]),
        ("shards/shard_{000..002}.tar", SHARDS[:3]),
        ("shards/shard_00", SHARDS[:10]),
        ("shard", SHARDS[:12]),
        ("hard", []),
        (".*x", ["extra/deep/x.tar"]),
    ],
)
def test_patterns(pattern: str, expected: list[str]) -> None:
    assert chosen(pattern) == expected


def test_split() -> None:
    parts = split_by_patterns(SHARDS, {"train": "shards/", "val": ["glob:y.tar", "re:shard_001"]})
    assert parts == {"train": tuple(SHARDS[:12]), "val": (SHARDS[1], "y.tar")}


def test_order_is_that_of_the_shards() -> None:
    assert split_by_patterns(["b", "a"], {"t": ["glob:a", "glob:b"]}) == {"t": ("b", "a")}


def test_pattern_that_matches_nothing() -> None:
    with pytest.raises(SplitError, match=r"'val'.*matches none of the 14 shards"):
        split_by_patterns(SHARDS, {"train": "shards/", "val": ["glob:y.tar", "glob:z.tar"]})


def test_shell_pattern_without_prefix_gets_a_hint() -> None:
    with pytest.raises(SplitError, match=r"write val:glob:shards/\*_003\.tar"):
        split_by_patterns(SHARDS, {"val": "shards/*_003.tar"})


@pytest.mark.parametrize("pattern", ["re:(", "*.tar", "glob:{a"])
def test_malformed(pattern: str) -> None:
    with pytest.raises(ConfigError, match="malformed") as caught:
        compile_pattern(pattern)
    assert ("write glob:" in str(caught.value)) == (pattern == "*.tar")


def test_arguments() -> None:
    assert parse_split_parts(["train:glob:a:b", "val:x", "train:y"]) == {"train": ("glob:a:b", "y"), "val": ("x",)}


@pytest.mark.parametrize("argument", ["train", ":x", "train:", "glob:x", "re:y", "train=glob:x"])
def test_arguments_refused(argument: str) -> None:
    with pytest.raises(ConfigError, match="NAME:PATTERN"):
        parse_split_parts([argument])


def test_no_patterns() -> None:
    with pytest.raises(ConfigError, match="at least one"):
        split_by_patterns(SHARDS, {})


@pytest.mark.parametrize("prefix", ["", "glob:"])
def test_patterns_without_end_are_refused(prefix: str) -> None:
    with pytest.raises(ConfigError, match="stands for 1,000,000,000 names"):
        compile_pattern(f"{prefix}sh-{{0..999999999}}.tar")


def test_many_plain_names_cost_no_regular_expressions() -> None:
    shards = [f"sh-{number:06}.tar" for number in range(0, 200_000, 10)]
    assert split_by_patterns(shards, {"train": "glob:sh-{000000..199999}.tar"}) == {"train": tuple(shards)}
