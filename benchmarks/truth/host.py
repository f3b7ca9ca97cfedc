"""The program that runs an adapter as the process of one host: `python -m benchmarks.truth.host MODULE SOCKET`.

The harness starts it once for each loader. Each connection to the socket gets a process of its own, which plays one
host: it reads one JSON request per line and answers each with one line. SIGKILL goes to the process group, as if the
machine of the host lost power.
"""

from __future__ import annotations

import base64
import ctypes
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.truth import tars
from benchmarks.truth.adapter import Adapter, Dataset, Run, Sample

PR_SET_PDEATHSIG = 1


@dataclass
class _Host:
    """The requests of the harness, carried out by an adapter."""

    adapter: Adapter
    opened: bool = field(default=False)

    def answer(self, request: dict[str, Any]) -> Any:
        return getattr(self, "do_" + request.pop("do"))(**request)

    def do_about(self) -> dict[str, Any]:
        each = self.adapter
        return {
            "name": each.name,
            "page": each.page,
            "version": version(each.package) if each.package else "",
            "settings": each.settings,
            "claims": sorted(each.claims),
        }

    def do_prepare(self, folder: str, datasets: list[dict[str, Any]]) -> None:
        self.adapter.prepare(Path(folder), [Dataset(**each) for each in datasets])

    def do_open(self, run: dict[str, Any], states: list[str] | None) -> dict[str, float]:
        """Open a loader and restore it. The seconds count from here to the return of the adapter."""
        self.do_close()
        started = time.perf_counter()
        self.adapter.open(Run.from_json(run))
        self.opened = True
        if states is not None:
            self.adapter.restore([base64.b64decode(state) for state in states])
        return {"seconds": time.perf_counter() - started}

    def do_next(self, steps: int = 1) -> dict[str, Any]:
        """Return up to `steps` batches, and whether the data ended."""
        batches = list[list[Sample]]()
        for _ in range(steps):
            try:
                batches.append(self.adapter.next())
            except StopIteration:
                return {"batches": batches, "ended": True}
        return {"batches": batches, "ended": False}

    def do_skip(self, steps: int) -> dict[str, Any]:
        """Consume batches without reporting them. Returns the seconds that it took."""
        started = time.perf_counter()
        for _ in range(steps):
            self.adapter.next()
        return {"seconds": time.perf_counter() - started}

    def do_save(self) -> str:
        return base64.b64encode(self.adapter.save()).decode()

    def do_workers(self) -> list[int]:
        return self.adapter.workers()

    def do_which(self, step: int) -> list[tuple[int, int]]:
        return self.adapter.which(step)

    def do_when(self, dataset: int, number: int, steps: int) -> list[int]:
        return self.adapter.when(dataset, number, steps)

    def do_close(self) -> None:
        if self.opened:
            self.opened = False
            self.adapter.close()


def play_host(adapter: Adapter, connection: socket.socket) -> None:
    """Answer requests until the harness hangs up. An exception of the loader is an answer too."""
    host = _Host(adapter)
    with connection, connection.makefile("rw", encoding="utf-8") as lines:
        _say(lines, {"pid": os.getpid()})
        for line in lines:
            try:
                _say(lines, {"value": host.answer(json.loads(line))})
            except Exception as error:
                text = "".join(traceback.format_exception(error))
                message = f"{type(error).__name__}: {error}"
                _say(lines, {"error": f"{message[:1000]}{message[1000:][-1000:]}", "trace": text[-6000:]})


def _say(lines: Any, message: dict[str, Any]) -> None:
    lines.write(json.dumps(message) + "\n")
    lines.flush()


def _end_with_parent() -> None:
    """Let the kernel kill this process when its parent ends, also in the middle of a request (Linux, prctl(2))."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _child(adapter: Adapter, connection: socket.socket) -> None:
    """Be the leader of a process group, so that a host is killed with everything that it started."""
    os.setpgid(0, 0)
    _end_with_parent()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    status = 1
    try:
        play_host(adapter, connection)
        status = 0
    finally:
        sys.stderr.flush()
        # Workers that the loader left behind end with their host, as on a machine that is switched off.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.killpg(0, signal.SIGTERM)
        os._exit(status)


def load(module: str) -> Adapter:
    """Import an adapter."""
    return loader_type(module)()


def loader_type(place: str) -> type[Adapter]:
    """Return the class `Loader` of a module, or the class of a place such as `module:Class`."""
    module, _, name = place.partition(":")
    return getattr(importlib.import_module(module), name or "Loader")


def serve(module: str, address: str) -> None:
    """Accept hosts on a Unix socket until the harness ends."""
    adapter_type = loader_type(module)
    if adapter_type.forkable:
        _import_all(adapter_type)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # hosts are not waited for
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address + ".new")
    listener.listen(64)
    os.rename(address + ".new", address)  # who finds the address can connect
    parent = os.getppid()
    _end_with_parent()
    listener.settimeout(1.0)
    while os.getppid() == parent:
        try:
            connection = listener.accept()[0]
        except TimeoutError:
            continue
        connection.settimeout(None)
        if not adapter_type.forkable:
            command = [sys.executable, "-m", "benchmarks.truth.host", module, f"fd:{connection.fileno()}"]
            subprocess.Popen(command, pass_fds=[connection.fileno()])
        elif not os.fork():
            listener.close()
            _child(adapter_type(), connection)
        connection.close()


def _import_all(adapter_type: type[Adapter]) -> None:
    """Import what a run imports late, so that each forked host has it. A child finds it out in a small run."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(reading)
        before, status = set(sys.modules), 1
        try:
            _rehearse(adapter_type())
            status = 0
        finally:
            with open(writing, "w") as names:
                names.write("\n".join(set(sys.modules) - before))
            os._exit(status)
    os.close(writing)
    with open(reading) as names:
        late = names.read().split()
    os.waitpid(child, 0)
    for name in sorted(late):
        with suppress(Exception):  # parts of packages that cannot be imported by themselves
            importlib.import_module(name)


def _rehearse(adapter: Adapter) -> None:
    """Run a few steps over small data."""
    datasets = (Dataset(name="0-64-4", samples=64, shards=4), Dataset(name="1-64-4", samples=64, shards=4))
    runs = [datasets[:1], datasets] if "mixture" in adapter.claims else [datasets[:1]]
    packs = (0, 64) if "pack" in adapter.claims else (0,)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tars.write(folder, datasets)
        adapter.prepare(folder, datasets)
        for chosen in runs:
            for pack in packs:
                weights = tuple(1 / len(chosen) for _ in chosen)
                run: dict[str, Any] = {
                    "folder": folder,
                    "datasets": chosen,
                    "weights": weights,
                    "batch": 2,
                    "seed": 1,
                    "pack": pack,
                }
                adapter.open(Run(**run, host=0, hosts=1, workers=0))
                adapter.next()
                if "resume" in adapter.claims:
                    adapter.save()
                adapter.close()


def main(module: str, address: str) -> None:
    """Serve hosts at a socket, or be the host of an inherited connection."""
    if address.startswith("fd:"):
        _child(load(module), socket.socket(fileno=int(address[3:])))
    else:
        serve(module, address)


if __name__ == "__main__":
    main(*sys.argv[1:])
