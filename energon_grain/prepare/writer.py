# SPDX-License-Identifier: Apache-2.0
"""Writing a dataset: samples become shards and index in one pass, in one process or in many.

A shard is written under a temporary name, flushed to disk and renamed; what its index is to say is known by then, and
goes into a log (`prepare.writing`). At the end `prepare_dataset` makes the index of all logs, the very one that it
would make by scanning the shards. So a process that is killed leaves whole shards, and a second run goes on behind
them.
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
from energon_grain.storage.atomic import remove_temporaries
from energon_grain.storage.location import is_url, located

SHARD_BYTES = 256 << 20
T = TypeVar("T")


class DatasetOptions(TypedDict, total=False):
    """What a new dataset says besides its samples, for `prepare_dataset`. All shards are `train` by default."""

    split_ratio: Mapping[str, float] | Sequence[float] | None
    split_patterns: Mapping[str, str | Sequence[str]] | None
    split_config: str
    sample_type: str | None
    field_map: Mapping[str, str] | None
    crude: bool
    subflavors: Mapping[str, Any] | None
    sqlite: bool


def _checked(options: DatasetOptions, append: bool) -> DatasetOptions:
    """The options, with what is default for data that is written; refused now rather than behind the last sample."""
    if (ratio := options.get("split_ratio")) is not None:
        name_ratio(ratio)
    said = {name: options.get(name) for name in ("sample_type", "field_map", "crude", "subflavors")}
    if append:
        if given := [name for name, value in said.items() if value]:
            raise ConfigError(f"append=True: what samples are is known, leave out {', '.join(given)}")
        return options
    crude = bool(said["crude"]) or said["sample_type"] is None
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

    Parts are encoded by the ends of their names (`encode_part`). A shard appears when it is whole. When the block ends,
    the index is made and the dataset is prepared, for this library and for Megatron-Energon; where it is left by an
    exception, or killed, the shards that are whole stay, and `resume=True` goes on behind them.

    Several processes write one dataset as its parts, each with its `part` of `parts`; each calls `close`, or leaves the
    block, and when all have, one calls `prepare_dataset(root, split_ratio=…, crude=…)`, which scans nothing. The shards
    of part 0 come first, then those of part 1.

    Args:
        root: A new or empty folder of this machine; with `append`, a dataset.
        shard_bytes: A shard ends with the sample that makes it so large.
        shard_samples: Or with this one; None: only size counts.
        name: What names of shards begin with, `shard-000000.tar`; may hold folders.
        container: Kind of the shards: tars, or ArrayRecord files, which Energon does not read.
        compression: Of each record of ArrayRecord files.
        part: Which of several writers this is, from 0.
        parts: How many there are; the number belongs to what is written, as the shards depend on it.
        append: Add shards to a dataset; only they are indexed. See `append` of `prepare_dataset`.
        resume: What to do about a write into this folder that is not finished: True goes on behind the shards that are
            whole, and `samples_done` says how many samples not to write again; False removes them. None refuses.
        options: What the dataset says: `split_ratio`, `split_patterns`, `split_config`, `sample_type` and `field_map`,
            `crude` (the default), `subflavors`, `sqlite`; see `prepare_dataset`. All shards are `train` by default.
            With several `parts` they go to `prepare_dataset` instead.

    Attributes:
        report: What was prepared, when it is closed.

    Raises:
        RefusedError: `root` holds something else, or another process writes this part.
        ConfigError: An argument does not fit.
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
            raise ConfigError(f"part={part}, parts={parts}: parts are numbered from 0 to parts - 1")
        if parts > 1 and options:
            raise ConfigError(
                f"{', '.join(options)}: with several parts, prepare_dataset, which one process calls at the end, takes "
                f"what the dataset says"
            )
        self._options = _checked(options, append)
        self._shard_bytes, self._shard_samples = shard_bytes, shard_samples
        settings = {"shard_bytes": shard_bytes, "shard_samples": shard_samples, "parts": parts}
        self._target = _Target(root, name, container, compression, append, settings)
        self._part, self._parts = part, parts
        root = self._target.root
        if resume is None and has_part(root, part, parts):
            raise RefusedError(
                f"{root}: holds what a writer wrote that did not come to its end. resume=True goes on behind its whole "
                f"shards (samples_done says how many samples these have), resume=False removes them"
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
        """Count those that were written before and are known, and remove what lies behind them."""
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
        """Add a sample: its key at `__key__`, its parts by their names.

        Keys are relative paths such as `cats/000123`, without a dot in their last name, and occur once in a dataset:
        within a shard that is seen at once, else when the index is made.

        Raises:
            UnfitSampleError: The key, or the name of a part, breaks the rules, or the shard has that key. The sample
                was not written; the next one may be.
            ConfigError: A value does not fit the name of its part; likewise.
            OSError: The disk is full. Shards that are whole stay.
        """
        if self._closed:
            raise RefusedError(f"{self._target.root}: this writer was closed, or has failed; make another one")
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
        """End the last shard, and make the index; one of several parts is only marked as whole.

        Returns:
            What was prepared; None of one of several parts.

        Raises:
            EmptyDatasetError: There is no sample.
            EnergonGrainError: As `prepare_dataset`: shards with a key in common, fewer shards than split parts. The
                shards stay, and `prepare_dataset` with what helps makes the index of them.
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
                ways = (
                    "prepare_dataset with what helps makes the index of them, a writer with resume=False removes them"
                )
                error.add_note(f"{self._target.root}: the shards that were written stay; {ways}")
                raise
        return self.report

    def abandon(self) -> None:
        """Remove the shard that is being written, and keep those that are whole, for a writer with `resume=True`."""
        if not self._closed:
            self._closed = True
            if self._shard is not None:
                self._shard.abandon()
            self._log.close(done=False)


class _Target:
    """The folder that shards are written into, and what they are."""

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
            raise ConfigError(f"{location}: datasets are written to a file system; copy the new one to the store")
        self.root, self.name, self._append = Path(location), name, append
        self.container: ContainerName = container
        self.compression: Compression = compression
        check_container(container, compression)
        if not name or name != printable(name) or {"", ".", "..", META_FOLDER} & set(name.split("/")):
            raise ConfigError(f"name={name!r}: is a relative path such as 'shard' or 'photos/shard'")
        has_shards = append or is_prepared(self.root)
        self.indexed: Collection[str] = read_info(self.root).shard_counts if has_shards else ()
        if append:
            _check_appendable(self.root, container)
        first = self._first_free() if append else 0
        # An append that was killed when its shards were in the index already is still the same one. The plan is read
        # last: where there is none, no other part can have written what was counted as there.
        begun = read_plan(self.root) or {}
        self.first = int(begun.get("first", first))
        self._plan = {"container": container, "compression": compression, "name": name, "first": self.first, **settings}

    def begin(self, *, any_function: bool = False) -> None:
        """See `begin_writing`. A dataset that is appended to gets its index first, where it has none."""
        begin_writing(self.root, self._plan, append=self._append, any_function=any_function)
        if self._append:
            open_columnar(self.root)

    def _first_free(self) -> int:
        """The number of the first shard to append: behind all that are there by such a name, indexed or not."""
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
        """Make the index of shards that were all written here."""
        if not shards:
            shutil.rmtree(self.root / WRITING_FOLDER)
            raise EmptyDatasetError(f"{self.root}: no sample was written")
        return prepare_dataset(
            self.root,
            shards=shards,
            records=container_named(self.container).written,
            append=self._append,
            num_workers=0,
            progress=progress,
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
    """Write what a function makes of items as a dataset, in processes or on a cluster.

    A shard holds what `fn` makes of `shard_items` consecutive items, whatever the number of workers, so the dataset is
    the same with any. After a kill the same call goes on: shards that are whole are not made again. It is refused where
    `fn` is another one by its name, its code, or plain values that it is bound to; what it calls is not looked at.

    Args:
        items: A sequence, or any other iterable, which is run through once; behind a kill it must give the same items.
        fn: Makes a sample, several, or none (None, or raising `SkipSample`) of an item; `DatasetWriter.write` says what
            a sample is. It goes to the workers by cloudpickle, so it may be defined anywhere.
        root: A new or empty folder of this machine; with `append`, a dataset.
        shard_items: Items whose samples are a shard.
        name: As of `DatasetWriter`, and so are the next three.
        container: See there.
        compression: See there.
        append: See there.
        resume: Go on also where `fn` was changed, and keep what the old one wrote.
        num_workers: Processes at most; 0 works in this one, None takes one for each core (at most 16). With `executor`:
            shards handed over at a time.
        executor: Runs the work instead of processes of our own, such as `RayExecutor()`. Its workers must see `root`
            under the same path, and write there.
        progress: Called after every shard.
        options: See `DatasetWriter`.

    Raises:
        RefusedError: `root` holds something else.
        ConfigError: An argument does not fit, or a value does not fit the name of its part.
        UnfitSampleError: A key, or the name of a part, breaks the rules.
        DuplicateKeyError: Two samples have the same key.
        EmptyDatasetError: There is no sample.
        WorkerError: A process died, or the executor failed.
        Exception: What `fn` raised, with a note which item it was of.
    """
    if shard_items < 1:
        raise ConfigError(f"shard_items={shard_items}: must be at least 1")
    start, tell = time.perf_counter(), progress or (lambda _: None)
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
        progress=lambda found: tell(_progress(found, shards)),
    )
    report = target.prepare(list(found), options, tell)
    return dataclasses.replace(report, shards_reused=reused, elapsed_s=time.perf_counter() - start)


def _runs(items: Iterable[T], length: int) -> Iterator[tuple[int, list[T]]]:
    """Number of the first, and items, of each shard. Of a sequence no more are asked for than are needed."""
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
    """What a function makes of items, encoded and checked."""
    for number, item in enumerate(items, first):
        try:
            yield from map(parts_of, _made(fn, item))
        except Exception as error:
            error.add_note(f"of item {number}")
            raise


def _made(fn: Callable[[Any], Any], item: Any) -> Iterator[WrittenSample]:
    with contextlib.suppress(SkipSample):
        made = fn(item)
        if isinstance(made, Mapping):
            yield cast("WrittenSample", made)
        elif made is not None:
            yield from made


def _identity(fn: object) -> list[str]:
    """What tells functions of one name apart: their code, and plain values that are bound to them.

    Neither what they call is looked at, nor objects that they hold.
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
    """Code without places in files; sets have no order of their own."""
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
    """Raise ConfigError where a dataset has shards of another kind."""
    found = read_records_file(root)
    if found not in (None, "msgpack") or (found is None) != (container == "tar"):
        kind = "tars" if found is None else f"ArrayRecord files with {found} records"
        raise ConfigError(f"{root}: its shards are {kind}; container={container!r} cannot be appended")
