# SPDX-License-Identifier: Apache-2.0
"""List shards, in an order that does not depend on the disk, and assign them to split parts."""

from __future__ import annotations

import itertools
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fractions import Fraction

from energon_grain.errors import ConfigError, DatasetNotFoundError, SplitError, TarError
from energon_grain.formats.brace_patterns import expand_braces
from energon_grain.formats.nv_meta import META_FOLDER, loose_files
from energon_grain.prepare.containers import Container, container_of, containers
from energon_grain.samplers.split_ratio import name_ratio
from energon_grain.storage.epath import glob_to_regex
from energon_grain.storage.location import first_leading_out, is_url, located
from energon_grain.storage.remote import shared_client
from energon_grain.storage.settings import storage_settings
from energon_grain.words import counted

_NUMBER = re.compile(r"(?<![0-9])[0-9]{6,20}(?=\.[a-z_]+$)|(?<=-)[0-9]{5,20}(?=-of-[0-9]+$)")
"""The number of a shard: six digits (in TensorFlow Datasets five), or more if needed."""


def find_shards(
    root: str | os.PathLike[str], *, exclude: str | None = None, container: Container | None = None
) -> tuple[str, ...]:
    """List the tar files, or those of another container, below `root` as paths relative to it, sorted by `in_order`.

    Symbolic links to folders are followed (each real folder once on a branch); `.nv-meta` is not searched. Shards in
    whose relative path the regular expression `exclude` is *found* are left out.

    Raises DatasetNotFoundError, ReadError, ConfigError, and TarError for compressed tars, which cannot be read at
    random offsets.
    """
    container = container or container_of(None)
    suffix, compressed = container.suffix, tuple(container.compressed)
    files = list_files(root, what=suffix)
    found = [name for name in files if container.is_shard(name) or name.endswith(compressed)]
    if not found:
        raise DatasetNotFoundError(
            f"{root}: no *{suffix} files in this folder or its subfolders.{_advice(os.fspath(root), files, container)}"
        )
    return check_shards(sorted(found, key=in_order), exclude)


def _advice(root: str, files: Sequence[str], container: Container) -> str:
    """Advice for a folder without shards, based on the other files in it."""
    if not files:
        return " The folder holds no other files either: check the path."
    for other in containers():
        if other.encodings and (others := sum(map(other.is_shard, files))):
            return f" There are {others} *{other.suffix} files: add{other.flags}."
    loose = "" if container.encodings else loose_files(root, files)
    return f" {loose[0].upper()}{loose[1:]}." if loose else ""


def in_order(name: str) -> list[str]:
    """Sort key for shard names: folder by folder, and a number at the end as a number.

    >>> sorted(["a-1000000.tar", "a-999999.tar"], key=in_order)
    ['a-999999.tar', 'a-1000000.tar']
    """
    return _NUMBER.sub(lambda found: found[0].zfill(20), name).split("/")


def list_files(root: str | os.PathLike[str], *, what: str = ".tar") -> list[str]:
    """List the files below a folder or URL, relative to it, without those in `.nv-meta`; see `find_shards`."""
    location = located(root)
    if is_url(location):
        names = shared_client(storage_settings()).list(location)
        return [name for name in names if META_FOLDER not in name.split("/") and not name.endswith("/")]
    if not os.path.isdir(location):
        raise DatasetNotFoundError(f"{location}: not a folder. Pass the folder that holds the {what} files.")
    return list(_walk(location))


def check_shards(shards: Sequence[str], exclude: str | None) -> tuple[str, ...]:
    """Remove the shards in whose name `exclude` is found, and refuse invalid ones; see `find_shards`."""
    kept = list(shards) if exclude is None else _without(shards, exclude)
    _refuse_compressed(kept)
    outside = first_leading_out(kept)
    if outside is not None:
        raise ConfigError(
            f"{printable(outside)}: a shard's path must be inside the dataset, without `..`; prepare the folder that "
            f"contains all shards, or link to the file."
        )
    for name in kept:
        try:
            name.encode()
        except UnicodeEncodeError:
            raise ConfigError(
                f"{printable(name)}: the file name must be UTF-8, because metadata files list it. Rename the file, or "
                f"exclude it with --exclude."
            ) from None
    return tuple(kept)


def _without(shards: Sequence[str], exclude: str) -> list[str]:
    try:
        pattern = re.compile(exclude)
    except re.error as error:
        raise ConfigError(f"exclude {exclude!r} is not a regular expression: {error}.") from error
    kept = [name for name in shards if not pattern.search(name)]
    if not kept:
        raise ConfigError(f"exclude {exclude!r} removes all {len(shards)} shards, such as {shards[0]}; narrow it.")
    return kept


def _refuse_compressed(shards: Sequence[str]) -> None:
    container = container_of(None)
    compressed = [name for name in shards if name.endswith(tuple(container.compressed))]
    if not compressed:
        return
    example = compressed[0]
    suffix, tool = next(item for item in container.compressed.items() if example.endswith(item[0]))
    others = f" (and {len(compressed) - 1} more)" if len(compressed) > 1 else ""
    raise TarError(
        f"{example}{others}: compressed. Samples are read at random offsets, which is impossible in a compressed "
        f"archive. Decompress it (`{tool} -dc {example} > {example.removesuffix(suffix)}.tar`) and remove the "
        f"compressed file, or exclude such files with --exclude '{re.escape(suffix)}$'."
    )


def printable(name: str) -> str:
    """Escape bytes that are not UTF-8, for printing and JSON."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def _walk(folder: str, below: str = "", above: frozenset[tuple[int, int]] = frozenset()) -> Iterator[str]:
    """Yield the files in `folder`, each prefixed with `below`; a link back to a parent folder is not entered."""
    status = os.stat(folder)
    identity = (status.st_dev, status.st_ino)
    if identity in above:
        return
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir():
                if entry.name != META_FOLDER:
                    yield from _walk(entry.path, f"{below}{entry.name}/", above | {identity})
            elif entry.is_file():
                yield below + entry.name


def parse_split_parts(arguments: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Parse `NAME:PATTERN` arguments; a repeated name collects several patterns. Raises ConfigError."""
    patterns: dict[str, tuple[str, ...]] = {}
    for argument in arguments:
        name, colon, pattern = argument.partition(":")
        if not (colon and name and pattern) or name in ("glob", "re") or "=" in name:
            raise ConfigError(
                f"split part {argument!r}: expected NAME:PATTERN, NAME:glob:PATTERN or NAME:re:REGEX, "
                f"such as 'train:glob:shards/{{000..007}}.tar'."
            )
        patterns[name] = (*patterns.get(name, ()), pattern)
    return patterns


def split_by_patterns(shards: Sequence[str], patterns: Mapping[str, str | Sequence[str]]) -> dict[str, tuple[str, ...]]:
    """Assign to each part the shards that match one of its patterns, in the order of `shards`.

    A shard may be in several parts, or in none.

    | pattern | meaning |
    |---|---|
    | `glob:shards/{000..007}.tar` | braces are expanded, then `*`, `?`, `[…]` (in a folder) and `**` (across folders) |
    | `re:shard_00[89]` | a regular expression, found anywhere in the path; braces are part of the expression |
    | `shards/00{8,9}.*` | as in Energon: braces, then regular expressions that match the beginning of the path |

    Raises SplitError if a pattern matches nothing, because a smaller or empty part would go unnoticed, and ConfigError
    if a pattern is malformed.
    """
    if not patterns:
        raise ConfigError("split patterns: pass at least one, such as {'train': 'glob:shards/*.tar'}.")
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
    """Compile one pattern of the table above into a predicate. Raises ConfigError."""
    try:
        if pattern.startswith("re:"):
            regex = re.compile(pattern.removeprefix("re:"))
            return lambda shard: regex.search(shard) is not None
        if pattern.startswith("glob:"):
            return _glob(pattern.removeprefix("glob:"))
        regexes = [re.compile(one) for one in expand_braces(pattern)]
        return lambda shard: any(one.match(shard) for one in regexes)
    except (re.error, ValueError) as error:
        hint = ""
        if not pattern.startswith(("glob:", "re:")):
            hint = f". Without a prefix, a pattern is a regular expression; write glob:{pattern} for a shell pattern."
        raise ConfigError(f"split pattern {pattern!r} is malformed: {error}{hint}") from error


def _glob(pattern: str) -> Callable[[str], bool]:
    written = expand_braces(pattern)
    names = {one for one in written if not any(sign in one for sign in "*?[")}
    globs = [re.compile(glob_to_regex(one)) for one in written if one not in names]
    return lambda shard: shard in names or any(one.fullmatch(shard) for one in globs)


def _nothing_matched(name: str, pattern: str, shards: Sequence[str]) -> str:
    hint = ""
    if not pattern.startswith(("glob:", "re:")):
        as_glob = compile_pattern(f"glob:{pattern}")
        if any(as_glob(shard) for shard in shards):
            hint = f" As a shell pattern it matches: write {name}:glob:{pattern}."
    return (
        f"split part {name!r}: pattern {pattern!r} matches none of the {len(shards)} shards "
        f"({shards[0]} … {shards[-1]}).{hint} Patterns are matched against paths relative to the dataset."
    )


def shards_per_part(shard_count: int, ratio: Mapping[str, float]) -> dict[str, int]:
    """The number of shards of each part; the counts add up to `shard_count`.

    Uses the largest-remainder method on exact fractions of the decimal text. Ratios 7, 2, 1 split ten shards into
    seven, two and one; a running sum of floats (0.7 + 0.2 + 0.1 < 1) would drop the last one.

    Parts with a ratio of 0 are left out. Each other part gets at least one shard. Beyond that, a count differs from
    the exact share by less than one, except if a larger part gave up a shard for that minimum. Of equal remainders, the
    earlier part comes first. Raises SplitError.
    """
    shares = {name: Fraction(str(value)) for name, value in ratio.items() if value > 0}
    if shard_count < len(shares):
        raise SplitError(
            f"{counted(shard_count, 'shard')} cannot be split into {len(shares)} parts "
            f"({', '.join(shares)}): each needs at least one shard. Pass a split ratio with fewer parts (1,0,0 puts "
            f"all into train), or write the data into more shards."
        )
    total = sum(shares.values())
    exact = {name: share * shard_count / total for name, share in shares.items()}
    counts = {name: math.floor(value) for name, value in exact.items()}
    by_remainder = sorted(exact, key=lambda name: counts[name] - exact[name])
    for name in by_remainder[: shard_count - sum(counts.values())]:
        counts[name] += 1
    for name in [name for name, count in counts.items() if count == 0]:
        giver = max(counts, key=lambda other: (counts[other] > 1, counts[other] - exact[other], counts[other]))
        counts[giver] -= 1
        counts[name] = 1
    return counts


def split_by_ratio(shards: Sequence[str], ratio: Mapping[str, float] | Sequence[float]) -> dict[str, tuple[str, ...]]:
    """Cut the list of shards, in order, into consecutive parts with the sizes of `shards_per_part`."""
    rest = iter(shards)
    counts = shards_per_part(len(shards), name_ratio(ratio))
    return {name: tuple(itertools.islice(rest, count)) for name, count in counts.items()}
