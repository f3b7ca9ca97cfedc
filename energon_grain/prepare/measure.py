# SPDX-License-Identifier: Apache-2.0
"""Measure columns: one number per sample, from a user's function or a file.

Samples are cut into pieces of a few thousand, which an executor measures. A slow piece is returned in parts. Results
are appended to a log beside the columns. A run that was killed, or whose function failed on one sample, therefore
continues where it stopped. Once all samples are measured, the columns are written and published.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import re
import shutil
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from energon_grain.atomic_files import explaining_writes, naming_when_full, remove_temporaries
from energon_grain.errors import (
    ConfigError,
    EnergonGrainError,
    FatalSampleError,
    StaleIndexError,
)
from energon_grain.formats.class_ref import imported
from energon_grain.formats.columns import COLUMNS_FOLDER, SIZES, ColumnFolder, ColumnStage, KeptColumns
from energon_grain.formats.data_folder import look_again, open_folder
from energon_grain.forms import Form
from energon_grain.prepare.attach import NUMBER, Numbers, as_numbers, attach_column
from energon_grain.prepare.executors import outcomes, own_executor
from energon_grain.prepare.samples import Columns, MeasurableSource
from energon_grain.prepare.scan import RecordLog, as_record, split_record
from energon_grain.prepare.summary import ColumnSummary, summarize_columns
from energon_grain.prepare.writing import preparation_lock
from energon_grain.samplers.hashing import fold
from energon_grain.sources.kinds import kind_at
from energon_grain.sources.source import PartValue
from energon_grain.storage.location import located
from energon_grain.storage.settings import StorageSettings, storage_settings, use_storage

Parts = dict[str, PartValue]
Function = Callable[[Any], Any]
F = TypeVar("F", bound=Callable[..., Any])

_NAME = re.compile(r"[A-Za-z_]\w*(\.\w+)*", re.ASCII)
_PIECE_BYTES = 32 << 20
_PIECE_SAMPLES = 1 << 16
_LEAST_PIECE_SAMPLES = 256
_LEAST_PIECES = 32
_SIZE_SAMPLES = 1000
_READ_BYTES = 8 << 20
_READ_SAMPLES = 1 << 10
_FIRST_READ = 16
_LONG_READ_S = 0.5
_BUDGET_S = 10.0
"""Time after which a worker returns a partial result: limits the loss after a kill, and sets the progress interval."""
_AHEAD = 1024
_COMPARED = 32
"""Number of samples measured again before the function is called for appended samples only."""
_COST_BYTES = 512
"""Assumed cost of one function call, in bytes read; decides whether starting processes is worthwhile."""
_LOG_NAME, _STAGING = ".measure-{}.log", ".measure-staging"
_WHEN_FULL = (
    "a column takes 8 bytes a sample, and the same again while it is built: free some space and run the command again; "
    "it continues where it stopped"
)
_WHEN_READ_ONLY = (
    "columns are stored beside the data, or in the cache folder ($XDG_CACHE_HOME, else ~/.cache) if the data are "
    "read-only: make one of the two writable"
)
_NUMBERS = Form(tuple[int, int, bytes])


def column_function(*, version: int = 1, batched: bool = False) -> Callable[[F], F]:
    """Declare properties of a function that measures samples.

    Args:
        version: Stored with its columns. Increase it when the results of the function change.
        batched: The function takes a list of samples, up to 1,024 and about 8 MB, each a dict of its parts, and returns
            one number per sample, in order. Useful for tokenizers and models, which are faster on batches.
    """

    def mark(function: F) -> F:
        vars(function).update(column_version=version, column_batched=batched)
        return function

    return mark


@dataclass(frozen=True, kw_only=True, slots=True)
class Measurement:
    """A column to measure."""

    name: str
    function: Function
    named: str
    version: int
    batched: bool

    @classmethod
    def of(cls, name: str, function: Function | str, version: int | None) -> Measurement:
        found = imported(function, f"the column {name!r}", "function") if isinstance(function, str) else function
        if not callable(found):
            raise ConfigError(f"the column {name!r}: {function!r} is not callable; pass a function or its module:name")
        named = function if isinstance(function, str) else _name_of(found)
        return cls(
            name=name,
            function=found,
            named=named,
            version=getattr(found, "column_version", 1) if version is None else version,
            batched=getattr(found, "column_batched", False),
        )


def _name_of(function: Any) -> str:
    """`module:name` of a function, or of the class of another callable."""
    made = function if hasattr(function, "__qualname__") else type(function)
    module = made.__module__
    if module == "__main__":
        main = sys.modules["__main__"]
        spec = getattr(main, "__spec__", None)
        module = spec.name if spec is not None else Path(getattr(main, "__file__", "__main__")).stem
    return f"{module}:{made.__qualname__}"


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasureProgress:
    """Progress of measuring, in samples; includes those of an interrupted run."""

    done: int
    total: int


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasureReport:
    """Result of measuring.

    Attributes:
        path: The dataset, its path or URL.
        samples: Number of samples in the dataset.
        columns: Summary of each new column.
        samples_reused: Number of samples measured by an interrupted run, or taken from a column that existed before
            shards were appended.
        notes: Notes for the user that are not errors.
        elapsed_s: Wall-clock time.
    """

    path: str
    samples: int
    columns: dict[str, ColumnSummary]
    samples_reused: int
    notes: tuple[str, ...]
    elapsed_s: float


def carry_out(
    plan: MeasurePlan,
    opened: Callable[[], MeasurableSource],
    *,
    num_workers: int | None,
    executor: Executor | None,
    progress: Callable[[MeasureProgress], None] | None,
) -> MeasureReport:
    """Build the columns of a plan; `opened` opens the samples, each time a new source. See `measure_dataset`."""
    begun_s = time.perf_counter()
    source = opened()
    with contextlib.ExitStack() as stack:
        stack.callback(source.close)
        held = _place_for_columns(source, plan.names)
        folder = held.folder.writable()
        staging = stack.enter_context(_staging(folder, plan.location))
        stage, notes, reused = ColumnStage(folder, staging), _about_place(folder), 0
        for name, file in plan.files.items():
            notes += attach_column(stage, name, file, source)
        log = stack.enter_context(contextlib.closing(plan.log(folder.local, source))) if plan.measures else None
        if log is not None:
            _reuse_known(log, held, source, plan.measures, plan.parts)
            reused, notify = log.samples, progress or (lambda _: None)
            _measure(source, plan.measures, log, num_workers=num_workers, executor=executor, notify=notify)
            plan.stage(stage, log)
        put, remove = stage.finish(held.content_id)
        folder.put_in_place(staging, put=put, remove=remove)
        if log is not None:
            log.remove()
        if folder.mirrored is not None and kind_at(plan.location).shards is not None:
            look_again(open_folder(plan.location))
    with contextlib.closing(opened()) as again:
        return MeasureReport(
            path=plan.location,
            samples=len(source),
            columns=summarize_columns(Columns(again), plan.names),
            samples_reused=reused,
            notes=tuple(notes),
            elapsed_s=time.perf_counter() - begun_s,
        )


@dataclass(frozen=True, kw_only=True)
class MeasurePlan:
    """The columns to build for a dataset: `measures` by functions, `files` from files or arrays.

    `wanted` holds the parts as the caller passed them, `parts` the same, sorted.
    """

    location: str
    measures: tuple[Measurement, ...]
    files: Mapping[str, str | npt.NDArray[Any]]
    parts: tuple[str, ...]
    wanted: Collection[str] | None

    @classmethod
    def of(
        cls,
        path: str | os.PathLike[str],
        columns: Mapping[str, Function | str],
        attach: Mapping[str, str | os.PathLike[str] | npt.NDArray[Any]],
        parts: Collection[str] | None,
        version: int | None,
    ) -> MeasurePlan:
        """Raises ConfigError: a function or a name does not fit, or there is no column to make."""
        measures = tuple(Measurement.of(name, function, version) for name, function in columns.items())
        files = {name: file if isinstance(file, np.ndarray) else os.fspath(file) for name, file in attach.items()}
        _check_names(path, [*(each.name for each in measures), *files])
        sorted_parts = tuple(sorted(parts or ()))
        return cls(location=located(path), measures=measures, files=files, parts=sorted_parts, wanted=parts)

    @property
    def names(self) -> list[str]:
        """Names of all columns."""
        return [*(each.name for each in self.measures), *self.files]

    def log(self, folder: Path, source: MeasurableSource) -> _Log:
        """The log of this plan in the folder of columns; logs of other plans are removed."""
        measures = [(each.name, each.named, each.version) for each in self.measures]
        request = repr((source.content_id, measures, self.wanted and sorted(self.wanted)))
        own = _LOG_NAME.format(f"{fold(request):016x}")
        for other in folder.glob(_LOG_NAME.format("*")):
            if other.name != own:
                other.unlink()
        return _Log(folder / own)

    def stage(self, stage: ColumnStage, log: _Log) -> None:
        """Write the measured columns into the staging folder."""
        writers = [
            stage.new(each.name, log.dtype(place), function=each.named, version=each.version, parts=self.parts)
            for place, each in enumerate(self.measures)
        ]
        for values in log.in_order():
            for writer, piece in zip(writers, values, strict=True):
                writer.append(piece)


def _check_names(path: str | os.PathLike[str], names: Sequence[str]) -> None:
    if not names:
        raise ConfigError(f"{path}: no column to measure; pass one, such as tokens=my_module:count_tokens")
    for name in names:
        if not _NAME.fullmatch(name) or name.partition(".")[0] == SIZES or names.count(name) > 1:
            taken = "given twice" if names.count(name) > 1 else "not a valid column name"
            raise ConfigError(
                f"{name!r} is {taken}: use letters, digits, underscores and dots between them; `{SIZES}` and names "
                f"that begin with `{SIZES}.` are reserved for the sizes of parts"
            )


@contextlib.contextmanager
def _staging(folder: ColumnFolder, location: str) -> Generator[Path]:
    """An empty folder for new columns, under the lock of the dataset; it is removed on exit."""
    local = folder.local
    with explaining_writes(local, full=_WHEN_FULL, read_only=_WHEN_READ_ONLY), naming_when_full(local):
        local.mkdir(parents=True, exist_ok=True)
        with preparation_lock(folder.locked or local, of=location):
            staging = local / _STAGING
            remove_temporaries(local, _STAGING)
            _remove_unnamed(folder)
            try:
                yield staging
            finally:
                shutil.rmtree(staging, ignore_errors=True)


def _place_for_columns(source: MeasurableSource, names: Collection[str]) -> KeptColumns:
    """Where the columns are stored. Raises ConfigError if the kind stores none, or a name is taken."""
    if source.kept is None:
        raise ConfigError(f"{source.path}: this kind of data cannot store columns; write the numbers into the data")
    taken = next((name for name in names if name in source.columns and name not in source.kept), None)
    if taken is not None:
        raise ConfigError(f"{source.path}: already has its own column {taken!r}; choose another name for the new one")
    return source.kept


def _about_place(folder: ColumnFolder) -> list[str]:
    """A note if the columns are not stored beside the data."""
    if folder.local != folder.machine_local.local:
        return []
    return [
        f"the folder of the data is read-only, so the columns are in {folder.local}, on this machine only: measure "
        "them on every other host of a run, too"
    ]


def _remove_unnamed(folder: ColumnFolder) -> None:
    """Remove column files of a run that was killed before it recorded them."""
    if folder.mirrored is None:
        named = {each.file for each in folder.read().values()}
        for file in (folder.local / COLUMNS_FOLDER).glob("*.npy"):
            if file.name not in named:
                file.unlink(missing_ok=True)


class _Log(RecordLog):
    """Log of measured numbers: each record holds the numbers of some samples.

    The head holds the first sample, the number of samples, and for each column whether it is int64 or float64 (`i`,
    `f`). The body holds the numbers of each column.
    """

    def __init__(self, path: Path) -> None:
        self._found: list[tuple[int, int, bytes, int]] = []
        super().__init__(path)

    def _note(self, record: bytes, at: int) -> None:
        try:
            self._found.append((*_NUMBERS.from_msgpack(bytes(split_record(record, check=False)[0])), at))
        except msgspec.MsgspecError as error:
            raise ValueError(str(error)) from error

    @property
    def samples(self) -> int:
        return sum(count for _, count, _, _ in self._found)

    def missing(self, total: int) -> Iterator[tuple[int, int]]:
        """The runs of samples, [begin, stop), that are not measured yet."""
        begin = 0
        for first, count, _, _ in sorted(self._found):
            if begin < first:
                yield begin, first
            begin = first + count
        if begin < total:
            yield begin, total

    def dtype(self, place: int) -> type[np.int64 | np.float64]:
        """The type of a column: int64 if all of its numbers are ints."""
        return np.float64 if any(kinds[place : place + 1] == b"f" for _, _, kinds, _ in self._found) else np.int64

    def add_numbers(self, begin: int, values: Sequence[Numbers]) -> None:
        """Append the numbers of samples, starting at `begin`."""
        kinds = b"".join(b"f" if each.dtype.kind == "f" else b"i" for each in values)
        data = b"".join(np.ascontiguousarray(each).tobytes() for each in values)
        self.add(as_record(msgspec.msgpack.encode((begin, len(values[0]), kinds)), data))

    def in_order(self) -> Iterator[list[Numbers]]:
        """The numbers of each column, record by record, in sample order."""
        for _, count, kinds, at in sorted(self._found):
            try:
                _, data = split_record(self._read(at))
            except ValueError as error:
                raise StaleIndexError(f"{self._path}: was changed during the run; measure again") from error
            types = [np.float64 if kind == ord("f") else np.int64 for kind in kinds]
            yield [np.frombuffer(data, dtype, count, 8 * count * place) for place, dtype in enumerate(types)]

    def remove(self) -> None:
        self._path.unlink()


def _reuse_known(
    log: _Log, held: KeptColumns, source: MeasurableSource, measures: Sequence[Measurement], parts: tuple[str, ...]
) -> None:
    """Fill an empty log with the numbers of samples that existed before shards were appended.

    The functions must return the same numbers as before for a few of these samples.
    """
    if log.samples:
        return
    known: list[npt.NDArray[Any]] = []
    for measure in measures:
        found = held.of_first(measure.name)
        made = (measure.named, measure.version, parts)
        if found is None or (found[0].function, found[0].version, found[0].parts) != made or "<" in measure.named:
            return  # a name with <lambda> or <locals> may belong to several functions
        known.append(found[1])
    first = min(map(len, known))
    some = np.unique(np.linspace(0, first - 1, _COMPARED).astype(np.int64))
    samples = source.read(some)._parts_of_each()
    for measure, numbers in zip(measures, known, strict=True):
        now = measured(measure, samples, lambda row: source.place_of(int(some[row])))
        if not np.array_equal(now, numbers[some], equal_nan=True):
            return
    for begin in range(0, first, _PIECE_SAMPLES):
        stop = min(begin + _PIECE_SAMPLES, first)
        log.add_numbers(begin, [numbers[begin:stop] for numbers in known])


@lru_cache(maxsize=2)
def _reading(pickled: bytes, process: int) -> MeasurableSource:
    return pickle.loads(pickled)  # raises if the samples differ from those in the parent process


def _measure(
    source: MeasurableSource,
    measures: Sequence[Measurement],
    log: _Log,
    *,
    num_workers: int | None,
    executor: Executor | None,
    notify: Callable[[MeasureProgress], None],
) -> None:
    """Measure the samples that are missing in the log."""
    total = len(source)
    some = np.unique(np.linspace(0, total - 1, min(_SIZE_SAMPLES, total)).astype(np.int64))
    size_bytes = int(source.sizes(some).mean() * total)
    each = min(_PIECE_SAMPLES, max(1, _PIECE_BYTES * total // max(size_bytes, 1)))
    each = max(min(each, -(-total // _LEAST_PIECES)), min(each, _LEAST_PIECE_SAMPLES))
    tasks = deque((at, min(at + each, stop)) for begin, stop in log.missing(total) for at in range(begin, stop, each))
    storage, pickled = storage_settings(), pickle.dumps(source)
    with contextlib.ExitStack() as stack:
        if executor is None:
            processes = _processes(measures, num_workers)
            worth = size_bytes + _COST_BYTES * total if processes is None else sys.maxsize
            executor = stack.enter_context(own_executor(processes, jobs=len(tasks), size_bytes=worth))
            ahead = _AHEAD
        else:
            ahead = _AHEAD if num_workers is None else max(1, num_workers)
        stack.callback(_reading.cache_clear)
        notify(MeasureProgress(done=log.samples, total=total))

        def keep(task: tuple[int, int], values: list[Numbers] | Exception) -> None:
            if not isinstance(values, Exception):
                log.add_numbers(task[0], values)

        results = outcomes(
            lambda task: executor.submit(measure_piece, pickled, measures, *task, storage),
            tasks,
            ahead=ahead,
            named=lambda task: f"{source.path}: measuring samples {task[0]} to {task[1] - 1}",
            salvage=keep,
        )
        failed: list[Exception] = []
        with contextlib.closing(results):
            for (begin, stop), values in results:
                if isinstance(values, Exception):
                    failed.append(values)
                    break  # the user must fix the function; finished results of other workers are kept
                log.add_numbers(begin, values)
                if len(values[0]) < stop - begin:
                    tasks.appendleft((begin + len(values[0]), stop))
                notify(MeasureProgress(done=log.samples, total=total))
    if failed:
        raise failed[0]


def _processes(measures: Sequence[Measurement], num_workers: int | None) -> int | None:
    """Number of processes; 0 if the functions cannot be called in other processes. Raises ConfigError."""
    if not _needs_main_program(measures):
        return num_workers
    if num_workers:
        raise ConfigError(
            "functions of the main program, and others that cannot be pickled, cannot be called in other processes: "
            "move them into a module, or measure with num_workers=0"
        )
    return 0


def _needs_main_program(measures: Sequence[Measurement]) -> bool:
    """Whether functions cannot be sent to other processes, which do not import the main program."""
    try:
        return b"__main__" in pickle.dumps([each.function for each in measures])
    except Exception:  # each class has its own error for pickling
        return True


def measure_piece(
    pickled: bytes, measures: Sequence[Measurement], begin: int, stop: int, storage: StorageSettings
) -> list[Numbers] | Exception:
    """Measure samples [begin, stop), or the part of them that takes ten seconds.

    Errors in a sample or the data are returned. A raised exception is therefore a fault of the worker and worth a
    retry.

    Returns:
        (n,) numbers of each column, 0 < n ≤ stop - begin.
    """
    if storage != storage_settings():
        use_storage(storage)
    end_s = time.monotonic() + _BUDGET_S
    found: list[list[Numbers]] = [[] for _ in measures]
    at, most = begin, _FIRST_READ
    try:
        source = _reading(pickled, os.getpid())
        while at < stop and (at == begin or time.monotonic() < end_s):
            begun_s = time.monotonic()
            block = np.arange(at, min(at + most, stop))
            block = block[: max(1, int(np.searchsorted(np.cumsum(source.sizes(block)), _READ_BYTES, side="right")))]
            batch = source.read(block)
            samples = batch._parts_of_each()

            def where(row: int, first: int = at) -> str:
                return f"{source.path}: {source.place_of(first + row)}"

            for measure, numbers in zip(measures, found, strict=True):
                numbers.append(measured(measure, samples, where))
            at += len(block)
            if time.monotonic() - begun_s < _LONG_READ_S:
                most = min(2 * most, _READ_SAMPLES)
    except (EnergonGrainError, OSError) as error:
        return error
    return [np.concatenate(numbers) for numbers in found]


def measured(measure: Measurement, samples: list[Parts], place: Callable[[int], str]) -> Numbers:
    """(n,) the numbers that a function returns for samples.

    Args:
        measure: The function.
        samples: Its input.
        place: Returns the location of a sample, for messages.

    Raises FatalSampleError: it raised, or returned something that is not a number.
    """

    def unfit(row: int, what: str) -> FatalSampleError:
        return FatalSampleError(
            f"{place(row)}: {measure.named}, for the column {measure.name!r}, {what}. A function takes the parts of a "
            "sample as bytes, by name, and returns a number, or None for a sample without one. Finished results are "
            "kept: fix the function, and run the same command again"
        )

    row = 0
    samples = [dict(each) for each in samples]  # one function may remove parts that the others need
    try:
        if measure.batched:
            values: Any = measure.function(samples)
            count = len(values)
        else:
            values, count = [], len(samples)
            for row, sample in enumerate(samples):  # noqa: B007 (which one raised)
                values.append(measure.function(sample))
    except Exception as error:  # a user's function may raise any exception
        *_, at = traceback.extract_tb(error.__traceback__)
        cause = f"{type(error).__name__}: {error} ({os.path.basename(at.filename)}:{at.lineno})"
        raise unfit(row, f"{_given(measure, samples)}raised {cause}") from error
    if count != len(samples):
        raise unfit(0, f"{_given(measure, samples)}returned {count} numbers")
    numbers = as_numbers(values)
    if isinstance(numbers, int):
        value = values[numbers]
        raise unfit(numbers, f"returned {value!r:.100} ({type(value).__name__}), which is not a {NUMBER}")
    return numbers


def _given(measure: Measurement, samples: list[Parts]) -> str:
    return f"called with {len(samples)} samples from this one on, " if measure.batched else ""
