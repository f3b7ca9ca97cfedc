# SPDX-License-Identifier: Apache-2.0
"""Workers in the actors of a Ray cluster.

The pool owns the actors. Streams lease them: a chunk goes to an actor that has started, which returns the encoded
samples. The engine keeps order, the bytes in flight, and the chunks of actors that are lost (`stream.transport`).
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import logging
import math
import os
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal, cast

import numpy as np

from energon_grain.cluster.actor import Answer, Host, Probe, StageActor, cannot_open, versions
from energon_grain.errors import ConfigError, WorkerError
from energon_grain.extras import needed_for
from energon_grain.processes.worker import ResultFile, ResultFiles, SampleUnpickler, pickled_spec
from energon_grain.storage.cancellation import POLL_SECONDS, Cancelled, raise_if_cancelled
from energon_grain.stream.chunks import Chunk, ChunkPace, Encoded
from energon_grain.stream.clock import Span
from energon_grain.stream.spec import StreamSpec
from energon_grain.stream.stage import PureStage
from energon_grain.stream.transport import Deaths, Lost, TransportWorkers
from energon_grain.stream.worker_config import WorkerConfig

with needed_for("reading with Ray workers", instead="use worker_type='process'"):
    import ray
    from ray import exceptions as ray_errors

START_SECONDS = 60.0
HEDGE_SECONDS = 2.0
_GET_SECONDS = 10.0
"""Time to fetch a result that is ready. Longer means that its node is gone."""
_BEAT_SECONDS = 1.0
"""How often actors are asked whether they live. So deaths are noticed while no chunk is under way, too."""
_SILENT_SECONDS = 3.0
"""An actor that has not answered for this long gets chunks last, and others get those that it has. Ray takes up to half
a minute to notice that a node is gone."""
_STUCK_SECONDS = 2.0
"""If all actors are lost, and for this long none has started, spare ones are started: the replacements may be waiting
for a node that is gone, which Ray has not noticed."""
_MOST_SPARE = 3
_UNUSED_SECONDS = 60.0
"""After this time, actors end that no stream uses since `num_workers="auto"` found that fewer are as fast."""
_SLOW = 3.0
"""Chunks are late after this multiple of the time of the slowest tenth."""
_NAMESPACE = "energon-grain"
_BESIDE_CHUNKS = "beside-chunks"
"""The concurrency group of calls that do not wait for chunks."""
_DIED = (ray_errors.RayActorError, ray_errors.NodeDiedError, ray_errors.WorkerCrashedError)
_LOST = (*_DIED, ray_errors.ObjectLostError, ray_errors.GetTimeoutError, ray_errors.TaskCancelledError)

_logger = logging.getLogger("energon_grain")


@dataclass(eq=False, slots=True)
class _Actor:
    """An actor, and what is known of it.

    Attributes:
        slot: Number of its place in the pool.
        handle: Ray's handle.
        host: Its answer to `hello`; None: it has not started.
        ahead_ns: How far this process's clock is ahead of its clock.
        chunks: Number of chunks that it has.
        beat: Reference to the answer of the last `beat`; None: it has answered.
        asked_s: When that was asked, on `time.monotonic`.
    """

    slot: int
    handle: Any
    host: Host | None = None
    ahead_ns: int = 0
    chunks: int = 0
    beat: Any = None
    asked_s: float = 0.0

    def ask(self) -> None:
        """Ask whether it lives, unless it has not answered yet."""
        if self.beat is None:
            self.asked_s = time.monotonic()
            self.beat = self.handle.beat.options(concurrency_group=_BESIDE_CHUNKS).remote()

    @property
    def silent(self) -> bool:
        """Whether it does not answer: its node may be gone, or a hook keeps Python's lock."""
        return self.beat is not None and time.monotonic() - self.asked_s > _SILENT_SECONDS


@dataclass(frozen=True, slots=True, kw_only=True)
class RayPoolStats:
    """Counters of a `RayPool`.

    Attributes:
        workers: Wanted number of actors.
        ready: Actors that take chunks.
        near: Of these, those on this host.
        deaths: Actors that were lost and replaced.
        submitted_again: Chunks that were submitted again, since their actor or result was lost.
        hedged: Chunks that were late and also went to a second actor.
        chunks: Chunks that were encoded.
    """

    workers: int
    ready: int
    near: int
    deaths: int
    submitted_again: int
    hedged: int
    chunks: int


class RayPool:
    """Actors of a Ray cluster that encode samples for any number of loaders.

    Batches are equal to those of threads. The pool outlives loaders: closing a loader leaves the actors running, for
    the next one. Call `close`, or end the program, to end them. If an actor or its node is lost, its chunks are encoded
    by others and a new actor is started. Training hosts need no CPUs in Ray.

    Actors on this host write results to this process's memory. Results of others pass through Ray's object store, and
    are copied once, so that they may be changed. Object stores should hold at least twice
    `WorkerConfig.prefetch_bytes`. Images as uint8 move a quarter of the bytes of float32.

    Example:
        ray.init("auto")
        pool = RayPool(64, name="train")
        config = WorkerConfig.default_worker_config(workers=pool)

    Args:
        workers: Number of actors.
        max_workers: Maximum number of actors for `WorkerConfig(num_workers="auto", workers=pool)`, which chooses the
            number while the loop runs; default: `workers`, so that only actors that do not help are ended.
        num_cpus: CPUs that Ray reserves for each. The default of 1 is right for hooks that compute.
        name: Other programs with a pool of this name use the same actors. They end with the program that started them,
            and are then replaced by another program that uses them.
        near: "auto": actors on this host write to this process's memory; "never": all results pass through Ray.
        hedge_s: Seconds after which a late chunk also goes to a second actor, or more where chunks usually take long;
            None: never.
        deaths: Maximum number of lost actors within 10 minutes. More raise a `WorkerError`.
        copy: Whether results from the object store are copied. Without, arrays are read-only, and keep their memory in
            the object store.
        start_s: Seconds to wait for the first actor.
        options: Further options of the actors, such as `resources`, `runtime_env` or `scheduling_strategy`, see
            `ray.actor.ActorClass.options`.

    Raises:
        ConfigError: The number of workers is not positive.
        MissingPackageError: Ray is not installed.
    """

    def __init__(
        self,
        workers: int,
        *,
        max_workers: int | None = None,
        num_cpus: float = 1.0,
        name: str | None = None,
        near: Literal["auto", "never"] = "auto",
        hedge_s: float | None = HEDGE_SECONDS,
        deaths: int = 100,
        copy: bool = True,
        start_s: float = START_SECONDS,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        if near not in ("auto", "never"):
            raise ConfigError(f"RayPool(near={near!r}): expected 'auto' or 'never'")
        self._options = {
            "num_cpus": num_cpus,
            "scheduling_strategy": "SPREAD",
            "max_restarts": 0,
            "max_concurrency": 1,
            **(options or {}),
        }
        self.max_workers = workers if max_workers is None else max_workers
        self.name, self.near, self.copy = name, near, copy
        self.hedge_s, self.start_s = hedge_s, start_s
        self.deaths = Deaths(deaths)
        self._counts = {"deaths": 0, "submitted_again": 0, "hedged": 0, "chunks": 0}
        self._changed = threading.Condition(threading.RLock())
        self._actors: dict[int, _Actor] = {}
        self._leases: weakref.WeakSet[RayLease] = weakref.WeakSet()
        self._failed: deque[str] = deque(maxlen=1)
        self._seconds: deque[float] = deque(maxlen=100)  # of the last chunks, from their submission
        self._token = os.urandom(16)
        self._probe = ResultFile(os.memfd_create("energon-grain-probe"))
        os.pwrite(self._probe.descriptor, self._token, 0)
        self._too_many = ""  # deaths; the message
        self._resized_s = 0.0
        self._stuck_s = math.inf  # since when there is no actor
        self._workers = 0
        self._closed = threading.Event()
        self.resize(workers)
        watching = (weakref.ref(self), self._closed)
        threading.Thread(target=_watch, args=watching, name="energon-grain-ray-watch", daemon=True).start()

    @property
    def workers(self) -> int:
        """Wanted number of actors."""
        return self._workers

    @property
    def handles(self) -> list[Any]:
        """Ray's handles of the actors that take chunks."""
        return [actor.handle for actor in self._ready()]

    def _ready(self) -> list[_Actor]:
        """The actors that take chunks."""
        with self._changed:
            return [actor for actor in self._actors.values() if actor.host is not None]

    def lease(self, spec: StreamSpec, stage: PureStage, budget_bytes: int) -> RayLease:
        """The workers of one stream, see `stream.workers.Pool`. Raises WorkerError if it cannot be pickled."""
        lease = RayLease(self, spec, stage, budget_bytes)
        self._leases.add(lease)
        return lease

    def ended(self, lease: RayLease) -> None:
        """A lease has ended: it needs no actors."""
        self._leases.discard(lease)

    def resize(self, workers: int) -> None:
        """Change the number of actors, also while loaders run. Actors that leave finish their chunks first.

        Raises ConfigError if the number is not positive.
        """
        if not hasattr(workers, "__index__") or workers < 1:
            raise ConfigError(f"RayPool: workers={workers!r}: expected a positive number")
        with self._changed:
            self._workers, self._resized_s = workers, time.monotonic()
            self._dismiss()
            self.refill()
        for lease in tuple(self._leases):
            lease.resized(workers)

    def _dismiss(self) -> None:
        """Let the actors that are too many leave, after their chunks."""
        for slot in [slot for slot in self._actors if slot >= self._workers]:
            leaving = self._actors.pop(slot)
            if self._owns(leaving):
                leaving.handle.__ray_terminate__.remote()

    def refill(self) -> None:
        """Start the actors that were given up: those that could not start, or after too many deaths."""
        with self._changed:
            self._too_many = ""
            for slot in range(self._workers):
                if slot not in self._actors:
                    self._start(slot)

    def stats(self) -> RayPoolStats:
        """Counters since the pool was made."""
        with self._changed:
            ready = self._ready()
            near = sum(actor.host is not None and actor.host.near for actor in ready)
            return RayPoolStats(workers=self._workers, ready=len(ready), near=near, **self._counts)

    def wait(self, actors: int = 1, timeout_s: float | None = None) -> None:
        """Wait until actors have started.

        Args:
            actors: Number of them.
            timeout_s: Default: `start_s`.

        Raises:
            WorkerError: They did not start in time, or cannot.
        """
        until = time.monotonic() + (self.start_s if timeout_s is None else timeout_s)
        self.refill()
        with self._changed:
            while self.stats().ready < actors:
                self._wait_for_start(until)

    def _owns(self, actor: _Actor) -> bool:
        """Whether this pool has started an actor. Others of its name may use those of another program."""
        return self.name is None or (actor.host is not None and actor.host.owner == self._token)

    def _start(self, slot: int) -> None:
        options = dict(self._options)
        if self.name is not None and slot < self._workers:
            options |= {"name": f"{self.name}-{slot}", "namespace": _NAMESPACE, "get_if_exists": True}
        kind = cast("Any", ray.remote)(concurrency_groups={_BESIDE_CHUNKS: 1})(StageActor)
        handle = kind.options(**options).remote(slot, [entry for entry in sys.path if entry], self._token)
        actor = self._actors[slot] = _Actor(slot, handle)
        threading.Thread(
            target=_welcome, args=(weakref.ref(self), actor), name="energon-grain-ray", daemon=True
        ).start()

    def expects(self, actor: _Actor) -> bool:
        """Whether an actor is still needed."""
        return self._actors.get(actor.slot) is actor

    def greet(self, actor: _Actor) -> None:
        """Learn about an actor that has started; it gets chunks from then on."""
        best: tuple[int, int, Host] | None = None
        probe = Probe.of(self._probe.descriptor, self._token)
        for _ in range(3):  # the quickest call shows the clock best
            before = time.perf_counter_ns()
            host = Host(*ray.get(actor.handle.hello.remote(probe)))
            after = time.perf_counter_ns()
            if best is None or after - before < best[0]:
                best = after - before, (before + after) // 2 - host.clock_ns, host
        assert best is not None
        _, actor.ahead_ns, actor.host = best[0], best[1], self._checked(best[2])
        with self._changed:
            self._failed.clear()
            self._changed.notify_all()

    def _checked(self, host: Host) -> Host:
        python, library = versions()
        if (host.python, host.library) != (python, library):
            raise WorkerError(
                f"the Ray worker on node {host.node} has Python {host.python} and energon-grain {host.library}, this "
                f"process has Python {python} and energon-grain {library}: install the same versions on every node"
            )
        return host if self.near == "auto" else host._replace(near=False)

    def not_welcome(self, actor: _Actor, error: Exception) -> None:
        """An actor did not start. Another is tried, unless the pool shrank."""
        self._failed.append(str(error))
        if isinstance(error, _DIED):
            self._closed.wait(_BEAT_SECONDS)  # not again and again without a pause
            self.died(actor, error)
            return
        with self._changed:
            if self.expects(actor):
                del self._actors[actor.slot]
            self._changed.notify_all()

    def watch(self) -> None:
        """Ask the actors whether they live, and replace those that do not. End those that are not needed."""
        ready = self._ready()
        self._end_unneeded(ready)
        for actor in ready:
            actor.ask()
        beats = [actor.beat for actor in ready]
        done, _ = ray.wait(beats, num_returns=len(beats), timeout=POLL_SECONDS) if beats else ((), ())
        for actor in ready:
            if actor.beat in done:
                beat, actor.beat = actor.beat, None
                try:
                    ray.get(beat)
                except _DIED as error:
                    self.died(actor, error)

    def _end_unneeded(self, ready: Sequence[_Actor]) -> None:
        """End spare actors if all others have started, and those that no stream has used for a while."""
        with self._changed:
            if sum(actor.slot < self._workers for actor in ready) == self._workers:
                self._dismiss()
        wanted = max((lease.wanted for lease in tuple(self._leases)), default=math.inf)
        if wanted < self._workers:
            self.resize(int(wanted))

    def choose(self, avoid: Sequence[_Actor] = (), within: float = math.inf) -> _Actor:
        """The actor with the fewest chunks. Raises WorkerError if none starts in time.

        Args:
            avoid: Actors that have the chunk. If possible, it goes to another node.
            within: Number of actors to choose from.
        """
        nodes = {actor.host.node_id for actor in avoid if actor.host is not None}
        until = time.monotonic() + self.start_s
        with self._changed:
            while True:
                if self._too_many:
                    raise WorkerError(self._too_many)
                ready = [(actor, actor.host) for actor in self._actors.values() if actor.host is not None]
                if ready:
                    actor, _ = min(
                        ready,
                        key=lambda each: (
                            each[0] in avoid,
                            each[0].silent,
                            within <= each[0].slot < self._workers,
                            each[1].node_id in nodes,
                            each[0].chunks,
                        ),
                    )
                    actor.chunks += 1
                    self._counts["hedged"] += bool(avoid)
                    return actor
                self._wait_for_start(until)

    @property
    def complete(self) -> bool:
        """Whether all actors have started, or those that have not took too long."""
        late = time.monotonic() - self._resized_s > self.start_s
        return late or self.stats().ready >= self._workers

    def _wait_for_start(self, until: float) -> None:
        """Wait a moment for an actor. Raises WorkerError if none can start, or at a time."""
        raise_if_cancelled()
        if not self._actors or time.monotonic() > until:
            raise self._not_started()
        self._start_spare(time.monotonic())
        self._changed.wait(POLL_SECONDS)

    def _start_spare(self, now: float) -> None:
        """Start a spare actor if all actors were lost a while ago."""
        if self._ready() or not self._counts["deaths"]:
            self._stuck_s = math.inf
        elif self._stuck_s == math.inf:
            self._stuck_s = now
        elif now - self._stuck_s > _STUCK_SECONDS:
            self._stuck_s = now
            spare = next(slot for slot in itertools.count(self._workers) if slot not in self._actors)
            if spare < self._workers + _MOST_SPARE:
                self._start(spare)

    def patience_s(self, actors: Sequence[_Actor]) -> float:
        """How long to wait for an answer of actors that have a chunk, before another gets it too."""
        if self.hedge_s is None:
            return math.inf
        if all(actor.silent for actor in actors):
            others = [actor for actor in self._ready() if actor not in actors]
            return math.inf if all(actor.silent for actor in others) else 0.0
        return self.late_s if len(actors) == 1 else math.inf

    @property
    def late_s(self) -> float:
        """Time after which a chunk is late: `hedge_s`, or more if chunks usually take long."""
        with self._changed:
            seconds = sorted(self._seconds)
        usual_s = seconds[len(seconds) * 9 // 10] if seconds else 0.0
        return max(self.hedge_s or 0.0, _SLOW * usual_s)

    def _not_started(self) -> WorkerError:
        if self._closed.is_set():
            return WorkerError("this RayPool was closed; make another one")
        if self._failed:
            return WorkerError(self._failed[-1])
        free = ray.available_resources()
        return WorkerError(
            f"no Ray worker started within {self.start_s:g} s. {self._workers} workers request "
            f"{self._options['num_cpus']:g} CPUs each, and the cluster has {free.get('CPU', 0):g} free CPUs: "
            f"add nodes, use fewer workers, or lower num_cpus"
        )

    def returned(self, actor: _Actor, *, seconds: float = 0.0, lost: bool = False) -> None:
        """A chunk has left an actor; `seconds` after it was submitted, if it is encoded."""
        with self._changed:
            actor.chunks -= 1
            if seconds:
                self._counts["chunks"] += 1
                self._seconds.append(seconds)
            self._counts["submitted_again"] += lost

    def died(self, actor: _Actor, error: Exception) -> Lost:
        """An actor is lost: count it once, and start another. Returns the description of its death."""
        node = "" if actor.host is None else f" on node {actor.host.node}"
        lost = Lost(f"Ray worker {actor.slot}{node} was lost ({type(error).__name__})", worker=actor)
        with self._changed:
            if self.expects(actor):
                self._counts["deaths"] += 1
                del self._actors[actor.slot]
                try:
                    self.deaths.count(lost)
                    if actor.slot < self._workers and ray.is_initialized():  # otherwise another Ray would start
                        self._start(actor.slot)
                except WorkerError as too_many:
                    self._too_many = str(too_many)
        return lost

    def close(self) -> None:
        """End the actors. Loaders that still use them raise a `WorkerError`. May be called repeatedly."""
        self._closed.set()
        with self._changed:
            self._workers = 0
            actors = [actor for actor in self._actors.values() if self._owns(actor)]
            self._actors.clear()
            self._changed.notify_all()
        for actor in actors:
            with suppress(Exception):  # Ray itself may have ended
                ray.kill(actor.handle)

    def __enter__(self) -> RayPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _welcome(pool: weakref.ref[RayPool], actor: _Actor) -> None:
    """Runs in a thread, since an actor may start only when the cluster has grown. It does not keep the pool."""
    try:
        started = actor.handle.beat.remote()
        while not ray.wait([started], timeout=_BEAT_SECONDS)[0]:
            found = pool()
            if found is None or not found.expects(actor) or not ray.is_initialized():
                return
            del found
        found = pool()
        if found is not None:
            found.greet(actor)
    except Exception as error:
        found = pool()
        if found is not None:
            found.not_welcome(actor, error)


def _watch(pool: weakref.ref[RayPool], closed: threading.Event) -> None:
    """Runs in a thread, for the life of the pool."""
    while not closed.wait(_BEAT_SECONDS):
        found = pool()
        if found is None or not ray.is_initialized():  # asking would start another Ray
            return
        with suppress(Exception):  # Ray itself may have ended
            found.watch()
        del found


@dataclass(eq=False, slots=True)
class _Ticket:
    """A chunk that an actor has.

    Attributes:
        ref: Ray's reference to the result.
        file: The file for the result; None: it passes through the object store.
        asked_ns: When it was submitted.
    """

    actor: _Actor
    ref: Any
    file: ResultFile | None
    asked_ns: int = field(default_factory=time.perf_counter_ns)


_Result = tuple[list[Any], int, int, int, int]
"""Parts for `SampleUnpickler`; start and end, how far this clock is ahead of the actor's, and arrival."""


class RayLease:
    """The workers of one stream: its `stream.workers.WorkerPool` and `stream.transport.Transport`."""

    def __init__(self, pool: RayPool, spec: StreamSpec, stage: PureStage, budget_bytes: int) -> None:
        self._pool = pool
        self._sources = stage.sources
        self._budget_bytes = budget_bytes
        pickled = pickled_spec(dataclasses.replace(spec, program=None), otherwise="use worker_type='thread'")
        self._digest = hashlib.sha256(pickled).hexdigest()
        self._spec = ray.put(pickled)
        self._files = ResultFiles(most=4 * pool.workers + 4)
        self._opened = False
        self._most = math.inf
        self._most_since_s = 0.0
        self._running: weakref.ref[TransportWorkers] | None = None

    @property
    def workers(self) -> int:
        """Number of actors that this stream uses."""
        return max(1, int(min(self._most, self._pool.workers)))

    @property
    def wanted(self) -> float:
        """Number of actors that this stream has used for a while; infinite: all."""
        return self._most if time.monotonic() - self._most_since_s > _UNUSED_SECONDS else math.inf

    @property
    def settled(self) -> bool:
        """See `watch.auto_workers.Resizable`."""
        running = None if self._running is None else self._running()
        return self._pool.complete and (running is None or running.settled)

    def resize(self, workers: int) -> None:
        """Use this number of actors, for `num_workers="auto"`. The pool grows now, and shrinks after a while."""
        self._most, self._most_since_s = workers, time.monotonic()
        if workers > self._pool.workers:
            self._pool.resize(workers)
        else:
            self.resized(workers)

    @property
    def deaths(self) -> Deaths:
        return self._pool.deaths

    @property
    def shares(self) -> Literal["memory", "disk", "nothing"]:
        """Whether this host's disk is that of all actors that have started."""
        self._pool.wait()
        stats = self._pool.stats()
        return "disk" if stats.near == stats.ready else "nothing"

    def start(self, chunks: Iterator[Chunk], pace: ChunkPace) -> TransportWorkers:
        """Make the actors encode chunks. Raises WorkerError if none can open the data."""
        self._pool.wait()
        self._open()
        workers = TransportWorkers(self, chunks, pace, self._budget_bytes)
        self._running = weakref.ref(workers)
        return workers

    def _open(self) -> None:
        """Let one actor open the data, so that missing paths and modules are errors of the first batch."""
        if self._opened:
            return
        actor = self._pool.choose()
        try:
            opened, until = actor.handle.open.remote(self._digest, self._spec), time.monotonic() + self._pool.start_s
            while time.monotonic() < until and not actor.silent and not ray.wait([opened], timeout=POLL_SECONDS)[0]:
                raise_if_cancelled()
            failed = cast("str | None", ray.get(opened, timeout=0))
            if failed is not None:
                assert actor.host is not None
                raise WorkerError(cannot_open(actor.host.node, failed))
            self._opened = True
        except _DIED as error:
            self._pool.died(actor, error)  # the first chunks find out the rest
        except ray_errors.GetTimeoutError:
            _logger.debug("Ray worker %d takes long to open the dataset", actor.slot)
        finally:
            self._pool.returned(actor)

    def resized(self, workers: int) -> None:
        """The pool has another number of actors."""
        running = None if self._running is None else self._running()
        if running is not None:
            running.resize_workers(max(1, int(min(self._most, workers))))

    def submit(self, message: bytes, avoid: Sequence[_Ticket] = ()) -> _Ticket:
        actor = self._pool.choose([ticket.actor for ticket in avoid], self._most)
        try:
            assert actor.host is not None
            if not actor.host.near:
                return _Ticket(actor, actor.handle.run.remote(self._digest, self._spec, message), None)
            file = self._files.take()
            probe = Probe.of(file.descriptor)
            return _Ticket(actor, actor.handle.run_into.remote(self._digest, self._spec, message, probe), file)
        except BaseException:
            self._pool.returned(actor)
            raise

    def wait(self, tickets: Sequence[_Ticket], timeout_s: float) -> Sequence[_Ticket]:
        done, _ = ray.wait([ticket.ref for ticket in tickets], num_returns=1, timeout=timeout_s)
        return [ticket for ticket in tickets if ticket.ref in done]

    def patience_s(self, tickets: Sequence[_Ticket]) -> float:
        return self._pool.patience_s([ticket.actor for ticket in tickets])

    def result(self, ticket: _Ticket) -> _Result:
        actor, seconds = ticket.actor, 0.0
        try:
            found: Any = ray.get(ticket.ref, timeout=_GET_SECONDS)
            if found is None:
                raise Cancelled  # this process has closed the file
            seconds = (time.perf_counter_ns() - ticket.asked_ns) / 1e9
        except _LOST as error:
            if isinstance(error, _DIED):
                raise self._pool.died(actor, error) from error
            raise Lost(f"a result of Ray worker {actor.slot} was lost ({type(error).__name__})") from error
        except ray_errors.RayError as error:
            raise WorkerError(f"a Ray worker failed: {error}") from error
        finally:
            self._pool.returned(actor, seconds=seconds, lost=not seconds)
        parts, began_ns, ended_ns = Answer(*found)
        arrived_ns = time.perf_counter_ns()
        if ticket.file is not None:
            return self._files.parts(ticket.file, [*parts]), began_ns, ended_ns, actor.ahead_ns, arrived_ns
        return self._written([*parts]), began_ns, ended_ns, actor.ahead_ns, arrived_ns

    def _written(self, parts: list[Any]) -> list[Any]:
        """Parts from the object store, where they are read-only; copied, if the pool says so."""
        return [parts[0], *(np.copy(part) if self._pool.copy else part for part in parts[1:])]

    def forget(self, ticket: _Ticket) -> None:
        """Cancel it. Its file is not used again: the actor may still write to it."""
        self._pool.returned(ticket.actor)
        with suppress(Exception):
            ray.cancel(ticket.ref)

    def load(self, chunk: Chunk, result: _Result) -> tuple[Encoded | BaseException, float]:
        """The unpickled chunk, with times on this process's clock, and the seconds that the actor took."""
        parts, made_ns, ended_ns, ahead_ns, arrived_ns = result
        began_ns = time.perf_counter_ns()
        encoded: Any = SampleUnpickler(parts[0], parts[1:], self._sources).load()
        if isinstance(encoded, BaseException):
            return encoded, 0.0
        if encoded.work is not None:
            now_ns, spans = time.perf_counter_ns(), encoded.work.spans
            spans[:] = [span._replace(begin_ns=span.begin_ns + ahead_ns) for span in spans]
            sent_ns = spans[-1].begin_ns + spans[-1].wall_ns
            spans.append(
                Span("pipeline", "send", "workers", sent_ns, max(0, arrived_ns - sent_ns), 0, len(chunk.draws))
            )
            spans.append(Span("pipeline", "receive", "main", began_ns, now_ns - began_ns, 0, len(chunk.draws)))
        return cast("Encoded", encoded), (ended_ns - made_ns) / 1e9

    def close(self) -> None:
        """End the lease. The actors go on."""
        self._pool.ended(self)
        self._spec = None
        self._files.close()


class OwnRayPool(RayLease):
    """The lease of a pool that ends with it, for `WorkerConfig(worker_type="ray", num_workers=n)`."""

    def close(self) -> None:
        super().close()
        self._pool.close()


def own_ray_pool(spec: StreamSpec, stage: PureStage, config: WorkerConfig, workers: int) -> OwnRayPool:
    """A pool of `workers` actors for one stream. See `stream.workers.OwnPool`."""
    return OwnRayPool(RayPool(workers), spec, stage, config.prefetch_bytes)
