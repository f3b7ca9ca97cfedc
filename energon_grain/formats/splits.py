# SPDX-License-Identifier: Apache-2.0
"""Split files (`split.yaml`): the shards of `train`, `val` …, their order, and excludes."""

from __future__ import annotations

import itertools
import json
import os
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import msgspec

from energon_grain.atomic_files import atomic_write_text
from energon_grain.errors import ConfigError, EmptyDatasetError, SplitError
from energon_grain.formats.brace_patterns import MAX_NAMES, TooManyNamesError, expand_braces
from energon_grain.formats.nv_meta import META_FOLDER, DatasetInfo
from energon_grain.formats.yaml_dialect import dump_yaml, parse_yaml
from energon_grain.forms import Form, Place, did_you_mean
from energon_grain.storage.location import first_leading_out

DEFAULT_SPLIT_CONFIG = "split.yaml"
_FALLBACK_SPLIT_CONFIG = "split.json"


@dataclass(frozen=True, kw_only=True, slots=True)
class SplitConfig:
    """A split file with all braces expanded.

    Attributes:
        split_parts: Shards of each part, in the order that defines the order of its samples. A shard may be in
            several parts or in none.
        exclude: Whole shards (`parts/a.tar`) and samples (`parts/a.tar/<key>`) that are excluded from all parts.
        where: The file, as the prefix of messages.
    """

    split_parts: dict[str, tuple[str, ...]]
    exclude: tuple[str, ...] = ()
    where: str = field(default="the split file", compare=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class SelectedShards:
    """The shards and excludes of one split part.

    Attributes:
        shards: Its shards in order, without excluded ones.
        excluded_samples: (shard, key) of excluded samples in these shards.
        unmatched_excludes: Excludes that name no shard of the dataset; harmless, but often a typing error.
    """

    shards: tuple[str, ...]
    excluded_samples: tuple[tuple[str, str], ...] = ()
    unmatched_excludes: tuple[str, ...] = ()


def read_split_config(
    root: str | os.PathLike[str], name: str | None = None, *, shards: Collection[str] = ()
) -> SplitConfig:
    """Read the split file `name` of the dataset at `root`.

    JSON or YAML by its ending. `split.yaml`, the default, falls back to `split.json`. Braces expand as in bash
    (`shard_{000..007}.tar`), by the rules of `brace_patterns`. A file may name at most ten times the number of
    `shards`, plus a million.

    Raises SplitError: The file is missing or invalid, has keys other than `split_parts` and `exclude`, names far too
    many shards, or a shard outside the dataset.
    """
    path, data = _read_file(Path(root), name or DEFAULT_SPLIT_CONFIG)
    try:
        is_json = path.suffix == ".json"
        found = _JSON.from_json(data) if is_json else parse_yaml(data, where=str(path), written_floats=False)
        content = _SPLIT.read(found, Place(str(path)))
    except (ConfigError, msgspec.MsgspecError) as error:
        raise SplitError(str(error) if isinstance(error, ConfigError) else f"{path}: {error}") from error
    names = _Names(path, shards)
    parts = {part: names.of(f"split_parts.{part}", each) for part, each in content.split_parts.items()}
    outside = first_leading_out(itertools.chain.from_iterable(parts.values()))
    if outside is not None:
        raise SplitError(
            f"{path}: names the shard {outside!r}; shards must be named by their paths inside the dataset, without `..`"
        )
    return SplitConfig(split_parts=parts, exclude=names.of("exclude", content.exclude), where=str(path))


def _read_file(root: Path, name: str) -> tuple[Path, bytes]:
    """Read a split file: its path and content. Raises SplitError."""
    wanted = path = root / META_FOLDER / name
    if not path.exists() and path.name == DEFAULT_SPLIT_CONFIG:
        path = path.with_name(_FALLBACK_SPLIT_CONFIG)
    try:
        return path, path.read_bytes()
    except FileNotFoundError:
        existing = sorted(file.name for file in (root / META_FOLDER).glob("split*"))
        found = f"; found {', '.join(existing)}" if existing else ""
        raise SplitError(f"{wanted}: no such split file{found}. `energon-grain prepare {root}` writes one") from None


def write_split_config(path: str | os.PathLike[str], config: SplitConfig) -> None:
    """Write `config` atomically, with consecutive shard numbers collapsed into `{a..b}`. JSON or YAML by the ending."""
    atomic_write_text(path, encode_split_config(config, json_format=os.fspath(path).endswith(".json")))


def encode_split_config(config: SplitConfig, *, json_format: bool = False) -> str:
    """Return the text that `write_split_config` writes."""
    content = {
        "split_parts": {part: collapse(shards) for part, shards in config.split_parts.items()},
        "exclude": list(map(_escape, config.exclude)),
    }
    return json.dumps(content, indent=2) if json_format else dump_yaml(content)


def collapse(names: Iterable[str]) -> list[str]:
    """Return patterns that expand to `names` in the same order, with runs of consecutive numbers as `{a..b}`.

    >>> collapse(["s-08.tar", "s-09.tar", "s-10.tar", "x.tar"])
    ['s-{08..10}.tar', 'x.tar']

    The last number in a name that forms a run is used. Zero-padded numbers keep their number of digits, since braces
    pad both ends in the same way. Names with braces or backslashes are escaped and never form a run.
    """
    names = list(names)
    patterns: list[str] = []
    start = 0
    while start < len(names):
        pattern, stop = _longest_run(names, start)
        patterns.append(pattern)
        start = stop
    return patterns


def select_shards(config: SplitConfig, split_part: str, info: DatasetInfo) -> SelectedShards:
    """The shards and excludes of the part `split_part` of a dataset. Raises SplitError and EmptyDatasetError."""
    if split_part not in config.split_parts:
        raise SplitError(
            f"{config.where}: no split part {split_part!r}; the parts are {', '.join(map(repr, config.split_parts))}"
            f"{did_you_mean(split_part, config.split_parts)}"
        )
    excluded = set(config.exclude)
    shards = tuple(shard for shard in config.split_parts[split_part] if shard not in excluded)
    unknown = [shard for shard in shards if shard not in info.shard_counts]
    if unknown:
        raise SplitError(
            f"{config.where}: split part {split_part!r} lists {len(unknown)} "
            f"{'shard that was' if len(unknown) == 1 else 'shards that were'} not prepared, such as {unknown[0]!r}"
            f"{did_you_mean(unknown[0], info.shard_counts)}; correct the split file or prepare the dataset again"
        )
    if not shards:
        raise EmptyDatasetError(
            f"{config.where}: split part {split_part!r} has no shards"
            + (" left after the excludes" if config.split_parts[split_part] else "; add some to the split file")
        )
    samples, unmatched = _excluded_samples(config.exclude, set(shards), info)
    return SelectedShards(shards=shards, excluded_samples=samples, unmatched_excludes=unmatched)


def _excluded_samples(
    excludes: Iterable[str], selected: set[str], info: DatasetInfo
) -> tuple[tuple[tuple[str, str], ...], tuple[str, ...]]:
    """The samples of selected shards that excludes name, and the excludes that match nothing."""
    samples: list[tuple[str, str]] = []
    unmatched: list[str] = []
    for exclude in excludes:
        if exclude in info.shard_counts:
            continue
        sample = excluded_sample(exclude, info)
        if sample is None:
            unmatched.append(exclude)
        elif sample[0] in selected:
            samples.append(sample)
    return tuple(dict.fromkeys(samples)), tuple(unmatched)


class _Split(msgspec.Struct, forbid_unknown_fields=True):
    split_parts: Annotated[dict[str, list[str] | None], msgspec.Meta(description="Lists of shards, by split part")]
    exclude: Annotated[
        list[str] | None, msgspec.Meta(description="Shards, and <shard>/<key> of samples, to exclude from all parts")
    ] = None


_SPLIT, _JSON = Form(_Split), Form(object)


class _Names:
    """Expands the patterns of a file, within a limit based on the number of existing shards."""

    def __init__(self, path: Path, shards: Collection[str]) -> None:
        self._path, self._shards = path, len(shards)
        self._left = self._most = MAX_NAMES + 10 * len(shards)

    def of(self, place: str, patterns: Iterable[str] | None) -> tuple[str, ...]:
        found: list[str] = []
        for text in patterns or ():
            try:
                found += (names := expand_braces(text, self._left))
            except TooManyNamesError as error:
                advice = "exclude only existing samples" if place == "exclude" else "list only existing shards"
                raise SplitError(
                    f"{self._path}: $.{place}: {error.description}, but the dataset has {self._shards:,} shards; all "
                    f"patterns of the file together may expand to {self._most:,}: {advice}"
                ) from error
            except ValueError as error:
                raise SplitError(f"{self._path}: $.{place}: {error}") from error
            self._left -= len(names) + sum(map(len, names)) // 256
        return tuple(found)


def excluded_sample(exclude: str, info: DatasetInfo) -> tuple[str, str] | None:
    """Return the shard and key that a sample exclude `<shard>/<key>` names; None if there is no such shard."""
    place = exclude.find("/")
    while place >= 0:
        if exclude[:place] in info.shard_counts:
            return exclude[:place], exclude[place + 1 :]
        place = exclude.find("/", place + 1)
    return None


def _longest_run(names: Sequence[str], start: int) -> tuple[str, int]:
    """Return the pattern of the longest run that begins at `names[start]`, and the end of the run."""
    first = names[start]
    best = (_escape(first), start + 1)
    if any(character in first for character in "{}\\"):
        return best
    for number in reversed(list(re.finditer(r"[0-9]+", first))):
        head, digits, tail = first[: number.start()], number[0], first[number.end() :]
        stop = start + 1
        while stop < len(names):
            following = _advance(digits, stop - start)
            if following is None or names[stop] != f"{head}{following}{tail}":
                break
            stop += 1
        if stop > best[1]:
            best = (f"{head}{{{digits}..{_advance(digits, stop - start - 1)}}}{tail}", stop)
    return best


def _advance(digits: str, step: int) -> str | None:
    """Add `step` to a number in text; None if that needs more digits than its zero padding allows."""
    padded = len(digits) > 1 and digits.startswith("0")
    number = str(int(digits) + step).zfill(len(digits))
    return None if padded and len(number) > len(digits) else number


def _escape(name: str) -> str:
    return re.sub(r"([{}\\])", r"\\\1", name)
