"""Datasets in PyTorch's own loaders, and in torchdata's."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

from energon_grain import BlendDataset, SavableDataset, TaskEncoder
from energon_grain.loader import BatchMapDataset
from energon_grain.testing import make_text_dataset
from energon_grain_torch import ConfigError, StateError, get_loader

Train = Callable[..., SavableDataset]
ENDS: list[dict[str, Any]] = [
    {"virtual_epoch_length": 7},
    {"repeat": False},
    {"repeat": False, "last_batch": "drop"},
    {"repeat": False, "last_batch": "pad"},
    {"repeat": False, "last_batch": "pad", "balance": "bytes.txt"},
]


@pytest.fixture(autouse=True)
def _many_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch warns of more workers than there are cores."""
    monkeypatch.setattr(DataLoader, "check_worker_number_rationality", lambda self: None)


def told(batch: Any) -> Any:
    valid = batch.__valid__
    return batch.__key__, batch.__restore_key__, batch.text, None if valid is None else valid.tolist()


def loading(dataset: Any, workers: int, **options: Any) -> DataLoader[Any]:
    return DataLoader(dataset, batch_size=None, num_workers=workers, **options)


@pytest.mark.parametrize("ends", ENDS, ids=str)
@pytest.mark.parametrize(("workers", "options"), [(0, {}), (2, {}), (3, {"persistent_workers": True})])
def test_any_number_of_workers_makes_the_loader_s_batches(
    train: Train, ends: dict[str, Any], workers: int, options: dict[str, Any]
) -> None:
    for rank, ranks in ((0, 1), (1, 2)) if ends != {"repeat": False} else ((0, 1),):
        dataset = train(rank=rank, world_size=ranks, **ends)
        assert isinstance(dataset, IterableDataset)
        batches = loading(dataset, workers, **options)
        with get_loader(train(rank=rank, world_size=ranks, **ends)) as loader:
            for _ in range(3):
                expected = [told(batch) for batch in loader]
                assert [told(batch) for batch in batches] == expected
                assert len(expected) == len(batches)


def test_workers_of_balanced_ranks_agree_on_stand_ins(train: Train) -> None:
    """Which move nothing: each worker makes its steps as the loader does, although samples are dropped."""
    options = {"broken": frozenset({3, 11, 30}), "balance": "bytes.txt", "virtual_epoch_length": 7}
    for rank in range(2):
        dataset = train(rank=rank, world_size=2, **options)
        with get_loader(train(rank=rank, world_size=2, **options)) as loader:
            for _ in range(3):
                assert [told(batch) for batch in loading(dataset, 2)] == [told(batch) for batch in loader]


@pytest.mark.parametrize("options", [{}, {"persistent_workers": True, "multiprocessing_context": "spawn"}], ids=str)
def test_all_workers_of_an_iteration_begin_the_same_pass(train: Train, options: dict[str, Any]) -> None:
    """The pass behind the last one that anybody began, with as many workers, with others, or with none."""
    with get_loader(train(repeat=False)) as loader:
        passes = [[told(batch) for batch in loader] for _ in range(6)]
    dataset: Any = train(repeat=False)
    two = loading(dataset, 2, **options)
    next(iter(dataset))
    assert [told(batch) for batch in two] == passes[1]
    next(iter(loading(dataset, 1)))
    assert [told(batch) for batch in two] == passes[3]
    assert [told(batch) for batch in loading(dataset, 3)] == passes[4]
    assert [told(batch) for batch in copy.deepcopy(dataset)] == [told(batch) for batch in two] == passes[5]
    dataset.set_epoch(1, step=2)
    assert [told(batch) for batch in two] == passes[1][2:]
    with pytest.raises(ConfigError, match=r"set_epoch\(-1, step=0\): expected numbers of 0 or more"):
        dataset.set_epoch(-1)


def test_an_endless_stream_begins_again_and_says_so(train: Train, caplog: pytest.LogCaptureFixture) -> None:
    batches = loading(train(), 0)
    first = next(iter(batches))
    assert caplog.text == ""
    assert told(next(iter(batches))) == told(first)
    assert "set virtual_epoch_length to divide it" in caplog.text


@pytest.mark.parametrize("workers", [0, 2])
def test_dropped_samples_are_exact_in_each_worker(train: Train, workers: int) -> None:
    dataset = train(n=60, broken=frozenset({3, 11, 40}), repeat=False)
    for _ in range(2):
        keys = [key for batch in loading(dataset, workers) for key in batch.__key__]
        assert sorted(keys) == [f"{i:06d}" for i in range(60) if i not in (3, 11, 40)]


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_a_plain_loader_goes_on_at_a_step(train: Train, workers: int) -> None:
    with get_loader(train(virtual_epoch_length=7)) as loader:
        passes = [[told(batch) for batch in loader] for _ in range(3)]
    dataset: Any = train(virtual_epoch_length=7)
    dataset.set_epoch(1, step=3)
    batches = loading(dataset, workers)
    assert [told(batch) for batch in batches] == passes[1][3:]
    assert [told(batch) for batch in batches] == passes[2]


class Packer(TaskEncoder):
    def select_samples_to_pack(self, samples: list[Any]) -> list[list[Any]]:
        return [samples[:2], samples[2:]]

    def pack_selected_samples(self, samples: list[Any]) -> Any:
        return {"__key__": [sample.__key__ for sample in samples]}

    def batch(self, samples: list[Any]) -> Any:
        return [sample["__key__"] for sample in samples]

    encode_batch = staticmethod(lambda batch: batch)


PACKS: dict[str, Any] = {"task_encoder": Packer(), "packing_buffer_size": 4, "batch_size": 3}


def begin_late(worker: int) -> None:
    """Let the first worker be asked for the next pass before the second one begins this one."""
    time.sleep(0.5 * worker)


@pytest.mark.parametrize(("workers", "init"), [(0, None), (2, None), (2, begin_late)])
def test_packs_go_on_in_a_pass_that_was_left(train: Train, workers: int, init: Any) -> None:
    options: dict[str, Any] = {}
    if workers:
        options = {"persistent_workers": True, "prefetch_factor": 1, "worker_init_fn": init}
    whole = loading(train(virtual_epoch_length=8, **PACKS), workers, **options)
    passes = [list(whole) for _ in range(2)]
    batches = loading(train(virtual_epoch_length=8, **PACKS), workers, **options)
    assert next(iter(batches)) == passes[0][0]
    rest = list(batches)
    assert rest
    assert len(rest) < 8
    assert all(batch in passes[0] for batch in rest)
    assert list(batches) == passes[1]


def test_workers_own_lanes_where_lanes_have_a_program(train: Train) -> None:
    """Two workers make the packs of one process, each of them once, in other batches."""

    def packs(workers: int, steps: int, **options: Any) -> list[Any]:
        batches = loading(train(virtual_epoch_length=steps, **PACKS), workers, **options)
        return [[tuple(pack) for batch in batches for pack in batch] for _ in range(2)]

    alone, together = packs(0, 16), packs(2, 16, persistent_workers=True)
    assert [sorted(each) for each in together] == [sorted(each) for each in alone]
    with pytest.raises(ConfigError, match=r"where pass 1 starts.*persistent_workers=True"):
        packs(2, 4)
    with pytest.raises(ConfigError, match=r"num_workers=2.*repeat=True, or get_savable_loader"):
        list(loading(train(repeat=False, **PACKS), 2))
    with pytest.raises(ConfigError, match=r"num_workers=2: .* but there are 3 lanes: .* a multiple of 2"):
        list(loading(train(lanes=3, **PACKS), 2))
    assert len(list(loading(train(repeat=False, **PACKS), 1))) == len(list(loading(train(repeat=False, **PACKS), 0)))
    dataset: Any = train(**PACKS)
    dataset.set_epoch(0, step=5)
    with pytest.raises(ConfigError, match="depends on data: use StatefulDataLoader"):
        next(iter(dataset))


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # torchdata 0.11 with torch 2.13
@pytest.mark.parametrize("kind", [{"broken": frozenset({3, 11})}, PACKS], ids=["drops", "packs"])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_stateful_data_loader_goes_on_exactly(train: Train, kind: dict[str, Any], workers: int) -> None:
    stateful = pytest.importorskip("torchdata.stateful_dataloader", reason="torchdata is not installed")

    def fresh() -> Any:
        dataset = train(virtual_epoch_length=9, **kind)
        options = {"persistent_workers": True} if workers else {}
        return stateful.StatefulDataLoader(dataset, batch_size=None, num_workers=workers, **options)

    def names(batch: Any) -> Any:
        return batch.__key__ if hasattr(batch, "__key__") else batch

    loader = fresh()
    whole = [[names(batch) for batch in loader] for _ in range(3)]
    loader = fresh()
    list(loader)
    batches = iter(loader)
    for _ in range(5):
        next(batches)
    state = json.loads(json.dumps(loader.state_dict()))
    loader = fresh()
    loader.load_state_dict(state)
    assert [names(batch) for batch in loader] == whole[1][5:]
    assert [names(batch) for batch in loader] == whole[2]


def test_states_of_workers_are_checked(train: Train) -> None:
    batches: Any = iter(train())
    next(batches)
    state = batches.state_dict()
    assert state == json.loads(json.dumps(state))
    with pytest.raises(StateError, match="not a state of a DataLoader's worker"):
        batches.load_state_dict({"energon_grain": "{"})
    inner = json.loads(state["energon_grain"])
    with pytest.raises(StateError, match="one of 3 workers, but there are 1: load it with num_workers=3"):
        batches.load_state_dict({"energon_grain": json.dumps({**inner, "workers": 3})})
    for size in (3, 2):
        other: Any = iter(train(batch_size=size))
        with pytest.raises(StateError, match="batches of another size"):
            other.load_state_dict(state)
    expected = told(next(batches))
    again: Any = iter(train())
    again.load_state_dict(state)
    assert told(next(again)) == expected


def test_samples_are_collated_and_batches_are_not(train: Train) -> None:
    batch = next(iter(DataLoader(train(batch_size=None), batch_size=3)))
    assert len(batch.__key__) == len(batch.text) == 3


class Dictionaries(TaskEncoder):
    """Whose batches are plain dictionaries of tensors, as models take them."""

    def encode_batch(self, batch: Any) -> Any:
        return {"x": torch.ones(len(batch.text), 4)}


def as_they_are(elements: list[Any]) -> list[Any]:
    return elements


@pytest.mark.parametrize(
    "options",
    [{}, {"batch_size": 8}, {"batch_size": 8, "num_workers": 1}, {"batch_size": 8, "collate_fn": as_they_are}],
    ids=["one", "batch_size", "num_workers", "collate_fn"],
)
def test_batches_of_batches_are_refused(train: Train, options: dict[str, Any]) -> None:
    for encoder in (None, Dictionaries()):
        with pytest.raises(ConfigError, match=r"DataLoader\(…, batch_size=None\)"):
            next(iter(DataLoader(train(task_encoder=encoder), **options)))


def test_batches_by_number_are_not_batched_again(train: Train) -> None:
    batches = BatchMapDataset(train(repeat=False, task_encoder=Dictionaries()))
    with pytest.raises(ConfigError, match=r"DataLoader\(…, batch_size=None\)"):
        next(iter(DataLoader(batches, batch_size=2)))
    assert next(iter(DataLoader(batches, batch_size=None)))["x"].shape[1] == 4


HUGGING_FACE = """
import sys
import torch
from energon_grain_torch import ConfigError, TaskEncoder, get_train_dataset
from transformers import Trainer, TrainingArguments

class Dictionaries(TaskEncoder):
    def encode_batch(self, batch):
        return {"x": torch.ones(len(batch.text), 4)}

options = {"batch_size": 4, "shuffle_buffer_size": None, "max_samples_per_sequence": None}
dataset = get_train_dataset(sys.argv[1], task_encoder=Dictionaries(), **options)
arguments = TrainingArguments("out", max_steps=1, report_to=[], use_cpu=True)
try:
    Trainer(torch.nn.Linear(4, 1), arguments, train_dataset=dataset).train()
except ConfigError as error:
    assert "EnergonTrainer of energon_grain_torch.trainers.hf" in str(error)
    print("refused")
"""


def test_hugging_face_s_trainer_is_refused_before_the_model_runs(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    make_text_dataset(tmp_path / "texts", n=20)
    command = [sys.executable, "-c", HUGGING_FACE, "texts"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout.splitlines()[-1:] == ["refused"], done.stderr


def test_a_dataset_is_still_one_of_ours(train: Train) -> None:
    dataset = train(repeat=False)
    again = copy.deepcopy(dataset)
    assert [batch.__key__ for batch in again] == [batch.__key__ for batch in dataset]
    blend = BlendDataset((train(), 1), (train(), 3))
    with get_loader(blend) as loader:
        assert len(next(loader).__key__) == 4


def test_batches_move(train: Train) -> None:
    batch = next(iter(train()))
    assert batch.to("cpu", non_blocking=True).__key__ == batch.__key__
    batch.text = torch.ones(2)
    assert batch.to(torch.float64).text.dtype == torch.float64
