"""Replicas get the batches of one reader, with one state, and go to other places together."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from patience import PATIENCE_S
from replica_loaders import LENGTH, Rows, Tokens, alone, dataset_of, files_in_memory, in_threads, rows

from energon_grain import SequenceSlice, StateError, WorkerConfig, WorkerError, get_savable_loader, stateless
from energon_grain.replicas import leader as leading

LOOK_AHEAD = 3 * 8 + 256  # batches in memory files, and a chunk


@pytest.fixture(scope="module")
def path(text_dataset: Callable[..., Path]) -> Path:
    return text_dataset(97)


def each_step(loaders: list[Any], count: int) -> list[Rows]:
    """The next steps, which are the same on all replicas."""
    found = []
    for _ in range(count):
        every = [rows(next(loader)) for loader, _ in loaders]
        assert every == [every[0]] * len(every)
        found.append(every[0])
    return found


@pytest.mark.parametrize("num_workers", [0, 2, "auto"])
def test_one_replica_reads_for_all(path: Path, num_workers: Any) -> None:
    files = files_in_memory()
    with in_threads(path, 3, num_workers=num_workers) as loaders:
        assert each_step(loaders, 30) == alone(path, 30)
        decoded = [encoder.decoded for _, encoder in loaders]
        assert decoded[1:] == [0, 0]
        states = [loader.save_state_rank() for loader, _ in loaders]
        assert states == [states[0]] * 3
        assert files_in_memory() == files
    encoder = Tokens()
    config = WorkerConfig(rank=0, world_size=1, num_workers=num_workers)
    with get_savable_loader(dataset_of(path, config, encoder)) as loader:
        for _ in range(30):
            next(loader)
        assert loader.save_state_rank() == states[0]
    assert decoded[0] >= 30 * 8
    if not num_workers:  # otherwise the size of chunks depends on times
        assert decoded[0] <= encoder.decoded + LOOK_AHEAD


def test_a_replica_has_the_state_of_the_batches_that_it_got(path: Path) -> None:
    with in_threads(path, 2) as loaders:
        (first, _), (second, _) = loaders
        for _ in range(2):
            next(first)
        next(second)
        assert (first.save_state_rank()["step"], second.save_state_rank()["step"]) == (2, 1)


@pytest.mark.parametrize("nodes", ["", "ab"])
def test_changes_of_one_replica_do_not_reach_another(path: Path, nodes: str) -> None:
    with in_threads(path, 2, nodes=nodes) as loaders:
        (first, _), (second, _) = loaders
        batch = next(first)
        expected = batch["tokens"].copy()
        batch["tokens"][:] = -1
        other = next(second)["tokens"]
        assert np.array_equal(other, expected)
        other[:] = -2
        assert (batch["tokens"] == -1).all()


@pytest.mark.parametrize("nodes", ["", "ab"])
def test_replicas_go_to_other_places_together(path: Path, nodes: str) -> None:
    expected = alone(path, 60)
    with in_threads(path, 2, nodes=nodes) as loaders:
        each_step(loaders, 3)
        state = loaders[1][0].save_state_rank()
        each_step(loaders, 4)
        for loader, _ in loaders:
            loader.restore_state_rank(state)
        assert each_step(loaders, 3) == expected[3:6]
        for loader, _ in loaders:
            loader.stream.skip(10)
        assert each_step(loaders, 2) == expected[16:18]
        for loader, _ in loaders:
            loader.stream.seek(50)
        assert each_step(loaders, 2) == expected[50:52]
        assert loaders[1][0].save_state_rank()["step"] == 52
        assert loaders[1][0].which(3) == loaders[0][0].which(3)


@pytest.mark.parametrize("nodes", ["", "ab"])
def test_replicas_begin_passes_together(path: Path, nodes: str) -> None:
    def passes(loader: Any) -> list[list[Rows]]:
        return [[rows(batch) for batch in loader] for _ in range(3)]

    options: dict[str, Any] = {"repeat": False, "max_samples_per_sequence": None}
    config = WorkerConfig(rank=0, world_size=1)
    with get_savable_loader(dataset_of(path, config, **options)) as loader:
        expected = passes(loader)
    with in_threads(path, 2, nodes=nodes, **options) as loaders:
        for number in range(3):
            found: list[list[Rows]] = [[], []]
            iterators = [iter(loader) for loader, _ in loaders]
            for batches in zip(*iterators, strict=True):
                for own, batch in zip(found, batches, strict=True):
                    own.append(rows(batch))
            assert found == [expected[number]] * 2


@pytest.mark.parametrize("nodes", ["", "ab"])
def test_a_place_of_one_replica_only_is_an_error(path: Path, nodes: str) -> None:
    with in_threads(path, 2, nodes=nodes) as loaders:
        each_step(loaders, 1)
        (first, _), (second, _) = loaders
        first.stream.seek(20)
        with ThreadPoolExecutor(1) as thread:
            ahead = thread.submit(next, first)  # it waits for the batches that were handed on before
            with pytest.raises(StateError, match="rank 0, which reads for this rank, went to another place"):
                for _ in range(9):
                    next(second)
            second.stream.seek(20)
            expected = alone(path, 21)[20]
            assert rows(next(second)) == expected
            assert rows(ahead.result()) == expected


class Fails(Tokens):
    """Fails while `failed` is set."""

    failed = False

    @stateless
    def encode_batch(self, batch: Any) -> Any:
        if self.failed:
            raise OSError("no space left")
        return batch


@pytest.mark.parametrize("nodes", ["", "ab"])
def test_an_error_is_raised_on_all_replicas_and_the_next_call_continues(path: Path, nodes: str) -> None:
    with in_threads(path, 2, nodes=nodes, num_workers=0, encoders=Fails) as loaders:
        each_step(loaders, 2)
        loaders[0][1].failed = True
        errors = []
        for loader, _ in loaders:
            with pytest.raises(Exception, match="no space left") as caught:
                next(loader)
            errors.append(caught.value)
        assert type(errors[0]) is type(errors[1])
        assert "raised by rank 0, which reads for this rank" in errors[1].__notes__
        loaders[0][1].failed = False
        assert each_step(loaders, 2) == alone(path, 4)[2:]


class Large(Tokens):
    """Arrays of 256 KB."""

    @stateless
    def encode_sample(self, sample: Any) -> Any:
        made = super().encode_sample(sample)
        return {**made, "tokens": np.tile(made["tokens"], 16)}


def test_batches_of_worker_processes_are_handed_on_in_their_files(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copied: list[Any] = []
    write_parts = leading.write_parts

    def counted(*arguments: Any) -> Any:
        copied.append(arguments)
        return write_parts(*arguments)

    monkeypatch.setattr(leading, "write_parts", counted)
    config = WorkerConfig(rank=0, world_size=1, num_workers=0)
    with get_savable_loader(dataset_of(path, config, Large())) as loader:
        expected = [rows(next(loader)) for _ in range(40)]
    with in_threads(path, 3, encoders=Large, worker_type="process") as loaders:
        kept: list[Any] = []
        for step in range(40):
            for number, (loader, _) in enumerate(loaders):
                batch = next(loader)
                assert rows(batch) == expected[step]
                if number == step % 3 and step < 9:
                    kept.append(batch)
                else:
                    batch["tokens"][:] = -1  # neither another replica nor a later batch of the file may see it
        assert [rows(batch) for batch in kept] == expected[:9]
        loaders[0][0].close()
        assert [rows(batch) for batch in kept] == expected[:9]
    assert len(copied) < 20, "only batches of samples from two chunks are copied"


@pytest.mark.parametrize("nodes", ["", "ab"])
def test_a_replica_that_keeps_batches_gets_copies(path: Path, nodes: str) -> None:
    with in_threads(path, 2, nodes=nodes) as loaders:
        (first, _), (second, _) = loaders
        kept, found = [], []
        for _ in range(20):
            found.append(rows(next(first)))
            kept.append(next(second))
        assert [rows(batch) for batch in kept] == found == alone(path, 20)


def test_replicas_that_keep_all_files_get_the_next_batch(path: Path) -> None:
    """JAX drops its references in its next call: until then, two replicas may keep different batches."""
    with in_threads(path, 2) as loaders, ThreadPoolExecutor(1) as waiting:
        (first, _), (second, _) = loaders
        expected = alone(path, 4)
        kept = [next(first), next(first)]
        next(second)
        kept += [next(second)]
        next(first)
        kept += [next(second)]
        found = waiting.submit(next, first)
        try:
            assert rows(found.result(timeout=PATIENCE_S / 10)) == expected[3]
        finally:
            kept.clear()  # otherwise a failure would wait for ever
        assert rows(next(second)) == expected[3]


@pytest.mark.parametrize("nodes", ["", "ab"])
def test_kept_batches_stay_valid_after_closing(path: Path, nodes: str) -> None:
    expected = alone(path, 30)
    with in_threads(path, 2, nodes=nodes) as loaders:
        (first, _), (second, _) = loaders
        next(first)
        kept = next(second)
        second.close()
        assert [rows(next(first)) for _ in range(29)] == expected[1:]
        assert rows(kept) == expected[0]


def test_slow_replicas_are_named(path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(leading, "PATIENCE_SECONDS", 0.1)
    with in_threads(path, 3) as loaders:
        for _ in range(2):
            for loader, _ in loaders[:2]:
                next(loader)
        gc.collect()
        with caplog.at_level(logging.WARNING, "energon_grain"):
            for loader, _ in loaders[:2]:
                next(loader)
            while not caplog.records:
                loaders[0][0].stream.ready  # noqa: B018
        assert "rank 0 cannot read on for" in caplog.text
        assert "rank 2 holds batches 0 to 2" in caplog.text


def test_each_replica_gets_its_slice_of_sequences(path: Path) -> None:
    cut = SequenceSlice({"tokens": 1}, dim="cp", kind="contiguous")
    with (
        in_threads(path, 2, cut=cut) as loaders,
        get_savable_loader(dataset_of(path, WorkerConfig(rank=0, world_size=1))) as whole,
    ):
        for _ in range(8):
            parts = [next(loader)["tokens"] for loader, _ in loaders]
            assert parts[0].shape == (8, LENGTH // 2)
            assert np.array_equal(np.concatenate(parts, 1), next(whole)["tokens"])


@pytest.mark.parametrize("nodes", ["", "ab"])
def test_a_reader_that_is_collected_has_ended(path: Path, nodes: str) -> None:
    with in_threads(path, 2, nodes=nodes) as loaders:
        each_step(loaders, 2)
        del loaders[0]
        gc.collect()
        second = loaders[0][0]
        with pytest.raises(
            WorkerError, match="rank 0, which reads the batches of rank 1, has ended or closed its loader"
        ):
            for _ in range(9):
                next(second)
        step = second.save_state_rank()["step"]
        assert rows(next(second)) == alone(path, step + 1)[step]


@pytest.mark.parametrize("nodes", ["", "ab"])
def test_closing_ends_a_replica_that_waits(path: Path, nodes: str) -> None:
    with in_threads(path, 2, nodes=nodes, num_workers=0) as loaders, ThreadPoolExecutor(1) as thread:
        second = loaders[1][0]
        waiting = thread.submit(next, second)  # the first does not read
        with pytest.raises(TimeoutError):
            waiting.result(0.2)
        second.close()
        with pytest.raises(ValueError, match="this loader was closed"):
            waiting.result(PATIENCE_S)
