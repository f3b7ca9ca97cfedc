# SPDX-License-Identifier: Apache-2.0
"""Write a dataset: samples become shards and index in one pass, in one process or in many.

A shard is written under a temporary name, flushed to disk and renamed. Its index data are then known and go into a log
(`prepare.writing`). At the end, `prepare_dataset` builds the index from all logs; it equals the index from scanning the
shards. A killed process therefore leaves complete shards, and a second run continues after them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import itertools
import os
import re
import shutil
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Sized
from concurrent.futures import Executor
from functools import partial
from pathlib import Path
from types import CodeType, TracebackType
from typing import Any, TypedDict, TypeVar, Unpack, cast

from energon_grain.atomic_files import remove_temporaries
from energon_grain.errors import ConfigError, EmptyDatasetError, EnergonGrainError, RefusedError, SkipSample, public
from energon_grain.formats.columnar import find_columnar
from energon_grain.formats.data_folder import open_folder
from energon_grain.formats.nv_meta import META_FOLDER, is_prepared, read_info
from energon_grain.formats.records import read_records_file
from energon_grain.prepare.columnar_build import open_columnar
from energon_grain.prepare.containers import Compression, ContainerName, Sample, container_named
from energon_grain.prepare.dataset_definition import define_dataset
from energon_grain.prepare.listing import printable
from energon_grain.prepare.preparation import PrepareReport, prepare_dataset
from energon_grain.prepare.scan import PrepareProgress, ScannedShard, ShardTask
from energon_grain.prepare.shard_writer import TEMPORARY, ShardWriter
from energon_grain.prepare.write_shards import (
    WrittenSample,
    check_container,
    parts_of,
    write_shards,
    written_record,
)
from energon_grain.prepare.writing import WRITING_FOLDER, PartLog, begin_writing, has_part, read_plan
from energon_grain.samplers.split_ratio import name_ratio
from energon_grain.storage.location import is_url, located

SHARD_BYTES = 256 << 20
T = TypeVar("T")


class DatasetOptions(TypedDict, total=False):
    """Metadata of a new dataset besides its samples, for `prepare_dataset`. All shards are `train` by default."""

    split_ratio: Mapping[str, float] | Sequence[float] | None
    split_patterns: Mapping[str, str | Sequence[str]] | None
    split_config: str
    sample_type: str | None
    field_map: Mapping[str, str] | None
    crude: bool
    subflavors: Mapping[str, Any] | None
    sqlite: bool


def _checked(options: DatasetOptions, append: bool) -> DatasetOptions:
    """The options with the defaults for written data; invalid ones are refused before the first sample is written."""
    if (ratio := options.get("split_ratio")) is not None:
        name_ratio(ratio)
    definition = {name: options.get(name) for name in ("sample_type", "field_map", "crude", "subflavors")}
    if append:
        if given := [name for name, value in definition.items() if value]:
            raise ConfigError(f"append=True keeps the dataset's sample type: remove {', '.join(given)}")
        return options
    crude = bool(definition["crude"]) or definition["sample_type"] is None
    define_dataset(
        sample_type=options.get("sample_type"),
        field_map=options.get("field_map"),
        crude=crude,
        subflavors=options.get("subflavors"),
    )
    if options.get("split_patterns") is None and ratio is None:
        options = {**options, "split_ratio": {"train": 1}}
    return {**options, "crude": crude}


@public
class DatasetWriter:
    """Writes samples one by one as a dataset, with shards and index in one pass. Calling it writes a sample.

        with DatasetWriter("photos", shard_bytes=256 << 20) as write:
            write({"__key__": "000000", "jpg": image, "json": {"caption": "a cat"}})

    Parts are encoded by the extensions of their names (`encode_part`). A shard appears when it is complete. At the end
    of the block, the index is built and the dataset is prepared, for this library and for Megatron-Energon. After an
    exception or a kill, complete shards are kept, and `resume=True` continues after them.

    Several processes can write one dataset in parts, each with its `part` of `parts`; each calls `close`, or leaves the
    block. When all have, one calls `prepare_dataset(root, split_ratio=…, crude=…)`, which scans nothing. The shards of
    part 0 are first, then those of part 1.

    Args:
        root: A new or empty local folder; with `append`, a dataset.
        shard_bytes: A shard ends with the sample that reaches this size.
        shard_samples: Maximum number of samples per shard; None: only size counts.
        name: Prefix of shard names, as in `shard-000000.tar`; may contain folders.
        container: Container of the shards: tars, or ArrayRecord files, which Energon does not read.
        compression: Compression of each record of ArrayRecord files.
        part: Index of this writer, from 0.
        parts: Number of writers; must stay the same when resuming, because the shards depend on it.
        append: Add shards to a dataset; only they are indexed. See `append` of `prepare_dataset`.
        resume: How to treat an unfinished write in this folder: True continues after the complete shards, and
            `samples_done` is the number of samples to skip; False removes them; None raises an error.
        options: The dataset's metadata: `split_ratio`, `split_patterns`, `split_config`, `sample_type` and `field_map`,
            `crude` (the default), `subflavors`, `sqlite`; see `prepare_dataset`. All shards are `train` by default.
            With several `parts`, pass them to `prepare_dataset` instead.

    Attributes:
        report: The report of `prepare_dataset`, after closing.

    Raises:
        RefusedError: `root` holds other data, or another process writes this part.
        ConfigError: An argument is invalid.
        DatasetNotFoundError: `append`, and there is no dataset.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        shard_bytes: int = SHARD_BYTES,
        shard_samples: int | None = None,
        name: str = "shard",
        container: ContainerName = "tar",
        compression: Compression = "none",
        part: int = 0,
        parts: int = 1,
        append: bool = False,
        resume: bool | None = None,
        **options: Unpack[DatasetOptions],
    ) -> None:
        if shard_bytes < 1 or (shard_samples is not None and shard_samples < 1):
            raise ConfigError(f"shard_bytes={shard_bytes}, shard_samples={shard_samples}: must be at least 1")
        if not 0 <= part < parts:
            raise ConfigError(f"part={part}, parts={parts}: part must be from 0 to parts - 1")
        if parts > 1 and options:
            raise ConfigError(
                f"{', '.join(options)}: with several parts, pass these to prepare_dataset, which one process calls at "
                f"the end"
            )
        self._options = _checked(options, append)
        self._shard_bytes, self._shard_samples = shard_bytes, shard_samples
        settings = {"shard_bytes": shard_bytes, "shard_samples": shard_samples, "parts": parts}
        self._target = _Target(root, name, container, compression, append, settings)
        self._part, self._parts = part, parts
        root = self._target.root
        if resume is None and has_part(root, part, parts):
            raise RefusedError(
                f"{root}: holds an unfinished write. resume=True continues after its complete shards (samples_done is "
                f"the number of samples in them), resume=False removes them"
            )
        self._target.begin()
        self._log = PartLog(root, part, parts, find_columnar(open_folder(root)))
        self._number = self.samples_done = 0
        self._shard: ShardWriter | None = None
        self._closed = False
        self.report: PrepareReport | None = None
        remove_temporaries(self._path(0).parent, f".{self._prefix.rpartition('/')[2]}*{TEMPORARY}")
        self._find_whole_shards(keep=resume is not False)

    @property
    def _prefix(self) -> str:
        return f"{self._target.name}-" + ("" if self._parts == 1 else f"{self._part:05d}-")

    def _name(self, number: int) -> str:
        return f"{self._prefix}{self._target.first + number:06d}{container_named(self._target.container).suffix}"

    def _path(self, number: int) -> Path:
        return self._target.root / self._name(number)

    def _task(self) -> ShardTask:
        return self._target.task(self._name(self._number))

    def _find_whole_shards(self, *, keep: bool) -> None:
        """Count the complete shards of an earlier run, and remove files after them."""
        root = str(self._target.root)
        keep = keep or self._name(0) in self._target.indexed
        while keep and (known := self._log.log.find(self._task(), root)) is not None:
            self.samples_done += known.samples
            self._number += 1
        for number in itertools.count(self._number):
            if self._name(number) in self._target.indexed or not self._path(number).exists():
                break
            self._path(number).unlink()

    def __enter__(self) -> DatasetWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.abandon()

    def __call__(self, sample: WrittenSample) -> None:
        """See `write`."""
        self.write(sample)

    def write(self, sample: WrittenSample) -> None:
        """Add a sample: its key at `__key__`, its parts by name.

        Keys are relative paths such as `cats/000123`, without a dot in their last name, and unique in a dataset.
        Duplicates within a shard are refused at once, others when the index is built.

        Raises:
            UnfitSampleError: The key, or the name of a part, is invalid, or the shard already has that key. The sample
                was not written; writing can continue.
            ConfigError: A value does not fit the name of its part; writing can continue.
            OSError: The disk is full. Complete shards are kept.
        """
        if self._closed:
            raise RefusedError(f"{self._target.root}: this writer was closed, or has failed; create a new one")
        key, parts = parts_of(sample)
        try:
            if self._shard is None:
                target = self._target
                self._shard = ShardWriter(self._path(self._number), target.container, target.compression)
            self._shard.add(key, parts)
            if self._shard.size_bytes >= self._shard_bytes or self._shard.samples == self._shard_samples:
                self._finish_shard()
        except EnergonGrainError:
            raise
        except BaseException:
            self.abandon()
            raise

    def _finish_shard(self) -> None:
        assert self._shard is not None
        self._log.log.add(written_record(str(self._target.root), self._task(), self._shard))
        self._shard = None
        self._number += 1

    def close(self) -> PrepareReport | None:
        """Finish the last shard, and build the index; one of several parts is only marked as complete.

        Returns:
            The report of `prepare_dataset`; None for one of several parts.

        Raises:
            EmptyDatasetError: There is no sample.
            EnergonGrainError: As `prepare_dataset`: shards with a common key, fewer shards than split parts. The
                shards are kept; calling `prepare_dataset` with other arguments builds their index.
        """
        if self._closed:
            return self.report
        try:
            if self._shard is not None:
                self._finish_shard()
        except BaseException:
            self.abandon()
            raise
        self._closed = True
        self._log.close(done=True)
        if self._parts == 1:
            names = [self._name(number) for number in range(self._number)]
            try:
                self.report = self._target.prepare(names, self._options)
            except EnergonGrainError as error:
                ways = "call prepare_dataset with other arguments to index them, or use resume=False to remove them"
                error.add_note(f"{self._target.root}: the written shards are kept; {ways}")
                raise
        return self.report

    def abandon(self) -> None:
        """Remove the unfinished shard, and keep complete ones, for a writer with `resume=True`."""
        if not self._closed:
            self._closed = True
            if self._shard is not None:
                self._shard.abandon()
            self._log.close(done=False)


class _Target:
    """The folder to write into, and the format of its shards."""

    def __init__(
        self,
        root: str | os.PathLike[str],
        name: str,
        container: ContainerName,
        compression: Compression,
        append: bool,
        settings: Mapping[str, Any],
    ) -> None:
        location = located(root)
        if is_url(location):
            raise ConfigError(f"{location}: cannot write to an object store; write to a local folder, and upload it")
        self.root, self.name, self._append = Path(location), name, append
        self.container: ContainerName = container
        self.compression: Compression = compression
        check_container(container, compression)
        if not name or name != printable(name) or {"", ".", "..", META_FOLDER} & set(name.split("/")):
            raise ConfigError(f"name={name!r}: expected a relative path such as 'shard' or 'photos/shard'")
        has_shards = append or is_prepared(self.root)
        self.indexed: Collection[str] = read_info(self.root).shard_counts if has_shards else ()
        if append:
            _check_appendable(self.root, container)
        first = self._first_free() if append else 0
        # An append that was killed after its shards were indexed is still the same one. Read the plan last: without
        # one, no other part can have written the shards counted above.
        begun = read_plan(self.root) or {}
        self.first = int(begun.get("first", first))
        self._plan = {"container": container, "compression": compression, "name": name, "first": self.first, **settings}

    def begin(self, *, any_function: bool = False) -> None:
        """See `begin_writing`. A dataset to append to first gets an index, if it has none."""
        begin_writing(self.root, self._plan, append=self._append, any_function=any_function)
        if self._append:
            open_columnar(self.root)

    def _first_free(self) -> int:
        """The number of the first shard to append: after all with such a name, indexed or not."""
        folder, _, name = self.name.rpartition("/")
        numbered = re.compile(rf"{re.escape(name)}-(?:\d+-)?(\d+){re.escape(container_named(self.container).suffix)}")
        found = os.listdir(self.root / folder) if (self.root / folder).is_dir() else []
        return max([len(self.indexed), *(int(match[1]) + 1 for match in map(numbered.fullmatch, found) if match)])

    def task(self, name: str) -> ShardTask:
        return ShardTask(name=name, records=container_named(self.container).written)

    def prepare(
        self,
        shards: Sequence[str],
        options: DatasetOptions,
        progress: Callable[[PrepareProgress], None] | None = None,
    ) -> PrepareReport:
        """Build the index of shards that this writer wrote."""
        if not shards:
            shutil.rmtree(self.root / WRITING_FOLDER)
            raise EmptyDatasetError(f"{self.root}: no sample was written, so there is no dataset")
        return prepare_dataset(
            self.root,
            shards=shards,
            records=container_named(self.container).written,
            append=self._append,
            num_workers=0,
            progress=progress,
            digest=None if self._append else False,  # a scan after a kill would make some
            **options,
        )


@public
def write_dataset(
    items: Iterable[T],
    fn: Callable[[T], WrittenSample | Iterable[WrittenSample] | None],
    root: str | os.PathLike[str],
    *,
    shard_items: int = 1000,
    name: str = "shard",
    container: ContainerName = "tar",
    compression: Compression = "none",
    append: bool = False,
    resume: bool = False,
    num_workers: int | None = None,
    executor: Executor | None = None,
    progress: Callable[[PrepareProgress], None] | None = None,
    **options: Unpack[DatasetOptions],
) -> PrepareReport:
    """Write the results of a function for each item as a dataset, in processes or on a cluster.

    A shard holds the results of `fn` for `shard_items` consecutive items, so the dataset does not depend on the number
    of workers. After a kill, the same call continues: complete shards are not written again. The call is refused if
    `fn` changed: its name, its code, or plain values bound to it; functions that it calls are not compared.

    Args:
        items: A sequence, or any other iterable, which is consumed once; after a kill it must yield the same items.
        fn: Returns a sample, several, or none (None, or raises `SkipSample`) for an item; see `DatasetWriter.write` for
            samples. It is sent to the workers by cloudpickle, so it may be defined anywhere.
        root: A new or empty local folder; with `append`, a dataset.
        shard_items: Number of items per shard.
        name: See `DatasetWriter`.
        container: See `DatasetWriter`.
        compression: See `DatasetWriter`.
        append: See `DatasetWriter`.
        resume: Continue even if `fn` was changed, and keep the shards of the old one.
        num_workers: Maximum number of processes; 0: this process only; None: one per core (at most 16). With
            `executor`: maximum number of submitted shards.
        executor: Runs the work instead of local processes, such as `RayExecutor()`. Its workers must be able to write
            to `root` under the same path.
        progress: Called after every shard.
        options: See `DatasetWriter`.

    Raises:
        RefusedError: `root` holds other data.
        ConfigError: An argument is invalid, or a value does not fit the name of its part.
        UnfitSampleError: A key, or the name of a part, is invalid.
        DuplicateKeyError: Two samples have the same key.
        EmptyDatasetError: There is no sample.
        WorkerError: A process died, or the executor failed.
        Exception: An error raised by `fn`, with a note that names the item.
    """
    if shard_items < 1:
        raise ConfigError(f"shard_items={shard_items}: must be at least 1")
    start, notify = time.perf_counter(), progress or (lambda _: None)
    options = _checked(options, append)
    total = len(items) if isinstance(items, Sized) else None
    shards = None if total is None else -(-total // shard_items)
    settings = {"shard_items": shard_items, "items": total, "fn": _identity(fn)}
    target = _Target(root, name, container, compression, append, settings)
    target.begin(any_function=resume)
    jobs = (
        (
            target.task(f"{name}-{target.first + number:06d}{container_named(container).suffix}"),
            partial(_samples, fn, at, run),
            f"items {at} to {at + len(run) - 1}",
        )
        for number, (at, run) in enumerate(_runs(items, shard_items))
    )
    found, reused = write_shards(
        target.root,
        jobs,
        container=container,
        compression=compression,
        count=shards,
        num_workers=num_workers,
        executor=executor,
        progress=lambda found: notify(_progress(found, shards)),
    )
    report = target.prepare(list(found), options, notify)
    return dataclasses.replace(report, shards_reused=reused, elapsed_s=time.perf_counter() - start)


def _runs(items: Iterable[T], length: int) -> Iterator[tuple[int, list[T]]]:
    """Index of the first item, and the items, of each shard. A sequence is indexed lazily."""
    if isinstance(items, Sequence):
        for at in range(0, len(items), length):
            yield at, [items[place] for place in range(at, min(at + length, len(items)))]
        return
    rest = iter(items)
    for at in itertools.count(0, length):
        if not (run := list(itertools.islice(rest, length))):
            return
        yield at, run


def _samples(fn: Callable[[Any], Any], first: int, items: Sequence[Any]) -> Iterator[Sample]:
    """The samples that a function makes of items, encoded and checked."""
    for number, item in enumerate(items, first):
        try:
            yield from map(parts_of, _made(fn, item))
        except Exception as error:
            error.add_note(f"raised for item {number}")
            raise


def _made(fn: Callable[[Any], Any], item: Any) -> Iterator[WrittenSample]:
    with contextlib.suppress(SkipSample):
        made = fn(item)
        if isinstance(made, Mapping):
            yield cast("WrittenSample", made)
        elif made is not None:
            yield from made


def _identity(fn: object) -> list[str]:
    """Identity of a function: its code, and plain values bound to it.

    Functions that it calls and objects that it holds are not compared.
    """
    bound: list[object] = []
    while isinstance(fn, partial):
        bound += [*fn.args, *itertools.chain(*fn.keywords.items())]
        fn = cast("partial[object]", fn).func
    code = getattr(fn, "__code__", None) or getattr(type(fn).__dict__.get("__call__"), "__code__", None)
    bound += getattr(fn, "__defaults__", None) or ()
    bound += [cell.cell_contents for cell in getattr(fn, "__closure__", None) or ()]
    plain = [repr(each) for each in bound if isinstance(each, str | bytes | int | float | None)]
    text = repr((plain, _code(code) if isinstance(code, CodeType) else None))
    name = getattr(fn, "__qualname__", type(fn).__qualname__)
    return [name, hashlib.blake2b(text.encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()]


def _code(code: CodeType) -> object:
    """Code without file positions; sets are sorted, because their order varies."""
    constants = [
        _code(each) if isinstance(each, CodeType) else sorted(map(repr, each)) if isinstance(each, frozenset) else each
        for each in code.co_consts
    ]
    return code.co_code, code.co_names, constants


def _progress(found: Mapping[str, ScannedShard], shards: int | None) -> PrepareProgress:
    return PrepareProgress(
        stage="write",
        shards_done=len(found),
        shards_total=shards or 0,
        samples=sum(each.samples for each in found.values()),
        bytes_done=sum(each.size_bytes for each in found.values()),
        bytes_total=0,
    )


def _check_appendable(root: Path, container: ContainerName) -> None:
    """Raise ConfigError if a dataset has shards of another container."""
    found = read_records_file(root)
    if found not in (None, "msgpack") or (found is None) != (container == "tar"):
        kind = "tars" if found is None else f"ArrayRecord files with {found} records"
        raise ConfigError(f"{root}: its shards are {kind}; container={container!r} cannot be appended to them")
