"""`prepare_dataset` as programs written for Energon call it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from energon_grain.prepare.preparation import prepare_dataset
from energon_grain.prepare.report import PrepareProgress

ShowProgress = Callable[..., Iterable[Any]]


def prepare_with_energon_arguments(
    parent_path: str | os.PathLike[str],
    paths: Sequence[str],
    *,
    split_parts_ratio: Sequence[tuple[str, float]] | None = None,
    split_parts_patterns: Sequence[tuple[str, str]] | None = None,
    shuffle_seed: int | None = 42,
    progress_fn: ShowProgress | None = None,
    workers: int = 32,
    tar_index_only: bool = False,
) -> tuple[set[str], list[tuple[str, int]]]:
    """Index tar files and write splits; `dataset.yaml` is left to the program.

    Args:
        parent_path: The dataset folder.
        paths: Paths of the tar files relative to it.
        split_parts_ratio: (name, share) of each split part.
        split_parts_patterns: (name, pattern) of each, instead.
        shuffle_seed: The shards are shuffled by it before they are split; None: they are not.
        progress_fn: Called with an iterable and its length; passes its elements on and shows how far it is.
        workers: Processes at most; 0: none.
        tar_index_only: Write only the indices of a prepared dataset anew.

    Returns:
        Names of the parts; and duplicate keys, of which there are none: they are an error.

    Raises:
        EnergonGrainError: As in `prepare_dataset`.
    """
    ticks = iter((progress_fn or _unseen)(range(len(paths)), len(paths)))
    shown = 0

    def show(progress: PrepareProgress) -> None:
        nonlocal shown
        while shown < progress.shards_done:
            next(ticks, None)
            shown += 1

    patterns: dict[str, list[str]] = {}
    for part, pattern in split_parts_patterns or ():
        patterns.setdefault(part, []).append(pattern)
    report = prepare_dataset(
        Path(parent_path),
        shards=None if tar_index_only else paths,
        split_ratio=None if split_parts_ratio is None else dict(split_parts_ratio),
        split_patterns=patterns or None,
        shuffle_tars=shuffle_seed is not None,
        shuffle_seed=shuffle_seed or 0,
        force_overwrite=not tar_index_only,
        tar_index_only=tar_index_only,
        num_workers=workers,
        progress=show,
    )
    for _ in ticks:  # let it finish what it shows
        pass
    return set(report.part_names), []


def _unseen(elements: Iterable[Any], length: int) -> Iterable[Any]:
    del length
    return elements
