# SPDX-License-Identifier: Apache-2.0
"""A stream whose batches one replica of each node reads."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice
from typing import Any

from energon_grain.errors import ConfigError, StateError, WorkerError
from energon_grain.host_processes import HostProcesses
from energon_grain.replicas.far import FLUSH_SECONDS, FarFollower
from energon_grain.replicas.follower import Follower
from energon_grain.replicas.group import broadcasts
from energon_grain.replicas.leader import Leader
from energon_grain.replicas.message import Message
from energon_grain.replicas.node import Node
from energon_grain.sources.source import Source
from energon_grain.stream.background import Background
from energon_grain.stream.drops import DropBudget
from energon_grain.stream.passes import Progress
from energon_grain.stream.steps import Step
from energon_grain.stream.workers import WorkerPool
from energon_grain.watch.stream import Stream

Finish = Callable[[Any], Any]


class Place:
    """The place of this process in the run, as messages name it.

    Attributes:
        generation: How often it went to another place.
        step: Steps taken since then.
    """

    def __init__(self) -> None:
        self.generation = 0
        self.step = 0

    def moved(self) -> None:
        """Begin another generation."""
        self.generation += 1
        self.step = 0


class Connections:
    """The other replicas, of which one reads: on each node the lowest rank whose process has not ended.

    If one node reads for all, that rank gets the batches from the lowest rank of all nodes that has not ended, and
    hands them on.

    Args:
        node: The replicas.
        depth: Batches in memory at a time.
    """

    def __init__(self, node: Node, depth: int) -> None:
        self._node = node
        self._depth = depth
        self._ended: set[int] = set()
        self._leader: Leader | None = None
        self._follower: Follower | None = None
        self._far: FarFollower | None = None
        self._unreachable = ""
        try:
            if node.rank == node.ranks[0]:
                ends = node.accept_all()
                self._leader = Leader(node, depth, ends, node.accept_nodes() if self._first == node.rank else {})
                self._require_far()
            else:
                self.role()
        except BaseException:
            self.close()
            raise

    def _require_far(self) -> None:
        first = self._first
        self.far()
        if self._first != first:
            raise WorkerError(
                f"rank {self._node.rank} cannot connect to rank {first} on another node, which reads for all: "
                f"{self._unreachable}; name the network interface in GLOO_SOCKET_IFNAME or NCCL_SOCKET_IFNAME, or let "
                f"each node read, with across='read'"
            )

    @property
    def _first(self) -> int:
        return next(rank for rank in self._node.everywhere if rank not in self._ended)

    def role(self) -> Leader | Follower:
        """Return the connections of the process that hands batches on, or the connection to it."""
        while self._leader is None and self._follower is None:
            rank = next(rank for rank in self._node.ranks if rank not in self._ended)
            if rank == self._node.rank:
                self._leader = Leader(self._node, self._depth, {}, {})
                break
            try:
                self._follower = Follower(rank, self._node.connect(rank), self._depth)
            except OSError:
                self._ended.add(rank)
        role = self._leader or self._follower
        assert role is not None
        return role

    def far(self) -> FarFollower | None:
        """Return the connection to the process of another node that this leader gets batches from; None: it reads."""
        while self._far is None and self._first != self._node.rank:
            rank = self._first
            try:
                self._far = FarFollower(rank, self._node.connect_far(rank), self._depth)
            except OSError as error:
                self._ended.add(rank)
                self._unreachable = str(error)
        return self._far

    def lost(self) -> WorkerError:
        """Return the error to raise after the reading process has ended. The next `role` is another one.

        If only the network broke, the next `far` connects to that process again.
        """
        if self._far is not None:
            (lost, self._far), candidates = (self._far, None), self._node.everywhere
        else:
            (lost, self._follower), candidates = (self._follower, None), self._node.ranks
            assert lost is not None
            self._ended.add(lost.leader)
        lost.close()
        rank = next(rank for rank in candidates if rank not in self._ended and rank != lost.leader)
        return WorkerError(
            f"rank {lost.leader}, which reads the batches of rank {self._node.rank}, has ended or closed its "
            f"loader; if asked again, rank {rank} reads from the same place"
        )

    def close(self, wait_s: float = 0.0) -> None:
        """Close everything.

        Args:
            wait_s: As in `Leader.close`.
        """
        for follower in (self._far, self._follower):
            if follower is not None:
                follower.close()
        if self._leader is not None:
            self._leader.close(wait_s)
        self._node.close()


class _Counted:
    """The steps that the consumer took."""

    def __init__(self, steps: Iterator[Step], place: Place) -> None:
        self.steps = steps
        self._place = place

    def __iter__(self) -> Iterator[Step]:
        return self

    def __next__(self) -> Step:
        step = next(self.steps)
        self._place.step += 1
        return step


class ReplicaStream(Stream):
    """A stream of which one replica of each node reads the batches. See `energon_grain.replicas`.

    Every replica has the state after the batch that it got. Restoring, seeking, skipping, changing the mixture and new
    passes are collective: every replica makes the same calls between the same batches.
    """

    _connections: Connections
    _place: Place
    _after: Finish | None

    @classmethod
    def joined(cls, dataset: Any, processes: HostProcesses | None, finish: Finish | None, **options: Any) -> Stream:
        """Return the stream of a dataset: alone if its configuration has no replicas, or connected to them.

        A collective operation over all replicas.

        Args:
            dataset: The dataset.
            processes: All processes of the job; None: they are not connected.
            finish: Called on each batch, on every replica.
            **options: As in `Stream.of`.

        Raises:
            ConfigError: The processes are not connected.
            WorkerError: A replica does not connect.
        """
        group = options["worker_config"].replicas
        if group is None or len(group.ranks) == 1:
            return Stream.of(dataset, finish=finish, **options)
        all_gather = group.all_gather
        if all_gather is None and processes is not None:
            all_gather = processes.all_gather
        if all_gather is None:
            raise ConfigError(
                "WorkerConfig(replicas=…): the processes are not connected; initialise `torch.distributed` or "
                "`jax.distributed` before making the loader"
            )
        stream = cls.of(dataset, **options)
        try:
            node = Node(group, all_gather, broadcast=broadcasts(stream.config))
            stream._join(node, finish, 1 + max(2, options.get("prefetch_factor", 2)))
        except BaseException:
            Stream.close(stream)
            raise
        return stream

    def _join(self, node: Node, finish: Finish | None, depth: int) -> None:
        self._place = Place()
        self._after = finish
        self._connections = Connections(node, depth)
        weakref.finalize(self, self._connections.close)

    @property
    def reads(self) -> bool:
        """Whether this process reads for others, and gets no batches from them."""
        return isinstance(self._connections.role(), Leader) and self._connections.far() is None

    @property
    def ready(self) -> int:
        """Number of finished steps waiting to be taken."""
        steps = self._steps.steps if isinstance(self._steps, _Counted) else None
        return steps.waiting if isinstance(steps, Background) else 0

    def _go_to(self, progress: Progress, *, pass_ended: bool = False) -> None:
        super()._go_to(progress, pass_ended=pass_ended)
        if hasattr(self, "_place"):
            self._place.moved()

    def _start(self) -> Iterator[Step]:
        unreported = super()._start()
        if self._steps is not None:
            self._steps = _Counted(self._steps, self._place)
        return unreported

    def _workers_ready(self) -> WorkerPool | None:
        return super()._workers_ready() if self.reads else None

    def _made_by(self, pool: WorkerPool | None, in_workers: bool) -> Iterable[Step]:
        role, sources = self._connections.role(), self._stage.sources
        far = self._connections.far() if isinstance(role, Leader) else None
        place = self._place.generation, self._place.step
        if isinstance(role, Leader) and far is None:
            steps = super()._made_by(pool, in_workers)
            return _handed_on(role, place, steps, self._drops, sources, self._after)
        own = partial(_made_alone, weakref.WeakMethod(super()._made_by))
        if isinstance(role, Leader):
            assert far is not None
            steps = _received(far, self._connections, place, own, self._drops, sources, None)
            return self._in_background(_handed_on(role, place, steps, self._drops, sources, self._after))
        steps = _received(role, self._connections, place, own, self._drops, sources, self._after)
        return steps if self._after is None else self._in_background(steps)

    def _in_background(self, steps: Iterable[Step]) -> Iterable[Step]:
        cancellation = self._shutdown.cancellation
        ahead = Background(steps, 1, self.config.prefetch_bytes, lambda step: 1, cancellation, self.outlet)
        self._shutdown.add(ahead.stop, ahead.close)
        return ahead

    def close(self) -> None:
        """End threads, release files and leave the other replicas. Further `next` calls raise ValueError."""
        super().close()
        self._connections.close(FLUSH_SECONDS)


def _finished(step: Step, finish: Finish | None) -> Step:
    return step if finish is None else step._replace(batch=finish(step.batch))


def _handed_on(
    leader: Leader,
    place: tuple[int, int],
    steps: Iterable[Step],
    drops: DropBudget,
    sources: list[Source],
    finish: Finish | None,
) -> Iterator[Step]:
    """Steps of this process, which the other replicas get too."""
    generation, number = place
    try:
        for step in steps:
            step = leader.hand_on(generation, number, step, sources, dropped=drops.any_dropped)
            number += 1
            yield _finished(step, finish)
            del step
    except Exception as error:
        leader.end(generation, number, error)
        raise
    leader.end(generation, number)


def _made_alone(method: weakref.WeakMethod[Any], count: int) -> Iterable[Step]:
    steps_of = method()
    return () if steps_of is None else islice(steps_of(None, False), count)


def _received(
    follower: Follower | FarFollower,
    connections: Connections,
    place: tuple[int, int],
    own: Callable[[int], Iterable[Step]],
    drops: DropBudget,
    sources: list[Source],
    finish: Finish | None,
) -> Iterator[Step]:
    """Steps of another process. Those that it handed on before this process connected are read here."""
    generation, number = place
    while True:
        try:
            message = follower.peek()
        except (EOFError, OSError):
            raise connections.lost() from None
        _check_generation(message, generation, follower.leader)
        if message.generation == generation and message.step > number:
            missing = message.step - number
            for step in own(missing):
                number += 1
                yield _finished(step, finish)
            if number < message.step:  # the pass has ended
                return
        elif message.begins or (message.generation, message.step) < (generation, number):
            follower.discard()
        elif not message.places:
            follower.discard()
            if message.error is not None:
                raise message.error
            return
        else:
            step = follower.take(sources)
            drops.any_dropped |= message.dropped
            number += 1
            yield _finished(step, finish)
            del step


def _check_generation(message: Message, generation: int, leader: int) -> None:
    if message.generation > generation:
        raise StateError(
            f"rank {leader}, which reads for this rank, went to another place: restoring, seeking, skipping, changing "
            f"the mixture and new passes are collective, so all replicas make the same calls between the same batches"
        )
