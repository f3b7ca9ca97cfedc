"""A row of the table, its programs, and the measurement of one of them in a separate process."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from benchmarks.child import answer_in
from benchmarks.machine import peer_python
from benchmarks.resources import processor_s, warm

REPO = Path(__file__).resolve().parent.parent
_TIMEOUT_S = 300


@dataclass(frozen=True, kw_only=True, slots=True)
class Contender:
    """A call of a module in one of the two interpreters.

    `name` is unique in its row. Names of one family share the text before the first colon ("grain: 2 processes").
    `peer` names a peer that may have an environment of its own.
    """

    name: str
    module: str
    call: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    in_peer_python: bool = False
    peer: str = ""

    @property
    def family(self) -> str:
        """The library of this program."""
        return self.name.partition(":")[0]

    def available(self) -> bool:
        """Return whether this can be measured on this machine."""
        return not self.in_peer_python or peer_python(self.peer) is not None


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """A limit on `ours / other` of a metric, for each pair; without `against`, on the metric itself.

    `against` names a contender or a family; for a family, its best median counts.
    """

    metric: str
    bound: float
    sense: Literal["at least", "at most"]
    against: str | None = None

    def met(self, value: float) -> bool:
        """Return whether a measured value meets the limit."""
        return value >= self.bound if self.sense == "at least" else value <= self.bound


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """Contenders measured alternately; the first is ours. `served` names the dataset that is served from a bucket."""

    name: str
    title: str
    data_sets: tuple[str, ...]
    metrics: tuple[str, ...]
    contenders: tuple[Contender, ...]
    targets: tuple[Target, ...] = ()
    served: str = ""


class MeasurementFailedError(RuntimeError):
    """A contender's process failed; the message contains the end of its output."""


def measure(
    contender: Contender, *, folder: Path = REPO, environment: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Run a contender once, from the `benchmarks` in `folder`.

    Adds `other_cores`: the number of cores used by the rest of the machine.

    Args:
        contender: Contender to run.
        folder: Working directory.
        environment: Variables of its process; None: those of this process.
    """
    interpreter = str(peer_python(contender.peer)) if contender.in_peer_python else sys.executable
    command = [interpreter, "-W", "ignore", "-m", f"benchmarks.{contender.module}"]
    request = json.dumps({"call": contender.call, **contender.arguments})
    if "folder" in contender.arguments:
        warm(Path(contender.arguments["folder"]))
    busy, own, started = _busy_seconds(), processor_s(own=False), time.perf_counter()
    code, output, errors = _run_group([*command, request], folder, environment)
    elapsed = time.perf_counter() - started
    other = (_busy_seconds() - busy) - (processor_s(own=False) - own)
    answer = answer_in(output)
    if code or answer is None:
        raise MeasurementFailedError(f"{contender.name} ended with {code}:\n{errors[-1500:]}")
    return {**answer, "process_s": elapsed, "other_cores": max(0.0, other / elapsed)}


def _run_group(command: Sequence[str], folder: Path, environment: Mapping[str, str] | None) -> tuple[int, str, str]:
    """Return exit code, stdout and stderr of a process; remaining processes (orphaned workers) are killed with it."""
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        with subprocess.Popen(
            command, stdout=output, stderr=errors, cwd=folder, env=environment, start_new_session=True
        ) as process:
            try:
                code = process.wait(_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                code = -1
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        output.seek(0)
        errors.seek(0)
        return code, output.read(), errors.read()


def _busy_seconds() -> float:
    """Return the processor seconds of all processes since the machine started."""
    fields = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
    user, nice, system, _, _, irq, softirq, steal = fields[:8]
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")
