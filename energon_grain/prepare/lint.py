"""Finding what is wrong with a dataset or a JSONL file: indices, configuration, samples, settings."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import sqlite3
import tempfile
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, Literal, Self, TypeVar, get_args

import numpy as np
import numpy.typing as npt

from energon_grain.errors import (
    ConfigError,
    DatasetNotFoundError,
    DecodingError,
    EmptyDatasetError,
    EnergonGrainError,
    FormatError,
    MissingObjectError,
    ReadError,
    SplitError,
    UntrustedCodeError,
)
from energon_grain.formats.array_record_encoding import RecordEncoding, read_records_file
from energon_grain.formats.array_record_scan import scan_records
from energon_grain.formats.class_ref import resolve_class
from energon_grain.formats.columnar import ColumnarIndex, open_columnar
from energon_grain.formats.data_folder import DataFolder, naming, open_folder
from energon_grain.formats.dataset_config import DatasetConfig, read_dataset_config
from energon_grain.formats.jsonl import check_jsonl_size, is_object, jsonl_index_path, read_jsonl_index
from energon_grain.formats.nv_meta import INDEX_SQLITE, META_FOLDER, DatasetInfo, read_info
from energon_grain.formats.splits import (
    DEFAULT_SPLIT_CONFIG,
    SplitConfig,
    excluded_sample,
    read_split_config,
    select_shards,
)
from energon_grain.formats.tar.index import read_tar_index, tar_index_path
from energon_grain.formats.tar.scan import ShardScan, scan_tar
from energon_grain.prepare.preparation import existing_file
from energon_grain.sources.prepared import PreparedSource, open_prepared
from energon_grain.sources.source import RawSample
from energon_grain.storage.location import is_url, located, name_of
from energon_grain.storage.object_bytes import ObjectStream
from energon_grain.storage.read_whole import read_whole
from energon_grain.storage.remote_files import RemoteFiles
from energon_grain.storage.settings import storage_settings
from energon_grain.transforms.decode import SampleDecoder, json_codec
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
_LISTED = 3
N = TypeVar("N")
LISTED_FINDINGS = 10_000
Progress = Callable[[int, int, int], None]
"""Called with (bytes read, size of the file, problems found)."""
_LINES_BETWEEN_PROGRESS = 20_000
_READ_BYTES = 4 << 20


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
        shards: Shards that were compared with their indices.
        samples: Samples that were decoded.
        findings: Errors first, then warnings, then notes; each in the order of shards, those about indices first.
    """

    root: str
    shards: int
    samples: int
    findings: tuple[LintFinding, ...]

    @classmethod
    def of(cls, root: str, findings: Iterable[LintFinding], *, shards: int, samples: int) -> Self:
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
        findings: They are added here.
        open_it: Opens it.
        empty: How bad it is that nothing is left of it.
        raised: Errors that are no findings; a store that stays away says nothing of the data in it.
    """
    named = re.compile(rf"({re.escape(where.split(': $')[0])}\S*?(?:: \$\S*?)?): (.*)", re.DOTALL)

    def note(severity: Severity, what: str) -> None:
        said = named.match(what)
        place, what = said.groups() if said else (where, what)
        findings.append(LintFinding(severity=severity, where=place, what=what))

    logger, log = logging.getLogger("energon_grain"), _Log(logging.WARNING)
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
        for message in log.messages:
            note("warning", message)
    return None


class _Log(logging.Handler):
    """Keeps messages."""

    def __init__(self, level: int) -> None:
        super().__init__(level)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


class ShardCheck:
    """Scans shards anew and says what does not fit.

    Args:
        folder: Where the dataset lies.
        info: Its shards, with the number of samples of each.
        index: The columnar index; None where it could not be opened.
    """

    def __init__(self, folder: DataFolder, info: DatasetInfo, index: ColumnarIndex | None) -> None:
        self._folder, self._info, self._index = folder, info, index
        self._records: RecordEncoding | None = read_records_file(folder.local)
        self._first = dict(zip(info.shard_counts, accumulate(info.shard_counts.values(), initial=0), strict=False))

    def __call__(self, shard: str) -> list[LintFinding]:
        """Look at one shard."""
        gone = LintFinding(where=shard, what="the file is gone, but .info.json lists it", way_out=PREPARE_AGAIN)
        if not self._folder.is_remote and not (self._folder.local / shard).is_file():
            return [gone]
        try:
            if self._records is None:
                scan, wrong = self._scan_tar(shard)
            else:
                scan, wrong = scan_records(self._folder.shard(shard), self._records, first=self._first[shard]), []
        except FileNotFoundError:
            return [gone]
        except (FormatError, OSError) as error:
            return [LintFinding(where=shard, what=str(error))]
        samples = self._info.shard_counts[shard]
        if len(scan) != samples:
            what = f"has {len(scan):,} samples, .info.json says {samples:,}; the shard was changed"
            wrong.insert(0, LintFinding(where=shard, what=what, way_out=PREPARE_AGAIN))
        if not wrong and self._index is not None and not _agrees(self._index, shard, scan):
            wrong.append(LintFinding(where=shard, what="the columnar index says otherwise", way_out=_INDEX_ANEW))
        return wrong

    def _scan_tar(self, shard: str) -> tuple[ShardScan, list[LintFinding]]:
        """The scan of a tar, and how its `.tar.idx` differs."""
        tar, index_path = self._folder.shard(shard), tar_index_path(shard)
        scan = scan_tar(tar)
        try:
            starts = read_tar_index(self._folder.shard(index_path.as_posix()))
        except FileNotFoundError:
            what, way_out = f"{index_path.name} is missing", "write it with --tar-index-only"
            return scan, [LintFinding(where=shard, what=what, way_out=way_out)]
        if len(scan) != self._info.shard_counts[shard] or not np.array_equal(scan.sample_start, starts):
            # Energon makes samples of dot files inside folders.
            scan = scan_tar(tar, hidden="keep")
        if np.array_equal(scan.sample_start, starts):
            return scan, []
        what = f"its {len(scan):,} samples do not lie where the {len(starts) - 1:,} entries of {index_path.name} say"
        return scan, [LintFinding(where=shard, what=what, way_out=_INDEX_ANEW)]


def _agrees(index: ColumnarIndex, shard: str, scan: ShardScan) -> bool:
    number = index.shards.index(shard)
    first, last = int(index.shard_first[number]), int(index.shard_first[number + 1])
    if last - first != len(scan) or int(index.shard_bytes[number]) != scan.size_bytes:
        return False
    parts = slice(int(index.part_start[first]), int(index.part_start[last]))
    keys = slice(int(index.key_start[first]), int(index.key_start[last]))
    names = np.array([*scan.part_names, ""], dtype=np.object_)
    known = np.array([*index.part_names, ""], dtype=np.object_)
    return (
        np.array_equal(index.shard_sample_start(number), scan.sample_start)
        and np.array_equal(index.part_start[first : last + 1] - parts.start, scan.part_start)
        and np.array_equal(index.part_offset[parts], scan.part_offset)
        and np.array_equal(index.part_size[parts], scan.part_size)
        and np.array_equal(known[index.part_name[parts]], names[scan.part_name])
        and np.array_equal(index.key_start[first : last + 1] - keys.start, scan.key_start)
        and np.array_equal(index.key_bytes[keys], scan.key_bytes)
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class SampleRecipe:
    """How a sample is made of its parts.

    Attributes:
        decoders: The decoder of each part name; None leaves bytes.
        sample_type: What is made; None where samples stay dicts.
        field_map: Where its fields come from.
        parts: The parts that are read; None for all.
        note: Why not all that a loader does is checked; None where it is.
    """

    decoders: Mapping[str, Callable[[Any], object] | None]
    sample_type: type[Any] | None
    field_map: FieldMap | None
    parts: frozenset[str] | None
    note: str | None

    def make(self, raw: RawSample) -> object:
        """Decode the parts and build the sample. Raises whatever goes wrong."""
        parts: dict[str, object] = {"__key__": raw.key, "__shard__": raw.shard}
        for name, data in raw.parts.items():
            decode = self.decoders[name]
            parts[name] = decode(data) if decode is not None and isinstance(data, bytes) else data
        if self.sample_type is None or self.field_map is None:
            return parts
        fields = self.field_map.evaluate(parts)
        return self.sample_type(**{"__key__": raw.key, "__restore_key__": (), **fields})


def make_recipe(
    location: str,
    config: DatasetConfig | None,
    part_names: Collection[str],
    *,
    allow_pickle: bool = False,
    trusted_modules: Collection[str] = (),
) -> SampleRecipe:
    """Resolve decoders, sample type and field map of a dataset.

    Args:
        location: Of the dataset.
        config: What `dataset.yaml` says; None where there is none.
        part_names: All part names of the dataset.
        allow_pickle: Decode pickles too. They can run any code.
        trusted_modules: Modules whose sample types may be imported.

    Raises:
        FieldMapError: The field map does not fit the sample type.
        UntrustedCodeError: A part is a pickle, or the sample type lies in a module that is not trusted.
        MissingPackageError: A decoder needs a package that is not installed.
    """
    sample_type = field_map = note = None
    parts: frozenset[str] | None = None
    if config is None:
        note = (
            "There is no dataset.yaml, without which only auxiliary stores read a dataset: parts are decoded, but no "
            "samples are made of them."
        )
    elif config.field_map is not None and config.sample_type is not None:
        sample_type = resolve_class(config.sample_type, trusted_modules=trusted_modules, where=location)
        field_map = FieldMap.parse(config.field_map, sample_type, where=f"{location}: field_map")
        parts = frozenset(field_map.parts)
    elif config.kind != "crude":
        note = "The dataset makes its samples by code of its own, which is not run; its parts are decoded."
    if parts is None and config is not None and isinstance(config.part_filter, tuple):
        parts = frozenset(config.part_filter)
    decoders: dict[str, Callable[[Any], object] | None] = dict.fromkeys(part_names)
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
        decoders = {name: decoder.decoder_for(name) for name in part_names if parts is None or name in parts}
    return SampleRecipe(decoders=decoders, sample_type=sample_type, field_map=field_map, parts=parts, note=note)


def check_samples(source: PreparedSource, recipe: SampleRecipe, indices: npt.NDArray[np.int64]) -> list[LintFinding]:
    """Make the samples `indices` of a source and report those that fail."""
    try:
        batch = source.read(indices)
    except (FormatError, OSError) as error:
        if len(indices) > 1:  # find out which ones
            return [finding for index in indices for finding in check_samples(source, recipe, np.array([index]))]
        place = source.locate(int(indices[0]))
        return [LintFinding(where=f"{place.shard}/{place.key}", what=str(error))]
    findings: list[LintFinding] = []
    for raw in batch:
        try:
            recipe.make(raw)
        except Exception as error:  # decoders and sample types may raise anything
            what = f"{error}" or type(error).__name__
            findings.append(LintFinding(where=f"{raw.shard}/{raw.key}", what=what))
    return findings


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
    progress: Callable[[LintProgress], None] | None = None,
) -> LintReport:
    """Compare every shard with its indices, then decode every sample and make it, in threads.

    Samples that the split file excludes are left out. Samples of shards that do not fit their index are not read.

    Args:
        root: The dataset, a path or URL.
        split_parts: Look only at the shards of these parts; None looks at all shards.
        split_config: Name of the split file; None takes what `dataset.yaml` names, or the default.
        dataset_config: Name of the dataset's YAML file.
        allow_pickle: Decode pickles too. They can run any code.
        trusted_modules: Modules whose sample types may be imported.
        num_threads: Threads; None takes one for each core.
        first_samples: Of each shard, only make the first sample, which compares the shard with its index as loaders do.
        open_part: Opens a split part as a loader does. What it raises or warns of is found here.
        progress: Called now and then.

    Raises:
        DatasetNotFoundError: There is no prepared dataset.
        SplitError: The split parts or the split file that were asked for are not there.
        EmptyDatasetError: A split part that was asked for is empty.
        ReadError: An object store cannot be reached.
    """
    folder = open_folder(root)
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
        findings += _unused(folder, splits, shards) if split_parts is None else ()
    index = look(partial(_checked_index, folder))
    if index is not None:
        findings += [*_about_keys(folder, index), *_about_sqlite(folder, len(index))]

    def tell(stage: str, done: int, total: int) -> None:
        if progress is not None:
            progress(
                LintProgress(
                    stage="index" if stage == "index" else "samples", done=done, total=total, findings=len(findings)
                )
            )

    threads = num_threads or len(os.sched_getaffinity(0))
    samples, broken = 0, set[str]()
    with ThreadPoolExecutor(threads, thread_name_prefix="lint") as pool:
        if not first_samples:
            tell("index", 0, len(shards))
            scanned = _in_order(pool, threads, ShardCheck(folder, info, index), shards)
            for done, (shard, found) in enumerate(zip(shards, scanned, strict=True)):
                findings += found
                broken |= {shard} if found else set()
                tell("index", done + 1, len(shards))
        good = [shard for shard in shards if shard not in broken]
        recipe = None
        if index is not None and good and (config is not None or not has_config):
            recipe = _recipe(folder, config, index, allow_pickle, trusted_modules, findings)
        if recipe is not None:
            with_excludes = [] if first_samples else [pair for pair in excluded if pair[0] not in broken]
            source = open_prepared(folder, shards=good, parts=recipe.parts, excluded=with_excludes)
            chunks = list(_firsts(info, good)) if first_samples else _chunks(source)
            samples = len(chunks) if isinstance(chunks, list) else len(source)
            left_out = {f"{shard}/{key}" for shard, key in excluded}
            tell("samples", 0, samples)
            done = 0
            for count, found in _in_order(pool, threads, _Checker(source, recipe), chunks):
                findings += [finding for finding in found if finding.where not in left_out]
                done += count
                tell("samples", done, samples)
            source.close()
    if broken:
        what = f"Samples of {len(broken)} shards were not decoded, because their index does not fit."
        findings.append(LintFinding(severity="note", where=folder.location, what=what))
    return LintReport.of(folder.location, findings, shards=len(shards), samples=samples)


def _read(folder: DataFolder, read: Callable[[Path, N], T], name: N) -> T:
    with naming(folder):
        return read(folder.local, name)


def _checked_index(folder: DataFolder) -> ColumnarIndex:
    index = open_columnar(folder)
    index.check()
    return index


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
        names = ", ".join(unused[:_LISTED]) + (", …" if len(unused) > _LISTED else "")
        yield LintFinding(
            severity="note",
            where=folder.shard(f"{META_FOLDER}/{Path(splits.where).name}"),
            what=f"{len(unused):,} of {len(shards):,} shards in no split part, so that nobody reads them: {names}",
            way_out="add them to one if that was not meant (`energon prepare` loses the last one to some ratios)",
        )


def _about_keys(folder: DataFolder, index: ColumnarIndex) -> Iterator[LintFinding]:
    """Keys that come twice, and keys that end too early."""
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


def _recipe(
    folder: DataFolder,
    config: DatasetConfig | None,
    index: ColumnarIndex,
    allow_pickle: bool,
    trusted_modules: Collection[str],
    findings: list[LintFinding],
) -> SampleRecipe | None:
    """How samples are made; None, and why, where they cannot be."""
    try:
        recipe = make_recipe(
            folder.location, config, index.part_names, allow_pickle=allow_pickle, trusted_modules=trusted_modules
        )
    except (ConfigError, UntrustedCodeError) as error:
        if not any(finding.severity == "error" for finding in findings):  # else opening a split part said why
            findings.append(LintFinding(where=folder.location, what=str(error)))
        return None
    if recipe.note is not None:
        findings.append(LintFinding(severity="note", where=folder.location, what=recipe.note))
    return recipe


def _firsts(info: DatasetInfo, shards: Sequence[str]) -> Iterator[npt.NDArray[np.int64]]:
    """The first sample of each shard."""
    first = 0
    for shard in shards:
        if info.shard_counts[shard]:
            yield np.array([first])
        first += info.shard_counts[shard]


class _Checker:
    """Checks one chunk and says how long it was."""

    def __init__(self, source: PreparedSource, recipe: SampleRecipe) -> None:
        self._source = source
        self._recipe = recipe

    def __call__(self, indices: npt.NDArray[np.int64]) -> tuple[int, list[LintFinding]]:
        return len(indices), check_samples(self._source, self._recipe, indices)


def _chunks(source: PreparedSource) -> Iterator[npt.NDArray[np.int64]]:
    """Cut the samples of a source into runs of at most 256 samples and about 4 MiB."""
    start = 0
    while start < len(source):
        block = np.arange(start, min(start + _CHUNK_SAMPLES, len(source)))
        ends = np.cumsum(source.sizes(block))
        count = max(1, int(np.searchsorted(ends, _CHUNK_BYTES, side="right")))
        yield block[:count]
        start += count


def _in_order(
    pool: ThreadPoolExecutor, threads: int, function: Callable[..., T], arguments: Iterable[object]
) -> Iterator[T]:
    """Map in threads, a bounded number ahead, so that memory does not grow with the dataset."""
    pending: deque[Future[T]] = deque()
    for argument in arguments:
        pending.append(pool.submit(function, argument))
        if len(pending) > 2 * threads:
            yield pending.popleft().result()
    while pending:
        yield pending.popleft().result()


def lint_jsonl(path: str | os.PathLike[str], *, progress: Progress | None = None) -> LintReport:
    """Decode every line of a JSONL file, and compare its index, if there is one, with the lines.

    Findings name the line, counted from 1: `x.jsonl:123`. At most 10,000 are listed. The file is read once, in one
    thread.

    Args:
        path: The file, or its URL.
        progress: Called now and then.

    Raises:
        DatasetNotFoundError: There is no such file.
        ReadError: An object store cannot be reached.
    """
    location = located(path)
    look = _Lines(location, _size(location))
    findings: list[LintFinding] = []
    for finding in look.findings(progress):
        findings.append(finding)
        if len(findings) >= LISTED_FINDINGS:
            break
    if len(findings) == LISTED_FINDINGS:
        what = f"Nothing was read behind problem {LISTED_FINDINGS:,}."
        findings.append(LintFinding(severity="note", where=location, what=what))
    return LintReport.of(location, findings, shards=1, samples=look.samples)


def _size(location: str) -> int:
    if not is_url(location):
        return existing_file(location).stat().st_size
    try:
        return RemoteFiles(storage_settings()).size(location)
    except MissingObjectError:
        raise DatasetNotFoundError(f"{location}: no such object") from None


def _lines(location: str) -> Iterator[bytes]:
    """The lines of a file or object, with their ends."""
    if not is_url(location):
        with open(location, "rb") as file:
            yield from file
        return
    rest = b""
    with ObjectStream(location) as stream:
        while block := stream.read(_READ_BYTES):
            *whole, rest = (rest + block).split(b"\n")
            yield from (line + b"\n" for line in whole)
    if rest:
        yield rest


class _Lines:
    """A pass over the lines of a file."""

    def __init__(self, location: str, size_bytes: int) -> None:
        self._location, self._size_bytes = location, size_bytes
        self._index_name = f"{name_of(location)}.idx"
        self.samples = 0

    def findings(self, progress: Progress | None) -> Iterator[LintFinding]:
        """What is wrong, in the order of the lines; what is wrong with the index, last."""
        decode, name = json_codec("json"), name_of(self._location)
        offset = found = 0
        starts = self._index()
        expected = None if isinstance(starts, EnergonGrainError) else starts
        index_fits = expected is not None
        for number, line in enumerate(_lines(self._location), 1):
            reason = None
            text = line.strip()
            if text and not is_object(text):
                reason = f"holds no JSON object: {text[:40]!r}"
            elif text:
                start, row = offset if self.samples else 0, self.samples
                index_fits = index_fits and expected is not None and row < len(expected) and expected[row] == start
                self.samples += 1
                try:
                    decode(text)
                except DecodingError as error:
                    reason = str(error)
            if reason is not None:
                found += 1
                yield LintFinding(where=f"{name}:{number}", what=reason)
            offset += len(line)
            if progress is not None and number % _LINES_BETWEEN_PROGRESS == 0:
                progress(offset, self._size_bytes, found)
        if isinstance(starts, EnergonGrainError):
            yield LintFinding(where=self._index_name, what=str(starts))
        elif expected is not None and not (index_fits and len(expected) == self.samples + 1):
            way_out = f"run `energon-grain prepare {self._location}`"
            yield LintFinding(where=self._index_name, what="samples are not where it says", way_out=way_out)

    def _index(self) -> npt.NDArray[np.int64] | EnergonGrainError | None:
        """The index beside the file, what is wrong with it, or None where there is none."""
        try:
            starts = _read_index(self._location)
            check_jsonl_size(self._location, starts, self._size_bytes)
        except FileNotFoundError:
            return None
        except EnergonGrainError as error:
            return error
        return starts


def _read_index(location: str) -> npt.NDArray[np.int64]:
    """The index beside a file or object. Raises FileNotFoundError where there is none."""
    if not is_url(location):
        return read_jsonl_index(jsonl_index_path(location))
    with tempfile.NamedTemporaryFile() as file:  # what was mapped stays when it is gone
        file.write(read_whole(f"{location}.idx"))
        file.flush()
        return read_jsonl_index(file.name, of=location)
