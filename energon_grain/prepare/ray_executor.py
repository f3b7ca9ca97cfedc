"""A Ray cluster as a `concurrent.futures.Executor`."""

from __future__ import annotations

import functools
import logging
import os
import socket
from collections.abc import Callable
from concurrent import futures
from concurrent.futures import Executor, Future
from typing import Any, ParamSpec, TypeVar

from energon_grain.errors import ConfigError

_CONNECT_TIMEOUT_S = 10
P = ParamSpec("P")
T = TypeVar("T")


class RayExecutor(Executor):
    """Runs calls as tasks of a Ray cluster that exists already; nothing of the cluster is started or stopped.

    A program that is connected to Ray keeps its connection; otherwise one is made, and ended by `shutdown`. Functions
    of modules go to the nodes by name, so the nodes must have energon-grain, or get it by Ray's `runtime_env`.

    A task whose process or node dies is started again by Ray, up to `max_retries` times. An exception of the function
    itself is that of its future. Cancelling a future interrupts its task, also one that is running.

    Args:
        address: `auto` is the cluster of the environment variable `RAY_ADDRESS`, or the one on this machine; or
            `HOST:PORT`, or `ray://HOST:10001` from outside of the cluster. Unused by a program that is connected.
        max_retries: How often Ray starts a task again whose process or node died.
        num_cpus: Cores that a task counts for; 0.5 runs two on a core, where reading headers waits for storage.

    Raises:
        ConfigError: Ray is not installed, or there is no cluster at the address.
    """

    def __init__(self, address: str = "auto", *, max_retries: int = 3, num_cpus: float = 1) -> None:
        try:
            import ray
        except ImportError as error:
            raise ConfigError(f"Ray cannot be imported ({error}): pip install 'energon-grain[ray]'.") from error
        self._ray: Any = ray  # its types are not complete
        self._connected_here = not ray.is_initialized()
        if self._connected_here:
            if address == "auto":
                address = os.environ.get("RAY_ADDRESS") or address
            try:
                _check_reachable(address)
                ray.init(address, log_to_driver=False, logging_level=logging.ERROR)
            except (OSError, RuntimeError, ValueError) as error:
                raise ConfigError(
                    f"Cannot connect to a Ray cluster at {address!r} ({error}). Start one on this machine by "
                    f"`ray start --head`, or give the HOST:PORT of a running one."
                ) from error
        self._call = ray.remote(num_cpus=num_cpus, max_retries=max_retries)(_call)
        self._pending: set[Future[Any]] = set()
        self._tasks: dict[Future[Any], Any] = {}  # who takes a future out, its result or its cancellation, settles it
        self._closed = False

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Start a task; its future is done as soon as the result is in this process."""
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
        """Take no more calls, and end the connection if it is ours; without `wait` it stays until the program ends.

        Args:
            wait: Return when all futures are done.
            cancel_futures: Cancel the futures that are not.
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
        """Give `future` what Ray's own future has, which is not returned itself because it cannot cancel the task."""
        if self._tasks.pop(future, None) is None or not future.set_running_or_notify_cancel():
            return
        error: Any = done.exception()
        if error is None:
            future.set_result(done.result())
            return
        if isinstance(error, self._ray.exceptions.RayTaskError) and error.cause is not None:
            # The function raised `cause`; Ray's error has the traceback on the node as its message.
            error.cause.__cause__, error = error, error.cause
        future.set_exception(error)

    def _forget(self, future: Future[Any]) -> None:
        self._pending.discard(future)
        task = self._tasks.pop(future, None)
        if task is not None:  # cancelled: whoever waits for the future need not wait until the task notices
            future.set_running_or_notify_cancel()
            self._ray.cancel(task)


def _check_reachable(address: str) -> None:
    """Raise OSError where nobody listens at HOST:PORT, for which Ray would take more than three minutes."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if colon and port.isdecimal():
        socket.create_connection((host, int(port)), _CONNECT_TIMEOUT_S).close()


def _call(fn: Callable[..., T], args: tuple[Any, ...], kwargs: dict[str, Any]) -> T:
    return fn(*args, **kwargs)
