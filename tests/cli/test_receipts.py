"""`receipt`, `verify` and `measure --digest`, as a user calls them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli_runs import run
from metadatasets import write_v2

from energon_grain import WorkerConfig, get_savable_loader, get_train_dataset
from energon_grain.testing import make_text_dataset


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two datasets, a mixture of them, and a state of it after three steps."""
    for name, n in (("a", 24), ("b", 30)):
        make_text_dataset(tmp_path / name, n=n, shards=2)
    write_v2(tmp_path, "mix.yaml", train={"blend": [{"path": "a", "weight": 1}, {"path": "b", "weight": 2}]})
    monkeypatch.chdir(tmp_path)
    dataset = get_train_dataset(
        "mix.yaml",
        batch_size=4,
        shuffle_buffer_size=None,
        max_samples_per_sequence=None,
        worker_config=WorkerConfig(0, 1, 0),
    )
    with get_savable_loader(dataset) as loader:
        for _ in range(3):
            next(loader)
        (tmp_path / "state.json").write_text(json.dumps(loader.save_state_global()))
    return tmp_path


def test_from_digests_to_a_difference(folder: Path) -> None:
    for name in ("a", "b"):
        (folder / name / ".nv-meta/columnar/digests.json").unlink()
    refused = run("receipt", "state.json", "mix.yaml")
    assert refused.exit_code == 1
    assert "measure" in str(refused.exception)
    assert run("measure", "mix.yaml", "--digest").stdout == "Stored digests of 4 files of 2 datasets (143 kB).\n"
    made = run("receipt", "state.json", "mix.yaml", "-o", "receipt.json")
    assert made.stdout == "Wrote receipt.json.\n"
    assert run("receipt", "state.json", "mix.yaml").stdout == (folder / "receipt.json").read_text()
    equal = run("verify", "receipt.json", "mix.yaml", "--state", "state.json")
    assert equal.exit_code == 0, equal.output
    assert equal.stdout == "Equal to the receipt of step 3: data and configuration (2 datasets, 4 files, 143 kB).\n"
    data = run("verify", "receipt.json", "a", "b")
    assert data.stdout == "Equal to the receipt of step 3: data (2 datasets, 4 files, 143 kB).\n"
    assert run("verify", "receipt.json", "b", "a").exit_code == 1
    shard = folder / "b/shard_001.tar"
    content = bytearray(shard.read_bytes())
    content[600] ^= 4
    shard.write_bytes(content)
    differs = run("verify", "receipt.json", "mix.yaml", "--seed", "7")
    assert differs.exit_code == 1
    assert differs.stdout.splitlines() == [
        "Differs from the receipt:",
        "  seed: [0, 0] in the receipt, now [7, 0]",
        f"  {folder}/b: shard_001.tar differs or is missing",
    ]


def test_a_state_alone(folder: Path) -> None:
    receipt = json.loads(run("receipt", "state.json").stdout)
    assert receipt["datasets"] == {"count": None, "root": None}
    (folder / "receipt.json").write_text(json.dumps(receipt, indent=1))
    found = run("verify", "receipt.json", "mix.yaml")
    assert found.exit_code == 0
    assert found.stdout.startswith("Equal to the receipt of step 3: configuration (2 datasets, 0 files")
    assert "the data were not compared" in found.stdout
    assert run("verify", "receipt.json", "mix.yaml", "--lanes", "24").exit_code == 1


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["measure", "a"], "or --digest"),
        (["measure", "a", "--digest", "--column", "n=builtins:len"], "--digest is a command of its own"),
        (["receipt", "state.json", "--seed", "1"], "give it after the state"),
        (["verify", "state.json", "mix.yaml"], "is no receipt"),
        (["verify", "nothing.json", "mix.yaml"], "cannot be read as a receipt"),
    ],
)
def test_wrong_calls(folder: Path, arguments: list[str], says: str) -> None:
    done = run(*arguments)
    assert done.exit_code == 1
    assert says in str(done.exception)


def test_checks_of_data_alone_take_no_options(folder: Path) -> None:
    run("measure", "mix.yaml", "--digest")
    run("receipt", "state.json", "mix.yaml", "-o", "receipt.json")
    done = run("verify", "receipt.json", "a", "b", "--seed", "1")
    assert "takes no state and no options" in str(done.exception)
    assert run("verify", "receipt.json", "mix.yaml", "--data-only").exit_code == 0
