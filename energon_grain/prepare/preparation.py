# SPDX-License-Identifier: Apache-2.0
"""Prepare a dataset: scan all shards, split them, and publish every index in one step.

New files go into a staging folder and are flushed to disk. The commit journal then moves them into place; for a store,
they are uploaded in an order that is safe for readers.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import yaml

from energon_grain.atomic_files import (
    atomic_write_bytes,
    atomic_write_text,
    explaining_writes,
    naming_when_full,
    remove_temporaries,
)
from energon_grain.errors import DuplicateKeyError, public
from energon_grain.formats.columnar import ColumnarIndex, find_columnar
from energon_grain.formats.columnar_header import COLUMNAR_FOLDER, HEADER_NAME, columnar_folder
from energon_grain.formats.commit_journal import PREPARE_FOLDER, new_staging_folder
from energon_grain.formats.data_folder import DataFolder, copy_database, naming
from energon_grain.formats.nv_meta import (
    COMPATIBLE_ENERGON_VERSION,
    INDEX_SQLITE,
    INFO_YAML,
    META_FOLDER,
    RECORDS_JSON,
    DatasetInfo,
    read_uuid,
    write_info,
    write_uuid,
)
from energon_grain.formats.records import RecordEncoding, encode_records_file
from energon_grain.formats.scan import ShardScan
from energon_grain.formats.seek_table import SEEK_TABLE
from energon_grain.formats.splits import DEFAULT_SPLIT_CONFIG, write_split_config
from energon_grain.formats.sqlite_index import keep_media_tables, write_sqlite_index
from energon_grain.media.headers import MediaFilterConfig
from energon_grain.prepare.columnar_build import open_columnar, remove_old_generations, write_columnar
from energon_grain.prepare.containers import Container, open_prepared
from energon_grain.prepare.dataset_definition import DatasetDefinition
from energon_grain.prepare.media_headers import ENDINGS, index_videos, write_media_columns
from energon_grain.prepare.plan import (
    COLUMNAR,
    DIGESTS,
    SQLITE_FILES,
    PreparePlan,
    PrepareRequest,
    plan_of,
)
from energon_grain.prepare.prefixing import finish_prefixes, prefix_members
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
    WRITTEN_FOLDER,
    end_writing,
    import_records,
    open_to_prepare,
    preparation_lock,
    put_in_place,
)
from energon_grain.storage.digests import Digests, ShardDigest, digests_of, encode_digests, read_digests
from energon_grain.words import counted

ChooseDefinition = Callable[[ScannedDataset], DatasetDefinition | None]
"""Called after the scan; an interactive caller asks its user for the sample type."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PrepareReport:
    """Result of a `prepare`.

    Attributes:
        root: The dataset; a URL as text.
        shard_counts: Number of samples of each shard, in the order of `.info.json`.
        size_bytes: Size of all shards.
        part_names: Distinct part names in order of first appearance, at most 50 per shard.
        split_parts: Shards of each split part; empty if only indices were written.
        written: Paths of the published files, relative to `root`, without those of the columnar index.
        shards_reused: Number of shards that an interrupted run had already scanned.
        media: Result of reading media headers; None if none were read.
        notes: Notes for the user that are not errors.
        elapsed_s: Wall-clock time, without the time in `choose_definition`, where a user types.
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
        """Number of samples in all shards."""
        return sum(self.shard_counts.values())

    def samples_of(self, split_part: str) -> int:
        """Number of samples in the shards of a split part."""
        return sum(self.shard_counts[shard] for shard in self.split_parts[split_part])


_WHEN_FULL = (
    "free some space and run the command again; it continues where it stopped. --no-sqlite (sqlite=False) skips "
    "index.sqlite, the largest file, which only Energon's joins and auxiliary data need. To keep the index on another "
    "disk, skip prepare: pass the folder to get_train_dataset, and set XDG_CACHE_HOME to a folder there"
)
_SPACE, _SPACE_WITH_SQLITE = 2.2, 5
"""Bytes that `prepare` writes per byte of scans: measured with text and images, two parts per sample."""
_WHEN_READ_ONLY = (
    "prepare writes its index beside the tars. Tars in a read-only folder can be read without preparation: pass the "
    "folder to get_train_dataset, which keeps an index in the cache folder ($XDG_CACHE_HOME, else ~/.cache), and "
    "set split_ratio= for splits"
)


@public
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
    digest: bool | None = None,
    progress: Callable[[PrepareProgress], None] | None = None,
    executor: Executor | None = None,
) -> PrepareReport:
    """Index the tar files below `root`, so that the folder is a dataset for energon-grain and for Megatron-Energon.

    Or index ArrayRecord files, for energon-grain alone; all of their records are read.

    The dataset keeps its old state until everything is written, then switches to the new one, even if the process is
    killed. A killed run keeps the scans of finished shards, and the next run starts with them. If the new state was
    already published, the same call is not refused; it repeats the steps after the scans.

    In an object store, the indices are written beside the data, and a few small files in sequence. A dataset that is
    prepared for the first time appears whole; do not open one while it is prepared again. For members above 256 KiB,
    only headers are fetched.

    Args:
        root: The dataset folder, or its URL.
        shards: Paths of the tar files relative to `root`, in the order for the dataset. None lists all `*.tar`
            (`*.array_record`, `*.array_record-00000-of-00002`) below `root`, sorted.
        records: The shards are ArrayRecord files, with records in this encoding: `msgpack`, `tf_example` or `raw`. None
            means tars, or the encoding of the earlier preparation.
        split_ratio: Numbers for train, val and test, or a mapping from names to numbers; any scale. Shards are assigned
            in order by largest remainder: none is lost, and each part above 0 gets at least one. The default, without
            patterns, is (0.8, 0.1, 0.1).
        split_patterns: Patterns for each part, instead of a ratio: `glob:shards/{000..007}.tar`, `re:val_.*` (found
            anywhere), or without a prefix Energon's mixture (braces, then regular expressions from the beginning).
        split_config: Name of the split file to write in `.nv-meta`; its extension selects YAML or JSON.
        exclude: A regular expression; shards in whose path it is found are left out.
        shuffle_tars: Shuffle the shards before they are split, as Energon does.
        shuffle_seed: Seed of that shuffle.
        sample_type: Name of a sample type such as `CaptioningSample`; writes the dataset's YAML file. None, without
            `crude`, keeps the existing file.
        field_map: Source of each field of the sample type: `{"image": "jpg,png", "caption": "json[text]"}`.
        crude: Write a dataset of plain dicts, to be cooked by the program.
        subflavors: Tags for all its samples, in the same file.
        choose_definition: Chooses these after the scan, instead of `sample_type`, `field_map` and `crude`.
        dataset_yaml_name: Name of that YAML file inside `.nv-meta`.
        force_overwrite: Prepare an already prepared dataset again.
        tar_index_only: Only write the indices of a prepared dataset again; its shards and splits stay the same.
        append: Add new shards to a prepared dataset; `shards` may list them. Only these are scanned. They follow all
            others. The ratio or the patterns apply to them alone; by default all go to `train` (or the first part).
            All other metadata stay. The previous split file is kept as `split-first-N-shards.yaml`: pass it as
            `split_config` to get the previous dataset, also for saved states. Only on file systems.
        fix_duplicates: If several tars share a key, prepend the path of its tar to each member's name, in all tars of
            the dataset, as Energon does: `0001.jpg` of `a.tar` becomes `a.tar/0001.jpg`. The tars are written again in
            sequence, which temporarily takes the disk space of a few of them. Only on file systems.
        media_filter: Selects the parts of tars whose media headers are read: `MediaFilterConfig.parse(None, False,
            True)` selects those with the usual extensions. The metadata go into `index.sqlite`, in Energon's format,
            and into columns (`open_columns`). Metadata of other parts are kept as long as the samples are the same.
            Selected videos get missing seek indices (`index_videos`), but not in an object store.
        num_workers: Maximum number of processes; 0 scans in this one, None takes one per core. Small datasets are
            always scanned in this process, which is faster. With `executor`: maximum number of submitted shards.
        sqlite: Write `index.sqlite` and `index.uuid`, which only Energon's joins and auxiliary data need; False removes
            old ones, which would be outdated. ArrayRecord files, which Energon cannot read, never get them.
        sqlite_build_path: For a dataset in an object store: the local file in which `index.sqlite` is built before it
            is uploaded and removed. None: in the cache folder.
        digest: Store digests of all shards, for receipts, and so that `StorageSettings(verify=True)` can verify the
            bytes that a store returns. True reads every byte. None stores them if the scan reads nearly all bytes of
            every shard anyway (tars with small members), which takes at most 15 % longer, and if `append` finds some.
            Only on file systems: the bytes in a store may be wrong already.
        progress: Called after every shard and at each stage.
        executor: Runs the scans instead of our own processes: any `concurrent.futures.Executor`, such as
            `RayExecutor` or Dask's `Client.get_executor()`. Its workers must see `root` under the same path; they write
            nothing to it. It is not shut down.

    Raises:
        DatasetNotFoundError: There are no tar (ArrayRecord) files.
        ReadError: A store cannot be read or written.
        ConfigError: An argument is invalid; nothing was written.
        RefusedError: The dataset is already prepared, or another process is preparing it.
        TarError: A tar is compressed, damaged or empty.
        FormatError: A record does not have the encoding `records`.
        ReadError: An ArrayRecord file is damaged.
        DuplicateKeyError: Two samples have the same key.
        WorkerError: A process died, or the executor failed.
    """
    options = RunOptions(
        choose_definition=choose_definition,
        num_workers=num_workers,
        sqlite_build_path=sqlite_build_path,
        notify=progress or (lambda _: None),
        executor=executor,
    )
    request = PrepareRequest(
        shards=shards,
        records=records,
        exclude=exclude,
        split_ratio=split_ratio,
        split_patterns=split_patterns,
        split_config=split_config,
        shuffle_tars=shuffle_tars,
        shuffle_seed=shuffle_seed,
        sample_type=sample_type,
        field_map=field_map,
        crude=crude,
        subflavors=subflavors,
        asks=choose_definition is not None,
        dataset_yaml_name=dataset_yaml_name,
        force_overwrite=force_overwrite,
        tar_index_only=tar_index_only,
        append=append,
        fix_duplicates=fix_duplicates,
        sqlite=sqlite,
        media_filter=media_filter,
        digest=digest,
    )
    return carry_out(plan_of(open_to_prepare(root), request), options)


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """How a plan is run; does not affect the result. The fields are arguments of `prepare_dataset`."""

    choose_definition: ChooseDefinition | None = None
    num_workers: int | None = None
    sqlite_build_path: Path | None = None
    notify: Callable[[PrepareProgress], None] = lambda _: None
    executor: Executor | None = None
    begun_s: float = field(default_factory=time.perf_counter)


def carry_out(plan: PreparePlan, options: RunOptions) -> PrepareReport:
    """Scan, write and publish according to a plan. Raises as `prepare_dataset` does."""
    with _working_on(plan) as work:
        scanned = _scan(plan, options, work)
        if plan.before is not None:
            scanned.check_counts(plan.before)
        begun_s, definition = time.perf_counter(), plan.definition
        if plan.before is None and options.choose_definition is not None:
            definition = options.choose_definition(scanned)
        asked_s = time.perf_counter() - begun_s
        if definition is not None:
            definition.check_parts(scanned.part_names)
        options.notify(scanned.progress("index"))
        staging = new_staging_folder(plan.root)
        (staging / META_FOLDER).mkdir()
        scanned, staged = _stage_distinct(plan, options, work, scanned, staging)
        digests = _digests(plan, scanned)
        digested = digests is not None
        small = tuple(plan.small_files(defined=definition is not None, digested=digested))
        _stage_small_files(plan, staging / META_FOLDER, definition, scanned, digests)
        scanned.check_unchanged()
        options.notify(scanned.progress("commit"))
        put = (*staged.put, *small)
        put_in_place(
            plan.dataset,
            staging,
            put=put,
            remove=(*staged.remove, *plan.removes(digested=digested)),
            like=plan.shards[0],
        )
        _clean_up(plan, options, scanned, staged.generation)
    return _report(plan, scanned, staged, put, elapsed_s=time.perf_counter() - options.begun_s - asked_s)


def _report(
    plan: PreparePlan, scanned: ScannedDataset, staged: _Staged, put: Sequence[str], *, elapsed_s: float
) -> PrepareReport:
    split_parts = {} if plan.splits is None else plan.splits.split_parts
    repeated = [f"{staged.repeated}."] if staged.repeated.count else []
    growth = _notes_on_growth(plan.dataset) if plan.mode == "append" else ()
    return PrepareReport(
        root=plan.dataset.location if plan.dataset.is_remote else plan.root,
        shard_counts=scanned.shard_counts,
        size_bytes=scanned.size_bytes,
        part_names=scanned.part_names,
        split_parts=split_parts,
        written=tuple(path for path in put if not path.startswith(f"{COLUMNAR}/")),
        shards_reused=scanned.shards_reused,
        media=None if plan.media is None else scanned.media,
        notes=(*_notes(plan.shards, split_parts), *repeated, *growth),
        elapsed_s=elapsed_s,
    )


@dataclass(frozen=True)
class _Work:
    """Resources that are open during a preparation: the log of scans, and the index of a dataset to append to."""

    log: ScanLog
    known: ColumnarIndex | None


@contextlib.contextmanager
def _working_on(plan: PreparePlan) -> Generator[_Work]:
    """Hold the lock of a dataset and its marks of an unfinished run; the marks are removed after publication."""
    dataset, root = plan.dataset, plan.root
    with contextlib.ExitStack() as stack:
        opened: list[ScanLog] = []
        stack.enter_context(
            explaining_writes(root, full=lambda: f"{_space(plan, opened)}{_WHEN_FULL}", read_only=_WHEN_READ_ONLY)
        )
        (root / PREPARE_FOLDER).mkdir(parents=True, exist_ok=True)
        stack.enter_context(naming(dataset))
        stack.enter_context(naming_when_full(root / META_FOLDER))
        stack.enter_context(preparation_lock(root / META_FOLDER))
        remove_temporaries(root / PREPARE_FOLDER, "staged-*")
        atomic_write_text(root / REQUEST, plan.mark)
        if plan.request.fix_duplicates:
            finish_prefixes(root, plan.container, plan.shards)
        # Indexed shards are found in the index, and shards of a writer in its log.
        known = open_columnar(dataset) if plan.mode == "append" else None
        log = stack.enter_context(contextlib.closing(ScanLog(root / PREPARE_FOLDER / "scan.log", known)))
        opened.append(log)
        import_records(root, log)
        yield _Work(log, known)
        _remove_marks(plan)


def _space(plan: PreparePlan, opened: Sequence[ScanLog]) -> str:
    """The disk space that the run needs, estimated from the shards scanned so far."""
    scans = [size_bytes for log in opened for size_bytes in (*log.scan_bytes, log.refused_bytes) if size_bytes]
    if not scans:
        return ""
    of_scans = sum(scans) / len(scans) * len(plan.shards)
    needed = of_scans * (_SPACE_WITH_SQLITE if plan.sqlite else _SPACE)
    return f"the run needs about {max(1, needed / 1e6):,.0f} MB in total for {len(plan.shards):,} shards; "


def _scan(plan: PreparePlan, options: RunOptions, work: _Work) -> ScannedDataset:
    location = plan.dataset.location
    tasks = shard_tasks(location, plan.shards, records=plan.records, media=plan.media)
    if plan.media_of_new:
        new = frozenset(plan.new)
        tasks = [task if task.name in new else msgspec.structs.replace(task, media=None) for task in tasks]
    return scan_dataset(
        location,
        tasks,
        work.log,
        num_workers=options.num_workers,
        executor=options.executor,
        progress=options.notify,
        whole_digest=None if plan.digest is False or plan.dataset.is_remote else plan.digest is True,
    )


def _stage_distinct(
    plan: PreparePlan, options: RunOptions, work: _Work, scanned: ScannedDataset, staging: Path
) -> tuple[ScannedDataset, _Staged]:
    """Stage the indices; if keys are not unique and the caller requests it, make them unique and scan again."""
    try:
        return scanned, _stage_indices(plan, options, work, scanned, staging)
    except DuplicateKeyError:
        if not plan.request.fix_duplicates:
            raise
    prefix_members(plan.root, plan.container, scanned)
    scanned = _scan(plan, options, work)
    return scanned, _stage_indices(plan, options, work, scanned, staging)


def _stage_small_files(
    plan: PreparePlan,
    meta: Path,
    definition: DatasetDefinition | None,
    scanned: ScannedDataset,
    digests: Digests | None,
) -> None:
    if plan.records is not None and plan.mode != "indices":
        atomic_write_bytes(meta / RECORDS_JSON, encode_records_file(plan.records))
    if definition is not None:
        text = yaml.safe_dump(definition.content, sort_keys=False, allow_unicode=True, width=120)
        atomic_write_text(meta / plan.request.dataset_yaml_name, text)
    if plan.kept_split is not None:
        old, kept = plan.kept_split
        atomic_write_bytes(meta / kept, old.read_bytes())
    if plan.splits is not None and plan.split_file is not None:
        write_split_config(meta / plan.split_file, plan.splits)
    if digests is not None:
        (meta / COLUMNAR_FOLDER).mkdir(exist_ok=True)
        atomic_write_bytes(meta.parent / DIGESTS, encode_digests(digests))
    if plan.writes_info:
        _write_info(plan, meta, scanned)


def _write_info(plan: PreparePlan, meta: Path, scanned: ScannedDataset) -> None:
    if (plan.root / META_FOLDER / INFO_YAML).exists():
        (meta / INFO_YAML).touch()  # then `write_info` writes both
    info = DatasetInfo(shard_counts=scanned.shard_counts, energon_version=COMPATIBLE_ENERGON_VERSION)
    write_info(meta.parent, plan.before if plan.mode == "indices" and plan.before is not None else info)


def _digests(plan: PreparePlan, scanned: ScannedDataset) -> Digests | None:
    """The digests of all shards; None: they are not requested, or the scan did not read all bytes."""
    if plan.digest is False:
        return None
    found = {shard.name: shard.digest for shard in scanned.shards if shard.digest is not None}
    known = {**_known_digests(plan), **found}
    if plan.digest is None and len(known) < len(plan.shards):
        return None
    return digests_of(plan.root, plan.shards, known)


def _known_digests(plan: PreparePlan) -> dict[str, ShardDigest]:
    """Digests of the existing shards when appending."""
    new = frozenset(plan.new)
    if plan.mode != "append" or not (plan.root / DIGESTS).exists():
        return {}
    return {name: each for name, each in read_digests(plan.root / DIGESTS).shards.items() if name not in new}


def _clean_up(plan: PreparePlan, options: RunOptions, scanned: ScannedDataset, generation: str) -> None:
    """After publication, remove old generations and build missing seek indices of videos."""
    if plan.dataset.is_remote:
        if options.sqlite_build_path is not None:
            options.sqlite_build_path.unlink(missing_ok=True)
        return
    remove_old_generations(columnar_folder(plan.root), generation)
    endings = {part.rpartition(".")[2].lower() for part in scanned.media_parts}
    if plan.media_filter is not None and endings & ENDINGS:
        index_videos(plan.root)
    end_writing(plan.root)


def _remove_marks(plan: PreparePlan) -> None:
    """Remove the marks of an unfinished run, as the last step."""
    root = plan.root
    remove_temporaries(root / PREPARE_FOLDER, "[!r]*")
    if OF_A_WRITER in plan.mark:
        shutil.rmtree(root / WRITTEN_FOLDER, ignore_errors=True)
        (root / PREPARE_FOLDER).rename(root / WRITTEN_FOLDER)
        shutil.rmtree(root / WRITTEN_FOLDER)
    else:
        (root / REQUEST).unlink()
        (root / PREPARE_FOLDER).rmdir()


@dataclass(frozen=True)
class _Staged:
    """Contents of the staging folder.

    Attributes:
        put: Paths to publish, relative to the dataset.
        remove: Paths to remove.
        generation: The new generation of the columnar index.
        repeated: Members of new shards that are not read, because a later one has the same name.
    """

    put: tuple[str, ...]
    remove: tuple[str, ...]
    generation: str
    repeated: RepeatedMembers


def _stage_indices(
    plan: PreparePlan, options: RunOptions, work: _Work, scanned: ScannedDataset, staging: Path
) -> _Staged:
    """Write the columnar index and, if requested, `.tar.idx`, `index.sqlite`, `index.uuid`, and media columns.

    A `.tar.idx` is not flushed to disk individually, which would take longer than all other work on a small shard. If a
    power cut damages one, its length is wrong or its offsets do not ascend. Readers report this, and `--tar-index-only`
    writes it again. Raises DuplicateKeyError: two samples of the dataset have the same key.
    """
    dataset, names = plan.dataset, [shard.name for shard in scanned.shards]
    indices = _ShardIndices(staging, plan.container, frozenset(plan.new))
    with ThreadPoolExecutor(1, thread_name_prefix="prepare") as pool:
        # SQLite takes longest. While it sorts its indices, its library releases the GIL.
        database = pool.submit(_stage_database, plan, options, scanned, staging) if plan.sqlite else None
        current = None if dataset.is_remote else find_columnar(dataset)
        scans = indices.written(zip(names, scanned.scans(), strict=True))
        header = write_columnar(columnar_folder(staging), names, scans, unique_keys=True, old=current)
        put, remove = list[str](), list[str]()
        if plan.media is not None:
            put, remove = write_media_columns(
                dataset,
                staging,
                scanned.scans(),
                scanned.media_parts,
                header.content_id,
                before=work.known if plan.media_of_new else None,
            )
        if database is not None:
            _finish_database(plan, staging, database.result(), grown=work.known is not None)
            put += SQLITE_FILES
    columnar = (f"{COLUMNAR}/{header.generation}", f"{COLUMNAR}/{HEADER_NAME}")
    return _Staged((*indices.paths, *put, *columnar), tuple(remove), header.generation, indices.repeated)


class _ShardIndices:
    """Writes the index of each shard, if it has one, into the staging folder as the scans pass by.

    `paths` lists the indices, and `repeated` the members of these shards that are not read.
    """

    def __init__(self, staging: Path, container: Container, wanted: frozenset[str]) -> None:
        self.paths: list[str] = []
        self.repeated = RepeatedMembers()
        self._staging, self._container = staging, container
        self._wanted = wanted

    def written(self, scans: Iterable[tuple[str, ShardScan]]) -> Iterator[ShardScan]:
        """The scans, each after its index was written."""
        folders: set[str] = set()
        for name, scan in scans:
            index = self._container.index_file(name) if name in self._wanted else None
            if index is not None:
                self.paths.append(index)
                path = os.path.join(self._staging, index)
                if (folder := os.path.dirname(path)) not in folders:
                    os.makedirs(folder, exist_ok=True)
                    folders.add(folder)
                with open(path, "wb") as file:
                    file.write(scan.sample_start.astype("<i8").tobytes())
                self.repeated.add(name, scan)
            yield scan


def _stage_database(plan: PreparePlan, options: RunOptions, scanned: ScannedDataset, staging: Path) -> Path:
    """Write `index.sqlite`, for a store at the requested path; the staging folder then has a link to it."""
    built = options.sqlite_build_path if plan.dataset.is_remote else None
    staged = staging / META_FOLDER / INDEX_SQLITE
    shard_names = [shard.name for shard in scanned.shards]
    rows = enumerate(scanned.scans())
    write_sqlite_index(built or staged, rows, shard_name=shard_names.__getitem__, media=plan.media)
    if built is not None:
        staged.symlink_to(built.absolute())
    return built or staged


def _finish_database(plan: PreparePlan, staging: Path, database: Path, *, grown: bool) -> None:
    """Copy media metadata from the old database if the samples are the same, and write its UUID."""
    old = copy_database(plan.dataset.location)
    is_same = old is not None and keep_media_tables(database, old, plan.media_filter, grown=grown)
    write_uuid(staging, read_uuid(plan.root) if plan.same_uuid and is_same else None)


def _notes_on_growth(dataset: DataFolder) -> Iterator[str]:
    columns = open_prepared(dataset.location).kept
    stale: dict[str, list[str]] = {}
    for name in columns.stale:
        stale.setdefault(columns.made_by(name), []).append(name)
    for command, names in stale.items():
        yield f"the columns {', '.join(names)} lack values for the new samples; run {command} before you use them."
    if (dataset.local / META_FOLDER / SEEK_TABLE).exists():
        yield "the seek indices of videos are outdated: call `energon_grain.prepare.index_videos` to build them again."


def _notes(shards: Sequence[str], split_parts: Mapping[str, Sequence[str]]) -> Iterator[str]:
    if not split_parts:
        return
    listed = [shard for part in split_parts.values() for shard in part]
    several = [shard for shard, times in Counter(listed).items() if times > 1]
    if several:
        yield f"{counted(len(several), 'shard')} in more than one split part, such as {several[0]}."
    in_a_part = set(listed)
    unused = [shard for shard in shards if shard not in in_a_part]
    if unused:
        yield f"{counted(len(unused), 'shard')} in no split part, such as {unused[0]}."
