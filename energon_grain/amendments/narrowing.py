# SPDX-License-Identifier: Apache-2.0
"""Leaves that a changed configuration selects more narrowly: the run keeps the leaf of before, without some samples.

Another condition, range or list of excludes makes another leaf: another number of samples, another order. So the run
goes on with the leaf as it was, which is opened again from its key and its entry in the manifest, and what the new one
lacks is excluded.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from energon_grain.amendments.exclusions import Exclusions
from energon_grain.amendments.mixture import Mixture, leaf_nodes, units
from energon_grain.amendments.selecting import Selected, where
from energon_grain.errors import AmendmentError, EnergonGrainError
from energon_grain.samplers.expression import Expression
from energon_grain.samplers.subset import Subset
from energon_grain.sources.kinds import opener_of
from energon_grain.sources.rows import SelectedSource, rows_of
from energon_grain.stream.spec import StreamSpec

Int64Array = npt.NDArray[np.int64]
Row = Mapping[str, Any]
_AT_ONCE = 1 << 18
_MANY = 256
"""Samples from which a condition may be shorter than their list."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ConfiguredLeaf:
    """A leaf of a configuration.

    Attributes:
        node: Its description.
        resolved: The same, opened.
        row: Its entry in the manifest.
    """

    node: Any
    resolved: Any
    row: Row


def narrowed(
    exclusions: Exclusions,
    run: Mapping[str, Row],
    saved: Mapping[str, Row],
    now: Mapping[str, ConfiguredLeaf],
    resolved: dict[str, Any],
) -> list[Selected]:
    """Find what a configuration excludes from the leaves of a run that it did not exclude before.

    Args:
        exclusions: Of the run until now; leaves that are selected more narrowly are added to `kept` and `nodes`.
        run: The leaves of the run that are not removed, and their entries in the manifest, as they are in the run.
        saved: Those of the configuration that the state was saved with.
        now: Those of the configuration.
        resolved: Filled with the leaves of the run that are opened again.

    Raises:
        AmendmentError: A leaf has samples that the run did not have, or cannot be opened as it was.
    """
    found: list[Selected] = []
    for name, row in run.items():
        place = _place_now(name, row, exclusions, run, now)
        if place is None:
            continue
        leaf = now[place]
        before = exclusions.kept.get(name)
        if before is not None and place == before[0] and not _differs(saved.get(place, {}), leaf.row):
            reopen(exclusions, name, leaf, resolved)
            continue
        exclusions.kept[name] = (place, dict(row) if before is None else before[1])
        reopen(exclusions, name, leaf, resolved)
        samples = left_out(name, resolved[name].source, leaf.resolved.source)
        if np.setdiff1d(exclusions.of(name, configured=True), samples).size:
            raise AmendmentError(
                f"{name}: samples that were excluded from this run are selected again, which would change the order of "
                f"the dataset: leave them excluded, or add them as a dataset of their own"
            )
        found.append(Selected(leaf=name, samples=samples, condition=_complement(resolved[name], leaf, samples)))
    return found


def _place_now(
    name: str, row: Row, exclusions: Exclusions, run: Mapping[str, Row], now: Mapping[str, ConfiguredLeaf]
) -> str | None:
    """The key in the configuration of a leaf that is selected in another way; None: it is as it was, or gone."""
    before = exclusions.kept.get(name, (name, row))[0]
    if before in now:
        kept = name in exclusions.kept
        return before if kept or _selects_fewer(row, now[before].row) else None
    if name in now:
        return name
    taken = {*run, *(place for place, _ in exclusions.kept.values())}
    same = [other for other, leaf in now.items() if other not in taken and name.startswith(_data(leaf.node))]
    if len(same) > 1:
        raise AmendmentError(
            f"{name}: several datasets of the configuration select from its data now ({', '.join(same)}), so it is "
            f"unknown which one goes on; leave one of them as it was"
        )
    return same[0] if same else None


def _data(node: Any) -> str:
    """The beginning of the keys of all leaves of the same data; an impossible one if a leaf has a name of its own."""
    identity: tuple[str, ...] = node.identity
    return "\n" if identity[0] == "name" else "/".join((*identity[:-1], ""))


def _differs(one: Row, other: Row) -> bool:
    return any(one.get(field) != other.get(field) for field in {*one, *other} - {"number", "commit"})


def _selects_fewer(row: Row, other: Row) -> bool:
    """Whether a leaf has fewer samples than before. Its order may then be of another form, by its length."""
    return other.get("content") != row.get("content") and other.get("samples", 0) < row.get("samples", 0)


def reopen(exclusions: Exclusions, name: str, leaf: ConfiguredLeaf, resolved: dict[str, Any]) -> None:
    """Open a leaf of `kept` as it was in the run, from its description now. Raises AmendmentError."""
    row = exclusions.kept[name][1]
    for node in _as_before(name, leaf.node, row):
        opened = _opened(node, leaf, row)
        if opened is not None:
            exclusions.nodes[name], resolved[name] = node, opened
            return
    raise AmendmentError(
        f"{name}: the dataset as it was in the run cannot be opened again: it had {row.get('samples')} samples with "
        f"content {row.get('content')!r}, and has {len(leaf.resolved.source)} now. Only a narrower `where` or `subset` "
        f"and entries at the end of `exclude` in its split file become exclusions; otherwise leave it as it was, and "
        f"exclude samples by `loader.amend(exclude=…)` or `energon-grain checkpoint amend --exclude`"
    )


def _as_before(name: str, node: Any, row: Row) -> Iterator[Any]:
    """Descriptions of a leaf as it may have been."""
    text = (row.get("where") or {}).get("expression")
    where = None if text is None else Expression.parse(text, where=name)
    if node.identity[0] == "name":
        yield dataclasses.replace(node, where=where)
        if node.subset is not None:
            yield dataclasses.replace(node, where=where, subset=None)
        return
    part = name.removeprefix(_data(node)).rpartition("/")[0]
    if text is not None:
        part = part.removesuffix(f"where {text}").rstrip()
    yield dataclasses.replace(node, where=where, subset=_subset(part) if part else None)


def _opened(node: Any, leaf: ConfiguredLeaf, row: Row) -> Any:
    """A leaf that has the samples of an entry in a manifest, opened; None: it has others."""
    try:
        found = leaf.resolved if node == leaf.node else node.resolve()
    except EnergonGrainError:
        return None
    if _fits(found.source, row):
        return found
    opener = opener_of(node.kind_there) if hasattr(node, "kind_there") else None
    earlier = getattr(opener, "with_fewer_excludes", None)
    source = None if earlier is None else earlier(node, row.get("samples", 0))
    return dataclasses.replace(found, source=source) if source is not None and _fits(source, row) else None


def _fits(source: Any, row: Row) -> bool:
    return len(source) == row.get("samples") and source.content_id == row.get("content")


def _subset(text: str) -> Subset:
    """Undo `str` of a subset."""
    share, of, absolute = text.rpartition(" of ")
    bounds = [each.strip() for each in absolute.strip("[]").split(",")]
    if of:
        return dataclasses.replace(_subset(absolute), share=_subset(share).share)
    if all(bound.isdigit() or bound == "end" for bound in bounds):
        return Subset.parse([int(bound) if bound.isdigit() else bound for bound in bounds])
    first, last = (Fraction(bound[:-1]) / 100 if bound.endswith("%") else Fraction(bound) for bound in bounds)
    return Subset(share=(first, last))


def left_out(name: str, old: Any, new: Any) -> Int64Array:
    """The samples of a source that another one of the same data lacks, ascending.

    Raises AmendmentError if the other one has samples that this one lacks.
    """
    rows = rows_of(old)
    if rows is None or not isinstance(old, SelectedSource) or not isinstance(new, SelectedSource):
        raise AmendmentError(f"{name}: its selection changed, and samples of this kind of data cannot be compared")
    kept = np.zeros(sum(rows.shard_counts.values()), np.bool_)
    for begin in range(0, len(new), _AT_ONCE):
        kept[new.numbers(np.arange(begin, min(begin + _AT_ONCE, len(new))))] = True
    missing: list[Int64Array] = []
    for begin in range(0, len(old), _AT_ONCE):
        numbers = old.numbers(np.arange(begin, min(begin + _AT_ONCE, len(old))))
        missing.append(np.flatnonzero(~kept[numbers]) + begin)
    found = np.concatenate(missing)
    if len(old) - len(found) != len(new):
        more = len(new) - (len(old) - len(found))
        raise AmendmentError(
            f"{name}: its `where`, `subset` or `exclude` selects {more:,} samples that it did not select before, which "
            f"would change the order of the dataset: select fewer samples only, or add the others as a dataset of "
            f"their own"
        )
    return found


def _complement(old: Any, leaf: ConfiguredLeaf, samples: Int64Array) -> str:
    """The condition that excludes samples: "!" and that of the configuration, if only that differs; or ""."""
    condition = getattr(leaf.node, "where", None)
    if condition is None or len(samples) < _MANY:
        return ""
    text = f"!{condition.text}"
    return text if np.array_equal(where(old.source, text), samples) else ""


def narrow(
    exclusions: Exclusions,
    mixture: Mixture,
    new: Mixture,
    saved: Mapping[str, Any],
    now: dict[str, Any],
    plain: StreamSpec,
    resolved: dict[str, Any],
) -> list[Selected]:
    """Find the samples that a configuration excludes. In `now` and `new`, the leaves of the run take their place.

    Args:
        exclusions: Of the run until now; see `narrowed`.
        mixture: Of the run.
        new: Of the configuration.
        saved: The manifest of the configuration that the state was saved with.
        now: That of the configuration.
        plain: The configuration, compiled.
        resolved: See `narrowed`.

    Raises:
        AmendmentError: See `narrowed`.
    """
    run = _rows(mixture, saved["leaves"])
    run |= {name: row for name, (_, row) in exclusions.kept.items()}
    excluded = narrowed(exclusions, run, saved["leaves"], _configured_leaves(new, plain, now["leaves"]), resolved)
    _rename(new, exclusions)
    for name, (place, row) in exclusions.kept.items():
        if name in exclusions.nodes:  # what differs in it is an exclusion
            rows = {name: row, place: {}} | {
                each: saved["leaves"][each] for each in (name, place) if each in saved["leaves"]
            }
            now["leaves"] = now["leaves"] | rows
    return excluded


def reopen_all(exclusions: Exclusions, new: Mixture, plain: StreamSpec, resolved: dict[str, Any]) -> None:
    """Open the leaves again that a configuration selects more narrowly than the run."""
    leaves = _configured_leaves(new, plain, plain.manifest()["leaves"])
    for name, (place, _) in exclusions.kept.items():
        if place in leaves:
            reopen(exclusions, name, leaves[place], resolved)
    _rename(new, exclusions)


def _rows(mixture: Mixture, saved: Mapping[str, Any]) -> dict[str, Row]:
    """The leaves of a run that are not removed, and their entries in the manifest.

    Leaves with other keys in the configuration are absent: these cannot be selected more narrowly.
    """
    found: dict[str, Row] = {}
    for unit in units(mixture):
        if not unit.removed and unit.opened in ((), unit.leaves):
            rows = unit.rows or [saved.get(name, {}) for name in unit.leaves]
            found |= zip(unit.leaves, rows, strict=True)
    return found


def _configured_leaves(new: Mixture, plain: StreamSpec, rows: Mapping[str, Any]) -> dict[str, ConfiguredLeaf]:
    """The leaves of a configuration, by key."""
    nodes: dict[str, Any] = {}
    for unit in units(new):
        nodes |= zip(unit.leaves, leaf_nodes(unit.node), strict=True)
    resolved = {"/".join(leaf.key): leaf.leaf for leaf in plain.leaves}
    return {name: ConfiguredLeaf(node=nodes[name], resolved=resolved[name], row=rows[name]) for name in resolved}


def _rename(new: Mixture, exclusions: Exclusions) -> None:
    """Give leaves that are selected more narrowly the keys that they have in the run."""
    names = {place: name for name, (place, _) in exclusions.kept.items() if name in exclusions.nodes}
    for unit in units(new):
        unit.leaves = unit.opened = tuple(names.get(name, name) for name in unit.leaves)


def check_kept(exclusions: Exclusions, spec: StreamSpec) -> None:
    """Check the order of leaves that a configuration selects more narrowly. Raises AmendmentError if it changed."""
    rows = json.loads(json.dumps(spec.manifest()))["leaves"]
    kept = [(name, row) for name, (_, row) in exclusions.kept.items() if name in exclusions.nodes]
    lines = [line for name, row in kept for line in leaf_changes(name, row, rows[name])]
    if lines:
        refuse(lines)


def leaf_changes(name: str, row: Row, other: Row) -> list[str]:
    """Differences between two entries of a leaf in manifests."""
    fields = [field for field in dict.fromkeys((*row, *other)) if field not in ("number", "commit")]
    return [
        f"{name}: {field} was {row.get(field)!r}, is {other.get(field)!r}"
        for field in fields
        if row.get(field) != other.get(field)
    ]


def refuse(lines: Sequence[str]) -> NoReturn:
    """Raise AmendmentError for what changes the order of datasets."""
    said = "\n".join(f"  {line}" for line in lines)
    raise AmendmentError(
        f"the change cannot be amended, as it changes the order of datasets that stay:\n{said}\nLeave these as they "
        f"were. Samples that were added to a dataset can be added as a dataset of their own"
    )
