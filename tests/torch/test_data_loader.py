"""Workers, of any number and kind: they change neither what comes out nor the state."""

from __future__ import annotations

import gc
import multiprocessing
import random
from collections.abc import Callable
from itertools import islice
from typing import Any

import psutil
import pytest
import torch
from torch.utils.data import get_worker_info
from torch_encoders import Everything, Groups, Packs, Several, told

from energon_grain import SavableDataset
from energon_grain_torch import FatalSampleError, SavableDataLoader, TaskEncoder, get_loader, get_savable_loader

Train = Callable[..., SavableDataset]
BROKEN = frozenset({1, 30})


def steps(loader: SavableDataLoader, count: int) -> list[tuple[Any, Any]]:
    """(batch, state behind it) of the next steps, over the ends of passes, which are None."""
    found: list[tuple[Any, Any]] = []
    while len(found) < count:
        batch = next(loader, None)
        found.append((told(batch), loader.save_state_rank()))
        if batch is None:
            iter(loader)
    return found


@pytest.mark.parametrize(
    ("num_workers", "options"),
    [
        (2, {"multiprocessing_context": "fork", "prefetch_factor": 1}),
        (3, {"multiprocessing_context": "fork", "prefetch_factor": 5}),
        (1, {"multiprocessing_context": multiprocessing.get_context("spawn")}),
    ],
)
def test_workers_change_nothing(train: Train, num_workers: int, options: Any) -> None:
    def run(**arguments: Any) -> Any:
        dataset = train(broken=BROKEN, task_encoder=Everything(), **arguments)
        with get_loader(dataset, **(options if arguments else {})) as loader:
            found = steps(loader, 40)
            return found, loader.stats()["dropped"]

    assert run(worker_type="dataloader", num_workers=num_workers) == run()


def test_what_workers_took_is_counted(train: Train) -> None:
    dataset = train(worker_type="dataloader", num_workers=2, task_encoder=Everything())
    with get_loader(dataset, multiprocessing_context="fork") as loader, loader.watch() as watch:
        steps(loader, 40)
        stats = watch.lap()
    assert {worker.name for worker in stats.by_worker} == {"process-0", "process-1"}
    stages = {stage.name: stage for stage in stats.stages}
    assert stages["encode_sample"].place == stages["read"].place == "workers"
    assert min(stages["encode_sample"].samples, stats.read_samples) > 0
    assert stats.bound().kind in ("storage", "work", "pipeline")


@pytest.mark.parametrize("last_batch", ["drop", "keep", "pad"])
def test_passes(train: Train, last_batch: str) -> None:
    def run(num_workers: int) -> Any:
        dataset = train(
            n=30, broken={2}, num_workers=num_workers, repeat=False, last_batch=last_batch, task_encoder=Everything()
        )
        with get_loader(dataset) as loader:
            lengths = [len(loader)]
            found = steps(loader, 22)
            lengths.append(len(loader))
            return found, lengths, [told(batch) for batch in loader], loader.stats()["dropped"]

    assert run(2) == run(0)


@pytest.mark.parametrize(
    ("encoder", "options"),
    [
        (Several, {}),
        (Several, {"repeat": False, "last_batch": "keep"}),
        (Packs, {"packing_buffer_size": 5, "lanes": 6}),
        (Packs, {"packing_buffer_size": 5, "lanes": 6, "repeat": False}),
        (Groups, {"batch_size": None, "lanes": 4}),
    ],
)
def test_filters_packs_and_groups(train: Train, encoder: type[TaskEncoder], options: Any) -> None:
    def run(num_workers: int) -> Any:
        with get_loader(train(num_workers=num_workers, task_encoder=encoder(), **options)) as loader:
            found = steps(loader, 25)
            loader.restore_state_rank(found[9][1])
            assert steps(loader, 15) == found[10:]
            return found

    assert run(2) == run(0)


def test_a_loop_that_was_left_goes_on(train: Train) -> None:
    with get_loader(train()) as reference, get_savable_loader(train(num_workers=2)) as loader:
        expected = [told(batch) for batch in islice(reference, 12)]
        for at, batch in enumerate(loader):
            assert told(batch) == expected[at]
            if at == 4:
                break
        assert [told(batch) for batch in islice(loader, 7)] == expected[5:]


def test_samples_and_batches_are_made_again(train: Train) -> None:
    with get_loader(train(num_workers=2, task_encoder=Everything())) as loader:
        assert loader.can_restore_sample()
        for batch in islice(loader, 3):
            again = loader.restore_sample(batch["__restore_key__"])
            assert told(again) == told(batch)
        with get_loader(train(task_encoder=Everything())) as other:
            assert told(other.restore_sample(batch["__restore_key__"])) == told(batch)


class TellsWorker(TaskEncoder):
    def encode_sample(self, sample: Any) -> Any:
        info = get_worker_info()
        return None if info is None else (info.id, info.num_workers, torch.get_num_threads()), random.random()

    def batch(self, samples: list[Any]) -> Any:
        return samples


def test_hooks_see_what_those_of_a_data_loader_see(train: Train) -> None:
    with get_loader(train(num_workers=2, task_encoder=TellsWorker()), multiprocessing_context="fork") as loader:
        found = [sample for _ in range(40) for sample in next(loader)]
    assert {worker for worker, _ in found} <= {(0, 2, 1), (1, 2, 1)}
    assert len({*found}) == len(found)  # nor do they all have the random numbers of their parent
    with get_loader(train(task_encoder=TellsWorker())) as loader:
        assert next(loader)[0][0] is None


def pids() -> set[int | None]:
    return {process.pid for process in multiprocessing.active_children()}


def test_processes_live_as_long_as_the_loader(train: Train) -> None:
    others = pids()
    with get_loader(train(num_workers=2, repeat=False)) as loader:
        assert pids() == others  # they start with the first batch
        next(loader)
        workers, state = pids() - others, loader.save_state_rank()
        assert len(workers) == 2
        for _ in range(2):
            list(loader)
        for _ in range(5):
            loader.restore_state_rank(state)
            next(loader)
            loader.skip(2)
            next(loader)
        for _ in loader:
            break
        assert pids() - others == workers
    assert pids() == others


def test_a_closed_loader_keeps_no_pipes(train: Train) -> None:
    """Those of the last one, too, behind which no other process is started."""

    def opened() -> int:
        with get_loader(train(num_workers=2)) as loader:
            next(loader)
        gc.collect()
        return psutil.Process().num_fds()

    opened()  # what the first of a kind brings stays for good
    multiprocessing.active_children()  # which lets go of those that have ended
    before = psutil.Process().num_fds()
    assert opened() <= before  # fewer, where what other tests left is let go of meanwhile


def test_one_loader_after_the_other_while_the_first_ones_run(train: Train) -> None:
    with get_loader(train()) as reference:
        expected = [told(batch) for batch in islice(reference, 20)]
    loaders = [get_loader(train(num_workers=1, worker_type="thread"), prefetch_factor=20)]
    found: list[list[Any]] = [[]]
    for _ in range(4):
        loaders.append(get_loader(train(num_workers=2)))
        found.append([])
        for loader, batches in zip(loaders, found, strict=True):
            batches += [told(batch) for batch in islice(loader, 4)]
    for loader in loaders:
        loader.close()
    for batches in found:
        assert batches == expected[: len(batches)]


class Fails(TaskEncoder):
    __default_failure_tolerance__ = 3

    def encode_sample(self, sample: Any) -> Any:
        self.check(int(sample.__key__))
        return sample

    def check(self, number: int) -> None:
        if number % 9 == 2:
            raise ArithmeticError(f"number {number}")


@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_handler_is_told_of_errors(train: Train, num_workers: int) -> None:
    heard: list[tuple[str, str, Any]] = []

    def handler(error: Exception, sample: Any, sources: Any) -> None:
        heard.append((repr(error), sample.__key__, [source.index for source in sources]))
        assert not num_workers or "in check" in error.__notes__[0]

    with get_loader(train(num_workers=num_workers, handler=handler, task_encoder=Fails())) as loader:
        for _ in islice(loader, 12):
            pass
    assert len(heard) >= 4
    assert heard == [(f"ArithmeticError('number {int(key)}')", key, [int(key)]) for _, key, _ in heard]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_handler_that_raises_ends_the_loop(train: Train, num_workers: int) -> None:
    def handler(error: Exception, sample: Any, sources: Any) -> None:
        raise error

    with get_loader(train(num_workers=num_workers, handler=handler, task_encoder=Fails())) as loader:
        with pytest.raises(ArithmeticError, match="number"):
            list(loader)
        with pytest.raises(ArithmeticError, match="number"):  # tried again from the same place
            list(loader)


class FailsAlways(TaskEncoder):
    __default_failure_tolerance__ = 5

    def encode_sample(self, sample: Any) -> Any:
        raise ArithmeticError("always")


@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_budget_of_failures_holds(train: Train, num_workers: int) -> None:
    with get_loader(train(num_workers=num_workers, task_encoder=FailsAlways())) as loader:
        with pytest.raises(FatalSampleError, match="always") as info:
            next(loader)
        assert isinstance(info.value.__cause__, ArithmeticError)
