"""Plays a history with a loader, and records what the trainer would have seen."""

from __future__ import annotations

import os
import random
import signal
import socket
import tempfile
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.truth import tars
from benchmarks.truth.adapter import Run
from benchmarks.truth.fleet import GRACE_S, Fleet, Host, HostLostError, LoaderError, answers, ask_all
from benchmarks.truth.history import History, Part

AHEAD = 3  # steps that are asked for when a worker is killed: the loss shows in one of them
LOST_S = 60.0  # in which a loader should raise, or go on, after the loss of a worker
PREPARE_S = 600.0

Step = list[list[list[Any]]]  # of each host, the samples of its batch, as lists of the fields of `Sample`


@dataclass
class Record:
    """The outcome of a history. Steps that a restart repeated are contained once, as the trainer keeps them."""

    steps: list[Step] = field(default_factory=list[Step])
    shares: list[tuple[float, ...]] = field(default_factory=list[tuple[float, ...]])  # the weights of each step
    kills: int = 0
    survived: int = 0  # kills of a worker after which the loader went on
    state_bytes: list[int] = field(default_factory=list[int])
    ended: bool = False  # whether the data ended on all hosts
    failure: str = ""  # the loader raised or hung where nothing had been killed; nothing is counted then

    def sequence(self) -> Iterator[list[Any]]:
        """Yield all samples in the order of steps and hosts."""
        for step in self.steps:
            for batch in step:
                yield from batch


@contextmanager
def data_of(history: History, fleet: Fleet) -> Generator[Path]:
    """Write the data of a history, in tars and in the format of the loader, for the duration of the context."""
    with tempfile.TemporaryDirectory(prefix="truth-data-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        tars.write(folder, history.datasets)
        (host,) = fleet.take(1)
        try:
            host.send("prepare", folder=name, datasets=[asdict(each) for each in history.datasets])
            host.answer(PREPARE_S)
        finally:
            fleet.give([host])
        yield folder


def play(history: History, fleet: Fleet, folder: Path) -> Record:
    """Play all parts of a history."""
    record, saved = Record(), (0, list[str]())
    rng = random.Random(history.seed)
    for index, part in enumerate(history.parts):
        last = index == len(history.parts) - 1
        hosts = fleet.take(part.hosts)
        player = Player(history, part, hosts, record, saved, rng)
        try:
            player.open(folder)
            player.play(history.most_steps - saved[0] if last else part.steps)
            if not last:
                player.kill()
        except (LoaderError, HostLostError) as error:
            for host in hosts:
                host.kill()
            record.failure = f"part {index + 1} of {len(history.parts)}: {error.args[0]}"
            return record
        finally:
            fleet.give(hosts)
        saved = player.saved
        record.ended = len(player.ended) == len(hosts)
        if not last:
            del record.steps[saved[0] :], record.shares[saved[0] :]
    return record


@dataclass
class Player:
    """One part of a history on its hosts."""

    history: History
    part: Part
    hosts: Sequence[Host]
    record: Record
    saved: tuple[int, list[str]]  # the number of steps before the state, and the states of all hosts
    rng: random.Random = field(default_factory=random.Random)
    ended: set[int] = field(default_factory=set[int])

    def open(self, folder: Path) -> None:
        """Open the loader on all hosts, and restore what was saved."""
        run = run_of(self.history, self.part, folder).to_json()
        states, hosts = self.saved[1] or None, range(self.part.hosts)
        ask_all(self.hosts, "open", [{"run": {**run, "host": host}, "states": states} for host in hosts])

    def play(self, steps: int) -> None:
        """Deliver steps, and save after some of them."""
        done = 0
        for save in self.part.saves:
            self.deliver(save - done)
            done = save
            if not self.ended:
                self.save()
        self.deliver(steps - done)

    def deliver(self, steps: int) -> None:
        """Take batches on all hosts, and keep them."""
        if steps > 0 and self._active():
            self.keep(ask_all(self._active(), "next", [{"steps": steps}] * len(self._active())))

    def keep(self, replies: Sequence[dict[str, Any]]) -> None:
        """Append the batches of the active hosts to the record, step by step."""
        active = [index for index in range(len(self.hosts)) if index not in self.ended]
        for number in range(max((len(reply["batches"]) for reply in replies), default=0)):
            step: Step = [[] for _ in self.hosts]
            for index, reply in zip(active, replies, strict=True):
                if number < len(reply["batches"]):
                    step[index] = reply["batches"][number]
            self.record.steps.append(step)
            self.record.shares.append(self.part.weights)
        self.ended.update(index for index, reply in zip(active, replies, strict=True) if reply["ended"])

    def save(self) -> None:
        """Save on all hosts."""
        states = ask_all(self.hosts, "save")
        self.record.state_bytes.append(sum(len(state) for state in states) * 3 // 4)
        self.saved = len(self.record.steps), states

    def kill(self) -> None:
        """Kill a worker, a host or all hosts at a random moment of the next step."""
        if self.part.kill == "none":
            return
        self.record.kills += 1
        victim = self.rng.choice(self.hosts)
        workers = victim.ask("workers") if self.part.kill == "worker" else []
        if workers:
            self._kill_worker(self.rng.choice(workers))
            return
        with suppress(HostLostError):
            for host in self._active():
                host.send("next", steps=1)
        time.sleep(self.part.delay_s)
        for host in self.hosts if self.part.kill == "all" else [victim]:
            host.kill()
        survivors = [host for host in self._active() if host.alive]
        if survivors:
            with suppress(LoaderError, HostLostError):
                answers(survivors, GRACE_S)  # they may wait for the host that is gone

    def _kill_worker(self, pid: int) -> None:
        """Kill a worker during the next steps. A loader that survives goes on, and saves."""
        active = self._active()
        for host in active:
            host.send("next", steps=AHEAD)
        time.sleep(self.part.delay_s)
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        try:
            self.keep(answers(active, LOST_S))
            if not self.ended:
                self.save()
            self.record.survived += 1
        except (LoaderError, HostLostError):
            pass  # the run is over; the trainer starts again from the last state

    def _active(self) -> list[Host]:
        return [host for index, host in enumerate(self.hosts) if index not in self.ended]


def run_of(history: History, part: Part, folder: Path) -> Run:
    """Return the run of host 0 in a part of a history."""
    return Run(
        folder=folder,
        datasets=history.datasets[: part.datasets],
        weights=part.weights,
        batch=history.global_batch // part.hosts,
        seed=history.seed,
        host=0,
        hosts=part.hosts,
        workers=part.workers,
        pack=history.pack,
        passes=history.passes,
        port=free_port(),
    )


def free_port() -> int:
    """Return a port of loopback that was free."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
