"""Planned packs and budgeted batches in both backends: the same ones, in DataLoader's workers too."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from planned_data import CAPACITY, Packing, tokens, told
from stream_hosts import quiet
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

import energon_grain
import energon_grain_torch
from energon_grain import CostBudget, PackingPlan
from energon_grain.loader import BatchMapDataset

__all__ = ["tokens"]
PLAN = PackingPlan("tokens", capacity=CAPACITY, window=100)
BUDGET = CostBudget("tokens", 3 * CAPACITY, window=100)
KINDS: dict[str, dict[str, Any]] = {
    "packs": {"packing": PLAN, "batch_size": 2},
    "budget": {"batch_size": BUDGET},
    "finite": {"packing": PLAN, "batch_size": 2, "repeat": False},
}


@pytest.fixture(autouse=True)
def as_many_workers_as_we_say(monkeypatch: pytest.MonkeyPatch) -> None:
    """`DataLoader` warns where there are fewer cores."""
    monkeypatch.setattr(DataLoader, "check_worker_number_rationality", lambda self: None)


def dataset(library: Any, path: Path, kind: str, rank: int = 0, ranks: int = 1, **options: Any) -> Any:
    given: dict[str, Any] = {
        "shuffle_buffer_size": None,
        "max_samples_per_sequence": None,
        "lanes": 48,
        "task_encoder": Packing({5, 50, 500}),
        "worker_config": library.WorkerConfig(rank, ranks, 0, global_error_handler=quiet),
    }
    return library.get_train_dataset(path, **{**given, **KINDS[kind], **options})


def contents(batch: Any) -> Any:
    return [told(pack) if hasattr(pack, "members") else pack for pack in batch.packs], batch.__restore_key__


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("workers", [0, 2])
def test_workers_of_a_data_loader_make_the_loaders_batches(tokens: Path, kind: str, workers: int) -> None:
    batches = DataLoader(dataset(energon_grain_torch, tokens, kind), batch_size=None, num_workers=workers)
    with energon_grain.get_loader(dataset(energon_grain, tokens, kind)) as loader:
        for _ in range(2 if kind == "finite" else 1):
            most = None if kind == "finite" else 60
            expected = [contents(batch) for batch in islice(loader, most)]
            assert [contents(batch) for batch in islice(batches, most)] == expected


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # torchdata 0.11 with torch 2.13
@pytest.mark.parametrize("kind", ["packs", "budget"])
def test_a_stateful_data_loader_goes_on(tokens: Path, kind: str) -> None:
    loader = StatefulDataLoader(dataset(energon_grain_torch, tokens, kind), batch_size=None, num_workers=2)
    coming = iter(loader)
    list(islice(coming, 21))
    state = loader.state_dict()
    expected = [contents(batch) for batch in islice(coming, 10)]
    other = StatefulDataLoader(dataset(energon_grain_torch, tokens, kind), batch_size=None, num_workers=2)
    other.load_state_dict(state)
    assert [contents(batch) for batch in islice(iter(other), 10)] == expected


@pytest.mark.parametrize("kind", ["packs", "budget"])
def test_each_backend_goes_on_where_the_other_was_saved_on_other_hosts(tokens: Path, kind: str) -> None:
    size = {} if kind == "budget" else {"batch_size": 6}
    with energon_grain.get_loader(dataset(energon_grain, tokens, kind, **size)) as loader:
        batches = [next(loader) for _ in range(12)]
        expected = [pack for batch in batches for pack in contents(batch)[0]]
    libraries = [energon_grain, energon_grain_torch]
    hosts = 3 if kind == "packs" else 4
    state: Any = None
    found: list[Any] = []
    for turn in range(2):
        library = libraries[turn]
        loaders = [library.get_savable_loader(dataset(library, tokens, kind, host, hosts)) for host in range(hosts)]
        for loader in loaders:
            if state is not None:
                loader.restore_state_global(state)
        steps = 4 if kind == "packs" else 1
        for _ in range(steps):
            step = [contents(next(loader))[0] for loader in loaders]
            found += [pack for packs in zip(*step, strict=True) for pack in packs] if kind == "packs" else sum(step, [])
        state = json.loads(json.dumps(energon_grain.merge_cursors([each.save_state_rank() for each in loaders])))
        for loader in loaders:
            loader.close()
        hosts = 2
    assert sorted(map(str, found)) == sorted(map(str, expected[: len(found)]))


def test_batches_by_number(tokens: Path) -> None:
    config = energon_grain.WorkerConfig(0, 1, 0, global_error_handler=quiet)
    validation = energon_grain.get_val_dataset(
        tokens, batch_size=2, packing=PLAN, task_encoder=Packing({5}), worker_config=config
    )
    by_number = BatchMapDataset(validation)
    with energon_grain.get_loader(validation) as loader:
        expected = [contents(batch)[0] for batch in loader]
    assert len(by_number) == len(expected)
    assert [contents(by_number[number])[0] for number in range(len(by_number))] == expected
    endless = BatchMapDataset(dataset(energon_grain, tokens, "packs"))
    with energon_grain.get_loader(dataset(energon_grain, tokens, "packs")) as loader:
        assert [contents(endless[number]) for number in range(9)] == [contents(next(loader)) for _ in range(9)]
    with pytest.raises(energon_grain.ConfigError, match="planned packs"):
        BatchMapDataset(dataset(energon_grain, tokens, "finite"))
