# SPDX-License-Identifier: Apache-2.0
"""Finding what is wrong with a dataset or a JSONL file: indices, configuration, samples, settings."""

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

T = TypeVar("T")
Severity = Literal["error", "warning", "note"]
"""`error`: a loader refuses it, or drops the sample. `warning`: it loads, and probably is not what was meant.
`note`: good to know, such as what was not looked at."""
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
    """One thing that is wrong, or that one should know.

    Attributes:
        severity: See `Severity`.
        where: Of what a dataset holds, its name there: `shard_000.tar`, `shard_000.tar/<key>`, `x.jsonl:<line>`. Else
            the path of the dataset, or of a file with the place in it: `coco/.nv-meta/dataset.yaml: $.field_map`.
        what: What is wrong there.
        way_out: What to do, where `what` does not say it already.
    """

    severity: Severity = "error"
    where: str
    what: str
    way_out: str = ""

    def __str__(self) -> str:
        return f"{self.where}: {self.what}" + (f"; {self.way_out}" if self.way_out else "")


@dataclass(frozen=True, kw_only=True, slots=True)
class LintProgress:
    """How far lint is: shards compared with their index, or samples decoded."""

    stage: Literal["index", "samples"]
    done: int
    total: int
    findings: int


@dataclass(frozen=True, kw_only=True, slots=True)
class LintReport:
    """What lint looked at and found.

    Attributes:
        root: The dataset or metadataset, its path or URL.
        shards: Shards that were compared with their indices, or files that were read; None: the data have none.
        samples: Samples that were decoded.
        findings: Errors first, then warnings, then notes; each in the order of shards, those about indices first.
    """

    root: str
    shards: int | None
    samples: int
    findings: tuple[LintFinding, ...]

    @classmethod
    def of(cls, root: str, findings: Iterable[LintFinding], *, shards: int | None, samples: int) -> Self:
        """Make a report of findings in any order; those that come again are left out."""
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
    """Open something; where that raises an error, note it and return None. Note the warnings that it logs, too.

    Args:
        where: What is opened: a path or URL, or a place in a document. A message that begins with this file, or one
            below this folder, is a finding of what it names.
        empty: How bad it is that nothing is left of it.
        raised: Errors that are no findings; a store that stays away says nothing of the data in it.
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
    """Scan a shard of `samples` samples, the first of which has the number `first`, and report what does not fit.

    The columnar index is None where it could not be opened.
    """
    location = folder.shard(shard)
    gone = LintFinding(where=shard, what="the file is gone, but .info.json lists it", way_out=PREPARE_AGAIN)
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
        return [LintFinding(where=shard, what="the columnar index says otherwise", way_out=_INDEX_AGAIN)]
    return []


def _is_gone(folder: DataFolder, location: str) -> bool:
    try:
        if folder.is_remote:
            remote_files(storage_settings()).size(location)
    except MissingObjectError:
        return True
    return False


class _Samples:
    """Makes samples of a dataset as a loader does, as far as no code of the dataset is needed for that.

    Args:
        config: What `dataset.yaml` says; None where there is none.
        part_names: All part names of the dataset.
        allow_pickle: Decode pickles too. They can run any code.
        trusted_modules: Modules whose sample types may be imported.

    Attributes:
        parts: The parts that are read; None for all.
        note: Why not all that a loader does is checked; None where it is.

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
                "There is no dataset.yaml, without which only auxiliary stores read a dataset: parts are decoded, but "
                "no samples are made of them."
            )
        elif config.field_map is not None and config.sample_type is not None:
            self._type = resolve_class(config.sample_type, trusted_modules=trusted_modules, where=location)
            self._field_map = FieldMap.parse(config.field_map, self._type, where=f"{location}: field_map")
            self.parts = frozenset(self._field_map.parts)
        elif config.kind != "crude":
            self.note = "The dataset makes its samples by code of its own, which is not run; its parts are decoded."
        if self.parts is None and config is not None and isinstance(config.part_filter, tuple):
            self.parts = frozenset(config.part_filter)
        self._decoders = _decoders(location, config, part_names, self.parts, allow_pickle)

    def check(self, source: PreparedSource, indices: npt.NDArray[np.int64]) -> tuple[int, list[LintFinding]]:
        """Make the samples `indices` of a source; return their number, and what is wrong with those that fail."""
        findings: list[LintFinding] = []
        try:
            batch = source.read(indices)
        except (FormatError, OSError) as error:
            if len(indices) > 1:  # find out which ones
                each = [self.check(source, np.array([index]))[1] for index in indices]
                return len(indices), list(itertools.chain.from_iterable(each))
            place = source.locate(int(indices[0]))
            return 1, [LintFinding(where=f"{place.shard}/{place.key}", what=str(error))]
        for raw in batch:
            try:
                self._make(raw)
            except Exception as error:  # decoders and sample types may raise anything
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
    """What decodes each part that is read; None leaves its bytes."""
    if config is not None and config.raw_bytes:
        return dict.fromkeys(part_names)
    options: dict[str, Any] = {"image_decode": "rgb8"}  # quick, and it fails where the others fail
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
    """What a caller asks for; the fields are arguments of `lint_dataset`."""

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
    """What is checked, and by which functions.

    Attributes:
        folder: The dataset.
        request: What was asked for.
        info: Its `.info.json`.
        config: Its configuration; None: it has none, or none that can be read.
        splits: Its split file; None: the same.
        split_parts: The parts that are looked at; None: all shards.
        shards: The shards that are looked at.
        excluded: Shard and key of the samples that the split file leaves out.
        checks: They run in this order.
        findings: What was found while the configuration and the splits were read.
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
        """Number of the first sample of each shard of the dataset."""
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
    """Compare every shard with its indices, then decode every sample and make it, in threads.

    Samples that the split file excludes are left out. Samples of shards that do not fit their index are not read.

    Args:
        split_parts: Look only at the shards of these parts; None looks at all shards.
        split_config: Name of the split file; None takes what `dataset.yaml` names, or the default.
        allow_pickle: Decode pickles too. They can run any code.
        trusted_modules: Modules whose sample types may be imported.
        num_threads: Threads; None takes one for each core.
        first_samples: Of each shard, only make the first sample, which compares the shard with its index as loaders do.
        open_part: Opens a split part as a loader does. What it raises or warns of is found here.

    Raises:
        DatasetNotFoundError: There is no prepared dataset.
        SplitError: The split parts or the split file that were asked for are not there.
        EmptyDatasetError: A split part that was asked for is empty.
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
    """Read the configuration and the splits of a dataset, and decide what will be checked. Raises as `lint_dataset`."""
    with naming(folder):
        info = read_info(folder.local)
    findings: list[LintFinding] = []
    look = partial(opened, folder.location, findings)
    has_config = (folder.local / META_FOLDER / request.dataset_config).exists()
    config = look(partial(_read, folder, read_dataset_config, request.dataset_config)) if has_config else None
    splits = _splits_of(folder, request, info, config, look)
    split_parts = request.split_parts
    if split_parts is not None and config is not None and config.split_part is not None:
        split_parts = [config.split_part]  # which is read whatever a program asks for
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
                request, is_trained_on=None not in (config, splits), can_be_made=config is not None or not has_config
            )
        ),
        findings=tuple(findings),
    )


def _splits_of(
    folder: DataFolder,
    request: LintRequest,
    info: DatasetInfo,
    config: DatasetConfig | None,
    look: Callable[..., Any],
) -> SplitConfig | None:
    meta = folder.local / META_FOLDER
    asked = request.split_parts is not None or request.split_config is not None
    if not (asked or any((meta / name).exists() for name in (request.dataset_config, DEFAULT_SPLIT_CONFIG))):
        return None  # file stores need none
    name = request.split_config or (config.split_config if config is not None else None)
    read_splits = partial(read_split_config, shards=info.shard_counts)
    return look(partial(_read, folder, read_splits, name), raised=(ReadError, SplitError) if asked else ReadError)


def _checks(request: LintRequest, *, is_trained_on: bool, can_be_made: bool) -> Iterator[Check]:
    """The checks in the order in which they run: later ones need what earlier ones opened.

    Args:
        is_trained_on: Whether there are a configuration and splits, which file stores need not have.
        can_be_made: Whether samples can be made of parts: the configuration is not damaged.
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
    if can_be_made:
        yield _check_samples


class _Findings:
    """What a lint found so far, and what later checks need of earlier ones.

    Attributes:
        plan: What is carried out.
        pool: Threads for it.
        findings: All findings, in the order in which they were made.
        index: The columnar index; None: it could not be opened.
        columns: What was measured of the samples; None: it could not be opened.
        whole: Names of the columns that agree with their checksums.
        broken: Shards that do not fit their indices; their samples are not read.
        samples: Number of samples that are made.
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
        self.look = partial(opened, plan.folder.location, self.findings)

    def report(self, stage: Literal["index", "samples"], done: int, total: int) -> None:
        """Call `progress`."""
        self.plan.request.progress(LintProgress(stage=stage, done=done, total=total, findings=len(self.findings)))

    def note(self, what: str, severity: Severity = "note") -> None:
        """Add a finding about the dataset."""
        self.findings.append(LintFinding(severity=severity, where=self.plan.folder.location, what=what))

    def good(self) -> list[str]:
        """The shards that fit their indices."""
        return [shard for shard in self.plan.shards if shard not in self.broken]

    def side_by_side(self, function: Callable[..., N], each: Iterable[tuple[Any, ...]]) -> Iterable[N]:
        """The results of a function for each tuple of arguments, in order."""
        return map_in_order(self.pool, 2 * self.plan.request.num_threads, function, each)


def carry_out(plan: LintPlan) -> LintReport:
    """Run the checks of a plan, one after the other."""
    with ThreadPoolExecutor(plan.request.num_threads, thread_name_prefix="lint") as pool:
        found = _Findings(plan, pool)
        for check in plan.checks:
            check(found)
    if found.broken:
        found.note(f"Samples of {len(found.broken)} shards were not decoded, because their index does not fit.")
    return LintReport.of(plan.folder.location, found.findings, shards=len(plan.shards), samples=found.samples)


def _check_parts(found: _Findings) -> None:
    """Every split part opens as in a loader."""
    plan = found.plan
    assert plan.splits is not None
    assert plan.request.open_part is not None
    for part in plan.split_parts or plan.splits.split_parts:
        found.look(partial(plan.request.open_part, part), empty="warning")


def _check_unread(found: _Findings) -> None:
    """Every shard is in a split part, and every tar in the index."""
    plan = found.plan
    assert plan.splits is not None
    found.findings += [*_unused(plan.folder, plan.splits, plan.shards), *_not_indexed(plan.folder, plan.info)]


def _check_index(found: _Findings) -> None:
    """The columnar index is whole, keys are distinct, and the database and metadata of media fit it."""
    folder = found.plan.folder

    def checked_index() -> ColumnarIndex:
        index = open_columnar(folder)
        index.check()
        return index

    index = found.index = found.look(checked_index)
    if index is not None:
        found.findings += [*_about_keys(folder, index), *_about_sqlite(folder, len(index))]
        found.findings += found.look(lambda: [*_about_media(folder, index)]) or ()


def _check_columns(found: _Findings) -> None:
    """What was measured agrees with its checksums, and is of the samples that are here."""
    folder = found.plan.folder
    if found.index is None:
        return
    columns = found.columns = found.look(lambda: Columns(open_prepared(folder)))
    if columns is not None:
        read = partial(partial, _read_column, columns)
        found.whole = [name for name in columns.stored if found.look(read(name)) is not None]
        found.findings += [_stale_column(folder.location, name) for name in columns.stale]


def _check_shards(found: _Findings) -> None:
    """Every shard fits its indices."""
    plan, shards = found.plan, found.plan.shards
    found.report("index", 0, len(shards))
    records, counts = read_records_file(plan.folder.local), plan.info.shard_counts
    described = ((plan.folder, records, found.index, shard, plan.first[shard], counts[shard]) for shard in shards)
    scanned = found.side_by_side(_check_shard, described)
    for done, (shard, wrong) in enumerate(zip(shards, scanned, strict=True), 1):
        found.findings += wrong
        found.broken |= {shard} if wrong else set()
        found.report("index", done, len(shards))


def _check_measured(found: _Findings) -> None:
    """The functions of columns return what the columns hold, for a few samples."""
    folder, trusted, columns = found.plan.folder, found.plan.request.trusted_modules, found.columns
    if columns is not None and found.whole and not found.broken:
        compared = partial(_compare_columns, folder.bare or folder.location, columns, found.whole, trusted)
        found.look(lambda: found.findings.extend(compared()))


def _check_samples(found: _Findings) -> None:
    """Every sample decodes, or the first one of each shard, as far as no code of the dataset is needed."""
    plan, request = found.plan, found.plan.request
    good = found.good()
    if not good or (making := _samples_of(found)) is None:
        return
    excluded = [pair for pair in plan.excluded if pair[0] not in found.broken and not request.first_samples]
    with contextlib.closing(open_prepared(plan.folder, shards=good, parts=making.parts, excluded=excluded)) as source:
        if request.first_samples:
            firsts = [np.array([plan.first[shard]]) for shard in good if plan.info.shard_counts[shard]]
            _make(found, making, source, firsts, len(firsts))
        else:
            _make(found, making, source, _chunks(source), len(source))


def _make(
    found: _Findings, making: _Samples, source: PreparedSource, chunks: Iterable[npt.NDArray[np.int64]], samples: int
) -> None:
    found.samples, done = samples, 0
    left_out = {f"{shard}/{key}" for shard, key in found.plan.excluded}
    found.report("samples", 0, samples)
    for count, wrong in found.side_by_side(making.check, ((source, each) for each in chunks)):
        found.findings += [finding for finding in wrong if finding.where not in left_out]
        done += count
        found.report("samples", done, samples)


def _samples_of(found: _Findings) -> _Samples | None:
    """What makes the samples of the dataset; None, and a finding, where it cannot be made."""
    plan, request = found.plan, found.plan.request
    if found.index is None:
        return None
    try:
        making = _Samples(
            plan.folder.location,
            plan.config,
            found.index.part_names,
            allow_pickle=request.allow_pickle,
            trusted_modules=request.trusted_modules,
        )
    except (ConfigError, UntrustedCodeError) as error:
        if not any(finding.severity == "error" for finding in found.findings):  # else opening a split part said why
            found.note(str(error), "error")
        return None
    if making.note is not None:
        found.note(making.note)
    return making


def _read(folder: DataFolder, read: Callable[[Path, N], T], name: N) -> T:
    with naming(folder):
        return read(folder.local, name)


def _select(
    info: DatasetInfo, splits: SplitConfig | None, split_parts: Sequence[str] | None
) -> tuple[Iterable[str], Iterable[tuple[str, str]]]:
    """The shards to look at, each once, and the samples that are excluded."""
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
            what=f"{len(unused):,} of {len(shards):,} shards in no split part, so they are never read: {_some(unused)}",
            way_out="add them to one if that was not meant (`energon prepare` loses the last one to some ratios)",
        )


def _not_indexed(folder: DataFolder, info: DatasetInfo) -> Iterator[LintFinding]:
    """Tars that were put into the folder after it was prepared, or left out then."""
    tars = container_of(None)
    if is_url(folder.location) or not all(map(tars.is_shard, info.shard_counts)):
        return
    more = sorted(name for name in filter(tars.is_shard, list_files(folder.location)) if name not in info.shard_counts)
    if more:
        yield LintFinding(
            severity="note",
            where=folder.location,
            what=f"not in the index, so never read: {len(more):,} of the tar files that lie there: {_some(more)}",
            way_out=f"`energon-grain prepare {folder.location} --append` adds them",
        )


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:_LISTED]) + (", …" if len(names) > _LISTED else "")


def _about_keys(folder: DataFolder, index: ColumnarIndex) -> Iterator[LintFinding]:
    """Keys that come twice, members that come twice in a sample, and keys that end too early."""
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
            what=f"{count:,} samples have the key of another one, such as {', '.join(map(repr, repeated))}: all are "
            "trained on, but joins and `prepare` refuse the dataset, and by its key only the first is found",
            way_out="rename them in the tars (`energon prepare --fix-duplicates` does), and prepare again",
        )
    members = RepeatedMembers.of_index(index)
    if members.count:
        yield LintFinding(severity="warning", where=folder.location, what=str(members))
    names = index.part_names
    if len(names) >= _FEW_PARTS and len(index.part_name) < 2 * len(names):
        yield LintFinding(
            severity="warning",
            where=folder.location,
            what=f"Hardly any of the {len(names):,} names of parts comes twice: {', '.join(names[:_LISTED])}, …. A key "
            "ends at the first dot of a file's name, and what follows is the name of the part",
            way_out="write the tars with no dots in keys",
        )


def _about_sqlite(folder: DataFolder, samples: int) -> Iterator[LintFinding]:
    """Whether `index.sqlite`, which Energon's joins and auxiliary stores read and ours do not, has all samples."""
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
        wrong = f"has {rows:,} samples, the dataset {samples:,}"
    yield LintFinding(
        severity="warning",
        where=f"{path}",
        what=f"{wrong}. Energon's joins and auxiliary stores read it, ours do not",
        way_out=PREPARE_AGAIN,
    )


def _about_media(folder: DataFolder, index: ColumnarIndex) -> Iterator[LintFinding]:
    """Files that should be media, by what was looked for, and of which nothing is known."""
    if not (folder.local / META_FOLDER / INDEX_SQLITE).exists():
        return  # nor is the database of a remote dataset fetched for it
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
            what=f"Nothing is known of {len(unknown):,} files that should be media: {listed}. Their headers are "
            "damaged, or they were not there when metadata were gathered",
            way_out="`energon-grain prepare-media`, with the same --media-metadata-by-…, says which are damaged",
        )


def _names_of_files(index: ColumnarIndex) -> Iterator[list[str]]:
    """The names of all members, in blocks of samples."""
    for begin in range(0, len(index), _KEYS_COMPARED):
        samples = np.arange(begin, min(begin + _KEYS_COMPARED, len(index)))
        keys, first = index.keys(samples), index.part_start[samples]
        counts = (index.part_start[samples + 1] - first).tolist()
        parts = [index.part_names[n] for n in index.part_name[first[0] : index.part_start[samples[-1] + 1]].tolist()]
        owners = itertools.chain.from_iterable(map(itertools.repeat, keys, counts))
        yield [f"{key}.{part}" for key, part in zip(owners, parts, strict=True)]


def _read_column(columns: Columns, name: str) -> str:
    for _ in columns.blocks(name):  # which compares it with its checksums
        pass
    return name


def _compare_columns(
    location: str,
    columns: Columns,
    names: Collection[str],
    trusted_modules: Collection[str],
) -> Iterator[LintFinding]:
    """Measure a few samples again, and report the columns that differ. Those that were attached are left out."""
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
    """The samples `rows` of a source and their parts, to compare with the columns of a dataset or file."""

    location: str
    source: Source
    rows: npt.NDArray[np.int64]
    samples: list[Parts]
    trusted_modules: Collection[str]

    def headers_differ(self, name: str, stored: StoredColumn, held: npt.NDArray[Any]) -> LintFinding | None:
        """What is wrong with a column of metadata of media."""
        for row, (number, sample) in enumerate(zip(held, self._parts_of(stored), strict=True)):
            if not _is_of_header(name, number, sample):
                what = f"says {number:g} of {self._place(row)}, and no header in it does"
                return self._find(name, what, self._again(name, stored))
        return None

    def function_differs(self, name: str, stored: StoredColumn, held: npt.NDArray[Any]) -> LintFinding | None:
        """What is wrong with a column that a function made."""
        module, _, function = stored.function.partition(":")
        ref, where = ClassRef(module=module, name=function), f"{self.location}: the column {name!r}"
        try:
            found = resolve_function(ref, trusted_modules=self.trusted_modules, where=where)
            measure = Measurement.of(name, found, None)
            now = measured(measure, self._parts_of(stored), self._place)
        except UntrustedCodeError:
            what = f"was not measured again: {stored.function} is called only if the module is trusted"
            return self._find(name, what, f"give --trust-module {module}", "note")
        except (ConfigError, FatalSampleError) as error:
            return self._find(name, f"cannot be measured again: {error}")
        differ = [row for row, (was, is_) in enumerate(zip(held, now, strict=True)) if not _same(was, is_)]
        if not differ:
            return None
        row, versions = differ[0], f" (version {measure.version} now, {stored.version} then)"
        what = (
            f"says {_digits(held[row])} of {self._place(row)}, and {stored.function}"
            f"{versions if measure.version != stored.version else ''} says {_digits(now[row])}; of {len(self.rows)} "
            f"samples that were measured again {len(differ)} differ"
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
    """Whether the header of a part says what a column of media does; of other parts nothing is known."""
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
    """What is odd about the columns of a file or files, or those that were opened, and not in a dataset itself.

    Raises IndexFileError if they are not what was written.
    """
    columns = columns_of(location) if columns is None else columns
    for name in columns.stored:
        _read_column(columns, name)
    yield from _compare_columns(location, columns, list(columns.stored), trusted_modules)
    yield from (_stale_column(location, name) for name in columns.stale)


def _stale_column(location: str, name: str) -> LintFinding:
    what = f"The column {name!r} is of samples that are not here any more, so it is not given out"
    return LintFinding(severity="warning", where=location, what=what, way_out="measure again")


def _chunks(source: PreparedSource) -> Iterator[npt.NDArray[np.int64]]:
    """Cut the samples of a source into runs of at most 256 samples and about 4 MiB."""
    start = 0
    while start < len(source):
        block = np.arange(start, min(start + _CHUNK_SAMPLES, len(source)))
        ends = np.cumsum(source.sizes(block))
        count = max(1, int(np.searchsorted(ends, _CHUNK_BYTES, side="right")))
        yield block[:count]
        start += count
