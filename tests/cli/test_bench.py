from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli_runs import run
from object_server import Bucket
from typer.testing import Result

from energon_grain.errors import ConfigError
from energon_grain.testing import make_captioning_dataset

ENCODER = """
from energon_grain import DefaultTaskEncoder

class Own(DefaultTaskEncoder):
    def encode_sample(self, sample):
        return sample

class Raw(DefaultTaskEncoder):
    decoder = None
"""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_captioning_dataset(tmp_path_factory.mktemp("bench") / "data", n=96, shards=2)


def bench(root: str | Path, *arguments: str) -> Result:
    return run("bench", root, "--seconds", "0.02", "--batch-size", "4", *arguments)


def test_tables_and_advice(root: Path) -> None:
    shown = bench(root, "--workers", "0,1", "--shuffle", "block", "--max-samples-per-sequence", "1")
    assert shown.exit_code == 0, shown.output
    for text in (
        "blocks of 1",
        "reading, warm",
        "copying memory",
        "decode",
        "bounds",
        "first batch",
        "  * With num_",
    ):
        assert text in shown.output


def test_json_and_a_task_encoder_of_the_current_folder(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_encoder_of_bench.py").write_text(ENCODER)
    monkeypatch.chdir(tmp_path)
    named = "own_encoder_of_bench:Own"
    shown = bench(root, "--workers", "0", "--json", "--task-encoder", named, "--image-decode", "rgb8")
    assert shown.exit_code == 0, shown.output
    told = json.loads(shown.output)
    assert [stage["name"] for stage in told["stages"]] == ["storage", "decode", "encode_sample", "batch", "rest"]
    assert told["image_decode"] == "rgb8"
    assert told["bound"] in {stage["name"] for stage in told["stages"]}
    assert told["pipeline"][0]["workers"] == 0
    assert told["advice"]
    refused = bench(root, "--task-encoder", "own_encoder_of_bench:Raw", "--image-decode", "rgb8")
    assert "decodes nothing" in str(refused.exception)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--workers", "one"], "--workers one"),
        (["--task-encoder", "nocolon"], "module:Class"),
        (["--task-encoder", "no_such_module:Class"], "no_such_module"),
        (["--task-encoder", "json:Nothing"], "Nothing"),
        (["--task-encoder", "pathlib:Path"], "no TaskEncoder"),
        (["--max-samples-per-sequence", "8"], "--shuffle block"),
    ],
)
def test_wrong_options(root: Path, arguments: list[str], said: str) -> None:
    refused = bench(root, *arguments)
    assert isinstance(refused.exception, ConfigError)
    assert said in str(refused.exception)


def test_of_a_store_requests_are_told(root: Path, bucket: Bucket) -> None:
    url = bucket.upload(root, "data")
    shown = bench(url, "--workers", "0")
    assert shown.exit_code == 0, shown.output
    for text in (
        url,
        "reading, cache warm",
        "reading, cache off",
        "range requests alone",
        "requests/s",
        "fetched/s",
        "up to 32 are made at a time",
        "Stages, one thread, cache warm, as in later epochs",
        "bounds later epochs",
        "cache off, as in the first epoch",
        "full shuffle, for there are too few samples for blocks",
    ):
        assert text in shown.output
    told = json.loads(run("bench", url, "--seconds", "0.02", "--shuffle", "full", "--json").output)
    assert told["block"] == 1
    assert told["storage"]["store"]["latency_s"] > 0
