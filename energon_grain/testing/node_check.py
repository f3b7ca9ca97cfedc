# SPDX-License-Identifier: Apache-2.0
"""Checks the contract of dataset nodes: the same stream each time, exact states, any number of workers and hosts."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from itertools import takewhile
from typing import Any

import cloudpickle

from energon_grain.datasets.dataset import SavableDataset
from energon_grain.stream.stream import Stream
from energon_grain.stream.worker_config import WorkerConfig
from energon_grain.testing.hook_check import difference

MakeNode = Callable[[WorkerConfig], SavableDataset[Any]]


def check_node(
    make: MakeNode, *, steps: int = 24, every: int = 1, ahead: int = 8, workers: int = 2, hosts: int = 2
) -> list[Any]:
    """Check that a node produces the same stream each time and continues every saved state exactly.

    Runs the node twice, as a pickled copy, with worker threads, and from the state after each step; states pass through
    JSON with the manifest. If steps are single items, hosts that share the stream must alternate between the items of
    the first pass. This part is skipped if the data decide where a pass ends: with filters, groups or packs, and
    without `repeat`.

    Args:
        make: Makes the node for a `WorkerConfig`; called several times.
        steps: Steps to run, including ends of passes.
        every: Restore the state after each step, or only after every n-th.
        ahead: Steps to compare after each restored state.
        workers: Worker threads of the second run.
        hosts: Hosts that share the stream.

    Returns:
        The steps of the stream; None for the end of a pass.

    Raises:
        AssertionError: A step or a state differs; the message says which.
    """
    config = WorkerConfig(0, 1)
    node = make(config)
    assert isinstance(node, SavableDataset), f"expected a dataset, got {type(node).__name__}"
    assert node.worker_config == config, f"{type(node).__name__}: worker_config is not the one passed to make"
    expected: list[Any] = []
    with Stream.of(node) as stream:
        cursors = [stream.cursor(with_manifest=True)]
        for _ in range(steps):
            expected.append(_step(stream))
            cursors.append(stream.cursor(with_manifest=True))
    assert any(value is not None for value in expected), "there are no steps, so nothing was checked"
    _check_run(make(config), expected, cursors[-1], "made again")
    _check_run(cloudpickle.loads(cloudpickle.dumps(make(config))), expected, cursors[-1], "as a pickled copy")
    _check_run(make(replace(config, num_workers=workers)), expected, cursors[-1], f"with {workers} workers")
    _check_hosts(make, expected, hosts)
    with Stream.of(make(config)) as stream:
        for done in range(0, steps, every):
            until = min(done + ahead, steps)
            stream.restore(json.loads(json.dumps(cursors[done])))
            assert stream.cursor(with_manifest=True) == cursors[done], (
                f"the state after step {done} changes when it is restored"
            )
            _compare([_step(stream) for _ in range(done, until)], expected[done:until], done, "restored")
            assert stream.cursor(with_manifest=True) == cursors[until], (
                f"the state at {until}, restored at {done}, differs"
            )
    return expected


def _check_run(node: SavableDataset[Any], expected: list[Any], last: dict[str, Any], how: str) -> None:
    with Stream.of(node) as stream:
        _compare([_step(stream) for _ in expected], expected, 0, how)
        assert stream.cursor(with_manifest=True) == last, f"{how}: the state after step {len(expected)} differs"


def _check_hosts(make: MakeNode, expected: list[Any], hosts: int) -> None:
    shared = list(takewhile(lambda step: step is not None, expected))
    for host in range(hosts):
        config = WorkerConfig(host, hosts, any_host=lambda flag: flag)
        with Stream.of(make(config)) as stream:
            spec = stream.spec
            ends_by_data = not spec.endless and (spec.program is not None or spec.length(0) != len(shared))
            if spec.batch is not None or ends_by_data:
                return
            mine = shared[host::hosts]
            # A pass ends on all hosts together, so the last items of a host may be missing.
            found = list(takewhile(lambda step: step is not None, (_step(stream) for _ in mine)))
            assert found or len(shared) < 2 * hosts, f"host {host} of {hosts} receives no item"
            _compare(found, mine[: len(found)], 0, f"on host {host} of {hosts}")


def _compare(found: list[Any], expected: list[Any], first: int, how: str) -> None:
    for step, (one, other) in enumerate(zip(found, expected, strict=True), first):
        differs = difference(one, other, "")
        assert differs is None, f"step {step} differs {how}: {differs}"


def _step(stream: Stream) -> Any:
    """Return the next step; None at the end of a pass, after which the next pass starts."""
    try:
        return next(stream)
    except StopIteration:
        iter(stream)
        return None
