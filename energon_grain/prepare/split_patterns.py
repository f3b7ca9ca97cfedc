r"""Pick the shards of split parts by pattern: globs, regular expressions, or the mixture that Energon uses.

| written | meaning |
|---|---|
| `train:glob:shards/{000..007}.tar` | braces are expanded, then `*`, `?`, `[…]` (inside a folder) and `**` (across folders) match the whole path |
| `val:re:shard_00[89]` | a regular expression, found anywhere in the path; no brace expansion, so `\d{3}` works |
| `test:shards/00{8,9}.*` | as in Energon: braces are expanded, then each is a regular expression that matches the beginning of the path |
"""  # noqa: E501

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence

from energon_grain.errors import ConfigError, SplitError
from energon_grain.formats.brace_patterns import expand_braces
from energon_grain.storage.glob_pattern import glob_to_regex


def parse_split_parts(arguments: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Read `NAME:PATTERN` arguments; a name that comes twice has several patterns.

    Raises:
        ConfigError: An argument has no name or no pattern.
    """
    patterns: dict[str, tuple[str, ...]] = {}
    for argument in arguments:
        name, colon, pattern = argument.partition(":")
        if not (colon and name and pattern) or name in ("glob", "re") or "=" in name:
            raise ConfigError(
                f"split part {argument!r}: write NAME:PATTERN, NAME:glob:PATTERN or NAME:re:REGEX, "
                f"such as 'train:glob:shards/{{000..007}}.tar'."
            )
        patterns[name] = (*patterns.get(name, ()), pattern)
    return patterns


def split_by_patterns(shards: Sequence[str], patterns: Mapping[str, str | Sequence[str]]) -> dict[str, tuple[str, ...]]:
    """Give each part the shards that one of its patterns matches, in the order of `shards`.

    A shard may be in several parts, or in none.

    Raises:
        SplitError: A pattern matches nothing: a part that is silently smaller, or empty, would not be noticed.
        ConfigError: A pattern is malformed.
    """
    if not patterns:
        raise ConfigError("split patterns: give at least one, such as {'train': 'glob:shards/*.tar'}.")
    parts: dict[str, tuple[str, ...]] = {}
    for name, written in patterns.items():
        chosen: set[str] = set()
        for pattern in (written,) if isinstance(written, str) else written:
            matches = compile_pattern(pattern)
            matched = [shard for shard in shards if matches(shard)]
            if not matched:
                raise SplitError(_nothing_matched(name, pattern, shards))
            chosen.update(matched)
        parts[name] = tuple(shard for shard in shards if shard in chosen)
    return parts


def compile_pattern(pattern: str) -> Callable[[str], bool]:
    """Make the test for one pattern of the table above.

    Raises:
        ConfigError: The pattern is malformed.
    """
    try:
        if pattern.startswith("re:"):
            regex = re.compile(pattern.removeprefix("re:"))
            return lambda shard: regex.search(shard) is not None
        if pattern.startswith("glob:"):
            written = expand_braces(pattern.removeprefix("glob:"))
            names = {one for one in written if not any(sign in one for sign in "*?[")}
            globs = [re.compile(glob_to_regex(one)) for one in written if one not in names]
            return lambda shard: shard in names or any(one.fullmatch(shard) for one in globs)
        regexes = [re.compile(one) for one in expand_braces(pattern)]
        return lambda shard: any(one.match(shard) for one in regexes)
    except (re.error, ValueError) as error:
        hint = ""
        if not pattern.startswith(("glob:", "re:")):
            hint = f". Without a prefix, a pattern is a regular expression; write glob:{pattern} for a shell pattern."
        raise ConfigError(f"split pattern {pattern!r} is malformed: {error}{hint}") from error


def _nothing_matched(name: str, pattern: str, shards: Sequence[str]) -> str:
    hint = ""
    if not pattern.startswith(("glob:", "re:")):
        as_glob = compile_pattern(f"glob:{pattern}")
        if any(as_glob(shard) for shard in shards):
            hint = f" As a shell pattern it would match: write {name}:glob:{pattern}."
    return (
        f"split part {name!r}: pattern {pattern!r} matches none of the {len(shards)} shards "
        f"({shards[0]} … {shards[-1]}).{hint} Patterns are compared with paths relative to the dataset."
    )
