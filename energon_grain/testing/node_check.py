"""Whether a node keeps the contract of datasets: the same stream each time, exact states, any number of workers."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import cloudpickle

from energon_grain.datasets.dataset import SavableDataset
from energon_grain.stream.stream import Stream
from energon_grain.stream.worker_config import WorkerConfig
from energon_grain.testing.hook_check import difference

MakeNode = Callable[[WorkerConfig], SavableDataset[Any]]


def check_node(make: MakeNode, *, steps: int = 24, every: int = 1, ahead: int = 8, workers: int = 2) -> list[Any]:
    """Check that a node gives the same stream each time and continues every saved state exactly.

    Runs the node twice, as a pickled copy, with worker threads, and from the state after each step, each through JSON
    and with the manifest.

    Args:
        make: Makes the node for a `WorkerConfig`; called several times.
        steps: Steps to run, ends of passes included.
        every: Restore the state after each step, or only after every n-th.
        ahead: Steps to compare after each restored state.
        workers: Worker threads of the second run.

    Returns:
        The steps of the stream; None for the end of a pass.

    Raises:
        AssertionError: A step or a state differs; says which.
    """
    config = WorkerConfig(0, 1)
    node = make(config)
    assert isinstance(node, SavableDataset), f"expected a dataset, got {type(node).__name__}"
    assert node.worker_config == config, f"{type(node).__name__}: has another worker_config than it was made for"
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
    with Stream.of(make(config)) as stream:
        for done in range(0, steps, every):
            until = min(done + ahead, steps)
            stream.restore(json.loads(json.dumps(cursors[done])))
            assert stream.cursor(with_manifest=True) == cursors[done], (
                f"the state after step {done} changes by restoring"
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


def _compare(found: list[Any], expected: list[Any], first: int, how: str) -> None:
    for step, (one, other) in enumerate(zip(found, expected, strict=True), first):
        differs = difference(one, other, "")
        assert differs is None, f"step {step} differs {how}: {differs}"


def _step(stream: Stream) -> Any:
    """The next step; None at the end of a pass, after which the next one begins."""
    try:
        return next(stream)
    except StopIteration:
        iter(stream)
        return None
