# SPDX-License-Identifier: Apache-2.0
"""Find problems in a dataset or a JSONL file: in its indices, configuration, samples, settings."""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import re
import sqlite3
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import pairwise
from logging.handlers import BufferingHandler
from pathlib import Path
from typing import Any, Literal, Self, TypeVar, get_args

import numpy as np
import numpy.typing as npt

from energon_grain.errors import (
    ConfigError,
    DecodingError,
    EmptyDatasetError,
    EnergonGrainError,
    FatalSampleError,
    FormatError,
    MissingObjectError,
    ReadError,
    SplitError,
    UntrustedCodeError,
)
from energon_grain.formats.class_ref import ClassRef, resolve_class, resolve_function
from energon_grain.formats.columnar import ColumnarIndex
from energon_grain.formats.columns import ATTACHED, StoredColumn
from energon_grain.formats.data_folder import DataFolder, naming
from energon_grain.formats.dataset_config import DatasetConfig, read_dataset_config
from energon_grain.formats.nv_meta import INDEX_SQLITE, META_FOLDER, DatasetInfo, read_info
from energon_grain.formats.records import RecordEncoding, read_records_file
from energon_grain.formats.splits import (
    DEFAULT_SPLIT_CONFIG,
    SplitConfig,
    excluded_sample,
    read_split_config,
    select_shards,
)
from energon_grain.formats.sqlite_index import MediaTable
from energon_grain.media.headers import HEADER_FUNCTION, MediaFilterConfig, read_header
from energon_grain.prepare.columnar_build import open_columnar
from energon_grain.prepare.containers import PreparedSource, container_of, open_data, open_prepared
from energon_grain.prepare.listing import list_files
from energon_grain.prepare.measure import Measurement, Parts, measured
from energon_grain.prepare.media_headers import media_numbers
from energon_grain.prepare.repeated_members import RepeatedMembers
from energon_grain.prepare.samples import Columns, columns_of
from energon_grain.sources.source import RawSample, Source
from energon_grain.storage.cores import map_in_order, usable_cores
from energon_grain.storage.location import is_url
from energon_grain.storage.remote import remote_files
from energon_grain.storage.settings import storage_settings
from energon_grain.transforms.decode import SampleDecoder
from energon_grain.transforms.field_map import FieldMap
from energon_grain.words import counted

T = TypeVar("T")
Severity = Literal["error", "warning", "note"]
"""`error`: a loader refuses the data, or drops the sample. `warning`: the data load, but probably not as intended.
`note`: information, such as what was not checked."""
PREPARE_AGAIN = "prepare again with --force-overwrite"
_INDEX_AGAIN = "write it again with --tar-index-only"
_CHUNK_SAMPLES = 256
_CHUNK_BYTES = 4 << 20
_KEYS_COMPARED = 1 << 16
_FEW_PARTS = 10
_LISTED_MEDIA = 10
_COMPARED = 32
_LISTED = 3
N = TypeVar("N")
LISTED_FINDINGS = 10_000


@dataclass(frozen=True, kw_only=True, slots=True)
class LintFinding:
    """A problem, or a piece of information.

    Attributes:
        severity: See `Severity`.
        where: For data in a dataset, its name there: `shard_000.tar`, `shard_000.tar/<key>`, `x.jsonl:<line>`. Else the
            path of the dataset, or of a file and the place in it: `coco/.nv-meta/dataset.yaml: $.field_map`.
        what: The problem.
        way_out: The fix, unless `what` already names it.
    """

    severity: Severity = "error"
    where: str
    what: str
    way_out: str = ""

    def __str__(self) -> str:
        return f"{self.where}: {self.what}" + (f"; {self.way_out}" if self.way_out else "")


@dataclass(frozen=True, kw_only=True, slots=True)
class LintProgress:
    """Progress of lint: shards compared with their index, or samples decoded."""

    stage: Literal["index", "samples"]
    done: int
    total: int
    findings: int


@dataclass(frozen=True, kw_only=True, slots=True)
class LintReport:
    """Result of lint.

    Attributes:
        root: The dataset or metadataset, its path or URL.
        shards: Number of shards compared with their indices, or of files read; None if the data have neither.
        samples: Number of samples decoded.
        findings: Errors first, then warnings, then notes; each in the order of shards, those about indices first.
    """

    root: str
    shards: int | None
    samples: int
    findings: tuple[LintFinding, ...]

    @classmethod
    def of(cls, root: str, findings: Iterable[LintFinding], *, shards: int | None, samples: int) -> Self:
        """Make a report of findings in any order; duplicates are removed."""
        order = get_args(Severity).index
        ordered = sorted(dict.fromkeys(findings), key=lambda finding: order(finding.severity))
        return cls(root=root, shards=shards, samples=samples, findings=tuple(ordered))


def opened(
    where: str,
    findings: list[LintFinding],
    open_it: Callable[[], T],
    *,
    empty: Severity = "error",
    raised: type[Exception] | tuple[type[Exception], ...] = ReadError,
) -> T | None:
    """Open something; if that raises, record the error and return None. Also record logged warnings.

    Args:
        where: The opened path, URL or place in a document. If a message begins with this file, or one below this
            folder, the finding refers to the file that the message names.
        empty: Severity if no sample is left.
        raised: Errors to raise instead of recording; an unreachable store says nothing about its data.
    """
    named = re.compile(rf"({re.escape(where.split(': $')[0])}\S*?(?:: \$\S*?)?): (.*)", re.DOTALL)

    def note(severity: Severity, what: str) -> None:
        said = named.match(what)
        place, what = said.groups() if said else (where, what)
        findings.append(LintFinding(severity=severity, where=place, what=what))

    logger, log = logging.getLogger("energon_grain"), BufferingHandler(sys.maxsize)
    log.setLevel(logging.WARNING)
    propagated, logger.propagate = logger.propagate, False
    logger.addHandler(log)
    try:
        return open_it()
    except raised:
        raise
    except EmptyDatasetError as error:
        note(empty, str(error))
    except EnergonGrainError as error:
        note("error", str(error))
    finally:
        logger.removeHandler(log)
        logger.propagate = propagated
        for record in log.buffer:
            note("warning", record.getMessage())
    return None


def _check_shard(
    folder: DataFolder,
    records: RecordEncoding | None,
    index: ColumnarIndex | None,
    shard: str,
    first: int,
    samples: int,
) -> list[LintFinding]:
    """Scan a shard of `samples` samples, the first of which has the index `first`, and report mismatches.

    The columnar index is None if it could not be opened.
    """
    location = folder.shard(shard)
    gone = LintFinding(where=shard, what="the file is missing, but .info.json lists it", way_out=PREPARE_AGAIN)
    if not folder.is_remote and not os.path.isfile(location):
        return [gone]
    try:
        scan, wrong = container_of(records).lint(folder, shard, samples, records, first=first)
    except FileNotFoundError:
        return [gone]
    except (EnergonGrainError, OSError) as error:
        return [
            gone
            if _is_gone(folder, location)
            else LintFinding(where=shard, what=str(error).removeprefix(f"{location}: "))
        ]
    if wrong is not None:
        return [LintFinding(where=shard, what=wrong[0], way_out=wrong[1])]
    if index is not None and not index.scan(index.shards.index(shard)).has_same_layout(scan):
        return [LintFinding(where=shard, what="the shard does not match the columnar index", way_out=_INDEX_AGAIN)]
    return []


def _is_gone(folder: DataFolder, location: str) -> bool:
    try:
        if folder.is_remote:
            remote_files(storage_settings()).size(location)
    except MissingObjectError:
        return True
    return False


class _Samples:
    """Builds samples of a dataset as a loader does, as far as possible without running the dataset's code.

    Args:
        config: Content of `dataset.yaml`; None without one.
        part_names: All part names of the dataset.
        allow_pickle: Also decode pickles, which can run any code.
        trusted_modules: Modules from which sample types may be imported.

    Attributes:
        parts: The parts to read; None for all.
        note: The reason if a loader does more than is checked; else None.

    Raises:
        FieldMapError: The field map does not fit the sample type.
        UntrustedCodeError: A part is a pickle, or the sample type is in a module that is not trusted.
        MissingPackageError: A decoder needs a package that is not installed.
    """

    def __init__(
        self,
        location: str,
        config: DatasetConfig | None,
        part_names: Collection[str],
        *,
        allow_pickle: bool,
        trusted_modules: Collection[str],
    ) -> None:
        self.note: str | None = None
        self.parts: frozenset[str] | None = None
        self._type, self._field_map = None, None
        if config is None:
            self.note = (
                "There is no dataset.yaml, so only auxiliary stores can read this dataset: its parts are decoded, but "
                "no samples are built."
            )
        elif config.field_map is not None and config.sample_type is not None:
            self._type = resolve_class(config.sample_type, trusted_modules=trusted_modules, where=location)
            self._field_map = FieldMap.parse(config.field_map, self._type, where=f"{location}: field_map")
            self.parts = frozenset(self._field_map.parts)
        elif config.kind != "crude":
            self.note = "The dataset builds its samples with its own code, which is not run; its parts are decoded."
        if self.parts is None and config is not None and isinstance(config.part_filter, tuple):
            self.parts = frozenset(config.part_filter)
        self._decoders = _decoders(location, config, part_names, self.parts, allow_pickle)

    def check(self, source: PreparedSource, indices: npt.NDArray[np.int64]) -> tuple[int, list[LintFinding]]:
        """Build the samples `indices` of a source; return their number, and the problems of failed ones."""
        findings: list[LintFinding] = []
        try:
            batch = source.read(indices)
        except (FormatError, OSError) as error:
            if len(indices) > 1:  # find the damaged ones
                each = [self.check(source, np.array([index]))[1] for index in indices]
                return len(indices), list(itertools.chain.from_iterable(each))
            place = source.locate(int(indices[0]))
            return 1, [LintFinding(where=f"{place.shard}/{place.key}", what=str(error))]
        for raw in batch:
            try:
                self._make(raw)
            except Exception as error:  # decoders and sample types may raise any exception
                what = f"{error}" or type(error).__name__
                findings.append(LintFinding(where=f"{raw.shard}/{raw.key}", what=what))
        return len(indices), findings

    def _make(self, raw: RawSample) -> None:
        parts: dict[str, object] = {"__key__": raw.key, "__shard__": raw.shard}
        for name, data in raw.parts.items():
            decode = self._decoders[name]
            parts[name] = decode(data) if decode is not None and isinstance(data, bytes) else data
        if self._type is not None and self._field_map is not None:
            self._type(**{"__key__": raw.key, "__restore_key__": (), **self._field_map.evaluate(parts)})


def _decoders(
    location: str,
    config: DatasetConfig | None,
    part_names: Collection[str],
    parts: Collection[str] | None,
    allow_pickle: bool,
) -> Mapping[str, Callable[[Any], object] | None]:
    """The decoder of each part that is read; None keeps its bytes."""
    if config is not None and config.raw_bytes:
        return dict.fromkeys(part_names)
    options: dict[str, Any] = {"image_decode": "rgb8"}  # fast, and fails for the same files as the other modes
    if config is not None and config.decoder is not None:
        options = {**config.decoder}
    if allow_pickle:
        options["allow_pickle"] = True
    try:
        decoder = SampleDecoder(**options)
    except TypeError as error:
        raise ConfigError(f"{location}: `decoder` in the dataset's configuration: {error}") from error
    return {name: decoder.decoder_for(name) for name in part_names if parts is None or name in parts}


@dataclass(frozen=True, kw_only=True, slots=True)
class LintRequest:
    """A caller's request; the fields are arguments of `lint_dataset`."""

    split_parts: Sequence[str] | None
    split_config: str | None
    dataset_config: str
    allow_pickle: bool
    trusted_modules: Collection[str]
    num_threads: int
    first_samples: bool
    open_part: Callable[[str], object] | None
    progress: Callable[[LintProgress], None]


@dataclass(frozen=True, kw_only=True)
class LintPlan:
    """The checks to run, and on which shards.

    Attributes:
        folder: The dataset.
        request: The caller's request.
        info: Its `.info.json`.
        config: Its configuration; None if it is missing or unreadable.
        splits: Its split file; None if it is missing or unreadable.
        split_parts: The parts to check; None for all shards.
        shards: The shards to check.
        excluded: Shard and key of the samples that the split file excludes.
        checks: The checks, in order.
        findings: Findings from reading the configuration and the splits.
    """

    folder: DataFolder
    request: LintRequest
    info: DatasetInfo
    config: DatasetConfig | None
    splits: SplitConfig | None
    split_parts: Sequence[str] | None
    shards: tuple[str, ...]
    excluded: tuple[tuple[str, str], ...]
    checks: tuple[Check, ...]
    findings: tuple[LintFinding, ...]

    @cached_property
    def first(self) -> dict[str, int]:
        """Index of the first sample of each shard of the dataset."""
        counts = self.info.shard_counts
        return dict(zip(counts, itertools.accumulate(counts.values(), initial=0), strict=False))


Check = Callable[["_Findings"], None]


def lint_dataset(
    root: str | os.PathLike[str],
    *,
    split_parts: Sequence[str] | None = None,
    split_config: str | None = None,
    dataset_config: str = "dataset.yaml",
    allow_pickle: bool = False,
    trusted_modules: Collection[str] = (),
    num_threads: int | None = None,
    first_samples: bool = False,
    open_part: Callable[[str], object] | None = None,
    progress: Callable[[LintProgress], None] = lambda _: None,
) -> LintReport:
    """Compare every shard with its indices, then decode and build every sample, in threads.

    Samples that the split file excludes are skipped. Samples of shards that do not fit their index are not read.

    Args:
        split_parts: Check only the shards of these parts; None checks all shards.
        split_config: Name of the split file; None takes the one named in `dataset.yaml`, or the default.
        allow_pickle: Also decode pickles, which can run any code.
        trusted_modules: Modules from which sample types may be imported.
        num_threads: Number of threads; None takes one per core.
        first_samples: Build only the first sample of each shard, which compares the shard with its index as loaders do.
        open_part: Opens a split part as a loader does. Its errors and warnings become findings.

    Raises:
        DatasetNotFoundError: There is no prepared dataset.
        SplitError: The requested split parts or split file do not exist.
        EmptyDatasetError: A requested split part is empty.
        ReadError: An object store cannot be reached.
    """
    request = LintRequest(
        split_parts=split_parts,
        split_config=split_config,
        dataset_config=dataset_config,
        allow_pickle=allow_pickle,
        trusted_modules=trusted_modules,
        num_threads=num_threads or usable_cores(),
        first_samples=first_samples,
        open_part=open_part,
        progress=progress,
    )
    return carry_out(plan_of(open_data(root), request))


def plan_of(folder: DataFolder, request: LintRequest) -> LintPlan:
    """Read the configuration and the splits of a dataset, and decide what to check. Raises as `lint_dataset`."""
    with naming(folder):
        info = read_info(folder.local)
    findings: list[LintFinding] = []
    guarded = partial(opened, folder.location, findings)
    has_config = (folder.local / META_FOLDER / request.dataset_config).exists()
    config = guarded(partial(_read, folder, read_dataset_config, request.dataset_config)) if has_config else None
    splits = _splits_of(folder, request, info, config, guarded)
    split_parts = request.split_parts
    if split_parts is not None and config is not None and config.split_part is not None:
        split_parts = [config.split_part]  # the configuration overrides the requested part
    shards, excluded = _select(info, splits, split_parts)
    return LintPlan(
        folder=folder,
        request=request,
        info=info,
        config=config,
        splits=splits,
        split_parts=split_parts,
        shards=tuple(shards),
        excluded=tuple(excluded),
        checks=tuple(
            _checks(
                request, is_trained_on=None not in (config, splits), can_be_built=config is not None or not has_config
            )
        ),
        findings=tuple(findings),
    )


def _splits_of(
    folder: DataFolder,
    request: LintRequest,
    info: DatasetInfo,
    config: DatasetConfig | None,
    guarded: Callable[..., Any],
) -> SplitConfig | None:
    meta = folder.local / META_FOLDER
    asked = request.split_parts is not None or request.split_config is not None
    if not (asked or any((meta / name).exists() for name in (request.dataset_config, DEFAULT_SPLIT_CONFIG))):
        return None  # file stores need no splits
    name = request.split_config or (config.split_config if config is not None else None)
    read_splits = partial(read_split_config, shards=info.shard_counts)
    return guarded(partial(_read, folder, read_splits, name), raised=(ReadError, SplitError) if asked else ReadError)


def _checks(request: LintRequest, *, is_trained_on: bool, can_be_built: bool) -> Iterator[Check]:
    """The checks in the order in which they run: later ones need results of earlier ones.

    Args:
        is_trained_on: Whether the dataset has a configuration and splits; file stores need neither.
        can_be_made: Whether samples can be built from parts: the configuration is not damaged.
    """
    if is_trained_on and request.open_part is not None:
        yield _check_parts
    if is_trained_on and request.split_parts is None:
        yield _check_unread
    yield from (_check_index, _check_columns)
    if not request.first_samples:
        yield _check_shards
    if request.split_parts is None:
        yield _check_measured
    if can_be_built:
        yield _check_samples


class _Findings:
    """Findings so far, and results that later checks need.

    Attributes:
        plan: The plan being run.
        pool: Threads to run it.
        findings: All findings, in the order in which they were made.
        index: The columnar index; None if it could not be opened.
        columns: The measured columns; None if they could not be opened.
        whole: Names of the columns whose checksums match.
        broken: Shards that do not fit their indices; their samples are not read.
        samples: Number of samples to build.
    """

    def __init__(self, plan: LintPlan, pool: ThreadPoolExecutor) -> None:
        self.plan = plan
        self.pool = pool
        self.findings = list(plan.findings)
        self.index: ColumnarIndex | None = None
        self.columns: Columns | None = None
        self.whole: list[str] = []
        self.broken: set[str] = set()
        self.samples = 0
        self.guarded = partial(opened, plan.folder.location, self.findings)

    def report(self, stage: Literal["index", "samples"], done: int, total: int) -> None:
        """Call `progress`."""
        self.plan.request.progress(LintProgress(stage=stage, done=done, total=total, findings=len(self.findings)))

    def note(self, what: str, severity: Severity = "note") -> None:
        """Add a finding about the dataset."""
        self.findings.append(LintFinding(severity=severity, where=self.plan.folder.location, what=what))

    def good(self) -> list[str]:
        """The shards that match their indices."""
        return [shard for shard in self.plan.shards if shard not in self.broken]

    def in_parallel(self, function: Callable[..., N], each: Iterable[tuple[Any, ...]]) -> Iterable[N]:
        """The results of a function for each tuple of arguments, in order, computed in parallel."""
        return map_in_order(self.pool, 2 * self.plan.request.num_threads, function, each)


def carry_out(plan: LintPlan) -> LintReport:
    """Run the checks of a plan in sequence."""
    with ThreadPoolExecutor(plan.request.num_threads, thread_name_prefix="lint") as pool:
        found = _Findings(plan, pool)
        for check in plan.checks:
            check(found)
    if found.broken:
        found.note(f"Samples of {len(found.broken)} shards were not decoded, because their index does not match.")
    return LintReport.of(plan.folder.location, found.findings, shards=len(plan.shards), samples=found.samples)


def _check_parts(found: _Findings) -> None:
    """Check that every split part opens as in a loader."""
    plan = found.plan
    assert plan.splits is not None
    assert plan.request.open_part is not None
    for part in plan.split_parts or plan.splits.split_parts:
        found.guarded(partial(plan.request.open_part, part), empty="warning")


def _check_unread(found: _Findings) -> None:
    """Check that every shard is in a split part, and every tar in the index."""
    plan = found.plan
    assert plan.splits is not None
    found.findings += [*_unused(plan.folder, plan.splits, plan.shards), *_not_indexed(plan.folder, plan.info)]


def _check_index(found: _Findings) -> None:
    """Check that the columnar index is intact, keys are unique, and the database and media metadata match it."""
    folder = found.plan.folder

    def checked_index() -> ColumnarIndex:
        index = open_columnar(folder)
        index.check()
        return index

    index = found.index = found.guarded(checked_index)
    if index is not None:
        found.findings += [*_about_keys(folder, index), *_about_sqlite(folder, len(index))]
        found.findings += found.guarded(lambda: [*_about_media(folder, index)]) or ()


def _check_columns(found: _Findings) -> None:
    """Check that measured columns match their checksums and belong to the current samples."""
    folder = found.plan.folder
    if found.index is None:
        return
    columns = found.columns = found.guarded(lambda: Columns(open_prepared(folder)))
    if columns is not None:
        read = partial(partial, _read_column, columns)
        found.whole = [name for name in columns.stored if found.guarded(read(name)) is not None]
        found.findings += [_stale_column(folder.location, name) for name in columns.stale]


def _check_shards(found: _Findings) -> None:
    """Check that every shard matches its indices."""
    plan, shards = found.plan, found.plan.shards
    found.report("index", 0, len(shards))
    records, counts = read_records_file(plan.folder.local), plan.info.shard_counts
    described = ((plan.folder, records, found.index, shard, plan.first[shard], counts[shard]) for shard in shards)
    scanned = found.in_parallel(_check_shard, described)
    for done, (shard, wrong) in enumerate(zip(shards, scanned, strict=True), 1):
        found.findings += wrong
        found.broken |= {shard} if wrong else set()
        found.report("index", done, len(shards))


def _check_measured(found: _Findings) -> None:
    """Check for a few samples that the functions of columns return the stored values."""
    folder, trusted, columns = found.plan.folder, found.plan.request.trusted_modules, found.columns
    if columns is not None and found.whole and not found.broken:
        compared = partial(_compare_columns, folder.bare or folder.location, columns, found.whole, trusted)
        found.guarded(lambda: found.findings.extend(compared()))


def _check_samples(found: _Findings) -> None:
    """Check that every sample decodes, or the first one of each shard, without running the dataset's code."""
    plan, request = found.plan, found.plan.request
    good = found.good()
    if not good or (builder := _samples_of(found)) is None:
        return
    excluded = [pair for pair in plan.excluded if pair[0] not in found.broken and not request.first_samples]
    with contextlib.closing(open_prepared(plan.folder, shards=good, parts=builder.parts, excluded=excluded)) as source:
        if request.first_samples:
            firsts = [np.array([plan.first[shard]]) for shard in good if plan.info.shard_counts[shard]]
            _make(found, builder, source, firsts, len(firsts))
        else:
            _make(found, builder, source, _chunks(source), len(source))


def _make(
    found: _Findings, builder: _Samples, source: PreparedSource, chunks: Iterable[npt.NDArray[np.int64]], samples: int
) -> None:
    found.samples, done = samples, 0
    left_out = {f"{shard}/{key}" for shard, key in found.plan.excluded}
    found.report("samples", 0, samples)
    for count, wrong in found.in_parallel(builder.check, ((source, each) for each in chunks)):
        found.findings += [finding for finding in wrong if finding.where not in left_out]
        done += count
        found.report("samples", done, samples)


def _samples_of(found: _Findings) -> _Samples | None:
    """The builder of the dataset's samples; None, with a finding, if it cannot be created."""
    plan, request = found.plan, found.plan.request
    if found.index is None:
        return None
    try:
        builder = _Samples(
            plan.folder.location,
            plan.config,
            found.index.part_names,
            allow_pickle=request.allow_pickle,
            trusted_modules=request.trusted_modules,
        )
    except (ConfigError, UntrustedCodeError) as error:
        if not any(finding.severity == "error" for finding in found.findings):  # else opening a split part reported it
            found.note(str(error), "error")
        return None
    if builder.note is not None:
        found.note(builder.note)
    return builder


def _read(folder: DataFolder, read: Callable[[Path, N], T], name: N) -> T:
    with naming(folder):
        return read(folder.local, name)


def _select(
    info: DatasetInfo, splits: SplitConfig | None, split_parts: Sequence[str] | None
) -> tuple[Iterable[str], Iterable[tuple[str, str]]]:
    """The shards to check, each once, and the excluded samples."""
    if splits is None:
        return info.shard_counts, ()
    if split_parts is None:
        pairs = (excluded_sample(exclude, info) for exclude in splits.exclude)
        return (shard for shard in info.shard_counts if shard not in splits.exclude), filter(None, pairs)
    chosen = [select_shards(splits, part, info) for part in split_parts]
    shards = itertools.chain.from_iterable(selected.shards for selected in chosen)
    pairs = itertools.chain.from_iterable(selected.excluded_samples for selected in chosen)
    return dict.fromkeys(shards), dict.fromkeys(pairs)


def _unused(folder: DataFolder, splits: SplitConfig, shards: Sequence[str]) -> Iterator[LintFinding]:
    listed = {shard for part in splits.split_parts.values() for shard in part}
    unused = [shard for shard in shards if shard not in listed]
    if unused:
        yield LintFinding(
            severity="note",
            where=folder.shard(f"{META_FOLDER}/{Path(splits.where).name}"),
            what=f"{len(unused):,} of {len(shards):,} shards are in no split part, so never read: {_some(unused)}",
            way_out="add them to a part unless this is intended (with some ratios, `energon prepare` drops the last)",
        )


def _not_indexed(folder: DataFolder, info: DatasetInfo) -> Iterator[LintFinding]:
    """Tars that were added to the folder after it was prepared, or excluded then."""
    tars = container_of(None)
    if is_url(folder.location) or not all(map(tars.is_shard, info.shard_counts)):
        return
    more = sorted(name for name in filter(tars.is_shard, list_files(folder.location)) if name not in info.shard_counts)
    if more:
        yield LintFinding(
            severity="note",
            where=folder.location,
            what=f"{len(more):,} of the tar files in the folder are not in the index, so never read: {_some(more)}",
            way_out=f"`energon-grain prepare {folder.location} --append` adds them",
        )


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:_LISTED]) + (", …" if len(names) > _LISTED else "")


def _about_keys(folder: DataFolder, index: ColumnarIndex) -> Iterator[LintFinding]:
    """Keys that occur twice, members that occur twice in a sample, and keys that probably end too early."""
    repeated: list[str] = []
    count = 0
    for start in range(0, len(index), _KEYS_COMPARED):
        keys = index.keys(np.asarray(index.key_order[start : start + _KEYS_COMPARED + 1]))
        again = [key for key, following in pairwise(keys) if key == following]
        count += len(again)
        repeated += again[: _LISTED - len(repeated)]
    if count:
        yield LintFinding(
            severity="warning",
            where=folder.location,
            what=f"{count:,} samples have the key of another one, such as {', '.join(map(repr, repeated))}: training "
            "uses all of them, but joins and `prepare` refuse the dataset, and a lookup by key finds only the first",
            way_out="rename them in the tars, for example with `energon prepare --fix-duplicates`, and prepare again",
        )
    members = RepeatedMembers.of_index(index)
    if members.count:
        yield LintFinding(severity="warning", where=folder.location, what=str(members))
    names = index.part_names
    if len(names) >= _FEW_PARTS and len(index.part_name) < 2 * len(names):
        yield LintFinding(
            severity="warning",
            where=folder.location,
            what=f"Nearly all of the {len(names):,} part names occur only once: {', '.join(names[:_LISTED])}, …. A "
            "key ends at the first dot of a file's name, and the rest is the name of the part",
            way_out="write the tars without dots in keys",
        )


def _about_sqlite(folder: DataFolder, samples: int) -> Iterator[LintFinding]:
    """Whether `index.sqlite` has all samples. Energon's joins and auxiliary stores read it; ours do not."""
    path = folder.local / META_FOLDER / INDEX_SQLITE
    if not path.exists():
        return
    try:
        uri = f"{path.absolute().as_uri()}?mode=ro&immutable=1"
        with contextlib.closing(sqlite3.connect(uri, uri=True)) as database:
            (rows,) = database.execute("SELECT COUNT(*) FROM samples").fetchone()
    except sqlite3.DatabaseError as error:
        wrong = str(error)
    else:
        if rows == samples:
            return
        wrong = f"has {rows:,} samples, but the dataset has {samples:,}"
    yield LintFinding(
        severity="warning",
        where=f"{path}",
        what=f"{wrong}. Joins and auxiliary stores of Energon read this file; those of energon-grain do not",
        way_out=PREPARE_AGAIN,
    )


def _about_media(folder: DataFolder, index: ColumnarIndex) -> Iterator[LintFinding]:
    """Files that the media filters expect to be media, but that have no metadata."""
    if not (folder.local / META_FOLDER / INDEX_SQLITE).exists():
        return  # the database of a remote dataset is not fetched for this check
    table = MediaTable(folder.location)
    filters, unknown = table.filters(), list[str]()
    if not filters:
        return
    for names in _names_of_files(index):
        unknown += table.unknown([name for name in names if any(each.expects(name) for each in filters)])
    if unknown:
        listed = ", ".join(unknown[:_LISTED_MEDIA]) + (", …" if len(unknown) > _LISTED_MEDIA else "")
        yield LintFinding(
            severity="warning",
            where=folder.location,
            what=f"{counted(len(unknown), 'file')} expected to be media, but without metadata: {listed}. The "
            "headers are damaged, or the files were added after the metadata were collected",
            way_out="run `energon-grain prepare-media` with the same --media-metadata-by-…; it reports damaged files",
        )


def _names_of_files(index: ColumnarIndex) -> Iterator[list[str]]:
    """The file names of all parts, in blocks of samples."""
    for begin in range(0, len(index), _KEYS_COMPARED):
        samples = np.arange(begin, min(begin + _KEYS_COMPARED, len(index)))
        keys, first = index.keys(samples), index.part_start[samples]
        counts = (index.part_start[samples + 1] - first).tolist()
        parts = [index.part_names[n] for n in index.part_name[first[0] : index.part_start[samples[-1] + 1]].tolist()]
        owners = itertools.chain.from_iterable(map(itertools.repeat, keys, counts))
        yield [f"{key}.{part}" for key, part in zip(owners, parts, strict=True)]


def _read_column(columns: Columns, name: str) -> str:
    for _ in columns.blocks(name):  # reading compares the column with its checksums
        pass
    return name


def _compare_columns(
    location: str,
    columns: Columns,
    names: Collection[str],
    trusted_modules: Collection[str],
) -> Iterator[LintFinding]:
    """Measure a few samples again, and report columns that differ. Attached columns are skipped."""
    source = columns.source
    with contextlib.closing(source):
        rows = np.unique(np.linspace(0, len(source) - 1, min(_COMPARED, len(source))).astype(np.int64))
        again = _MeasuredAgain(location, source, rows, source.read(rows)._parts_of_each(), trusted_modules)
        for name in names:
            if not (stored := columns.stored[name]).function.startswith(ATTACHED):
                differs = again.headers_differ if stored.function == HEADER_FUNCTION else again.function_differs
                wrong = differs(name, stored, source.column(name, rows))
                yield from () if wrong is None else (wrong,)


@dataclass(frozen=True, slots=True)
class _MeasuredAgain:
    """The samples `rows` of a source and their parts, for comparison with stored columns."""

    location: str
    source: Source
    rows: npt.NDArray[np.int64]
    samples: list[Parts]
    trusted_modules: Collection[str]

    def headers_differ(self, name: str, stored: StoredColumn, held: npt.NDArray[Any]) -> LintFinding | None:
        """The problem of a media metadata column, or None."""
        for row, (number, sample) in enumerate(zip(held, self._parts_of(stored), strict=True)):
            if not _is_of_header(name, number, sample):
                what = f"holds {number:g} for {self._place(row)}, but no media header in this sample has that value"
                return self._find(name, what, self._again(name, stored))
        return None

    def function_differs(self, name: str, stored: StoredColumn, held: npt.NDArray[Any]) -> LintFinding | None:
        """The problem of a column computed by a function, or None."""
        module, _, function = stored.function.partition(":")
        ref, where = ClassRef(module=module, name=function), f"{self.location}: the column {name!r}"
        try:
            found = resolve_function(ref, trusted_modules=self.trusted_modules, where=where)
            measure = Measurement.of(name, found, None)
            now = measured(measure, self._parts_of(stored), self._place)
        except UntrustedCodeError:
            what = f"was not measured again: {stored.function} is called only if its module is trusted"
            return self._find(name, what, f"pass --trust-module {module}", "note")
        except (ConfigError, FatalSampleError) as error:
            return self._find(name, f"cannot be measured again: {error}")
        differ = [row for row, (was, is_) in enumerate(zip(held, now, strict=True)) if not _same(was, is_)]
        if not differ:
            return None
        row, versions = differ[0], f" (version {measure.version} now, {stored.version} then)"
        what = (
            f"holds {_digits(held[row])} for {self._place(row)}, but {stored.function}"
            f"{versions if measure.version != stored.version else ''} now returns {_digits(now[row])}; {len(differ)} "
            f"of the {len(self.rows)} samples that were measured again differ"
        )
        return self._find(name, what, self._again(name, stored))

    def _parts_of(self, stored: StoredColumn) -> list[Parts]:
        parts = set(stored.parts)
        return [{part: each[part] for part in each if not parts or part in parts} for each in self.samples]

    def _place(self, row: int) -> str:
        return self.source.place_of(int(self.rows[row]))

    def _again(self, name: str, stored: StoredColumn) -> str:
        return f"make it again: {stored.made_by(name, self.location)}"

    def _find(self, name: str, what: str, way_out: str = "", severity: Severity = "warning") -> LintFinding:
        return LintFinding(severity=severity, where=self.location, what=f"The column {name!r} {what}", way_out=way_out)


def _same(was: np.generic, now: np.generic) -> bool:
    return was.item() == now.item() or bool(np.isnan(was) and np.isnan(now))


def _digits(number: np.generic) -> str:
    return f"{number:.17g}" if number.dtype.kind == "f" else f"{number}"


def _is_of_header(name: str, number: float, sample: Parts) -> bool:
    """Whether a media header in the sample has the value of a media column."""
    if np.isnan(number):
        return True
    fact, _, part = name.partition(".")
    by = MediaFilterConfig.parse(None, True, False)
    for each, data in sample.items():
        if not isinstance(data, bytes) or part not in ("", each):
            continue
        with contextlib.suppress(DecodingError):
            metadata = read_header(data, len(data), lambda at, count, data=data: data[at : at + count], f"a.{each}", by)
            if metadata is not None and media_numbers(metadata)[fact] == number:
                return True
    return False


def about_columns(
    location: str, trusted_modules: Collection[str], columns: Columns | None = None
) -> Iterator[LintFinding]:
    """Problems of the columns of a file or files, or of open columns, outside a prepared dataset.

    Raises IndexFileError if their checksums do not match.
    """
    columns = columns_of(location) if columns is None else columns
    for name in columns.stored:
        _read_column(columns, name)
    yield from _compare_columns(location, columns, list(columns.stored), trusted_modules)
    yield from (_stale_column(location, name) for name in columns.stale)


def _stale_column(location: str, name: str) -> LintFinding:
    what = f"The column {name!r} was measured for samples that have changed or are missing, so it is not used"
    return LintFinding(severity="warning", where=location, what=what, way_out="measure the column again")


def _chunks(source: PreparedSource) -> Iterator[npt.NDArray[np.int64]]:
    """Cut the samples of a source into runs of at most 256 samples and about 4 MiB."""
    start = 0
    while start < len(source):
        block = np.arange(start, min(start + _CHUNK_SAMPLES, len(source)))
        ends = np.cumsum(source.sizes(block))
        count = max(1, int(np.searchsorted(ends, _CHUNK_BYTES, side="right")))
        yield block[:count]
        start += count
