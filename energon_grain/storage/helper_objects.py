"""Objects through a helper process, for processes in which TensorStore cannot be used: children by a fork.

The helper is a fresh interpreter. It gets a socket; every thread that asks for something opens a connection of its own
by sending one end of a new pair of sockets over it, so that requests of several threads overlap. It ends when the
process that started it closes the socket or dies.
"""

from __future__ import annotations

import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
from multiprocessing.connection import Connection
from typing import Any, cast

from energon_grain.errors import WorkerError
from energon_grain.storage.storage_settings import StorageSettings
from energon_grain.storage.tensorstore_objects import Fetched, ObjectError, TensorStoreObjects


class HelperObjects:
    """`Objects` of a helper process, which starts with the first request.

    Args:
        settings: How stores are reached.
    """

    def __init__(self, settings: StorageSettings) -> None:
        self._settings = settings

    def read(
        self, url: str, start: int | None, stop: int | None, known: bytes | None, timeout_s: float
    ) -> Fetched | None:
        """See `Objects`."""
        return self._ask("read", url, start, stop, known, timeout_s)

    def list(self, url: str, timeout_s: float) -> list[str]:
        """See `Objects`."""
        return self._ask("list", url, timeout_s)

    def write(self, url: str, data: bytes, timeout_s: float) -> bytes:
        """See `Objects`."""
        return self._ask("write", url, data, timeout_s)

    def delete(self, url: str, timeout_s: float) -> None:
        """See `Objects`."""
        self._ask("delete", url, timeout_s)

    def _ask(self, what: str, *arguments: Any) -> Any:
        connection = _helper().connection()
        try:
            connection.send((self._settings, what, arguments))
            answer = cast("tuple[str, Any]", connection.recv())  # from our own process, over a private socket
            if answer[0] == "fetched":
                return Fetched(connection.recv_bytes() if answer[1][1] else None, answer[1][0])
        except (EOFError, OSError) as error:
            _forget_helper()
            raise ObjectError(f"the helper process ended ({type(error).__name__})", passing=True) from None
        if answer[0] == "error":
            raise answer[1]
        return answer[1]


class _Helper:
    """A helper process and the connections to it, one a thread."""

    def __init__(self) -> None:
        self.owner = os.getpid()
        self._local = threading.local()
        self._lock = threading.Lock()
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            try:
                self._process = subprocess.Popen(
                    [sys.executable, "-c", f"from {__name__} import serve; serve()", str(theirs.fileno())],
                    stdin=subprocess.DEVNULL,
                    pass_fds=(theirs.fileno(),),
                    process_group=0,  # Ctrl-C is for us
                    env={**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)},
                )
            except OSError as error:
                self._socket.close()
                raise WorkerError(f"the helper process that reads objects cannot be started: {error}") from error

    def connection(self) -> Connection:
        """The connection of this thread."""
        connection: Connection | None = getattr(self._local, "connection", None)
        if connection is None:
            ours, theirs = socket.socketpair()
            with theirs, self._lock:
                socket.send_fds(self._socket, [b"+"], [theirs.fileno()])
            connection = self._local.connection = Connection(ours.detach())
        return connection

    def close(self) -> None:
        """End the process: by closing what it listens to."""
        self._socket.close()
        if self.owner == os.getpid():
            self._process.poll()


_current: _Helper | None = None
_lock = threading.Lock()


def _helper() -> _Helper:
    global _current
    with _lock:
        if _current is None or _current.owner != os.getpid():
            _current = _Helper()
        return _current


def _forget_helper() -> None:
    global _current
    with _lock:
        if _current is not None:
            _current.close()
        _current = None


def _after_fork() -> None:
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)


def serve() -> None:
    """The program of the helper: answers every connection in a thread of its own, until the socket is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    objects: dict[bytes, TensorStoreObjects] = {}
    with socket.socket(fileno=int(sys.argv[1])) as listening:
        while True:
            message, descriptors, _, _ = socket.recv_fds(listening, 1, 1)
            if not message:
                os._exit(0)
            thread = threading.Thread(target=_serve, args=(Connection(descriptors[0]), objects), daemon=True)
            thread.start()


def _serve(connection: Connection, objects: dict[bytes, TensorStoreObjects]) -> None:
    with connection:
        while True:
            try:
                settings, what, arguments = cast("tuple[StorageSettings, str, tuple[Any, ...]]", connection.recv())
            except (EOFError, OSError):
                return
            key = pickle.dumps(settings)
            try:
                store = objects.setdefault(key, TensorStoreObjects(settings))
                found = getattr(store, what)(*arguments)
            except ObjectError as error:
                connection.send(("error", error))
                continue
            except Exception as error:
                connection.send(("error", ObjectError(f"{type(error).__name__}: {error}", passing=False)))
                continue
            if isinstance(found, Fetched):
                connection.send(("fetched", (found.generation, found.data is not None)))
                if found.data is not None:
                    connection.send_bytes(found.data)
            else:
                connection.send(("value", found))
