"""Helper processes: fresh interpreters that use TensorStore for a process in which it cannot be used, a forked one.

A helper gets a socket; every thread that asks for something opens a connection of its own by sending one end of a new
pair of sockets over it, so that requests of several threads overlap. The helper ends when the process that started it
closes the socket or dies.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection

from energon_grain.errors import WorkerError


class HelperProcess:
    """A helper process and the connections to it, one a thread.

    Args:
        program: Name of the module whose `serve()` it runs.

    Raises:
        WorkerError: It cannot be started.
    """

    def __init__(self, program: str) -> None:
        self.owner = os.getpid()
        self._program = program
        self._local = threading.local()
        self._lock = threading.Lock()
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            try:
                process = subprocess.Popen(
                    [sys.executable, "-c", f"from {program} import serve; serve()", str(theirs.fileno())],
                    stdin=subprocess.DEVNULL,
                    pass_fds=(theirs.fileno(),),
                    process_group=0,  # Ctrl-C is for us
                    env={**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)},
                )
            except OSError as error:
                self._socket.close()
                raise WorkerError(f"a helper process that reads by TensorStore cannot be started: {error}") from error

        self.pid = process.pid
        process.returncode = 0  # it ends with our socket, which nobody waits for; a Popen would complain of that

    def connection(self) -> Connection:
        """The connection of this thread. Raises OSError where the process has ended."""
        connection: Connection | None = getattr(self._local, "connection", None)
        if connection is None:
            ours, theirs = socket.socketpair()
            with theirs, self._lock:
                socket.send_fds(self._socket, [b"+"], [theirs.fileno()])
            connection = self._local.connection = Connection(ours.detach())
        return connection

    def forget(self) -> None:
        """Start another one for the next request; this one ends, if it has not."""
        with _lock:
            if _helpers.get(self._program) is self:
                del _helpers[self._program]
        self._socket.close()
        if self.owner == os.getpid():
            with contextlib.suppress(ChildProcessError):
                os.waitpid(self.pid, os.WNOHANG)


_helpers: dict[str, HelperProcess] = {}
_lock = threading.Lock()


def helper_process(program: str) -> HelperProcess:
    """The helper of this process that runs `serve()` of the module of this name; the first call starts it.

    Raises:
        WorkerError: It cannot be started.
    """
    with _lock:
        helper = _helpers.get(program)
        if helper is None or helper.owner != os.getpid():
            helper = _helpers[program] = HelperProcess(program)
        return helper


def _after_fork() -> None:
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)


def serve_connections(serve_one: Callable[[Connection], None]) -> None:
    """The program of a helper: serves every connection in a thread of its own, until the socket is closed.

    Args:
        serve_one: Waits for one request and answers it.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with socket.socket(fileno=int(sys.argv[1])) as listening:
        while True:
            message, descriptors, _, _ = socket.recv_fds(listening, 1, 1)
            if not message:
                os._exit(0)
            threading.Thread(target=_serve, args=(serve_one, Connection(descriptors[0])), daemon=True).start()


def _serve(serve_one: Callable[[Connection], None], connection: Connection) -> None:
    with connection, contextlib.suppress(EOFError, OSError):  # who asked may end without waiting for the answer
        while True:
            serve_one(connection)
