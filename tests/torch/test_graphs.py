"""Datasets of every shape, with workers beside none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, assume, given, settings as hypothesis_settings, strategies as st
from stream_graph_hooks import tell
from stream_graphs import Builder, Graph, tops
from stream_hosts import quiet

from energon_grain_torch import (
    ConfigError,
    EmptyDatasetError,
    FatalSampleError,
    WorkerConfig,
    get_loader,
)

STEPS = 12


@given(graph=tops(2), last_batch=st.sampled_from(["pad", "drop", "keep"]), data=st.data())
@hypothesis_settings(
    max_examples=12,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.filter_too_much],
)
def test_random_graphs(text_dataset: Callable[..., Path], graph: Graph, last_batch: str, data: st.DataObject) -> None:
    def run(num_workers: int, state: Any = None) -> list[Any]:
        config = WorkerConfig(0, 1, num_workers, global_error_handler=quiet)
        dataset = Builder(text_dataset, config, graph[1], last_batch).top(graph)
        found: list[Any] = []
        with get_loader(dataset, multiprocessing_context="fork") as loader:
            loader.restore_state_rank(state)
            while len(found) < (STEPS if state is None else STEPS - restored_at - 1):
                batch = next(loader, None)
                if batch is None:
                    iter(loader)
                told_batch = None if batch is None else (tell(batch), batch.__restore_key__)
                found.append((told_batch, loader.save_state_rank()))
        return found

    try:
        expected = run(0)
    except (ConfigError, EmptyDatasetError, FatalSampleError):
        assume(False)
    assert run(2) == expected
    restored_at = data.draw(st.integers(0, STEPS - 1), "restored at")
    assert run(1, expected[restored_at][1]) == expected[restored_at + 1 :]
