"""The table of `make bench`: names are unique, every program exists, and every target compares what is measured."""

from __future__ import annotations

import ast
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks import machine, steady
from benchmarks.contender import Contender, Row
from benchmarks.datasets import DATA_SETS, JOINS, MIXTURES
from benchmarks.report import RowResult, details
from benchmarks.rows import table

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    return table(Path("cache"), warmup_s=0.5, seconds=3.0)


def test_names_are_unique(rows: list[Row]) -> None:
    assert len({row.name for row in rows}) == len(rows)
    for row in rows:
        assert len({contender.name for contender in row.contenders}) == len(row.contenders), row.name
        assert row.contenders[0].family == "ours"
        assert not row.targets or row.contenders[0].name == "ours"  # whose values are compared


def test_every_program_exists(rows: list[Row]) -> None:
    for row in rows:
        for contender in row.contenders:
            path = BENCHMARKS / f"{contender.module.replace('.', '/')}.py"
            functions = {
                node.name: node for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)
            }
            parameters = {each.arg for each in functions[contender.call].args.args}
            assert set(contender.arguments) <= parameters, (row.name, contender.name)


def test_every_target_compares_with_a_program_of_its_row(rows: list[Row]) -> None:
    for row in rows:
        names = {name for contender in row.contenders for name in (contender.name, contender.family)}
        for target in row.targets:
            assert target.against is None or target.against in names, row.name


def test_every_dataset_is_known_and_every_metric_has_a_title(rows: list[Row]) -> None:
    for row in rows:
        assert set(row.data_sets) <= {*DATA_SETS, *MIXTURES, *JOINS}
        assert details(RowResult(row=row))


@pytest.mark.parametrize(
    ("name", "peers"),
    [
        ("text-crude", {"spdl", "mosaic"}),
        ("text-sample", {"mosaic"}),
        ("blobs", {"spdl", "mosaic"}),
        ("jpeg-rgb8", {"spdl", "mosaic"}),
        ("hooks-slow-threads-4", {"torch in order", "torch out of order"}),
    ],
)
def test_rows_list_the_peers_that_read_the_same_samples(rows: list[Row], name: str, peers: set[str]) -> None:
    (row,) = [row for row in rows if row.name == name]
    assert peers <= {contender.family for contender in row.contenders}


def test_a_peer_with_its_own_environment_is_left_out_where_only_the_common_one_exists(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    common, own = tmp_path / "peers/bin/python", tmp_path / "peers-mosaic/bin/python"
    common.parent.mkdir(parents=True)
    common.touch()
    monkeypatch.setattr(machine, "_peer_python", lambda: common)
    contender = Contender(name="mosaic", module="peers.mosaic", call="throughput", in_peer_python=True, peer="mosaic")
    assert machine.peer_python("litdata") == machine.peer_python() == common
    assert not contender.available()
    own.parent.mkdir(parents=True)
    own.touch()
    assert machine.peer_python("mosaic") == own
    assert contender.available()


def test_processor_time_of_workers_counts() -> None:
    """A program whose worker computes has the rate per CPU second of that worker, not of the waiting process."""

    def batches() -> Iterator[int]:
        with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as worker:
            try:
                while True:
                    yield 1
            finally:
                worker.kill()

    def weigh(batch: int) -> tuple[int, int]:
        time.sleep(0.01)
        return batch, 0

    made: list[Any] = []

    def make() -> Iterator[int]:
        made.append(batches())
        return made[0]

    found = steady.steady(make, weigh, warmup_s=0.1, seconds=1.0)
    made[0].close()
    assert found["samples_per_cpu_s_of_all"] < 0.5 * found["samples_per_cpu_s"]
