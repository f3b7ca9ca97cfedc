# SPDX-License-Identifier: Apache-2.0
"""The samples that a user names to exclude them: keys, shards, conditions over columns, or a file of these.

    ["000123", "000124"]                                 keys, each in exactly one dataset of the run
    {"books": ["000123", "shard_007.tar"]}               keys, `<shard>/<key>`, or whole shards of a dataset
    {"books": "quality < 0.2"}                           the samples for which the condition holds
    "bad.txt"                                            a file

A file has one key per line, or a dataset, a tab and a key. A `.csv` file has the header `key` or `dataset,key`. A
`.json` file holds one of the forms above.
"""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from energon_grain.errors import AmendmentError, ConfigError, KeyNotFoundError
from energon_grain.samplers.expression import Expression
from energon_grain.sources.rows import Rows, SelectedSource, rows_of
from energon_grain.sources.source import Source

Int64Array = npt.NDArray[np.int64]
_AT_ONCE = 1 << 18
_SHOWN = 5
Named = dict[str | None, str | list[str]]
"""Keys, or a condition, by the name of the dataset; None: of any dataset."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Selected:
    """Samples of a leaf to exclude.

    Attributes:
        leaf: Its key in the run.
        samples: Ascending.
        condition: The condition that selects them; "": they were named.
    """

    leaf: str
    samples: Int64Array
    condition: str = ""


def named(exclude: Any) -> Named:
    """The argument `exclude` of a program, with files read. Raises AmendmentError."""
    if isinstance(exclude, str | os.PathLike):
        return _of_file(Path(os.fspath(cast("Any", exclude))))
    if isinstance(exclude, Mapping):
        return {str(name): _entry(name, value) for name, value in cast("Mapping[Any, Any]", exclude).items()}
    return {None: _keys(exclude, "exclude")}


def _entry(name: Any, value: Any) -> str | list[str]:
    return value if isinstance(value, str) else _keys(value, f"exclude of {name!r}")


def _keys(value: Any, what: str) -> list[str]:
    if isinstance(value, Sequence | set | frozenset) and not isinstance(value, bytes):
        keys = list(cast("Sequence[Any]", value))
        if keys and all(isinstance(key, str) for key in keys):
            return list(dict.fromkeys(keys))
    raise AmendmentError(
        f"amend: {what}: expected a list of keys, {{dataset: keys}}, {{dataset: condition}} or a file of keys, got "
        f"{value!r}"
    )


def _of_file(path: Path) -> Named:
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise AmendmentError(
            f"amend: exclude={str(path)!r} is read as a file of keys: {error}. Pass a single key as a list, and a "
            f"condition as {{dataset: condition}}"
        ) from error
    if path.suffix == ".json":
        try:
            found = json.loads(text)
        except ValueError as error:
            raise AmendmentError(f"{path}: not JSON: {error}") from error
        if isinstance(found, str):
            raise AmendmentError(f"{path}: expected a list of keys, or an object with keys by dataset")
        return named(found)
    rows = _of_csv(path, text) if path.suffix == ".csv" else map(_of_line, text.splitlines())
    keys: Named = {}
    for dataset, key in rows:
        if key:
            cast("list[str]", keys.setdefault(dataset, [])).append(key)
    if not keys:
        raise AmendmentError(f"{path}: names no samples")
    return {dataset: list(dict.fromkeys(entries)) for dataset, entries in keys.items()}


def _of_line(line: str) -> tuple[str | None, str]:
    dataset, tab, key = line.rpartition("\t")
    return (dataset.strip() if tab else None), key.strip()


def _of_csv(path: Path, text: str) -> list[tuple[str | None, str]]:
    rows = list(csv.DictReader(text.splitlines()))
    if rows and not ("key" in rows[0] and set(rows[0]) <= {"dataset", "key"}):
        raise AmendmentError(f"{path}: expected the header `key` or `dataset,key`, got {','.join(map(str, rows[0]))}")
    return [(row.get("dataset") or None, row["key"] or "") for row in rows]


def select(wanted: Named, leaves: Mapping[str, Source], leaf_of: Callable[[str], str]) -> list[Selected]:
    """Find the samples.

    Args:
        wanted: The result of `named`.
        leaves: The sources of the leaves of the run that have data, by key.
        leaf_of: Returns the key of the leaf with a name.

    Raises:
        AmendmentError: A key does not exist, or several datasets have it.
        ConfigError: A condition is malformed.
        KeyNotFoundError: A column does not exist.
    """
    found: list[Selected] = []
    for name, what in wanted.items():
        if name is None:
            found += _anywhere(cast("list[str]", what), leaves)
            continue
        leaf = leaf_of(name)
        source = leaves[leaf]
        if isinstance(what, str):
            try:
                samples = where(source, what)
            except (ConfigError, KeyNotFoundError) as error:
                error.add_note(
                    f"In exclude, the text of a dataset is a condition over its columns. Keys are a list, "
                    f"{{{name!r}: [{what!r}]}}; a file takes the place of the whole argument"
                )
                raise
            if not samples.size:
                raise AmendmentError(f"amend: exclude of {name!r}: {what!r} holds for none of {len(source):,} samples")
            found.append(Selected(leaf=leaf, samples=samples, condition=Expression.parse(what, where="exclude").text))
            continue
        places = _find(source, what)
        _refuse_unknown([key for key in what if key not in places], f"dataset {name!r} has no")
        found.append(Selected(leaf=leaf, samples=np.unique(np.concatenate([*places.values()]))))
    return found


def _anywhere(keys: list[str], leaves: Mapping[str, Source]) -> list[Selected]:
    """Keys, each of which must be in exactly one leaf."""
    places = {leaf: _find(source, keys) for leaf, source in leaves.items()}
    owners = {key: [leaf for leaf in leaves if key in places[leaf]] for key in keys}
    _refuse_unknown([key for key in keys if not owners[key]], "no dataset of this run has a")
    for key, own in owners.items():
        if len(own) > 1:
            raise AmendmentError(
                f"amend: exclude: several datasets have the key {key!r} ({', '.join(own[:_SHOWN])}): name the "
                f"dataset, exclude={{dataset: keys}}"
            )
    return [
        Selected(leaf=leaf, samples=np.unique(np.concatenate([*own.values()]))) for leaf, own in places.items() if own
    ]


def _refuse_unknown(keys: list[str], who: str) -> None:
    if keys:
        shown = ", ".join(map(repr, keys[:_SHOWN])) + (
            f" and {len(keys) - _SHOWN:,} more" if len(keys) > _SHOWN else ""
        )
        raise AmendmentError(f"amend: exclude: {who} sample or shard {shown}")


def where(source: Source, condition: str) -> Int64Array:
    """The samples of a source for which a condition over its columns holds, or after "!" does not, ascending.

    Raises ConfigError, KeyNotFoundError and ReadError.
    """
    expression, wanted = Expression.parse(condition.removeprefix("!"), where="exclude"), not condition.startswith("!")
    found: list[Int64Array] = []
    for begin in range(0, len(source), _AT_ONCE):
        piece = slice(begin, min(begin + _AT_ONCE, len(source)))

        def column(name: str, piece: slice = piece) -> npt.NDArray[Any]:
            return source.column(name, piece)

        found.append(np.flatnonzero(expression.holds(column) == wanted) + begin)
    return np.concatenate(found)


def _find(source: Source, names: Sequence[str]) -> dict[str, Int64Array]:
    """The samples with a key, or of a shard, or both as `<shard>/<key>`, by name, as far as there are any.

    Shards of a join are those of its first member.
    """
    rows: Any = rows_of(source)
    if rows is None:
        return _scanned(source, names)
    assert isinstance(source, SelectedSource)
    primary: Any = next(iter(getattr(rows, "members", ())), source)
    files = rows_of(primary)
    numbers, keys = ({}, names) if files is None else _of_shards(files, names)
    if primary is not source:
        total = sum(rows.shard_counts.values())
        numbers = _matched(indices_of(primary, numbers), total, lambda at: rows.samples(at)[:, 0])
    for key in keys:
        numbers[key] = np.array(rows.find(key), np.int64)
    return indices_of(source, numbers)


def _of_shards(rows: Rows, names: Sequence[str]) -> tuple[dict[str, Int64Array], list[str]]:
    """The rows of shards, and of keys in shards, by name; and the names that are neither."""
    counts = rows.shard_counts
    ends = np.cumsum(list(counts.values()))
    firsts = dict(zip(counts, (ends - list(counts.values())).tolist(), strict=True))
    numbers: dict[str, Int64Array] = {}
    keys: list[str] = []
    for name in names:
        if name in counts:
            numbers[name] = np.arange(firsts[name], firsts[name] + counts[name])
        elif (shard := _shard_in(name, counts)) is not None:
            own = np.arange(firsts[shard], firsts[shard] + counts[shard])
            key = name[len(shard) + 1 :]
            numbers[name] = own[[each == key for each in rows.keys(own)]]
        else:
            keys.append(name)
    return numbers, keys


def _shard_in(name: str, counts: Mapping[str, int]) -> str | None:
    """The shard in `<shard>/<key>`; None: there is none."""
    place = name.find("/")
    while place >= 0:
        if name[:place] in counts:
            return name[:place]
        place = name.find("/", place + 1)
    return None


def indices_of(source: SelectedSource, numbers: Mapping[str, Int64Array]) -> dict[str, Int64Array]:
    """The samples of a source among some rows of the data, by name, ascending; names without samples are absent."""
    return _matched(numbers, len(source), source.numbers)


def _matched(
    numbers: Mapping[str, Int64Array], total: int, number_of: Callable[[Int64Array], Int64Array]
) -> dict[str, Int64Array]:
    """Which of `total` samples have some numbers, by name, ascending; names without samples are absent."""
    if not numbers:
        return {}
    owner = np.repeat(np.arange(len(numbers)), [len(each) for each in numbers.values()])
    wanted = np.concatenate([*numbers.values()])
    order = np.argsort(wanted, kind="stable")
    wanted, owner = wanted[order], owner[order]
    parts: list[tuple[Int64Array, Int64Array]] = []
    for begin in range(0, total if wanted.size else 0, _AT_ONCE):
        rows = number_of(np.arange(begin, min(begin + _AT_ONCE, total)))
        first, last = np.searchsorted(wanted, rows), np.searchsorted(wanted, rows, side="right")
        hit = np.flatnonzero(last > first)
        for shift in range(int((last - first).max(initial=0))):
            own = hit[last[hit] - first[hit] > shift]
            parts.append((owner[first[own] + shift], own + begin))
    found: dict[str, Int64Array] = {}
    if parts:
        owners, samples = (np.concatenate(each) for each in zip(*parts, strict=True))
        order = np.lexsort((samples, owners))
        owners, samples = owners[order], samples[order]
        names = list(numbers)
        cuts = [0, *(np.flatnonzero(np.diff(owners)) + 1).tolist(), len(owners)]
        found = {names[int(owners[begin])]: samples[begin:end] for begin, end in pairwise(cuts)}
    return found


def _scanned(source: Source, keys: Sequence[str]) -> dict[str, Int64Array]:
    """The samples with some keys, by reading all keys."""
    wanted = set(keys)
    found: dict[str, list[int]] = {}
    for begin in range(0, len(source), _AT_ONCE):
        own = source.keys(np.arange(begin, min(begin + _AT_ONCE, len(source))))
        for place, key in enumerate(own):
            if key in wanted:
                found.setdefault(key, []).append(begin + place)
    return {key: np.array(samples, np.int64) for key, samples in found.items()}
