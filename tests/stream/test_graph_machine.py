"""Random dataset graphs, in any interleaving of next, save, restore, rescale, skip and restore_sample.

Each run must equal the uninterrupted stream of one host.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, assume, given, settings as hypothesis_settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test
from parquet_files import write_parquet
from stream_fleets import Fleet, Reference
from stream_graph_hooks import keys_of, tell
from stream_graphs import Graph, balanced_tops, tops
from stream_hosts import MakeDataset
from table_forms import write_arrow, write_mds

from energon_grain import ConfigError, EmptyDatasetError, FatalSampleError, StateError
from energon_grain.testing import make_text_dataset

pytestmark = pytest.mark.slow

_REFUSED = (
    "an endless dataset cannot be repeated",
    "of a dataset that filters, groups or packs",
    "whose passes differ in length",
    "cannot contain a blend by repetitions",
    "a pass has no items",
    "a pass ended without a single item",
    "without one item",
    "has no complete batch",
    "cut one stream",
    "an epoch could be empty",
    "of the pass was dropped",
    "so its length is unknown in advance",
    "last_batch='pad' fills the last batch",
    "samples of a global batch were dropped",
    "must be known before they are read",
)
"""What a random graph may be refused for."""
_DROPS = ("skips", "fails", "content", "random", "or not", True)


@contextmanager
def unless_refused() -> Iterator[None]:
    """Leaves out what a random graph may rightly be refused for."""
    try:
        yield
    except (ConfigError, EmptyDatasetError, FatalSampleError) as error:
        assume(not any(text in str(error) for text in _REFUSED))
        raise


class Machine(RuleBasedStateMachine):
    """A fleet of hosts beside the reference."""

    make: MakeDataset
    depth = 3
    hosts = (1, 2, 3, 4, 6, 8)
    hooks: tuple[str | None, ...] = (None, "number")
    last_batches = ("pad",)
    tops = staticmethod(tops)

    def __init__(self) -> None:
        super().__init__()
        self.reference: Reference | None = None
        self.fleet: Fleet | None = None
        self.saved: list[str] = []
        self.batches: list[Any] = []
        self.delivered: dict[int, list[str]] = {}
        self.foretold: dict[int, list[str]] = {}

    def teardown(self) -> None:
        for each in (self.reference, self.fleet):
            if each is not None:
                each.close()

    @initialize(data=st.data())
    def open(self, data: st.DataObject) -> None:
        self.graph = data.draw(self.tops(self.depth, hooks=self.hooks))
        self.last_batch = data.draw(st.sampled_from(self.last_batches))
        with unless_refused():
            self.reference = Reference(self.graph, self.make, self.last_batch)
            self.reference.reach(0 if self.reference.endless else 1, 48 if self.reference.endless else 0)
        self.fitting = [hosts for hosts in self.hosts if hosts == 1 or self._fits(hosts)]
        self.restart(data.draw(st.sampled_from(self.fitting)))

    def _fits(self, hosts: int) -> bool:
        kind, lanes, global_batch, *_ = self.graph
        if (lanes % hosts and kind != "balanced") or global_batch % hosts:
            return False
        spec = self.reference.fleet.streams[0].spec
        return bool(global_batch) or (spec.endless and spec.steps is None and spec.limit is None)

    def restart(self, hosts: int) -> None:
        if self.fleet is not None:
            self.fleet.close()
        self.fleet = Fleet(self.graph, self.make, hosts, self.last_batch)
        self.batches = []

    @rule(steps=st.integers(1, 4))
    def next(self, steps: int) -> None:
        for _ in range(steps):
            with unless_refused():
                self.one()

    def one(self) -> None:
        fleet, reference = self.fleet, self.reference
        before = fleet.place
        batches = fleet.step()
        if batches is None:
            assert reference.ends_at(before)
            fleet.begin()
            return
        after = fleet.place
        assert after[0] == before[0]
        self.batches = batches
        step = fleet.streams[0]._progress.step - 1
        self.delivered[step] = sorted(key for batch in batches for key in keys_of(batch, fleet.batched))
        assert self.foretold.get(step, self.delivered[step]) == self.delivered[step]
        got = [item for batch in batches for item in fleet.items_of(batch)]
        expected = reference.expected(before, after[1])
        if fleet.hosts == 1:
            assert got == expected
            if fleet.unit == reference.unit:
                assert tell(batches[0]) == reference.batches[reference.key((after[0], after[1] - fleet.unit))]
        else:
            assert sorted(map(repr, got)) == sorted(map(repr, expected))

    @rule(steps=st.integers(1, 4))
    def look_ahead(self, steps: int) -> None:
        before = self.fleet.save()
        with unless_refused():
            self.fleet.look_ahead(steps)
        assert self.fleet.save() == before

    @rule()
    def save(self) -> None:
        self.saved.append(self.fleet.save())
        held = self.reference.held.get(self.reference.key(self.fleet.place))
        if held is not None:
            assert json.loads(self.saved[-1])["held"] == held

    @precondition(lambda self: self.saved)
    @rule(data=st.data())
    def restore(self, data: st.DataObject) -> None:
        saved = data.draw(st.sampled_from(self.saved))
        self.restart(data.draw(st.sampled_from(self.fitting)))
        self.fleet.restore(saved)
        again, before = json.loads(self.fleet.save()), json.loads(saved)
        for name in ("step", "pass", "pass_step", "item", "ended", "drops", "held", "skipped", "fingerprint"):
            assert again[name] == before[name]
        if before["ended"]:
            self.fleet.begin()

    @rule(data=st.data())
    def rescale(self, data: st.DataObject) -> None:
        saved = self.fleet.save()
        self.restart(data.draw(st.sampled_from(self.fitting)))
        self.fleet.restore(saved)

    @precondition(lambda self: self.fleet is not None and self.may_skip())
    @rule(steps=st.integers(1, 3))
    def skip(self, steps: int) -> None:
        pass_number, item = self.fleet.place
        stop = item + steps * self.fleet.unit
        with unless_refused():
            items = self.reference.expected((pass_number, item), stop)
        over = any(end[0] == pass_number and item <= end[1] < stop for end in self.reference.ends)
        if not over and len(items) == stop - item:
            self.fleet.skip(steps)
            assert self.fleet.place >= (pass_number, stop)  # items of lanes that ended are passed over

    def may_skip(self) -> bool:
        # Over positions that would have been dropped, a skip is not the same as delivering.
        spec = self.fleet.streams[0].spec
        if self.graph[0] == "balanced" or spec.program is not None:
            return True
        return not any(name in _DROPS for name in _flat(self.graph))

    @precondition(lambda self: self.delivered)
    @rule(data=st.data())
    def which(self, data: st.DataObject) -> None:
        stream = data.draw(st.sampled_from(self.fleet.streams))
        step = data.draw(st.one_of(st.sampled_from(sorted(self.delivered)), st.integers(0, 6)))
        if "iterate" in _flat(self.graph):
            with pytest.raises(StateError, match="IterMapDataset"):
                stream.which(step)
            return
        with unless_refused():
            records = stream.which(step)
        keys = sorted(record.key for record in records)
        # A host does not know what the others dropped, nor, with equal work, what it dropped before a restore.
        alone = self.fleet.hosts == 1 and self.graph[0] != "balanced"
        known = records.read or alone or not any(name in _DROPS for name in _flat(self.graph))
        if "halves" in _flat(self.graph):  # a call makes several items of all that it is given
            assert set(keys) >= set(self.delivered.get(step, ()))
        elif "plan" in _flat(self.graph):  # of what a plan names some may be dropped
            assert not known or set(keys) >= set(self.delivered.get(step, ()))
        elif step in self.delivered:
            assert not known or keys == self.delivered[step]
        elif records.read:
            self.foretold[step] = keys

    @precondition(lambda self: self.batches)
    @rule(data=st.data())
    def restore_sample(self, data: st.DataObject) -> None:
        batch = data.draw(st.sampled_from(self.batches))
        stream = data.draw(st.sampled_from(self.fleet.streams))
        again = stream.restore_sample(json.loads(json.dumps(batch.__restore_key__)))
        assert tell(again) == tell(batch)
        assert again.__restore_key__ == batch.__restore_key__


def _flat(graph: Any) -> list[Any]:
    return [name for part in graph for name in _flat(part)] if isinstance(graph, tuple) else [graph]


def run(machine: type[Machine], make: MakeDataset, *, max_examples: int, **options: Any) -> None:
    """Run a state machine on half of the examples in the gate, on twice as many at night."""
    examples = max(4, max_examples * hypothesis_settings.default.max_examples // 100)

    class Bound(machine):  # type: ignore[misc, valid-type]
        pass

    Bound.make = staticmethod(make)
    run_state_machine_as_test(
        Bound,
        settings=hypothesis_settings(
            deadline=None, suppress_health_check=list(HealthCheck), max_examples=examples, **options
        ),
    )


class OneHost(Machine):
    """What only one host may do: short batches, and hooks that drop batches."""

    hosts = (1,)
    hooks = (None, "number", "skips")
    last_batches = ("keep", "drop", "pad")


class Balanced(Machine):
    """Equal work for hosts, of any number."""

    tops = staticmethod(balanced_tops)
    hosts = (1, 2, 3, 4, 5, 6, 8, 12)


class BalancedOnOneHost(OneHost):
    """The same, alone."""

    tops = staticmethod(balanced_tops)


def test_any_balanced_graph_in_any_interleaving(text_dataset: MakeDataset) -> None:
    run(Balanced, text_dataset, max_examples=25, stateful_step_count=12, derandomize=True)


def test_any_balanced_graph_on_one_host(text_dataset: MakeDataset) -> None:
    run(BalancedOnOneHost, text_dataset, max_examples=10, stateful_step_count=12, derandomize=True)


def test_any_graph_in_any_interleaving(text_dataset: MakeDataset) -> None:
    run(Machine, text_dataset, max_examples=60, stateful_step_count=12, derandomize=True)


def test_any_graph_over_bare_tars(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Folders and patterns of tars that nobody prepared."""

    @cache
    def tars(n: int, broken: frozenset[int]) -> str:
        root = make_text_dataset(tmp_path_factory.mktemp("bare"), n=n, shards=min(n, 3), broken=broken, prepared=False)
        return str(root) if n % 2 else f"{root}/shard_{{000..{min(n, 3) - 1:03d}}}.tar"

    def make(n: int, broken: Any = ()) -> Any:
        return tars(n, frozenset(broken))

    run(Machine, make, max_examples=8, phases=[Phase.generate], stateful_step_count=12, derandomize=True)


def write_arrow_folder(folder: Path, rows: dict[str, list[Any]]) -> None:
    """Batches of uneven sizes in two files, of one compressed."""
    half = len(rows["txt"]) // 2
    for number, piece in enumerate((slice(half), slice(half, None))):
        columns = {name: values[piece] for name, values in rows.items()}
        if columns["txt"]:
            write_arrow(folder / f"{number}.arrow", columns, rows=4, compression="zstd" if number else None)


@pytest.mark.parametrize(
    ("examples", "write"),
    [
        (25, lambda folder, rows: write_parquet(folder, rows, files=2, row_group_size=4)),
        (10, write_arrow_folder),
        (10, write_mds),
    ],
    ids=["parquet", "arrow", "mds"],
)
def test_any_graph_over_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, examples: int, write: Callable[[Path, Any], Any]
) -> None:
    """Row groups of uneven sizes, in two files."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("energon_grain.kinds.tables.mds_files._GROUP_BYTES", 100)

    def make(n: int, broken: Iterable[int] = ()) -> Path:
        folder = tmp_path / f"{n}-{sorted(broken)}"
        if not folder.exists():
            rows = {
                "__key__": [f"{number:06d}" for number in range(n)],
                "txt": [b"\xff" if number in broken else f"text {number}".encode() for number in range(n)],
                "bytes.txt": [100 + number % 20 for number in range(n)],  # which tars know by themselves
            }
            write(folder, rows)
        return folder

    run(Machine, make, max_examples=examples, stateful_step_count=12, derandomize=True)


def test_any_graph_on_one_host(text_dataset: MakeDataset) -> None:
    run(OneHost, text_dataset, max_examples=30, stateful_step_count=12, derandomize=True)


def payload(graph: Graph, make: MakeDataset, steps: int, **workers: Any) -> list[tuple[bytes, str]]:
    """What the first steps deliver, over the ends of passes (which deliver nothing), and the states behind them."""
    told: list[tuple[bytes, str]] = []
    with closing(Fleet(graph, make, **workers)) as fleet:
        for _ in range(steps):
            batches = fleet.step()
            if batches is None:
                fleet.begin()
            told.append((b"" if batches is None else as_bytes(batches[0]), fleet.save()))
    return told


def as_bytes(batch: Any) -> bytes:
    return repr((tell(batch), batch.__restore_key__)).encode()


@hypothesis_settings(
    max_examples=10, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck), database=None
)
@given(graph=tops(3))
def test_workers_and_the_plain_iterator_change_nothing(text_dataset: MakeDataset, graph: Graph) -> None:
    with unless_refused():
        expected = payload(graph, text_dataset, 8)
    assert payload(graph, text_dataset, 8, workers=1) == expected
    assert payload(graph, text_dataset, 8, workers=2) == expected
    with closing(Fleet(graph, text_dataset)) as fleet:
        batches = [as_bytes(batch) for batch, _ in zip(fleet.datasets[0], range(8), strict=False)]  # of one pass
    assert batches == list(takewhile(bool, (batch for batch, _ in expected)))


_FEWER = ("leaf", 48, True, "full", 0, "bytes.txt % 3 != 1")
_PACKED = ("pack", "some", "halves", "number", 9, ("filter", "random", ("for ever", _FEWER)))
_GROUPED = ("group", None, False, ("map", "globals", ("generate", "several", ("val", 33, False, "bytes.txt % 3 != 1"))))
_ITERATED = ("iterate", "sum", 5, ("map", "fails", ("for ever", ("leaf", 20, False, "blocks", 1))))
_EVERYTHING = ("top", 8, 16, None, "number", ("blend", False, (_PACKED, 3), (_GROUPED, 1), (_ITERATED, 0.25)))
_FINITE = ("top", 8, 16, None, "number", ("concat", _GROUPED, ("repeat", 2, _GROUPED), ("limit", 30, _PACKED)))


@pytest.mark.parametrize("graph", [_EVERYTHING, _FINITE], ids=["endless", "finite"])
def test_worker_processes_change_nothing(text_dataset: MakeDataset, graph: Graph) -> None:
    expected = payload(graph, text_dataset, 12)
    assert payload(graph, text_dataset, 12, workers=2, worker_type="process") == expected


_SCRIPT = """
import json, pathlib, sys
from parquet_files import write_parquet
from stream_fleets import Fleet
from stream_graph_hooks import tell

given = json.loads(sys.stdin.read())
graph = eval(given["graph"])
fleet = Fleet(graph, lambda n, broken=(): pathlib.Path(given["paths"][repr((n, sorted(broken)))]))
fleet.restore(given["saved"])
print(json.dumps([repr(tell(fleet.step()[0])) for _ in range(given["steps"])]))
fleet.close()
"""


@pytest.mark.parametrize("graph", [_EVERYTHING, _FINITE], ids=["endless", "finite"])
def test_a_new_process_goes_on(text_dataset: MakeDataset, graph: Graph) -> None:
    paths: dict[str, str] = {}

    def make(n: int, broken: Any = ()) -> Any:
        path = text_dataset(n, broken=broken)
        paths[repr((n, sorted(broken)))] = str(path)
        return path

    steps = 4
    with closing(Fleet(graph, make, 4)) as fleet:
        for _ in range(3):
            fleet.step()
        saved = fleet.save()
    with closing(Reference(graph, make)) as reference:
        expected = [repr(reference.batch_at((0, (3 + step) * 16))) for step in range(steps)]
    given = {"graph": repr(graph), "paths": paths, "saved": saved, "steps": steps}
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT],
        input=json.dumps(given),
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == expected
