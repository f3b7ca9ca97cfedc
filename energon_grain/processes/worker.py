# SPDX-License-Identifier: Apache-2.0
"""The program of a worker process.

If the order is arithmetic, the samples of a batch are adjacent in a chunk, as long as nothing is dropped. The worker
then runs the batch hooks too, and sends batches instead of samples: workers do the collating, and sending one batch to
the main process is much cheaper than sending its samples: 1.75 times the rate for texts of 1 KB, 1.84 times for images
of 256 x 256. This is cheap speculation: if something was dropped before, the main process makes the chunk again, which
is pure. Workers hold no position and no random state, so their number and start method do not affect the stream.

Also the messages between processes: the compiled dataset to workers, and encoded chunks back, with large buffers beside
the pickle. These are numpy arrays and arrays of registered kinds (`energon_grain.transforms.batching`). The provenance
of a sample refers to its source. It is sent as (number of the source, index) and bound to the receiver's own source.
Classes of the user's script are sent by name, because `__main__` of a worker is not the script.
"""

from __future__ import annotations

import dataclasses
import errno
import io
import mmap
import os
import pickle
import signal
import socket
import struct
import sys
import tempfile
import threading
import time
import traceback
import weakref
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from io import TextIOWrapper
from operator import attrgetter
from types import FunctionType, MethodType
from typing import Any, cast

import cloudpickle
import numpy as np
import numpy.typing as npt

from energon_grain.errors import SkipSample, WorkerError
from energon_grain.memory_budget.budget import join_budget
from energon_grain.processes.start import end_with, end_without_parent
from energon_grain.sources.cache_pool import using_cache
from energon_grain.sources.source import LazySources, Source
from energon_grain.storage.traffic import traffic
from energon_grain.stream.batches import BatchMaker
from energon_grain.stream.chunks import Chunk, Encoded, MadeBatch
from energon_grain.stream.clock import Clock
from energon_grain.stream.drops import Dropped, PartialItem
from energon_grain.stream.memory import holders, paused_collection
from energon_grain.stream.spec import StreamSpec
from energon_grain.stream.stage import PureStage
from energon_grain.stream.worker_config import IN_A_WORKER, set_worker_number
from energon_grain.transforms.batching import reducers

_HEADER = struct.Struct("<Q")
"""Start of each message in a pipe: its length."""
_NO_MORE_FILES = (
    "a worker process returns its result in an in-memory file, but this process has reached its limit of open files: "
    "close some, or raise the limit (`ulimit -n`)"
)
_ALIGNMENT = 64
_BLOCK_BYTES = 512  # the unit of `st_blocks`
_STAYING = 16
"""Buffers of at least 1/16 of a result stay in its file. Smaller ones are copied: holding one would keep the file."""


class SamplePickler(pickle.Pickler):
    """Pickles a result; arrays go to `buffers`."""

    def __init__(self, sources: list[Source]) -> None:
        self._stream = io.BytesIO()
        self._numbers = {id(source): number for number, source in enumerate(sources)}
        self.buffers: list[pickle.PickleBuffer] = []
        # Not a method of this class: the garbage collector of CPython 3.11 crashes on a cycle that contains buffers.
        super().__init__(self._stream, protocol=5, buffer_callback=self.buffers.append)
        table = reducers()
        if table is not None:
            self.dispatch_table = table

    def reducer_override(self, obj: Any) -> Any:
        """(source, index) for provenance; classes of the script by name, and their instances with slots."""
        # Unlike `persistent_id`, this is not called for strings, numbers, lists and tuples, which are most of a sample.
        if type(obj) is LazySources:
            number = self._numbers.get(id(obj.source))
            return NotImplemented if number is None else (_bound, (number, obj.index))
        if isinstance(obj, type) and obj.__module__ == "__main__" and "<locals>" not in obj.__qualname__:
            return _class_of_script, (obj.__qualname__,)
        if type(obj).__module__ == "__main__" and hasattr(type(obj), "__slots__"):
            return _by_attributes(obj)
        return NotImplemented

    def payload(self, result: Any) -> memoryview:
        self.dump(result)
        return memoryview(self._stream.getvalue())  # not a copy; a view of the stream must not outlive it


class SampleUnpickler(pickle.Unpickler):
    """Reads the result of `SamplePickler`."""

    def __init__(self, payload: Any, buffers: Iterable[Any], sources: list[Source]) -> None:
        super().__init__(io.BytesIO(payload), buffers=buffers)
        self._sources = sources

    def load(self) -> Any:
        """The result, with provenance bound to this process's sources."""
        _receiving.sources = self._sources
        try:
            return super().load()
        finally:
            _receiving.sources = None


_receiving = threading.local()


def _bound(number: int, index: int) -> LazySources:
    return LazySources(_receiving.sources[number], index)


def _by_attributes(value: Any) -> tuple[Any, ...]:
    """An instance of a class with `__slots__`. In a worker, it also has a `__dict__`: cloudpickle made the class."""
    make, arguments, *rest = cast("tuple[Any, ...]", value.__reduce_ex__(5))
    if rest and isinstance(rest[0], tuple) and not hasattr(value, "__setstate__"):
        state, slots = cast("tuple[dict[str, Any] | None, dict[str, Any]]", rest[0])
        rest[0] = None, {**(state or {}), **slots}  # attributes are set one by one
    return make, arguments, *rest


def _class_of_script(name: str) -> Any:
    try:
        return attrgetter(name)(sys.modules["__main__"])
    except AttributeError as error:
        raise WorkerError(
            f"a hook returned an instance of {name}, which the script does not define at its top level, so the main "
            f"process cannot find it; define it at the top level, or in a module"
        ) from error


def with_portable_errors(encoded: Encoded) -> Encoded:
    """The chunk with errors that can be sent to another process, and the arguments of hooks if they can be sent."""
    if not encoded.drops:
        return encoded
    return dataclasses.replace(encoded, outcomes=list(map(_portable, encoded.outcomes)))


def _portable(outcome: Any) -> Any:
    if type(outcome) is PartialItem:
        return PartialItem(_portable(outcome.value), tuple(map(_portable, outcome.dropped)))
    if type(outcome) is not Dropped:
        return outcome
    dropped = outcome
    sample = None if dropped.skipped or not _pickles(dropped.sample) else dropped.sample
    return dataclasses.replace(dropped, error=portable_error(dropped.error), sample=sample)


def _pickles(value: Any) -> bool:
    try:
        SamplePickler([]).payload(value)
    except Exception:
        return False
    return True


def portable_error(error: BaseException) -> Any:
    """The error with its traceback as a note. If it cannot be pickled, an error of a class of the same name."""
    if not isinstance(error, SkipSample):
        error.add_note(IN_A_WORKER + "".join(traceback.format_exception(error)))
    if _pickles(error) and _can_be_made_again(error):
        return error
    return _Namesake(type(error).__name__, str(error), isinstance(error, SkipSample), getattr(error, "__notes__", []))


def _can_be_made_again(error: BaseException) -> bool:
    """Whether the class accepts the arguments that pickle calls it with; one with its own `__init__` may not."""
    try:
        make, arguments, *_ = cast("tuple[Any, ...]", error.__reduce_ex__(5))
        make(*arguments)
    except Exception:
        return False
    return True


class _Namesake:
    """Pickles as an error of a class of this name."""

    def __init__(self, name: str, text: str, skips: bool, notes: list[str]) -> None:
        self._arguments = (name, text, skips, notes)

    def __reduce__(self) -> tuple[Any, ...]:
        return _make_namesake, self._arguments


def _make_namesake(name: str, text: str, skips: bool, notes: list[str]) -> Exception:
    error = cast("Exception", type(name, (SkipSample if skips else RuntimeError,), {})(text))
    for note in notes:
        error.add_note(note)
    return error


def packed(result: Any, sources: list[Source]) -> list[memoryview]:
    """The pickle of a result, followed by its large buffers, as `SampleUnpickler` expects them.

    If the result cannot be pickled, a WorkerError that says so is pickled instead.
    """
    try:
        return pickled_parts(result, sources)
    except Exception as error:
        return pickled_parts(
            WorkerError(
                f"the return value of hooks cannot be sent to the main process: {type(error).__name__}: {error}; "
                f"return arrays, strings and instances of classes of a module or of the script, or run hooks in the "
                f"main process (no workers, or worker_type='thread')"
            ),
            sources,
        )


def pickled_parts(result: Any, sources: list[Source]) -> list[memoryview]:
    """The pickle of a result, followed by its large buffers, as `SampleUnpickler` expects them. Raises as `pickle`."""
    pickler = SamplePickler(sources)
    payload = pickler.payload(result)
    return [payload, *(buffer.raw() for buffer in pickler.buffers)]


def part_offsets(sizes: list[int]) -> tuple[list[int], int]:
    """Offsets of parts of these sizes in one block of memory, aligned for any array, and the size of the block."""
    offsets: list[int] = []
    end = 0
    for size in sizes:
        offsets.append(end)
        end += -(-size // _ALIGNMENT) * _ALIGNMENT
    return offsets, end


def write_parts(file: int, parts: list[memoryview]) -> None:
    """Write parts at their `part_offsets` in an in-memory file, which grows and shrinks as needed.

    This does not use a mapping: a mapping clears new pages first, one by one, while `pwrite` fills them directly.
    """
    offsets, total = part_offsets([part.nbytes for part in parts])
    if not total <= os.fstat(file).st_size <= 4 * total:  # otherwise all files would grow to the largest result
        os.ftruncate(file, total + total // 4)  # spare space for the next result, which costs nothing until used
    for offset, part in zip(offsets, parts, strict=True):
        _write(file, part, offset)


def _write(file: int, part: memoryview, offset: int) -> None:
    done = 0
    while done < part.nbytes:
        done += os.pwrite(file, part[done:], offset + done)


def _memory_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("energon-grain", os.MFD_CLOEXEC)
    with tempfile.TemporaryFile(buffering=0) as file:
        return os.dup(file.fileno())


@contextmanager
def _no_more_files() -> Generator[None]:
    """Explain the error if this process has reached its limit of open files. Raises WorkerError."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.EMFILE, errno.ENFILE):
            raise
        raise WorkerError(_NO_MORE_FILES) from error


class ResultFile:
    """An anonymous in-memory file (or an unlinked one on disk, if the system has no memfd), mapped in this process.

    Attributes:
        end: Size in bytes of the result that it has, without spare space.
        reusable: Whether it may be written to again, once nothing in this process refers to its memory.
    """

    __slots__ = ("_mapping", "descriptor", "end", "reusable")

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.end = 0
        self.reusable = True
        self._mapping: mmap.mmap | None = None

    def memory(self, size: int) -> npt.NDArray[np.uint8]:
        """(size,) its first bytes, without a copy."""
        if self._mapping is None or len(self._mapping) < size:
            self._mapping = mmap.mmap(self.descriptor, os.fstat(self.descriptor).st_size)
        return np.frombuffer(self._mapping, np.uint8, size)

    def append(self, parts: list[memoryview]) -> list[int]:
        """Write parts behind the result, and return their offsets in the file."""
        offsets, total = part_offsets([part.nbytes for part in parts])
        begin = -(-self.end // _ALIGNMENT) * _ALIGNMENT
        self.end = begin + total
        if os.fstat(self.descriptor).st_size < self.end:
            os.ftruncate(self.descriptor, self.end)
        for offset, part in zip(offsets, parts, strict=True):
            _write(self.descriptor, part, begin + offset)
        return [begin + offset for offset in offsets]

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        close(self.descriptor)


class ResultFiles:
    """The files that workers write results to. A file is reused once nothing refers to its memory. A memory holder.

    Allocating, clearing and mapping new memory page by page takes longer than writing to existing memory.

    Args:
        most: Maximum number of files in use by consumers. Beyond it, consumers get copies.
    """

    holder = "buffers"

    def __init__(self, most: int) -> None:
        self._most = most
        self._held: set[ResultFile] = set()
        self._free: deque[ResultFile] = deque(maxlen=most)
        holders.add(self)

    def held_bytes(self) -> int:
        """Size of the files that wait to be used again."""
        total = 0
        for _ in range(len(self._free)):
            with suppress(IndexError):
                file = self._free.popleft()
                total += os.fstat(file.descriptor).st_blocks * _BLOCK_BYTES
                self._free.append(file)
        return total

    def allow(self, size_bytes: int) -> None:
        """Keep at most this much for reuse."""
        while self.held_bytes() > size_bytes:
            with suppress(IndexError):
                self._free.popleft()

    def take(self) -> ResultFile:
        """A free file. Raises WorkerError if this process has reached its limit of open files."""
        with suppress(IndexError):
            return self._free.pop()
        with _no_more_files():
            return ResultFile(_memory_file())

    def parts(self, file: ResultFile, sizes: list[int]) -> list[Any]:
        """The parts of these sizes in a file, writable. Large ones stay in the file until they are released."""
        offsets, total = part_offsets(sizes)
        with _no_more_files():  # a mapping keeps another file open
            memory = file.memory(total)
        file.end = total
        address = _address(memory)
        _lent[address] = total, file
        weakref.finalize(memory, self._release, file, address, _forks).atexit = False
        staying = total // _STAYING if len(self._held) < self._most else total + 1
        self._held.add(file)
        whole = [memory[offset : offset + size] for offset, size in zip(offsets, sizes, strict=True)]
        return [part.data if at and part.size >= staying else part.copy().data for at, part in enumerate(whole)]

    def _release(self, file: ResultFile, address: int, forks: int) -> None:
        """Called when nothing refers to the memory of a file in this process. It is not reused after a fork.

        The garbage collector may call it in any thread, so it takes no lock.
        """
        _lent.pop(address, None)
        self._held.discard(file)
        if forks == _forks and file.reusable:
            self._free.append(file)

    def close(self) -> None:
        """Keep no files from now on."""
        self._free = deque(maxlen=0)


_lent: dict[int, tuple[int, ResultFile]] = {}
"""The memory of files that something in this process refers to: address -> (size in bytes, file)."""


def _address(memory: npt.NDArray[np.uint8]) -> int:
    return memory.__array_interface__["data"][0]


def lent_file(part: memoryview) -> tuple[ResultFile, int] | None:
    """The file that has this memory, and its offset there; None: it is other memory. No copy is made."""
    if not part.nbytes:
        return None
    address = _address(np.frombuffer(part, np.uint8))
    for begin, (size, file) in tuple(_lent.items()):
        if begin <= address and address + part.nbytes <= begin + size:
            return file, address - begin
    return None


_forks = 0


def _forking() -> None:
    global _forks
    _forks += 1


os.register_at_fork(before=_forking)


_CHEAP = (str, bytes, int, float, type(None), np.ndarray)
_MAX_SEARCHED = 1000


def pickled_spec(spec: StreamSpec, *, otherwise: str) -> bytes:
    """Pickle a dataset for a worker process. Hooks may be defined in the script.

    Args:
        spec: The compiled dataset, without parts that workers do not need.
        otherwise: An alternative for hooks that cannot be pickled, for the message.

    Raises:
        WorkerError: It cannot be pickled.
    """
    try:
        return cloudpickle.dumps(spec)
    except Exception as error:
        raise WorkerError(
            f"the dataset cannot be sent to worker processes: {type(error).__name__}: {error}; "
            f"{_unpicklable(spec) or 'a hook or its task encoder holds something'} that cannot be pickled. Create it "
            f"inside the hook, or {otherwise}"
        ) from error


def _unpicklable(value: Any, path: str = "", seen: set[int] | None = None) -> str | None:
    """The innermost attribute that cannot be pickled, with its type: "`Encoder.lock` is a lock"."""
    seen = set() if seen is None else seen
    if id(value) in seen or len(seen) > _MAX_SEARCHED:
        return None
    seen.add(id(value))
    for name, below in _held(value):
        if isinstance(below, _CHEAP) or _can_be_sent(below):
            continue
        owner = type(value).__name__
        here = f"{owner}.{name}" if _has_fields(value) else path
        return _unpicklable(below, here, seen) or f"`{here}` is a {type(below).__name__}"
    return None


def _held(value: Any) -> Iterator[tuple[str, Any]]:
    """Named references of an object: attributes, items, and the bound or closed-over values of a function."""
    if isinstance(value, dict):
        yield from ((str(key), each) for key, each in cast("dict[Any, Any]", value).items())
    elif isinstance(value, list | tuple | set | frozenset):
        yield from ((str(number), each) for number, each in enumerate(cast("Sequence[Any]", value)))
    elif isinstance(value, MethodType):
        yield "self", value.__self__
    elif isinstance(value, partial):
        yield from ((str(number), each) for number, each in enumerate((value.func, *value.args, value.keywords)))
    elif isinstance(value, FunctionType):
        cells = zip(value.__code__.co_freevars, value.__closure__ or (), strict=False)
        yield from ((name, cell.cell_contents) for name, cell in cells)
    else:
        yield from _attributes(value)


def _attributes(value: Any) -> Iterator[tuple[str, Any]]:
    yield from getattr(value, "__dict__", {}).items()
    slots = (name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ()))
    yield from ((name, getattr(value, name)) for name in slots if hasattr(value, name))


def _has_fields(value: Any) -> bool:
    return not isinstance(value, dict | list | tuple | set | frozenset | MethodType | partial | FunctionType)


def _can_be_sent(value: Any) -> bool:
    try:
        cloudpickle.dumps(value)
    except Exception:
        return False
    return True


class WorkerStage:
    """The pure stage of a worker process."""

    def __init__(self, spec: StreamSpec) -> None:
        self._stage = PureStage(spec)
        self._cache_pool = spec.cache_pool
        self._maker: BatchMaker | None = None
        if spec.batch is not None:
            self._maker = BatchMaker(spec.batch, seed=spec.seed, hook_lock=self._stage.hook_lock)
        self._reported_traffic = traffic()

    def answer(self, chunk: Chunk) -> list[memoryview]:
        """The encoded chunk, or the error that it raised, as parts for `SampleUnpickler`."""
        try:
            encoded = self._stage.run(chunk)
            if encoded.work is not None:
                before, self._reported_traffic = self._reported_traffic, traffic()
                encoded.work.traffic = self._reported_traffic - before
            with paused_collection(), using_cache(self._cache_pool):
                result: Any = self._with_batches(chunk, encoded)
                if result is not encoded:
                    try:
                        return pickled_parts(result, self._stage.sources)
                    except Exception:
                        result = encoded  # a batch that cannot be sent is made in the main process
                return packed(with_portable_errors(result), self._stage.sources)
        except BaseException as error:
            return packed(portable_error(error), self._stage.sources)

    def _with_batches(self, chunk: Chunk, encoded: Encoded) -> Encoded:
        """The chunk with batches instead of samples, if possible."""
        numbers, maker, work = chunk.numbers, self._maker, encoded.work
        if numbers is None or maker is None or encoded.drops or encoded.made:
            return encoded
        outcomes, restore_keys, made = list(encoded.outcomes), list(encoded.restore_keys), 0
        # Only the first batch is timed. It shows how hooks share the time of all batches.
        clock = None if work is None else Clock()
        for group in chunk.whole_batches():
            item, step = numbers.of(chunk.first + group.start)
            valid = np.ones(len(group), np.bool_) if numbers.pads else None
            places = slice(group.start, group.stop)
            try:
                batch = maker.make(
                    encoded.outcomes[places],
                    encoded.restore_keys[places],
                    item=item,
                    pass_number=numbers.pass_number,
                    step=step,
                    valid=valid,
                    clock=None if made else clock,
                )
            except Exception:
                return encoded  # the main process makes the batch and handles the error
            nothing = [None] * (len(group) - 1)
            outcomes[places] = [MadeBatch(batch=batch, samples=len(group)), *nothing]
            restore_keys[places] = [()] * len(group)
            made += 1
        if work is not None and clock is not None:
            work.spans += clock.shared("workers", made * chunk.batch_size)
        return (
            dataclasses.replace(encoded, outcomes=outcomes, restore_keys=restore_keys, made=True) if made else encoded
        )


class Channel:
    """One end of a socket between two processes. Sends messages, each optionally with an in-memory file."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end

    def send(self, message: bytes, file: int | None = None) -> None:
        """Send a message, and optionally a file descriptor, which stays open in this process.

        Raises ConnectionError if the other process has ended, or closed its end.
        """
        header = _HEADER.pack(len(message))
        if file is None:
            self._end.sendall(header)
        else:
            socket.send_fds(self._end, [header], [file])
        self._end.sendall(message)

    def receive(self) -> tuple[bytearray, int | None]:
        """A message, and the file descriptor sent with it.

        Raises EOFError or ConnectionError if the other process has ended or closed its end, and WorkerError if this
        process has reached its limit of open files.
        """
        begun, files, flags, _ = socket.recv_fds(self._end, _HEADER.size, 1)
        if not begun:
            raise EOFError
        if flags & socket.MSG_CTRUNC:
            raise WorkerError(_NO_MORE_FILES)
        for file in files:
            os.set_inheritable(file, False)
        header = begun + self._exactly(_HEADER.size - len(begun))
        return self._exactly(_HEADER.unpack(header)[0]), next(iter(files), None)

    def _exactly(self, size: int) -> bytearray:
        data = bytearray(size)
        rest = memoryview(data)
        while rest:
            count = self._end.recv_into(rest)
            if not count:
                raise EOFError
            rest = rest[count:]
        return data

    def close(self) -> None:
        self._end.close()


def serve_interpreter() -> None:
    """Serve chunks in a fresh interpreter. Its first argument is the descriptor of the channel to the parent."""
    # Hooks print to stderr, because stdout is for the output of the program.
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    cast("TextIOWrapper", sys.stdout).reconfigure(line_buffering=True)
    channel = Channel(socket.socket(fileno=int(sys.argv[1])))
    try:
        number, sys.path[:] = pickle.loads(channel.receive()[0])
    except (EOFError, OSError):
        end_without_parent()
        return
    if not _serve(channel, number, None):
        end_without_parent()


def serve(channel: Channel, number: int, spec: StreamSpec | None = None) -> None:
    """Serve chunks until the parent sends an empty message, closes its end, or ends.

    Each chunk is sent with the file for its result.

    Args:
        channel: Channel to the parent.
        number: Number of the worker.
        spec: The compiled dataset; None: it is the first message.
    """
    end_with(os.getppid())
    _serve(channel, number, spec)


def _serve(channel: Channel, number: int, spec: StreamSpec | None) -> bool:
    """Serve chunks. Returns whether the parent announced that there are no more."""
    # If Ctrl-C interrupts all processes, the parent decides when the workers end.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # A SIGTERM handler of the program is for the program only. A forked worker would run it too, and might not end.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    set_worker_number(number)
    join_budget(serves=True)
    try:
        first = None if spec is not None else channel.receive()[0]
        stage, failed = None, None
        try:
            stage = WorkerStage(pickle.loads(first) if spec is None and first else cast("StreamSpec", spec))
        except BaseException as error:
            failed = portable_error(error)
        while True:
            message, file = channel.receive()
            if file is None:
                return True
            began_ns = time.perf_counter_ns()
            parts = packed(failed, []) if stage is None else stage.answer(pickle.loads(message))
            ended_ns = time.perf_counter_ns()
            write_parts(file, parts)
            os.close(file)
            channel.send(pickle.dumps(([part.nbytes for part in parts], began_ns, ended_ns)))
            del message, parts  # otherwise they would live until the next ones arrive
    except (EOFError, ConnectionError):  # the parent has closed its end or ended, and needs no more answers
        return False
