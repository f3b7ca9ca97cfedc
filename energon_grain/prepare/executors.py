# SPDX-License-Identifier: Apache-2.0
"""Executors for scanning and converting shards. The only interface is `concurrent.futures.Executor`.

`own_executor` chooses among the local ones: `Inline`, threads for objects in stores, `Processes`. Callers may pass
another executor; `RayExecutor` runs on a cluster.

`concurrent.futures.ProcessPoolExecutor` does not fit. It either forks a process that has threads, or imports the
caller's `__main__` in every child: a script without a main guard would prepare its dataset recursively. One dead child
also breaks all of its calls. `Processes` therefore starts its own children. Each is a small loop at the other end of a
pipe, independent of the caller's program. Children are forked if this process has a single thread, as the command line
has (5 ms); otherwise a new program is started (0.3 s).
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import pickle
import signal
import socket
import sys
from collections import deque
from collections.abc import Callable, Generator
from concurrent import futures
from concurrent.futures import BrokenExecutor, CancelledError, Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection, Pipe
from queue import SimpleQueue
from threading import Lock
from typing import Any, ParamSpec, TypeVar

from energon_grain.errors import ConfigError, WorkerError
from energon_grain.extras import needed_for
from energon_grain.storage.cores import usable_cores

_WORTH_FORKING_BYTES = 16 << 20
_WORTH_STARTING_BYTES = 64 << 20
_OBJECTS_AT_ONCE = 16
_CONNECT_TIMEOUT_S = 10
P = ParamSpec("P")
T = TypeVar("T")
R = TypeVar("R")
_ATTEMPTS = 2
_GIVE_UP_AFTER = 5
_KEPT = "Finished work is kept: run the same command again to continue from there."


@contextlib.contextmanager
def own_executor(
    num_workers: int | None, *, jobs: int, size_bytes: int | None, in_threads_bytes: int = 0
) -> Generator[Executor]:
    """The fastest local executor for some jobs. Leaving the block ends it, even in the middle of jobs.

    Args:
        num_workers: Maximum number of processes; 0 works in this process, None takes one per core (at most 16). For
            objects in a store: number of threads, None takes 16.
        jobs: Number of jobs.
        size_bytes: Total size of the files to read: for small sizes, starting processes takes longer than reading.
            None for objects in a store, which are read by threads.
        in_threads_bytes: If processes cannot be forked and the files are smaller than this, threads share the jobs.

    Raises ConfigError: `num_workers` is negative.
    """
    if num_workers is not None and num_workers < 0:
        raise ConfigError(f"num_workers is {num_workers}: pass 0 (no processes) or more.")
    executor = _chosen_executor(num_workers, jobs, size_bytes, in_threads_bytes)
    try:
        yield executor
    finally:
        executor.shutdown(cancel_futures=True)


def _chosen_executor(num_workers: int | None, jobs: int, size_bytes: int | None, in_threads_bytes: int) -> Executor:
    if size_bytes is None:
        threads = _OBJECTS_AT_ONCE if num_workers is None else max(num_workers, 1)
        return ThreadPoolExecutor(threads, thread_name_prefix="energon-grain")
    workers = min(min(usable_cores(), 16) if num_workers is None else num_workers, jobs)
    forks = _may_fork()
    if workers < 2 or size_bytes < (_WORTH_FORKING_BYTES if forks else _WORTH_STARTING_BYTES):
        return Inline()
    if forks or size_bytes >= in_threads_bytes:
        return Processes(workers)
    return ThreadPoolExecutor(workers, thread_name_prefix="energon-grain")


def outcomes(
    submit: Callable[[T], Future[R]],
    tasks: deque[T],
    *,
    ahead: int,
    named: Callable[[T], str],
    salvage: Callable[[T, R], object],
) -> Generator[tuple[T, R | WorkerError]]:
    """Run tasks on an executor; yield the outcome of each, in any order.

    A task whose call raises, for example because its worker died, is tried once more. If that fails too, its outcome is
    a `WorkerError`. After the fifth failed task, the run stops. Leaving early cancels tasks that have not started.

    Args:
        submit: Submits a task. Its function returns expected errors and does not raise them.
        tasks: Tasks to run, taken from the left; more may be added while this runs.
        ahead: Maximum number of submitted tasks.
        named: Describes the work on a task, as the beginning of a sentence that ends with "failed".
        salvage: Receives results that are finished when the caller leaves early.

    Raises WorkerError: the executor is broken or shut down, or five tasks failed.
    """
    running: dict[Future[R], tuple[T, int]] = {}
    done: SimpleQueue[Future[R]] = SimpleQueue()
    failed = 0

    def start(task: T, attempt: int = 1) -> None:
        try:
            future = submit(task)
        except Exception as error:  # RuntimeError after shutdown, ConnectionError from a cluster
            raise _broken(error) from error
        running[future] = task, attempt
        future.add_done_callback(done.put)

    try:
        while tasks or running:
            while tasks and len(running) < ahead and done.empty():
                start(tasks.popleft())
            future = done.get()
            task, attempt = running.pop(future)
            outcome = _outcome(future)
            if isinstance(outcome, _Failure):
                if attempt < _ATTEMPTS:
                    start(task, attempt + 1)
                    continue
                error = outcome.error
                failure = f"{named(task)} failed {_ATTEMPTS} times, last with {_describe(error)}. {_KEPT}"
                failed += 1
                if failed == _GIVE_UP_AFTER:
                    raise WorkerError(f"The executor failed on {failed} tasks. {failure}") from error
                outcome = WorkerError(failure)
            yield task, outcome
    finally:
        for future, (task, _) in running.items():
            _salvage(future, partial(salvage, task))


def _salvage(future: Future[R], take: Callable[[R], object]) -> None:
    """Cancel a call, or pass on its result if it is finished."""
    if not future.cancel() and future.done() and future.exception() is None:
        with contextlib.suppress(OSError, ValueError):
            take(future.result())


@dataclass(frozen=True)
class _Failure:
    """An exception raised by an executor."""

    error: Exception


def _outcome(future: Future[R]) -> R | _Failure:
    """The result of a call. Raises WorkerError if the executor is broken or shut down."""
    try:
        return future.result()
    except (BrokenExecutor, CancelledError) as error:
        raise _broken(error) from error
    except Exception as error:
        return _Failure(error)


def _broken(error: BaseException) -> WorkerError:
    return WorkerError(f"The executor is broken or was shut down ({_describe(error)}). {_KEPT}")


def _describe(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


class Inline(Executor):
    """Runs a call when it is submitted."""

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Run a call; an interrupt is raised in the submitting thread."""
        future: Future[T] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


class Processes(ThreadPoolExecutor):
    """Runs module-level functions in child processes, one call at a time in each. All children start at once.

    Exceptions are passed on unchanged. If a child dies, only its current call fails, with a `WorkerError`; another
    child replaces it. Children end with this process, at the latest after their current call.
    """

    def __init__(self, processes: int) -> None:
        super().__init__(processes, thread_name_prefix="energon-grain")
        self._lock, self._ended = Lock(), False
        self._children: set[_Child] = set()
        self._idle: SimpleQueue[_Child | None] = SimpleQueue()  # None: a dead child, to be restarted
        for _ in range(processes):
            self._idle.put(self._start())

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        return super().submit(self._call, fn, args, kwargs)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Wait for all calls and end the children. With `cancel_futures`, end running calls, too."""
        super().shutdown(wait=wait and not cancel_futures, cancel_futures=cancel_futures)
        with self._lock:
            self._ended = True
            for child in self._children:
                os.kill(child.pid, signal.SIGKILL)
        super().shutdown()  # now no thread reads from a child
        while self._children:
            self._children.pop().close()

    def _start(self) -> _Child:
        with self._lock:
            if self._ended:
                raise WorkerError("the worker processes were shut down")
            child = _Child.start()
            self._children.add(child)
            return child

    def _call(self, *call: Any) -> Any:
        child = None
        try:
            child = self._idle.get() or self._start()
            child.pipe.send(call)
            done, value = child.pipe.recv()
        except (OSError, EOFError, pickle.UnpicklingError):
            assert child is not None
            with self._lock:
                if not self._ended:
                    self._children.discard(child)
                    child.close()
            child = None
            raise WorkerError("the worker process ended unexpectedly (out of memory?)") from None
        finally:
            self._idle.put(child)
        if done:
            return value
        raise value


@dataclass(frozen=True, slots=True, eq=False)
class _Child:
    pid: int
    pipe: Connection[Any, Any]

    @classmethod
    def start(cls) -> _Child:
        ours, theirs = Pipe()
        with theirs:
            if _may_fork():
                pid = os.fork()
                if pid == 0:
                    try:
                        ours.close()
                        serve(theirs)
                    finally:
                        os._exit(0)
            else:
                path = os.pathsep.join(path for path in sys.path if path)
                environment = {**os.environ, "PYTHONPATH": path, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
                pid = os.posix_spawn(
                    sys.executable,
                    [sys.executable, "-c", f"from {__name__} import serve, Connection; serve(Connection(0))"],
                    environment,  # output to stdout goes to stderr
                    file_actions=[(os.POSIX_SPAWN_DUP2, theirs.fileno(), 0), (os.POSIX_SPAWN_DUP2, 2, 1)],
                )
        return cls(pid, ours)

    def close(self) -> None:
        """Wait for a child that was killed or has died."""
        self.pipe.close()
        with contextlib.suppress(ChildProcessError):  # if the caller's program ignores SIGCHLD
            os.waitpid(self.pid, 0)


def _may_fork() -> bool:
    """Whether this process has only one thread, native ones included: then forking is safe."""
    try:
        return len(os.listdir("/proc/self/task")) == 1
    except OSError:
        return False


def serve(pipe: Connection[Any, Any]) -> None:
    """Run calls from a pipe until it closes, and send back each result or exception."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C and ends this process
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):  # the parent has ended
        while True:
            fn, args, kwargs = pipe.recv()
            try:
                reply = True, fn(*args, **kwargs)
            except Exception as error:
                reply = False, portable(error)
            pipe.send(reply)


def portable(error: Exception) -> Exception:
    """The error, or a `RuntimeError` with the same text if its class cannot be pickled."""
    try:
        return pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")


class RayExecutor(Executor):
    """Runs calls as tasks of an existing Ray cluster; it never starts or stops a cluster.

    A program that is already connected to Ray keeps its connection; otherwise the executor connects, and `shutdown`
    disconnects. Functions are sent to the nodes by name, so energon-grain must be installed there or in Ray's
    `runtime_env`.

    Ray restarts a task whose process or node dies, up to `max_retries` times. An exception of the function becomes the
    exception of its future. Cancelling a future interrupts its task, even while it runs.

    Args:
        address: `auto` is the cluster of the environment variable `RAY_ADDRESS`, or the local one; or `HOST:PORT`, or
            `ray://HOST:10001` from outside the cluster. Ignored if the program is already connected.
        max_retries: Maximum number of restarts of a task whose process or node died.
        num_cpus: Cores reserved per task; 0.5 runs two tasks per core, useful when reading headers waits for storage.

    Raises:
        ConfigError: There is no cluster at the address.
        MissingPackageError: Ray is not installed.
    """

    def __init__(self, address: str = "auto", *, max_retries: int = 3, num_cpus: float = 1) -> None:
        with needed_for("running on a Ray cluster"):
            import ray
        self._ray: Any = ray  # its type annotations are incomplete
        self._connected_here = not ray.is_initialized()
        if self._connected_here:
            if address == "auto":
                address = os.environ.get("RAY_ADDRESS") or address
            try:
                _check_reachable(address)
                ray.init(address, log_to_driver=False, logging_level=logging.ERROR)
            except (OSError, RuntimeError, ValueError) as error:
                raise ConfigError(
                    f"Cannot connect to a Ray cluster at {address!r} ({error}). Start a local one with `ray start "
                    f"--head`, or pass the HOST:PORT of a running one."
                ) from error
        self._call = ray.remote(num_cpus=num_cpus, max_retries=max_retries)(_call)
        self._pending: set[Future[Any]] = set()
        self._tasks: dict[Future[Any], Any] = {}  # removing a future (result or cancel) settles it
        self._closed = False

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Start a task; its future is done once the result is in this process."""
        if self._closed:
            raise RuntimeError("cannot schedule new futures after shutdown")
        task = self._call.remote(fn, args, kwargs)
        future: Future[T] = Future()
        self._pending.add(future)
        self._tasks[future] = task
        future.add_done_callback(self._forget)
        task.future().add_done_callback(functools.partial(self._pass_on, future))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Accept no more calls, and close the connection if it is ours; without `wait` it stays until the program ends.

        Args:
            wait: Return when all futures are done.
            cancel_futures: Cancel all unfinished futures.
        """
        self._closed = True
        pending = list(self._pending)
        if cancel_futures:
            for future in pending:
                future.cancel()
        if wait:
            futures.wait(pending)
            if self._connected_here:
                self._connected_here = False
                self._ray.shutdown()

    def _pass_on(self, future: Future[Any], done: Future[Any]) -> None:
        """Copy the result of Ray's own future, which is not returned itself because it cannot cancel the task."""
        if self._tasks.pop(future, None) is None or not future.set_running_or_notify_cancel():
            return
        error: Any = done.exception()
        if error is None:
            future.set_result(done.result())
            return
        if isinstance(error, self._ray.exceptions.RayTaskError) and error.cause is not None:
            # The function raised `cause`; Ray's error carries the traceback from the node as its message.
            error.cause.__cause__, error = error, error.cause
        future.set_exception(error)

    def _forget(self, future: Future[Any]) -> None:
        self._pending.discard(future)
        task = self._tasks.pop(future, None)
        if task is not None:  # cancelled: waiters need not wait until the task notices
            future.set_running_or_notify_cancel()
            self._ray.cancel(task)


def _check_reachable(address: str) -> None:
    """Raise OSError if nothing listens at HOST:PORT; Ray itself would take more than three minutes to notice."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if colon and port.isdecimal():
        socket.create_connection((host, int(port)), _CONNECT_TIMEOUT_S).close()


def _call(fn: Callable[..., T], args: tuple[Any, ...], kwargs: dict[str, Any]) -> T:
    return fn(*args, **kwargs)
