"""Who reads, and what is done with errors."""

from __future__ import annotations

import logging
import os
import pickle
import subprocess
import sys
from typing import Any

import pytest
from patience import PATIENCE_S

from energon_grain import ConfigError, TextSample, WorkerConfig, log_exception, reraise_exception


def test_equality_is_rank_world_and_workers() -> None:
    config = WorkerConfig(rank=1, world_size=4, num_workers=2)
    assert config == WorkerConfig(1, 4, 2, seed_offset=5, worker_type="process", global_error_handler=print)
    assert config != WorkerConfig(0, 4, 2)
    assert config != WorkerConfig(1, 5, 2)
    assert config != WorkerConfig(1, 4, 3)


def test_defaults() -> None:
    config = WorkerConfig(rank=0, world_size=1)
    assert (config.num_workers, config.worker_type, config.seed_offset) == (0, "thread", 0)
    assert config.global_error_handler is log_exception
    assert config.restore_error_handler is reraise_exception
    assert pickle.loads(pickle.dumps(config)) == config


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"rank": 2, "world_size": 2}, r"rank=2, world_size=2\): rank must be in \[0, world_size\)"),
        ({"rank": -1, "world_size": 2}, r"rank=-1"),
        ({"rank": 0, "world_size": 0}, r"world_size=0"),
        ({"rank": 0, "world_size": 1, "num_workers": -1}, r"num_workers=-1\): expected 0 or more"),
        (
            {"rank": 0, "world_size": 1, "worker_type": "fiber"},
            r"worker_type='fiber'\): expected 'thread' or 'process'",
        ),
        ({"rank": "0", "world_size": 1}, r"rank='0'\): expected an integer"),
        ({"rank": 0, "world_size": 1.0}, r"world_size=1.0\): expected an integer"),
        ({"rank": 0, "world_size": 1, "prefetch_bytes": 0}, r"prefetch_bytes=0\): expected a positive number of bytes"),
    ],
)
def test_impossible_arguments(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        WorkerConfig(**arguments)


PROGRAM = """
import sys
from energon_grain import WorkerConfig
if "jax" in sys.argv:
    import jax
config = WorkerConfig.default_worker_config(num_workers=3, data_parallel_group="kept")
print(config.rank, config.world_size, config.num_workers, config.data_parallel_group, "jax" in sys.modules)
if "jax" in sys.argv:
    print(jax._src.xla_bridge.backends_are_initialized())
"""


@pytest.mark.parametrize(("with_jax", "printed"), [([], "0 1 3 kept False"), (["jax"], "0 1 3 kept True\nFalse")])
def test_without_jax_distributed_there_is_one_host(with_jax: list[str], printed: str) -> None:
    """Neither is jax imported, nor its backends started, to find that out."""
    if with_jax:
        pytest.importorskip("jax")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", PROGRAM, *with_jax]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE_S, check=True)
    assert done.stdout.strip() == printed


@pytest.mark.parametrize(
    ("dropped", "said"),
    [
        ({"__key__": "a/1"}, "sample 'a/1' was dropped: ValueError: no (from here)"),
        (TextSample(__key__="2", __restore_key__=(), text=""), "sample '2' was dropped"),
        ([{"__key__": "3"}, {"__key__": "4"}], "a group of 2 samples starting with '3' was dropped"),
        ([1, 2], "a group of 2 samples without keys was dropped"),
        (({"__key__": "5"}, None), "the joined sample '5' was dropped"),
        ([], "an empty group was dropped"),
        (17, "a value of type int was dropped"),
        ((17,), "a value of type tuple was dropped"),
    ],
)
def test_what_was_dropped_is_named(dropped: Any, said: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "energon_grain"):
        log_exception(ValueError("no"), dropped, ["here"])
    assert caplog.records[0].getMessage().startswith(said)
