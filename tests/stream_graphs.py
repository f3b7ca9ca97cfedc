"""Random dataset graphs of all kinds of nodes, and fleets of hosts that run them in lockstep.

A graph is described by nested tuples, `(kind, options…, child)`, which hypothesis draws and shrinks and prints well;
`build` makes the dataset of it for one host.
"""

from __future__ import annotations

import json
import random
import threading
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from hypothesis import strategies as st
from stream_hosts import MakeDataset, quiet

from energon_grain import (
    BatchDataset,
    BlendDataset,
    BlendEpochizedDataset,
    ConcatDataset,
    EpochizeDataset,
    FilterDataset,
    GroupBatchDataset,
    IterMapDataset,
    LimitDataset,
    MapDataset,
    PackingDataset,
    RepeatDataset,
    Sample,
    SavableDataset,
    ShuffleBufferDataset,
    SkipSample,
    Stream,
    TaskEncoder,
    WorkerConfig,
    current_draw,
    get_train_dataset,
    get_val_dataset,
    merge_cursors,
    stateless,
)

Graph = tuple[Any, ...]


@dataclass(kw_only=True)
class Piece(Sample):
    """What hooks make: of one sample or of several, with the random numbers that they drew."""

    numbers: tuple[float, ...] = ()
    members: tuple[Any, ...] = ()


def tell(value: Any) -> Any:
    """Everything that decides whether two samples, packs or batches are the same."""
    if isinstance(value, Piece):
        valid = [True] * len(value.members) if value.__valid__ is None else value.__valid__.tolist()
        members = tuple((tell(member), real) for member, real in zip(value.members, valid, strict=True))
        return value.__key__, value.numbers, members
    return value.__key__, value.text


def items_of(batch: Any, batched: bool) -> list[Any]:
    """What a step delivers, padding left out."""
    if not batched:
        return [tell(batch)]
    return [member for member, real in tell(batch)[2] if real]


def number_of(value: Any) -> int:
    """A number of the content alone."""
    return zlib.crc32(repr(tell(value)).encode())


def noted(value: Any, *numbers: float) -> Piece:
    """The value with further numbers."""
    old = value if isinstance(value, Piece) else None
    return Piece(
        __key__=value.__key__,
        __restore_key__=value.__restore_key__,
        numbers=(*(old.numbers if old else ()), *numbers),
        members=old.members if old else (),
    )


def together(values: list[Any]) -> Piece:
    """One piece of several."""
    numbers = (float(current_draw().rng.random()),)
    return Piece(__key__=values[0].__key__, __restore_key__=("made",), numbers=numbers, members=tuple(values))


def draws_number(value: Any) -> Any:
    return noted(value, float(current_draw().rng.random()), current_draw().position)


@stateless(restore_seeds=True)
def uses_globals(value: Any) -> Any:
    return noted(value, random.random(), float(np.random.random()))  # noqa: NPY002


def fails_at_random(value: Any) -> Any:
    if current_draw().rng.random() < 0.15:
        raise ValueError("at random")
    return noted(value, 1)


def skips_some(value: Any) -> Any:
    if number_of(value) % 6 == 0:
        raise SkipSample
    return value


class Encoder(TaskEncoder):
    """Hooks as methods."""

    __default_failure_tolerance__ = 0

    def with_rng(self, value: Any) -> Any:
        return noted(value, float(self.rng.random()))


ENCODER = Encoder()
MAPS: dict[str, Callable[[Any], Any]] = {
    "number": draws_number,
    "globals": uses_globals,
    "fails": fails_at_random,
    "skips": skips_some,
    "method": ENCODER.with_rng,
}


def keeps_some(value: Any) -> bool:
    return number_of(value) % 4 != 0


def keeps_at_random(value: Any) -> bool:
    return bool(current_draw().rng.random() < 0.8)


FILTERS: dict[str, Callable[[Any], bool]] = {"content": keeps_some, "random": keeps_at_random}


def several(value: Any) -> Iterator[Any]:
    for _ in range(number_of(value) % 4):
        yield noted(value, float(current_draw().rng.random()))


def breaks_off(value: Any) -> Iterator[Any]:
    yield noted(value, float(current_draw().rng.random()))
    if number_of(value) % 3 == 0:
        raise ValueError("broke off")
    yield noted(value, float(current_draw().rng.random()))


@stateless(restore_seeds=True)
def several_with_globals(value: Any) -> Iterator[Any]:
    yield noted(value, random.random())
    yield noted(value, random.random(), float(np.random.random()))  # noqa: NPY002


GENERATORS: dict[str, Callable[[Any], Iterator[Any]]] = {
    "several": several,
    "breaks off": breaks_off,
    "globals": several_with_globals,
}


def pairs(values: Iterator[Any]) -> Iterator[Any]:
    waiting: list[Any] = []
    for value in values:
        waiting.append(value)
        if len(waiting) == 2:
            yield together(waiting)
            waiting = []
    if waiting:
        yield together(waiting)


def running_sum(values: Iterator[Any]) -> Iterator[Any]:
    total = 0.0
    for value in values:
        total += float(current_draw().rng.random())
        yield noted(value, total)
        if number_of(value) % 5 == 0:
            raise ValueError("gave up")


def last_two(values: Iterator[Any]) -> Iterator[Any]:
    yield from list(values)[-2:]


ITERATIONS: dict[str, Callable[[Iterator[Any]], Iterator[Any]]] = {"pairs": pairs, "sum": running_sum, "last": last_two}


def together_or_not(values: list[Any]) -> Any:
    if current_draw().rng.random() < 0.15:
        raise SkipSample
    return together(values)


def in_halves(values: list[Any]) -> Iterator[Any]:
    half = len(values) // 2
    if half:
        yield together(values[:half])
    yield together(values[half:])


MAKERS: dict[str, Callable[[list[Any]], Any]] = {"all": together, "or not": together_or_not, "halves": in_halves}


def parity(value: Any) -> tuple[int, None]:
    return number_of(value) % 2, None


def sized(value: Any) -> tuple[int, int]:
    if current_draw().rng.random() < 0.1:
        raise SkipSample
    kind = number_of(value) % 3
    return kind, kind + 1


def select_pairs(values: list[Any]) -> list[list[Any]]:
    ordered = sorted(values, key=number_of)
    return [ordered[i : i + 2] for i in range(0, len(ordered), 2)]


def select_some(values: list[Any]) -> list[list[Any]]:
    rng = current_draw().rng
    if rng.random() < 0.1:
        raise ValueError("no selection")
    places = rng.permutation(len(values))
    groups: list[list[Any]] = [[], [], []]
    for at, place in enumerate(places.tolist()):
        if at % 7 != 6:
            groups[int(rng.integers(3))].append(values[place])
    return groups


SELECTORS: dict[str, Callable[[list[Any]], list[list[Any]]]] = {"pairs": select_pairs, "some": select_some}
ORDERS: dict[str, dict[str, Any]] = {
    "full": {"max_samples_per_sequence": None},
    "blocks": {"max_samples_per_sequence": 3, "shuffle_buffer_size": 20},
    "three passes": {"max_samples_per_sequence": None, "shuffle_over_epochs_multiplier": 3},
    "with replacement": {"max_samples_per_sequence": None, "shuffle_over_epochs_multiplier": -1},
    "in order": {"max_samples_per_sequence": None, "shuffle_over_epochs_multiplier": None},
}

# Graphs.

_LEAF = st.tuples(
    st.just("leaf"), st.sampled_from([20, 33, 48]), st.booleans(), st.sampled_from(sorted(ORDERS)), st.integers(0, 1)
)
_VAL = st.tuples(st.just("val"), st.sampled_from([20, 33, 48]), st.booleans())
_ONE_TO_ONE = ("map", "filter", "generate", "iterate", "batch", "group", "pack", "shuffle")
_ONLY_FINITE = ("concat", "blend_epochized", "repeat", "limit", "epochize")
_ONLY_ENDLESS = ("blend", "for ever")
_WEIGHTS = st.sampled_from([1, 0.25, 3])


@st.composite
def graphs(draw: st.DrawFn, depth: int, finite: bool | None = None, arithmetic: bool = False) -> Graph:
    """Any graph of at most `depth` nodes above each leaf.

    Args:
        draw: Hypothesis'.
        depth: Nodes above a leaf at most.
        finite: Whether its passes end; None: either.
        arithmetic: Whether its length must be known beforehand.
    """
    if finite is None:
        finite = draw(st.booleans())
    if not depth or draw(st.integers(0, 9)) == 0:
        return draw(st.one_of(_VAL, _LEAF) if finite else _LEAF.map(lambda leaf: ("for ever", leaf)))

    def child(finite: bool | None = finite) -> Graph:
        return draw(graphs(depth - 1, finite, arithmetic))

    if arithmetic:
        kinds = ("map", "filter", "shuffle", "concat", "limit")
    else:
        kinds = _ONE_TO_ONE + (_ONLY_FINITE if finite else _ONLY_ENDLESS)
    kind = draw(st.sampled_from(kinds))
    match kind:
        case "map":
            return kind, draw(st.sampled_from(sorted(MAPS))), child()
        case "filter":
            return kind, draw(st.sampled_from(sorted(FILTERS))), child()
        case "generate":
            return kind, draw(st.sampled_from(sorted(GENERATORS))), child()
        case "iterate":
            return kind, draw(st.sampled_from(sorted(ITERATIONS))), draw(st.integers(1, 7)), child()
        case "batch":
            return kind, draw(st.sampled_from(sorted(MAKERS))), draw(st.integers(1, 4)), draw(st.booleans()), child()
        case "group":
            return kind, draw(st.sampled_from([None, 1, 3])), draw(st.booleans()), child()
        case "pack":
            selector, maker = draw(st.sampled_from(sorted(SELECTORS))), draw(st.sampled_from(sorted(MAKERS)))
            encoder = draw(st.sampled_from([None, "number", "fails"]))
            return kind, selector, maker, encoder, draw(st.integers(1, 9)), child()
        case "shuffle":
            return kind, draw(st.sampled_from([1, 5, 30])), child()
        case "limit":
            return kind, draw(st.integers(1, 40)), child(finite=None if not arithmetic else True)
        case "epochize":
            return kind, draw(st.integers(1, 40)), child(finite=None)
        case "repeat":
            return kind, draw(st.integers(1, 3)), child()
        case "for ever":
            return kind, child(finite=True)
        case "concat":
            return kind, *(child() for _ in range(draw(st.integers(1, 3))))
        case "blend_epochized":
            parts = draw(st.lists(st.tuples(graphs(depth - 1, True, True), _REPETITIONS), min_size=1, max_size=3))
            return kind, *parts
        case _:
            per_step = draw(st.booleans())
            parts = draw(st.lists(st.tuples(graphs(depth - 1), _WEIGHTS), min_size=1, max_size=3))
            return kind, per_step, *parts


_REPETITIONS = st.sampled_from([1, 0.7, 2])


@st.composite
def tops(draw: st.DrawFn, depth: int, *, hooks: tuple[str | None, ...] = (None, "number")) -> Graph:
    """A graph with its lanes, the batch size of all hosts (0: none), what cuts it and a batch hook above it."""
    lanes = draw(st.sampled_from([8, 6, 4]))
    global_batch = draw(st.sampled_from([lanes, 2 * lanes, 12, 24, 0]))
    cut = draw(st.sampled_from([None, None, None, "for ever", ("epochize", 3), ("epochs", 0.7), ("limit", 2)]))
    return "top", lanes, global_batch, cut, draw(st.sampled_from(hooks)), draw(graphs(depth))


@dataclass(frozen=True)
class Builder:
    """Makes the dataset of a graph for one host."""

    make: MakeDataset
    config: WorkerConfig
    lanes: int
    last_batch: Any

    def top(self, graph: Graph) -> SavableDataset:
        """Of a graph with its top."""
        _, _, global_batch, cut, hook, child = graph
        dataset = self.build(child)
        if global_batch:
            size = global_batch // self.config.world_size
            dataset = BatchDataset(dataset, size, together, last_batch=self.last_batch, failure_tolerance=0)
            if hook:
                dataset = MapDataset(dataset, BATCH_HOOKS[hook], failure_tolerance=0)
        return _cut(dataset, cut)

    def build(self, graph: Graph) -> SavableDataset:
        """Of a part of a graph."""
        kind, *options, child = graph
        if kind in ("leaf", "val"):
            return self._leaf(graph)
        if kind in ("concat", "blend", "blend_epochized"):
            return self._mixture(graph)
        return self._above(self.build(child), kind, *options)

    def _leaf(self, graph: Graph) -> SavableDataset:
        kind, n, broken, *rest = graph
        options: dict[str, Any] = {
            "path": self.make(n, broken={2, n // 2} if broken else ()),
            "split_part": "train",
            "worker_config": self.config,
            "batch_size": None,
            "lanes": self.lanes,
            "task_encoder": ENCODER,
        }
        if kind == "val":
            return get_val_dataset(**options)
        order, seed = rest
        return get_train_dataset(**options, repeat=False, seed=seed, **{"shuffle_buffer_size": None, **ORDERS[order]})

    def _mixture(self, graph: Graph) -> SavableDataset:
        match graph:
            case ("concat", *children):
                return ConcatDataset(*(self.build(child) for child in children))
            case ("blend_epochized", *children):
                return BlendEpochizedDataset(*((self.build(child), number) for child, number in children))
            case (_, per_step, *children):
                parts = [(self.build(child), weight) for child, weight in children]
                return BlendDataset(*parts, per_step=per_step and self.lanes)
        raise AssertionError(graph)

    def _above(self, child: SavableDataset, kind: str, *options: Any) -> SavableDataset:
        match kind, *options:
            case "map", name:
                return MapDataset(
                    child, MAPS[name], task_encoder=ENCODER if name == "method" else None, failure_tolerance=0
                )
            case "filter", name:
                return FilterDataset(child, FILTERS[name])
            case "generate", name:
                return MapDataset(child, GENERATORS[name], failure_tolerance=0)
            case "iterate", name, inputs:
                return IterMapDataset(child, ITERATIONS[name], inputs_per_call=inputs, task_encoder=ENCODER)
            case "batch", name, size, drop_last:
                return BatchDataset(child, size, MAKERS[name], drop_last=drop_last, failure_tolerance=0)
            case "group", size, drop_last:
                key = sized if size is None else parity
                return GroupBatchDataset(child, size, key, together, drop_last=drop_last, task_encoder=ENCODER)
            case "pack", selector, maker, encoder, size:
                return PackingDataset(
                    child,
                    size,
                    SELECTORS[selector],
                    MAKERS[maker],
                    sample_encoder=encoder and MAPS[encoder],
                    task_encoder=ENCODER,
                )
            case "shuffle", size:
                return ShuffleBufferDataset(child, size)
            case "limit", length:
                return LimitDataset(child, length)
            case "epochize", length:
                return EpochizeDataset(child, length)
            case "repeat", repeats:
                return RepeatDataset(child, repeats=repeats)
            case ("for ever",):
                return RepeatDataset(child)
            case _:
                raise AssertionError(kind)


def batch_skipped_or_not(batch: Any) -> Any:
    if number_of(batch) % 4 == 0:
        raise SkipSample
    return batch


def valid_kept(batch: Any) -> Any:
    return replace(batch, numbers=(*batch.numbers, float(current_draw().rng.random())))


BATCH_HOOKS: dict[str, Callable[[Any], Any]] = {"number": valid_kept, "skips": batch_skipped_or_not}


def _cut(dataset: SavableDataset, cut: Any) -> SavableDataset:
    match cut:
        case "for ever":
            return RepeatDataset(dataset)
        case ("epochize", length):
            return EpochizeDataset(dataset, length)
        case ("epochs", number):
            return EpochizeDataset(dataset, num_epochs=number)
        case ("limit", length):
            return LimitDataset(dataset, length)
        case _:
            return dataset


# Hosts.


class Agreement:
    """Says on all hosts of a fleet whether a flag is set on any. The hosts must ask from threads of their own."""

    def __init__(self, hosts: int) -> None:
        self._barrier = threading.Barrier(hosts, timeout=30)
        self._flags = [False] * hosts

    def of(self, host: int) -> Callable[[bool], bool]:
        """The function of one host."""

        def any_host(flag: bool) -> bool:
            self._flags[host] = flag
            self._barrier.wait()
            said = any(self._flags)
            self._barrier.wait()
            return said

        return any_host

    def abort(self) -> None:
        """Wake the others up: one host failed."""
        self._barrier.abort()


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
