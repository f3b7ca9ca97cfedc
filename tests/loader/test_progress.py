"""A line that says how far a loop is."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from typing import Any

import pytest

import energon_grain
import energon_grain_torch
from energon_grain_torch import WorkerConfig as TorchWorkerConfig

Train = Callable[..., Any]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(params=["core", "torch"])
def loader(request: pytest.FixtureRequest, train: Train) -> Callable[..., Any]:
    """`loader(**options)`: of either package."""

    def make(rank: int = 0, **options: Any) -> Any:
        dataset = train(repeat=False, rank=rank, world_size=1 + rank, **options)
        if request.param == "core":
            return energon_grain.get_loader(dataset)
        config = TorchWorkerConfig(rank, 1 + rank, worker_type="thread")
        return energon_grain_torch.get_loader(dataset, worker_config=config)

    return make


def test_batches_and_state_are_those_of_a_plain_loop(loader: Callable[..., Any]) -> None:
    plain, shown, file = loader(), loader(), io.StringIO()
    expected = [list(batch.__key__) for _ in range(2) for batch in plain]
    found = []
    for batch in shown.progress(every_s=0, file=file):
        found.append(list(batch.__key__))
        if len(found) == 5:
            break
    assert shown.save_state_rank()["step"] == 5
    for _ in range(2):  # the rest of the pass, and the next one
        found += [list(batch.__key__) for batch in shown.progress(every_s=0, file=file)]
    assert found == expected
    assert shown.save_state_rank() == plain.save_state_rank()
    lines = file.getvalue().splitlines()
    assert len(lines) == len(expected)
    told = r"epoch {}, step {} of 14: [0-9,]+ samples/s, waited [0-9]+%, [0-9:]+ left"
    for line, place in ((lines[0], (1, 1)), (lines[5], (1, 6)), (lines[-1], (2, 14))):
        assert re.fullmatch(told.format(*place), line), line


def test_a_line_is_written_now_and_then_and_at_the_end(loader: Callable[..., Any]) -> None:
    file = io.StringIO()
    assert len(list(loader().progress(file=file))) == 14
    assert [line.partition(":")[0] for line in file.getvalue().splitlines()] == ["epoch 1, step 14 of 14"]


def test_other_hosts_are_quiet(loader: Callable[..., Any]) -> None:
    file = Terminal()
    assert list(loader(rank=1).progress(file=file))
    assert file.getvalue() == ""


def test_on_terminals_it_stays_one_line(loader: Callable[..., Any]) -> None:
    file = Terminal()
    for number, _ in enumerate(loader().progress(file=file)):
        if number == 3:
            print("loss 0.5")
    assert "step 14 of 14" in file.getvalue()
    assert "loss 0.5\n" in file.getvalue()  # above the line
    assert file.getvalue().endswith("\x1b[?25h")  # the cursor is there again


def test_endless_streams_tell_how_often_the_data_came_by(train: Train) -> None:
    file = io.StringIO()
    loader = energon_grain.get_loader(train())
    for number, _ in enumerate(loader.progress(every_s=0, file=file)):
        if number == 19:
            break
    assert re.match(r"step 20 \(epoch 1.54\): ", file.getvalue().splitlines()[-1])
