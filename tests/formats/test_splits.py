"""Splits: their files, and which shards they take, by braces, patterns and ratios."""

from __future__ import annotations

import os
from fractions import Fraction
from pathlib import Path

import braceexpand
import pytest
from hypothesis import example, given, strategies as st

from energon_grain.errors import ConfigError, DatasetNotFoundError, EmptyDatasetError, SplitError, TarError
from energon_grain.formats.brace_patterns import TooManyNamesError, expand_braces
from energon_grain.formats.nv_meta import DatasetInfo
from energon_grain.formats.splits import SplitConfig, collapse, read_split_config, select_shards, write_split_config
from energon_grain.prepare.listing import (
    compile_pattern,
    find_shards,
    parse_split_parts,
    shards_per_part,
    split_by_patterns,
    split_by_ratio,
)
from energon_grain.samplers.split_ratio import name_ratio, parse_ratio

NAMES = st.one_of(
    st.builds("shards/shard_{}.tar".format, st.integers(0, 120)),
    st.builds("s-{:03}-of-9.tar".format, st.integers(0, 1200)),
    st.text(alphabet="a{},.\\0159-é$ ", min_size=1, max_size=8),
)


@pytest.fixture
def meta(tmp_path: Path) -> Path:
    folder = tmp_path / ".nv-meta"
    folder.mkdir()
    return folder


def expand(patterns: list[str]) -> list[str]:
    return [name for pattern in patterns for name in braceexpand.braceexpand(pattern)]


@given(st.lists(NAMES, max_size=30))
@example([f"s_{i}.tar" for i in range(120)])
@example([f"s_{i:02}.tar" for i in range(120)])
@example(["0.tar", "1.tar"])
def test_collapsed_names_expand_to_the_same_in_order(names: list[str]) -> None:
    assert expand(collapse(names)) == names


@pytest.mark.parametrize(
    ("names", "patterns"),
    [
        ([f"s_{i:03}.tar" for i in range(8)], ["s_{000..007}.tar"]),
        ([f"s_{i}.tar" for i in range(8, 12)], ["s_{8..11}.tar"]),
        (["a1.tar", "a3.tar", "a4.tar", "b4.tar"], ["a1.tar", "a{3..4}.tar", "b4.tar"]),
        (["a2.tar", "a1.tar"], ["a2.tar", "a1.tar"]),
        (["p0/s9.tar", "p1/s9.tar"], ["p{0..1}/s9.tar"]),
        (["a{1}.tar"], ["a\\{1\\}.tar"]),
        ([], []),
    ],
)
def test_collapse(names: list[str], patterns: list[str]) -> None:
    assert collapse(names) == patterns


@pytest.mark.parametrize("name", ["split.yaml", "other.json"])
def test_round_trip(tmp_path: Path, meta: Path, name: str) -> None:
    config = SplitConfig(
        split_parts={"val": ("b.tar",), "train": ("s_00.tar", "s_01.tar", "a.tar"), "empty": ()},
        exclude=("b.tar", "a.tar/k0"),
    )
    write_split_config(meta / name, config)
    found = read_split_config(tmp_path, name)
    assert found == config
    assert found.where == str(meta / name)
    assert list(found.split_parts) == ["val", "train", "empty"]


def test_written_yaml_is_energons(meta: Path) -> None:
    write_split_config(meta / "split.yaml", SplitConfig(split_parts={"train": ("s0.tar", "s1.tar"), "val": ()}))
    assert (meta / "split.yaml").read_text() == "split_parts:\n  train:\n  - s{0..1}.tar\n  val: []\nexclude: []\n"


def test_full_yaml_and_braces(tmp_path: Path, meta: Path) -> None:
    (meta / "split.yaml").write_text(
        'split_parts:\n  train: &all ["s/{00..02}.tar", s/x.tar]\n  val: *all\n  test:\n'
        "exclude:\n  - s/01.tar/00003{2..3}  # samples\n"
    )
    config = read_split_config(tmp_path)
    assert config.split_parts["val"] == ("s/00.tar", "s/01.tar", "s/02.tar", "s/x.tar")
    assert config.split_parts["test"] == ()
    assert config.exclude == ("s/01.tar/000032", "s/01.tar/000033")


def test_json_is_the_fallback_of_the_default_only(tmp_path: Path, meta: Path) -> None:
    (meta / "split.json").write_text('{"split_parts": {"train": ["a.tar"]}}')
    assert read_split_config(tmp_path).split_parts == {"train": ("a.tar",)}
    assert read_split_config(tmp_path, "split.yaml").split_parts == {"train": ("a.tar",)}
    with pytest.raises(SplitError, match=r"other\.yaml: no such split file; found split\.json"):
        read_split_config(tmp_path, "other.yaml")


INFO = DatasetInfo(shard_counts={"a.tar": 1, "p/b.tar": 2, "p/c.tar": 3, "d.tar": 4})


def test_selection_keeps_the_order_of_the_split_file() -> None:
    config = SplitConfig(split_parts={"train": ("p/c.tar", "a.tar", "p/b.tar")})
    assert select_shards(config, "train", INFO).shards == ("p/c.tar", "a.tar", "p/b.tar")


def test_excludes() -> None:
    config = SplitConfig(
        split_parts={"train": ("p/c.tar", "a.tar", "p/b.tar")},
        exclude=("a.tar", "p/b.tar/dir/key", "p/b.tar/dir/key", "d.tar/k", "x.tar/k", "gone.tar"),
    )
    selected = select_shards(config, "train", INFO)
    assert selected.shards == ("p/c.tar", "p/b.tar")
    assert selected.excluded_samples == (("p/b.tar", "dir/key"),)
    assert selected.unmatched_excludes == ("x.tar/k", "gone.tar")


def test_an_excluded_shard_need_not_exist() -> None:
    config = SplitConfig(split_parts={"train": ("gone.tar", "a.tar")}, exclude=("gone.tar",))
    assert select_shards(config, "train", INFO).shards == ("a.tar",)


def test_wrong_selections_are_refused() -> None:
    config = SplitConfig(split_parts={"train": ("p/e.tar",), "val": ("a.tar",), "none": ()}, exclude=("a.tar",))
    with pytest.raises(SplitError, match=r"'trian'; .* 'train', 'val', 'none'. Did you mean 'train'"):
        select_shards(config, "trian", INFO)
    with pytest.raises(SplitError, match=r"the split file: .* 1 shard that was .* 'p/e.tar'"):
        select_shards(config, "train", INFO)
    with pytest.raises(EmptyDatasetError, match="after the excludes"):
        select_shards(config, "val", INFO)
    with pytest.raises(EmptyDatasetError, match="add some"):
        select_shards(config, "none", INFO)


PIECES = ["{", "}", ",", "..", "0", "1", "09", "12", "-3", "a", "c", "Z", "\\", "x", "/", "\n", "é"]
PATTERNS = st.lists(st.sampled_from(PIECES), max_size=14).map("".join)


def theirs(pattern: str) -> list[str] | str:
    try:
        return list(braceexpand.braceexpand(pattern))
    except ValueError as error:
        return str(error)


def ours(pattern: str) -> list[str] | str:
    try:
        names = expand_braces(pattern)
    except ValueError as error:
        return str(error)
    assert expand_braces(pattern, len(names)) == names  # which were counted before
    if len(names) > 1:
        with pytest.raises(TooManyNamesError, match=f"expands to {len(names):,} names"):
            expand_braces(pattern, len(names) - 1)
    return names


@given(PATTERNS)
@example("s_{000..120}.tar")
@example("{9..-11..4}")
@example("{c..A..2},{a..c}")
@example("{01,{2..3},}{x}")
@example("{\\\\\\\\{a,b}}")
def test_names_and_errors_are_those_of_braceexpand(pattern: str) -> None:
    assert ours(pattern) == theirs(pattern)


@pytest.mark.parametrize(
    "pattern", ["sh-{0..999999999}.tar", "{a,b}" * 40, "{0..9}" * 20_000, f"{'x' * 100_000}{{0..9999}}", "{,}" * 60]
)
def test_what_stands_for_too_many_names_is_refused_before_they_are_made(pattern: str) -> None:
    with pytest.raises(ValueError, match=r"expands to .* names; the limit is 1,000,000"):
        expand_braces(pattern)


def test_deep_braces_are_refused() -> None:
    assert expand_braces("{" * 50 + "a,b" + "}" * 50) == ["{" * 49 + name + "}" * 49 for name in "ab"]
    with pytest.raises(ValueError, match="nested more than 100 deep"):
        expand_braces("{" * 5000 + "}" * 5000)


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
    with pytest.raises(ConfigError, match="expands to 1,000,000,000 names"):
        compile_pattern(f"{prefix}sh-{{0..999999999}}.tar")


def test_many_plain_names_cost_no_regular_expressions() -> None:
    shards = [f"sh-{number:06}.tar" for number in range(0, 200_000, 10)]
    assert split_by_patterns(shards, {"train": "glob:sh-{000000..199999}.tar"}) == {"train": tuple(shards)}


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


def touch(root: Path, *names: str) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()


def test_finds_tars_in_all_folders_in_order(tmp_path: Path) -> None:
    touch(tmp_path, "b.tar", "a-b/x.tar", "a/y.tar", "a/x.tar", "a/x.tar.idx", "readme.txt", ".nv-meta/z.tar", "tar")
    # By folder, as paths compare: "a" before "a-b", although "-" comes before "/".
    assert find_shards(tmp_path) == ("a/x.tar", "a/y.tar", "a-b/x.tar", "b.tar")


def test_exclude(tmp_path: Path) -> None:
    touch(tmp_path, "a/1.tar", "a/2.tar", "b/1.tar")
    assert find_shards(tmp_path, exclude="a/") == ("b/1.tar",)
    assert find_shards(tmp_path, exclude=r"2\.tar$") == ("a/1.tar", "b/1.tar")
    with pytest.raises(ConfigError, match="removes all 3"):
        find_shards(tmp_path, exclude="tar")
    with pytest.raises(ConfigError, match="regular expression"):
        find_shards(tmp_path, exclude="(")


def test_linked_folders(tmp_path: Path) -> None:
    touch(tmp_path, "elsewhere/1.tar", "data/2.tar")
    os.symlink(tmp_path / "elsewhere", tmp_path / "data/linked")
    os.symlink(tmp_path / "data", tmp_path / "data/loop")
    os.symlink(tmp_path / "nowhere.tar", tmp_path / "data/dangling.tar")
    assert find_shards(tmp_path / "data") == ("2.tar", "linked/1.tar")


@pytest.mark.parametrize(
    ("suffix", "tool"),
    [(".tgz", "gzip"), (".tar.gz", "gzip"), (".tar.bz2", "bzip2"), (".txz", "xz"), (".tar.zst", "zstd")],
)
def test_compressed(tmp_path: Path, suffix: str, tool: str) -> None:
    touch(tmp_path, "a.tar", f"b{suffix}", f"c{suffix}")
    with pytest.raises(
        TarError, match=rf"b{suffix} \(and 1 more\): compressed.*{tool} -dc b{suffix} > b.tar"
    ) as caught:
        find_shards(tmp_path)
    exclude = str(caught.value).rpartition("--exclude '")[2].removesuffix("'.")
    assert find_shards(tmp_path, exclude=exclude) == ("a.tar",)


def test_names_that_are_not_utf8(tmp_path: Path) -> None:
    touch(tmp_path, "a.tar", "caf\udce9.tar")
    with pytest.raises(ConfigError, match=r"^caf\\xe9\.tar: the file name must be UTF-8.*--exclude"):
        find_shards(tmp_path)
    assert find_shards(tmp_path, exclude="^caf") == ("a.tar",)


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(DatasetNotFoundError, match=r"no \*\.tar"):
        find_shards(tmp_path)
    with pytest.raises(DatasetNotFoundError, match="not a folder"):
        find_shards(tmp_path / "missing")
