"""Fleets of hosts that run a graph in lockstep, and the uninterrupted stream of one host beside them."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from stream_graph_hooks import items_of, tell
from stream_graphs import Builder, Graph
from stream_hosts import Agreement, MakeDataset, quiet

from energon_grain import SavableDataset, Stream, WorkerConfig, merge_cursors


@dataclass
class Fleet:
    """All hosts of a run, in lockstep.

    Attributes:
        graph: With its top.
        make: Makes the data.
        hosts: Number of hosts.
        last_batch: Of the top.
        workers: Of each host.
        datasets: One a host.
        streams: One a host.
    """

    graph: Graph
    make: MakeDataset
    hosts: int = 1
    last_batch: Any = "pad"
    workers: int = 0
    worker_type: Any = "thread"
    datasets: list[SavableDataset] = field(default_factory=list)
    streams: list[Stream] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._agreement = Agreement(self.hosts)
        for host in range(self.hosts):
            config = WorkerConfig(
                host,
                self.hosts,
                self.workers,
                worker_type=self.worker_type,
                global_error_handler=quiet,
                any_host=self._agreement.of(host),
            )
            builder = Builder(self.make, config, self.graph[1], self.last_batch)
            self.datasets.append(builder.top(self.graph))
            self.streams.append(Stream.of(self.datasets[-1]))
            self.streams[-1]._workers = self.workers  # whatever the number of cores
        self._threads = ThreadPoolExecutor(self.hosts)

    @property
    def batched(self) -> bool:
        """Whether steps deliver batches."""
        return self.streams[0].spec.batch is not None

    @property
    def unit(self) -> int:
        """Items of a step."""
        return self.streams[0].plan.global_batch

    @property
    def place(self) -> tuple[int, int]:
        """(pass, item) of the next step."""
        progress = self.streams[0]._progress
        return progress.pass_number, progress.item

    def step(self) -> list[Any] | None:
        """The next batches of all hosts; None at the end of the pass."""
        batches = self._each(lambda stream: next(stream, None))
        ended = {batch is None for batch in batches}
        assert len(ended) == 1, f"hosts disagree on the end: {[batch is None for batch in batches]}"
        return None if ended == {True} else batches

    def items_of(self, batch: Any) -> list[Any]:
        """What a host's step delivers, padding left out."""
        return items_of(batch, self.batched)

    def look_ahead(self, steps: int) -> None:
        """Read steps ahead on all hosts."""
        self._each(lambda stream: stream.peek(steps))

    def begin(self) -> None:
        """The next pass, if this one is over."""
        for stream in self.streams:
            iter(stream)

    def skip(self, steps: int) -> None:
        """On all hosts."""
        self._each(lambda stream: stream.skip(steps))

    def _each(self, function: Callable[[Stream], Any]) -> list[Any]:
        if self.hosts == 1:
            return [function(self.streams[0])]

        def call(stream: Stream) -> Any:
            try:
                return function(stream)
            except BaseException:
                self._agreement.abort()
                raise

        futures: list[Future[Any]] = [self._threads.submit(call, stream) for stream in self.streams]
        errors = [error for future in futures if (error := future.exception()) is not None]
        if errors:
            raise next((e for e in errors if not isinstance(e, threading.BrokenBarrierError)), errors[0])
        return [future.result() for future in futures]

    def save(self) -> str:
        """The state of all hosts, as it would lie in a file."""
        return json.dumps(merge_cursors([stream.cursor(with_manifest=True) for stream in self.streams]))

    def restore(self, saved: str) -> None:
        """Go to a state."""
        for stream in self.streams:
            stream.restore(json.loads(saved))

    def close(self) -> None:
        """End all threads."""
        for stream in self.streams:
            stream.close()
        self._threads.shutdown()


class Reference:
    """The uninterrupted stream of one host, as far as it was looked at.

    Attributes:
        unit: Items of a step.
        items: By (pass, item) of the step. Passes of an endless stream count as one.
        batches: The same as batches.
        ends: (pass, item) where passes ended.
    """

    def __init__(self, graph: Graph, make: MakeDataset, last_batch: Any = "pad") -> None:
        self.fleet = Fleet(graph, make, 1, last_batch)
        self.endless = self.fleet.streams[0].spec.endless
        self.unit = self.fleet.unit
        self.items: dict[tuple[int, int], list[Any]] = {}
        self.batches: dict[tuple[int, int], Any] = {}
        self.held: dict[tuple[int, int], str] = {}
        self.ends: set[tuple[int, int]] = set()

    def key(self, place: tuple[int, int]) -> tuple[int, int]:
        """Of a place; passes of an endless stream are not told apart."""
        return (0 if self.endless else place[0], place[1])

    def reach(self, pass_number: int, item: int) -> None:
        """Look at least so far."""
        fleet = self.fleet
        for _ in range(5000):
            if fleet.place[0] > pass_number or (fleet.place[0] == pass_number and fleet.place[1] >= item):
                return
            self._one()
        raise AssertionError("no end")

    def _one(self) -> None:
        fleet = self.fleet
        batches = fleet.step()
        if batches is None:
            self.ends.add(fleet.place)
            fleet.begin()
            return
        behind = fleet.place
        before = self.key((behind[0], behind[1] - self.unit))
        self.items[before] = items_of(batches[0], fleet.batched)
        self.batches[before] = tell(batches[0])
        self.held[self.key(behind)] = fleet.streams[0].cursor()["held"]

    def expected(self, first: tuple[int, int], stop: int) -> list[Any]:
        """The items of a pass from one number on and before another."""
        pass_number, item = first
        self.reach(pass_number, stop)
        found: list[Any] = []
        for number in range(item, stop):
            found += self.items.get(self.key((pass_number, number)), [])
        return found

    def batch_at(self, place: tuple[int, int]) -> Any:
        """All that is told of the batch that begins at a place."""
        self.reach(place[0], place[1] + self.unit)
        return self.batches[self.key(place)]

    def ends_at(self, place: tuple[int, int]) -> bool:
        """Whether a pass is over at a place: nothing of it comes behind."""
        pass_number, item = place
        self.reach(pass_number + 1, 0)
        if self.endless:
            return place in self.ends
        return all(key[0] != pass_number or key[1] < item for key in self.items)

    def close(self) -> None:
        """End it."""
        self.fleet.close()
