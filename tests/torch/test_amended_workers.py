"""A changed mixture in PyTorch's own loaders, whose workers make the batches."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from torchdata.stateful_dataloader import StatefulDataLoader

from energon_grain.errors import FingerprintError, StateError
from energon_grain.testing import make_text_dataset
from energon_grain_torch import DefaultTaskEncoder, WorkerConfig, get_train_dataset

pytestmark = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # torchdata 0.11 with torch 2.13
STEPS = 6


class Packing(DefaultTaskEncoder):
    def encode_sample(self, sample: Any) -> Any:
        return sample

    def select_samples_to_pack(self, samples: list[Any]) -> list[list[Any]]:
        return [samples[at : at + 2] for at in range(0, len(samples), 2)]

    def pack_selected_samples(self, samples: list[Any]) -> Any:
        samples[0].text = " ".join(f"{sample.__key__}:{sample.__restore_key__[1]}" for sample in samples)
        return samples[0]

    def batch(self, samples: list[Any]) -> Any:
        return [sample.text for sample in samples]


class Naming(DefaultTaskEncoder):
    def batch(self, samples: list[Any]) -> Any:
        return [f"{sample.__key__}:{sample.__restore_key__[1]}" for sample in samples]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("data")
    for name in "abc":
        make_text_dataset(root / name, n=2000, shards=2)
    return root


def dataset(data: Path, weights: dict[str, int], encoder: Any, **options: Any) -> Any:
    entries = ", ".join(f"{{path: {data / name}, weight: {weight}}}" for name, weight in weights.items())
    path = data / "mixture.yaml"
    head = "__module__: megatron.energon\n__class__: MetadatasetV2\n"
    path.write_text(f"{head}splits: {{train: {{blend: [{entries}]}}}}\n")
    made = get_train_dataset(
        path,
        batch_size=4,
        shuffle_buffer_size=8,
        max_samples_per_sequence=4,
        lanes=12,
        task_encoder=encoder,
        worker_config=WorkerConfig(0, 1, 0),
        **options,
    )
    made.set_on_change("amend")
    return made


@pytest.mark.parametrize(("encoder", "workers"), [(Naming, 0), (Naming, 1), (Packing, 2)])
def test_a_state_of_another_mixture(data: Path, encoder: Any, workers: int) -> None:
    options = {"packing_buffer_size": 6} if encoder is Packing else {}
    before = dataset(data, {"a": 3, "b": 1}, encoder(), **options)
    loader = StatefulDataLoader(before, batch_size=None, num_workers=workers)
    batches = iter(loader)
    seen = [next(batches) for _ in range(STEPS)]
    state = json.loads(json.dumps(loader.state_dict()))
    del batches, loader
    after = dataset(data, {"c": 2, "b": 1}, encoder(), **options)
    again = StatefulDataLoader(after, batch_size=None, num_workers=workers)
    if encoder is Packing:  # they hold samples of the removed dataset
        after = dataset(data, {"a": 1, "c": 2, "b": 1}, encoder(), **options)
        again = StatefulDataLoader(after, batch_size=None, num_workers=workers)
    again.load_state_dict(state)
    batches = iter(again)
    seen += [next(batches) for _ in range(5 * STEPS)]
    later = again.state_dict()
    expected = [next(batches) for _ in range(STEPS)]
    del batches, again
    uses = [use for batch in seen for text in batch for use in text.split()]
    assert len(set(uses)) == len(uses)
    assert any(use.endswith(":2") for use in uses[-20:])
    third = StatefulDataLoader(after, batch_size=None, num_workers=workers)
    third.load_state_dict(later)
    batches = iter(third)
    assert [next(batches) for _ in range(STEPS)] == expected


def test_several_workers_that_take_turns(data: Path) -> None:
    made = dataset(data, {"a": 3, "b": 1}, Naming())
    batches = iter(made)
    for _ in range(STEPS):
        next(batches)
    state = batches.state_dict()
    changed = dataset(data, {"a": 1, "b": 1}, Naming())
    again = iter(changed)
    again.load_state_dict(state)
    next(again)
    changed.set_on_change("refuse")
    with pytest.raises(FingerprintError, match="on_change='amend'"):
        iter(changed).load_state_dict(state)
    changed.set_on_change("amend")
    loader = StatefulDataLoader(made, batch_size=None, num_workers=2)
    batches = iter(loader)
    next(batches)
    state = loader.state_dict()
    del batches, loader
    loader = StatefulDataLoader(changed, batch_size=None, num_workers=2)
    loader.load_state_dict(state)
    with pytest.raises(StateError, match="take the steps of this stream in turns"):
        next(iter(loader))
