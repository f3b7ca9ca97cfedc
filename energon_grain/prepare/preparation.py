"""Preparing a dataset: scan all shards, split them, and put every index in place in one step.

What is written goes into a staging folder, flushed to disk, and from there into place by the commit journal, or into
the store in an order that readers can live with.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import tarfile
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import yaml

from energon_grain.errors import ConfigError, DatasetNotFoundError, DuplicateKeyError, RefusedError
from energon_grain.formats.array_record import RecordEncoding, encode_records_file, read_records_file
from energon_grain.formats.columnar import ColumnarIndex, find_columnar, open_columnar
from energon_grain.formats.columnar_build import remove_old_generations, write_columnar
from energon_grain.formats.columnar_header import (
    COLUMNAR_FOLDER,
    HEADER_NAME,
    columnar_folder,
)
from energon_grain.formats.commit_journal import PREPARE_FOLDER, new_staging_folder
from energon_grain.formats.data_folder import BARE_FOLDER, DataFolder, copy_database, naming
from energon_grain.formats.jsonl import jsonl_index_path, write_jsonl_index
from energon_grain.formats.nv_meta import (
    COMPATIBLE_ENERGON_VERSION,
    INDEX_SQLITE,
    INDEX_UUID,
    INFO_JSON,
    INFO_YAML,
    META_FOLDER,
    RECORD_SUFFIX,
    RECORDS_JSON,
    DatasetInfo,
    dataset_kind,
    read_info,
    read_uuid,
    write_info,
    write_uuid,
)
from energon_grain.formats.seek_table import SEEK_TABLE
from energon_grain.formats.splits import DEFAULT_SPLIT_CONFIG, SplitConfig, read_split_config, write_split_config
from energon_grain.formats.sqlite_index import filter_of, keep_media_tables, write_sqlite_index
from energon_grain.formats.tar.index import tar_index_path
from energon_grain.formats.tar.names import split_member_name
from energon_grain.formats.tar.scan import ShardScan
from energon_grain.media.headers import MediaFilterConfig
from energon_grain.prepare.dataset_definition import DatasetDefinition, define_dataset
from energon_grain.prepare.listing import (
    TAR_SUFFIX,
    check_shards,
    find_shards,
    list_files,
    split_by_patterns,
    split_by_ratio,
)
from energon_grain.prepare.media_headers import ENDINGS, index_videos, write_media_columns
from energon_grain.prepare.repeated_members import RepeatedMembers
from energon_grain.prepare.scan import (
    MediaReport,
    PrepareProgress,
    ScanLog,
    ScannedDataset,
    scan_dataset,
    shard_tasks,
)
from energon_grain.prepare.writing import (
    OF_A_WRITER,
    REQUEST,
    WRITING_FOLDER,
    WRITTEN_FOLDER,
    check_written,
    end_writing,
    open_to_prepare,
    preparation_lock,
    put_in_place,
    take_over,
)
from energon_grain.sources.prepared import open_prepared
from energon_grain.storage.atomic import (
    atomic_write,
    atomic_write_bytes,
    atomic_write_text,
    naming_when_full,
    remove_temporaries,
)
from energon_grain.storage.location import is_url, join, located
from energon_grain.storage.object_bytes import ObjectBytes
from energon_grain.storage.object_client import shared_client
from energon_grain.storage.settings import storage_settings

DEFAULT_SPLIT_RATIO = (0.8, 0.1, 0.1)
_SQLITE_FILES = (f"{META_FOLDER}/{INDEX_SQLITE}", f"{META_FOLDER}/{INDEX_UUID}")
_COLUMNAR = f"{META_FOLDER}/{COLUMNAR_FOLDER}"
_PREFIXING = f"{PREPARE_FOLDER}/prefixing"
_PREFIXING_THREADS = 8  # most of them wait for the disk
ChooseDefinition = Callable[[ScannedDataset], DatasetDefinition | None]
"""Called after the scan: where an interactive caller asks its user what the samples are."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PrepareReport:
    """What a `prepare` found and wrote.

    Attributes:
        root: The dataset; a URL as text.
        shard_counts: Samples of each shard, in the order of `.info.json`.
        size_bytes: Size of all shards.
        part_names: Distinct part names in order of first appearance, at most 50 for a shard.
        split_parts: Shards of each split part; empty where only indices were written.
        written: Paths of the files that were put in place, relative to `root`, without those of the columnar index.
        shards_reused: Shards that an interrupted run had scanned already.
        media: What came of looking for media; None: it was not looked for any.
        notes: What the caller should know though it is no error.
        elapsed_s: Wall-clock time, without what `choose_definition` took, where a person types.
    """

    root: Path | str
    shard_counts: dict[str, int]
    size_bytes: int
    part_names: tuple[str, ...]
    split_parts: dict[str, tuple[str, ...]]
    written: tuple[str, ...]
    shards_reused: int
    media: MediaReport | None = None
    notes: tuple[str, ...]
    elapsed_s: float

    @property
    def samples(self) -> int:
        """Samples in all shards."""
        return sum(self.shard_counts.values())

    def samples_of(self, split_part: str) -> int:
        """Samples in the shards of a split part."""
        return sum(self.shard_counts[shard] for shard in self.split_parts[split_part])


def prepare_dataset(
    root: str | Path,
    *,
    shards: Sequence[str] | None = None,
    records: RecordEncoding | None = None,
    split_ratio: Mapping[str, float] | Sequence[float] | None = None,
    split_patterns: Mapping[str, str | Sequence[str]] | None = None,
    split_config: str = DEFAULT_SPLIT_CONFIG,
    exclude: str | None = None,
    shuffle_tars: bool = False,
    shuffle_seed: int = 42,
    sample_type: str | None = None,
    field_map: Mapping[str, str] | None = None,
    crude: bool = False,
    subflavors: Mapping[str, Any] | None = None,
    choose_definition: ChooseDefinition | None = None,
    dataset_yaml_name: str = "dataset.yaml",
    force_overwrite: bool = False,
    tar_index_only: bool = False,
    append: bool = False,
    fix_duplicates: bool = False,
    media_filter: MediaFilterConfig | None = None,
    num_workers: int | None = None,
    sqlite: bool = True,
    sqlite_build_path: Path | None = None,
    progress: Callable[[PrepareProgress], None] | None = None,
    executor: Executor | None = None,
) -> PrepareReport:
    """Index the tar files below `root`, so that the folder is a dataset for energon-grain and for Megatron-Energon.

    Or the ArrayRecord files, for energon-grain alone; all of their records are read.

    The dataset has its old state until everything is written, and the new one from then on, whatever happens to this
    process. A run that was killed keeps the scans of finished shards; the next one starts with them. Where the dataset
    had its new state already, the same call is not refused, but repeats what came after the scans.

    In an object store the indices are written beside the data, and a few small files one after the other: a dataset
    that is prepared for the first time appears whole, one that is prepared again should not be opened just then.
    Of members above 256 KiB only headers are fetched.

    Args:
        root: The dataset folder, or its URL.
        shards: Paths of the tar files relative to `root`, in the order that they are to have. None lists all `*.tar`
            (`*.array_record`, `*.array_record-00000-of-00002`) below `root`, sorted.
        records: The shards are ArrayRecord files, with records in this encoding: `msgpack`, `tf_example` or `raw`. None
            takes tars, or what the dataset was prepared as before.
        split_ratio: Numbers for train, val and test, or a mapping from names to numbers; any scale. Shards are dealt in
            order by largest remainder, so none is lost, and each part of more than 0 gets at least one. The default,
            where no patterns are given either, is (0.8, 0.1, 0.1).
        split_patterns: Patterns for each part, instead of a ratio: `glob:shards/{000..007}.tar`, `re:val_.*` (found
            anywhere), or without a prefix Energon's mixture (braces, then regular expressions from the beginning).
        split_config: Name of the split file to write in `.nv-meta`; its ending says whether it is YAML or JSON.
        exclude: A regular expression; shards in whose path it is found are left out.
        shuffle_tars: Shuffle the shards before they are split, as Energon does.
        shuffle_seed: Seed of that shuffle.
        sample_type: Name of a sample type such as `CaptioningSample`; writes the dataset's YAML file. None, without
            `crude`, leaves that file alone.
        field_map: Where each field of the sample type comes from: `{"image": "jpg,png", "caption": "json[text]"}`.
        crude: Write a dataset of plain dicts, to be cooked by the program.
        subflavors: Tags that all its samples carry, in the same file.
        choose_definition: Decides after the scan, instead of the three before.
        dataset_yaml_name: Name of that YAML file inside `.nv-meta`.
        force_overwrite: Prepare a dataset again that is prepared already.
        tar_index_only: Write only the indices of a prepared dataset anew, for the shards and splits that it has.
        append: Add to a prepared dataset the shards that it does not have yet; `shards` may list them. Only these are
            scanned. They come behind all others; the ratio or the patterns are of them alone, and by default all go to
            `train` (or the first part). What else the dataset says stays. Its split file until now is kept as
            `split-first-N-shards.yaml`: with that as `split_config` it is what it was, for saved states too. Only on
            file systems.
        fix_duplicates: Where several tars have a key in common, put the path of its tar before each member's name, in
            all tars of the dataset, as Energon does: `0001.jpg` of `a.tar` becomes `a.tar/0001.jpg`. The tars are
            written anew, one after the other, which takes the room of a few of them meanwhile. Only on file systems.
        media_filter: Which parts of tars are looked at for metadata of media: `MediaFilterConfig.parse(None, False,
            True)` takes those with the usual endings. What their headers say goes into `index.sqlite`, as Energon has
            it, and into columns (`open_columns`). Of parts that are not looked at it stays as it was, as long as the
            samples are the same. Videos that are looked at get the indices that they lack (`index_videos`), but
            not in an object store.
        num_workers: Processes at most; 0 scans in this one, None takes one for each core. Small datasets are scanned
            in this process in any case, because that is quicker. With `executor`: shards handed over at a time.
        sqlite: Write `index.sqlite` and `index.uuid`, which only Energon's joins and auxiliary data need; False removes
            old ones, which would not fit any more. ArrayRecord files, which Energon cannot read, never get them.
        sqlite_build_path: Of a dataset in an object store: the file of this machine in which `index.sqlite` is made and
            from which it is uploaded; it is removed then. None: in the cache folder.
        progress: Called after every shard and at each stage.
        executor: Runs the scans instead of processes of our own: any `concurrent.futures.Executor`, such as
            `RayExecutor` or Dask's `Client.get_executor()`. Its workers must see `root` under the same path, and need
            not write to it. It is not shut down.

    Raises:
        DatasetNotFoundError: There are no tar (ArrayRecord) files.
        ReadError: A store cannot be read or written.
        ConfigError: An argument does not fit; nothing was written.
        RefusedError: The dataset is prepared already, or another process prepares it right now.
        TarError: A tar is compressed, damaged or empty.
        FormatError: A record is not encoded as `records` says.
        ReadError: An ArrayRecord file is damaged.
        DuplicateKeyError: Two samples have the same key.
        WorkerError: A process died, or the executor failed.
    """
    start, tell = time.perf_counter(), progress or (lambda _: None)
    dataset = open_to_prepare(root)
    root = dataset.local
    if split_ratio is not None and split_patterns is not None:
        raise ConfigError("give a split ratio or split patterns, not both.")
    definition_given = bool(sample_type or field_map or crude or choose_definition or subflavors)
    if append and (tar_index_only or force_overwrite or definition_given):
        raise ConfigError(
            f"{dataset.location}: append keeps shards, indices and sample types: it goes with neither tar_index_only "
            f"nor force_overwrite, nor with what says what samples are."
        )
    if append and dataset.is_remote:
        raise ConfigError(f"{dataset.location}: shards are appended on file systems, not in object stores.")
    request = repr(
        (
            (shards, records, exclude, split_ratio, split_patterns, split_config, shuffle_tars, shuffle_seed),
            (sample_type, field_map, crude, subflavors, choose_definition is not None, dataset_yaml_name),
            (force_overwrite, tar_index_only, append, fix_duplicates, sqlite, media_filter),
            OF_A_WRITER if (root / WRITING_FOLDER).is_dir() else "",
        )
    )
    may_be_there = force_overwrite or tar_index_only or append
    if dataset_kind(root).has_shards and not (may_be_there or _is_unfinished(root, request)):
        raise RefusedError(
            f"{dataset.location}: already prepared. append (--append) adds the shards that it does not have yet; "
            f"force_overwrite (--force-overwrite) prepares it again and replaces its splits; tar_index_only "
            f"(--tar-index-only) writes only the indices anew."
        )
    if not dataset.is_remote:
        check_written(root)
    with naming(dataset):
        old_info = read_info(root) if tar_index_only else None
        grown = _Grown(root, split_config) if append else None
    if tar_index_only and records is not None:
        raise ConfigError("the encoding of a prepared dataset is known: tar_index_only takes no records.")
    records = records or read_records_file(root)
    if split_config != Path(split_config).name or not split_config.endswith((".yaml", ".json")):
        raise ConfigError(f"split_config {split_config!r}: give the name of a file in .nv-meta, *.yaml or *.json.")
    if fix_duplicates and (dataset.is_remote or records is not None):
        raise ConfigError(
            f"{dataset.location}: fix_duplicates renames members of tar files on a file system, not what lies in "
            f"object stores or ArrayRecord files."
        )
    if media_filter is not None and records is not None:
        raise ConfigError(f"{dataset.location}: metadata of media are gathered from tars, not from ArrayRecord files.")
    names = _list_shards(dataset.location, shards, exclude, old_info, RECORD_SUFFIX if records else TAR_SUFFIX)
    new = names if grown is None else tuple(name for name in names if name not in grown.info.shard_counts)
    if grown is not None:
        names = (*grown.info.shard_counts, *new)
        if not new and not _is_unfinished(root, request):
            raise DatasetNotFoundError(f"{dataset.location}: has all {len(names)} shards that lie there: none is new.")
    splits = SplitConfig(split_parts={})
    if old_info is None:
        dealt = list(new)
        if shuffle_tars:
            random.Random(shuffle_seed).shuffle(dealt)
        default = DEFAULT_SPLIT_RATIO if grown is None else {grown.main_part: 1}
        ratio, parts = default if split_ratio is None else split_ratio, dict[str, tuple[str, ...]]()
        if new or grown is None:
            parts = split_by_patterns(dealt, split_patterns) if split_patterns else split_by_ratio(dealt, ratio)
        splits = SplitConfig(split_parts=parts) if grown is None else grown.with_parts(parts)
    split_parts = splits.split_parts
    definition = None
    if old_info is None and choose_definition is None:
        definition = define_dataset(sample_type=sample_type, field_map=field_map, crude=crude, subflavors=subflavors)
    meta, sqlite = root / META_FOLDER, sqlite and records is None
    (root / PREPARE_FOLDER).mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        stack.enter_context(naming(dataset))
        stack.enter_context(naming_when_full(meta))
        stack.enter_context(preparation_lock(meta))
        remove_temporaries(root / PREPARE_FOLDER, "staged-*")
        atomic_write_text(root / REQUEST, request)
        if fix_duplicates:
            _finish_prefixes(root, names)
        # What is indexed already is known by its index, and what was written here by who wrote it.
        known = open_columnar(dataset) if append else None
        # Of shards that are added media are looked at as they were in the others, which need not be looked at again.
        grown_media = None
        if grown is not None and new and media_filter is None and (old := copy_database(dataset.location)) is not None:
            grown_media = filter_of(old)
        log = stack.enter_context(contextlib.closing(ScanLog(root / PREPARE_FOLDER / "scan.log", known)))
        take_over(root, log)

        def scan() -> ScannedDataset:
            tasks = shard_tasks(dataset.location, names, records=records, media=media_filter or grown_media)
            if grown is not None and grown_media is not None:
                indexed = grown.info.shard_counts
                tasks = [msgspec.structs.replace(task, media=None) if task.name in indexed else task for task in tasks]
            return scan_dataset(dataset.location, tasks, log, num_workers=num_workers, executor=executor, progress=tell)

        scanned = scan()
        if (before := old_info or (grown and grown.info)) is not None:
            scanned.check_counts(before)
        elif choose_definition is not None:
            asked = time.perf_counter()
            definition = choose_definition(scanned)
            start += time.perf_counter() - asked
        if definition is not None:
            definition.check_parts(scanned.part_names)
        tell(scanned.progress("index"))
        staging = new_staging_folder(root)
        (staging / META_FOLDER).mkdir()
        stage = partial(
            _stage_indices,
            dataset,
            staging,
            tar_indices=records is None,
            sqlite=sqlite,
            sqlite_build_path=sqlite_build_path if dataset.is_remote else None,
            media_filter=media_filter,
            grown_media=grown_media,
            same_uuid=tar_index_only and media_filter is not None,
            before=known,
        )
        try:
            put, remove, generation, repeated = stage(scanned)
        except DuplicateKeyError:
            if not fix_duplicates:
                raise
            _prefix_members(root, scanned)
            scanned = scan()
            put, remove, generation, repeated = stage(scanned)
        if records is not None and old_info is None:
            put.append(f"{META_FOLDER}/{RECORDS_JSON}")
            atomic_write_bytes(staging / put[-1], encode_records_file(records))
        if definition is not None:
            put.append(f"{META_FOLDER}/{dataset_yaml_name}")
            text = yaml.safe_dump(definition.content, sort_keys=False, allow_unicode=True, width=120)
            atomic_write_text(staging / put[-1], text)
        if grown is not None and new:
            put.append(f"{META_FOLDER}/{grown.kept_split}")
            atomic_write_bytes(staging / put[-1], grown.split_file.read_bytes())
        if old_info is None:
            put.append(f"{META_FOLDER}/{split_config if grown is None else grown.split_file.name}")
            write_split_config(staging / put[-1], splits)
        if old_info is None or not (meta / INFO_JSON).exists():
            put.append(f"{META_FOLDER}/{INFO_JSON}")
            if (meta / INFO_YAML).exists():
                put.append(f"{META_FOLDER}/{INFO_YAML}")
                (staging / put[-1]).touch()
            info = DatasetInfo(shard_counts=scanned.shard_counts, energon_version=COMPATIBLE_ENERGON_VERSION)
            write_info(staging, old_info or info)
        scanned.check_unchanged()
        tell(scanned.progress("commit"))
        remove += () if sqlite else _SQLITE_FILES
        if not dataset.is_remote:
            remove += (f"{META_FOLDER}/{BARE_FOLDER}",)  # of the time when nobody had prepared it
        put_in_place(dataset, staging, put=put, remove=remove, like=names[0])
        if dataset.is_remote and sqlite_build_path is not None:
            sqlite_build_path.unlink(missing_ok=True)
        elif not dataset.is_remote:
            remove_old_generations(columnar_folder(root), generation)
            if media_filter is not None and {part.rpartition(".")[2].lower() for part in scanned.media_parts} & ENDINGS:
                index_videos(root)
            end_writing(root)
        # Last goes what says that this run was not at its end.
        remove_temporaries(root / PREPARE_FOLDER, "[!r]*")
        if OF_A_WRITER in request:
            shutil.rmtree(root / WRITTEN_FOLDER, ignore_errors=True)
            (root / PREPARE_FOLDER).rename(root / WRITTEN_FOLDER)
            shutil.rmtree(root / WRITTEN_FOLDER)
        else:
            (root / REQUEST).unlink()
            (root / PREPARE_FOLDER).rmdir()
    return PrepareReport(
        root=dataset.location if dataset.is_remote else root,
        shard_counts=scanned.shard_counts,
        size_bytes=scanned.size_bytes,
        part_names=scanned.part_names,
        split_parts=split_parts,
        written=tuple(path for path in put if "/columnar/" not in path),
        shards_reused=scanned.shards_reused,
        media=None if (media_filter or grown_media) is None else scanned.media,
        notes=(
            *_notes(names, split_parts),
            *([f"{repeated}."] if repeated.count else ()),
            *(_notes_on_growth(dataset) if append else ()),
        ),
        elapsed_s=time.perf_counter() - start,
    )


def _stage_indices(
    dataset: DataFolder,
    staging: Path,
    scanned: ScannedDataset,
    *,
    tar_indices: bool,
    sqlite: bool,
    sqlite_build_path: Path | None,
    media_filter: MediaFilterConfig | None,
    grown_media: MediaFilterConfig | None,
    same_uuid: bool,
    before: ColumnarIndex | None,
) -> tuple[list[str], list[str], str, RepeatedMembers]:
    """Write the columnar index and, if wanted, `.tar.idx`, `index.sqlite`, `index.uuid`, and columns of media.

    A `.tar.idx` is not flushed to disk by itself, which would take longer than all else of a small shard. One that a
    power cut tears has another length or does not ascend; readers say so, and `--tar-index-only` writes it anew.

    Args:
        dataset: As it was until now: what its database knows of media stays, if its samples are the same.
        staging: The folder that mirrors the dataset.
        scanned: The shards, in the order of `.info.json`.
        tar_indices: Whether to write a `.tar.idx` beside each shard.
        sqlite: Whether to write `index.sqlite`, which Energon's joins and auxiliary data need.
        sqlite_build_path: Where; the staging folder then has a link to it.
        media_filter: What chose the media of the scans; None: these have none, or `grown_media` did.
        grown_media: What chose the media of the scans of new shards; the others were not looked at.
        same_uuid: Whether the dataset keeps its `index.uuid` if its samples are the same.
        before: The index of the dataset that shards are added to: what is known of its samples stays.

    Returns:
        The paths to move and those to remove, relative to the root, the name of the generation of the columnar index,
        and the members of new shards that are not read.

    Raises DuplicateKeyError: two samples of the dataset have the same key.
    """
    columnar, names = columnar_folder(staging), [shard.name for shard in scanned.shards]
    indexed = frozenset(() if before is None else before.shards)
    put, remove, repeated = list[str](), list[str](), RepeatedMembers()

    def scans() -> Iterator[ShardScan]:
        folders: set[str] = set()
        for name, scan in zip(names, scanned.scans(), strict=True):
            if tar_indices and name not in indexed:
                put.append(tar_index_path(name).as_posix())
                path = os.path.join(staging, put[-1])
                if (folder := os.path.dirname(path)) not in folders:
                    os.makedirs(folder, exist_ok=True)
                    folders.add(folder)
                with open(path, "wb") as file:
                    file.write(scan.sample_start.astype("<i8").tobytes())
                repeated.add(name, scan)
            yield scan

    database = sqlite_build_path or staging / META_FOLDER / INDEX_SQLITE

    def stage_sqlite() -> None:
        rows = enumerate(scanned.scans())
        write_sqlite_index(database, rows, shard_name=names.__getitem__, media=media_filter or grown_media)
        if sqlite_build_path is not None:
            (staging / META_FOLDER / INDEX_SQLITE).symlink_to(sqlite_build_path.absolute())

    with ThreadPoolExecutor(1, thread_name_prefix="prepare") as pool:
        # SQLite takes longest, and waits for its library, not for Python, while it sorts its indices.
        writing = pool.submit(stage_sqlite) if sqlite else None
        current = None if dataset.is_remote else find_columnar(dataset)
        header = write_columnar(columnar, names, scans(), unique_keys=True, old=current)
        if (media_filter or grown_media) is not None:
            found, remove = write_media_columns(
                dataset,
                staging,
                scanned.scans(),
                scanned.media_parts,
                header.content_id,
                before=None if grown_media is None else before,
            )
            put += found
        if writing is not None:
            writing.result()
            old = copy_database(dataset.location)
            is_same = old is not None and keep_media_tables(database, old, media_filter, grown=before is not None)
            write_uuid(staging, read_uuid(dataset.local) if same_uuid and is_same else None)
            put += [f"{META_FOLDER}/{INDEX_SQLITE}", f"{META_FOLDER}/{INDEX_UUID}"]
    put += [f"{_COLUMNAR}/{header.generation}", f"{_COLUMNAR}/{HEADER_NAME}"]
    return put, remove, header.generation, repeated


def _list_shards(
    root: str, shards: Sequence[str] | None, exclude: str | None, old_info: DatasetInfo | None, suffix: str
) -> tuple[str, ...]:
    if old_info is not None:
        if shards is not None or exclude is not None:
            raise ConfigError(
                "the shards of a prepared dataset are known: tar_index_only takes no shards and no exclude."
            )
        return tuple(old_info.shard_counts)
    if shards is None:
        return find_shards(root, exclude=exclude, suffix=suffix)
    if not shards:
        raise DatasetNotFoundError(f"{root}: the list of shards is empty.")
    found = frozenset(list_files(root)) if is_url(root) else None
    for name in shards:
        path = join(root, name)
        if not (os.path.isfile(path) if found is None else name in found):
            raise DatasetNotFoundError(f"{path}: listed as a shard, but there is no such file.")
    if len(set(shards)) < len(shards):
        raise ConfigError(f"{root}: the list of shards names one twice.")
    return check_shards(shards, exclude)


class _Grown:
    """A dataset that shards are added to. Raises DatasetNotFoundError, and SplitError: it has no such split file."""

    def __init__(self, root: Path, split_config: str) -> None:
        self.info = read_info(root)
        self._splits = read_split_config(root, split_config, shards=self.info.shard_counts)
        parts = self._splits.split_parts
        self.main_part = "train" if "train" in parts or not parts else next(iter(parts))
        self.split_file = Path(self._splits.where)
        self.kept_split = f"{self.split_file.stem}-first-{len(self.info.shard_counts)}-shards{self.split_file.suffix}"

    def with_parts(self, parts: Mapping[str, tuple[str, ...]]) -> SplitConfig:
        """The splits of the dataset, with more shards behind those of each part."""
        old = self._splits.split_parts
        both = {part: (*old.get(part, ()), *parts.get(part, ())) for part in (*old, *parts)}
        return SplitConfig(split_parts=both, exclude=self._splits.exclude)


def _notes_on_growth(dataset: DataFolder) -> Iterator[str]:
    columns = open_prepared(dataset.location).kept
    stale: dict[str, list[str]] = {}
    for name in columns.stale:
        stale.setdefault(columns.made_by(name), []).append(name)
    for command, names in stale.items():
        yield f"of the new samples {', '.join(names)} is not known, and not given out before {command} has run again."
    if (dataset.local / META_FOLDER / SEEK_TABLE).exists():
        yield "indices of videos are of the tars before: make them again by `energon_grain.prepare.index_videos`."


def _is_unfinished(root: Path, request: str) -> bool:
    """Whether a `prepare` with the same arguments did not come to its end, though its results may be in place."""
    try:
        return (root / REQUEST).read_text(encoding="utf-8") == request
    except FileNotFoundError:  # it was killed right at its end
        if (root / WRITTEN_FOLDER).is_dir():
            return True
        return (root / PREPARE_FOLDER).is_dir() and not any((root / PREPARE_FOLDER).iterdir())


def _notes(shards: Sequence[str], split_parts: Mapping[str, Sequence[str]]) -> Iterator[str]:
    if not split_parts:
        return
    listed = [shard for part in split_parts.values() for shard in part]
    several = [shard for shard, times in Counter(listed).items() if times > 1]
    if several:
        yield f"shards in more than one split part: {len(several)}, such as {several[0]}."
    in_a_part = set(listed)
    unused = [shard for shard in shards if shard not in in_a_part]
    if unused:
        yield f"shards in no split part: {len(unused)}, such as {unused[0]}."


def _finish_prefixes(root: Path, shards: Sequence[str]) -> None:
    """Rename the members of the tars that a killed run had not come to. To be called while the dataset is locked."""
    if (root / _PREFIXING).exists():
        for folder in {(root / shard).parent for shard in shards}:
            remove_temporaries(folder, ".*.tar.*.tmp")
        _prefix(root, shards)


def _prefix_members(root: Path, scanned: ScannedDataset) -> None:
    """Put the path of its tar before each member's name, in all of them. To be called while the dataset is locked.

    `b/7.jpg` in the shard `parts/3.tar` becomes `parts/3.tar/b/7.jpg`, so that its key is `parts/3.tar/b/7`; members
    that are no parts of samples keep their names. Energon changes headers in place, which a kill in the middle of a
    sample tears apart, and which names that become too long for their header rule out. Here each tar is written anew
    beside the old one and renamed, so that it has all of its old names or all of its new ones, and readers that have it
    open go on with the old one.

    The mark `.nv-meta/.prepare/prefixing` is there from before the first rename until the dataset is prepared: where a
    run was killed after some of the tars, the keys may be distinct already, but the other tars are to be renamed all
    the same.

    Raises DuplicateKeyError, with nothing changed, where one tar has a key twice, which that would not mend.
    """
    for shard, scan in zip(scanned.shards, scanned.scans(), strict=True):
        if len(set(scan.keys())) < len(scan):
            raise DuplicateKeyError(
                f"{join(scanned.root, shard.name)}: has a key twice, in members that are not adjacent, so that the "
                f"name of the tar would not distinguish its samples. Rename them; no tar was changed."
            )
    (root / _PREFIXING).touch()
    _prefix(root, [shard.name for shard in scanned.shards])


def _prefix(root: Path, shards: Sequence[str]) -> None:
    with ThreadPoolExecutor(_PREFIXING_THREADS, thread_name_prefix="prepare") as pool:
        list(pool.map(lambda shard: _prefix_one(root / shard, f"{shard}/"), shards))


def _prefix_one(path: Path, prefix: str) -> None:
    with open(path, "rb") as data, tarfile.open(fileobj=data, mode="r:") as old:
        members = old.getmembers()
        parts = [member for member in members if member.isreg() and split_member_name(member.name)]
        if all(member.name.startswith(prefix) for member in parts):
            return  # done by a run that was killed
        for member in parts:
            member.name = prefix + member.name
        with atomic_write(path) as file, tarfile.open(fileobj=file, mode="w", format=tarfile.GNU_FORMAT) as new:
            for member in members:
                data.seek(member.offset_data)
                new.addfile(member, data if member.isreg() else None)


@dataclass(frozen=True, kw_only=True, slots=True)
class JsonlReport:
    """What was found when a JSONL file was indexed.

    Attributes:
        path: The file; a URL as text.
        index: The index that was written.
        samples: Number of samples.
        size_bytes: Size of the file.
        elapsed_s: Wall-clock time.
    """

    path: Path | str
    index: Path | str
    samples: int
    size_bytes: int
    elapsed_s: float


def prepare_jsonl(
    path: str | os.PathLike[str], *, progress: Callable[[int, int, int], None] | None = None
) -> JsonlReport:
    """Write the index of a JSONL file beside it, the same bytes as Energon's; an older one is replaced.

    Args:
        path: The file, or its URL. An object is read once, front to back.
        progress: Called now and then with (bytes read, size of the file, samples found).

    Raises:
        DatasetNotFoundError: There is no such file.
        DecodingError: Lines hold no JSON object; names the first ones.
        EmptyDatasetError: There is no sample.
        ReadError: There is no such object, or it cannot be reached.
        OSError: The index cannot be written.
    """
    location, begun_s = located(path), time.monotonic()
    is_remote = is_url(location)
    size_bytes = ObjectBytes(location).size_bytes if is_remote else existing_file(location).stat().st_size

    def tell(done: int, samples: int) -> None:
        if progress is not None:
            progress(done, size_bytes, samples)

    if is_remote:
        with tempfile.TemporaryDirectory(prefix="energon-grain-") as folder:
            index = Path(folder, "index")
            samples = write_jsonl_index(location, target=index, progress=tell)
            shared_client(storage_settings()).write(f"{location}.idx", index.read_bytes())
    else:
        samples = write_jsonl_index(location, progress=tell)
    return JsonlReport(
        path=location if is_remote else Path(location),
        index=f"{location}.idx" if is_remote else jsonl_index_path(location),
        samples=samples,
        size_bytes=size_bytes,
        elapsed_s=time.monotonic() - begun_s,
    )


def existing_file(path: str | os.PathLike[str]) -> Path:
    """The path of a file that is there. Raises DatasetNotFoundError when it is not."""
    path = Path(path)
    if not path.is_file():
        raise DatasetNotFoundError(f"{path}: no such file")
    return path
