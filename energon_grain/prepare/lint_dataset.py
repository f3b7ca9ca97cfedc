"""Look at everything in a dataset: its settings as a loader would, its indices against its tars, and every sample."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from energon_grain.errors import ConfigError, ReadError, SplitError, UntrustedCodeError
from energon_grain.formats.columnar import ColumnarIndex, open_columnar
from energon_grain.formats.data_folder import DataFolder, naming, open_folder
from energon_grain.formats.dataset_config import DatasetConfig, read_dataset_config
from energon_grain.formats.nv_meta import INDEX_SQLITE, META_FOLDER, DatasetInfo, read_info
from energon_grain.formats.splits import (
    DEFAULT_SPLIT_CONFIG,
    SplitConfig,
    excluded_sample,
    read_split_config,
    select_shards,
)
from energon_grain.prepare.index_check import PREPARE_AGAIN, ShardCheck
from energon_grain.prepare.lint_finding import LintFinding, LintProgress, LintReport, opened
from energon_grain.prepare.sample_check import SampleRecipe, check_samples, make_recipe
from energon_grain.sources.prepared import PreparedSource, open_prepared

_CHUNK_SAMPLES = 256
_CHUNK_BYTES = 4 << 20

_KEYS_COMPARED = 1 << 16
_FEW_PARTS = 10
_LISTED = 3

N = TypeVar("N")
T = TypeVar("T")


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
