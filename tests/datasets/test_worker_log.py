"""Lines for those who debug."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest
from patience import PATIENCE_S

from energon_grain import WorkerConfig


def test_lines_of_one_process(tmp_path: Path) -> None:
    config = WorkerConfig(1, 2, num_workers=3, worker_debug_path=f"{tmp_path}/logs/{{worker_id}}-{{pid}}.jsonl")
    config.worker_log({"a": 1})
    WorkerConfig(1, 2, num_workers=3, worker_debug_path=config.worker_debug_path).worker_log({"b": [2, "é"]})
    (file,) = (tmp_path / "logs").iterdir()
    assert file.name == f"4-{os.getpid()}.jsonl"
    assert [json.loads(line) for line in file.read_text().splitlines()] == [{"a": 1}, {"b": [2, "é"]}]


def test_processes_that_share_a_file_lose_nothing(tmp_path: Path) -> None:
    program = (
        "import sys\n"
        "from energon_grain.stream.worker_config import WorkerLog, this_is_worker\n"
        "this_is_worker(int(sys.argv[1]))\n"
        "log = WorkerLog(sys.argv[2], rank=0, num_workers=3)\n"
        "for n in range(300):\n"
        "    log.write({'worker': log.worker_id, 'n': n, 'text': 'x' * 20_000})\n"
    )
    path = tmp_path / "shared.jsonl"
    processes = [subprocess.Popen([sys.executable, "-c", program, str(n), str(path)]) for n in range(3)]
    assert [process.wait(PATIENCE_S) for process in processes] == [0, 0, 0]
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert sorted((line["worker"], line["n"]) for line in lines) == [(w, n) for w in (1, 2, 3) for n in range(300)]


def test_without_a_file_lines_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "energon_grain.worker"):
        WorkerConfig(0, 1).worker_log({"a": 1})
    assert caplog.messages == ['{"a": 1}']


def test_levels_and_description() -> None:
    config = WorkerConfig(0, 2, 4, worker_log_level=1, data_parallel_group=object())
    assert [config.should_log(level) for level in (0, 1, 2)] == [True, True, False]
    assert config.config() == {"rank": 0, "world_size": 2, "num_workers": 4, "data_parallel_group": 2}
