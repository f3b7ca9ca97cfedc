"""What a loader or a dataset says of itself, and when it is used for what it is not."""

from __future__ import annotations

import copy
import gc
import pickle
import threading
import time
from collections.abc import Callable
from typing import Any

import grain
import pytest
from torch.utils.data import DataLoader

import energon_grain_torch
from energon_grain import BlendDataset, TaskEncoder, get_loader
from energon_grain.loader import BatchIterDataset, BatchMapDataset, to_device

Train = Callable[..., Any]


@pytest.fixture(params=["core", "device", "torch"])
def loader(train: Train, request: pytest.FixtureRequest) -> Any:
    if request.param == "torch":
        return energon_grain_torch.get_loader(train())
    return get_loader(train()) if request.param == "core" else to_device(get_loader(train()))


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_loader_is_not_copied(loader: Any, copied: Callable[[Any], Any]) -> None:
    with pytest.raises(TypeError, match=r"Loader\(\S+/train\) cannot be pickled or copied, .* send the dataset"):
        copied(loader)
    gc.collect()  # an exception out of a half-made copy's `__del__` would fail the test
    next(loader)


def test_a_loader_is_not_wrapped(loader: Any) -> None:
    with pytest.raises(TypeError, match=r"no batches by index, .* iterate over it"):
        next(iter(DataLoader(loader, batch_size=None)))


def test_grain_takes_no_description_for_a_source(train: Train) -> None:
    with pytest.raises(TypeError, match=r"no samples by index.* BatchMapDataset\(dataset\) is a MapDataset"):
        grain.MapDataset.source(train())[0]


def test_a_closed_loader_says_where_it_was_closed(train: Train) -> None:
    for get in (get_loader, energon_grain_torch.get_loader):
        loader = get(train())
        next(loader)
        loader.close()
        with pytest.raises(ValueError, match=r"closed at .*test_misuse\.py:\d+; make a new one, and restore the state"):
            next(loader)
        assert loader.save_state_rank()["step"] == 1
        with get(train()) as loader:
            next(loader)
        with pytest.raises(ValueError, match=r"closed at .*test_misuse\.py:\d+"):
            next(loader)


class Slow(TaskEncoder):
    def encode_sample(self, sample: Any) -> Any:
        time.sleep(0.0005)
        return sample


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("place", [lambda loader: loader, to_device], ids=["loader", "device"])
def test_threads_share_a_loader(train: Train, num_workers: int, place: Callable[[Any], Any]) -> None:
    def fresh() -> Any:
        return get_loader(train(n=96, repeat=False, task_encoder=Slow(), num_workers=num_workers))

    expected = sorted(tuple(batch.__key__) for batch in fresh())
    loader = place(fresh())
    seen: list[Any] = []
    failed: list[BaseException] = []

    def drain() -> None:
        try:
            while True:
                seen.append(tuple(next(loader).__key__))
        except StopIteration:
            return
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=drain) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not failed
    assert sorted(seen) == expected
    loader.close()


def test_datasets_and_loaders_are_named_in_one_line(train: Train, loader: Any) -> None:
    dataset = train()
    assert repr(loader).endswith("Loader(" + repr(dataset).removeprefix("BatchDataset("))
    name = repr(dataset).removeprefix("BatchDataset(").removesuffix(")")
    assert name.endswith("/train")
    assert repr(BlendDataset(*[(dataset, 1)] * 7)) == f"BlendDataset({', '.join([name] * 4)}, … 3 more)"
    assert repr(BatchIterDataset(dataset)) == str(BatchIterDataset(dataset)) == f"BatchIterDataset({dataset!r})"
    assert repr(BatchMapDataset(dataset)) == f"BatchMapDataset({dataset!r})"


def test_a_dataset_says_what_to_give_it_to(train: Train) -> None:
    with pytest.raises(TypeError, match=r"no samples by index.* get_loader"):
        train()[0]
    for name in ("get_state", "state_dict", "restore_state_rank"):
        with pytest.raises(AttributeError, match=f"no {name}, .* get_savable_loader"):
            getattr(train(), name)
    assert not hasattr(train(), "state_dict")
    with pytest.raises(AttributeError, match="has no attribute 'dateset'"):
        train().dateset  # noqa: B018
