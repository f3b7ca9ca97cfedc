"""The files of `examples` that other frameworks call, called as those call them; and a program on the Hub's data.

The frameworks are not installed: what the files import of them stands here, as far as it matters, as those have it.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import json
import sys
import types
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import grain
import jax
import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from hub_server import running_hub
from orbax.checkpoint import v1 as ocp
from torch.distributed.checkpoint.stateful import Stateful

from energon_grain import DefaultTaskEncoder

MakeDataset = Callable[..., Path]
TRAINERS = Path(__file__).parents[2] / "examples" / "trainers"


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """`example(name, **modules)`: a file of the folder, imported with stand-ins for modules by their dotted names."""

    def load(name: str, modules: dict[str, dict[str, Any]] | None = None) -> Any:
        for dotted, content in (modules or {}).items():
            parts = dotted.split(".")
            for depth in range(1, len(parts)):
                parent = ".".join(parts[:depth])
                if parent not in sys.modules:
                    monkeypatch.setitem(sys.modules, parent, types.ModuleType(parent))
            module = types.ModuleType(dotted)
            module.__dict__.update(content)
            monkeypatch.setitem(sys.modules, dotted, module)
        monkeypatch.syspath_prepend(str(TRAINERS))
        monkeypatch.delitem(sys.modules, name, raising=False)
        return importlib.import_module(name)

    return load


class Configurable:
    """As torchtitan's: a `Config` knows whom it builds."""

    @dataclass(kw_only=True, slots=True)
    class Config:
        _owner: ClassVar[type | None] = None

        def build(self, **runtime: Any) -> Any:
            owner: Any = type(self)._owner
            return owner(config=replace(self), **runtime)

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        if "Config" in cls.__dict__:
            cls.Config._owner = cls


class BaseDataLoader(Stateful, ABC, Configurable):
    @dataclass(kw_only=True, slots=True)
    class Config(Configurable.Config):
        pass

    @abstractmethod
    def __iter__(self) -> Iterator[Any]: ...

    def close(self) -> None:
        pass


def torchtitan(loaders: str = "torchtitan.components.data.loader") -> dict[str, dict[str, Any]]:
    return {loaders: {"BaseDataLoader": BaseDataLoader}, "torchtitan.config": {"Configurable": Configurable}}


class Tokenizer:
    """As torchtitan's."""

    def encode(self, text: str, add_bos: bool, add_eos: bool) -> list[int]:
        return [1] * add_bos + [ord(letter) for letter in text] + [2] * add_eos


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled, unavailable or uninitialized")
def test_torchtitan_s_loader(example: Any, text_dataset: MakeDataset, tmp_path: Path) -> None:
    titan = example("torchtitan_loader", torchtitan())
    config = titan.EnergonDataLoader.Config(path=str(text_dataset(53, broken={7})))

    def build(rank: int = 0, ranks: int = 1) -> Any:
        return config.build(
            dp_world_size=ranks,
            dp_rank=rank,
            tokenizer=Tokenizer(),
            max_context_length=200,
            num_tokens_per_batch=200 * 12 // ranks,
        )

    def sequences(batch: Any) -> list[list[int]]:
        return batch[0]["input"].reshape(-1, 200).tolist()

    loader = build()
    assert isinstance(loader, BaseDataLoader)
    batches = iter(loader)
    for _ in range(5):
        next(batches)
    dcp.save({"dataloader": loader}, checkpoint_id=str(tmp_path / "checkpoint"))
    batch = next(batches)
    inputs, labels = batch
    assert set(inputs) == {"input", "positions"}  # all else but "input" is an argument of the model
    assert {tensor.shape for tensor in (*inputs.values(), labels)} == {(200 * 12,)}
    assert inputs["positions"].tolist() == [*range(200)] * 12
    text = int((inputs["input"][:200] > 0).sum())
    assert inputs["input"][1:text].tolist() == labels[: text - 1].tolist()
    assert set(labels[text:200].tolist()) <= {titan.IGNORED}
    loader.close()
    loader = build()
    loader.load_state_dict({})
    dcp.load({"dataloader": loader}, checkpoint_id=str(tmp_path / "checkpoint"))
    state = loader.state_dict()
    assert sequences(next(iter(loader))) == sequences(batch)
    found = []
    for rank in range(3):  # another data-parallel degree
        part = build(rank, 3)
        part.load_state_dict(state)
        found += sequences(next(iter(part)))
        part.close()
    assert sorted(found) == sorted(sequences(batch))
    loader.close()


def test_batches_of_torchtitan_s_release_have_rows(example: Any, text_dataset: MakeDataset) -> None:
    titan = example("torchtitan_loader", torchtitan("torchtitan.components.dataloader"))
    loader = titan.EnergonDataLoader.Config(path=str(text_dataset(53))).build(
        dp_world_size=1, dp_rank=0, tokenizer=Tokenizer(), seq_len=200, local_batch_size=12, snapshot_every_n_steps=3
    )
    inputs, labels = next(iter(loader))
    assert {tensor.shape for tensor in (*inputs.values(), labels)} == {(12, 200)}
    assert inputs["positions"].tolist() == [[*range(200)]] * 12
    loader.close()


def test_torchtitan_s_source(example: Any, text_dataset: MakeDataset) -> None:
    titan = example("torchtitan_loader", torchtitan())
    source = titan.EnergonSource.Config(path=str(text_dataset(53))).build(dataset_iteration_policy=None)
    assert isinstance(source, grain.sources.RandomAccessDataSource)
    assert len(source) == 53
    assert list(source[-1]) == ["text"]


class GrainCheckpointable:
    """Saves and loads an iterator as MaxText's `GrainCheckpointable_v1` does, with its rules for what it is."""

    def __init__(self, item: Any) -> None:
        assert isinstance(item, grain.experimental.ElasticIterator)
        self._item = item

    async def save(self, directory: Any) -> Any:
        state = self._item.get_state()

        async def write() -> None:
            path = await directory.await_creation()
            await asyncio.to_thread((path / "process_0.json").write_text, json.dumps(state, indent=4))

        return write()

    async def load(self, directory: Any) -> Any:
        async def read() -> None:
            text = await asyncio.to_thread((directory / "process_0.json").read_text)
            self._item.set_state(json.loads(text))

        return read()


def test_maxtext_s_iterator_and_checkpoints(example: Any, text_dataset: MakeDataset, tmp_path: Path) -> None:
    maxtext = example("maxtext_input")
    config = SimpleNamespace(
        max_target_length=24,
        global_batch_size_to_load=8,
        global_batch_size_to_load_eval=4,
        data_shuffle_seed=3,
        eval_interval=10,
    )
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]).reshape(1, 1), ("data", "fsdp"))

    def create() -> Any:
        return maxtext.create_data_iterator(
            config,
            mesh,
            path=str(text_dataset(53, broken={7})),
            tokenize=lambda text: list(text.encode()),
            eval_part="train",
        )

    train, evaluation = create()
    batch = next(train)
    names = {f"{part}{what}" for part in ("inputs", "targets") for what in ("", "_position", "_segmentation")}
    assert set(batch) == names
    assert all(isinstance(array, jax.Array) and array.shape == (8, 24) for array in batch.values())
    np.testing.assert_array_equal(batch["inputs"][:, 1:], batch["targets"][:, :-1])
    assert next(evaluation)["inputs"].shape == (4, 24)
    for _ in range(9):
        next(train)
    ocp.save_checkpointables(tmp_path / "checkpoint", {"iter": GrainCheckpointable(train.local_iterator)})
    expected = next(train)
    again, _ = create()
    ocp.load_checkpointables(tmp_path / "checkpoint", {"iter": GrainCheckpointable(again.local_iterator)})
    np.testing.assert_equal(jax.device_get(next(again)), jax.device_get(expected))
    _, evaluation = create()
    first = jax.device_get(next(evaluation))
    next(evaluation)
    evaluation.reset()
    np.testing.assert_equal(jax.device_get(next(evaluation)), first)


class AsyncDataset(ABC):
    """As Levanter's, which since it moved to Marin knows finite and endless datasets alone."""

    def __class_getitem__(cls, _: Any) -> type:
        return cls

    @abstractmethod
    async def async_len(self) -> int: ...

    @abstractmethod
    def is_finite(self) -> bool: ...

    @abstractmethod
    async def get_batch(self, indices: Any) -> Any: ...

    async def getitem_async(self, index: int) -> Any:
        return (await self.get_batch([index]))[0]


class OlderAsyncDataset(AsyncDataset):
    """As it was before, for datasets that grow while they are read."""

    def __init__(self) -> None:
        self._min_known_len = 0

    @abstractmethod
    async def final_length_is_known(self) -> bool: ...

    @abstractmethod
    async def current_len(self) -> int | None: ...


@pytest.mark.parametrize("base", [AsyncDataset, OlderAsyncDataset])
def test_levanter_s_dataset(example: Any, text_dataset: MakeDataset, base: type) -> None:
    levanter = example("levanter_dataset", {"levanter.data.dataset": {"AsyncDataset": base}})

    async def use() -> None:
        dataset = levanter.EnergonAsyncDataset(str(text_dataset(53)), lambda sample: sample.__key__)
        assert await dataset.async_len() == await dataset.current_len() == 53
        assert dataset.is_finite()
        assert await dataset.final_length_is_known()
        assert await dataset.get_batch([9, 3, 9]) == ["000009", "000003", "000009"]
        assert await dataset.getitem_async(7) == "000007"
        broken = levanter.EnergonAsyncDataset(str(text_dataset(53, broken={5})))
        with pytest.raises(ValueError, match=r"samples \[5\] of EnergonDataSource.* do not decode"):
            await broken.get_batch([4, 5])

    asyncio.run(use())


class Lengths(DefaultTaskEncoder):
    def encode_sample(self, sample: Any) -> dict[str, Any]:
        return {"number": np.int64(sample.__key__), "length": np.int32(len(sample.text))}


def test_axlearn_s_source(example: Any, text_dataset: MakeDataset) -> None:
    source = example("axlearn_input").energon_source(
        path=str(text_dataset(53)), global_batch_size=12, task_encoder=Lengths, num_workers=0
    )

    def feed(number: int, feeds: int) -> Any:
        return iter(source(SimpleNamespace(shard_index=[number], num_shards=[feeds])))

    whole = feed(0, 1)
    assert isinstance(whole, grain.DatasetIterator)
    batch = next(whole)
    assert {name: (array.shape, array.dtype) for name, array in batch.items()} == {
        "number": ((12,), np.int64),
        "length": ((12,), np.int32),
    }
    parts = [next(feed(number, 3))["number"].tolist() for number in range(3)]
    assert sorted(sum(parts, [])) == sorted(batch["number"].tolist())
    with pytest.raises(ValueError, match="divisible by the 5 feeds"):
        feed(0, 5)


PROGRAM = Path(__file__).parents[2] / "examples" / "hub" / "train.py"
URL = "hf://datasets/team/moods/train.jsonl"


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled, unavailable or uninitialized")
def test_it_learns_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = importlib.util.spec_from_file_location("hub_example", PROGRAM)
    assert spec is not None
    assert spec.loader is not None
    program: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(program)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    moods = [("aha ", 1), ("oh no ", 0)]
    rows = [{"text": moods[number % 2][0] * (number % 7 + 1), "label": moods[number % 2][1]} for number in range(500)]
    with running_hub() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        hub.commit("team/moods", {"train.jsonl": "".join(json.dumps(row) + "\n" for row in rows).encode()})
        torch.manual_seed(1)
        assert program.train(URL, tmp_path / "whole.pt", 40) < 0.1
        torch.manual_seed(1)
        program.train(URL, tmp_path / "parts.pt", 20)
        program.train(URL, tmp_path / "parts.pt", 40)
        assert hub.count("cdn") == 1  # what was read once is kept
    whole, parts = (torch.load(tmp_path / name) for name in ("whole.pt", "parts.pt"))
    assert whole["loader"] == parts["loader"]
    torch.testing.assert_close(whole["model"], parts["model"])
