"""`prepare_dataset` as programs written for Energon call it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from energon_grain.errors import ConfigError
from energon_grain.formats.brace_patterns import expand_braces
from energon_grain.formats.splits import DEFAULT_SPLIT_CONFIG
from energon_grain.prepare.preparation import prepare_dataset
from energon_grain.prepare.scan import PrepareProgress

ShowProgress = Callable[..., Iterable[Any]]


def _unseen(elements: Iterable[Any], length: int) -> Iterable[Any]:
    del length
    return elements


def prepare_with_energon_arguments(
    parent_path: str | os.PathLike[str],
    paths: Sequence[str],
    *,
    split_parts_ratio: Sequence[tuple[str, float]] | None = None,
    split_parts_patterns: Sequence[tuple[str, str]] | None = None,
    split_config: str = DEFAULT_SPLIT_CONFIG,
    shuffle_seed: int | None = 42,
    progress_fn: ShowProgress = _unseen,
    workers: int = 32,
    tar_index_only: bool = False,
    media_filter: object = None,
    fix_duplicates: bool = False,
    index_sqlite_tmp_path: str | os.PathLike[str] | None = None,
) -> set[str]:
    """Index tar files and write splits; `dataset.yaml` is left to the program. What is prepared already is replaced.

    Args:
        parent_path: The dataset folder, or its URL.
        paths: Paths of the tar files relative to it; braces expand (`parts/data-{0..9}.tar`).
        split_parts_ratio: (name, share) of each split part.
        split_parts_patterns: (name, pattern) of each, instead.
        split_config: Name of the split file to write in `.nv-meta`, YAML or JSON by its ending.
        shuffle_seed: The shards are shuffled by it before they are split; None: they are not.
        progress_fn: Called with an iterable and its length; passes its elements on and shows how far it is.
        workers: Processes at most; 0: none.
        tar_index_only: Write only the indices of a prepared dataset anew.
        media_filter: Not supported yet.
        fix_duplicates: Where tars have a key in common, put the path of its tar before each member's name, in all of
            them; see `prepare_dataset`.
        index_sqlite_tmp_path: Of a dataset in an object store: the file of this machine in which `index.sqlite` is
            made.

    Returns:
        Names of the parts.

    Raises:
        ConfigError: `media_filter` is given.
        EnergonGrainError: As in `prepare_dataset`.
    """
    if media_filter is not None:
        raise ConfigError("media_filter: metadata of media are not stored yet; leave it at None.")
    ticks: Iterator[Any] = iter(())
    shown = -1

    def show(progress: PrepareProgress) -> None:
        nonlocal ticks, shown
        if shown < 0:
            ticks, shown = iter(progress_fn(range(progress.shards_total), progress.shards_total)), 0
        while shown < progress.shards_done:
            next(ticks, None)
            shown += 1

    patterns: dict[str, list[str]] = {}
    for part, pattern in split_parts_patterns or ():
        patterns.setdefault(part, []).append(pattern)
    report = prepare_dataset(
        os.fspath(parent_path),
        shards=None if tar_index_only else [name for path in paths for name in _expand(path)],
        split_ratio=None if split_parts_ratio is None else dict(split_parts_ratio),
        split_patterns=patterns or None,
        split_config=split_config,
        shuffle_tars=shuffle_seed is not None,
        shuffle_seed=shuffle_seed or 0,
        force_overwrite=not tar_index_only,
        tar_index_only=tar_index_only,
        fix_duplicates=fix_duplicates,
        num_workers=workers,
        sqlite_build_path=None if index_sqlite_tmp_path is None else Path(index_sqlite_tmp_path),
        progress=show,
    )
    for _ in ticks:  # let it finish what it shows
        pass
    return set(report.part_names)


def _expand(path: str) -> Iterable[str]:
    try:
        return expand_braces(path)
    except ValueError as error:
        raise ConfigError(f"{path!r}: {error}. A brace that belongs to the name is written \\{{.") from error
