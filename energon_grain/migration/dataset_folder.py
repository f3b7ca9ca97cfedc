"""What a prepared dataset holds that matters for a move. Nothing is written, built or imported."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from energon_grain.errors import ConfigError, DatasetNotFoundError, FormatError, IndexFileError, ReadError
from energon_grain.formats.columnar_header import ColumnarHeader, columnar_folder, read_header
from energon_grain.formats.commit_journal import JOURNAL
from energon_grain.formats.data_folder import DataFolder, naming, open_folder
from energon_grain.formats.dataset_config import DEFAULT_DATASET_CONFIG, DatasetConfig
from energon_grain.formats.index_cache import index_cache_folder
from energon_grain.formats.nv_meta import (
    INDEX_SQLITE,
    INFO_JSON,
    INFO_YAML,
    META_FOLDER,
    DatasetInfo,
    read_info,
)
from energon_grain.formats.sqlite_reader import SqliteIndex
from energon_grain.migration.finding import Finding, in_store, refusal
from energon_grain.migration.options import CheckOptions
from energon_grain.migration.sample_definition import PartNames, definition_findings, read_definition
from energon_grain.migration.shards import look_at_shards
from energon_grain.migration.split_file import split_findings
from energon_grain.storage.location import join
from energon_grain.storage.read_whole import read_beginning

_UNIQUE_SINCE = 3
_GENERATIONS = {1: "Energon 5.3 to 6", 2: "Energon 7.0 to 7.2", 3: "Energon 7.3 or newer"}


def dataset_findings(
    path: str | os.PathLike[str],
    options: CheckOptions,
    *,
    dataset_config: str | None = None,
    split_config: str | None = None,
    as_store: bool = False,
) -> Iterator[Finding]:
    """Look at one prepared dataset.

    Args:
        path: Its folder, a path or URL.
        options: How far to look.
        dataset_config: Name of its `dataset.yaml`, where a metadataset names another.
        split_config: Name of its split file, likewise.
        as_store: Cookers read files from it by key: its split file and its `dataset.yaml` do not matter.
    """
    try:
        folder = open_folder(path)
    except (ConfigError, ReadError) as error:
        yield refusal(path, error)
        return
    for finding in _findings(folder, options, dataset_config, split_config, as_store=as_store):
        yield in_store(finding, folder)


def _findings(
    folder: DataFolder,
    options: CheckOptions,
    dataset_config: str | None,
    split_config: str | None,
    *,
    as_store: bool,
) -> Iterator[Finding]:
    root = folder.local
    try:
        with naming(folder):
            info = read_info(root)
    except DatasetNotFoundError as error:
        yield refusal(folder.location if folder.is_remote else root, error, energon="refused too")
        return
    except IndexFileError as error:
        yield refusal(root / META_FOLDER / INFO_JSON, error)
        return
    name = dataset_config or DEFAULT_DATASET_CONFIG
    config = DatasetConfig(kind="crude")
    if not as_store:
        config, findings = read_definition(root, name)
        yield from findings
    yield from _info(root, info)
    generation, findings = _remote_sqlite(folder) if folder.is_remote else _sqlite(root)
    yield from findings
    header = _columnar_header(root, info)
    yield from _columnar(folder, info, header)
    if not as_store:
        yield from split_findings(root, info, split_config or (config.split_config if config is not None else None))
    look = look_at_shards(folder, info, options, unique_keys=generation == _UNIQUE_SINCE)
    yield from look.findings
    if config is not None:
        known = header is not None or look.looked_at == len(info.shard_counts)
        names = look.part_names | frozenset(() if header is None else header.part_names)
        parts = PartNames(names=names, all_seen=known and not any(each.severity == "error" for each in look.findings))
        yield from definition_findings(root, name, config, parts, options)
    if look.looked_at < len(info.shard_counts):
        yield Finding(
            severity="note",
            where=str(root),
            what=f"Headers of {look.looked_at:,} of {len(info.shard_counts):,} shards were read.",
            here="the others may hold more of what matters",
            advice="--all reads the headers of all",
        )


def _info(root: Path, info: DatasetInfo) -> Iterator[Finding]:
    if (root / JOURNAL).exists():
        yield Finding(
            severity="note",
            where=str(root / JOURNAL),
            what="Our `prepare` was interrupted at its very end.",
            here="whoever opens the dataset next completes it",
        )
    if not (root / META_FOLDER / INFO_JSON).exists():
        yield Finding(
            severity="note",
            where=str(root / META_FOLDER / INFO_YAML),
            what="Prepared before Energon 7: there is no .info.json.",
            here="read as it is",
        )


def _sqlite(root: Path) -> tuple[int, list[Finding]]:
    """The generation of `index.sqlite`, 0 where there is none, and what there is to say."""
    path = root / META_FOLDER / INDEX_SQLITE
    if not path.exists():
        return 0, [_no_sqlite(path)]
    try:
        with SqliteIndex(path) as index:
            generation, has_media = index.generation, "media_metadata" in index.tables
    except IndexFileError as error:
        return 0, [
            Finding(
                severity="better",
                where=str(path),
                what=str(error),
                energon="cannot join the dataset, or read files from it by key",
                here="does not need the file",
            )
        ]
    findings: list[Finding] = []
    if generation < _UNIQUE_SINCE:
        findings.append(
            Finding(
                severity="note",
                where=str(path),
                what=f"Written by {_GENERATIONS[generation]}.",
                energon="reads it, slowly if it has no table of parts" if generation == 1 else "",
                here="does not need the file",
            )
        )
    if has_media:
        findings.append(
            Finding(
                severity="differs",
                where=str(path),
                what="It has the metadata of images, video or audio (`energon prepare-media`).",
                energon="gives it by FileStore.get_media_metadata",
                here="file stores have no such method yet; everything else works",
                advice="take sizes from the decoded sample, or keep them in a JSON part",
            )
        )
    return generation, findings


def _no_sqlite(path: str | Path) -> Finding:
    return Finding(
        severity="better",
        where=str(path),
        what="There is none.",
        energon="cannot join the dataset, or read files from it by key",
        here="does both without it",
    )


def _remote_sqlite(folder: DataFolder) -> tuple[int, list[Finding]]:
    """The same of a dataset in an object store, whose database is not fetched."""
    path = join(folder.location, f"{META_FOLDER}/{INDEX_SQLITE}")
    if not read_beginning(path, 1):
        return 0, [_no_sqlite(path)]
    what = "Was not looked at, as it would have to be fetched whole."
    return 0, [Finding(severity="note", where=path, what=what, here="does not need the file")]


def _columnar_header(root: Path, info: DatasetInfo) -> ColumnarHeader | None:
    """The header of our index, in the dataset or in the cache folder; None where it is missing or does not fit."""
    for folder in (columnar_folder(root), index_cache_folder(root)):
        try:
            header = read_header(folder, root)
        except FormatError:
            continue
        if header is not None and header.fits(info):
            return header
    return None


def _columnar(folder: DataFolder, info: DatasetInfo, header: ColumnarHeader | None) -> Iterator[Finding]:
    if header is not None:
        return
    root = folder.local
    samples = sum(info.shard_counts.values())
    meta = root / META_FOLDER
    kept, advice = f"kept in {meta}", f"`energon-grain info {root}` before the first training makes it"
    if folder.is_remote:
        kept = "kept in the cache folder of each machine"
        advice = f"`energon-grain prepare {root} --tar-index-only` makes it for all machines"
    elif not os.access(meta, os.W_OK):
        kept = "kept in the cache folder of each machine: it is read-only"
    yield Finding(
        severity="note",
        where=str(columnar_folder(root)),
        what=f"Our index of the {samples:,} samples is not there yet.",
        here=f"made when the dataset is first opened, by reading the headers of all tars, and {kept}",
        advice=f"{advice}, and changes nothing else",
    )
