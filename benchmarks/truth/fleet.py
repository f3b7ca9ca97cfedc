"""The processes of a loader: one server per interpreter, and hosts that are asked, killed and reused."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[2]
START_S = 600.0  # importing a loader on a busy machine
REPLY_S = 60.0
GRACE_S = 3.0  # for the other hosts, after one has failed


class LoaderError(Exception):
    """The loader raised; the message is its own."""


class HostLostError(Exception):
    """The process of a host is gone, or did not answer in time."""


class Host:
    """One process that plays a host. Requests go to all hosts of a run first; then answers are collected."""

    def __init__(self, connection: socket.socket, timeout_s: float) -> None:
        self.connection = connection
        self._received = b""
        self.timeout_s = timeout_s
        self.alive = True
        self.pid = int(self._receive(START_S)["pid"])

    @property
    def buffered(self) -> bool:
        """Whether an answer was received and not yet read."""
        return b"\n" in self._received

    def send(self, do: str, **arguments: Any) -> None:
        """Send a request without waiting for the answer."""
        try:
            self.connection.sendall(json.dumps({"do": do, **arguments}).encode() + b"\n")
        except OSError as error:
            self.alive = False
            raise HostLostError(f"host {self.pid} is gone") from error

    def answer(self, timeout_s: float | None = None) -> Any:
        """Wait for the answer to the oldest request. Raises LoaderError or HostLostError."""
        reply = self._receive(self.timeout_s if timeout_s is None else timeout_s)
        if "error" in reply:
            raise LoaderError(reply["error"], reply["trace"])
        return reply["value"]

    def ask(self, do: str, **arguments: Any) -> Any:
        """Send a request and wait."""
        self.send(do, **arguments)
        return self.answer()

    def kill(self) -> None:
        """Kill the process and everything that it started, as if its machine lost power."""
        self.alive = False
        for kill, target in ((os.killpg, self.pid), (os.kill, self.pid)):
            with suppress(ProcessLookupError):
                kill(target, signal.SIGKILL)
        self.connection.close()

    def _receive(self, timeout_s: float) -> Any:
        end = time.monotonic() + timeout_s
        while b"\n" not in self._received:
            self.connection.settimeout(max(0.001, end - time.monotonic()))
            try:
                more = self.connection.recv(1 << 20)
            except OSError as error:
                self.alive = False
                what = "did not answer in time" if isinstance(error, TimeoutError) else "is gone"
                raise HostLostError(f"a host {what}") from error
            if not more:
                self.alive = False
                raise HostLostError("a host is gone")
            self._received += more
        line, _, self._received = self._received.partition(b"\n")
        return json.loads(line)


class Fleet:
    """The server of one adapter. `take` and `give` hosts from any thread; living hosts are reused."""

    def __init__(self, loader: str, python: str = sys.executable, timeout_s: float = REPLY_S) -> None:
        self.loader = loader
        self.timeout_s = timeout_s
        self._folder = tempfile.TemporaryDirectory(prefix="truth-")
        self._address = str(Path(self._folder.name, "socket"))
        self._idle = list[Host]()
        self._all = set[Host]()
        self._lock = threading.Lock()
        self._log = Path(self._folder.name, "log")
        module = loader if "." in loader or ":" in loader else f"benchmarks.truth.loaders.{loader}"
        path = os.pathsep.join([str(REPOSITORY), str(REPOSITORY / "adapters"), os.environ.get("PYTHONPATH", "")])
        environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "JAX_PLATFORMS": "cpu"}
        command = [python, "-m", "benchmarks.truth.host", module, self._address]
        with self._log.open("wb") as log:
            self._server = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        try:
            self.about = self._first()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Fleet:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def claims(self) -> frozenset[str]:
        """The abilities that the adapter claims."""
        return frozenset(self.about["claims"])

    def take(self, hosts: int) -> list[Host]:
        """Return idle or new hosts."""
        with self._lock:
            taken, self._idle = self._idle[:hosts], self._idle[hosts:]
        new = [self._connect() for _ in range(hosts - len(taken))]
        taken += [Host(connection, self.timeout_s) for connection in new]
        with self._lock:
            self._all.update(taken)
        return taken

    def give(self, hosts: Sequence[Host]) -> None:
        """Close the loaders of hosts, and keep the hosts that are alive and answer."""
        for host in hosts:
            try:
                if host.alive:
                    host.send("close")
                    host.answer(GRACE_S)
            except (HostLostError, LoaderError):
                host.kill()
            with self._lock:
                if host.alive:
                    self._idle.append(host)
                else:
                    self._all.discard(host)

    def log(self) -> str:
        """Return the end of what the loader printed."""
        return self._log.read_text(errors="replace")[-4000:]

    def close(self) -> None:
        """Kill all hosts and the server."""
        with self._lock:
            for host in self._all:
                if host.alive:
                    host.kill()
            self._idle.clear()
        self._server.kill()
        self._server.wait()
        self._folder.cleanup()

    def _first(self) -> dict[str, Any]:
        end = time.monotonic() + START_S
        while not Path(self._address).exists():
            if self._server.poll() is not None:
                raise LoaderError(f"the adapter {self.loader} does not start:\n{self.log()}")
            if time.monotonic() > end:
                raise HostLostError(f"the adapter {self.loader} did not start in {START_S:.0f} s")
            time.sleep(0.01)
        (host,) = self.take(1)
        about = host.ask("about")
        self.give([host])
        return about

    def _connect(self) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(START_S)
        connection.connect(self._address)
        return connection


def ask_all(hosts: Sequence[Host], do: str, each: Sequence[dict[str, Any]] = ()) -> list[Any]:
    """Ask all hosts at the same time, and return their answers. See `answers`."""
    for index, host in enumerate(hosts):
        host.send(do, **(each[index] if each else {}))
    return answers(hosts)


def answers(hosts: Sequence[Host], most_s: float = 1e9) -> list[Any]:
    """Return the answers of all hosts, in their order, after at most `most_s` seconds. Raises the first error.

    If one host fails, the others get `GRACE_S` more seconds: they may wait for it in a collective. A host that has not
    answered by then is killed.
    """
    found, failure = dict[Host, Any](), list[Exception]()
    pending, end = list(hosts), time.monotonic() + min(most_s, max(host.timeout_s for host in hosts))
    while pending and time.monotonic() < end:
        ready = [host for host in pending if host.buffered]
        if not ready:
            waiting = {host.connection: host for host in pending}
            ready = [waiting[each] for each in select.select(list(waiting), [], [], end - time.monotonic())[0]]
        for host in ready:
            pending.remove(host)
            try:
                found[host] = host.answer()
            except (LoaderError, HostLostError) as error:
                failure.append(error)
                end = min(end, time.monotonic() + GRACE_S)
    for host in pending:
        host.kill()
        failure.append(HostLostError("a host did not answer in time"))
    if failure:
        raise failure[0]
    return [found[host] for host in hosts]
