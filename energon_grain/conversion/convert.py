"""Converting a dataset: write every shard anew, copy what lies beside them, and index the result."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path

from energon_grain.conversion.report import Compression, Container, ConversionProgress, ConversionReport
from energon_grain.conversion.shard_conversion import ShardTask, WrittenShard, convert_shard
from energon_grain.conversion.shard_processes import ShardProcesses, converted
from energon_grain.conversion.target_folder import Plan, TargetFolder
from energon_grain.errors import ConfigError
from energon_grain.formats.columnar import ColumnarIndex, open_columnar
from energon_grain.formats.data_folder import DataFolder, kind_at, naming, open_folder
from energon_grain.formats.nv_meta import META_FOLDER, DatasetKind, dataset_kind
from energon_grain.prepare.preparation import prepare_dataset
from energon_grain.prepare.preparation_lock import preparation_lock
from energon_grain.prepare.report import PrepareProgress
from energon_grain.prepare.scanning import default_workers
from energon_grain.sources.prepared import open_prepared
from energon_grain.storage.location import is_url, located

_WORTH_PROCESSES_BYTES = 64 << 20
_CONTAINERS: dict[DatasetKind, Container] = {
    DatasetKind.WEBDATASET: "tar",
    DatasetKind.ARRAY_RECORD: "array-record",
}
_OTHERS = {
    DatasetKind.JSONL: "a JSONL file, which is read as it is",
    DatasetKind.ARRAY: "an array, which is read as it is",
    DatasetKind.METADATASET: "a metadataset: convert its datasets one by one, `energon-grain info` names them",
}


def convert_dataset(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    to: Container | None = None,
    compression: Compression = "none",
    num_workers: int | None = None,
    verify: bool = True,
    sqlite: bool = True,
    progress: Callable[[ConversionProgress], None] | None = None,
) -> ConversionReport:
    """Write a dataset anew, tars as ArrayRecord files or back, one shard for one shard, and prepare it.

    Keys, parts and their order stay, so the new dataset gives the same stream under the same name, and goes on with
    cursors of the old one. The split files are copied with the new names of shards, other YAML, JSON and Python files
    of `.nv-meta` as they are. A shard appears when all of it is written and compared; a conversion that was killed goes
    on where it was when it is called again.

    Args:
        source: A prepared dataset of tars or ArrayRecord files, a path or URL.
        target: A new or empty folder of this machine, or one with an interrupted conversion of the same dataset.
        to: Kind of the new shards; None: the other one.
        compression: Of each record of an ArrayRecord file. Uncompressed ones are read fastest.
        num_workers: Processes at most; 0 converts in this one, None takes one for each core (at most 16).
        verify: Read every new shard back and compare all keys and bytes.
        sqlite: Whether `index.sqlite` is written for tars.
        progress: Called after every shard.

    Raises:
        DatasetNotFoundError: `source` is not a prepared dataset.
        RefusedError: `target` holds something else.
        ConfigError: The arguments do not fit.
        FormatError: The new container cannot hold a sample; names it.
        ReadError: A shard cannot be read, or what was written is not what was read.
        WorkerError: A process died.
    """
    begun_s = time.monotonic()
    if is_url(located(target)):
        raise ConfigError(f"{target}: a conversion writes to a file system; copy the new dataset to the store")
    location, root = located(source), Path(located(target))
    kind = kind_at(location)
    if kind in _OTHERS:
        raise ConfigError(f"{location}: a conversion takes a prepared folder of shards, but this is {_OTHERS[kind]}")
    folder = open_folder(location)
    with naming(folder), closing(open_prepared(folder)):  # refuses what cannot be read
        index = open_columnar(folder)
    old = _CONTAINERS[dataset_kind(folder.local)]
    to = to or ("array-record" if old == "tar" else "tar")
    if to == old:
        raise ConfigError(f"{folder.location}: its shards are {to} files already")
    if to == "tar" and compression != "none":
        raise ConfigError(f"compression={compression!r}: is for records; tars are read at random, so uncompressed")
    plan = Plan(content_id=index.content_id, shards=index.shards, container=to, compression=compression)
    work = TargetFolder(root, plan)
    with preparation_lock(root / META_FOLDER):
        work.remove_leftovers()
        counts = dict(zip(index.shards, (index.shard_first[1:] - index.shard_first[:-1]).tolist(), strict=True))
        known = {shard: work.written(shard, count, verified=verify) for shard, count in counts.items()}
        shards = _Shards(index, {shard: written for shard, written in known.items() if written}, progress)
        reused = len(shards.written)
        tasks = [_task(folder, work, plan, shard, verify) for shard in index.shards if shard not in shards.written]
        _convert(folder, tasks, shards, num_workers)
        work.write_meta(folder.local, counts)
    prepare_dataset(root, tar_index_only=True, sqlite=sqlite, num_workers=num_workers, progress=shards.tell_index)
    work.finish()
    return ConversionReport(
        source=folder.location,
        target=root,
        container=to,
        shard_counts={work.renamed(shard): count for shard, count in counts.items()},
        source_bytes=int(index.shard_bytes.sum()),
        target_bytes=sum(written.size_bytes for written in shards.written.values()),
        shards_reused=reused,
        verified=verify,
        notes=_notes(index, open_columnar(root)),
        elapsed_s=time.monotonic() - begun_s,
    )


class _Shards:
    """Which old shards are done, and telling of it."""

    def __init__(
        self,
        index: ColumnarIndex,
        written: dict[str, WrittenShard],
        progress: Callable[[ConversionProgress], None] | None,
    ) -> None:
        self.written = written
        self.size_bytes = dict(zip(index.shards, index.shard_bytes.tolist(), strict=True))
        self._progress = progress

    def add(self, shard: str, written: WrittenShard) -> None:
        self.written[shard] = written
        self.tell()

    def tell(self) -> None:
        if self._progress is not None:
            self._progress(
                ConversionProgress(
                    stage="convert",
                    shards_done=len(self.written),
                    shards_total=len(self.size_bytes),
                    samples=sum(each.samples for each in self.written.values()),
                    bytes_done=sum(map(self.size_bytes.__getitem__, self.written)),
                    bytes_total=sum(self.size_bytes.values()),
                )
            )

    def tell_index(self, now: PrepareProgress) -> None:
        if self._progress is not None:
            self._progress(
                ConversionProgress(
                    stage="index",
                    shards_done=now.shards_done,
                    shards_total=now.shards_total,
                    samples=now.samples,
                    bytes_done=now.bytes_done,
                    bytes_total=now.bytes_total,
                )
            )


def _task(folder: DataFolder, work: TargetFolder, plan: Plan, shard: str, verify: bool) -> ShardTask:
    return ShardTask(
        source=folder.location,
        shard=shard,
        target=str(work.root / work.renamed(shard)),
        record=str(work.record(shard)),
        container=plan.container,
        compression=plan.compression,
        verify=verify,
    )


def _convert(folder: DataFolder, tasks: list[ShardTask], shards: _Shards, num_workers: int | None) -> None:
    """Convert in processes where that pays."""
    workers = default_workers() if num_workers is None else num_workers
    if workers < 0:
        raise ConfigError(f"num_workers is {workers}: give 0 (no processes) or more.")
    here = partial(convert_shard, source=folder)
    left_bytes = sum(shards.size_bytes[task.shard] for task in tasks)
    shards.tell()
    processes = ShardProcesses()
    if folder.is_remote:
        convert = here
    elif workers <= 1 or left_bytes < _WORTH_PROCESSES_BYTES:
        convert, workers = here, 1
    else:
        convert = processes.convert
    with converted(tasks, workers, convert, processes.close) as results:
        for task, written in results:
            shards.add(task.shard, written)


def _notes(old: ColumnarIndex, new: ColumnarIndex) -> tuple[str, ...]:
    if old.content_id == new.content_id:
        return ()
    return (
        "samples have a part twice, of which the later one was kept, as it is when samples are read. So the new "
        "dataset counts as other data: cursors and joins of the old one do not fit it.",
    )
