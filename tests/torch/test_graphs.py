"""Datasets of every shape, with workers beside none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings as hypothesis_settings, strategies as st
from metadatasets import write_v2
from stream_graph_hooks import tell
from stream_graphs import Builder, Graph, tops
from stream_hosts import quiet
from torch_encoders import told

from energon_grain.prepare import prepare_dataset
from energon_grain.testing import write_tars
from energon_grain_torch import (
    ConfigError,
    Cooker,
    EmptyDatasetError,
    FatalSampleError,
    TaskEncoder,
    WorkerConfig,
    get_loader,
    get_train_dataset,
    stateless,
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


def write(root: Path, samples: dict[str, dict[str, Any]]) -> None:
    root.mkdir()
    write_tars(root, [{"__key__": key, **parts} for key, parts in samples.items()], shards=2)
    prepare_dataset(root, split_ratio=(1, 0, 0), crude=True)


@stateless
def cook_text(sample: dict[str, Any]) -> dict[str, Any]:
    return {"__key__": sample["__key__"], "__restore_key__": sample["__restore_key__"], "text": sample["txt"]}


@stateless
def cook_row(sample: dict[str, Any]) -> dict[str, Any]:
    text = f"{sample['txt']} {sample.get('label.txt')}"
    return {"__key__": sample["__key__"], "__restore_key__": sample["__restore_key__"], "text": text}


class Rows(TaskEncoder):
    """Of samples and of joined rows the same."""

    cookers = (Cooker(cook_row, has_subflavors={"kind": "row"}), Cooker(cook_text, has_subflavors={"kind": "text"}))

    def encode_sample(self, sample: dict[str, Any]) -> dict[str, Any]:
        return {**sample, "noise": self.rng.random(2)}


@pytest.fixture(scope="module")
def mixture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A blend of a join, a concatenation and a dataset, cooked."""
    folder = tmp_path_factory.mktemp("mixture")
    write(folder / "left", {f"{i:02d}": {"txt": f"left {i}"} for i in range(20)})
    write(folder / "right", {f"{i:02d}": {"label.txt": f"right {i}"} for i in range(0, 40, 2)})
    write(folder / "more", {f"m{i:02d}": {"txt": f"more {i}"} for i in range(15)})
    text = {"subflavors": {"kind": "text"}}
    join = {"join": [{"path": "left"}, {"path": "right", "nonmatch": "skip"}], "subflavors": {"kind": "row"}}
    blend = [
        {"weight": 2, **join},
        {"weight": 1, "path": "more", **text},
        {"weight": 1, "path": "left", "subset": {"range": ["20%", "80%"]}, **text},
    ]
    return write_v2(folder, train={"blend": blend})


def test_a_blend_with_a_join(mixture: Path) -> None:
    def run(num_workers: int) -> list[Any]:
        dataset = get_train_dataset(
            mixture,
            batch_size=5,
            shuffle_buffer_size=10,
            max_samples_per_sequence=5,
            worker_config=WorkerConfig(0, 1, num_workers),
            task_encoder=Rows(),
        )
        with get_loader(dataset, multiprocessing_context="fork") as loader:
            return [(told(next(loader)), loader.save_state_rank()) for _ in range(20)]

    expected = run(0)
    assert run(2) == expected
    texts = {text for batch, _ in expected for text in batch["text"]}
    assert "left 2 right 2" in texts
    assert {text.split()[0] for text in texts} == {"left", "more"}
