# SPDX-License-Identifier: Apache-2.0
"""Plan a `prepare` before any sample is read; one small function per mode makes the plan.

`energon_grain.prepare.preparation` runs plans, and `energon-grain prepare --dry-run` prints them.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from energon_grain.errors import ConfigError, DatasetNotFoundError, RefusedError
from energon_grain.formats.columnar_header import COLUMNAR_FOLDER
from energon_grain.formats.commit_journal import PREPARE_FOLDER
from energon_grain.formats.data_folder import BARE_FOLDER, DataFolder, copy_database, naming
from energon_grain.formats.nv_meta import (
    INDEX_SQLITE,
    INDEX_UUID,
    INFO_JSON,
    INFO_YAML,
    META_FOLDER,
    RECORDS_JSON,
    DatasetInfo,
    is_prepared,
    read_info,
)
from energon_grain.formats.records import RecordEncoding, read_records_file
from energon_grain.formats.splits import DEFAULT_SPLIT_CONFIG, SplitConfig, read_split_config
from energon_grain.formats.sqlite_index import filter_of
from energon_grain.media.headers import MediaFilterConfig
from energon_grain.prepare.containers import Container, container_of
from energon_grain.prepare.dataset_definition import DatasetDefinition, define_dataset
from energon_grain.prepare.listing import (
    check_shards,
    find_shards,
    list_files,
    split_by_patterns,
    split_by_ratio,
)
from energon_grain.prepare.writing import OF_A_WRITER, REQUEST, WRITING_FOLDER, WRITTEN_FOLDER, check_written
from energon_grain.storage.digests import DIGESTS_JSON
from energon_grain.storage.location import is_url, join
from energon_grain.words import counted

DEFAULT_SPLIT_RATIO = (0.8, 0.1, 0.1)
SQLITE_FILES = (f"{META_FOLDER}/{INDEX_SQLITE}", f"{META_FOLDER}/{INDEX_UUID}")
COLUMNAR = f"{META_FOLDER}/{COLUMNAR_FOLDER}"
DIGESTS = f"{COLUMNAR}/{DIGESTS_JSON}"
Mode = Literal["new", "again", "indices", "append"]


@dataclass(frozen=True, kw_only=True)
class PrepareRequest:
    """A caller's request; the fields are arguments of `prepare_dataset`.

    `asks` is whether `choose_definition` was passed. Arguments that do not change the result, such as the number of
    workers, are not included: `text` identifies an unfinished run with the same request.
    """

    shards: Sequence[str] | None = None
    records: RecordEncoding | None = None
    exclude: str | None = None
    split_ratio: Mapping[str, float] | Sequence[float] | None = None
    split_patterns: Mapping[str, str | Sequence[str]] | None = None
    split_config: str = DEFAULT_SPLIT_CONFIG
    shuffle_tars: bool = False
    shuffle_seed: int = 42
    sample_type: str | None = None
    field_map: Mapping[str, str] | None = None
    crude: bool = False
    subflavors: Mapping[str, Any] | None = None
    asks: bool = False
    dataset_yaml_name: str = "dataset.yaml"
    force_overwrite: bool = False
    tar_index_only: bool = False
    append: bool = False
    fix_duplicates: bool = False
    sqlite: bool = True
    media_filter: MediaFilterConfig | None = None
    digest: bool | None = None

    @property
    def mode(self) -> Mode:
        """The mode of the plan."""
        if self.append:
            return "append"
        return "indices" if self.tar_index_only else "again" if self.force_overwrite else "new"

    def text(self, root: Path) -> str:
        """The request as text, to mark an unfinished run."""
        return repr((self, OF_A_WRITER if (root / WRITING_FOLDER).is_dir() else ""))


@dataclass(frozen=True, kw_only=True)
class PreparePlan:
    """The files to scan, write and remove.

    Attributes:
        dataset: The folder or URL.
        request: The caller's request.
        mark: `request.text`, stored in the dataset until the run has finished.
        records: Encoding of the records; None if the shards are tars.
        shards: All shards, in the order of `.info.json`.
        new: Shards that are not in the dataset yet, or all of them.
        before: The dataset's previous `.info.json`, whose sample counts must stay the same; None if it is prepared from
            scratch.
        splits: New content of the split file; None keeps the file.
        split_file: Its name.
        kept_split: With `append`, the previous split file, and the name of its backup.
        definition: New content of the dataset's YAML file; None keeps it, or asks the caller after the scan.
        media: Selects the parts of tars whose media headers are read; None for no parts.
        media_of_new: Read media headers only in new shards, and keep the metadata of the others.
        sqlite: Whether `index.sqlite` and `index.uuid` are written.
        same_uuid: Whether `index.uuid` is kept if the samples are the same.
    """

    dataset: DataFolder
    request: PrepareRequest
    mark: str
    records: RecordEncoding | None
    shards: tuple[str, ...]
    new: tuple[str, ...]
    before: DatasetInfo | None = None
    splits: SplitConfig | None = None
    split_file: str | None = None
    kept_split: tuple[Path, str] | None = None
    definition: DatasetDefinition | None = None
    media: MediaFilterConfig | None = None
    media_of_new: bool = False
    sqlite: bool = True
    same_uuid: bool = False

    @property
    def container(self) -> Container:
        """The file format of the shards."""
        return container_of(self.records)

    @property
    def digest(self) -> bool | None:
        """Whether digests of the shards are stored: if requested, or if an earlier run stored them.

        None: if they can be made of the bytes that the scan reads.
        """
        if self.request.digest is None and self.dataset.is_remote:
            return False
        had = self.request.digest is None and self.mode == "append" and (self.root / DIGESTS).exists()
        return True if had else self.request.digest

    @property
    def mode(self) -> Mode:
        """The requested mode."""
        return self.request.mode

    @property
    def root(self) -> Path:
        """The folder, or the local mirror of a remote dataset's metadata."""
        return self.dataset.local

    @property
    def writes_info(self) -> bool:
        """Whether `.info.json` is written; mode `indices` keeps it."""
        return self.mode != "indices" or not (self.root / META_FOLDER / INFO_JSON).exists()

    @property
    def media_filter(self) -> MediaFilterConfig | None:
        """The requested media filter, for all shards."""
        return self.request.media_filter

    def small_files(self, *, defined: bool, digested: bool) -> Iterator[str]:
        """Paths of the files written besides the indices, in the order of their publication.

        Args:
            defined: Whether there is a definition; callers may be asked for it after the scan.
            digested: Whether there are digests of all shards, which the scan may decide.
        """
        names: list[str | None] = [
            RECORDS_JSON if self.records is not None and self.mode != "indices" else None,
            self.request.dataset_yaml_name if defined else None,
            self.kept_split[1] if self.kept_split is not None else None,
            self.split_file,
            f"{COLUMNAR_FOLDER}/{DIGESTS_JSON}" if digested else None,
            INFO_JSON if self.writes_info else None,
            INFO_YAML if self.writes_info and (self.root / META_FOLDER / INFO_YAML).exists() else None,
        ]
        return (f"{META_FOLDER}/{name}" for name in names if name is not None)

    def removes(self, *, digested: bool) -> tuple[str, ...]:
        """Paths of outdated files, relative to the dataset; they need not exist. `digested`: see `small_files`."""
        bare = () if self.dataset.is_remote else (f"{META_FOLDER}/{BARE_FOLDER}",)  # from before it was prepared
        digests = () if digested or self.mode == "new" else (DIGESTS,)  # of the old shards
        return (*(() if self.sqlite else SQLITE_FILES), *bare, *digests)

    @property
    def writes(self) -> tuple[str, ...]:
        """Paths of all written files, relative to the dataset; for the columnar index, only its folder."""
        indices = [name for name in map(self.container.index_file, self.new) if name is not None]
        sqlite = SQLITE_FILES if self.sqlite else ()
        small = self.small_files(defined=self.definition is not None, digested=bool(self.digest))
        return (*indices, *sqlite, f"{COLUMNAR}/", *small)

    @property
    def found_to_remove(self) -> tuple[str, ...]:
        """The existing paths among `removes`."""
        return tuple(name for name in self.removes(digested=self.digest is not False) if (self.root / name).exists())

    def document(self, asks: Sequence[str] = ()) -> dict[str, Any]:
        """The plan as JSON; `asks` are questions to the user before the scan."""
        return {
            "dataset": self.dataset.location,
            "mode": self.mode,
            "container": self.container.name,
            "scan": self.new,
            "keep": len(self.shards) - len(self.new),
            "reads_media": self.media is not None,
            "asks": [*asks, *self._asks_after],
            "split_parts": {} if self.splits is None else self.splits.split_parts,
            "write": self.writes,
            "remove": self.found_to_remove,
            "renames_members": self.request.fix_duplicates,
        }

    def lines(self, asks: Sequence[str] = ()) -> Iterator[str]:
        """The plan as text lines; `asks` are questions to the user before the scan."""
        yield f"{_DOING[self.mode].format(self.dataset.location)} Nothing was written."
        yield from (f"  ask     {question}" for question in asks)
        yield from self._lines_of_scan()
        yield from (f"  ask     {question}" for question in self._asks_after)
        yield from self._lines_of_files()

    def _lines_of_files(self) -> Iterator[str]:
        for part, names in () if self.splits is None else self.splits.split_parts.items():
            yield f"  split   {part}: {_counted(names, 'shard')}"
        indices = [name for name in self.writes if not name.startswith(f"{META_FOLDER}/")]
        if indices:
            yield f"  write   {_counted(indices, 'tar index file')}"
        yield from (f"  write   {name}" for name in self.writes if name.startswith(f"{META_FOLDER}/"))
        if self.digest is None:
            yield f"  write   {DIGESTS}, if the scan reads all bytes of every shard"
        yield from (f"  remove  {name}" for name in self.found_to_remove)

    def _lines_of_scan(self) -> Iterator[str]:
        yield f"  scan    {_counted(self.new, self.container.file)}"
        if self.records is not None:
            yield f"  decode  their records as {self.records}"
        if self.media is not None:
            yield "  read    the headers of images, videos and audio in them"
        if len(self.new) < len(self.shards):
            yield f"  keep    {counted(len(self.shards) - len(self.new), 'shard')} indexed before"
        if self.request.fix_duplicates:
            yield "  rename  the members of all tars, and scan the tars again, if several tars share a key"

    @property
    def _asks_after(self) -> tuple[str, ...]:
        return ("the sample type, after the scan",) if self.request.asks and self.before is None else ()


_DOING: dict[Mode, str] = {
    "new": "Plan: prepare {}.",
    "again": "Plan: prepare {} again.",
    "indices": "Plan: write the indices of {} again.",
    "append": "Plan: append new shards to {}.",
}


def _counted(names: Sequence[str], what: str) -> str:
    shown = f": {' … '.join(dict.fromkeys((names[0], names[-1])))}" if names else ""
    return f"{counted(len(names), what)}{shown}"


def plan_of(dataset: DataFolder, request: PrepareRequest) -> PreparePlan:
    """Plan a `prepare`. Nothing is written.

    Raises:
        ConfigError: Arguments conflict with each other or with this dataset.
        RefusedError: The dataset is already prepared.
        DatasetNotFoundError: There are no shards, or no new ones.
        SplitError: The split file to append to does not exist.
    """
    _check_request(dataset, request)
    mark = request.text(dataset.local)
    if request.mode == "new" and is_prepared(dataset.local) and not is_unfinished(dataset.local, mark):
        raise RefusedError(
            f"{dataset.location}: already prepared. append (--append) adds new shards; force_overwrite "
            f"(--force-overwrite) prepares it again and replaces its splits; tar_index_only (--tar-index-only) only "
            f"writes the indices again."
        )
    if not dataset.is_remote:
        check_written(dataset.local)
    return _PLANS[request.mode](dataset, request, mark)


def _check_request(dataset: DataFolder, request: PrepareRequest) -> None:
    if request.split_ratio is not None and request.split_patterns is not None:
        raise ConfigError("pass a split ratio or split patterns, not both.")
    if request.digest and dataset.is_remote:
        raise ConfigError(
            f"{dataset.location}: digests must be computed before the upload: run `energon-grain prepare --digest` on "
            f"the local files, and upload .nv-meta with the shards."
        )
    if not request.append:
        return
    defines = (request.sample_type, request.field_map, request.crude, request.asks, request.subflavors)
    if any((request.tar_index_only, request.force_overwrite, *defines)):
        raise ConfigError(
            f"{dataset.location}: append keeps shards, indices and sample types: remove tar_index_only, "
            f"force_overwrite and all arguments that define the sample type."
        )
    if dataset.is_remote:
        raise ConfigError(f"{dataset.location}: shards can be appended on file systems only, not in object stores.")


def _check_with_records(dataset: DataFolder, request: PrepareRequest, records: RecordEncoding | None) -> None:
    name = request.split_config
    if name != Path(name).name or not name.endswith((".yaml", ".json")):
        raise ConfigError(f"split_config {name!r}: pass the name of a file in .nv-meta, *.yaml or *.json.")
    if request.fix_duplicates and (dataset.is_remote or records is not None):
        raise ConfigError(
            f"{dataset.location}: fix_duplicates renames members of tar files on a file system; it does not work in "
            f"object stores or with ArrayRecord files. Give the samples unique keys and write them again."
        )
    if request.media_filter is not None and records is not None:
        raise ConfigError(f"{dataset.location}: media metadata can be read from tars only, not from ArrayRecord files.")


def _plan_from_scratch(dataset: DataFolder, request: PrepareRequest, mark: str) -> PreparePlan:
    records = request.records or read_records_file(dataset.local)
    _check_with_records(dataset, request, records)
    shards = _list_shards(dataset.location, request, records)
    return PreparePlan(
        dataset=dataset,
        request=request,
        mark=mark,
        records=records,
        shards=shards,
        new=shards,
        splits=SplitConfig(split_parts=_assigned(shards, request, DEFAULT_SPLIT_RATIO)),
        split_file=request.split_config,
        definition=None if request.asks else _definition(request),
        media=request.media_filter,
        sqlite=request.sqlite and records is None,
    )


def _plan_indices(dataset: DataFolder, request: PrepareRequest, mark: str) -> PreparePlan:
    with naming(dataset):
        before = read_info(dataset.local)
    if request.records is not None:
        raise ConfigError(
            "tar_index_only cannot be combined with records: the encoding of a prepared dataset is already known."
        )
    records = read_records_file(dataset.local)
    _check_with_records(dataset, request, records)
    if request.shards is not None or request.exclude is not None:
        raise ConfigError("tar_index_only takes no shards and no exclude: those of a prepared dataset are known.")
    shards = tuple(before.shard_counts)
    return PreparePlan(
        dataset=dataset,
        request=request,
        mark=mark,
        records=records,
        shards=shards,
        new=shards,
        before=before,
        media=request.media_filter,
        sqlite=request.sqlite and records is None,
        same_uuid=request.media_filter is not None,
    )


def _plan_append(dataset: DataFolder, request: PrepareRequest, mark: str) -> PreparePlan:
    root = dataset.local
    with naming(dataset):
        before = read_info(root)
        old = read_split_config(root, request.split_config, shards=before.shard_counts)
    records = request.records or read_records_file(root)
    _check_with_records(dataset, request, records)
    shards = tuple(dict.fromkeys((*before.shard_counts, *_list_shards(dataset.location, request, records))))
    new = shards[len(before.shard_counts) :]
    if not new and not is_unfinished(root, mark):
        raise DatasetNotFoundError(f"{dataset.location}: no new shards; all {len(shards)} found are already indexed.")
    split_file = Path(old.where)
    kept = split_file, f"{split_file.stem}-first-{len(before.shard_counts)}-shards{split_file.suffix}"
    # In new shards, read the media headers that were read in the others; those need no second read.
    inherited = _media_filter_of(dataset) if new and request.media_filter is None else None
    return PreparePlan(
        dataset=dataset,
        request=request,
        mark=mark,
        records=records,
        shards=shards,
        new=new,
        before=before,
        splits=SplitConfig(split_parts=_grown(old, new, request), exclude=old.exclude),
        split_file=split_file.name,
        kept_split=kept if new else None,
        definition=_definition(request),
        media=request.media_filter or inherited,
        media_of_new=inherited is not None,
        sqlite=request.sqlite and records is None,
    )


def _grown(old: SplitConfig, new: Sequence[str], request: PrepareRequest) -> dict[str, tuple[str, ...]]:
    """The split parts with new shards, which go into `train`, or the first part, by default."""
    main = "train" if "train" in old.split_parts or not old.split_parts else next(iter(old.split_parts))
    more = _assigned(new, request, {main: 1}) if new else {}
    return {name: (*old.split_parts.get(name, ()), *more.get(name, ())) for name in (*old.split_parts, *more)}


_PLANS: dict[Mode, Callable[[DataFolder, PrepareRequest, str], PreparePlan]] = {
    "new": _plan_from_scratch,
    "again": _plan_from_scratch,
    "indices": _plan_indices,
    "append": _plan_append,
}


def _definition(request: PrepareRequest) -> DatasetDefinition | None:
    return define_dataset(
        sample_type=request.sample_type,
        field_map=request.field_map,
        crude=request.crude,
        subflavors=request.subflavors,
    )


def _media_filter_of(dataset: DataFolder) -> MediaFilterConfig | None:
    database = copy_database(dataset.location)
    return None if database is None else filter_of(database)


def _assigned(
    shards: Sequence[str], request: PrepareRequest, default: Mapping[str, float] | Sequence[float]
) -> dict[str, tuple[str, ...]]:
    assigned = list(shards)
    if request.shuffle_tars:
        random.Random(request.shuffle_seed).shuffle(assigned)
    if request.split_patterns:
        return split_by_patterns(assigned, request.split_patterns)
    return split_by_ratio(assigned, default if request.split_ratio is None else request.split_ratio)


def _list_shards(root: str, request: PrepareRequest, records: RecordEncoding | None) -> tuple[str, ...]:
    shards, exclude = request.shards, request.exclude
    if shards is None:
        return find_shards(root, exclude=exclude, container=container_of(records))
    if not shards:
        raise DatasetNotFoundError(f"{root}: the list of shards is empty; list at least one, or pass None.")
    found = frozenset(list_files(root)) if is_url(root) else None
    for name in shards:
        path = join(root, name)
        if not (os.path.isfile(path) if found is None else name in found):
            raise DatasetNotFoundError(f"{path}: listed as a shard, but the file does not exist.")
    if len(set(shards)) < len(shards):
        raise ConfigError(f"{root}: the list of shards has a duplicate; list each shard once.")
    return check_shards(shards, exclude)


def is_unfinished(root: Path, mark: str) -> bool:
    """Whether a `prepare` with the same request was not completed, even if its results are published."""
    try:
        return (root / REQUEST).read_text(encoding="utf-8") == mark
    except FileNotFoundError:  # killed at the very end
        if (root / WRITTEN_FOLDER).is_dir():
            return True
        return (root / PREPARE_FOLDER).is_dir() and not any((root / PREPARE_FOLDER).iterdir())
