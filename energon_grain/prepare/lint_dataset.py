"""Look at everything in a dataset: its indices against its tars, and every sample through decoder and field map."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from energon_grain.errors import IndexFileError, SplitError
from energon_grain.formats.columnar import ColumnarIndex, open_columnar
from energon_grain.formats.data_folder import DataFolder, naming, open_folder
from energon_grain.formats.dataset_config import read_dataset_config
from energon_grain.formats.nv_meta import META_FOLDER, DatasetInfo, read_info
from energon_grain.formats.splits import excluded_sample, read_split_config, select_shards
from energon_grain.prepare.index_check import ShardCheck
from energon_grain.prepare.lint_finding import LintFinding, LintProgress, LintReport
from energon_grain.prepare.sample_check import SampleRecipe, check_samples, make_recipe
from energon_grain.sources.prepared import PreparedSource, open_prepared

_CHUNK_SAMPLES = 256
_CHUNK_BYTES = 4 << 20

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
        progress: Called now and then.

    Raises:
        DatasetNotFoundError: There is no prepared dataset.
        ConfigError: A configuration file is wrong: no sample could be made.
        UntrustedCodeError: The dataset needs code that was not allowed.
        ReadError: An object store cannot be reached.
    """
    folder = open_folder(root)
    root = folder.local
    with naming(folder):
        info = read_info(root)
        has_config = (root / META_FOLDER / dataset_config).exists()
        config = read_dataset_config(root, dataset_config) if has_config else None
        split_name = split_config or (config.split_config if config is not None else None)
        shards, excluded = _select(root, info, split_name, split_parts)
    findings: list[LintFinding] = []
    index = _open(folder, findings)

    def tell(stage: str, done: int, total: int) -> None:
        if progress is not None:
            progress(
                LintProgress(
                    stage="index" if stage == "index" else "samples", done=done, total=total, findings=len(findings)
                )
            )

    checks = ShardCheck(folder, info, index)
    threads = num_threads or len(os.sched_getaffinity(0))
    samples, notes = 0, list[str]()
    with ThreadPoolExecutor(threads, thread_name_prefix="lint") as pool:
        tell("index", 0, len(shards))
        for done, found in enumerate(_in_order(pool, threads, checks, shards)):
            findings += found
            tell("index", done + 1, len(shards))
        broken = {finding.shard for finding in findings}
        good = [shard for shard in shards if shard not in broken]
        if index is not None and good:
            recipe = make_recipe(
                folder.location, config, index.part_names, allow_pickle=allow_pickle, trusted_modules=trusted_modules
            )
            notes += [] if recipe.note is None else [recipe.note]
            with_excludes = [pair for pair in excluded if pair[0] not in broken]
            source = open_prepared(folder, shards=good, parts=recipe.parts, excluded=with_excludes)
            samples = len(source)
            tell("samples", 0, samples)
            done = 0
            for count, found in _in_order(pool, threads, _Checker(source, recipe), _chunks(source)):
                findings += found
                done += count
                tell("samples", done, samples)
            source.close()
    if broken:
        notes.append(f"Samples of {len(broken)} shards were not decoded, because their index does not fit.")
    return LintReport(
        root=folder.location, shards=len(shards), samples=samples, findings=tuple(findings), notes=tuple(notes)
    )


class _Checker:
    """Checks one chunk and says how long it was."""

    def __init__(self, source: PreparedSource, recipe: SampleRecipe) -> None:
        self._source = source
        self._recipe = recipe

    def __call__(self, indices: npt.NDArray[np.int64]) -> tuple[int, list[LintFinding]]:
        return len(indices), check_samples(self._source, self._recipe, indices)


def _open(folder: DataFolder, findings: list[LintFinding]) -> ColumnarIndex | None:
    try:
        index = open_columnar(folder)
        index.check()
        return index
    except IndexFileError as error:
        findings.append(LintFinding(shard="", key=None, reason=str(error)))
        return None


def _select(
    root: Path, info: DatasetInfo, split_config: str | None, split_parts: Sequence[str] | None
) -> tuple[list[str], list[tuple[str, str]]]:
    """List the shards to look at, each once, and the samples that are excluded."""
    try:
        config = read_split_config(root, split_config, shards=info.shard_counts)
    except SplitError:
        if split_parts is not None or split_config is not None:
            raise
        return list(info.shard_counts), []
    if split_parts is None:
        shards = [shard for shard in info.shard_counts if shard not in config.exclude]
        pairs = (excluded_sample(exclude, info) for exclude in config.exclude)
        return shards, [pair for pair in pairs if pair is not None]
    chosen = [select_shards(config, part, info) for part in split_parts]
    shards = list(dict.fromkeys(shard for selected in chosen for shard in selected.shards))
    return shards, list(dict.fromkeys(pair for selected in chosen for pair in selected.excluded_samples))


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
