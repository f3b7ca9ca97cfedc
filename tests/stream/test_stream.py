"""The stream on any number of hosts, in any interleaving of save, restore and rescale, against an oracle."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings as hypothesis_settings, strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from stream_hosts import MakeDataset, Oracle, global_batch, open_hosts, orders

from energon_grain import HostsError, merge_cursors


@hypothesis_settings(max_examples=25)
@given(
    n=st.sampled_from([7, 25, 53, 97]),
    broken=st.sets(st.integers(0, 6), max_size=3),
    hosts=st.sampled_from([1, 2, 3, 4, 8]),
    batch_size=st.integers(1, 7),
    seed=st.integers(0, 3),
    order=orders,
)
def test_global_batches_are_the_same_sets_on_any_number_of_hosts(
    text_dataset: MakeDataset, n: int, broken: set[int], hosts: int, batch_size: int, seed: int, order: dict[str, Any]
) -> None:
    path = text_dataset(n, broken=broken)
    streams = open_hosts(path, hosts, batch_size, seed=seed, **order)
    steps = 8
    size = hosts * batch_size
    items = Oracle(streams[0], frozenset(broken)).items(steps * size)
    for step in range(steps):
        assert global_batch(streams) == sorted(items[step * size : (step + 1) * size])


@pytest.mark.parametrize("hosts", [5, 7])
def test_without_drops_any_number_of_hosts_reads_the_same(text_dataset: MakeDataset, hosts: int) -> None:
    path = text_dataset(53)
    streams = open_hosts(path, hosts, 2)
    items = Oracle(streams[0], frozenset()).items(10 * hosts * 2)
    for step in range(10):
        assert global_batch(streams) == sorted(items[step * hosts * 2 : (step + 1) * hosts * 2])


def test_a_drop_on_hosts_that_do_not_divide_the_lanes_is_refused(text_dataset: MakeDataset) -> None:
    streams = open_hosts(text_dataset(53, broken={3}), 5, 2)
    with pytest.raises(HostsError, match=r"5 hosts do not divide the 24 lanes.*\[1, 2, 3, 4, 6, 8, 12, 24\]"):
        for _ in range(30):
            global_batch(streams)


@hypothesis_settings(max_examples=25)
@given(n=st.sampled_from([7, 24, 53, 97]), seed=st.integers(0, 5), batch_size=st.integers(1, 9), order=orders)
def test_each_pass_is_a_permutation(
    text_dataset: MakeDataset, n: int, seed: int, batch_size: int, order: dict[str, Any]
) -> None:
    if order.get("shuffle_over_epochs_multiplier", 1) not in (1, None):
        order = {"max_samples_per_sequence": 4}
    [stream] = open_hosts(text_dataset(n), 1, batch_size, repeat=False, seed=seed, **order)
    passes = []
    for _ in range(3):
        assert len(stream) == -(-n // batch_size)
        batches = [list(batch.__key__) for batch in stream]
        assert len(batches) == len(stream)
        assert all(len(batch) == batch_size for batch in batches[:-1])
        passes.append(sum(batches, []))
        assert sorted(passes[-1]) == [f"{i:06d}" for i in range(n)]
    if order.get("shuffle_over_epochs_multiplier", 1) is not None and n > 20:
        assert len({tuple(order) for order in passes}) == 3


class Rescaling(RuleBasedStateMachine):
    """next, save, restore and rescale in any order give the uninterrupted stream."""

    make: MakeDataset
    BROKEN = frozenset({2, 11, 30})

    @initialize(order=orders, seed=st.integers(0, 2))
    def start(self, order: dict[str, Any], seed: int) -> None:
        self.options = {"seed": seed, **order}
        self.path = type(self).make(53, broken=self.BROKEN)
        self.streams = open_hosts(self.path, 2, 3, **self.options)
        self.items = Oracle(self.streams[0], self.BROKEN).items(700)
        self.at = 0
        self.saved: list[tuple[int, dict[str, Any]]] = []

    @property
    def size(self) -> int:
        return sum(stream.plan.batch_size for stream in self.streams)

    @precondition(lambda self: self.at < 600)
    @rule()
    def step(self) -> None:
        size = self.size
        assert global_batch(self.streams) == sorted(self.items[self.at : self.at + size])
        self.at += size

    @rule()
    def save(self) -> None:
        cursor = merge_cursors([stream.cursor(with_manifest=True) for stream in self.streams])
        self.saved.append((self.at, json.loads(json.dumps(cursor))))

    @precondition(lambda self: self.saved)
    @rule(
        data=st.data(),
        hosts=st.sampled_from([1, 2, 3, 4, 8]),
        batch_size=st.integers(1, 4),
        workers=st.sampled_from([0, 0, 1, 2]),
    )
    def restore(self, data: st.DataObject, hosts: int, batch_size: int, workers: int) -> None:
        for stream in self.streams:
            stream.close()
        self.at, cursor = data.draw(st.sampled_from(self.saved))
        self.streams = open_hosts(self.path, hosts, batch_size, **self.options)
        for stream in self.streams:
            stream._workers = workers
            stream.restore(cursor)
        again = merge_cursors([stream.cursor(with_manifest=True) for stream in self.streams])
        for changed in ("history", "check"):
            assert again.pop(changed)
        assert again == {name: value for name, value in cursor.items() if name in again}

    @invariant()
    def position_is_told(self) -> None:
        if hasattr(self, "streams"):
            assert all(stream.cursor()["item"] == self.at for stream in self.streams)

    def teardown(self) -> None:
        for stream in getattr(self, "streams", []):
            stream.close()


def test_any_interleaving_of_save_restore_and_rescale(text_dataset: MakeDataset) -> None:
    Rescaling.make = staticmethod(text_dataset)
    run_state_machine_as_test(Rescaling, settings=hypothesis_settings(max_examples=15, stateful_step_count=25))
