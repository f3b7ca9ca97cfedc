"""What lanes share, made of the parts of a stream."""

from __future__ import annotations

from typing import Any

import numpy as np

from energon_grain.datasets.worker_config import ErrorHandler
from energon_grain.stream.chunk_pace import ChunkPace
from energon_grain.stream.dropped import Dropped
from energon_grain.stream.operators.lane import Samples, Surroundings
from energon_grain.stream.operators.sample_reader import DirectReader, read_positions
from energon_grain.stream.spec import HookSpec, Program
from energon_grain.stream.stage import PureStage
from energon_grain.stream.state import Position
from energon_grain.stream.statistics import Statistics


def surroundings(
    program: Program,
    stage: PureStage,
    pace: ChunkPace,
    statistics: Statistics,
    on_restore_error: ErrorHandler,
    patience: int,
) -> Surroundings:
    """What the lanes of a host share.

    Args:
        program: What they do.
        stage: Reads and encodes.
        pace: Bounds how much is read at once.
        statistics: Counts drops.
        on_restore_error: `WorkerConfig.restore_error_handler`.
        patience: Samples in a row that may be dropped.
    """

    def on_drop(leaf: int, hook: HookSpec, error: Exception, value: Any) -> None:
        statistics.drop_item(leaf, hook.name, hook.failure_tolerance, error, value)

    def on_decline(dropped: Dropped) -> None:
        statistics.drop(dropped)

    def read(positions: list[Position]) -> Samples:
        return read_positions(positions, program.feeds, stage.sources, stage.run, pace)

    def leaf_of(position: Position) -> int:
        feed = program.feeds[position[0]]
        if len(feed.leaf_sizes) == 1:
            return feed.first_leaf
        return int(feed.draw(np.array([position[1]])).leaf[0])

    return Surroundings(
        on_drop=on_drop,
        on_decline=on_decline,
        on_success=statistics.worked,
        on_restore_error=on_restore_error,
        read=read,
        leaf_of=leaf_of,
        hook_lock=stage.hook_lock,
        direct=DirectReader(stage.run),
        patience=patience,
        failing=True,
    )
