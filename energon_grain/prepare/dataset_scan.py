"""The scans of all shards of a dataset, and whether they still hold."""

from __future__ import annotations

import dataclasses
import itertools
import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from energon_grain.errors import StaleIndexError
from energon_grain.formats.array_record_encoding import RecordEncoding
from energon_grain.formats.array_record_scan import count_records
from energon_grain.formats.nv_meta import DatasetInfo
from energon_grain.prepare.report import PrepareProgress
from energon_grain.prepare.scan_task import ScanOutcome, ScanTask
from energon_grain.prepare.scanning import scanning
from energon_grain.prepare.stored_scan import ShardIdentity
from energon_grain.storage.location import is_url, join
from energon_grain.storage.object_client import shared_client
from energon_grain.storage.storage_settings import storage_settings

_LISTED_FAILURES = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class ScannedDataset:
    """Where the scans of all shards lie, in the order of the shards."""

    root: str
    """Path or URL."""
    tasks: tuple[ScanTask, ...]
    outcomes: tuple[ScanOutcome, ...]

    @property
    def identities(self) -> dict[ScanTask, ShardIdentity]:
        """What each task found the shard to be."""
        return {task: outcome.shard for task, outcome in zip(self.tasks, self.outcomes, strict=True)}

    @property
    def shard_counts(self) -> dict[str, int]:
        """Samples of each shard."""
        return {outcome.shard.name: outcome.samples for outcome in self.outcomes}

    @property
    def size_bytes(self) -> int:
        """Size of all shards."""
        return sum(outcome.shard.size_bytes for outcome in self.outcomes)

    @property
    def part_names(self) -> tuple[str, ...]:
        """Distinct part names."""
        return tuple(dict.fromkeys(part for outcome in self.outcomes for part in outcome.part_names))

    @property
    def shards_reused(self) -> int:
        """Shards that an interrupted run had scanned already."""
        return sum(outcome.reused for outcome in self.outcomes)

    def progress(self, stage: Literal["index", "commit"]) -> PrepareProgress:
        """Describe a later stage."""
        return PrepareProgress(
            stage=stage,
            shards_done=len(self.tasks),
            shards_total=len(self.tasks),
            samples=sum(outcome.samples for outcome in self.outcomes),
            bytes_done=self.size_bytes,
            bytes_total=self.size_bytes,
        )

    def check_unchanged(self) -> None:
        """Raise StaleIndexError if a shard is not the file any more that was scanned."""
        for task, holds in zip(self.tasks, _each(self.root)(self._holds, self.outcomes), strict=True):
            if not holds:
                raise StaleIndexError(
                    f"{task.location}: changed since it was scanned. Prepare again when nothing writes to it."
                )

    def _holds(self, outcome: ScanOutcome) -> bool:
        try:
            return outcome.shard.holds(self.root)
        except FileNotFoundError:
            return False

    def check_counts(self, info: DatasetInfo) -> None:
        """Raise StaleIndexError if the shards do not have as many samples as `.info.json` says."""
        for name, samples in self.shard_counts.items():
            if samples != info.shard_counts[name]:
                raise StaleIndexError(
                    f"{join(self.root, name)}: has {samples} samples, .info.json says {info.shard_counts[name]}. New "
                    f"indices alone cannot mend that: run `energon-grain prepare {self.root} --force-overwrite`."
                )


def scan_dataset(
    root: str,
    shards: Sequence[str],
    folder: Path,
    *,
    records: RecordEncoding | None = None,
    num_workers: int | None = None,
    executor: Executor | None = None,
    progress: Callable[[PrepareProgress], None] | None = None,
) -> ScannedDataset:
    """Scan every shard of `shards` and leave the scans in `folder`; those that lie there already are not made again.

    Args:
        root: Path or URL of the dataset.
        shards: Names of the shards, in order.
        folder: Where scans are kept.
        records: How the records of ArrayRecord files are encoded; None for tars.
        num_workers: See `scanning`.
        executor: See `scanning`.
        progress: Called after every shard.

    Raises:
        FormatError: Shards are damaged; the message lists up to five. The scans of the others are kept.
        StaleIndexError: A shard changed while it was read.
    """
    tasks = tuple(
        ScanTask(root=root, name=name, folder=str(folder), records=records, first=first)
        for name, first in zip(shards, _first_records(root, shards, records), strict=True)
    )
    now = PrepareProgress(
        stage="scan",
        shards_done=0,
        shards_total=len(shards),
        samples=0,
        bytes_done=0,
        # A store tells the size of an object when it is read.
        bytes_total=0 if is_url(root) else sum(os.stat(join(root, name)).st_size for name in shards),
    )
    outcomes: dict[str, ScanOutcome] = {}
    failures: list[Exception] = []
    with scanning(tasks, num_workers=num_workers, executor=executor) as results:
        _tell(progress, now)
        for task, outcome in results:
            if isinstance(outcome, Exception):
                failures.append(outcome)
                continue
            outcomes[task.name] = outcome
            now = dataclasses.replace(
                now,
                shards_done=len(outcomes),
                samples=now.samples + outcome.samples,
                bytes_done=now.bytes_done + outcome.shard.size_bytes,
            )
            _tell(progress, now)
    if failures:
        raise _merge(failures, len(tasks))
    return ScannedDataset(root=root, tasks=tasks, outcomes=tuple(outcomes[task.name] for task in tasks))


def _first_records(root: str, shards: Sequence[str], records: RecordEncoding | None) -> list[int]:
    """The number in the dataset of the first record of each shard, where a key may be made of it; else 0."""
    if records in (None, "msgpack"):
        return [0] * len(shards)
    return [0, *itertools.accumulate(_each(root)(count_records, [join(root, name) for name in shards]))][:-1]


def _each(root: str) -> Callable[..., Iterable[Any]]:
    """`map`, side by side where it takes requests."""
    return shared_client(storage_settings()).map if is_url(root) else map


def _tell(progress: Callable[[PrepareProgress], None] | None, now: PrepareProgress) -> None:
    if progress is not None:
        progress(now)


def _merge(failures: Sequence[Exception], shard_count: int) -> Exception:
    if len(failures) == 1:
        return failures[0]
    listed = "".join(f"\n  {failure}" for failure in failures[:_LISTED_FAILURES])
    more = f"\n  … and {len(failures) - _LISTED_FAILURES} more" if len(failures) > _LISTED_FAILURES else ""
    return type(failures[0])(f"{len(failures)} of {shard_count} shards cannot be indexed:{listed}{more}")
