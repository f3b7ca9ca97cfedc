"""Finding what is wrong with a dataset or a JSONL file: indices, configuration, samples, settings."""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import re
import sqlite3
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
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
from energon_grain.formats.array_record import RecordEncoding, read_records_file, scan_records
from energon_grain.formats.class_ref import ClassRef, resolve_class, resolve_function
from energon_grain.formats.columnar import ColumnarIndex, open_columnar
from energon_grain.formats.columnar_build import scan_checked
from energon_grain.formats.columns import ATTACHED
from energon_grain.formats.data_folder import DataFolder, naming
from energon_grain.formats.dataset_config import DatasetConfig, read_dataset_config
from energon_grain.formats.nv_meta import INDEX_SQLITE, META_FOLDER, DatasetInfo, read_info
from energon_grain.formats.splits import (
    DEFAULT_SPLIT_CONFIG,
    SplitConfig,
    excluded_sample,
    read_split_config,
    select_shards,
)
from energon_grain.formats.sqlite_index import MediaTable
from energon_grain.formats.tar.index import tar_index_path
from energon_grain.media.headers import HEADER_FUNCTION, MediaFilterConfig, read_header
from energon_grain.prepare.bare_tars import open_data
from energon_grain.prepare.listing import TAR_SUFFIX, list_files
from energon_grain.prepare.measure import Measurement, Parts, measured, parts_of
from energon_grain.prepare.media_headers import media_numbers
from energon_grain.prepare.repeated_members import RepeatedMembers
from energon_grain.prepare.samples import Columns, open_columns
from energon_grain.sources.prepared import PreparedSource, open_prepared
from energon_grain.sources.source import RawSample
from energon_grain.storage.cores import map_in_order, usable_cores
from energon_grain.storage.location import is_url
from energon_grain.storage.object_bytes import read_beginning
from energon_grain.storage.remote_files import RemoteFiles
from energon_grain.storage.settings import storage_settings
from energon_grain.transforms.decode import SampleDecoder
from energon_grain.transforms.field_map import FieldMap

T = TypeVar("T")
Severity = Literal["error", "warning", "note"]
"""`error`: a loader refuses it, or drops the sample. `warning`: it loads, and probably is not what was meant.
`note`: good to know, such as what was not looked at."""
PREPARE_AGAIN = "prepare again with --force-overwrite"
_INDEX_ANEW = "write it anew with --tar-index-only"
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
    """Scan a shard anew, of so many samples from the `first` one on, and say what does not fit.

    The columnar index is None where it could not be opened.
    """
    location = folder.shard(shard)
    gone = LintFinding(where=shard, what="the file is gone, but .info.json lists it", way_out=PREPARE_AGAIN)
    if not folder.is_remote and not os.path.isfile(location):
        return [gone]
    wrong: list[LintFinding] = []
    try:
        if records is None:
            scan = scan_checked(folder, shard, samples, None, first)
            tar_index = tar_index_path(shard)
            if folder.bare is None and not read_beginning(folder.shard(tar_index.as_posix()), 1):
                what, way_out = f"{tar_index.name} is missing", "write it with --tar-index-only"
                wrong = [LintFinding(where=shard, what=what, way_out=way_out)]
        else:
            scan = scan_records(location, records, first=first)
            if len(scan) != samples:
                what = f"has {len(scan):,} samples, .info.json says {samples:,}; the shard was changed"
                wrong = [LintFinding(where=shard, what=what, way_out=PREPARE_AGAIN)]
    except FileNotFoundError:
        return [gone]
    except (EnergonGrainError, OSError) as error:
        with contextlib.suppress(MissingObjectError):
            if folder.is_remote:
                RemoteFiles(storage_settings()).size(location)
            return [LintFinding(where=shard, what=str(error).removeprefix(f"{location}: "))]
        return [gone]
    if not wrong and index is not None and not index.scan(index.shards.index(shard)).lies_as(scan):
        wrong.append(LintFinding(where=shard, what="the columnar index says otherwise", way_out=_INDEX_ANEW))
    return wrong


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
        UntrustedCodeError: A part is a pickle, or the sample type lies in a module that is not trusted.
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
        self._decoders: dict[str, Callable[[Any], object] | None] = dict.fromkeys(part_names)
        if config is None or not config.raw_bytes:
            options: dict[str, Any] = {"image_decode": "rgb8"}  # quick, and it fails where the others fail
            if config is not None and config.decoder is not None:
                options = {**config.decoder}
            if allow_pickle:
                options["allow_pickle"] = True
            try:
                decoder = SampleDecoder(**options)
            except TypeError as error:
                raise ConfigError(f"{location}: `decoder` in the dataset's configuration: {error}") from error
            wanted = [name for name in part_names if self.parts is None or name in self.parts]
            self._decoders = {name: decoder.decoder_for(name) for name in wanted}

    def check(self, source: PreparedSource, indices: npt.NDArray[np.int64]) -> tuple[int, list[LintFinding]]:
        """Make the samples `indices` of a source; say how many these are, and report those that fail."""
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
    folder = open_data(root)
    with naming(folder):
        info = read_info(folder.local)
    findings: list[LintFinding] = []
    look = partial(opened, folder.location, findings)
    has_config = (folder.local / META_FOLDER / dataset_config).exists()
    config = look(partial(_read, folder, read_dataset_config, dataset_config)) if has_config else None
    asked = split_parts is not None or split_config is not None
    splits: SplitConfig | None = None
    if has_config or asked or (folder.local / META_FOLDER / DEFAULT_SPLIT_CONFIG).exists():  # file stores need none
        name = split_config or (config.split_config if config is not None else None)
        read_splits = partial(read_split_config, shards=info.shard_counts)
        splits = look(
            partial(_read, folder, read_splits, name),
            raised=(ReadError, SplitError) if asked else ReadError,
        )
    if split_parts is not None and config is not None and config.split_part is not None:
        split_parts = [config.split_part]  # which is read whatever a program asks for
    shards, excluded = _select(info, splits, split_parts)
    if config is not None and splits is not None:
        if open_part is not None:
            for part in split_parts or splits.split_parts:
                look(partial(open_part, part), empty="warning")
        if split_parts is None:
            findings += [*_unused(folder, splits, shards), *_not_indexed(folder, info)]

    def checked_index() -> ColumnarIndex:
        index = open_columnar(folder)
        index.check()
        return index

    index, columns, whole = look(checked_index), None, list[str]()
    if index is not None:
        findings += [*_about_keys(folder, index), *_about_sqlite(folder, len(index))]
        findings += look(lambda: [*_about_media(folder, index)]) or ()
        columns = look(lambda: Columns(open_prepared(folder)))
        if columns is not None:
            whole = [name for name in columns.stored if look(partial(_read_column, columns, name)) is not None]
            findings += [_stale_column(folder.location, name) for name in columns.stale]

    def report(stage: Literal["index", "samples"], done: int, total: int) -> None:
        progress(LintProgress(stage=stage, done=done, total=total, findings=len(findings)))

    start = dict(zip(info.shard_counts, itertools.accumulate(info.shard_counts.values(), initial=0), strict=False))
    threads = num_threads or usable_cores()
    samples, broken = 0, set[str]()
    with ThreadPoolExecutor(threads, thread_name_prefix="lint") as pool:
        if not first_samples:
            report("index", 0, len(shards))
            records = read_records_file(folder.local)
            described = ((folder, records, index, shard, start[shard], info.shard_counts[shard]) for shard in shards)
            scanned = map_in_order(pool, 2 * threads, _check_shard, described)
            for done, (shard, found) in enumerate(zip(shards, scanned, strict=True)):
                findings += found
                broken |= {shard} if found else set()
                report("index", done + 1, len(shards))
        good = [shard for shard in shards if shard not in broken]
        if columns is not None and whole and split_parts is None and not broken:
            look(
                lambda: findings.extend(
                    _compare_columns(folder.bare or folder.location, columns, whole, trusted_modules)
                )
            )
        making = None
        if index is not None and good and (config is not None or not has_config):
            try:
                making = _Samples(
                    folder.location,
                    config,
                    index.part_names,
                    allow_pickle=allow_pickle,
                    trusted_modules=trusted_modules,
                )
            except (ConfigError, UntrustedCodeError) as error:
                if not any(finding.severity == "error" for finding in findings):  # else opening a split part said why
                    findings.append(LintFinding(where=folder.location, what=str(error)))
        if making is not None:
            if making.note is not None:
                findings.append(LintFinding(severity="note", where=folder.location, what=making.note))
            with_excludes = [] if first_samples else [pair for pair in excluded if pair[0] not in broken]
            source = open_prepared(folder, shards=good, parts=making.parts, excluded=with_excludes)
            firsts = [np.array([first]) for shard in good if info.shard_counts[shard] for first in [start[shard]]]
            chunks, samples = (firsts, len(firsts)) if first_samples else (_chunks(source), len(source))
            left_out = {f"{shard}/{key}" for shard, key in excluded}
            report("samples", 0, samples)
            done = 0
            for count, found in map_in_order(pool, 2 * threads, making.check, ((source, each) for each in chunks)):
                findings += [finding for finding in found if finding.where not in left_out]
                done += count
                report("samples", done, samples)
            source.close()
    if broken:
        what = f"Samples of {len(broken)} shards were not decoded, because their index does not fit."
        findings.append(LintFinding(severity="note", where=folder.location, what=what))
    return LintReport.of(folder.location, findings, shards=len(shards), samples=samples)


def _read(folder: DataFolder, read: Callable[[Path, N], T], name: N) -> T:
    with naming(folder):
        return read(folder.local, name)


def _select(
    info: DatasetInfo, splits: SplitConfig | None, split_parts: Sequence[str] | None
) -> tuple[list[str], list[tuple[str, str]]]:
    """List the shards to look at, each once, and the samples that are excluded."""
    if splits is None:
        return list(info.shard_counts), []
    if split_parts is None:
        shards = [shard for shard in info.shard_counts if shard not in splits.exclude]
        pairs = (excluded_sample(exclude, info) for exclude in splits.exclude)
        return shards, [pair for pair in pairs if pair is not None]
    chosen = [select_shards(splits, part, info) for part in split_parts]
    shards = list(dict.fromkeys(shard for selected in chosen for shard in selected.shards))
    return shards, list(dict.fromkeys(pair for selected in chosen for pair in selected.excluded_samples))


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
    if is_url(folder.location) or not all(shard.endswith(TAR_SUFFIX) for shard in info.shard_counts):
        return
    more = sorted(
        name for name in list_files(folder.location) if name.endswith(TAR_SUFFIX) and name not in info.shard_counts
    )
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
    for begin in range(0, len(index), _KEYS_COMPARED):
        samples = np.arange(begin, min(begin + _KEYS_COMPARED, len(index)))
        keys, first = index.keys(samples), index.part_start[samples]
        counts = (index.part_start[samples + 1] - first).tolist()
        parts = [index.part_names[n] for n in index.part_name[first[0] : index.part_start[samples[-1] + 1]].tolist()]
        owners = itertools.chain.from_iterable(map(itertools.repeat, keys, counts))
        names = [f"{key}.{part}" for key, part in zip(owners, parts, strict=True)]
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
    """Measure a few samples anew, and say which columns say something else. Those that were attached are left out."""

    def find(what: str, way_out: str = "", severity: Severity = "warning") -> LintFinding:
        return LintFinding(severity=severity, where=location, what=f"The column {name!r} {what}", way_out=way_out)

    source = columns.source
    with contextlib.closing(source):
        rows = np.unique(np.linspace(0, len(source) - 1, min(_COMPARED, len(source))).astype(np.int64))
        whole = parts_of(source, source.read(rows))

        def place(row: int) -> str:
            return source.place_of(int(rows[row]))

        for name in names:
            stored, held = columns.stored[name], source.column(name, rows)
            parts = set(stored.parts)
            samples = [{part: each[part] for part in each if not parts or part in parts} for each in whole]
            again = f"make it again: {stored.made_by(name, location)}"
            module, _, function = stored.function.partition(":")
            if stored.function.startswith(ATTACHED):
                continue
            if stored.function == HEADER_FUNCTION:
                fits = [_is_of_header(name, number, sample) for number, sample in zip(held, samples, strict=True)]
                if not all(fits):
                    row = fits.index(False)
                    yield find(f"says {held[row]:g} of {place(row)}, and no header in it does", again)
                continue
            try:
                ref, where = ClassRef(module=module, name=function), f"{location}: the column {name!r}"
                found = resolve_function(ref, trusted_modules=trusted_modules, where=where)
                measure = Measurement.of(name, found, None)
                now = measured(measure, samples, place)
            except UntrustedCodeError:
                said = f"was not measured again: {stored.function} is called only if the module is trusted"
                yield find(said, f"give --trust-module {module}", "note")
                continue
            except (ConfigError, FatalSampleError) as error:
                yield find(f"cannot be measured again: {error}")
                continue
            odd = [row for row, (was, is_) in enumerate(zip(held.tolist(), now.tolist(), strict=True)) if was != is_]
            odd = [row for row in odd if not (np.isnan(held[row]) and np.isnan(now[row]))]
            if odd:
                versions, row = f" (version {measure.version} now, {stored.version} then)", odd[0]
                yield find(
                    f"says {_digits(held[row])} of {place(row)}, and {stored.function}"
                    f"{versions if measure.version != stored.version else ''} says {_digits(now[row])}; of {len(rows)} "
                    f"samples that were measured again {len(odd)} differ",
                    again,
                )


def _digits(number: np.generic) -> str:
    return f"{number:.17g}" if number.dtype.kind == "f" else f"{number}"


def _is_of_header(name: str, number: float, sample: Parts) -> bool:
    """Whether the header of a part says what a column of media does; of what was not looked at nothing is known."""
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


def about_columns(location: str, trusted_modules: Collection[str], split_part: str = "train") -> Iterator[LintFinding]:
    """What is odd about the columns of a file, of files or of the join in a metadataset, and not in a dataset itself.

    Raises IndexFileError if they are not what was written.
    """
    columns = open_columns(location, split_part=split_part)
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
