"""`energon-grain blame`: text, JSON, a page, and the file of suspects."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli_runs import run
from planted_culprits import SAMPLES, Filtering, losses_of, make_texts, open_run

from energon_grain.errors import ConfigError, FingerprintError

CULPRIT = "000123"
OPTIONS = ["--seed", "5"]
STEPS = 6 * SAMPLES // 8


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset, the losses of a run, and its state."""
    root = tmp_path_factory.mktemp("blame")
    make_texts(root / "text", SAMPLES, 6)
    with open_run(root / "text") as stream:
        losses = losses_of(range(STEPS), stream.which, lambda record: 1.5 * (record.key == CULPRIT))
        next(stream)
        (root / "state.json").write_text(json.dumps(stream.cursor(with_manifest=True)))
    (root / "losses.csv").write_text("step,train_loss\n" + "".join(f"{step},{x}\n" for step, x in losses.items()))
    return root


def test_suspects_are_listed_shown_and_written(folder: Path) -> None:
    page, bad = folder / "page.html", folder / "bad.json"
    arguments = (folder / "state.json", folder / "text", "--losses", folder / "losses.csv", *OPTIONS)
    done = run("blame", *arguments, "--html", page, "-o", bad)
    assert done.exit_code == 0, (done.output, done.exception)
    samples = done.output.partition("  Samples")[2].splitlines()
    assert f"shard_001.tar/{CULPRIT}" in samples[1]
    assert " * " in samples[1]
    assert " * " not in samples[2]
    assert f"Wrote 1 of 10 samples to {bad}." in done.output
    assert json.loads(bad.read_text()) == {"text": [CULPRIT]}
    shown = page.read_text()
    assert shown.count('<article class="card') == 20
    for text in ("Suspects", "Neighbours", CULPRIT, "000124", "neighbour in the same shard", "by chance"):
        assert text in shown
    found = json.loads(run("blame", *arguments, "--json", "--most", "2").stdout)
    assert found["samples"][0]["key"] == CULPRIT
    assert (found["steps"], len(found["samples"]), found["replayed"]) == (STEPS, 2, False)
    assert {suspect["kind"] for suspect in found["shards"]} == {"shard"}


def test_one_step_is_explained(folder: Path) -> None:
    arguments = (folder / "state.json", folder / "text", "--losses", folder / "losses.csv", *OPTIONS)
    steps = json.loads(run("blame", *arguments, "--json").stdout)["samples"][0]["steps"]
    found = json.loads(run("blame", *arguments, "--step", str(steps[0]), "--json", "--most", "8").stdout)
    assert found["samples"][0]["key"] == CULPRIT
    assert len(found["samples"]) == 8
    both = json.loads(run("blame", *arguments, "--step", f"{steps[0]}:{steps[0] + 1}", "--json").stdout)
    assert [spike["step"] for spike in both["spikes"]] == [steps[0], steps[0] + 1]


@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        (["--step", "9:2"], ConfigError, "--step 9:2: expected a step, or FIRST:LAST"),
        (["--step", "5000"], ConfigError, "the losses have none of the steps 5000 to 5000; they have 0 to 449"),
        (["--column", "accuracy"], ConfigError, "there is no column 'accuracy'; there are 'step', 'train_loss'"),
        (["--html", "none/page.html"], ConfigError, "cannot be written: there is no folder"),
        (["--seed", "6"], FingerprintError, "seed: saved 5, now 6"),
        (["--lag", "1"], ConfigError, "lag=1: step 0 of the losses would be a step before the first one, 0"),
    ],
)
def test_errors_say_what_to_change(folder: Path, changed: list[str], error: type[Exception], message: str) -> None:
    done = run("blame", folder / "state.json", folder / "text", "--losses", folder / "losses.csv", *OPTIONS, *changed)
    assert isinstance(done.exception, error), (done.output, done.exception)
    assert message in str(done.exception)


def test_a_replay_is_said(folder: Path) -> None:
    """A sample that is dropped moves later ones, which only the data know."""
    with open_run(folder / "text", task_encoder=Filtering()) as stream:
        losses = {step: 2 + 0.05 * (step % 5) + (CULPRIT in next(stream).__key__) for step in range(150)}
        (folder / "dropped.json").write_text(json.dumps(stream.cursor(with_manifest=True)))
    lines = "\n".join(json.dumps({"_step": step, "train/loss": loss}) for step, loss in losses.items())
    (folder / "wandb.jsonl").write_text(lines)
    encoder = ["--task-encoder", "planted_culprits:Filtering"]
    arguments = (folder / "dropped.json", folder / "text", "--losses", folder / "wandb.jsonl", *OPTIONS, *encoder)
    done = run("blame", *arguments)
    assert done.exit_code == 0, (done.output, done.exception)
    assert "were read and made again." in done.output
    assert CULPRIT in done.output.partition("  Samples")[2].splitlines()[1]
