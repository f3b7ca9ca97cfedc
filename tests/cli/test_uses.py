"""`energon-grain when` and `energon-grain seen`."""

from __future__ import annotations

import csv
import importlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli_runs import run
from pyarrow import parquet

from energon_grain import TaskEncoder, WorkerConfig, get_savable_loader, get_train_dataset
from energon_grain.testing import make_text_dataset

OPTIONS = ("--shuffle-buffer-size", "100", "--max-samples-per-sequence", "10", "--seed", "3")


MODULE = """
from energon_grain import SkipSample, TaskEncoder


class Skips(TaskEncoder):
    __default_failure_tolerance__ = 0

    def encode_sample(self, sample):
        if int(sample.__key__) % 7 == 3:
            raise SkipSample
        return sample
"""


def saved(root: Path, steps: int, encoder: TaskEncoder | None = None) -> tuple[Path, Any]:
    """A state after some steps, and the loader."""
    loader = get_savable_loader(
        get_train_dataset(
            root / "text",
            batch_size=8,
            shuffle_buffer_size=100,
            max_samples_per_sequence=10,
            seed=3,
            task_encoder=encoder,
            worker_config=WorkerConfig(0, 1, 0),
        )
    )
    for _ in range(steps):
        next(loader)
    state = root / "state.json"
    state.write_text(json.dumps(loader.save_state_rank()))
    return state, loader


@pytest.fixture
def root(tmp_path: Path) -> Path:
    make_text_dataset(tmp_path / "text", n=200, shards=2)
    return tmp_path


def test_when_lists_the_uses_of_samples(root: Path) -> None:
    state, loader = saved(root, 30)
    with loader:
        record = loader.which(4)[2]
        found = run("when", state, root / "text", record.key, *OPTIONS)
        assert found.exit_code == 0, found.output
        assert "3 uses until now; the next one is marked with >." in found.stdout
        assert found.stdout.split("position\n")[1].split()[:4] == ["4", "0", "2", "0"]
        both = run("when", state, root / "text", record.key, f"{record.shard}/{record.key}", *OPTIONS, "--json")
        document = json.loads(both.stdout)
        uses = document["uses"]
        assert (document["replay"], document["replayed"], document["since"]) == (None, False, 0)
        assert [use["step"] for use in uses[: len(uses) // 2]] == [use.step for use in loader.when(record.key)]
    missing = run("when", state, root / "text", "no-such-key", *OPTIONS)
    assert missing.exit_code == 1
    assert "no sample 'no-such-key' in any dataset of this run" in str(missing.exception)


def test_when_names_the_cost_of_a_replay_and_runs_it(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (root / "skips_of_a_run.py").write_text(MODULE)
    monkeypatch.syspath_prepend(root)
    state, loader = saved(root, 6, importlib.import_module("skips_of_a_run").Skips())
    with loader:
        key = loader.which(3)[0].key
    encoder = ("--task-encoder", "skips_of_a_run:Skips")
    found = run("when", state, root / "text", key, *OPTIONS, *encoder)
    assert found.exit_code == 0, found.output
    assert "--replay finds the steps: it makes 6 steps again from step 0, and reads about 48 samples." in found.stdout
    found = run("when", state, root / "text", key, *OPTIONS, *encoder, "--replay", "--json")
    assert [use["step"] for use in json.loads(found.stdout)["uses"] if use["past"]] == [3]


@pytest.mark.parametrize("ending", ["parquet", "csv", "npz"])
def test_seen_counts_all_samples(root: Path, ending: str) -> None:
    state, loader = saved(root, 30)
    with loader:
        [expected] = loader.seen()
        keys = expected.keys(np.arange(len(expected.times)))
    file = root / f"seen.{ending}"
    found = run("seen", state, root / "text", *OPTIONS, "-o", file)
    assert found.exit_code == 0, found.output
    assert f"Wrote {file}." in found.stdout
    assert f"{expected.uses}" in found.stdout
    if ending == "parquet":
        rows = parquet.read_table(file).to_pydict()
        assert (rows["key"], rows["times"]) == (keys, expected.times.tolist())
        assert set(rows["dataset"]) == {expected.name}
    elif ending == "csv":
        with file.open(newline="") as opened:
            table = [*csv.DictReader(opened)]
        assert [(row["key"], int(row["times"])) for row in table] == [*zip(keys, expected.times, strict=True)]
    else:
        arrays = np.load(file)
        assert arrays["datasets"].tolist() == [expected.name]
        assert np.array_equal(arrays["times_0"], expected.times)
    later = run("seen", state, root / "text", *OPTIONS, "--until", "50", "--json")
    [row] = json.loads(later.stdout)
    assert (row["uses"], row["samples"]) == (400, len(keys))
    refused = run("seen", state, root / "text", *OPTIONS, "-o", root / "seen.txt")
    assert "must end with .parquet, .csv, .npz" in str(refused.exception)
