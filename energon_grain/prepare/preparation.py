# SPDX-License-Identifier: Apache-2.0
"""Preparing a dataset: scan all shards, split them, and put every index in place in one step.

What is written goes into a staging folder, flushed to disk, and from there into place by the commit journal, or into
the store in an order that readers can live with.
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
    open_to_prepare,
    preparation_lock,
    put_in_place,
    take_over,
)
from energon_grain.storage.atomic import (
    atomic_write_bytes,
    atomic_write_text,
    explaining_writes,
    naming_when_full,
    remove_temporaries,
)
from energon_grain.storage.digests import ShardDigest, digests_of, encode_digests, read_digests

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


_WHEN_FULL = (
    "free some and run the command again, which continues; --no-sqlite (sqlite=False) leaves out index.sqlite, the "
    "largest file, which only Energon's joins and auxiliary data need"
)
_SPACE, _SPACE_WITH_SQLITE = 2.2, 5
"""What `prepare` writes, as a multiple of the scans alone: text and pictures of two parts a sample were measured."""
_WHEN_READ_ONLY = (
    "prepare writes its index beside the tars. Tars in a folder that cannot be written are read without it: give the "
    "folder to get_train_dataset, which keeps an index in the cache folder ($XDG_CACHE_HOME, else ~/.cache), and "
    "split_ratio= for splits"
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
    digest: bool = False,
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
        digest: Keep digests of all shards, for which every byte is read, so that `StorageSettings(verify=True)` can
            compare what a store sends of them. `append` goes on keeping them; otherwise they are removed without it.
            Only on file systems: what a store sends now may be wrong already.
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
    means = Means(
        choose_definition=choose_definition,
        num_workers=num_workers,
        sqlite_build_path=sqlite_build_path,
        tell=progress or (lambda _: None),
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
    return carry_out(plan_of(open_to_prepare(root), request), means)


@dataclass(frozen=True, kw_only=True)
class Means:
    """How a plan is carried out; none of it changes a byte of the result. The fields are those of `prepare_dataset`."""

    choose_definition: ChooseDefinition | None = None
    num_workers: int | None = None
    sqlite_build_path: Path | None = None
    tell: Callable[[PrepareProgress], None] = lambda _: None
    executor: Executor | None = None
    begun_s: float = field(default_factory=time.perf_counter)


def carry_out(plan: PreparePlan, means: Means) -> PrepareReport:
    """Scan, write and put in place what a plan says. Raises as `prepare_dataset` does."""
    with _working_on(plan) as work:
        scanned = _scan(plan, means, work)
        if plan.before is not None:
            scanned.check_counts(plan.before)
        begun_s, definition = time.perf_counter(), plan.definition
        if plan.before is None and means.choose_definition is not None:
            definition = means.choose_definition(scanned)
        asked_s = time.perf_counter() - begun_s
        if definition is not None:
            definition.check_parts(scanned.part_names)
        means.tell(scanned.progress("index"))
        staging = new_staging_folder(plan.root)
        (staging / META_FOLDER).mkdir()
        scanned, staged = _stage_distinct(plan, means, work, scanned, staging)
        small = tuple(plan.small_files(defined=definition is not None))
        _stage_small_files(plan, staging / META_FOLDER, definition, scanned)
        scanned.check_unchanged()
        means.tell(scanned.progress("commit"))
        put = (*staged.put, *small)
        put_in_place(plan.dataset, staging, put=put, remove=(*staged.remove, *plan.removes), like=plan.shards[0])
        _clean_up(plan, means, scanned, staged.generation)
    return _report(plan, scanned, staged, put, elapsed_s=time.perf_counter() - means.begun_s - asked_s)


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
    """What is open while a dataset is prepared: the log of scans, and the index of the dataset that is appended to."""

    log: ScanLog
    known: ColumnarIndex | None


@contextlib.contextmanager
def _working_on(plan: PreparePlan) -> Generator[_Work]:
    """Hold the lock of a dataset, with the marks of a run that has not ended; they go when all is in place."""
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
        # Indexed shards are known by the index, and shards of a writer by its log.
        known = open_columnar(dataset) if plan.mode == "append" else None
        log = stack.enter_context(contextlib.closing(ScanLog(root / PREPARE_FOLDER / "scan.log", known)))
        opened.append(log)
        take_over(root, log)
        yield _Work(log, known)
        _remove_marks(plan)


def _space(plan: PreparePlan, opened: Sequence[ScanLog]) -> str:
    """How much the run needs, by the shards that were scanned so far."""
    scans = [size_bytes for log in opened for size_bytes in log.scan_bytes]
    if not scans:
        return ""
    of_scans = sum(scans) / len(scans) * len(plan.shards)
    needed = of_scans * (_SPACE_WITH_SQLITE if plan.sqlite else _SPACE)
    return f"about {max(1, needed / 1e6):,.0f} MB are needed in all for {len(plan.shards):,} shards; "


def _scan(plan: PreparePlan, means: Means, work: _Work) -> ScannedDataset:
    location = plan.dataset.location
    tasks = shard_tasks(location, plan.shards, records=plan.records, media=plan.media)
    if plan.media_of_new:
        new = frozenset(plan.new)
        tasks = [task if task.name in new else msgspec.structs.replace(task, media=None) for task in tasks]
    return scan_dataset(
        location, tasks, work.log, num_workers=means.num_workers, executor=means.executor, progress=means.tell
    )


def _stage_distinct(
    plan: PreparePlan, means: Means, work: _Work, scanned: ScannedDataset, staging: Path
) -> tuple[ScannedDataset, _Staged]:
    """Stage the indices; where keys are not distinct and the caller wants that, make them so and scan again."""
    try:
        return scanned, _stage_indices(plan, means, work, scanned, staging)
    except DuplicateKeyError:
        if not plan.request.fix_duplicates:
            raise
    prefix_members(plan.root, plan.container, scanned)
    scanned = _scan(plan, means, work)
    return scanned, _stage_indices(plan, means, work, scanned, staging)


def _stage_small_files(
    plan: PreparePlan, meta: Path, definition: DatasetDefinition | None, scanned: ScannedDataset
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
    if plan.digest:
        (meta / COLUMNAR_FOLDER).mkdir(exist_ok=True)
        known = _known_digests(plan)
        atomic_write_bytes(meta.parent / DIGESTS, encode_digests(digests_of(plan.root, plan.shards, known)))
    if plan.writes_info:
        _write_info(plan, meta, scanned)


def _write_info(plan: PreparePlan, meta: Path, scanned: ScannedDataset) -> None:
    if (plan.root / META_FOLDER / INFO_YAML).exists():
        (meta / INFO_YAML).touch()  # then `write_info` writes both
    info = DatasetInfo(shard_counts=scanned.shard_counts, energon_version=COMPATIBLE_ENERGON_VERSION)
    write_info(meta.parent, plan.before if plan.mode == "indices" and plan.before is not None else info)


def _known_digests(plan: PreparePlan) -> dict[str, ShardDigest]:
    """Those of the shards that are appended to."""
    new = frozenset(plan.new)
    if plan.mode != "append" or not (plan.root / DIGESTS).exists():
        return {}
    return {name: each for name, each in read_digests(plan.root / DIGESTS).shards.items() if name not in new}


def _clean_up(plan: PreparePlan, means: Means, scanned: ScannedDataset, generation: str) -> None:
    """What follows when everything is in place: old generations go, and videos get the indices that they lack."""
    if plan.dataset.is_remote:
        if means.sqlite_build_path is not None:
            means.sqlite_build_path.unlink(missing_ok=True)
        return
    remove_old_generations(columnar_folder(plan.root), generation)
    endings = {part.rpartition(".")[2].lower() for part in scanned.media_parts}
    if plan.media_filter is not None and endings & ENDINGS:
        index_videos(plan.root)
    end_writing(plan.root)


def _remove_marks(plan: PreparePlan) -> None:
    """Remove last the marks of a run that has not ended."""
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
    """What was written into the staging folder.

    Attributes:
        put: Paths to put in place, relative to the dataset.
        remove: Paths to remove.
        generation: The new generation of the columnar index.
        repeated: Members of new shards that are not read, since another of the same name follows.
    """

    put: tuple[str, ...]
    remove: tuple[str, ...]
    generation: str
    repeated: RepeatedMembers


def _stage_indices(plan: PreparePlan, means: Means, work: _Work, scanned: ScannedDataset, staging: Path) -> _Staged:
    """Write the columnar index and, if wanted, `.tar.idx`, `index.sqlite`, `index.uuid`, and columns of media.

    A `.tar.idx` is not flushed to disk by itself, which would take longer than everything else of a small shard. One
    that a power cut tears has another length or does not ascend; readers say so, and `--tar-index-only` writes it
    again. Raises DuplicateKeyError: two samples of the dataset have the same key.
    """
    dataset, names = plan.dataset, [shard.name for shard in scanned.shards]
    indices = _ShardIndices(staging, plan.container, frozenset(plan.new))
    with ThreadPoolExecutor(1, thread_name_prefix="prepare") as pool:
        # SQLite takes longest, and waits for its library, not for Python, while it sorts its indices.
        database = pool.submit(_stage_database, plan, means, scanned, staging) if plan.sqlite else None
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
    """Writes the index of each shard, where it has one, into the staging folder as their scans pass by.

    `paths` lists them, and `repeated` the members of these shards that are not read.
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


def _stage_database(plan: PreparePlan, means: Means, scanned: ScannedDataset, staging: Path) -> Path:
    """Write `index.sqlite`, for a store where the caller wants it; the staging folder then has a link to it."""
    built = means.sqlite_build_path if plan.dataset.is_remote else None
    staged = staging / META_FOLDER / INDEX_SQLITE
    shard_names = [shard.name for shard in scanned.shards]
    rows = enumerate(scanned.scans())
    write_sqlite_index(built or staged, rows, shard_name=shard_names.__getitem__, media=plan.media)
    if built is not None:
        staged.symlink_to(built.absolute())
    return built or staged


def _finish_database(plan: PreparePlan, staging: Path, database: Path, *, grown: bool) -> None:
    """Keep in a new database what the old one knows of media, if the samples are the same, and write its UUID."""
    old = copy_database(plan.dataset.location)
    is_same = old is not None and keep_media_tables(database, old, plan.media_filter, grown=grown)
    write_uuid(staging, read_uuid(plan.root) if plan.same_uuid and is_same else None)


def _notes_on_growth(dataset: DataFolder) -> Iterator[str]:
    columns = open_prepared(dataset.location).kept
    stale: dict[str, list[str]] = {}
    for name in columns.stale:
        stale.setdefault(columns.made_by(name), []).append(name)
    for command, names in stale.items():
        yield f"of the new samples {', '.join(names)} is not known, and not given out before {command} has run again."
    if (dataset.local / META_FOLDER / SEEK_TABLE).exists():
        yield "indices of videos are of the tars before: make them again by `energon_grain.prepare.index_videos`."


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
