"""Random dataset graphs of all kinds of nodes.

A graph is described by nested tuples, `(kind, options…, child)`, which hypothesis draws and shrinks and prints well;
`Builder` makes the dataset of it for one host.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st
from stream_graph_hooks import (
    BATCH_HOOKS,
    ENCODER,
    FILTERS,
    GENERATORS,
    ITERATIONS,
    MAKERS,
    MAPS,
    SELECTORS,
    parity,
    sized,
    together,
)
from stream_hosts import MakeDataset

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
    MixBatchDataset,
    PackingDataset,
    PackingPlan,
    PlannedPackingDataset,
    RepeatDataset,
    SavableDataset,
    ShuffleBufferDataset,
    WorkerConfig,
    get_train_dataset,
    get_val_dataset,
)

Graph = tuple[Any, ...]


ORDERS: dict[str, dict[str, Any]] = {
    "full": {"max_samples_per_sequence": None},
    "blocks": {"max_samples_per_sequence": 3, "shuffle_buffer_size": 20},
    "three passes": {"max_samples_per_sequence": None, "shuffle_over_epochs_multiplier": 3},
    "with replacement": {"max_samples_per_sequence": None, "shuffle_over_epochs_multiplier": -1},
    "in order": {"max_samples_per_sequence": None, "shuffle_over_epochs_multiplier": None},
}

_WHERE = st.sampled_from([None, None, "bytes.txt % 3 != 1", "bytes.txt < 110"])
_LEAF = st.tuples(
    st.just("leaf"),
    st.sampled_from([20, 33, 48]),
    st.booleans(),
    st.sampled_from(sorted(ORDERS)),
    st.integers(0, 1),
    _WHERE,
)
_VAL = st.tuples(st.just("val"), st.sampled_from([20, 33, 48]), st.booleans(), _WHERE)
_ONE_TO_ONE = ("map", "filter", "generate", "iterate", "batch", "group", "pack", "plan", "shuffle")
_ONLY_FINITE = ("concat", "blend_epochized", "repeat", "limit", "epochize")
_ONLY_ENDLESS = ("blend", "blend_by_cost", "mix", "for ever")
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
        case "plan":
            maker, capacity = draw(st.sampled_from(["all", "or not"])), draw(st.sampled_from([50, 700, 2000]))
            window, batches = draw(st.sampled_from([4, 15, 60])), draw(st.booleans())
            below = draw(graphs(depth - 1, True, True))
            return kind, maker, capacity, window, batches, below if finite else ("for ever", below)
        case "shuffle":
            return kind, draw(st.sampled_from([1, 5, 30])), child()
        case "limit":
            return kind, draw(st.integers(1, 40)), child(finite=None if not arithmetic else True)
        case "epochize":
            return kind, draw(st.integers(1, 40)), child(finite=None)
        case "repeat":
            return kind, draw(st.sampled_from([1, 2, 3, 1.5])), child()
        case "for ever":
            return kind, child(finite=True)
        case "concat":
            return kind, *(child() for _ in range(draw(st.integers(1, 3))))
        case "blend_epochized":
            parts = draw(st.lists(st.tuples(graphs(depth - 1, True, True), _REPETITIONS), min_size=1, max_size=3))
            return kind, *parts
        case "blend_by_cost":
            children = st.one_of(_VAL, _LEAF, st.tuples(st.just("concat"), _VAL, _LEAF))
            children |= st.tuples(
                st.just("blend"), st.just(False), st.tuples(_LEAF, _WEIGHTS), st.tuples(_VAL, _WEIGHTS)
            )
            parts = draw(st.lists(st.tuples(children, _WEIGHTS), min_size=1, max_size=3))
            if draw(st.booleans()):
                parts = [((kind, "bytes", *parts), 1), *parts[:1]]
            return kind, draw(st.sampled_from(["bytes", "1 + bytes % 7"])), *parts
        case _:
            option = draw(st.sampled_from([False, True, "schedule"]) if kind == "blend" else st.integers(1, 4))
            parts = draw(st.lists(st.tuples(graphs(depth - 1), _WEIGHTS), min_size=1, max_size=3))
            return kind, option, *parts


_REPETITIONS = st.sampled_from([1, 0.7, 2])


@st.composite
def tops(draw: st.DrawFn, depth: int, *, hooks: tuple[str | None, ...] = (None, "number")) -> Graph:
    """A graph with its lanes, the batch size of all hosts (0: none), what cuts it and a batch hook above it."""
    lanes = draw(st.sampled_from([8, 6, 4]))
    global_batch = draw(st.sampled_from([lanes, 2 * lanes, 12, 24, 0]))
    cut = draw(st.sampled_from([None, None, None, "for ever", ("epochize", 3), ("epochs", 0.7), ("limit", 2)]))
    return "top", lanes, global_batch, cut, draw(st.sampled_from(hooks)), draw(graphs(depth))


_BALANCE = "bytes.txt + 0.01 * bytes.txt ** 2"


@st.composite
def balanced_tops(draw: st.DrawFn, depth: int, *, hooks: tuple[str | None, ...] = (None, "number")) -> Graph:
    """The same, over a graph whose order is arithmetic, with equal work for hosts: blends by cost, planned packs."""
    _, lanes, global_batch, cut, hook, graph = draw(tops(0, hooks=hooks))
    finite = graph[0] != "for ever"
    leaf = _LEAF if finite else _LEAF.map(lambda leaf: ("for ever", leaf))
    for _ in range(draw(st.integers(0, depth))):
        if draw(st.booleans()):
            graph = "map", draw(st.sampled_from(sorted(MAPS))), graph
        elif finite:
            graph = "concat", graph, draw(leaf)
        else:
            how = draw(
                st.sampled_from([("blend", False), ("blend_by_cost", "bytes"), ("blend_by_cost", "1 + bytes % 7")])
            )
            graph = *how, (graph, 1), (draw(leaf), draw(_WEIGHTS))
    if draw(st.booleans()):
        graph = "plan", "all", draw(st.sampled_from([700, 2000])), draw(st.sampled_from([4, 15, 60])), False, graph
    return "balanced", lanes, global_batch or 24, cut, hook, graph


@dataclass(frozen=True)
class Builder:
    """Makes the dataset of a graph for one host."""

    make: MakeDataset
    config: WorkerConfig
    lanes: int
    last_batch: Any

    def top(self, graph: Graph) -> SavableDataset:
        """Of a graph with its top."""
        kind, _, global_batch, cut, hook, child = graph
        dataset = self.build(child)
        if global_batch:
            size = global_batch // self.config.world_size
            balance = _BALANCE if kind == "balanced" else None
            dataset = BatchDataset(
                dataset, size, together, last_batch=self.last_batch, balance=balance, failure_tolerance=0
            )
            if hook:
                dataset = MapDataset(dataset, BATCH_HOOKS[hook], failure_tolerance=0)
        return _cut(dataset, cut)

    def build(self, graph: Graph) -> SavableDataset:
        """Of a part of a graph."""
        kind, *options, child = graph
        if kind in ("leaf", "val"):
            return self._leaf(graph)
        if kind in ("concat", "blend", "blend_by_cost", "mix", "blend_epochized"):
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
            return get_val_dataset(**options, where=rest[0] if rest else None)
        order, seed, *where = rest
        options["where"] = where[0] if where else None
        return get_train_dataset(**options, repeat=False, seed=seed, **{"shuffle_buffer_size": None, **ORDERS[order]})

    def _mixture(self, graph: Graph) -> SavableDataset:
        match graph:
            case ("concat", *children):
                return ConcatDataset(*(self.build(child) for child in children))
            case ("blend_epochized", *children):
                return BlendEpochizedDataset(*((self.build(child), number) for child, number in children))
            case ("mix", size, *children):
                parts = [(self.build(child), weight) for child, weight in children]
                return MixBatchDataset(*parts, batch_size=size, batch_mix_fn=together)
            case ("blend_by_cost", unit, *children):
                parts = [(self.build(child), weight) for child, weight in children]
                return BlendDataset(*parts, weight_unit=unit)
            case (_, "schedule", *children):
                weights = [weight for _, weight in children]
                schedule = [(0, weights), (48, [2, *weights[1:]]), (96, [1, *(0 for _ in weights[1:])])]
                return BlendDataset(*(self.build(child) for child, _ in children), schedule=schedule)
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
            case "plan", maker, capacity, window, batches:
                plan = PackingPlan("bytes", capacity, window=window, oversize="alone")
                return PlannedPackingDataset(child, plan, MAKERS[maker], task_encoder=ENCODER, batches=batches)
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
