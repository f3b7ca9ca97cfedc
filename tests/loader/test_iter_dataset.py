"""`BatchIterDataset` below Grain's own transformations."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Callable
from typing import Any

import grain
import pytest
from number_batches import Numbers

from energon_grain import ConfigError, DefaultTaskEncoder, StateError, get_loader
from energon_grain.loader import BatchIterDataset, BatchMapDataset, SavableDataLoader

Train = Callable[..., Any]
BROKEN = frozenset({3, 11})


def test_what_is_no_dataset_is_refused() -> None:
    for kind in (BatchIterDataset, BatchMapDataset):
        with pytest.raises(ConfigError, match="expected a dataset, got a str"):
            kind("folder")  # type: ignore[arg-type]


def test_grains_prefetch_around_a_loader_keeps_its_state(train: Train) -> None:
    plain = get_loader(train(broken=BROKEN))
    states, batches = [plain.get_state()], []
    for _ in range(8):
        batches.append(next(plain).__key__)
        states.append(plain.get_state())
    around = grain.experimental.ThreadPrefetchDatasetIterator(get_loader(train(broken=BROKEN)), 3)
    for batch, state in zip(batches[:4], states[1:], strict=False):
        assert next(around).__key__ == batch
        assert around.get_state() == state
    around.set_state(states[2])
    assert [next(around).__key__ for _ in range(3)] == batches[2:5]
    around.close()


class ThroughJson(grain.IterDataset[Any]):
    """States go through JSON on their way, as they do in a checkpoint."""

    def __iter__(self) -> Any:
        iterator = self._parent.__iter__()
        get_state = iterator.get_state
        iterator.get_state = lambda: json.loads(json.dumps(get_state()))
        return iterator


def test_grains_own_check_through_json(train: Train) -> None:
    dataset = BatchIterDataset(train(n=24, task_encoder=Numbers(), virtual_epoch_length=6, batch_size=5))
    grain.experimental.assert_equal_output_after_checkpoint(ThroughJson(dataset))


def test_each_iteration_is_a_loader_of_its_own(train: Train) -> None:
    dataset = BatchIterDataset(train())
    assert isinstance(dataset, grain.IterDataset)
    first, second = iter(dataset), iter(dataset)
    assert isinstance(first, SavableDataLoader)
    assert isinstance(first, grain.DatasetIterator)
    assert next(first).__key__ == next(second).__key__ == next(iter(get_loader(train()))).__key__
    for again in (pickle.loads(pickle.dumps(dataset)), copy.deepcopy(dataset)):
        assert next(iter(again)).__key__ == next(iter(dataset)).__key__


class Packs(DefaultTaskEncoder):
    def select_samples_to_pack(self, samples: list[Any]) -> list[list[Any]]:
        return [samples]

    def pack_selected_samples(self, samples: list[Any]) -> Any:
        return samples[0]


def test_readers_above_take_turns_where_steps_are_arithmetic(train: Train) -> None:
    batches = BatchIterDataset(train())
    batches.set_slice(slice(0, None, 1))
    with pytest.raises(ConfigError, match="sequential_slice=False"):
        batches.set_slice(slice(0, None, 2), sequential_slice=True)
    packed = BatchIterDataset(train(task_encoder=Packs(), packing_buffer_size=4))
    with pytest.raises(ConfigError, match=r"depends on the data of those before.*worker_type='process'"):
        packed.set_slice(slice(0, None, 2))


def test_the_next_index_is_a_step(train: Train) -> None:
    def steps(count: int) -> list[Any]:
        loader = get_loader(train(virtual_epoch_length=5))
        return [[batch.__key__ for batch in loader] for _ in range(count)]

    whole = steps(3)
    iterator = iter(BatchIterDataset(train(virtual_epoch_length=5)))
    next(iterator)
    assert grain.experimental.get_next_index(iterator) == 1
    for step in (3, 0, 12, 5, 7):
        grain.experimental.set_next_index(iterator, step)
        assert grain.experimental.get_next_index(iterator) == step
        if step % 5 == 0 and step:  # the end of a pass
            assert next(iterator, None) is None
            iter(iterator)
        assert next(iterator).__key__ == whole[step // 5][step % 5]
    finite = get_loader(train(repeat=False))
    passes = [[batch.__key__ for batch in finite] for _ in range(2)]
    grain.experimental.set_next_index(finite, len(passes[0]) + 2)
    assert next(finite).__key__ == passes[1][2]
    grain.experimental.set_next_index(finite, 10**12)  # as fast as any
    assert len(next(finite).__key__) == 4
    for loader in (get_loader(train(virtual_epoch_length=5)), get_loader(train()), finite):
        with pytest.raises(StateError, match="counted 0, 1, 2"):
            grain.experimental.set_next_index(loader, -1)
        with pytest.raises(StateError, match="no positions that far on"):
            grain.experimental.set_next_index(loader, 2**61)
