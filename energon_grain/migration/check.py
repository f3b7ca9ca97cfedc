"""The check of a dataset or metadataset that is to be moved over from Energon. It reads, and writes nothing."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from typing import get_args

from energon_grain.errors import ConfigError, DatasetNotFoundError, ReadError
from energon_grain.formats.data_folder import kind_at
from energon_grain.formats.file_ending import METADATASET_ENDINGS, is_file_of
from energon_grain.formats.nv_meta import DatasetKind
from energon_grain.metadataset.documents import Metadataset, MetadatasetV2, read_document
from energon_grain.metadataset.flat import leaves_of
from energon_grain.metadataset.resolve import Inherited, Resolver
from energon_grain.metadataset.tree import Join, LeafReference
from energon_grain.migration.dataset_folder import dataset_findings
from energon_grain.migration.finding import Finding, Severity, refusal
from energon_grain.migration.joins import CheckedJoin, join_findings, shared_index_findings
from energon_grain.migration.leaves import jsonl_findings, leaf_findings, repeated_findings
from energon_grain.migration.metadataset_file import file_findings
from energon_grain.migration.options import SHARDS_LOOKED_AT, CheckOptions
from energon_grain.storage.location import located

_ORDER = {severity: place for place, severity in enumerate(get_args(Severity))}

_OURS = {DatasetKind.ARRAY: "arrays", DatasetKind.ARRAY_RECORD: "ArrayRecord files"}
"""Kinds of data that only energon-grain reads."""


def migration_findings(
    path: str | os.PathLike[str],
    *,
    max_shards: int | None = SHARDS_LOOKED_AT,
    allow_pickle: bool = False,
    trusted_modules: Collection[str] = (),
) -> list[Finding]:
    """Say what of a dataset or metadataset will be refused here, or behave differently than in Energon.

    Of a metadataset all splits, all files that it refers to and all their datasets are looked at. Headers of tars are
    read, of a bounded number of shards; samples are not.

    Args:
        path: Folder of a prepared dataset, or a metadataset file; a path or URL.
        max_shards: Shards of each dataset whose headers are read, evenly spread; None: all.
        allow_pickle: The program will decode pickles.
        trusted_modules: What it will pass as `trusted_modules`; these are imported.

    Returns:
        Errors first, then what differs, what is better, and notes.
    """
    options = CheckOptions(max_shards=max_shards, allow_pickle=allow_pickle, trusted_modules=tuple(trusted_modules))
    findings = dict.fromkeys(_findings(located(path), options))
    return sorted(findings, key=lambda finding: _ORDER[finding.severity])


def _findings(path: str, options: CheckOptions) -> Iterator[Finding]:
    if is_file_of(path, METADATASET_ENDINGS):
        yield from _Metadataset(options).findings(path)
        return
    try:
        kind = kind_at(path)
    except (ConfigError, ReadError) as error:
        yield refusal(path, error)
        return
    if kind is DatasetKind.JSONL:
        yield from jsonl_findings(path, path)
    elif kind in _OURS:
        yield _ours(path, kind)
    else:
        yield from dataset_findings(path, options)


def _ours(path: str, kind: DatasetKind) -> Finding:
    """What can be said of data that Energon does not know."""
    return Finding(
        severity="note", where=path, what=f"It holds {_OURS[kind]}.", energon="cannot read them", here="reads them"
    )


class _Metadataset:
    """The check of one metadataset: each dataset is looked at once, however often it is named."""

    def __init__(self, options: CheckOptions) -> None:
        self._options = options
        self._done: set[tuple[str, str | None, str | None, bool]] = set()

    def findings(self, path: str) -> Iterator[Finding]:
        yield from file_findings(path, set())
        try:
            document = read_document(path)
        except (ConfigError, DatasetNotFoundError, ReadError):
            return  # said of the file
        joins: list[CheckedJoin] = []
        for split in document.splits:
            yield from self._split(document, split, joins)
        yield from shared_index_findings(joins)

    def _split(self, document: MetadatasetV2 | Metadataset, split: str, joins: list[CheckedJoin]) -> Iterator[Finding]:
        try:
            tree = Resolver(require_data=False).document(document, Inherited(split_part=split))
        except (ConfigError, DatasetNotFoundError, ReadError) as error:
            yield refusal(f"{document.path}: $.splits.{split}", error)
            return
        leaves = leaves_of(tree)
        for leaf in leaves:
            if isinstance(leaf, Join):
                checked, findings = join_findings(leaf, self._options)
                yield from findings
                joins += [] if checked is None else [checked]
                for joined in leaf.datasets:
                    yield from self._dataset(joined)
            else:
                yield from leaf_findings(leaf)
                yield from self._dataset(leaf)
        yield from repeated_findings([leaf for leaf in leaves if isinstance(leaf, LeafReference)])

    def _dataset(self, leaf: LeafReference) -> Iterator[Finding]:
        if leaf.kind in _OURS:
            yield _ours(leaf.path, leaf.kind)
        elif leaf.kind is not DatasetKind.JSONL:
            yield from self._folder(leaf.path, leaf.dataset_config, leaf.split_config, as_store=False)
        for aux in leaf.aux.values():
            if aux.kind == "webdataset" and not self._has_records(aux.path):
                yield from self._folder(aux.path, None, None, as_store=True)

    @staticmethod
    def _has_records(path: str) -> bool:
        try:
            return kind_at(path) is DatasetKind.ARRAY_RECORD
        except (ConfigError, ReadError):
            return False  # said of the dataset

    def _folder(
        self, path: str, dataset_config: str | None, split_config: str | None, *, as_store: bool
    ) -> Iterator[Finding]:
        use = (path, dataset_config, split_config, as_store)
        if use in self._done:
            return
        self._done.add(use)
        yield from dataset_findings(
            path, self._options, dataset_config=dataset_config, split_config=split_config, as_store=as_store
        )
