# SPDX-License-Identifier: Apache-2.0
"""Checks the contract of `Kind`: detection, opening, subsets, filters, reports, lint and training."""

from __future__ import annotations

import copy
import pickle
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from energon_grain.datasets.leaf import LeafDataset, SampleDefinition, open_leaf
from energon_grain.errors import ConfigError, DatasetNotFoundError, EmptyDatasetError
from energon_grain.get_datasets import get_train_dataset
from energon_grain.prepare.lint import lint_dataset
from energon_grain.prepare.lint_samples import lint_samples
from energon_grain.prepare.summary import summarize_dataset, summarize_samples
from energon_grain.samplers.expression import Expression
from energon_grain.samplers.split_ratio import SplitRatio
from energon_grain.samplers.subset import Subset
from energon_grain.sources.kinds import NOTHING, Kind, LintAsk, kind_at, kind_named
from energon_grain.sources.source import PartFilter, Source
from energon_grain.storage.location import is_url, located
from energon_grain.stream.worker_config import WorkerConfig
from energon_grain.task_encoder import DefaultTaskEncoder
from energon_grain.testing.node_check import check_node
from energon_grain.testing.source_check import Row, check_source, must_raise, rows_of
from energon_grain.testing.store_check import check_store

_LOOKED_AT = 32


def check_kind(
    kind: Kind,
    path: str | Path,
    expected: Sequence[Mapping[str, Any]] | None = None,
    *,
    split_part: str = "train",
    fork: bool = True,
) -> None:
    """Check that data of a kind can be detected, opened, divided, filtered, reported, read by key and trained on.

    Runs `check_source` on all samples, on subsets and on the samples of a condition, `check_store` on the kind's store,
    and `check_node` on the dataset that `get_train_dataset` makes from the path.

    Args:
        kind: The kind, which must be registered (a custom kind, or one of an installed package).
        path: Data of this kind, at least three samples.
        expected: The parts of every sample of the split part, by name. None: parts are compared only between reads.
        split_part: The split part to read, if the data have split parts.
        fork: Whether to also read in a forked process.

    Raises:
        AssertionError: The kind breaks the contract; the message says where.
    """
    data = _Data(kind, located(path), split_part)
    _check_registry(data)
    check_source(data.open, expected, fork=fork)
    with closing(data.open()) as source:
        assert len(source) >= 3, f"{path}: has {len(source)} samples, expected at least 3"
        rows = rows_of(source, np.arange(len(source)))
        _check_parts(data, rows)
        _check_subsets(data, source, rows)
        _check_ratio(data, source, rows)
        for name in source.columns:
            _check_where(data, source, name, rows)
        _check_store(data, source)
        _check_reports(data, source)
    check_node(
        lambda config: get_train_dataset(
            data.path,
            split_part=split_part,
            worker_config=config,
            batch_size=None,
            shuffle_buffer_size=None,
            max_samples_per_sequence=None,
        ),
        steps=min(len(rows), 8) + 1,
        every=3,
        ahead=3,
    )


@dataclass(frozen=True)
class _Data:
    """Data at a path, opened like a leaf of a configuration."""

    kind: Kind
    path: str
    split_part: str

    def open(
        self,
        path: str | None = None,
        *,
        parts: PartFilter = None,
        subset: Subset | None = None,
        where: Expression | None = None,
        part_of: tuple[str, SplitRatio] | None = None,
    ) -> Source:
        part, ratio = part_of or (self.split_part, None)
        leaf = LeafDataset(
            path=path or self.path,
            split_part=part,
            split_ratio=ratio,
            subset=subset,
            where=where,
            definition=SampleDefinition(part_filter=parts),
            task_encoder=DefaultTaskEncoder(),
            worker_config=WorkerConfig(0, 1),
        )
        return open_leaf(leaf, False).source


def _check_registry(data: _Data) -> None:
    kind = data.kind
    assert kind_named(kind.name) is kind, f"{kind}: the registry has another kind of this name"
    found = kind_at(data.path)
    assert found is kind, f"{data.path}: is detected as {found.described}, expected {kind.described}"
    for how, other in (("pickled", pickle.loads(pickle.dumps(kind))), ("deep", copy.deepcopy(kind))):
        assert other is kind, f"{kind}: a {how} copy is another object"
    assert kind.described, f"{kind}: `described` is empty, so messages cannot name it"
    with tempfile.TemporaryDirectory() as folder:
        found = kind_at(folder)
        assert found is NOTHING, f"an empty folder is detected as {found.described}"
        if is_url(data.path):
            return
        lost = str(Path(folder, Path(data.path).name))
        must_raise(DatasetNotFoundError, lambda: data.open(lost), f"opening {lost}, which does not exist,")


def _check_parts(data: _Data, rows: list[Row]) -> None:
    for index, _, _, parts in rows:
        assert all(isinstance(name, str) for name in parts), f"{data.path}: part names of sample {index} are not text"
    names = list(dict.fromkeys(name for *_, parts in rows for name in parts))
    chosen = names[-1]
    for what, parts, kept in (
        ("part filter [name]", [chosen], {chosen}),
        ("part filter function", lambda name: name != chosen, set(names) - {chosen}),
        ("part filter []", [], set[str]()),
    ):
        try:
            source = data.open(parts=parts)
        except ConfigError:
            assert not kept, f"{data.path}: a {what} is rejected"
            continue
        wanted = [(*row[:3], {name: value for name, value in row[3].items() if name in kept}) for row in rows]
        with closing(source):
            _must_be(f"{data.path}: a {what}", source, wanted)


def _check_subsets(data: _Data, source: Source, rows: list[Row]) -> None:
    count, ids = len(rows), {source.content_id}
    for start, stop in ((0, count - 1), (1, count), (count // 2, count // 2 + 1)):
        opened = partial(data.open, subset=Subset(absolute=(start, stop)))
        check_source(opened, fork=False)
        with closing(opened()) as some:
            _must_be(f"{data.path}: samples {start} to {stop}", some, rows[start:stop])
            assert some.content_id not in ids, f"{data.path}: a subset has the content id of another"
            ids.add(some.content_id)
    more = Subset(absolute=(0, count + 1))
    must_raise(ConfigError, lambda: data.open(subset=more), f"{data.path}: a subset of {count + 1} samples of {count}")


def _check_ratio(data: _Data, source: Source, rows: list[Row]) -> None:
    """A ratio puts each sample into one part. For kinds with a split file, that file decides."""
    if data.kind.is_configured:
        return
    ratio, found = SplitRatio("a:2,b:1"), list[Row]()
    for part in ("a", "b"):
        try:
            some = data.open(part_of=(part, ratio))
        except EmptyDatasetError:
            continue
        with closing(some):
            assert some.content_id != source.content_id, f"{data.path}: a split part has the content id of the whole"
            found += rows_of(some, np.arange(len(some)))
    assert sorted(map(_named, found)) == sorted(map(_named, rows)), f"{data.path}: split parts hold other samples"


def _check_where(data: _Data, source: Source, name: str, rows: list[Row]) -> None:
    column = source.column(name, slice(None))
    known = column[~np.isnan(column)] if column.dtype.kind == "f" else column
    if not len(known):
        return
    middle = np.sort(known)[len(known) // 2].item()
    text = f'column("{name}") >= {middle!r}'
    where = Expression.parse(text, where="check_kind")

    opened = partial(data.open, where=where)
    check_source(opened, fork=False)
    with closing(opened()) as some:
        kept = np.flatnonzero(column >= middle).tolist()
        _must_be(f"{data.path}: where {text}", some, [rows[place] for place in kept])
        same = len(kept) == len(rows)
        assert same or some.content_id != source.content_id, f"{data.path}: where {text} keeps the content id"
        found = some.column(name, slice(None))
        assert np.array_equal(found, column[kept]), f"{data.path}: where {text}: the column has other numbers"
    none = Expression.parse(f'isnan(column("{name}")) and not isnan(column("{name}"))', where="check_kind")
    must_raise(EmptyDatasetError, lambda: data.open(where=none), f"{data.path}: a condition that keeps no sample")


def _check_store(data: _Data, source: Source) -> None:
    """Read parts by key: the sample's key, a dot, and the part name. Only `check_source` compares arrays."""
    open_store = data.kind.store
    if open_store is None:
        return
    some = source.read(np.linspace(0, len(source) - 1, min(len(source), _LOOKED_AT)).astype(np.int64))
    expected = {
        f"{raw.key}.{name}": value
        for raw in some
        for name, value in raw.parts.items()
        if not isinstance(value, np.ndarray) and value == value  # excludes NaN
    }
    missing = ("", "no/such/key", f"{some.keys[0]}.no such part")
    check_store(lambda: open_store(data.path), expected, missing)


def _check_reports(data: _Data, source: Source) -> None:
    """Check that `info` and `lint` count all samples and find no errors."""
    kind, path = data.kind, data.path
    ask = LintAsk(trusted_modules=(), allow_pickle=False, progress=lambda *_: None)
    if kind.open is None:
        summary, total, report = summarize_dataset(path), None, lint_dataset(path)
    else:
        opened = kind.open(path, None)
        total = len(opened.source)
        found = sum(opened.rows.shard_counts.values())
        assert found == total, f"{path}: its files hold {found} samples of {total}"
        summary: Any = summarize_samples(opened) if kind.summary is None else kind.summary(path)
        report = lint_samples(kind, path, ask) if kind.lint is None else kind.lint(path, ask)
        assert summary.lines(), f"{path}: `summary` has no lines"
        opened.source.close()
    errors = [str(finding) for finding in report.findings if finding.severity == "error"]
    assert not errors, f"{path}: lint finds {errors[0]}"
    counted = getattr(summary, "samples", total)
    assert report.samples == counted, f"{path}: `summary` counts {counted} samples, lint {report.samples}"
    assert total in (None, counted), f"{path}: `summary` counts {counted} samples of {total}"
    assert len(source) <= report.samples, f"{path}: lint counts {report.samples} samples of {len(source)}"


def _must_be(what: str, source: Source, rows: list[Row]) -> None:
    """Check that a source has these samples, in this order, numbered from 0."""
    found = rows_of(source, np.arange(len(source)))
    assert [row[0] for row in found] == list(range(len(source))), f"{what}: samples have other indices"
    assert [row[1:] for row in found] == [row[1:] for row in rows], f"{what}: reads other samples"


def _named(row: Row) -> tuple[str, str, str]:
    return row[2], row[1], repr(row[3])
